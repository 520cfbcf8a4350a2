"""`attnbench compare` and `choose`: two variants against each other, or the one to take."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .leaderboard import show
from .options import FILTERS, Format, Json, Mode, Notes, ShownAs, sharing
from .output import say, say_json, warn


@sharing(FILTERS)
def compare(
    one: Annotated[str, typer.Argument(help="A variant.")],
    other: Annotated[str, typer.Argument(help="The variant to compare it with.")] = "softmax",
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
    for at, comparison in enumerate(found):
        key = comparison.board_key
        first, *others = comparison.sentences
        say(("\n" if at else "") + visible(first))
        for sentence in others:
            say(f"  {visible(sentence)}")
        machine = f"; speeds of machine {key.machine}" if key.machine else ""
        say(visible(f"  Data: {key.fidelity}; checkpoints chosen by {key.selection}{machine}."))


@sharing(FILTERS)
def choose(
    length: Annotated[str, typer.Option(help="Tokens per sequence, such as 16k.")],
    mode: Annotated[Mode, typer.Option(help="Operation whose time counts.")] = Mode.STEP,
    memory: Annotated[
        str | None, typer.Option(help="Memory limit of a training step, or of decoding one sequence, such as 40GB.")
    ] = None,
    notes: Notes = False,
    format: ShownAs = Format.RICH,
    **filters: Any,
) -> None:
    """List the variants that fit a length, a memory limit and a margin of quality, by cost; say why others do not."""
    from .. import api

    board = api.choose(length, mode=mode.value, memory=memory, notice=warn, **filters)
    show([board], format, all_notes=notes, command="choose")
