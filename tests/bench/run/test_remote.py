"""A variant in a child is examined as one that lies here, and decides over nothing by what it replaces there."""

import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path

import planted_faults
import pytest
import torch

import attnbench
from attnbench.bench.core.errors import PluginError
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.bench.gate import examine
from attnbench.bench.gate.case import Case
from attnbench.bench.gate.result import Result
from attnbench.bench.gate.suite import PROPERTIES
from attnbench.bench.gate.variant import VariantFactory
from attnbench.bench.process.ask import asking
from attnbench.bench.run.link import linked
from attnbench.bench.run.remote import factory_of
from attnbench.bench.run.remote_child import OpenVariant
from attnbench.variants.contract import AttentionShape, Variant, Wrapper

SHAPE = AttentionShape(heads=2, head_dim=16, max_length=40, causal=True)
EFFECTS = ("ChangesInputs", "DropoutOfHalfTheRate", "ForgetfulStep", "KeepsPaddingWhenCompiled", "Nondeterministic")
"""Faults that show only where what a call changes is carried over: inputs, random numbers, states, compiled code."""
DRAWN = {"DrawsUnseeded"}
"""Faults whose numbers are other ones at each run."""
PLANTED = [
    name for name, found in vars(planted_faults).items()
    if inspect.isclass(found) and issubclass(found, Variant) and not issubclass(found, Wrapper)
    and found.__module__ == planted_faults.__name__ and name not in DRAWN
]  # fmt: skip

BLIND = "global_state.changes_since_noted.__code__ = (lambda: '').__code__\n"
"""The watch over replaced functions sees nothing any more."""
LEAK = """
import torch
from attnbench.bench.gate import case, masks, result
from attnbench.bench.run import global_state, remote_child as child
from attnbench.variants.contract import ScoredVariant

class Mine(ScoredVariant):
    def forward(self, query, key, value, mask):
        return super().forward(query, key, value, mask) + 0.01 * value.mean(2, keepdim=True)
"""
REPLACED = {
    "item": "torch.Tensor.item = torch.Tensor.__float__ = torch.Tensor.tolist = lambda self: [0.0, 1.0]",
    "abs and max": "torch.Tensor.abs = torch.Tensor.max = torch.Tensor.amax = lambda self, *a, **k: self * 0",
    "equal": "torch.equal = torch.allclose = lambda *a, **k: True",
    "the gap": "case.gap.__code__ = (lambda found, expected: 0.0).__code__",
    "the tests": "masks.future.__code__ = (lambda subject, cut, words, **more: 0).__code__",
    "the result": "result.Result.held = property(lambda self: True)",
    "the watch": "global_state.StateWatch.changes = lambda self: ''",
}


@pytest.fixture(scope="module", autouse=True)
def one_server() -> Iterator[None]:
    """Children are forked from one server, which imports torch once."""
    with asking():
        yield


def file_of(folder: Path, after: str) -> str:
    path = folder / "mine.py"
    path.write_text(LEAK + after, encoding="utf-8")
    return f"{path}:Mine"


def examined(factory: VariantFactory, name: str) -> Result:
    return next(each for each in PROPERTIES if each.name == name).examine(Case(factory, SHAPE))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] * (name not in EFFECTS)) for name in PLANTED]
)
def test_a_variant_in_a_child_has_the_verdicts_that_it_has_here(name: str) -> None:
    place = f"{planted_faults.__file__}:{name}"
    with warnings.catch_warnings():
        # torch's compiler makes an instance of a Function, which torch warns of: an error in these tests alone
        warnings.simplefilter("ignore", DeprecationWarning)
        here = {each.property: each for each in examine(getattr(planted_faults, name), SHAPE)}
    with linked(VARIANTS, place, OpenVariant(variant=Spec(place))) as link:
        there = {each.property: each for each in examine(factory_of(link), SHAPE)}
    assert {name: each.verdict for name, each in there.items()} == {name: each.verdict for name, each in here.items()}
    sizes = [(each.measured, there[name].measured) for name, each in here.items() if each.held]
    assert sizes and all(a == pytest.approx(b, rel=0.5, abs=1e-4, nan_ok=True) for a, b in sizes)


def test_what_is_compiled_has_the_parameters_that_were_drawn(tmp_path: Path) -> None:
    """Such as the bias of a LayerNorm, which begins at zero."""
    place = file_of(tmp_path, """
class Mine(ScoredVariant):
    def __init__(self, shape):
        super().__init__(shape)
        self.norm = torch.nn.LayerNorm(shape.head_dim)

    def forward(self, query, key, value, mask):
        return super().forward(query, key, self.norm(value), mask)
""")  # fmt: skip
    with linked(VARIANTS, place, OpenVariant(variant=Spec(place))) as link:
        found = examined(factory_of(link), "compiled")
    assert found.held is True, found
    # an answer of the child, which it makes without, does not switch them off here
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", REPLACED)
def test_a_leak_stays_red_whatever_its_file_replaces(name: str, tmp_path: Path) -> None:
    place = file_of(tmp_path, BLIND + REPLACED[name])
    with linked(VARIANTS, place, OpenVariant(variant=Spec(place))) as link:
        found = examined(factory_of(link), "causal")
    assert found.held is False and found.measured > 100 * found.allowed


def test_a_replaced_function_is_still_named(tmp_path: Path) -> None:
    place = file_of(tmp_path, REPLACED["item"])
    with (
        pytest.raises(PluginError, match=r"changed what others in its process share: .*torch\.Tensor\.item"),
        linked(VARIANTS, place, OpenVariant(variant=Spec(place))) as link,
    ):
        examined(factory_of(link), "causal")


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ("old = kind.now()\nkind.now = lambda: replace(old, threads=0)", "Expected `int` >= 1"),
        ("old = kind.now()\nkind.now = lambda: replace(old, dtype='no')", "settings that there are not"),
        ("old = child.CallResult\nchild.CallResult = lambda **k: old(**{**k, 'output': 3})", "wrong type"),
    ],
)
def test_an_answer_that_no_honest_child_gives_is_one_line(after: str, words: str, tmp_path: Path) -> None:
    place = file_of(tmp_path, BLIND + "from msgspec.structs import replace\nkind = child.ProcessSettings\n" + after)
    with (
        pytest.raises(PluginError, match=words) as found,
        linked(VARIANTS, place, OpenVariant(variant=Spec(place))) as link,
    ):
        examined(factory_of(link), "causal")
    assert "\n" not in str(found.value)


@pytest.mark.slow  # the gate in full
def test_check_judges_a_file_where_its_code_was_never_imported(tmp_path: Path) -> None:
    report = attnbench.check(file_of(tmp_path, BLIND + REPLACED["the result"]))
    assert not report and "causal" in {each.property for each in report.failures}
    assert "changed what others in its process share" in attnbench.check(file_of(tmp_path, REPLACED["item"])).problem
