"""Which code runs: what `impl` asks for, what is refused and why."""

import subprocess
import sys

import pytest
import torch
from cpu_kernels import forced
from implementations import NO_TRITON

from attnbench.bench.core.errors import Unsupported
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.kernels import gpu
from attnbench.variants.kernels.dispatch import choose_implementation
from attnbench.variants.scores.additive import Additive

NAMES = ["linear", "additive-lm", "additive", "relative", "local", "routing[form=strict]", "local-routing[form=strict]"]


def shape(**changes):
    return AttentionShape(**{"heads": 2, "head_dim": 16, "max_length": 32, "causal": True} | changes)


@pytest.mark.parametrize("selection", NAMES)
def test_auto_on_a_cpu_is_eager_to_the_last_bit(selection):
    inputs = [torch.randn(2, 2, 20, 16) for _ in range(3)]
    outputs = []
    for impl in ("auto", "eager"):
        torch.manual_seed(0)
        variant = build(forced(selection, impl), shape()).eval()
        outputs.append(variant(*inputs, Mask(causal=True)))
        assert variant.implementation == "eager"
    assert torch.equal(*outputs)


@pytest.mark.skipif(gpu.file_of("launch") is None, reason="no Triton kernels")
@pytest.mark.parametrize("selection", NAMES)
def test_triton_is_refused_without_a_gpu_or_an_interpreter(selection, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(Unsupported, match=r"impl=triton: (Triton kernels need a CUDA device|Triton is not installed)"):
        build(forced(selection, "triton"), shape())


def test_an_installation_without_the_folder_of_triton_kernels_says_so(monkeypatch):
    monkeypatch.setattr(gpu, "file_of", lambda name: None)
    assert not gpu.installed()
    with pytest.raises(Unsupported, match="impl=triton: this installation has no Triton kernels"):
        build("rela[impl=triton]", shape())
    with pytest.raises(Unsupported, match="this installation has no Triton kernels: map_attention is one of them"):
        gpu.map_attention  # noqa: B018
    inputs = [torch.randn(1, 2, 8, 16) for _ in range(3)]
    assert build("entmax15", shape())(*inputs, Mask(causal=True)).shape == (1, 2, 8, 16)


@pytest.mark.skipif(NO_TRITON, reason="no Triton")
@pytest.mark.parametrize(
    ("selection", "changes", "reason"),
    [
        ("linear[impl=triton]", {"dtype": "float64"}, "not float64"),
        ("linear[impl=triton]", {"head_dim": 512}, "head_dim 1 to 256"),
        ("additive-lm[impl=triton]", {"causal": False}, "needs the causal form"),
        ("additive[impl=triton,hidden=300]", {}, "at most 256, got 300"),
        ("additive[impl=triton]", {"dropout": 0.1}, "drop no weights, and the dropout is 0.1"),
        ("local[impl=flex]", {"dropout": 0.1}, "drop no weights, and the dropout is 0.1"),
        ("relative[impl=flex,values=false]", {"dropout": 0.1}, "drop no weights, and the dropout is 0.1"),
        ("routing[impl=triton]", {}, "form=strict only"),
        ("local-routing[impl=triton]", {}, "form=strict only"),
        ("relative[impl=flex]", {"device": "cuda"}, "values=false"),
        ("local[impl=flex,relative=true]", {"device": "cuda"}, "relative=false"),
        ("local[impl=flex]", {}, "no backward pass on a CPU"),
    ],
)
def test_what_a_kernel_cannot_do_is_refused_with_the_reason(selection, changes, reason, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(Unsupported, match=reason):
        build(selection, shape(**changes))


def test_dropout_in_training_goes_the_eager_way_on_auto_and_stops_a_forced_kernel(monkeypatch):
    monkeypatch.setattr(gpu, "reason", lambda *given, **more: None)
    variant = Additive(shape(dropout=0.5), impl="triton").train()
    inputs = [torch.randn(1, 2, 8, 16) for _ in range(3)]
    with pytest.raises(Unsupported, match="kernels drop no weights"):
        variant(*inputs, Mask(causal=True))


@pytest.mark.parametrize("name", ["window", "longformer", "sigmoid", "rela", "local", "linear"])
def test_auto_on_a_gpu_takes_no_form_that_the_variant_lacks(name, monkeypatch):
    """A tensor that says it is on a GPU: of these rela, local and linear have kernels for one."""

    class OnGpu(torch.Tensor):
        device = torch.device("cuda")

    monkeypatch.setattr(gpu, "reason", lambda *given, **more: None)
    chosen = []

    def choose(*given, **more):
        chosen.append(choose_implementation(*given, **more))
        # nothing runs: there is no GPU
        raise InterruptedError

    variant = build(name, shape(max_length=40))
    for kind in type(variant).__mro__:
        if hasattr(module := sys.modules[kind.__module__], "choose_implementation"):
            monkeypatch.setattr(module, "choose_implementation", choose)
    inputs = [torch.randn(1, 2, 40, 16).as_subclass(OnGpu) for _ in range(3)]
    with pytest.raises(InterruptedError):
        variant.forward(*inputs, Mask(causal=True))
    assert chosen == ["triton" if name in ("rela", "local", "linear", "sigmoid") else "eager"]


@pytest.mark.slow
def test_building_and_running_eagerly_loads_neither_triton_nor_flex():
    code = (
        "import sys, torch\n"
        "from attnbench.variants import AttentionShape, Mask, build\n"
        "x = torch.randn(1, 2, 8, 16)\n"
        "for name in ('linear', 'local', 'relative', 'additive', 'local-routing', 'additive-lm'):\n"
        "    shape = AttentionShape(heads=2, head_dim=16, max_length=32, causal=True)\n"
        "    build(name, shape)(x, x, x, Mask(causal=True))\n"
        "assert 'triton' not in sys.modules, 'triton'\n"
        "assert 'attnbench.variants.kernels.triton.flex' not in sys.modules, 'flex'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
