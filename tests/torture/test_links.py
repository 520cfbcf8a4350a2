"""Links planted in every place that a command writes: nothing behind them is changed, whoever sent the folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from command_lines import answer
from commands_under_test import run_command
from hostile_folders import write_sound
from tally import Extent, Tally

from attnbench.bench.cli.options import Picture
from attnbench.bench.cli.pages import save
from attnbench.bench.core.errors import StoreError

altair = pytest.importorskip("altair", reason="the extra dashboard is not installed")

RUN = ("run", "--variants", "softmax", "--task", "recall", "--preset", "smoke[steps=4,evaluate_every=2]", "--lanes",
       "train", "--seeds", "1", "--threads", "1", "--offline", "--device", "cpu", "--results", "place")  # fmt: skip

# what writes into the folder `place`, that a stranger may have sent; {sound} has Records to read
COMMANDS: dict[str, Sequence[str]] = {
    "run": RUN,
    "merge": ("merge", "{sound}", "--results", "place"),
    "dashboard": ("dashboard", "--results", "{sound}", "--task", "lra-text", "--out", "place", "--figures", "svg"),
    "leaderboard": ("leaderboard", "--results", "{sound}", "--format", "markdown", "--out", "place"),
    "new": ("new", "variant", "my-attention", "--into", "place"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "results"
    write_sound(folder)
    return folder


def called(name: str, sound: Path, folder: Path) -> str | None:
    """Calls the command in `folder`; what is wrong with its end, if anything."""
    words = [word.format(sound=sound) for word in COMMANDS[name]]
    if name == "run":
        # compiled kernels are shared by all runs
        variables = {"ATTNBENCH_CACHE": str(folder.parent / "cache")}
        return run_command(*words, folder=folder, variables=variables, seconds=300.0).problem(0, 1, 2, 4)
    found = answer(words)
    return None if found.code in (0, 1, 2, 4) and "Traceback" not in found.errors else f"code {found.code}"


def state_of(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def places_of(name: str, sound: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, bool]]:
    """Every file and folder that the command makes in `place`, and whether it is a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "place").mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert called(name, sound, folder) is None
    for path in sorted((folder / "place").rglob("*")):
        yield str(path.relative_to(folder)), path.is_dir()


def problem_of(name: str, place: str, is_folder: bool, sound: Path, folder: Path) -> str | None:
    """`place` is a link to something of the reader's; the command is called, and that something looked at."""
    shutil.rmtree(folder, ignore_errors=True)
    victim = folder / "victim"
    (folder / "place").mkdir(parents=True)
    victim.mkdir()
    (victim / "file").write_bytes(b"precious")
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).symlink_to(victim if is_folder else victim / "file")
    before = state_of(victim)
    os.chdir(folder)
    problem = called(name, sound, folder)
    return problem or (None if state_of(victim) == before else f"it changed {set(state_of(victim)) ^ set(before)}")


def test_links(extent: Extent, tally: Tally, sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """links planted where commands write: nothing behind them changes."""
    # a run takes longest
    names = list(COMMANDS) if extent.all_cases else extent.of([each for each in COMMANDS if each != "run"], sample=1)
    for name in names:
        places = list(places_of(name, sound, tmp_path / "folder", monkeypatch))
        for place, is_folder in extent.of(places, sample=2):
            tally.check(f"{name}: {place}", problem_of(name, place, is_folder, sound, tmp_path / "folder"))
    tally.verdict()


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_figure_is_never_written_through_a_link(tmp_path: Path, is_folder: bool) -> None:
    chart = altair.Chart(altair.Data(values=[{"x": 1}])).mark_point().encode(x="x:Q")
    place, victim = tmp_path / "site" / "figures", tmp_path / "victim"
    victim.mkdir()
    (victim / "a.svg").write_bytes(b"precious")
    place.parent.mkdir()
    if is_folder:
        place.symlink_to(victim)
        with pytest.raises(StoreError, match="got a link"):
            save({"a": chart}, place, Picture.SVG, follow=False)
    else:
        place.mkdir()
        (place / "a.svg").symlink_to(victim / "a.svg")
        save({"a": chart}, place, Picture.SVG)
        assert (place / "a.svg").read_text(encoding="utf-8").startswith("<svg") and not (place / "a.svg").is_symlink()
        save({"a": chart}, place, Picture.PNG)
        assert (place / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (victim / "a.svg").read_bytes() == b"precious"
