"""Natural mistakes of a new user: the one line that answers says what to type instead."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from attnbench.bench.cli import app
from attnbench.bench.cli.run import run
from attnbench.bench.core.errors import AttnbenchError
from attnbench.bench.core.spec import bytes_of, parse_selection
from attnbench.bench.plan.executor_settings import ExecutorSettings
from attnbench.bench.plan.suite import load_suite

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
        ("convert gpt2", "no folder gpt2; nothing is downloaded: write one with model.save_pretrained"),
        ("plan --variants ReLA --task sweep", "(did you mean 'rela'?)"),
        ("plan --variants rela --task Lra-Listops", "(did you mean 'lra-listops'?)"),
        ("plan --variants rela --task sweep --preset SMOKE", "(did you mean 'smoke'?)"),
        ("plan --suite LRA", "(did you mean 'lra'?)"),
        ("show LRA", "(did you mean 'lra'?)"),
        ("show kda", "(did you mean 'delta[decay=channel]'?)"),
        ("plan --variants rela --task sweep -preset smoke", "write `--preset`"),
        ("plan --variants rela, linear --task sweep", "write no space after a comma: `rela,linear`"),
        ("plan --variants local(flange=64) --task sweep", "did you mean 'local[flange=64]'?"),
        ("plan --variants [rela] --task sweep", "did you mean 'rela'?"),
        ("new variant import", "no word of Python, such as my-import"),
        ("new variant 1st", "such as my-1st"),
        ("probe rela --preset fast", "expected the preset quick or smoke"),
        ("plan --variants rela --task sweep --executor slurm --executor-option account=x", "sbatch.account=…"),
        ("plan --variants rela --task sweep --executor-option partition=gpu", "add --executor slurm;"),
        ("merge records --results a.txt", "expected a folder, got the file 'a.txt'"),
        ("plan --variants rela --task sweep --seeds 0,1,2", "`--seeds 3` for the seeds 0, 1 and 2"),
        ("plan --suite suite.yaml", "rename it"),
        ("plan --variants rela -- --task sweep", "leave out `--`"),
        ("record -- rela --seeds 1", "leave out `--`"),
        ("plan --variants local{flange=64} --task sweep", "did you mean 'local[flange=64]'?"),
        ("plan --variants rela;linear --task sweep", "did you mean 'rela,linear'?"),
        ("plan --variants 'rela' --task sweep", "did you mean 'rela'?"),
        ("check mine.py::Mine", "did you mean 'mine.py:Mine'?"),
        ("check mine.py:", "did you mean 'mine.py'?"),
        ("check mine.py", "say what in that file: mine.py:Mine, mine.py:make\n"),
        ("audit mine.py", "say what in that file: mine.py:Mine, mine.py:make\n"),
        ("audit mine.py:WIDTH", "a class, a function or an nn.Module, got int"),
        ("audit mine.py:torch", "a class, a function or an nn.Module, got module"),
        ("audit mine.py:Mine --compile nothing", "expected a backend of torch.compile"),
        ("audit mine.py:Mine --by-design FUTURE", "did you mean 'future'"),
        ("probe rela --preset Smoke", "did you mean 'smoke'?"),
        (f"compare rela --results {RESULTS} --task LRA-TEXT", "did you mean 'lra-text'"),
        (f"choose --results {RESULTS} --length \u0661\u0660\u0662\u0664", "expected a length such as 512"),
        ("run --variants rela --task sweep --against records", "name a folder that has some with --against"),
        ("run --variants rela --task sweep --fail-if 3%", "expected --against FOLDER"),
        ("plan --seeds", "`attnbench plan --help`"),
        ("plan --variants rela --task sweep --seeds three", "expected a valid integer; see"),
        ("plan --variants rela --task sweep --seeds 0", "expected a number greater than or equal to 1; see"),
        ("record softmax,rela", "expected one variant for an entry, got softmax,rela"),
        ("results pack nowhere", "no Records in nowhere"),
        ("data list demoo", "(did you mean 'demo'?)"),
        ("audit transformers:Bertt", "has no model class 'Bertt', such as BertModel"),
    ],
)
def test_a_mistake_is_answered_with_the_right_words(
    line: str, advice: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["attnbench", *line.split()])
    monkeypatch.setattr(app, "give_up", lambda stream: None)
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "suite.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "mine.py").write_text("import torch\nWIDTH = 3\ndef make(): ...\nclass Mine(torch.nn.Module): ...\n")
    code = app.run_app()
    shown = capsys.readouterr().err
    assert code in (2, 3, 4) and advice in shown and len(shown) < 400 and shown.count("\n") == 1


def test_a_run_without_a_cell_of_the_kind_asked_for_says_so(tmp_path: Path) -> None:
    with pytest.raises(AttnbenchError, match="no cell of the kind tune; leave out --lanes"):
        run(variants="softmax", tasks="recall", preset="smoke", lanes="tune", results=tmp_path)


def test_blanks_in_one_word_are_answered_with_the_right_words() -> None:
    with pytest.raises(AttnbenchError, match="did you mean 'rela,linear'"):
        parse_selection("rela linear")
    with pytest.raises(AttnbenchError, match="a table of words without blanks"):
        ExecutorSettings.of("slurm", options={"sbatch.account": "a b"})


def test_a_capital_k_is_a_thousand_and_a_mark_of_the_byte_order_no_part_of_a_suite(tmp_path: Path) -> None:
    assert [str(each) for each in parse_selection("local[flange=64K]")] == ["local[flange=65536]"]
    file = tmp_path / "k.toml"
    file.write_bytes(b'\xef\xbb\xbftasks = ["sweep"]\nvariants = ["rela"]\n')
    assert [str(each) for each in load_suite(str(file)).variants] == ["rela"]


def test_a_word_that_is_no_key_lists_the_cells_that_have_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["attnbench", "sample", "gate+softmax", "--results", RESULTS])
    assert app.run_app() == 2
    first, *cells = capsys.readouterr().err.rstrip("\n").split("\n")
    *named, more = cells
    assert "gate+softmax" in first and named and all("gate+softmax on" in cell for cell in named)
    assert more.strip().startswith("and ") and "narrows the list" in more


@pytest.mark.parametrize(("text", "size"), [("1KB", 1e3), ("40gb", 40e9), ("512mib", 512 * 2**20), ("2 GiB", 2**31)])
def test_units_of_memory_may_be_small_or_capital(text: str, size: float) -> None:
    assert bytes_of(text) == size


def test_a_size_without_unit_is_refused_where_it_can_be_none() -> None:
    with pytest.raises(AttnbenchError, match="40GB"):
        bytes_of("40")
    assert bytes_of("40000000000") == 40e9
