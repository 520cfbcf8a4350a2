"""Output of the commands: one line for each notice, harmless text, any encoding."""

from __future__ import annotations

import io
import sys
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
from attnbench.bench.core.cell import Cell
from attnbench.bench.core.errors import DataError, SelectionError
from attnbench.bench.core.record import Machine, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.planner import Plan, Step
from attnbench.bench.run.events import CellFinished

RESULTS = str(Path(__file__).parents[3] / "results")
HOSTILE = "a\x1b[31m\x1b]0;title\x07b\u202ec\x9bd\re\nf\u2028g\ud800"


def harmless(text: str) -> bool:
    return all(letter.isprintable() or letter == "\n" for letter in text)


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
    machine = Machine(id="m", system="s", processor="p", cores=1, threads=1, memory_bytes=1)
    for of_the_run, name in ((preset, "rela on recall, seed 0"), ("quick", f"rela on recall, {preset}, seed 0")):
        with Live() as live:
            live.begin(plan, of_the_run, machine)
            live.on_event(CellFinished(Record(cell=cell, outcome=Outcome.OK, machine=machine)))
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
    output.tolerate_any_encoding()
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


def test_progress_at_80_columns_shows_count_and_time(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(live, "console", lambda **_: Console(file=shown, width=80, force_terminal=True))
    bars = live.Live()._bars
    name = "softmax on recall, quick[learning_rate=0.001,steps=150], seed 100, tune"
    bars.update(bars.add_task(name, total=150, note="loss 4.123, validation 12.3 %"), completed=60)
    with Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None) as plain:
        plain.print(bars.get_renderable())
    line = plain.file.getvalue()
    assert "60/150" in line and line.count("0:00:00") >= 1 and line.startswith("softmax on recall")
    assert line.count("\n") == 1
