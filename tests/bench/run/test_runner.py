"""A run takes a preset that all of its tasks have, and measures what has no Record, with the reference it needs."""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import attnbench
from attnbench.bench.core.cell import Job, Lane
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.record import Outcome, Record, Started
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec
from attnbench.bench.measure.machine import describe
from attnbench.bench.plan.facts import task_facts
from attnbench.bench.plan.options import options_of
from attnbench.bench.run import runner as module_of_runner
from attnbench.bench.run.events import CellFinished, LoggingListener, OnEvent
from attnbench.bench.run.executors import local as module
from attnbench.bench.run.executors.executor import Needs
from attnbench.bench.run.questions import FindData
from attnbench.bench.run.runner import Runner, default_preset
from attnbench.bench.store.store import Store


@pytest.mark.parametrize(
    ("device", "tasks", "preset"),
    [
        ("cuda", ["lra-text"], "pt-2x64"),
        ("cuda", ["tinyshakespeare"], "quick"),
        ("cuda", ["wmt14-en-de"], "quick"),
        ("cuda", ["lra-text", "tinyshakespeare"], "quick"),
        ("cpu", ["lra-text"], "quick"),
        ("cpu", ["tinyshakespeare", "wmt14-en-de"], "quick"),
    ],
)
def test_without_a_preset_one_is_taken_that_every_task_has(device: str, tasks: list[str], preset: str) -> None:
    specs = list(map(Spec, tasks))
    assert default_preset(list(map(task_facts, specs)), device) == Spec(preset)
    assert all(TASKS.build(task).recipe(Spec(preset)).ranked for task in specs)


@pytest.mark.parametrize(("named", "used"), [(None, "quick"), ("smoke", "smoke")])
def test_a_run_of_language_modelling_on_a_gpu_needs_no_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None, used: str
) -> None:
    # a machine with a GPU, as far as the choice of a preset goes
    monkeypatch.setattr(module, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(module, "describe_in_child", lambda device, threads: [describe(torch.device("cpu"))])
    options = options_of("softmax", "tinyshakespeare", preset=named, results=tmp_path, threads=torch.get_num_threads())
    made = Runner(options=options, listener=LoggingListener())
    assert made.preset == Spec(used) and made.seeds == (1 if used == "smoke" else 3)


def test_a_hybrid_with_more_layers_than_the_model_of_one_task_stops_no_other_cell(tmp_path: Path) -> None:
    # one layer, and two
    tasks = ["recall", "selective-copy"]
    made = attnbench.plan("delta//softmax", tasks, results=tmp_path, preset="smoke", seeds=1, lanes=("train",))
    assert [(str(step.cell.task), str(step.cell.variant)) for step in made.steps] == [
        (task, variant) for task in tasks for variant in ("softmax", "delta//softmax")
    ]


@pytest.mark.parametrize(
    ("variant", "lanes", "interpreted", "refused"),
    [
        ("rela[impl=triton]", ("train", "time"), "1", True),
        ("rela[impl=triton]", ("train", "baseline"), "1", False),
        ("rela[impl=triton]", ("train", "time"), "0", False),
        ("rela", ("train", "time"), "1", False),
    ],
)
def test_what_triton_interprets_is_not_timed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    lanes: tuple[Lane, ...],
    interpreted: str,
    refused: bool,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interpreted)
    options = options_of(
        variant,
        "lra-text",
        preset="smoke",
        results=tmp_path,
        device="cpu",
        lanes=lanes,
        threads=torch.get_num_threads(),
    )
    with pytest.raises(SelectionError, match="attnbench check") if refused else nullcontext():
        Runner(options=options, listener=LoggingListener())


class AnswersAtOnce:
    """An executor whose jobs end at once, each Cell with a Record; `cells` of each job, by variant."""

    room = float("inf")

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.cells: list[list[str]] = []
        self.machine, self.seconds = describe(torch.device("cpu")), time.monotonic()

    def submit(self, job: Job, needs: Needs) -> None:
        # its neighbours would stand in the numbers of a timing on a processor
        assert needs.alone == (job.cells[0].lane == "time")
        self.jobs.append(job)
        self.cells.append([str(cell.variant) for cell in job.cells])

    def finished(self, on_event: OnEvent) -> Iterator[str]:
        while self.jobs:
            job = self.jobs.pop()
            for cell in job.cells:
                # no two measurements take the same time
                self.seconds += 1.0
                on_event(
                    CellFinished(
                        Record.of(
                            cell, Outcome.OK, "", Started(), block=job.id, digest=job.digests[cell.key],
                            machine=replace(self.machine, threads=job.threads), seconds=self.seconds,
                        )
                    )
                )  # fmt: skip
            yield job.id

    def cancel(self, block: str) -> None:
        raise NotImplementedError


@pytest.fixture
def jobs_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Runs one lane of variants on a task, in one folder; returns the variants of each job."""

    def made(variants: str, lane: Lane, meanwhile: Callable[[], object] = lambda: None) -> list[list[str]]:
        executor = AnswersAtOnce()
        options = options_of(
            variants, "lra-listops", preset="smoke", results=tmp_path, device="cpu", lanes=[lane], threads=1
        )
        runner = Runner(options=options, listener=LoggingListener(), executor=executor)
        plan = runner.plan(fetch=True)
        meanwhile()
        runner.run(plan)
        return executor.cells

    monkeypatch.setattr(FindData, "answer", lambda self, reporter: None)
    return made


def stored(folder: Path) -> list[str]:
    return [str(record.cell.variant) for record in Store(folder).records()]


def test_a_variant_that_is_added_is_timed_in_rounds_with_the_reference(
    jobs_of: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    """Its ratio is that of its own rounds: without the reference there it has none."""
    assert jobs_of("rela", "time") == [["softmax", "rela"]]
    assert jobs_of("rela", "time") == []
    assert jobs_of("rela,linear", "time") == [["softmax", "linear"]]
    assert stored(tmp_path) == ["softmax", "rela", "softmax", "linear"]
    # what another command has timed since the plan was made is not timed again, nor the reference for it
    assert jobs_of("entmax15", "time", lambda: jobs_of("rela,linear,entmax15", "time")) == []
    # the reference of the other command's rounds is none of this one's
    assert jobs_of("sigmoid,sparsemax", "time", lambda: jobs_of("sigmoid", "time")) == [["softmax", "sparsemax"]]
    assert stored(tmp_path)[-4:] == ["softmax", "sigmoid", "softmax", "sparsemax"]


def test_a_change_that_was_taken_back_is_measured_once_more(
    jobs_of: Callable[..., list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boards show the code that was measured last, which would be the change."""
    assert jobs_of("rela", "train") == [["softmax"], ["rela"]]
    real = module_of_runner.digest_of_cell
    monkeypatch.setattr(
        module_of_runner,
        "digest_of_cell",
        lambda cell, *rest: real(cell, *rest) if cell.variant.name == "softmax" else real(cell, *rest)[:-1] + "x",
    )
    assert jobs_of("rela", "train") == [["rela"]]
    monkeypatch.setattr(module_of_runner, "digest_of_cell", real)
    assert jobs_of("rela", "train") == [["rela"]]
    assert jobs_of("rela", "train") == []


LEAKS = """
from torch import Tensor
from attnbench.variants.contract import score_map


@score_map(equation="all of it", paper="not published")
def leaks(scores: Tensor, allowed: Tensor | None) -> Tensor:
    \"\"\"Softmax that forgets the mask.\"\"\"
    return scores.softmax(-1)
"""


def test_a_wrong_variant_is_measured_where_asked_and_on_no_board(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LEAKS)
    name, results = f"{tmp_path / 'mine.py'}:leaks", tmp_path / "results"
    tasks, more = ["recall", "sweep[causal=true,length=64]"], {"preset": "smoke", "seeds": 1, "results": results}
    plain = attnbench.run(name, tasks, lanes=("train", "time"), **more)
    refused = [record for record in plain if str(record.cell.variant) == name]
    assert {record.outcome for record in refused} == {Outcome.INCORRECT}
    assert not any(record.measurements for record in refused)
    found = attnbench.run(name, tasks, lanes=("train", "time"), retry=True, even_if_wrong=True, **more)
    trained, timed = (record for record in found if str(record.cell.variant) == name)
    assert trained.outcome == timed.outcome == Outcome.INCORRECT and "causal" in trained.reason
    assert trained.first("accuracy", split="test") is not None and timed.first("step_seconds") is not None
    for board in attnbench.boards(found):
        (row,) = (each for each in (*board.ranked, *board.unranked) if each.name == name)
        assert "incorrect" in f"{row.reason} {[entry.text for entry in row.entries]}"
        # no seed, and the cap of a time
        assert all(entry.value in (None, 0, 64.0) for entry in row.entries), row
