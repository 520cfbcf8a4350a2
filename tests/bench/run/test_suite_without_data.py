"""A run of a suite when the data of one task cannot be had."""

from pathlib import Path

import pytest

from attnbench.bench.core.errors import DataError
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.options import Options, load_suite
from attnbench.bench.run.events import RunListener
from attnbench.bench.run.runner import Runner
from attnbench.tasks.contract import DataPlace


def runner(place: DataPlace, results: Path, tasks: tuple[str, ...], name: str, notices: list[str]) -> Runner:
    options = Options(
        suite=name, tasks=tuple(map(Spec, tasks)), variants=(Spec("softmax"),), preset=Spec("smoke"), results=results,
        device="cpu", data_dir=place.root, offline=True, threads=1,
    )  # fmt: skip
    listener = RunListener()
    listener.notice = notices.append  # type: ignore[method-assign]
    return Runner(options=options, listener=listener)


@pytest.fixture
def cache(place: DataPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_CACHE", str(place.cache))


def test_the_suite_names_all_six_tasks() -> None:
    names = [spec.name.removeprefix("lra-") for spec in load_suite("lra").tasks]
    assert sorted(names) == ["image", "listops", "pathfinder", "pathx", "retrieval", "text"]


def test_the_others_run_and_what_is_missing_is_said(place: DataPlace, tmp_path: Path, cache: None) -> None:
    notices: list[str] = []
    run = runner(place, tmp_path / "results", ("lra-listops", "lra-retrieval"), "lra", notices)
    assert run.plan().steps and run.data[Spec("lra-retrieval")] is None, "a plan is made without any data"
    fetched = run.plan(fetch=True)
    assert [task.name for task in run.tasks] == ["lra-listops"]
    assert {step.cell.task.name for step in fetched.steps} == {"lra-listops"}
    [said] = [notice for notice in notices if "left out" in notice]
    for part in (
        "lra-retrieval",
        "the other 1 of lra",
        "`attnbench data list lra-retrieval`",
        "the same command adds it",
    ):
        assert part in said


def test_a_task_that_was_named_by_itself_is_never_left_out(place: DataPlace, tmp_path: Path, cache: None) -> None:
    run = runner(place, tmp_path / "results", ("lra-listops", "lra-retrieval"), "", [])
    with pytest.raises(DataError, match=r"lra-retrieval has no data here"):
        run.plan(fetch=True)


def test_a_suite_of_which_nothing_is_here_is_an_error(place: DataPlace, tmp_path: Path, cache: None) -> None:
    run = runner(place, tmp_path / "results", ("lra-retrieval", "lra-image"), "lra", [])
    with pytest.raises(DataError, match="has no data here"):
        run.plan(fetch=True)
