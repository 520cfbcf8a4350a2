"""Natural mistakes of a new user: the one line that answers says what to type instead."""

from __future__ import annotations

import doctest
import sys
from pathlib import Path

import pytest

from attnbench.bench.cli import advice as advice_module
from attnbench.bench.cli import app
from attnbench.bench.core.errors import AttnbenchError
from attnbench.bench.core.spec import bytes_of

RESULTS = str(Path(__file__).parents[3] / "results")


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("run rela lra-text", "`attnbench run --variants rela,entmax15 --task lra-text`"),
        ("plan --variants rela entmax15 --task sweep", "`attnbench plan --variants rela,entmax15 --task lra-text`"),
        ("leaderboard lra-text", "`attnbench leaderboard --task lra-text`"),
        ("dashboard site", "`attnbench dashboard --task lra-text`"),
        ("choose 512", "`attnbench choose --length 512`"),
        ("--variants rela run", "`attnbench run --variants rela,entmax15 --task lra-text`"),
        ("new my-attention", "`attnbench new variant my-attention`"),
        ("new variant My_Attention", "such as my-attention"),
        ("explain softmax", "`attnbench explain --variants softmax,sparsemax`"),
        ("plan --task rela --variants softmax", "'rela': that is a variant"),
        ("check lra-text", "'lra-text': that is a task"),
        ("probe lra-text", "'lra-text': that is a task"),
        ("probe rela linear", "`attnbench probe entmax15`"),
        ("show lra", "`attnbench plan --suite lra`"),
        ("plan --variants rela --task lra", "'lra' is a suite; `--suite lra`"),
        (f"leaderboard --json --results {RESULTS}", "`attnbench leaderboard --format json`"),
        (f"validate {RESULTS}/records", f"name {RESULTS}"),
        ("merge", "`attnbench merge FOLDER --results results`"),
        ("data export lra-text", "`attnbench data export --tfds FOLDER`"),
        ("plan --variants rela --task lra-text --preset quick[stepps=5]", "(did you mean 'steps'?)"),
        ("plan --suite quick", "'quick': that is a preset; `--preset quick`"),
        ("check not-installed-yet", "`pip install -e FOLDER`"),
        (f"compare softmax --results {RESULTS}", "`attnbench compare rela`"),
        (f"compare rela,linear --results {RESULTS}", "`attnbench compare rela linear`"),
        (f"leaderboard --results {RESULTS}/records", f"--results {RESULTS}"),
        ("sample tinyshakespeare --results nowhere", "`attnbench run --variants rela --task tinyshakespeare`"),
        ("choose --length 512 --memory 40", "40GB"),
    ],
)
def test_a_mistake_is_answered_with_the_right_words(
    line: str, advice: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["attnbench", *line.split()])
    monkeypatch.setattr(app, "give_up", lambda stream: None)
    monkeypatch.chdir(tmp_path)
    code = app.run_app()
    shown = capsys.readouterr().err
    assert code in (2, 4) and advice in shown and len(shown) < 400 and shown.count("\n") == 1


def test_a_word_that_is_no_key_lists_the_cells_that_have_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["attnbench", "sample", "additive-lm", "--results", RESULTS])
    assert app.run_app() == 2
    first, *cells = capsys.readouterr().err.rstrip("\n").split("\n")
    *named, more = cells
    assert "additive-lm" in first and named and all("additive-lm on" in cell for cell in named)
    assert more.strip().startswith("and ") and "narrows the list" in more


@pytest.mark.parametrize(("text", "size"), [("1KB", 1e3), ("40gb", 40e9), ("512mib", 512 * 2**20), ("2 GiB", 2**31)])
def test_units_of_memory_may_be_small_or_capital(text: str, size: float) -> None:
    assert bytes_of(text) == size


def test_a_size_without_unit_is_refused_where_it_can_be_none() -> None:
    with pytest.raises(AttnbenchError, match="40GB"):
        bytes_of("40")
    assert bytes_of("40000000000") == 40e9


def test_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(advice_module).failed == 0
