"""Points under torch.compile: one graph, the numbers of the eager form, and refusals in place of a silent fallback."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnbench.bench.core.errors import SelectionError, Unsupported
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec
from attnbench.bench.gate.build import Incorrect
from attnbench.bench.run.lanes import time as lane
from attnbench.bench.run.workloads import compiled as module
from attnbench.bench.run.workloads.compiled import compile_now, compiled, require_same
from attnbench.bench.run.workloads.sweep_point import SweepWorkloads, point_of
from attnbench.bench.run.workloads.workload import Workload
from attnbench.variants.contract import Mask, Variant

CPU = torch.device("cpu")
SMALL = "length=48,heads=2,head_dim=8"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def ungated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate has tests of its own, and takes seconds."""
    monkeypatch.setattr("attnbench.bench.gate.build.quick_gate", lambda spec, shape, **_: None)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph runs as plain operators: all is as with a compiler in C++, in a second instead of half a minute."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **given: real(function, **{"backend": "aot_eager"} | given))


def ready(task: str, variant: str = "softmax") -> tuple[SweepWorkloads, Workload]:
    workloads = point_of(task, CPU)
    return workloads, lane._ready(workloads, Spec.parse(variant))


@pytest.mark.slow
@pytest.mark.parametrize(("level", "mode"), [("attention", "step"), ("block", "forward"), ("model", "step")])
def test_every_level_is_compiled_and_counted_as_its_eager_form(traced: None, level: str, mode: str) -> None:
    point = f"sweep[{SMALL},level={level},mode={mode}"
    workloads, workload = ready(f"{point},compile=true]")
    assert workload.compilation is not None and workload.compilation.graphs >= 1
    assert workload.implementation == "compiled+sdpa"
    assert workload.flops == ready(f"{point}]")[1].flops > 0
    with workloads.steady():
        workload.timed()


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["rela", "general"])
def test_a_compiled_step_gives_the_gradients_of_its_eager_form(traced: None, variant: str) -> None:
    """`general` has parameters of its own."""
    _, workload = ready(f"sweep[{SMALL},level=attention,compile=true]", variant)
    found = workload.work()
    with workload.eager:
        expected = workload.work()
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("variant", "shape"),
    [
        pytest.param("sparsemax", "", marks=pytest.mark.soak),
        pytest.param("entmax15", "", marks=pytest.mark.slow),
        ("entmax15", ",causal=true,padding=0.2"),
        pytest.param("entmax", "", marks=pytest.mark.soak),
        pytest.param("entmax[alpha=learned]", "", marks=pytest.mark.slow),
        pytest.param("entmax[alpha=3.0]", ",mode=forward", marks=pytest.mark.soak),
        pytest.param("asentmax", "", marks=pytest.mark.soak),
    ],
)
def test_the_entmax_family_is_compiled_as_one_graph_that_agrees_with_its_eager_form(
    traced: None, variant: str, shape: str
) -> None:
    """A step gives the gradients of query, key, value and parameters; a forward pass the output."""
    _, workload = ready(f"sweep[{SMALL},level=attention,compile=true{shape}]", variant)
    assert workload.compilation is not None and workload.compilation.graphs == 1
    assert workload.implementation == "compiled+eager"
    found = workload.work()
    with workload.eager:
        expected = workload.work()
    if isinstance(found, Tensor):
        found, expected = [found], [expected]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["block", pytest.param("model", marks=pytest.mark.soak)])
def test_a_block_and_a_model_of_the_entmax_family_are_one_graph(traced: None, level: str) -> None:
    """They were held against their eager forms when they were made ready."""
    _, workload = ready(f"sweep[{SMALL},level={level},compile=true]", "entmax15")
    assert workload.compilation is not None and workload.compilation.graphs == 1


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("variant", ["rela", "entmax15"])
def test_a_block_that_is_compiled_into_kernels_agrees_with_its_eager_form(variant: str) -> None:
    _, workload = ready(f"sweep[{SMALL},level=block,compile=true]", variant)
    assert workload.compilation is not None and workload.compilation.seconds > 0
    found = workload.work()
    with workload.eager:
        expected = workload.work()
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


class Breaking(Variant):
    """It asks for a number in the middle of its forward pass, at which a graph breaks."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return value * 2.0 if float(query.sum()) > 0 else value


def with_variant(monkeypatch: pytest.MonkeyPatch, kind: type[Variant]) -> Callable[[], Workload]:
    workloads = point_of(f"sweep[{SMALL},level=attention,compile=true]", CPU)
    workloads.build = lambda spec: kind
    return lambda: lane._ready(workloads, Spec("mine"))


@pytest.mark.slow
def test_a_variant_that_breaks_the_graph_is_unsupported_with_the_number_of_breaks(
    traced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unsupported, match=r"^torch\.compile: .*graph breaks: [1-9]"):
        with_variant(monkeypatch, Breaking)()


class Changing(Variant):
    """Each pass leaves behind a number that the next one is compiled for."""

    passes = 0

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.passes += 1
        # dynamic sizes are off, so that a number is part of the graph
        return value * self.passes if self.passes < 100 else value


@pytest.mark.slow
def test_a_variant_that_is_compiled_at_each_call_is_unsupported(traced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="was compiled anew"):
        with_variant(monkeypatch, Changing)()


class Deceiving(Variant):
    """Another function where it is compiled than where it is not."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return value * 1.1 if torch.compiler.is_compiling() else value


@pytest.mark.slow
def test_a_compiled_form_with_other_numbers_is_incorrect(traced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Incorrect, match="its output differs"):
        with_variant(monkeypatch, Deceiving)()


@pytest.mark.slow
def test_wrong_gradients_are_found_whatever_their_size() -> None:
    output, large, small = torch.randn(8, 4), torch.randn(16, 4), 1e-2 * torch.randn(4)
    nothing = torch.tensor([1e-9, -1e-9])
    require_same([output, large, small, nothing], [output, large, small, -nothing], torch.float32)
    for wrong in ([output, large, 1.5 * small, nothing], [output, 1.01 * large, small, nothing]):
        with pytest.raises(Incorrect, match="its gradient"):
            require_same([output, large, small, nothing], wrong, torch.float32)
    with pytest.raises(Incorrect, match="its output"):
        require_same([output], [output * float("nan")], torch.float32)


@pytest.mark.slow
def test_where_the_compiler_is_turned_off_nothing_is_published_as_compiled() -> None:
    with torch.compiler.set_stance("force_eager"), pytest.raises(Unsupported, match="nothing was compiled"):
        ready(f"sweep[{SMALL},compile=true]")


@pytest.mark.slow
def test_without_a_compiler_in_cpp_the_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("/nonexistent/c++",))
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", _no_compiler)
    with pytest.raises(Unsupported, match="C\\+\\+ compiler"):
        ready(f"sweep[{SMALL},mode=forward,compile=true]", "linear")


def _no_compiler() -> str:
    from torch._inductor.exc import InvalidCxxCompiler

    raise InvalidCxxCompiler


@pytest.mark.slow
def test_compiling_again_during_the_samples_raises(traced: None) -> None:
    workloads, workload = ready(f"sweep[{SMALL},mode=forward,compile=true]")
    workload.variants[0].impl = "eager"  # type: ignore[assignment]
    with workloads.steady(), pytest.raises(RuntimeError, match="recompile"):
        workload.work()


@pytest.mark.slow
def test_ten_functions_of_one_source_are_compiled_side_by_side(traced: None) -> None:
    def made(number: int) -> Callable[[], Tensor]:
        x = torch.full((3,), float(number))

        def function() -> Tensor:
            return x * number

        return function

    functions = [made(number) for number in range(10)]
    ahead = [compiled(function) for function in functions]
    for one, function in zip(ahead, functions, strict=True):
        assert compile_now(one, function).graphs == 1
    with torch.compiler.set_stance("fail_on_recompile"):
        assert [float(one()[0]) for one in ahead] == [number**2 for number in range(10)]


@pytest.mark.slow
def test_the_time_to_compile_is_that_beyond_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = iter([0, 0, 1, 1, 1, 1, 1])
    clock = iter([0.0, 5.0, 5.0, 6.0])
    monkeypatch.setattr(module, "_graphs", lambda: next(graphs))
    monkeypatch.setattr(module, "perf_counter", lambda: next(clock))
    found = compile_now(lambda: None, lambda: None)
    assert (found.seconds, found.graphs) == (4.0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("more", ["mode=decode", "memory_bytes=1000000"])
def test_points_that_cannot_be_compiled_are_refused(more: str) -> None:
    with pytest.raises(SelectionError, match="compile=true"):
        TASKS.build(Spec.parse(f"sweep[compile=true,{more}]"))
