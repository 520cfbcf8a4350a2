"""`attnbench choose`: the variants that meet some limits."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...cli.command import command
from ...cli.leaderboard import show
from ...cli.options import FILTERS, Columns, Format, Mode, Notes, ShownAs, sharing
from ...cli.output import say, warn

if TYPE_CHECKING:
    from ...score.cost import Mode as CostMode


@command("Read", "attnbench choose --length 512")
@sharing(FILTERS)
def choose(
    length: Annotated[
        str | None, typer.Option(help="Tokens per sequence; 16k is 16,384. Without it, the lengths that were timed.")
    ] = None,
    mode: Annotated[Mode, typer.Option(help="Operation whose time counts.")] = Mode.STEP,
    memory: Annotated[
        str | None, typer.Option(help="Memory limit of a training step, or of decoding one sequence, such as 40GB.")
    ] = None,
    notes: Notes = False,
    columns: Columns = "",
    format: ShownAs = Format.RICH,
    **filters: Any,
) -> None:
    """Rank by cost the variants that meet a length, memory and quality limit; list the rest with the reason."""
    from .choose import choose as board_of
    from .choose import lengths_to_choose_at

    if length is None:
        results = filters.pop("results")
        # a margin is no filter
        filters.pop("margin")
        _say_lengths(lengths_to_choose_at(results, notice=warn, **filters), mode.value, results)
        return
    board = board_of(length, mode=mode.value, memory=memory, notice=warn, **filters)
    show([board], format, all_notes=notes, columns=columns, command="choose")


def _say_lengths(timed: Mapping[CostMode, Sequence[int]], asked: CostMode, results: Path) -> None:
    """Prints the lengths that `choose` can answer for, and a command that asks for one of them."""
    from ...board.length_board import MODES
    from .choose import command_for_times

    if not timed:
        say(f"Nothing in {results} was timed. Time some variants over lengths first:")
        say(f"  {command_for_times(asked, '256..4096', results)}")
        return
    say(f"`attnbench choose` can answer from {results}:")
    for mode, lengths in timed.items():
        say(f"  {MODES[mode].one} at {', '.join(f'{length:,}' for length in lengths)} tokens")
    mode = asked if asked in timed else next(iter(timed))
    words = "" if mode == "step" else f" --mode {mode}"
    command = f"attnbench choose --length {timed[mode][-1]}{words} --results {shlex.quote(str(results))}"
    say(f"Ask for one of them: `{command}`; --memory 8GiB and --margin 2 narrow the answer.")
