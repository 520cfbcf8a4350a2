"""The record table: an entry is a folder of sound Records, measured by a recipe that never changes."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from small_run import SmallRun
from typer.testing import CliRunner

from attnbench.bench.cli import run
from attnbench.bench.cli.app import app
from attnbench.bench.core.hashing import content_hash
from attnbench.bench.plan.options import load_suite
from attnbench.tasks.language_modeling.tinyshakespeare import TinyShakespeare


@pytest.mark.parametrize(("preset", "frozen"), [("record", "3e0f997af2c5eab0"), ("record-gpu", "a180d3ced9be4b96")])
def test_the_recipe_never_changes_another_needs_another_name(preset: str, frozen: str) -> None:
    suite = load_suite(preset)
    assert content_hash(asdict(TinyShakespeare.recipes[preset]), 16) == frozen
    assert (suite.seeds, str(suite.preset), [*map(str, suite.tasks)]) == (3, preset, ["tinyshakespeare"])


def test_an_entry_is_one_folder_of_records_that_validate(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []

    def ran(**options: object) -> None:
        asked.append(options)
        shutil.copytree(small_run.results, str(options["results"]), dirs_exist_ok=True)

    monkeypatch.setattr(run, "run", ran)
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["record", "layers/mine.py:Mine[heads=2]", "--seeds", "5"])
    assert shown.exit_code == 0, shown.output
    entry = Path("records/layers-mine.py-Mine-heads-2")
    assert f"{entry}: " in shown.output and " 0 errors" in shown.output and f"send the folder {entry}" in shown.output
    (options,) = asked
    assert (options["variants"], options["suite"]) == ("layers/mine.py:Mine[heads=2]", "record")
    assert (options["seeds"], options["results"]) == (5, entry)
    assert CliRunner().invoke(app, ["record", "rela", "--results", "own", "--gpu"]).exit_code == 0
    assert (asked[1]["suite"], asked[1]["results"]) == ("record-gpu", Path("own"))
    # of a folder without entries the table says what there is instead
    none = CliRunner().invoke(app, ["record", "--results", "own"])
    assert none.exit_code != 0 and "tinyshakespeare" in str(none.exception)
