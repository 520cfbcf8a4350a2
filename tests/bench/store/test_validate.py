"""What must not pass, passes not; what others made sound, is taken in once."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from attnbench.bench.cli.sharing import merge, validate
from attnbench.bench.core.errors import SelectionError, StoreError
from attnbench.bench.core.record import Measurement, Outcome, Record
from attnbench.bench.store.store import Store
from attnbench.bench.store.validate import validate_records


@pytest.fixture
def folder(bench: Callable[..., object], tmp_path: Path) -> Path:
    """Two sound train Records with predictions and one of times."""
    b, store = bench(), Store(tmp_path / "theirs")
    for variant, right in (("softmax", 12), ("rela", 15)):
        correct = (np.arange(20) < right).astype(np.uint8)
        file = io.BytesIO()
        np.savez(file, correct=correct, predicted=correct)
        name = store.put_artifact(file.getvalue(), ".npz")
        b.train(variant, [right / 20], examples=20, digest="a1-b2-c3", artifacts={"predictions": name})
    b.time("softmax", [1.0] * 3, [1.0] * 3, digest="a1-b2-c3")
    for record in b.records:
        store.append(record)
    return tmp_path / "theirs"


def invoke(command: Callable[..., None], *arguments: object) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(command)
    found = CliRunner().invoke(app, [str(a) for a in arguments])
    if found.exception and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.output


def edit(folder: Path, number: int, change: Callable[[dict], object]) -> None:
    path = folder / "records" / "box-1.jsonl"
    lines = path.read_text().split("\n")
    values = json.loads(lines[number])
    change(values)
    lines[number] = json.dumps(values)
    path.write_text("\n".join(lines))


def test_a_sound_folder_passes(folder: Path) -> None:
    assert validate_records(folder).findings == () and len(validate_records(folder).sound) == 3
    assert invoke(validate, folder) == (0, "3 Records: 0 errors, 0 warnings\n") == invoke(validate, "--results", folder)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda v: v["cell"].update(seed=7), "does not match its cell"),
        (lambda v: v.update(schema=99), "schema 1, got 99"),
        (lambda v: v["measurements"][0].update(value=1.2), "accuracy lies outside the range from 0 to 1"),
        (lambda v: v["measurements"][0].update(value=0.61), "its accuracy is 0.6100, but its predictions give 0.6000"),
        (lambda v: v["measurements"][0].update(name="speed"), "no metric is named 'speed'"),
        (lambda v: v["measurements"][2].update(unit="bytes"), "expected parameters in 'count', got 'bytes'"),
        (lambda v: v["measurements"][2].update(value=-4), "parameters is negative"),
        (lambda v: v["measurements"][2].update(value="nan"), "parameters has a value that is not finite"),
        (
            lambda v: v["measurements"][0]["where"].pop("examples"),
            "its test accuracy does not state the number of examples",
        ),
        (
            lambda v: v.update(measurements=v["measurements"][1:]),
            "outcome ok has no test result: expected accuracy or bleu",
        ),
        (lambda v: v.update(outcome="crashed"), "outcome crashed has no reason"),
        (lambda v: v.update(started="yesterday"), "expected started as an ISO 8601 time, got 'yesterday'"),
        (lambda v: v.update(started="2999-01-01T00:00:00+00:00"), "started lies in the future"),
        (lambda v: v.update(digest="new"), "expected a digest"),
        (lambda v: v["data"].update(fidelity="perfect"), "expected a fidelity"),
        (lambda v: v.update(data=None), "outcome ok does not name its data"),
        (lambda v: v["machine"].update(id="box-2"), "box-1.jsonl holds Records of machine box-1, got one of box-2"),
        (lambda v: v["artifacts"].update(predictions="../../secret"), "is not the name of an artifact"),
        (lambda v: v["artifacts"].update(curve="0" * 24 + ".json"), "is missing"),
    ],
)
def test_what_is_wrong_with_a_record(folder: Path, change: Callable[[dict], object], text: str) -> None:
    edit(folder, 0, change)
    found = validate_records(folder)
    assert found.errors >= 1 and any(text in f.text for f in found.findings), found.findings
    assert len(found.sound) == 2


def test_times_need_their_reference(folder: Path) -> None:
    edit(folder, 2, lambda v: v["measurements"][1].update(samples=[1.0]))
    assert "its times lack those of the reference in the same rounds" in validate_records(folder).findings[0].text
    edit(folder, 2, lambda v: v["measurements"][0].update(samples=[1.0, 0.0, 1.0]))
    assert "step_seconds has a sample of 0 seconds or less" in validate_records(folder).findings[0].text


def test_artifacts_must_be_what_their_names_say(folder: Path) -> None:
    for path in (folder / "artifacts").iterdir():
        path.write_bytes(b"other")
    assert {f.text.rpartition(".npz ")[2] for f in validate_records(folder).findings} == {
        "does not match the hash in its name"
    }


def test_missing_seeds_are_a_warning(folder: Path, bench: Callable[..., object]) -> None:
    b = bench()
    b.train("softmax", [0.5, 0.5], digest="a1-b2-c3")
    Store(folder).append(b.records[1])
    assert [str(f) for f in validate_records(folder).findings] == [
        "warning: lra-text, quick, validation, official: rela has no result of seed 1, which softmax has"
    ]


def test_a_torn_line_is_an_error_and_nothing_is_changed(folder: Path) -> None:
    path = folder / "records" / "box-1.jsonl"
    path.write_bytes(path.read_bytes() + b'{"key": "torn')
    before = path.read_bytes()
    assert validate_records(folder).errors == 1 and path.read_bytes() == before


def test_no_folder_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected a folder"):
        validate_records(tmp_path)


def test_merge_takes_in_each_record_once_with_its_artifacts(folder: Path, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    assert invoke(merge, folder, "--results", ours) == (0, f"{folder}: 3 added, 0 known already, 0 left out\n")
    assert invoke(merge, folder, folder, "--results", ours)[1].endswith("0 added, 3 known already, 0 left out\n")
    assert len(list(Store(ours).records())) == 3 and validate_records(ours).findings == ()


def test_merge_leaves_out_what_is_unsound(folder: Path, tmp_path: Path) -> None:
    edit(folder, 0, lambda v: v["measurements"][0].update(value=7.0))
    code, shown = invoke(merge, folder, "--results", tmp_path / "ours")
    assert code == 1 and "left out: box-1.jsonl:1: accuracy lies outside the range from 0 to 1" in shown
    assert [r.cell.variant.name for r in Store(tmp_path / "ours").records()] == ["rela", "softmax"]


def test_a_failure_with_a_reason_is_sound(folder: Path, bench: Callable[..., object]) -> None:
    b = bench()
    record: Record = b.add(
        b.cell("topk"), [Measurement.of("loss", float("nan"), split="test")], outcome=Outcome.CRASHED, reason="boom",
        digest="a1-b2-c3", data=None,
    )  # fmt: skip
    Store(folder).append(record)
    assert validate_records(folder).errors == 0


def test_one_folder_at_a_time(folder: Path) -> None:
    with pytest.raises(SelectionError, match="expected one folder"):
        invoke(validate, folder, "--results", folder.parent)


def test_statistics_must_bear_out_their_score(bench: Callable[..., object], tmp_path: Path) -> None:
    store, statistics = Store(tmp_path), np.array([[10.0, 10.0], [20.0, 10.0]])
    file = io.BytesIO()
    np.savez(file, statistics=statistics)
    name = store.put_artifact(file.getvalue(), ".npz")
    for value in (1.5, 1.4):
        b = bench(task="lm")
        b.score("softmax", "bits_per_character", [value], digest="a1-b2-c3", artifacts={"predictions": name})
        store.append(b.records[0])
    (finding,) = validate_records(tmp_path).findings
    assert (
        finding.text == "its bits per character is 1.4000, but its predictions give 1.5000"
        and finding.place == "box-1.jsonl:2"
    )
    file = io.BytesIO()
    np.savez(file, statistics=np.ones((2, 5)))
    b.score("rela", "bits_per_character", [1.0], digest="a1-b2-c3",
            artifacts={"predictions": store.put_artifact(file.getvalue(), ".npz")})  # fmt: skip
    store.append(b.records[-1])
    assert any("holds no statistics of bits_per_character" in f.text for f in validate_records(tmp_path).findings)


def test_weights_that_are_not_normalised_may_be_above_one(folder: Path) -> None:
    def give(value: float) -> None:
        added = {"name": "positional_attention", "value": value, "unit": "fraction", "samples": [], "where": {}}
        edit(folder, 0, lambda v: v["measurements"].append(added))

    give(4.1)
    assert validate_records(folder).findings == ()
    give(-0.1)
    assert any("positional_attention lies outside" in str(finding) for finding in validate_records(folder).findings)
