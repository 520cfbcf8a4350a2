"""Kernels of fla as variants: the layout and the gates that they get, and why they do not run here."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import attnbench
from attnbench.variants import AttentionShape, Mask
from attnbench.variants.ops import recurrences

FILE = Path(attnbench.__file__).parent / "tools" / "fla_package" / "attnbench_fla_package.py"
spec = importlib.util.spec_from_file_location(FILE.stem, FILE)
assert spec is not None and spec.loader is not None
fla = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fla)

SHAPE = AttentionShape(heads=3, head_dim=8, max_length=40, causal=True, padding=False)


def test_each_says_why_it_does_not_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(**changes: object) -> str | None:
        shape = replace(SHAPE, **changes)
        found: str | None = fla.ChunkKda(shape).supports(shape)
        return found

    assert refusal() == refusal(causal=False) == "kernels of fla need a CUDA device, and this is cpu"
    monkeypatch.setattr(fla, "find_spec", lambda name: None)
    assert "pip install flash-linear-attention" in (refusal(device="cuda") or "")
    monkeypatch.setattr(fla, "find_spec", lambda name: name)
    assert refusal(device="cuda", dtype="bfloat16") is None
    assert refusal(device="cuda", causal=False, dtype="bfloat16") == "a recurrence is causal"
    assert "not float32" in (refusal(device="cuda") or "")


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None = None, **given: bool) -> Tensor:
    """The recurrence that fla documents, token by token: tokens before heads, decays as logarithms."""
    assert given == ({} if beta is None else {"use_qk_l2norm_in_kernel": True})
    if beta is not None:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    state, outputs = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3]), []
    for at in range(q.shape[1]):
        decay = g[:, at].exp()
        state = state * (decay[..., None] if decay.dim() == 3 else decay[..., None, None])
        read = v[:, at] if beta is None else v[:, at] - (k[:, at, :, None] @ state)[:, :, 0]
        written = k[:, at, :, :, None] * read[:, :, None]
        state = state + (written if beta is None else beta[:, at, :, None, None] * written)
        outputs.append((q[:, at, :, None] @ state)[:, :, 0] * q.shape[-1] ** -0.5)
    return torch.stack(outputs, 1)


def expected(variant: object, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """By our own operations, which are tested against their papers."""
    scale, decay = q.shape[-1] ** -0.5, -F.softplus(variant.decay)
    by_head = decay[None, :, None].expand(q.shape[0], -1, k.shape[2], *decay.shape[1:])
    if variant.rate is None:
        return scale * recurrences.recurrence(q, k, v, by_head)[0]
    k, rate = F.normalize(k, dim=-1), variant.rate.sigmoid()[:, None, None]
    return scale * recurrences.recurrence(F.normalize(q, dim=-1), k, rate * v, by_head, rate * k)[0]


@pytest.mark.parametrize("name", ["ChunkGla", "ChunkSimpleGla", "ChunkGatedDelta", "ChunkKda"])
@pytest.mark.parametrize("queries", [40, 7])
def test_each_computes_the_recurrence_of_its_equation(name: str, queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels need a GPU: in their place stands a loop over tokens, with their layout and their names."""
    variant = getattr(fla, name)(SHAPE)
    monkeypatch.setitem(
        sys.modules, variant.module, SimpleNamespace(**{variant.kernel: lambda *a, **g: (recurrence(*a, **g), None)})
    )
    draw = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 3, 40, 8, generator=draw) for _ in range(3))
    found = variant(q[:, :, 40 - queries :], k, v, Mask(causal=True))
    torch.testing.assert_close(found, expected(variant, q, k, v)[:, :, 40 - queries :], atol=2e-5, rtol=2e-4)
    found.sum().backward()
    assert all(parameter.grad is not None for parameter in variant.parameters())


def test_the_share_of_scores_counts_chunks_and_states() -> None:
    shape = replace(SHAPE, max_length=4096, head_dim=64)
    # 64 scores of a chunk, and 64 each to read the state and to write it, of 4097 / 2 on average
    assert fla.ChunkGla(shape).density(shape) == pytest.approx(3 * 64 / 2048.5)
