"""The gate where PyTorch's attention kernels behave as on a CUDA device: what they refuse is no fault; what errs is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_cuda
import pytest
import torch
from fake_kernels import FakeKernels
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.core.errors import Unsupported
from attnbench.bench.core.record import Outcome
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.bench.gate import Result, examine, quick_gate, suite, twins
from attnbench.bench.gate import build as gate_build
from attnbench.bench.gate.build import Incorrect, build_checked_cached, require_correct
from attnbench.bench.gate.case import Case, gap
from attnbench.bench.gate.twins import SWITCHES
from attnbench.bench.run.context import RecordBuilder, WorkerContext
from attnbench.bench.store.store import Store
from attnbench.tasks.data.data import place
from attnbench.variants import AttentionShape, Mask, build
from attnbench.variants.kernels import gpu

SHAPE = AttentionShape(heads=4, head_dim=32, max_length=96, causal=True, dtype="bfloat16", device="cuda:0")
DTYPES = ("bfloat16", "float16", "float32")
NAMES = [entry.name for entry in VARIANTS.entries()]
REFUSED = {
    ("mamba3", "float16"): "its outputs leave the range of float16; take bfloat16",
    ("relu-squared", "float16"): "its sums leave the range of float16; take bfloat16",
}
SMOKE = ("softmax", "rela", "linear", "local")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKernels]:
    """A device without Triton, whose kernels have tests of their own; torch.compile asks for a real one."""
    fake_cuda.install(monkeypatch)
    monkeypatch.setattr(gpu, "reason", lambda *_, **__: "there is no Triton here")
    monkeypatch.setattr(suite, "PROPERTIES", [each for each in suite.PROPERTIES if each.name != "compiled"])
    with FakeKernels() as kernels:
        yield kernels


def heads(dtype: torch.dtype = torch.bfloat16, width: int = 32, length: int = 8) -> torch.Tensor:
    return torch.randn(1, 4, length, width, dtype=dtype)


def reds(findings: list[Result]) -> list[str]:
    return [f"{each.property}: {each.detail}" for each in findings if each.held is False]


def test_a_backend_that_pytorch_does_not_have_for_the_inputs_is_unsupported(device: FakeKernels) -> None:
    """With PyTorch's reason, and without its warnings, which are errors here."""
    for impl, x, reason in (
        ("cudnn", heads(width=12), "head_dim should be a multiple of 8"),
        ("cudnn", heads(length=1), "key/value sequence length 1"),
        ("efficient", heads(torch.float64), "Got torch.float64"),
        ("flash", heads(width=264), "head_dim above 256"),
    ):
        shape = replace(SHAPE, head_dim=x.shape[-1], padding=False)
        with pytest.raises(Unsupported, match=f"impl={impl}: PyTorch has no such kernel .*{reason}"):
            build(f"softmax[impl={impl}]", shape)(x, x, x, Mask())


def test_another_error_of_a_named_backend_is_one(device: FakeKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: an illegal memory access")):

        def attention(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(FakeKernels, "attention", attention)
        with pytest.raises(type(error), match="CUDA"):
            build("softmax[impl=efficient]", SHAPE)(heads(), heads(), heads(), Mask())


def test_a_warning_beside_a_backend_that_runs_is_heard(device: FakeKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    def attention(query: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        import warnings

        warnings.warn("of something else", UserWarning, stacklevel=1)
        return query

    monkeypatch.setattr(FakeKernels, "attention", lambda self, *inputs, **more: attention(*inputs, **more))
    with pytest.warns(UserWarning, match="of something else"):
        build("softmax[impl=efficient]", SHAPE)(heads(), heads(), heads(), Mask())


@pytest.mark.parametrize("impl", ["sdpa", "cudnn"])
def test_a_gradient_that_lies_otherwise_than_the_one_before_is_read_rightly(device: FakeKernels, impl: str) -> None:
    """cuDNN's graph of the backward pass, which PyTorch keeps, reads each as the first one lay."""
    x, truth = [heads(length=24) for _ in range(3)], []
    arriving = torch.randn(1, 24, 4, 32).transpose(1, 2)
    exact = [each.double().requires_grad_() for each in x]
    with torch._C.DisableTorchFunction():
        truth = torch.autograd.grad(F.scaled_dot_product_attention(*exact), exact, arriving.double())
    variant = build(f"softmax[impl={impl}]", replace(SHAPE, padding=False))
    for sent in (arriving, arriving.contiguous(), arriving.contiguous().transpose(-1, -2).contiguous().mT):
        leaves = [each.clone().requires_grad_() for each in x]
        found = torch.autograd.grad(variant(*leaves, Mask()), leaves, sent.bfloat16())
        for a, b in zip(found, truth, strict=True):
            assert (a.double() - b).abs().max() < 0.02 * b.abs().max()
    assert device.ran == {"cudnn"}


def test_the_blocks_of_a_window_read_such_a_gradient_rightly_too(device: FakeKernels) -> None:
    variant, x = build("local[query_block=4]", replace(SHAPE, padding=False)), [heads(length=24) for _ in range(3)]
    arriving, found = torch.randn(1, 24, 4, 32).bfloat16().transpose(1, 2), []
    for sent in (arriving, arriving.contiguous()):
        leaves = [each.clone().requires_grad_() for each in x]
        found.append(torch.autograd.grad(variant(*leaves, Mask(causal=True)), leaves, sent))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["softmax", "local"])
def test_decoding_never_asks_cudnn_for_a_plan_of_each_length(device: FakeKernels, name: str) -> None:
    variant, state = build(name, SHAPE), None
    with torch.no_grad():
        for _ in range(5):
            _, state = variant.step(heads(length=1), heads(length=1), heads(length=1), state)
    assert device.ran == {"flash"}
    assert torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SMOKE)
def test_a_right_variant_is_right_there(device: FakeKernels, name: str, dtype: str) -> None:
    assert quick_gate(name, replace(SHAPE, dtype=dtype)) is None


@pytest.mark.slow
@pytest.mark.parametrize("switches", [False, True], ids=["one backend", "another where fewer inputs want gradients"])
@pytest.mark.parametrize("impl", ["sdpa", "flash", "cudnn", "efficient", "math"])
def test_the_reference_and_each_backend_hold_all_that_applies(device: FakeKernels, impl: str, switches: bool) -> None:
    device.switches = switches
    assert reds(examine(f"softmax[impl={impl}]", SHAPE)) == []


@pytest.mark.soak
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_variant_holds_there_or_is_not_applicable(device: FakeKernels, name: str, dtype: str) -> None:
    shape = replace(SHAPE, max_length=200, dtype=dtype)
    findings = examine(name, shape, thorough=False)
    if all(each.held is None for each in findings):
        findings = examine(name, replace(shape, causal=False), thorough=False)
    assert reds(findings) == []
    if (name, dtype) in REFUSED:
        assert {each.detail for each in findings} == {REFUSED[name, dtype]}
        return
    assert {"finite", "deterministic", "layout"} <= {each.property for each in findings if each.held}


@pytest.fixture
def switches() -> Iterator[None]:
    """What a test switches off is on again after it."""
    yield
    for _, switch in SWITCHES.values():
        switch(True)


@pytest.mark.usefixtures("switches")
def test_a_wrong_backend_is_named_and_softmax_goes_on_with_another(device: FakeKernels) -> None:
    device.wrong = ("cudnn",)
    with pytest.warns(RuntimeWarning, match=r"cudnn is wrong \(twin: gradient of key of its twin.* 0\.1\d, allowed"):
        require_correct(Spec("softmax"), SHAPE, 1, "short")
    device.ran.clear()
    variant = build("softmax", replace(SHAPE, padding=False))
    variant(heads(), heads(), heads(), Mask(causal=True))
    assert device.ran == {"flash"} and variant.implementation == "flash"
    # by its name it stays what it is
    with pytest.raises(Incorrect, match="twin: gradient of key of its twin"):
        require_correct(Spec.parse("softmax[impl=cudnn]"), SHAPE, 1, "short")


@pytest.mark.slow
@pytest.mark.usefixtures("switches")
def test_a_reference_that_no_backend_makes_right_says_what_was_found_and_allowed(device: FakeKernels) -> None:
    device.wrong = ("cudnn", "flash", "efficient", "math")
    with pytest.raises(Incorrect) as refused:
        require_correct(Spec("softmax"), SHAPE, 1, "short")
    for name in ("cudnn", "flash", "efficient"):
        assert re.search(rf"{name} is wrong \(twin: [^:]*: 0\.1\d, allowed 0\.0\d+\)", str(refused.value))


def test_a_wrong_variant_is_not_excused_by_right_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Result(property="twin", verdict="fails", measured=0.3, allowed=0.02, detail="output of its twin")
    monkeypatch.setattr(gate_build, "quick_gate", lambda spec, *_, **__: wrong if str(spec) == "linear" else None)
    with pytest.raises(Incorrect, match=r"^twin: .*: 0.3, allowed 0.02; of PyTorch's .* each is right here$"):
        require_correct(Spec("linear"), SHAPE, 1, "short")


@pytest.mark.usefixtures("switches")
def test_what_passed_without_a_kernel_is_examined_again_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, shape = [], replace(SHAPE, device="cpu")
    monkeypatch.setattr(gate_build, "quick_gate", lambda *given, form, **_: asked.append(form))
    torch.backends.cuda.enable_cudnn_sdp(False)
    build_checked_cached(tmp_path, "box")(Spec("softmax"))(shape)
    torch.backends.cuda.enable_cudnn_sdp(True)
    for _ in range(2):
        build_checked_cached(tmp_path, "box")(Spec("softmax"))(shape)
    assert asked == ["short", "own"] * 2


@pytest.mark.usefixtures("switches")
def test_a_record_names_the_kernels_that_were_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_cuda.install(monkeypatch)
    cell, ran = Cell(variant=Spec("softmax"), task=Spec("lra-text"), preset=Spec("smoke")), []
    with fake_cuda.Redirected():
        context = WorkerContext(
            job=Job(id="b", cells=(cell,), digests={cell.key: "d"}, device="cuda:0"), place=place(offline=True),
            store=Store(tmp_path), send=lambda event: None,
        )  # fmt: skip
        for may_run in (True, False):
            torch.backends.cuda.enable_cudnn_sdp(may_run)
            ran.append(RecordBuilder(context, cell, implementation="flash").record(Outcome.OK).implementation)
    assert ran == ["flash", "flash; without cudnn"]


def test_a_gpu_compiles_its_kernels_for_the_measured_width_and_dtype_alone(
    device: FakeKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a second; `check` has an odd width too, and a processor, where they cost nothing, a large one."""
    asked = set()

    def reason(kind: str, dtype: torch.dtype, head_dim: int, **_: object) -> str:
        asked.add((dtype, head_dim))
        return "there is no Triton here"

    monkeypatch.setattr(gpu, "reason", reason)
    assert quick_gate("rela", SHAPE, form="short") is None
    assert asked - {(torch.float64, 32)} == {(torch.bfloat16, 32)}
    for name, thorough, widths in (("cuda:0", True, {5, 32}), ("cpu", False, {67, 5, 32})):
        sizes = twins._sizes(Case("rela", replace(SHAPE, device=name), thorough=thorough))
        assert {each.shape.head_dim for each in sizes} == widths


def test_a_comparison_waits_for_the_device_once() -> None:
    reads = []

    class Reads(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in ("item", "tolist", "__bool__", "__float__"):
                reads.append(func)
            return func(*args, **(kwargs or {}))

    with Reads():
        assert gap(torch.ones(3), torch.full((3,), 2.0)) == 0.5
    assert len(reads) == 1
