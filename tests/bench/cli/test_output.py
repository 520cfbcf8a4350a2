"""Output of the commands: one line for each notice, harmless text, any encoding."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from command_lines import answer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnbench.bench.cli import app, live, output
from attnbench.bench.cli.live import Live
from attnbench.bench.cli.output import console
from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.core.errors import DataError, SelectionError
from attnbench.bench.core.record import Machine, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.planner import Plan, Step
from attnbench.bench.run.events import CellFinished, TrainingProgress

RESULTS = str(Path(__file__).parents[3] / "results")
HOSTILE = "a\x1b[31m\x1b]0;title\x07b\u202ec\x9bd\re\nf\u2028g\ud800"
MACHINE = Machine(id="m", system="s", processor="p", cores=1, threads=1, memory_bytes=1)


def harmless(text: str) -> bool:
    return all(letter.isprintable() or letter == "\n" for letter in text)


@pytest.mark.parametrize(
    ("limit", "code", "shown"),
    [
        ("-S -n 24", 0, ("64\n", "")),
        (
            "-n 24",
            2,
            (
                "",
                "attnbench: expected a limit of at least 64 open files (`ulimit -n`), got 24; "
                "run the command where it is higher\n",
            ),
        ),
    ],
)
def test_too_few_open_files_become_more_or_one_line(limit: str, code: int, shown: tuple[str, str]) -> None:
    program = "import resource, sys; from attnbench.bench.cli import app; app.app = lambda **_: print(limit()); "
    program += "limit = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]; sys.exit(app.run_app())"
    words = ["bash", "-c", f'ulimit {limit}; exec "$@"', "-", sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert (done.returncode, (done.stdout, done.stderr)) == (code, shown)


def test_a_notice_is_one_harmless_line_of_bounded_length(capsys: pytest.CaptureFixture[str]) -> None:
    output.warn(HOSTILE + "x" * 4_000 + " word" * 4_000)
    shown = capsys.readouterr().err
    assert harmless(shown) and shown.count("\n") == 1 and len(shown) < 1_200


def test_the_live_view_shows_harmless_notices_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    with Live() as live:
        live.notice(HOSTILE)
        live.progress(HOSTILE, 1, 2)
    shown = capsys.readouterr().err
    assert harmless(shown) and shown.count("\n") == 2


def test_a_cell_is_named_without_the_preset_of_the_whole_run(capsys: pytest.CaptureFixture[str]) -> None:
    preset = "quick[batch=64,steps=300]"
    cell = Cell(variant=Spec("rela"), task=Spec("recall"), preset=Spec.of("quick", batch=64, steps=300))
    plan = Plan(steps=(Step(cell=cell, state="todo"),), jobs=())
    for of_the_run, name in ((preset, "rela on recall, seed 0"), ("quick", f"rela on recall, {preset}, seed 0")):
        with Live() as live:
            live.begin(plan, of_the_run, MACHINE)
            live.on_event(CellFinished(Record(cell=cell, outcome=Outcome.OK, machine=MACHINE)))
        assert f"ok  {name}, train (0 s)" in capsys.readouterr().err


def test_rich_keeps_its_own_styles_and_shows_the_codes_of_others() -> None:
    file = io.StringIO()
    wide = console(file=file, force_terminal=True, width=200, color_system="standard")
    table = Table("name")
    table.add_row(Text(HOSTILE, style="bold"))
    wide.print(table)
    wide.print(HOSTILE, markup=False)
    shown = file.getvalue()
    assert "\x1b[1m" in shown and "\\x1b[31m" in shown and "\x1b[31m" not in shown
    assert not {"\x07", "\u202e", "\x9b", "\r", "\u2028", "\ud800"} & set(shown)


def test_a_target_whose_name_is_that_of_a_picture_stays_a_name() -> None:
    file = io.StringIO()
    console(file=file, width=200).print("mine.py:M: whole")
    assert "mine.py:M:" in file.getvalue()
    bars = live.Live()._bars
    bars.update(bars.add_task("mine.py:M:heart:[bold]x[/bold]", note=""), completed=0)
    with Console(file=io.StringIO(), width=200) as plain:
        plain.print(bars.get_renderable())
    assert "mine.py:M:heart:[bold]x[/bold]" in plain.file.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_stream_of_any_encoding_takes_every_text(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    output.prepare_streams()
    output.say("1.2× ≥ 3 – 漢\n\x1b[2J")
    output.flush()
    last = "3 – ?" if encoding == "cp1252" else "3 ? ?"
    assert raw.getvalue().decode(encoding).endswith(last + "\n\\x1b[2J\n")


def test_a_width_of_zero_is_an_unknown_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    found = answer(["leaderboard", "--results", RESULTS, "--task", "lra-text"])
    assert found.code == 0 and "softmax" in found.output


def test_a_command_line_without_words_prints_the_help_once() -> None:
    found = answer([])
    assert found.code == 2 and found.output.count("Usage: attnbench") == 1 and "did you mean" not in found.errors


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (SelectionError(f"no variant named {HOSTILE!s}"), 2, "no variant named a\\x1b[31m"),
        (MemoryError(), 71, "out of memory"),
        (ImportError("libtorch.so: failed to map segment from shared object"), 71, "out of memory"),
        (OSError(36, "File name too long", "/" + "a" * 5_000), 4, "File name too long: /aaa"),
        (OSError(28, "No space left on device"), 4, "cannot write the output: No space left on device"),
        (ZeroDivisionError("division by zero"), 70, "please report it: ZeroDivisionError: division by zero"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_is_one_line_and_a_code(
    error: BaseException, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "app", Mock(side_effect=error))
    found = answer([])
    assert found.code == code and words in found.errors
    assert found.errors.count("\n") == 1 and harmless(found.errors) and len(found.errors) < 600


def test_a_reader_that_has_gone_ends_a_command_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**options: object) -> None:
        # as click and rich do
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            sys.exit(1)

    monkeypatch.setattr(app, "app", fails)
    found = answer([])
    assert (found.code, found.errors) == (141, "")


def test_each_note_of_an_error_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    error = DataError("no data")
    error.add_note("first\nstill first")
    error.add_note("second")
    output.warn_of(error)
    assert capsys.readouterr().err == "attnbench: no data\n  first still first\n  second\n"


def trial(seconds=60.0, seed=0, lane="train", state="todo"):
    preset = Spec.parse("quick[learning_rate=0.001]")
    cell = Cell(variant=Spec.parse("mine.py:MyLongAttentionOfMany"), task=Spec("recall"), preset=preset, seed=seed,
                lane=lane)  # fmt: skip
    return Step(cell=cell, state=state, seconds=seconds)


def test_progress_at_80_columns_shows_seed_count_accuracy_and_time_of_all(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(live, "console", lambda **_: Console(file=shown, width=80, force_terminal=True))
    view, steps = live.Live(), [trial(300, seed) for seed in range(3)]
    view.begin(Plan(steps=steps, jobs=[Job(id="a", cells=(steps[0].cell,), digests={})]), "quick", MACHINE)
    key = steps[0].cell.key
    view.on_event(TrainingProgress(key, 60, 150, "accuracy", 1.5, 0.873))
    with Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None) as plain:
        plain.print(view._bars.get_renderable())
    whole, one = plain.file.getvalue().rstrip("\n").split("\n")
    assert "60/150" in one and one.rstrip().endswith("accuracy 87.3%") and ", seed 0" in one
    assert one.startswith("mine.py:MyLongAtt") and "…" in one and max(len(whole), len(one)) <= 80
    # three times 300 s, less two fifths of the first, which went by at once
    left = whole.split()[-1]
    assert "0/3" in whole and re.fullmatch(r"0:0[4-7]:\d\d", left)


def test_the_time_left_is_the_estimate_corrected_by_what_has_ended():
    now = [100.0]
    steps = [trial(60, seed) for seed in range(4)]
    left = live.TimeLeft(lambda: now[0])
    assert left.seconds() is None
    left.begin(Plan(steps=steps, jobs=()), later=60.0)
    assert left.seconds() == pytest.approx(300)
    now[0] += 10
    assert left.seconds() == pytest.approx(290)
    # a cell of 60 s took 180: the other three and what follows take about three times as long too
    now[0] += 170
    left.advance(steps[0].cell.key, 1)
    assert 2 * 240 < left.seconds() < 3 * 240
    # and half a cell more at its estimate
    now[0] += 30
    left.advance(steps[1].cell.key, 0.5)
    assert left.seconds() == pytest.approx(2 * 210)
    # the plans of a search for rates follow each other
    ended = left.seconds()
    left.begin(Plan(steps=[trial(210, 9)], jobs=()))
    assert left.seconds() == pytest.approx(ended, rel=0.01)


def test_the_time_of_a_start_is_not_taken_for_that_of_a_step():
    now, step = [100.0], trial(60, 0)
    left = live.TimeLeft(lambda: now[0])
    left.begin(Plan(steps=[step], jobs=()))
    now[0] += 20
    left.advance(step.cell.key, 0.01)
    assert left.seconds() == pytest.approx(59.4, rel=0.1)
    now[0] += 60
    left.advance(step.cell.key, 0.5)
    assert left.seconds() == pytest.approx(60, rel=0.1)


def test_a_pipe_gets_each_line_with_the_time_left(capsys):
    with Live() as view:
        steps = [trial(60, seed) for seed in range(2)]
        view.begin(Plan(steps=steps, jobs=()), "quick", MACHINE)
        view._printed -= 60
        view.on_event(TrainingProgress(steps[0].cell.key, 75, 150, "accuracy", 1.5, 0.5))
        view.on_event(CellFinished(Record(cell=steps[0].cell, outcome=Outcome.OK, machine=MACHINE)))
    first, step, ended = capsys.readouterr().err.rstrip("\n").split("\n")
    assert "2 of 2 cells to run, about 2 min 0 s, " in first
    assert re.search(r"seed 0, train: step 75 of 150, loss 1.500, validation accuracy 50.0%, about .* left$", step)
    assert re.search(r"seed 0, train \(0 s; about .* left\)$", ended)


def test_the_first_line_names_tests_of_foreign_variants_that_no_estimate_knows(capsys):
    cell = trial().cell
    others = (replace(cell, variant=Spec("rela")), replace(cell, variant=Spec("majority"), lane="baseline"))
    steps = [trial(seed=0), trial(seed=1), *(Step(cell=each, state="todo", seconds=60.0) for each in others)]
    with Live() as view:
        view.begin(Plan(steps=steps, jobs=()), "quick", MACHINE)
    first = capsys.readouterr().err.partition("\n")[0]
    assert first.endswith("4 of 4 cells to run, about 4 min 0 s, and tests of 1 foreign variant before each job")


def test_a_brief_view_tells_failures_alone_and_says_its_text_on_standard_output(capsys):
    with Live(brief=True) as view:
        steps = [trial(60, seed) for seed in range(2)]
        view.begin(Plan(steps=steps, jobs=()), "quick", MACHINE)
        view.on_event(CellFinished(Record(cell=steps[0].cell, outcome=Outcome.OK, machine=MACHINE)))
        view.on_event(CellFinished(Record(cell=steps[1].cell, outcome=Outcome.TIMEOUT, machine=MACHINE)))
        view.say("recall  done")
    shown = capsys.readouterr()
    assert shown.out == "recall  done\n"
    assert re.fullmatch(r"  about 2 min 0 s left\ntimeout  mine.py.*\n", shown.err)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_long_line_folds_on_a_terminal_alone(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: is_terminal, raising=False)
    text = "future: it looks both ways (--causal)\n\nok: batch"
    output.say(text, folds=True)
    folded = "future: it looks both ways\n  (--causal)\n\nok: batch\n"
    assert capsys.readouterr().out == (folded if is_terminal else f"{text}\n")
