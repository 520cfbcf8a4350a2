"""`run --against`: the share is read, and one line says whether anything became slower."""

from pathlib import Path

import pytest
from command_lines import answer

from attnbench.bench.cli.run import _UNDECIDED, _code_of, _share
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.store.store import Store

TIMES = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0]


def folder(bench, path: Path, factor: float, load: float = 0.0) -> Path:
    b = bench(task="sweep")
    for name, own in (("softmax", 1.0), ("rela", factor)):
        b.time(name, [own * time for time in TIMES], TIMES, load=load)
        Store(path, print).append(b.records[-1])
    return path


def test_one_line_says_pass_or_fail(bench, tmp_path, capsys) -> None:
    old, new = folder(bench, tmp_path / "old", 1.0), folder(bench, tmp_path / "new", 1.2)
    assert _code_of(new, old, 0.05) == 1
    assert capsys.readouterr().out.startswith(f"FAIL: slower than in {old} by more than 5 %: rela on sweep")
    assert _code_of(old, new, 0.05) == 0
    assert capsys.readouterr().out.startswith("PASS: none of 1 time is shown to be more than 5 % above")


@pytest.mark.parametrize("busy", ["old", "new"])
def test_times_of_a_busy_machine_neither_pass_nor_fail(busy, bench, tmp_path, capsys) -> None:
    for name, factor in (("old", 1.0), ("new", 9.0)):
        folder(bench, tmp_path / name, factor, load=1.3 if name == busy else 0.0)
    assert _code_of(tmp_path / "new", tmp_path / "old", 0.05) == _UNDECIDED == 7
    said = capsys.readouterr().out
    assert said.startswith("UNDECIDED: 1 time cannot be compared with") and "other processes used 1.3 of" in said


def test_times_that_nothing_shares_are_refused_before_anything_runs(bench, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("attnbench.bench.api.run.run", lambda **options: pytest.fail("it ran"))
    old = folder(bench, tmp_path / "old", 1.0)
    found = answer(f"run --variants linear --task sweep --against {old} --results {tmp_path / 'new'}")
    assert found.code == 2 and "times of the same task, preset and variant" in found.errors


def test_a_folder_without_records_is_refused_before_anything_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("attnbench.bench.api.run.run", lambda **options: pytest.fail("it ran"))
    (tmp_path / "file").touch()
    for name, words in (("none", "no Records in"), ("file", "expected a folder, got the file")):
        found = answer(f"run --variants rela --task sweep --against {tmp_path / name}")
        assert found.code in (2, 4) and words in found.errors


def test_text_of_the_older_folder_does_nothing_but_show(bench, tmp_path, capsys) -> None:
    old, new = folder(bench, tmp_path / "old", 1.0), folder(bench, tmp_path / "new", 1.0)
    (old / "records" / "a\x1b[2J\u202e.jsonl").write_text("no Record\n")
    assert _code_of(new, old, 0.05) == 0
    said = capsys.readouterr().err
    assert "\\x1b[2J\\u202e.jsonl, line 1 was skipped" in said and said.rstrip("\n").isprintable()


def test_a_share_is_read_and_another_form_refused() -> None:
    assert _share("5%") == 0.05 and _share("2.5 %") == 0.025
    for text in ("5", "x%", "-5%", "0.05"):
        with pytest.raises(SelectionError, match="expected a share such as --fail-if 5%"):
            _share(text)


@pytest.mark.parametrize(
    "line", ["leaderboard", "compare rela softmax", "choose --length 256", "dashboard --out page", "status", "validate"]
)
def test_every_command_reads_times_of_a_busy_machine(line, bench, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for task, length in (("sweep[length=256]", 256), ("sweep[length=512]", 512), ("recall", 64)):
        b = bench(task=task)
        for name, factor in (("softmax", 1.0), ("rela", 2.0), ("linear", 0.5)):
            times = [factor * time for time in TIMES]
            b.time(name, times, TIMES, load=1.3, block=task, setting={"length": length})
            if task == "recall":
                b.train(name, [0.5, 0.6, 0.7])
        for record in b.records:
            Store(tmp_path / "results", print).append(record)
    options = "" if line == "validate" else " --results"
    found = answer(f"{line}{options} {tmp_path / 'results'}")
    assert found.code in ((0, 1) if line == "validate" else (0, 3)), found
    assert "fault of attnbench" not in found.errors
