"""A sender states when a Record started and which version made it; neither may replace what others have sent."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sent_folders import invoke, of_release, trained

from attnbench.bench.core.record import Machine, Record
from attnbench.bench.store.store import Store
from attnbench.bench.store.table import table_of
from attnbench.bench.wings.sharing.command import merge
from attnbench.bench.wings.sharing.validate import validate_records

Bench = Callable[..., object]
VERSIONS_AND_DATA = "lane1.objective1.task1-d2"


def folder(bench: Bench, root: Path, machine: str, right: dict[str, int], **changes: object) -> Path:
    """A results folder of three seeds of each variant, as one machine made them; the first has `right` per cent."""
    store, plain = Store(root), Store(root.with_name(root.name + "-plain"))
    for variant, count in right.items():
        for seed in range(3):
            made: Record = trained(bench, plain, variant, count + seed, seed, examples=100)
            for file in made.artifacts.values():
                store.put_artifact(plain.artifact(file), file[24:])
            box: Machine = replace(made.machine, id=machine)
            store.append(replace(made, machine=box, **{"digest": of_release(VERSIONS_AND_DATA, made.cell)} | changes))
    return root


def counted(root: Path) -> dict[str, list[float]]:
    """The test accuracies that boards show."""
    table = table_of(Store(root).records())
    names = sorted({row.variant for row in table.current})
    return {
        name: table.values("accuracy", [row.at for row in table.current if row.variant == name], split="test")
        for name in names
    }


@pytest.fixture
def board(bench: Bench, tmp_path: Path) -> Path:
    """A public board with the Records of an honest sender."""
    honest = folder(bench, tmp_path / "honest", "honest", {"softmax": 50, "rela": 70, "linear": 40})
    assert invoke(merge, honest, "--results", tmp_path / "board")[0] == 0
    return tmp_path / "board"


@pytest.mark.parametrize("machine", ["aaaa", "honest", "zzzz"])
@pytest.mark.parametrize("through_merge", [True, False])
def test_an_earlier_start_replaces_no_row(
    board: Path, bench: Bench, tmp_path: Path, machine: str, through_merge: bool
) -> None:
    before = counted(board)
    forged = folder(bench, tmp_path / "forged", machine, {"rela": 20}, started="2001-01-01T00:00:00+00:00")
    if through_merge:
        invoke(merge, forged, "--results", board)
    else:
        # the files that a request of git adds, without a line in the log
        for record in Store(forged).records():
            for file in record.artifacts.values():
                Store(board).put_artifact(Store(forged).artifact(file), file[24:])
            Store(board).append(record)
    assert counted(board) == before
    found = validate_records(board).findings
    said = [each for each in found if each.place != "arrivals.txt" and "its machine id" not in each.text]
    assert {finding.severity for finding in said} == {"warning"}
    first = 10 if machine == "honest" else 1
    # the forged Records are named, and no honest one
    assert {finding.place for finding in said} == {f"{machine}.jsonl:{first + seed}" for seed in range(3)}
    attempts = ("came first and counts", "earlier start", "very file")
    assert all(any(attempt in finding.text for attempt in attempts) for finding in said)


@pytest.mark.parametrize(
    "version",
    ["lane2.objective1.task1", "lane1.objective9.task1", "lane1.objective1.task2", "lane1.99", "lane1.task99"],
)
def test_a_newer_version_replaces_no_board_and_is_an_error(
    board: Path, bench: Bench, tmp_path: Path, version: str
) -> None:
    before = counted(board)
    right = {"softmax": 10, "rela": 20, "linear": 30}
    forged = folder(bench, tmp_path / "forged", "zzzz", right, digest=f"{version}-d2-c3")
    code, shown = invoke(merge, forged, "--results", board)
    assert code == 1 and "0 added" in shown and "newer than the installed" in shown.replace("\n", " ")
    for record in Store(forged).records():
        Store(board).append(record)
    assert counted(board) == before
    errors = [finding for finding in validate_records(board).findings if finding.severity == "error"]
    assert {finding.place for finding in errors} == {f"zzzz.jsonl:{line}" for line in range(1, 10)}


def test_a_place_in_the_log_cannot_be_taken_in_advance(board: Path) -> None:
    log = board / "records" / "arrivals.txt"
    log.write_text(log.read_text() + "zzzz=9 honest=9\nwhatever\n")
    errors = [str(finding) for finding in validate_records(board).findings if finding.severity == "error"]
    assert len(errors) == 2 and "zzzz.jsonl has 0 lines, but 9 have arrived" in errors[0] and "'whatever'" in errors[1]


def test_without_a_log_the_stated_start_decides_between_files_and_validate_says_so(
    bench: Bench, tmp_path: Path
) -> None:
    folder(bench, tmp_path / "all", "later", {"softmax": 50, "rela": 20}, started="2026-01-02T00:00:00+00:00")
    folder(bench, tmp_path / "all", "sooner", {"softmax": 50, "rela": 70}, started="2026-01-01T00:00:00+00:00")
    assert counted(tmp_path / "all")["rela"] == [0.7, 0.71, 0.72]
    texts = [f.text for f in validate_records(tmp_path / "all").findings if f.place == "records"]
    assert len(texts) == 1 and "3 cells have two different results" in texts[0]
    Store(tmp_path / "all").log_arrival()
    assert (tmp_path / "all" / "records" / "arrivals.txt").read_text() == "later=6 sooner=6\n"
    assert not [f for f in validate_records(tmp_path / "all").findings if f.place == "records"]


def test_a_line_without_its_end_is_an_error(board: Path) -> None:
    file = board / "records" / "honest.jsonl"
    file.write_bytes(file.read_bytes().removesuffix(b"\n"))
    assert any("the line has no end" in str(f) for f in validate_records(board).findings if f.severity == "error")
