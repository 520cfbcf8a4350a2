"""`attnbench leaderboard`, from a results folder to text."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from attnbench.bench.cli.compare import compare
from attnbench.bench.cli.leaderboard import leaderboard
from attnbench.bench.cli.pages import dashboard, explain, say_page
from attnbench.bench.core.errors import SelectionError, StoreError
from attnbench.bench.store.store import Store


@pytest.fixture
def results(bench, tmp_path: Path) -> Path:
    b = bench()
    for name, share in (("softmax", 0.6), ("rela", 0.7)):
        b.train(name, [], correct=[(np.arange(500) < share * 500).astype(np.uint8)] * 3)
    store = Store(tmp_path)
    for record in b.records:
        file = tmp_path / "artifacts" / record.artifacts["predictions"]
        file.parent.mkdir(exist_ok=True)
        np.savez(file, correct=b.artifacts[file.name], predicted=b.artifacts[file.name])
        store.append(record)
    return tmp_path


def run(*arguments: str, command: Callable[..., None] = leaderboard) -> str:
    app = typer.Typer()
    app.command()(command)
    found = CliRunner().invoke(app, list(arguments))
    if found.exception and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.parametrize(
    ("form", "begin"),
    [
        ("markdown", "## Which attention is"),
        ("csv", '"board","variant"'),
        ("json", "{"),
        ("latex", "\\begin{table}"),
    ],
)
def test_every_format_goes_to_the_terminal_or_a_file(form: str, begin: str, results: Path, tmp_path: Path) -> None:
    assert run("--results", str(results), "--format", form).startswith(begin)
    assert run("--results", str(results), "--format", form, "--out", str(tmp_path / "sub" / "board")) == ""
    assert (tmp_path / "sub" / "board").read_text(encoding="utf-8").startswith(begin)


def test_predictions_are_paired_by_example(results: Path) -> None:
    board = json.loads(run("--results", str(results), "-f", "json"))["boards"][0]
    gap = next(r for r in board["ranked"] if r["name"] == "rela")["entries"]["gap"]
    assert gap["value"] == pytest.approx(10.0)
    # the normal quantile for five comparisons with softmax
    assert gap["high"] - gap["value"] == pytest.approx(257.6 * (0.1 * 0.9 / 499) ** 0.5, rel=1e-3)


def test_missing_or_broken_predictions_are_told_and_cost_only_the_pairing(results: Path) -> None:
    for file in (results / "artifacts").iterdir():
        file.write_bytes(b"not a zip")
    shown = run("--results", str(results))
    assert "not all predictions are paired by example" in shown and "+10.0" in shown


def test_a_terminal_gets_a_few_notes_and_all_where_they_are_asked_for(results: Path) -> None:
    few, whole = run("--results", str(results)), run("--results", str(results), "--notes")
    assert "(--notes)" in few and "(--notes)" not in whole and len(few.split("\n")) < len(whole.split("\n"))


def test_columns_are_chosen_by_name_and_an_unknown_one_names_the_others(results: Path) -> None:
    shown = run("--results", str(results), "--columns", "accuracy")
    assert "vs softmax" not in shown and "70.0" in shown
    with pytest.raises(SelectionError, match="no column named 'speed'; there are: accuracy, gap"):
        run("--results", str(results), "--columns", "accuracy,speed")


def test_an_empty_folder_names_the_option_that_reads_those_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "my demo" / "records").mkdir(parents=True)
    (tmp_path / "results" / "my demo" / "records" / "box.jsonl").touch()
    with pytest.raises(
        StoreError, match="no Records in nothing; there are some elsewhere: --results 'results/my demo'; or"
    ):
        run("--results", "nothing")


@pytest.mark.parametrize(
    ("command", "out", "said"),
    [
        (leaderboard, "file/board.csv", "cannot write file/board.csv: Not a directory; name another file with --out"),
        (dashboard, "file/site", "cannot write file/site/index.html: Not a directory; name another file with --out"),
        (dashboard, "taken", "cannot write taken/index.html: Is a directory"),
        (explain, "file/site", "cannot write file/site/simplex.html: Not a directory"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_read(
    command: Any, out: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("in the way")
    Path("taken/index.html").mkdir(parents=True)
    # there are no Records, which a command that had begun would say
    folder = [] if command is explain else ["--results", "nothing"]
    with pytest.raises(StoreError, match=f"^{re.escape(said)}"):
        run(*folder, "--out", out, command=command)


def test_a_page_is_written_to_the_file_that_is_named_and_again(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="the extra dashboard is not installed")
    for _ in range(2):
        run("--results", str(results), "--out", str(tmp_path / "new" / "mine.html"), command=dashboard)
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["mine.html"]


def test_what_is_refused_for_another_reason_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no Records in"):
        run("--results", str(tmp_path / "nothing"), "--out", str(tmp_path / "new" / "site"), command=dashboard)
    assert not list(tmp_path.iterdir())


def test_needs_no_torch(results: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from attnbench.bench.cli.leaderboard import leaderboard\n"
        "assert not {'torch', 'pandas'} & set(sys.modules), 'imported for nothing'\n"
        f"leaderboard(results=Path({str(results)!r}))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_compare_gives_the_answer_first(results: Path) -> None:
    first = run("rela", "--results", str(results), command=compare).split("\n")[0]
    assert "+10.0 points" in first and first.endswith(" pairs. Better.")
    (found,) = json.loads(run("rela", "softmax", "--results", str(results), "--json", command=compare))
    assert found["points"]["value"] == pytest.approx(10.0) and len(found["records"]) == 6
    assert found["verdict"] == "better" and found["detectable"] < 10


def test_compare_gives_one_sentence_a_board_where_there_are_many(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnbench.bench.cli.compare.MOST_IN_FULL", 0)
    lines = run("rela", "--results", str(results), command=compare).split("\n")
    assert lines[0].endswith(" pairs. Better.") and len(lines) == 4


def test_a_suite_shows_what_it_lacks(results: Path) -> None:
    board = json.loads(run("--results", str(results), "--suite", "lra", "-f", "json"))["boards"][0]
    lacking = "lra-image, lra-listops, lra-pathfinder, lra-pathx and lra-retrieval"
    assert board["unranked"][0]["reason"] == f"{lacking}: not run"
    assert board["ranked"] == []
    assert board["unranked"][0]["entries"]["lra-text"]["value"] == pytest.approx(70.0)


def test_a_suite_of_another_preset_says_so(results: Path, tmp_path: Path) -> None:
    suite = tmp_path / "mine.toml"
    suite.write_text('tasks = ["lra-text"]\nvariants = ["rela"]\npreset = "quick[steps=7]"\n')
    said = "is of preset quick[steps=7], which nothing here is; of other presets:"
    assert said in run("--results", str(results), "--suite", str(suite))
    assert said not in run("--results", str(results), "--suite", str(suite), "--preset", "quick")


def test_lengths_need_two_lengths(results: Path) -> None:
    with pytest.raises(SelectionError, match="two lengths or more"):
        run("--results", str(results), "--lengths")


def test_the_page_of_a_run_goes_through_no_planted_link(
    results: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("altair", reason="the extra dashboard is not installed")
    pytest.importorskip("vl_convert", reason="the extra dashboard is not installed")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "victim").write_text("precious")
    page = results / "page"
    page.mkdir()
    (page / "index.html").symlink_to(elsewhere / "victim")
    say_page(results)
    assert not (page / "index.html").is_symlink() and "<html" in (page / "index.html").read_text(encoding="utf-8")
    (page / "index.html").unlink()
    page.rmdir()
    page.symlink_to(elsewhere)
    say_page(results)
    assert "no page: cannot write" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in elsewhere.iterdir()] == [("victim", "precious")]


def test_no_page_where_python_takes_docstrings_away(results: Path) -> None:
    pytest.importorskip("altair", reason="the extra dashboard is not installed")
    line = f"from pathlib import Path; from attnbench.bench.cli.pages import say_page; say_page(Path({str(results)!r}))"
    ended = subprocess.run(
        [sys.executable, "-OO", "-c", line], capture_output=True, text=True, check=False, cwd=results
    )  # fmt: skip
    assert ended.returncode == 0 and "no page: drawing needs docstrings" in ended.stderr, ended.stderr


def test_an_existing_folder_takes_one_file_a_board(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "boards"
    folder.mkdir()
    assert run("--results", str(results), "--format", "markdown", "--out", str(folder)) == ""
    (file,) = folder.iterdir()
    assert file.name == "lra-text-quick-official-validation-protocol-1.md"
    assert file.read_text(encoding="utf-8").startswith("## ")


COMMITTED = Path(__file__).parents[3] / "results"


def test_committed_boards_are_what_the_committed_records_give(tmp_path: Path) -> None:
    """`attnbench leaderboard --results results --with-suites lra-quick,synthetic --format markdown --out
    results/boards` renews them."""
    kept = {path.name: path.read_text(encoding="utf-8") for path in (COMMITTED / "boards").glob("*.md")}
    suites = ("--with-suites", "lra-quick,synthetic")
    run("--results", str(COMMITTED), *suites, "--format", "markdown", "--out", str(tmp_path))
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == kept


def test_no_command_shows_what_was_before_a_change(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="the extra dashboard is not installed")
    pytest.importorskip("vl_convert", reason="the extra dashboard is not installed")
    (file,) = (results / "records").glob("*.jsonl")
    for path in (file, *(results / "artifacts").iterdir()):
        os.utime(path, (1e9, 1e9))
    folder, page = ["--results", str(results)], tmp_path / "site"

    def shown() -> list[str]:
        run(*folder, "--out", str(page), command=dashboard)
        board = run(*folder, "--format", "csv")
        return [board, (page / "index.html").read_text(encoding="utf-8"), run("rela", *folder, command=compare)]

    before = shown()
    assert shown() == before and not (results / "cache").exists()
    file.write_text("".join(line + "\n" for line in file.read_text().split("\n")[:-2]))
    os.utime(file, (1e9, 1e9))
    reason = "fewer than 3 seeds"
    assert [reason in text for text in before] == [False, False, False]
    after = shown()
    assert [reason in text for text in after[:2]] == [True, True] and after[2] != before[2]
