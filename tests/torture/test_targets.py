"""Files of anybody, named as FILE.py:Mine: an audit and a trial end with a report or one line, and leave nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hostile_targets import hostile_targets
from tally import Extent, Tally

import attnbench
from attnbench.bench.cli.output import line_of
from attnbench.bench.core.errors import AttnbenchError
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.bench.process.ask import ask, asking, end_children
from attnbench.bench.run.questions import TryBuild
from attnbench.bench.wings.audit.away import AUDIT_PATIENCE
from attnbench.variants.contract import AttentionShape

LIMIT = 4.0
SLACK = 30.0
"""Seconds beyond the limit of an answer, on a machine that does much else."""


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("ATTNBENCH_PLUGIN_SECONDS", str(LIMIT))
    monkeypatch.chdir(tmp_path)
    with asking():
        # the first child waits for torch
        with suppress(AttnbenchError):
            attnbench.audit("os:getcwd", compile="")
        yield


def problem_of(name: str) -> str | None:
    shape = AttentionShape(heads=4, head_dim=16, max_length=64)
    for way, limit, question in (
        ("audit", AUDIT_PATIENCE * LIMIT, lambda: str(attnbench.audit(name, compile=""))),
        ("trial", LIMIT, lambda: ask(VARIANTS, name, TryBuild(Spec(name), shape))),
    ):
        began = time.monotonic()
        said = ""
        try:
            said = question()
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


def test_targets(extent: Extent, tally: Tally, limited: None, tmp_path: Path) -> None:
    """hostile targets: an audit and a trial end in time with a report or one line, and no process is left."""
    before = {each.pid for each in psutil.Process().children(recursive=True)}
    parent = os.getpid()
    for name, make in extent.of(sorted(hostile_targets().items()), sample=2):
        path = tmp_path / f"t{tally.tried}.py"
        make(path)
        problem = problem_of(f"{path}:Mine")
        end_children()
        started = [each for each in psutil.Process(parent).children(recursive=True) if each.pid not in before]
        _, left = psutil.wait_procs(started, timeout=1)
        tally.check(name, problem or (f"left {left}" if left else None))
    tally.verdict()
