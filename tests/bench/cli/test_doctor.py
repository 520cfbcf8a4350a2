"""`attnbench doctor`: the state of the results folder, with remedies."""

import importlib
import json
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from typer.testing import CliRunner

import attnbench
from attnbench.bench.cli.app import app
from attnbench.bench.plan.fingerprint import versions_of
from attnbench.bench.store.store import Store

# the name in the package is the command's
doctor_module = importlib.import_module("attnbench.bench.cli.doctor")
REQUIRED = [each for each in requires("attnbench") or () if not each.startswith(("torch", "triton"))]


def doctor(results: Path) -> dict[str, dict[str, str]]:
    """The lines of the report by subject."""
    found = CliRunner().invoke(app, ["doctor", "--results", str(results), "--json"])
    assert found.exit_code == 0, found.output
    return {line["subject"]: line for line in json.loads(found.output)}


def test_doctor_looks_at_a_folder_that_is_not_there_yet_and_shows_every_remedy_whole_on_a_narrow_terminal(tmp_path):
    found = CliRunner().invoke(app, ["doctor", "--results", str(tmp_path / "none" / "yet")], env={"COLUMNS": "80"})
    assert found.exit_code == 0, found.output
    assert "GiB free" in found.output and not (tmp_path / "none").exists()
    assert "parallel[path=" in found.output and "…" not in found.output


def test_doctor_counts_the_records_of_other_versions(bench, tmp_path):
    b = bench()
    b.train("softmax", [0.5, 0.5])
    b.train("rela", [0.5], digest=f"{versions_of(b.cell('rela'))}-0123456789-abcdef0123")
    gone = bench(task="a-task-of-nobody")
    gone.train("softmax", [0.5])
    store = Store(tmp_path)
    for record in (*b.records, *gone.records):
        store.append(record)
    line = doctor(tmp_path)["Records"]
    assert line["state"] == "4; 3 of another version: 3 of version 0"
    assert "attnbench run" in line["remedy"]
    assert "lines" not in doctor(tmp_path)
    (file,) = (tmp_path / "records").glob("*.jsonl")
    with file.open("a") as lines:
        lines.write("no JSON\n")
    assert doctor(tmp_path)["lines"]["state"] == "1 cannot be read"


def test_doctor_counts_records_that_name_code_and_runs_none(bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from pathlib import Path\nPath('RAN').touch()\nclass Mine: pass\n")
    b = bench(task="mine.py:Mine")
    b.train("softmax", [0.5])
    Store(tmp_path).append(b.records[0])
    assert "1 of another version" in doctor(tmp_path)["Records"]["state"] and not (tmp_path / "RAN").exists()


def test_doctor_is_content_with_records_of_this_version(bench, tmp_path):
    b = bench()
    b.train("rela", [0.5], digest=f"{versions_of(b.cell('rela'))}-0123456789-abcdef0123")
    Store(tmp_path).append(b.records[0])
    found = doctor(tmp_path)
    assert found["Records"] == {"subject": "Records", "state": "1; 0 of another version", "remedy": ""}
    assert found["attnbench"]["state"] == attnbench.__version__


def test_doctor_promises_no_data_that_nobody_can_download(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path))
    assert doctor(tmp_path)["lra-retrieval"]["remedy"] == "attnbench data list lra-retrieval"
    assert doctor(tmp_path)["lra-image"]["remedy"] == "attnbench data get lra-image"
    (tmp_path / "tsv_data").mkdir()
    for split in ("train", "eval", "test"):
        (tmp_path / "tsv_data" / f"new_aan_pairs.{split}.tsv").touch()
    assert doctor(tmp_path)["lra-retrieval"]["state"] == "official or surrogate: tsv_data/ tree"


def with_torch(found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The line of torch where that version is installed."""
    stated = ["torch<2.15,>=2.11", "triton>=3.6; extra == 'triton'", *REQUIRED]
    monkeypatch.setattr(doctor_module, "version", lambda package: found if package == "torch" else version(package))
    monkeypatch.setattr(doctor_module, "requires", lambda package: stated)
    return doctor(tmp_path)["torch"]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("2.14.1+cpu", ""), ("2.11.0a0+1a2b3c4d.nv26.02", ""),
        ("2.10.0+cu128", "older than any"), ("2.15.0.dev1", "newer than any"),
    ],
)  # fmt: skip
def test_doctor_compares_torch_with_the_range_that_was_tested(found, words, tmp_path, monkeypatch):
    line = with_torch(found, tmp_path, monkeypatch)
    assert line["state"] == found and line["remedy"].startswith(words)
    assert line["remedy"].endswith("pip install 'torch>=2.11,<2.15'" if words else "")
    assert bool(line["remedy"]) == bool(words)
