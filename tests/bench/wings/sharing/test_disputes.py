"""Nobody bends another's row: metrics of the installed task, machines of their description, disputed results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from boards import text
from sent_folders import of_release, trained

from attnbench.bench.api import boards as api
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.record import Measurement, Record
from attnbench.bench.store.rows import is_disputed
from attnbench.bench.store.store import Store
from attnbench.bench.store.table import table_of
from attnbench.bench.wings.sharing.validate import validate_records

Bench = Callable[..., object]
VERSIONS_AND_DATA = "lane1.objective1.task1-d2"


def sent(bench: Bench, root: Path, variant: str, right: int, seeds: int = 3, **changes: object) -> list[Record]:
    """Sound Records of a variant in a folder, with these changes."""
    store, made = Store(root), []
    for seed in range(seeds):
        record = trained(bench, Store(root.with_name("plain")), variant, right + seed, seed, examples=1000)
        for file in record.artifacts.values():
            store.put_artifact(Store(root.with_name("plain")).artifact(file), file[24:])
        digest, metric = of_release(VERSIONS_AND_DATA, record.cell), METRICS["accuracy"].with_chance(0.5)
        record = replace(record, **{"digest": digest, "metric": metric} | changes)
        store.append(record)
        made.append(record)
    return made


@pytest.mark.parametrize("forged", [{"chance": 0.95}, {"better": "lower"}])
def test_a_metric_of_the_senders_own_moves_nobody_and_is_an_error(
    bench: Bench, tmp_path: Path, forged: dict[str, object]
) -> None:
    root = tmp_path / "board"
    sent(bench, root, "softmax", 800)
    metric = METRICS["accuracy"].with_chance(0.5)
    sent(bench, root, "rela", 800, seeds=1, metric=replace(metric, **forged))
    assert {row.metric for row in table_of(Store(root).records()).rows} == {metric}
    errors = [each.text for each in validate_records(root).findings if each.severity == "error"]
    assert len(errors) == 1 and errors[0].startswith("its metric is")


def test_a_machine_whose_id_is_not_its_descriptions_is_named_once(bench: Bench, tmp_path: Path) -> None:
    (record, *_) = sent(bench, tmp_path / "made-up", "softmax", 800)
    said = [each for each in validate_records(tmp_path / "made-up").findings if "its machine id is not" in each.text]
    assert len(said) == 1 and said[0].severity == "warning" and said[0].place == f"{record.machine.id}.jsonl"
    honest = replace(record.machine, id=record.machine.described_id)
    sent(bench, tmp_path / "honest", "softmax", 800, machine=honest)
    assert not [each for each in validate_records(tmp_path / "honest").findings if "its machine id" in each.text]


def test_a_result_that_is_repeated_far_off_is_disputed_on_board_and_in_validate(bench: Bench, tmp_path: Path) -> None:
    root = tmp_path / "board"
    sent(bench, root, "softmax", 800)
    (record, *_) = sent(bench, root, "rela", 900)
    Store(root).log_arrival()
    sent(bench, root, "rela", 600, machine=replace(record.machine, id="other"))
    said = [each for each in validate_records(root).findings if "result disputed" in each.text]
    assert [each.place for each in said] == [f"other.jsonl:{line}" for line in (1, 2, 3)]
    (board,) = api.boards(root)
    assert "3 results disputed" in text(board, "repeated") and "rela at seed 0" in text(board, "repeated")


def test_files_that_no_attnbench_makes_are_named(bench: Bench, tmp_path: Path) -> None:
    root = tmp_path / "board"
    sent(bench, root, "softmax", 800)
    killed = f"{'a' * 24}.npz.{'0' * 16}.unfinished"
    (root / "artifacts" / killed).touch()
    (root / "records" / "box-1.jsonl.torn").touch()
    assert not [each for each in validate_records(root).findings if "does not give" in each.text]
    (root / "records" / ".gitattributes").write_text("*.jsonl -diff")
    (root / "artifacts" / "index.html").symlink_to("/etc/passwd")
    said = [each for each in validate_records(root).findings if "does not give" in each.text]
    assert [(each.place, each.severity) for each in said] == [("records", "warning"), ("artifacts", "warning")]
    assert said[0].text.endswith(".gitattributes") and said[1].text.endswith("index.html")


@pytest.mark.parametrize(
    ("one", "other", "disputed"),
    [(0.9, 0.6, True), (0.9, 0.86, False), (0.0, 1.0, True), (0.5, 0.5, False), (0.02, 0.2, True)],
)
def test_what_examples_and_machines_explain_is_no_dispute(one: float, other: float, disputed: bool) -> None:
    ours, theirs = (Measurement.of("accuracy", each, split="test", examples=1000) for each in (one, other))
    assert is_disputed(ours, theirs) is disputed is is_disputed(theirs, ours)
    few = Measurement.of("accuracy", other, split="test", examples=10)
    assert not (is_disputed(ours, few) and abs(one - other) < 0.5)


def test_boards_count_what_an_edited_harness_made(bench: Bench, tmp_path: Path) -> None:
    root = tmp_path / "board"
    (record, *_) = sent(bench, root, "softmax", 800)
    assert "edited" not in text(api.boards(root)[0], "harness")
    edited = replace(record.machine, versions=record.machine.versions | {"harness": "0" * 16})
    sent(bench, root, "rela", 700, machine=edited)
    (board,) = api.boards(root)
    assert "3 of 6 were made by an edited harness" in text(board, "harness")


def test_a_record_that_is_there_twice_to_the_byte_is_a_warning(bench: Bench, tmp_path: Path) -> None:
    first, *_ = sent(bench, tmp_path / "board", "softmax", 800)
    (file,) = (tmp_path / "board" / "records").glob("*.jsonl")
    file.write_bytes(file.read_bytes() + first.to_line())
    found = [each for each in validate_records(tmp_path / "board").findings if "once more" in each.text]
    assert [each.severity for each in found] == ["warning"] and ":1 once more, to the last digit" in found[0].text
