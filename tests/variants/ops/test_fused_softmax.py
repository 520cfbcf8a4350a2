"""Which kernel of softmax runs on a GPU is chosen by name, and recorded."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend

from attnbench.variants import AttentionShape, Mask, build
from attnbench.variants.contract import Unsupported
from attnbench.variants.ops import fused_softmax as module

GPU = AttentionShape(heads=2, head_dim=16, max_length=8, padding=False, dtype="bfloat16", device="cuda:0")


def refusal(impl: str, **changes: object) -> str | None:
    try:
        build(f"softmax[impl={impl}]", replace(GPU, **changes))  # type: ignore[arg-type]
    except Unsupported as refused:
        return str(refused)
    return None


def test_a_backend_is_refused_where_it_cannot_run() -> None:
    assert [refusal(impl) for impl in module.BACKENDS] == [None] * 4
    assert "CUDA devices, and this is cpu" in str(refusal("math", device="cpu"))
    assert "no padding mask" in str(refusal("flash", padding=True))
    assert refusal("efficient", padding=True) is refusal("cudnn", padding=True) is None
    assert "not float32" in str(refusal("flash", dtype="float32"))
    assert refusal("efficient", dtype="float32") is None


@pytest.mark.parametrize("impl", list(module.BACKENDS))
def test_the_backend_that_is_named_runs_and_is_recorded(impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = []

    @contextmanager
    def kernel(backend: SDPBackend):
        entered.append(backend)
        yield

    monkeypatch.setattr(module, "sdpa_kernel", kernel)
    variant = build(f"softmax[impl={impl}]", GPU)
    variant(*(torch.randn(1, 2, 8, 16, dtype=torch.bfloat16) for _ in range(3)), Mask())
    assert entered == [module.BACKENDS[impl]]
    assert variant.implementation == impl


def test_flash_takes_no_mask() -> None:
    variant = build("softmax[impl=flash]", replace(GPU, causal=True))
    heads = torch.randn(1, 2, 8, 16, dtype=torch.bfloat16)
    for query, mask in ((heads, Mask(torch.ones(1, 8, dtype=torch.bool))), (heads[:, :, :3], Mask(causal=True))):
        with pytest.raises(Unsupported, match="takes no mask"):
            variant(query, heads, heads, mask)


def test_what_pytorch_chooses_by_itself_is_recorded_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is PyTorch's own answer for these inputs."""
    on_gpu = SimpleNamespace(device=torch.device("cuda", 0), shape=(1, 2, 8, 16))
    for name, backend in module.BACKENDS.items():
        monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *_, backend=backend, **__: backend.value)
        assert module._chosen(on_gpu, on_gpu, on_gpu, None, 0.0, True) == name  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("impl", list(module.BACKENDS))
def test_each_backend_reads_gradients_of_any_layout_as_it_is_in_float64(impl: str) -> None:
    """Also where an earlier one of the same shape lay otherwise, for which cuDNN's graph was made."""
    drawn = torch.randn(2, 95, 3, 2, 32, device="cuda", dtype=torch.bfloat16).permute(2, 0, 3, 1, 4)
    arriving = torch.randn(2, 95, 2, 32, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    exact = [x.double().requires_grad_() for x in drawn]
    truth = torch.autograd.grad(build("softmax[impl=eager]", GPU)(*exact, Mask()), exact, arriving.double())
    variant = build(f"softmax[impl={impl}]", GPU)
    for sent in (arriving, arriving.contiguous(), arriving.mT.contiguous().mT):
        leaves = [x.detach().requires_grad_() for x in drawn]
        for a, b in zip(torch.autograd.grad(variant(*leaves, Mask()), leaves, sent), truth, strict=True):
            assert (a.double() - b).abs().max() < 0.03 * b.abs().max()


def test_on_a_processor_nothing_is_claimed() -> None:
    variant = build("softmax", AttentionShape(heads=2, head_dim=16, max_length=8))
    variant(*(torch.randn(1, 2, 8, 16) for _ in range(3)), Mask())
    assert variant.implementation == "sdpa"
