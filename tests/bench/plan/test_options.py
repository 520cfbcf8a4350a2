"""Options are one list, whoever fills it, and their bounds hold for all of them."""

from dataclasses import fields
from pathlib import Path

import pytest

from attnbench.bench.api.run import RunOptions
from attnbench.bench.cli.options import RUN
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.options import Options, options_of

DISSOLVED = {"match_parameters", "memory_budget", "jobs", "executor_options"}
"""Keywords that change the variants, the tasks or the executor, and are no fields of Options."""


def test_the_command_line_and_python_take_the_same_options() -> None:
    python = RunOptions.__annotations__.keys() | {"variants", "tasks", "executor"}
    # `run` has three of its own, which `plan` does not take, and Python one; files and calls become tasks and variants
    assert python == RUN.keys() - {"call", "text", "pairs"} | {"offline", "retry", "timeout", "even_if_wrong"}
    assert python - DISSOLVED == {field.name for field in fields(Options)} - {"description"}


def test_baselines_alone_need_no_variant() -> None:
    options = options_of(tasks="lra-listops", lanes="baseline")
    assert (options.variants, options.lanes) == ((), ("baseline",))
    with pytest.raises(SelectionError, match="expected variants and a task"):
        options_of(tasks="lra-listops", lanes="baseline,train")


def test_options_stand_in_the_place_of_those_of_the_suite() -> None:
    suite = options_of(suite="smoke-all")
    assert (suite.suite, suite.preset, suite.seeds) == ("smoke-all", Spec("smoke"), 1)
    changed = options_of("rela", "lra-text[length=64]", suite="smoke-all", preset="quick[steps=9]", lanes="train, time")
    assert (changed.suite, changed.seeds, changed.lanes) == ("smoke-all", 1, ("train", "time"))
    assert (changed.variants, changed.preset) == ((Spec("rela"),), Spec.of("quick", steps=9))
    assert options_of("rela", "lra-text", results="here", data_dir=None).results == Path("here")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seeds": 0}, "a count of seeds from 1 to 1,000, got 0"),
        ({"seeds": 1_001}, "a count of seeds"),
        ({"tasks": [f"lra-text[length={n}]" for n in range(1, 200)], "seeds": 1_000}, "at most 100,000 cells"),
        ({"selection": "train"}, "validation or test, got 'train'"),
        ({"lanes": "train,fly"}, "lanes among .*, got 'fly'"),
        ({"lanes": ()}, "got none"),
        ({"timeout": 0.5}, "a time limit of 1 second or more"),
        ({"timeout": float("inf")}, "a time limit"),
        ({"threads": -1}, "threads, as this machine has cores, got -1"),
        ({"threads": 10**6}, "threads"),
        ({"tasks": "lra"}, "'lra' is a suite; `--suite lra` runs its tasks"),
        ({"tasks": None}, "expected variants and a task, or a suite"),
        ({"tasks": None, "lanes": "baseline"}, "expected variants and a task, or a suite"),
    ],
)
def test_a_value_that_nothing_can_run_with_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(SelectionError, match=words):
        options_of("rela", **{"tasks": "lra-text"} | options)
