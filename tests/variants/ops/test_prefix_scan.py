"""Prefix and window softmax against explicit loops in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pooling_cases import average_by_loops
from torch import Tensor

from attnbench.variants.ops.prefix_scan import prefix_softmax, window_softmax, without


@given(
    length=st.integers(1, 100),
    window=st.one_of(st.none(), st.integers(1, 110)),
    scale=st.sampled_from([0.1, 5.0, 400.0]),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_averages_and_masses_equal_explicit_sums_for_any_length_window_and_mask(
    length: int, window: int | None, scale: float, share: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(length, generator=generator, dtype=torch.float64) * scale
    values = torch.randn(length, 2, generator=generator, dtype=torch.float64)
    valid = torch.rand(length, generator=generator) >= share
    entries = without(logits, values, valid)
    masses, means = prefix_softmax(*entries) if window is None else window_softmax(*entries, window)
    torch.testing.assert_close(means, average_by_loops(logits, values, window, valid), rtol=1e-10, atol=1e-12)
    for t in range(length):
        start = 0 if window is None else max(0, t - window + 1)
        kept = logits[start : t + 1][valid[start : t + 1]]
        if len(kept):
            torch.testing.assert_close(masses[t], kept.logsumexp(0), rtol=1e-10, atol=1e-10)


def test_three_levels_of_chunks_agree_with_the_softmax_of_each_prefix() -> None:
    length = 2500  # chunks of chunks of chunks
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(length, generator=generator) * 3
    values = torch.randn(length, 3, generator=generator)
    _, means = prefix_softmax(logits, values)
    for t in (0, 31, 32, 1023, 1024, 1055, 1056, 2047, 2499):
        expected = logits[: t + 1].double().softmax(0) @ values[: t + 1].double()
        torch.testing.assert_close(means[t].double(), expected, rtol=1e-5, atol=1e-6)


def test_a_window_behind_a_large_past_keeps_its_digits_where_running_sums_lose_them() -> None:
    logits = torch.cat([torch.full((50,), 30.0), torch.full((200,), -30.0)])
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(250, 2, generator=generator)
    window = 16
    expected = average_by_loops(logits.double(), values.double(), window)
    sums, norms = (logits.exp()[:, None] * values).cumsum(0), logits.exp().cumsum(0)
    subtracted = (sums[100:] - sums[100 - window : -window]) / (norms[100:] - norms[100 - window : -window])[:, None]
    assert not torch.isfinite(subtracted).all()
    _, means = window_softmax(logits, values, window)
    torch.testing.assert_close(means.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [None, 2, 3, 5])
def test_gradients_of_the_scan_agree_with_finite_differences(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnbench.variants.ops.prefix_scan._CHUNK", 2)  # so that seven entries make three levels
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    values = torch.randn(7, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    valid = torch.tensor([False, False, True, True, False, True, True])

    def means(logits: Tensor, values: Tensor) -> Tensor:
        entries = without(logits, values, valid)
        return (prefix_softmax(*entries) if window is None else window_softmax(*entries, window))[1]

    assert torch.autograd.gradcheck(means, (logits, values))
