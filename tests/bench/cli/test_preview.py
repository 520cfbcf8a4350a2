import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from attnbench.bench.cli import data as command
from attnbench.bench.cli.app import app
from attnbench.bench.cli.preview import is_image, text_of
from attnbench.bench.core.errors import DataError
from attnbench.bench.core.spec import Spec
from attnbench.tasks.contract import Classification, DataPlace
from attnbench.tasks.data.prepared import pack


@pytest.fixture(autouse=True)
def here(place: DataPlace, monkeypatch: pytest.MonkeyPatch) -> DataPlace:
    monkeypatch.setenv("ATTNBENCH_DATA", str(place.root))
    monkeypatch.setenv("ATTNBENCH_CACHE", str(place.cache))
    return place


def test_images_become_a_contact_sheet(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    out = tmp_path / "sheet.png"
    arguments = ["data", "preview", "lra-pathfinder", "--examples", "3", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and "3 training images of lra-pathfinder" in result.output
    sheet = np.asarray(image.open(out))
    assert sheet.shape == (3 * 32 + 4 + 12, 3 * (3 * 32 + 4))
    # below the labels' row, an image's black and white, and the frame's gray between images
    assert sheet[14:-2, 2:98].min() == 0 and sheet[14:-2, 2:98].max() == 255 and (sheet[14:-2, 98:102] == 64).all()


def test_without_pillow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    result = CliRunner().invoke(app, ["data", "preview", "lra-pathfinder", "--out", str(tmp_path / "sheet.png")])
    assert isinstance(result.exception, DataError) and "pip install 'attnbench[images]'" in str(result.exception)


def test_other_tasks_are_shown_as_text() -> None:
    result = CliRunner().invoke(app, ["data", "preview", "lra-listops", "--examples", "2"])
    lines = [line for line in result.output.split("\n") if line.startswith("label ")]
    assert len(lines) == 2 and all("tokens:" in line for line in lines)


def test_bytes_are_shown_as_text_that_moves_no_cursor() -> None:
    split = pack([np.frombuffer(b"ab\x1b[2J", dtype=np.uint8).astype(np.uint16) + 1], [1])
    problem = Classification(vocabulary=257, classes=2)
    assert list(text_of(problem, split.all(), 5)) == [r"label 1, 6 tokens: 'ab\x1b[2J'"]
    assert not is_image(problem, split.all())


def test_a_suite_leaves_out_what_has_no_such_preset(here: DataPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_specs", lambda names: [Spec("lra-pathx"), Spec("lra-pathfinder")])
    preset = "quick[train_examples=16,validation_examples=2,test_examples=2]"
    result = CliRunner().invoke(app, ["data", "get", "lra", "--preset", preset])
    assert result.exit_code == 0 and "lra-pathx: left out; " in result.output
    assert "lra-pathfinder: regenerated" in result.output


def test_fresh_sequences_are_shown_with_what_is_asked_of_them() -> None:
    result = CliRunner().invoke(app, ["data", "preview", "max", "--examples", "2"])
    assert result.exit_code == 0, result.output
    lines = result.output.replace("\n", " ").split("tokens: ")[1:]
    assert len(lines) == 2 and all("; answers " in line and " at " in line for line in lines)
