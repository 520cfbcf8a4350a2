"""compare and choose: what a person asks of two variants, or of all, answered from the Records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..board.select import read_store
from .leaderboard import show, store_of
from .options import Fidelity, Format, Machine, Margin, Mode, Preset, Results, Selection, Task


def compare(
    one: Annotated[str, typer.Argument(help="A variant.")],
    other: Annotated[str, typer.Argument(help="The variant to hold it against.")] = "softmax",
    results: Results = Path("results/local"),
    task: Task = None,
    preset: Preset = None,
    selection: Selection = None,
    fidelity: Fidelity = None,
    machine: Machine = None,
    margin: Margin = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how two variants differ, with intervals and in words, question by question."""
    import json as writer
    from dataclasses import asdict

    from ...dashboards.escape import visible
    from ..board.compare import compare as compare_on
    from ..core.errors import SelectionError
    from ..score.key import BoardFilter, board_keys

    table, predictions = read_store(store_of(results))
    wanted = BoardFilter(task=task, preset=preset, selection=selection, fidelity=fidelity, machine=machine)
    found, problems = [], []
    for board_key in board_keys(table, wanted):
        try:
            found.append(compare_on(table, board_key, one, other, predictions, margin))
        except SelectionError as error:
            problems.append(error)
    if not found:
        raise problems[0]
    if json:
        typer.echo(writer.dumps([asdict(c) for c in found], indent=1))
        return
    for at, comparison in enumerate(found):
        board_key = comparison.board_key
        where = ", ".join(
            filter(None, [board_key.task, board_key.preset, board_key.fidelity, board_key.selection, board_key.machine])
        )
        typer.echo(("\n" if at else "") + visible(f"{comparison.one} against {comparison.other} on {where}"))
        for sentence in comparison.sentences:
            typer.echo(f"  {visible(sentence)}")


def choose(
    length: Annotated[str, typer.Option("--length", help="Tokens per sequence, such as 16k.")],
    mode: Annotated[Mode, typer.Option("--mode", help="What must be cheap.")] = Mode.STEP,
    memory: Annotated[
        str | None, typer.Option("--memory", help="Most that a training step, or decoding a sequence, may hold: 40GB.")
    ] = None,
    margin: Margin = None,
    results: Results = Path("results/local"),
    task: Task = None,
    preset: Preset = None,
    selection: Selection = None,
    fidelity: Fidelity = None,
    machine: Machine = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to show it.")] = Format.RICH,
) -> None:
    """List the variants that fit a length, a memory and a loss of quality, by cost; and why the others do not."""
    from ..board.choose_board import Requirements, board_for_choice
    from ..core.errors import SelectionError
    from ..core.spec import bytes_of, parse_value
    from ..score.key import BoardFilter, board_keys

    tokens = parse_value(length)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise SelectionError(f"expected a length such as 512 or 16k, got {length!r}")
    limit = bytes_of(memory) if memory is not None else None
    requirements = Requirements(length=tokens, mode=mode.value, memory_bytes=limit, margin=margin)
    table, predictions = read_store(store_of(results))
    wanted = BoardFilter(task=task, preset=preset, selection=selection, fidelity=fidelity, machine=machine)
    others = board_keys(table, BoardFilter(fidelity=fidelity, machine=machine))
    show([board_for_choice(table, board_keys(table, wanted), requirements, predictions, others)], format, None)
