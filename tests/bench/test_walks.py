"""How many files and functions three commands cross: caps, so that no later change makes the way longer unseen.

`python tests/support/walk.py FOLDER COMMAND…` prints the list. To raise a cap takes a sentence in the commit.
"""

import re

import pytest
import walk

CAPS = {"run": (100, 680), "leaderboard": (63, 450), "check": (55, 340)}
"""By command: files, functions; with cold caches too, where data is prepared and kernels are built."""

RUN = ("run", "--variants", "rela", "--task", "lra-text", "--preset", "smoke", "--lanes", "train", "--offline")


def within_cap(crossed, command):
    files, functions = len(walk.files_of(crossed)), len(crossed)
    most_files, most_functions = CAPS[command]
    assert files <= most_files and functions <= most_functions, f"{command}: {files} files, {functions} functions"


@pytest.mark.slow  # a run in full, under a tracer
def test_a_record_is_reached_within_the_cap_and_the_stations_of_the_page_are_crossed(tmp_path, monkeypatch):
    """The way from words to two stored Records, of softmax and rela, on surrogate data, in both processes."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "empty"))
    crossed = walk.walk(tmp_path / "run", *RUN, "--results", "results")
    page = (walk.TREE / "docs" / "house.md").read_text(encoding="utf-8")
    stations = re.findall(r"^\| \d+ \| `(\S+)` \| `(\S+)` \|", page, re.MULTILINE)
    assert len(stations) > 15 and not [each for each in stations if each not in crossed]
    within_cap(crossed, "run")


def test_the_ten_types_of_the_page_are_where_it_says():
    page = (walk.TREE / "docs" / "house.md").read_text(encoding="utf-8")
    types = re.findall(r"^\| `(\w+)` \| `(\S+\.py)` \|", page, re.MULTILINE)
    assert len(types) == 10
    for name, file in types:
        assert re.search(rf"^class {name}\b", (walk.TREE / file).read_text(encoding="utf-8"), re.MULTILINE), name
    places = re.findall(r"`((?:bench|variants|tasks)/[\w/.]+)`", page)
    assert not [place for place in places if not (walk.TREE / place).exists()]


@pytest.mark.slow  # a board under a tracer
def test_a_board_is_reached_within_the_cap(tmp_path):
    results = str(walk.TREE / "results")
    within_cap(walk.walk(tmp_path / "board", "leaderboard", "--results", results, "--task", "lra-text"), "leaderboard")


@pytest.mark.slow  # the gate in full, under a tracer
def test_the_gate_is_reached_within_the_cap(tmp_path):
    # in one process, as on one core: the way to children and back is that of the run above
    within_cap(walk.walk(tmp_path / "check", "check", "rela", "--jobs", "1"), "check")
