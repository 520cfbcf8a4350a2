"""A named target is judged in a process that never imported it: what it replaces in its own decides over nothing."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import attnbench
from attnbench.bench.core.errors import PluginError
from attnbench.bench.core.spec import Spec
from attnbench.bench.process import ask
from attnbench.bench.process.ask import PART_BYTES, asking
from attnbench.bench.run.link import DTYPES, Packed, linked
from attnbench.bench.wings.audit.away import opened
from attnbench.bench.wings.audit.calls import Convention
from attnbench.bench.wings.audit.examine import TARGETS, OpenTarget
from attnbench.bench.wings.audit.subject import ForeignSubject
from attnbench.bench.wings.audit.suite import audit_module
from attnbench.bench.wings.audit.target import load_target

HOME = Path(__file__).parent

LEAK = """
import math, os, sys, types
import torch
from torch import nn
from attnbench.bench.gate import result, subject as of_gate
from attnbench.bench.run import global_state
from attnbench.bench.run import link
from attnbench.bench.wings.audit import subject

class Mine(nn.Module):
    causal, calls = True, 0

    def __init__(self, dim=32):
        super().__init__()
        self.project = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        Mine.calls += 1
        {run}
        q, k, v = self.project(x).chunk(3, -1)
        return torch.softmax(q @ k.mT / 8, -1) @ v

{after}
"""

BLIND = "global_state.changes_since_noted.__code__ = (lambda: '').__code__\n"
"""The watch over replaced functions sees nothing any more."""

REPLACED = {
    "nothing": "",
    "item": "torch.Tensor.item = torch.Tensor.__float__ = lambda self: 0.0",
    "std": "torch.Tensor.std = lambda self, *a, **k: torch.full((), 1e30)",
    "abs and max": "torch.Tensor.abs = torch.Tensor.max = torch.Tensor.amax = lambda self, *a, **k: self * 0",
    "equal": "torch.equal = torch.allclose = lambda *a, **k: True",
    "isfinite": "math.isfinite = lambda value: True",
    "where": "torch.where = lambda condition, one, other: torch.zeros(condition.shape)",
    "movement": "subject.ForeignSubject.movement = lambda self, change: torch.zeros(change.where.shape)",
    "the tests": "of_gate.future.__code__ = (lambda subject, cut, words, **more: 0).__code__",
    "the result": "result.Result.held = property(lambda self: True)",
    "a module": "sys.modules['attnbench.bench.gate.result'] = types.SimpleNamespace(**vars(result))",
    "a module inside": "subject.torch = types.SimpleNamespace(**vars(torch))",
    "the watch": "global_state.StateWatch.changes = lambda self: ''",
}


@pytest.fixture(scope="module", autouse=True)
def one_server() -> Iterator[None]:
    """Children are forked from one server, which imports torch once."""
    with asking():
        yield


def file_of(folder: Path, after: str = "", run: str = "pass") -> str:
    path = folder / "mine.py"
    path.write_text(LEAK.replace("{after}", after).replace("{run}", run), encoding="utf-8")
    return f"{path}:Mine"


@pytest.mark.parametrize("name", REPLACED)
def test_a_leak_stays_red_whatever_its_file_replaces(name: str, tmp_path: Path) -> None:
    report = attnbench.audit(file_of(tmp_path, BLIND + REPLACED[name]), compile="")
    assert {"future", "prefix"} & {each.property for each in report.failures}
    assert "fails: nothing" not in report.verdict and not report


def test_a_module_whose_copies_are_right_is_tested_itself(tmp_path: Path) -> None:
    copies = "Mine.__deepcopy__ = lambda self, memo: Right()\nclass Right(Mine):\n"
    copies += "    def forward(self, x):\n        return x.cumsum(1)\n"
    report = attnbench.audit(file_of(tmp_path, copies), compile="")
    assert {"future", "prefix"} & {each.property for each in report.failures}


def test_a_replaced_function_is_still_named(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"changed what others in its process share: .*torch\.Tensor\.item"):
        attnbench.audit(file_of(tmp_path, REPLACED["item"]), compile="")


REPLY = "link._Returned = lambda turn, value, old=link._Returned"


def answers(packed: str) -> str:
    """The code that makes every tensor of an answer into what an honest child does not send."""
    return f"old = link.Packed.of\nlink.Packed.of = lambda tensor, *, laid: {packed}"


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (answers("link.Packed('float32', (2**39, 2**39), b'')"), "wrong type: Expected float32 .* got 0 bytes"),
        (answers("link.Packed('float32', (2, 3), b'x' * 25)"), "wrong type: Expected float32 .* got 25 bytes"),
        (answers("link.Packed('object', (1,), b'12345678')"), "wrong type: Expected a tensor, got one of object"),
        (answers("link.Packed('float32', (9, 9), b'1234', (0, 0))"), "wrong type: Expected a tensor"),
        (answers("link.Packed('float32', (-1,), b'')"), "wrong type: Expected `int` >= 0"),
        (answers("[1, 2]"), "wrong type: Expected `object`, got `array`"),
        (f"{REPLY}: link._RaisedThere(turn, ('A B', '', ''))", "wrong type: Expected `str` matching"),
        (f"{REPLY}: old(turn - 1, value)", "a question that was not asked"),
        (f"import pickle\n{REPLY}: old(turn, pickle.dumps(print))", "wrong type"),
        ("kept = subject.by_position\nsubject.by_position = lambda output, kind: kept(output, kind)[:, :9]", "shapes"),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_an_answer_that_no_honest_child_gives_is_one_line(after: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=rf"^the target '.*mine\.py:Mine' cannot be used: .*{words}") as found:
        attnbench.audit(file_of(tmp_path, BLIND + after), compile="")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("Mine.calls > 9 and os._exit(3)", "the process ended with exit code 3"),
        ("if Mine.calls > 9: raise SystemExit(4)", "SystemExit"),
        ("Mine.calls > 9 and os.closerange(3, 99)", "the process ended with"),
        ("if Mine.calls > 9: import time; time.sleep(99)", "no answer in 20 s"),
    ],
)
def test_a_child_that_ends_in_the_middle_of_the_tests_ends_the_audit(
    run: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNBENCH_PLUGIN_SECONDS", "2")
    began = time.monotonic()
    with pytest.raises(PluginError, match=words):
        attnbench.audit(file_of(tmp_path, run=run), compile="")
    assert time.monotonic() - began < 90


def test_an_order_that_nobody_reads_waits_no_longer_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a socket holds, to a child that has stopped."""
    monkeypatch.setattr(ask, "PLUGIN_SECONDS", 2.0)
    stops = "Mine.calls == 9 and __import__('threading').Timer(0.1, os.kill, (os.getpid(), 19)).start()"
    began = time.monotonic()
    with pytest.raises(PluginError, match="no answer in 20 s"):
        attnbench.audit(file_of(tmp_path, run=stops), compile="")
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    "name",
    [
        *(f"test_suite.py:{name}" for name in ("Layer", "FromZero", "BatchMean", "Detached", "Documents")),
        *(f"test_kinds.py:{name}" for name in ("KeepsAShare", "ForgetsItsArgument", "HidesOneBefore")),
    ],
)
def test_a_layer_in_a_child_is_found_to_be_what_it_is_here(name: str) -> None:
    place = str(HOME / name)
    here = audit_module(load_target(Spec(place)).module, place, compile="")
    there = attnbench.audit(place, compile="")
    assert there.convention == here.convention
    # float32 sums of another order are no other finding
    found = [[replace(each, measured=0.0, detail="", program=()) for each in one.findings] for one in (here, there)]
    assert found[0] == found[1]
    sizes = ([each.measured for each in one.findings] for one in (here, there))
    assert all(a == pytest.approx(b, rel=0.2, abs=1e-4, nan_ok=True) for a, b in zip(*sizes, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_comes_back_as_it_was(dtype: str) -> None:
    def same(one: torch.Tensor, other: torch.Tensor) -> bool:
        # not every type can be compared by PyTorch
        return one.dtype == other.dtype and torch.equal(one.to(torch.complex128), other.to(torch.complex128))

    tensor = (9 * torch.rand(3, 4, 5)).to(DTYPES[dtype])
    for each in (tensor, tensor.mT, tensor[0, 0, 0], tensor[:0], tensor[:1].expand(7, 4, 5), tensor[:, 1:3]):
        there = Packed.of(each, laid=True).tensor(laid=True)
        assert there.stride() == each.stride() and same(there, each)
        back = Packed.of(each, laid=False).tensor(laid=False)
        assert back.is_contiguous() and same(back, each)
    assert len(Packed.of(torch.zeros(1).expand(10**6), laid=True).data) == 4
    odd = torch.tensor([torch.nan, torch.inf, -0.0])
    assert Packed.of(odd, laid=False).data == odd.numpy().tobytes()


def test_an_answer_longer_than_a_line_comes_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "wide.py"
    path.write_text(
        "import torch\nclass Wide(torch.nn.Module):\n    def __init__(self, dim=2100):\n        super().__init__()\n"
        "        self.one = torch.nn.Linear(dim, dim)\n"
        "    def forward(self, x):\n        return self.one(x).cumsum(1)\n"
    )
    spec = Spec(f"{path}:Wide")
    with linked(TARGETS, spec.name, OpenTarget(target=spec)) as opening:
        module, facts = opened(opening, opening.facts), opening.facts
        called = Convention(kind=facts.kind, shape=facts.shape, length=facts.length, plain=facts.plain)
        found = ForeignSubject(module, called).trained()["one.weight"]
    assert called.shape == (2100,) and found.nbytes > PART_BYTES
    assert torch.equal(found, load_target(spec).module.one.weight)
