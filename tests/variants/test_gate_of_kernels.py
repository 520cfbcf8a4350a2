"""The gate on every path of every variant with kernels: on this CPU, Triton's kernels in its interpreter.

In its quick form, at a few positions; `TRITON_INTERPRET=1 attnbench check "rela[impl=triton]"` takes a minute or two.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import typer
from cpu_kernels import forced
from implementations import NO_TRITON, require
from typer.testing import CliRunner, Result

from attnbench.bench.cli.check import check
from attnbench.bench.core.errors import Unsupported
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.gate import PROPERTIES, paths, quick_gate
from attnbench.bench.gate.case import Case
from attnbench.bench.gate.result import Measured, worst
from attnbench.bench.gate.twins import implementations_agree
from attnbench.bench.gate.variant import VariantFactory
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask

SELECTIONS = (
    "rela", "sparsemax", "entmax15", "entmax[alpha=1.25]", "entmax[alpha=learned]", "asentmax", "linear", "additive-lm",
    "additive", "local[query_block=5,flange=3]", "relative[clip=3]", "relative[clip=3,values=false]",
    "routing[clusters=2,form=strict,window=6]", "local-routing[clusters=2,flange=3,form=strict,query_block=5,window=6]",
)  # fmt: skip
# fused by what is written for them, or with kernels for a CPU alone
WRITTEN = (
    "sigmoid", "relu-squared", "softpick", "softmax1[sink=learned]", "topk[k=3]", "scalable-softmax", "differential",
    "differential-v2", "window[size=5,sink=learned]", "longformer[window=3]", "bigbird[block=2]",
    "sparse[stride=4,summary=2]", "gated-linear[rank=4]", "delta", "delta[decay=scalar,eigenvalues=signed]",
    "delta[decay=channel]", "ssd", "retention", "hgrn2", "delta-product[steps=3]", "gated-delta-2", "rwkv7[rank=4]",
    "log-linear[of=delta]", "mamba3",
)  # fmt: skip
KERNELS = {"cpp", "triton"}
ALL = (*SELECTIONS, *WRITTEN)
CASES = [(name, impl) for name in ALL for impl in VariantFactory.of(name).implementations if impl != "auto"]
# the interpreter takes seconds to half a minute a case, and the tests in kernels/triton have quick ones of each kernel:
# here is one of each kind
SLOW = ("rela", "softmax1[sink=learned]", "additive-lm", "local[query_block=5,flange=3]")
# few positions: the interpreter takes about as long for one tile, however much of it is used
SHAPE = AttentionShape(heads=2, head_dim=16, max_length=12, causal=True)


def marked(selection: str, impl: str = "triton") -> tuple[pytest.MarkDecorator, ...]:
    # the eager definition of each is gated by its name, in tests/bench/gate/test_properties.py
    if impl == "eager":
        return (pytest.mark.slow,)
    if impl != "triton":
        return ()
    return (pytest.mark.slow if selection in SLOW else pytest.mark.soak,)


def ready(selection: str, impl: str, **changes: object) -> tuple[str, AttentionShape]:
    require(impl)
    # which has no causal form
    return forced(selection, impl), replace(SHAPE, **{"causal": not selection.startswith("bigbird"), **changes})


def test_every_variant_with_kernels_is_here() -> None:
    found = {entry.name for entry in VARIANTS.entries() if KERNELS & {*VariantFactory.of(entry.name).implementations}}
    assert {name.partition("[")[0] for name in ALL} == found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("selection", "impl"), [pytest.param(*case, marks=marked(*case)) for case in CASES if case[1] != "flex"]
)
def test_the_gate_is_green_for_a_path(selection: str, impl: str) -> None:
    name, shape = ready(selection, impl)
    assert [(path.name, path.refusal) for path in paths(name, shape)] == [(impl, "")]
    # what is refused would pass the gate without a look
    variant = build(name, shape).eval()
    x = torch.randn(1, 2, 12, 16)
    variant(x, x, x, Mask(causal=shape.causal), torch.randn(1, 12, shape.hidden_width))
    assert variant.implementation == impl
    assert quick_gate(name, shape) is None


@pytest.mark.parametrize("selection", [pytest.param(name, marks=marked(name)) for name in SELECTIONS])
def test_the_kernels_agree_with_eager_in_float16_and_leave_bfloat16_to_a_gpu(selection: str) -> None:
    name, shape = ready(selection, "triton", dtype="float16")
    answer = worst(implementations_agree(Case(name, shape)))
    assert isinstance(answer, Measured)
    assert answer.value <= answer.allowed, answer
    half = replace(shape, dtype="bfloat16")
    # the scans of additive-lm keep what they sum in float32 whatever the dtype
    if selection == "additive-lm":
        answer = worst(implementations_agree(Case(name, half)))
        assert isinstance(answer, Measured) and answer.value <= answer.allowed
        return
    with pytest.raises(Unsupported, match=r"Triton's interpreter multiplies bfloat16 wrongly"):
        build(name, half)
    assert [path.refusal for path in paths(name, half)] == [
        "impl=triton: Triton's interpreter multiplies bfloat16 wrongly; use float32 or float16, or a GPU"
    ]


def test_without_the_interpreter_the_reason_says_how_to_turn_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    ready("rela", "eager")
    refusals = {path.name: path.refusal for path in paths("rela", SHAPE)}
    assert set(refusals) == {"eager", "cpp", "triton"}
    assert not refusals["eager"]
    if not NO_TRITON:
        assert "need a CUDA device, or TRITON_INTERPRET=1 in the environment" in refusals["triton"]


def invoke(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr("attnbench.bench.gate.report.LENGTH", 24)
    # which paths there are does not depend on what is asked of them
    monkeypatch.setattr("attnbench.bench.gate.suite.PROPERTIES", PROPERTIES[:1])
    app = typer.Typer()
    app.command()(check)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


@pytest.mark.skipif(NO_TRITON, reason="no Triton")
def test_check_says_which_paths_it_compared_and_how_to_have_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke(monkeypatch, "linear")
    assert result.exit_code == 0, result.output
    first, second = result.output.strip().split("\n")[-2:]
    assert first == "linear: paths checked against the eager definition: eager"
    assert second.startswith("linear: path triton was not checked: impl=triton: Triton kernels need a CUDA device, or ")
    assert "TRITON_INTERPRET=1" in second


@pytest.mark.skipif(NO_TRITON, reason="no Triton")
def test_check_of_a_path_that_cannot_run_here_checks_nothing_and_exits_with_six(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, reason in (("linear[impl=triton]", "need a CUDA device"), ("local[impl=flex]", "no backward pass")):
        result = invoke(monkeypatch, name)
        assert result.exit_code == 6
        (line,) = result.output.strip().split("\n")
        assert line.startswith(f"{name}: unsupported here, nothing was checked: ")
        assert reason in line


def test_check_as_json_has_an_object_for_each_path(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row for row in json.loads(invoke(monkeypatch, "linear[impl=eager]", "--json").output) if "path" in row]
    assert rows == [{"variant": "linear[impl=eager]", "path": "eager", "checked": True, "reason": ""}]
