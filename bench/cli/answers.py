"""`attnbench compare` and `choose`: two variants side by side, or the variants that meet some limits."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import completion
from .leaderboard import show
from .options import FILTERS, Columns, Format, Json, Mode, Notes, ShownAs, sharing
from .output import say, say_json, warn

if TYPE_CHECKING:
    from ..board.compare import Comparison
    from ..score.cost import Mode as CostMode

MOST_IN_FULL = 3
"""Boards whose comparisons are printed in full; of more, each has its first sentence."""


@sharing(FILTERS)
def compare(
    one: Annotated[str, typer.Argument(autocompletion=completion.variants, help="A variant.")],
    other: Annotated[
        str, typer.Argument(autocompletion=completion.variants, help="The variant to compare it with.")
    ] = "softmax",
    json: Json = False,
    **filters: Any,
) -> None:
    """Compare two variants in words and intervals, task by task."""
    from dataclasses import asdict

    from ...dashboards.escape import visible
    from .. import api
    from ..core.errors import SelectionError
    from ..core.spec import parse_selection

    names = parse_selection(one)
    if len(names) == 2:
        raise SelectionError(f"expected one variant, got {one!r}; write `attnbench compare {names[0]} {names[1]}`")
    found = api.compare(one, other, notice=warn, **filters)
    if json:
        say_json([asdict(comparison) for comparison in found], indent=1)
        return
    if len(found) > MOST_IN_FULL:
        # what was trained before what was timed alone
        for comparison in sorted(found, key=lambda each: each.verdict is None):
            say(visible(comparison.sentences[0]))
        say("\n`--task TASK` adds power, cost and data.")
        return
    for at, comparison in enumerate(found):
        key = comparison.board_key
        if at:
            say()
        say_comparison(comparison)
        machine = f"; speeds of machine {key.machine}" if key.machine else ""
        # what is only timed has no checkpoints
        chosen = f"; checkpoints chosen by {key.selection}" if comparison.verdict is not None else ""
        say(visible(f"  Data: {key.fidelity}{chosen}{machine}."))


def say_comparison(comparison: Comparison) -> None:
    """The sentences of a comparison, the answer first."""
    from ...dashboards.escape import visible

    first, *others = comparison.sentences
    say(visible(first))
    for sentence in others:
        say(f"  {visible(sentence)}")


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
    from .. import api

    if length is None:
        results = filters.pop("results")
        # a margin is no filter
        filters.pop("margin")
        _say_lengths(api.lengths_to_choose_at(results, notice=warn, **filters), mode.value, results)
        return
    board = api.choose(length, mode=mode.value, memory=memory, notice=warn, **filters)
    show([board], format, all_notes=notes, columns=columns, command="choose")


def _say_lengths(timed: Mapping[CostMode, Sequence[int]], asked: CostMode, results: Path) -> None:
    """Prints the lengths that `choose` can answer for, and a command that asks for one of them."""
    from ..board.length_columns import MODES
    from ..wings.choose.choose_board import command_for_times

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
