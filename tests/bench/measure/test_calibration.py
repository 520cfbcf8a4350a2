"""What a GPU reaches on known work: FLOPs per second from a device whose kernels take the seconds that a test gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from fake_cuda import FakeCuda, Redirected, install

from attnbench.bench.measure import calibration as measured
from attnbench.bench.measure.calibration import calibration

SIZES = {"side": 16, "tokens": 32, "width": 32}
# nominal FLOPs by hand: 2 · 16³; 4 · heads · 32² · width with heads × width = 32
PRODUCT, FULL = 8_192.0, 131_072.0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = install(monkeypatch, clock=True)
    monkeypatch.setattr(measured, "HEAD_DIMS", (8, 16))
    monkeypatch.setattr(measured.time, "sleep", lambda seconds: setattr(fake, "now", fake.now + seconds))
    monkeypatch.setattr(torch, "mm", lambda left, right: fake.launch(1e-3))

    def attention(backend: object, query: torch.Tensor, *others: object) -> None:
        if backend is measured.BACKENDS["cudnn"] and query.shape[3] == 16:
            raise RuntimeError("No available kernel. Aborting execution.")
        fake.launch(2e-3 if backend is measured.BACKENDS["flash"] else 1e-3)

    monkeypatch.setattr(measured, "_sdpa", attention)
    with Redirected():
        yield fake


def test_rates_are_nominal_flops_over_the_seconds_of_the_device(cuda: FakeCuda) -> None:
    found = {
        (m.where["kernel"], m.where["dtype"], m.where["head_dim"], m.where["causal"], m.where["pace"]): m
        for m in calibration(torch.device("cuda", 0), **SIZES)
    }
    rates = {key: measurement.value for key, measurement in found.items()}
    assert rates["product", "float16", 0, False, "cooled"] == pytest.approx(PRODUCT / 1e-3)
    assert rates["flash", "bfloat16", 8, False, "cooled"] == pytest.approx(FULL / 2e-3)
    assert rates["flash", "bfloat16", 8, True, "cooled"] == pytest.approx(FULL / 2 / 2e-3)
    assert rates["cudnn", "float16", 8, False, "cooled"] == pytest.approx(FULL / 1e-3)
    assert all(len(m.samples) == (5 if key[-1] == "cooled" else 0) for key, m in found.items())
    # a kernel that PyTorch does not have at a shape is left out, the others stay
    assert not any(key[0] == "cudnn" and key[2] == 16 for key in rates)
    assert {key[:3] for key in rates if key[-1] == "sustained"} == {
        ("product", "bfloat16", 0), ("flash", "bfloat16", 16)
    }  # fmt: skip


def test_a_pause_goes_before_each_cooled_sample(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(measured.time, "sleep", pauses.append)
    found = [m for m in calibration(torch.device("cuda", 0), **SIZES) if m.where["pace"] == "cooled"]
    # two calls that warm up, and five samples
    assert pauses == [measured.GAP_SECONDS] * 7 * len(found)


def test_flash_attention_3_is_measured_where_it_is_installed(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []

    class Module:
        @staticmethod
        def flash_attn_func(query: torch.Tensor, *others: torch.Tensor, causal: bool) -> None:
            shapes.append(tuple(query.shape))
            cuda.launch(0.5e-3)

    monkeypatch.setattr(measured, "find_spec", lambda name: name == "flash_attn_interface" or None)
    monkeypatch.setattr(measured, "import_module", lambda name: Module)
    rates = [m for m in calibration(torch.device("cuda", 0), **SIZES) if m.where["kernel"] == "flash-3"]
    assert [m.value for m in rates if not m.where["causal"]] == pytest.approx([FULL / 0.5e-3] * 5)
    # tokens before heads
    assert set(shapes) == {(1, 32, 4, 8), (1, 32, 2, 16)}


def test_a_processor_rehearses_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "DTYPES", ("float32",))
    found = list(calibration(torch.device("cpu"), side=16, tokens=16, width=128))
    assert {m.where["kernel"] for m in found} == {"product", "sdpa"} and all(m.value > 0 for m in found)
