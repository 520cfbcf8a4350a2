"""Files of anybody, named as FILE.py:Mine, and calls of their own: a report or one line in time, and nothing left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from hostile_targets import HOSTILE_CALLS, hostile_targets, hostile_tasks
from tally import Extent, Tally

import attnbench
from attnbench.bench.cli.output import line_of
from attnbench.bench.core.errors import AttnbenchError
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.core.spec import with_call
from attnbench.bench.process.ask import ask, asking, end_children
from attnbench.bench.run.link import PATIENCE
from attnbench.bench.run.questions import TryBuild
from attnbench.variants.contract import AttentionShape

LIMIT = 4.0
SLACK = 30.0
"""Seconds beyond the limit of an answer, on a machine that does much else."""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, asking():
        patch.setenv("ATTNBENCH_PLUGIN_SECONDS", str(LIMIT))
        patch.chdir(tmp_path_factory.mktemp("work"))
        # the first child waits for torch
        with suppress(AttnbenchError):
            attnbench.audit("os:getcwd", compile="")
        yield


Way = tuple[str, float, Callable[[], object]]
"""A command that is asked of a target: its name, its limit in seconds, and what asks."""


def ways_of_layer(name: str, call: str = "") -> list[Way]:
    shape = AttentionShape(heads=4, head_dim=16, max_length=64)
    [spec] = with_call([name], call)
    return [
        ("audit", PATIENCE * LIMIT, lambda: attnbench.audit(name, call=call, compile="")),
        ("trial", LIMIT, lambda: ask(VARIANTS, name, TryBuild(spec, shape))),
    ]


def ways_of_task(name: str) -> list[Way]:
    # it asks for facts, recipe and data, each with a limit of its own
    return [("plan", 3 * LIMIT, lambda: attnbench.plan("softmax", name, preset="smoke", results="none"))]


def problem_of(ways: Sequence[Way]) -> str | None:
    for way, limit, question in ways:
        began = time.monotonic()
        said = ""
        try:
            said = str(question())
        except AttnbenchError as error:
            said = str(error)
            if "\n" in said or len(said) > 3000:
                return f"{way}: an error of {len(said):,} characters: {said[:200]!r}"
        except BaseException as error:
            return f"{way}: {type(error).__name__}: {str(error)[:200]}"
        if not said.isprintable() and not line_of(said).isprintable():
            return f"{way}: text that is not shown: {said[:200]!r}"
        if time.monotonic() - began > limit + SLACK:
            return f"{way}: it took {time.monotonic() - began:.0f} s"
    return None


def problem_of_case(ways: Callable[[], list[Way]]) -> str | None:
    """What went wrong, a process that is left a second later too."""
    before = {each.pid for each in psutil.Process().children(recursive=True)}
    try:
        problem = problem_of(ways())
    except AttnbenchError as error:
        problem = None if "\n" not in str(error) else f"a long error: {str(error)[:200]!r}"
    end_children()
    started = [each for each in psutil.Process().children(recursive=True) if each.pid not in before]
    _, left = psutil.wait_procs(started, timeout=1)
    return problem or (f"left {left}" if left else None)


def test_targets(extent: Extent, tally: Tally, limited: None, tmp_path: Path) -> None:
    """hostile targets: an audit and a trial end in time with a report or one line, and no process is left."""
    for name, make in extent.of(sorted(hostile_targets().items()), sample=1):
        path = tmp_path / f"t{tally.tried}.py"
        make(path)
        tally.check(name, problem_of_case(partial(ways_of_layer, f"{path}:Mine")))
    tally.verdict()


def test_calls(extent: Extent, tally: Tally, limited: None, tmp_path: Path) -> None:
    """calls with side effects: an audit and a trial end in time with a report or one line, and no process is left."""
    layer = tmp_path / "layer.py"
    hostile_targets()["forward: nothing"](layer)
    for name, call in extent.of(sorted(HOSTILE_CALLS.items()), sample=1):
        tally.check(name, problem_of_case(partial(ways_of_layer, f"{layer}:Mine", call)))
    tally.verdict()


def test_tasks(extent: Extent, tally: Tally, limited: None, tmp_path: Path) -> None:
    """broken tasks: a plan of FILE.py:NAME ends in time with one line, and no process is left."""
    for name, make in extent.of(sorted(hostile_tasks().items()), sample=1):
        path = tmp_path / f"t{tally.tried}.py"
        make(path)
        tally.check(name, problem_of_case(partial(ways_of_task, f"{path}:Mine[length=16,batch=1,heads=1]")))
    tally.verdict()
