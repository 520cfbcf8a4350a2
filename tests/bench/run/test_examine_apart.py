"""Foreign code that is measured is examined where it was never imported, and undoes nothing there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

import attnbench
from attnbench.bench.core.record import Outcome, Record
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec
from attnbench.bench.run.gate_first import shapes_of

LAYER = """
import gc, os, time
import torch
from attnbench.bench.gate import build, case
from attnbench.variants.contract import ScoredVariant

KEPT = build.quick_gate

class Right(ScoredVariant):
    pass

class Undoes(ScoredVariant):
    '''Switches the gate off where it is built, and on again before anybody looks; a copy of it is right.'''

    def __init__(self, shape):
        super().__init__(shape)
        build.quick_gate = lambda *given, **more: None

    def _apply(self, *given, **more):
        build.quick_gate = KEPT
        return super()._apply(*given, **more)

    def __deepcopy__(self, memo):
        return Right(self.shape)

    def forward(self, query, key, value, mask):
        return super().forward(query, key, value, mask) + value.mean(2, keepdim=True)

class Hooks(ScoredVariant):
    '''Lets the embedding of the model look ahead.'''

    def forward(self, query, key, value, mask):
        if self.training and len(query) > 2:
            for each in gc.get_objects():
                if type(each) is torch.nn.Embedding and not each._forward_hooks:
                    each.register_forward_hook(lambda module, ids, output: output + output.roll(-1, 1))
        return super().forward(query, key, value, mask)

class Replaces(ScoredVariant):
    '''Replaces what examines it and leaves it so.'''

    def __init__(self, shape):
        super().__init__(shape)
        case.Case.forward = lambda *given, **more: None

class Hangs(ScoredVariant):
    def forward(self, query, key, value, mask):
        time.sleep(1000)

class Ends(ScoredVariant):
    def forward(self, query, key, value, mask):
        os._exit(7)
"""


def measured(folder: Path, classes: str, tasks: str, **options: Any) -> dict[str, Record]:
    """The Records of softmax and of these classes, by name."""
    (folder / "mine.py").write_text(LAYER, encoding="utf-8")
    names = ["softmax", *(f"{folder}/mine.py:{each}" for each in classes.split())]
    found = attnbench.run(names, tasks, preset="smoke", seeds=1, results=folder / "results", **options)
    return {each.cell.variant.name.rpartition(":")[2]: each for each in found.records if each.cell.lane != "baseline"}


def test_code_that_undoes_its_change_before_each_look_is_found_in_a_training(tmp_path: Path) -> None:
    found = measured(tmp_path, "Undoes", "recall", lanes="train")
    assert found["softmax"].outcome is Outcome.OK
    assert found["Undoes"].outcome is Outcome.INCORRECT and "causal" in found["Undoes"].reason


def test_code_that_takes_part_in_the_rest_of_the_model_is_found(tmp_path: Path) -> None:
    found = measured(tmp_path, "Hooks Right", "recall", lanes="train")
    assert found["Hooks"].outcome is Outcome.INCORRECT and "which is not its own" in found["Hooks"].reason
    assert found["Right"].outcome is Outcome.OK


def test_each_outcome_in_a_timing_is_of_its_own_code(tmp_path: Path) -> None:
    found = measured(tmp_path, "Right Undoes Replaces Ends", "sweep[length=32,heads=1,causal=true]")
    assert {name: each.outcome for name, each in found.items()} == {
        "softmax": Outcome.OK, "Right": Outcome.OK, "Undoes": Outcome.INCORRECT, "Replaces": Outcome.INCORRECT,
        "Ends": Outcome.CRASHED,
    }  # fmt: skip
    assert "Case.forward" in found["Replaces"].reason and "exit code 7" in found["Ends"].reason


def test_a_time_limit_is_of_the_code_that_hangs(tmp_path: Path) -> None:
    found = measured(tmp_path, "Hangs", "sweep[length=32,heads=1]", timeout=12.0)
    assert found["Hangs"].outcome is Outcome.TIMEOUT and found["softmax"].outcome is Outcome.OK


def test_what_is_incorrect_is_measured_all_the_same_where_that_is_asked(tmp_path: Path) -> None:
    found = measured(tmp_path, "Undoes", "recall", lanes="train", even_if_wrong=True)
    assert found["Undoes"].outcome is Outcome.INCORRECT
    assert {each.name for each in found["Undoes"].measurements} == {each.name for each in found["softmax"].measurements}


def test_all_ways_in_which_a_model_uses_a_variant_are_examined() -> None:
    task = TASKS.build(Spec("multi30k-en-de"))
    shapes = shapes_of(task, task.recipe(Spec("smoke")), torch.device("cpu"))
    assert {(each.causal, each.cross) for each in shapes} == {(False, False), (True, False), (False, True)}


def test_the_child_that_holds_the_code_imports_torch_with_its_worker(tmp_path: Path) -> None:
    """A server's command line names the process that started it; a fork has that of what it was forked from."""
    said = tmp_path / "said"
    (tmp_path / "tells.py").write_text(
        f"""
import psutil
from attnbench.variants.contract import ScoredVariant

class Tells(ScoredVariant):
    pass

with open({str(said)!r}, "a") as file:
    file.write(psutil.Process().parent().parent().cmdline()[-1] + " ")
""",
        encoding="utf-8",
    )
    attnbench.run(
        f"{tmp_path}/tells.py:Tells", "recall", preset="smoke", seeds=1, lanes="train", results=tmp_path / "r"
    )
    started_by = said.read_text(encoding="utf-8").split()
    # at the least of a question, of the gate and of the training
    assert len(started_by) >= 3 and set(started_by) == {str(os.getpid())}
