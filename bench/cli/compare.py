"""`attnbench compare`: two variants side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .command import command
from .options import FILTERS, Json, complete_variants, sharing
from .output import say, say_json, warn

if TYPE_CHECKING:
    from ..board.compare import Comparison

MOST_IN_FULL = 3
"""Boards whose comparisons are printed in full; of more, each has its first sentence."""


@command("Read", "attnbench compare rela linear")
@sharing(FILTERS)
def compare(
    one: Annotated[str, typer.Argument(autocompletion=complete_variants, help="A variant.")],
    other: Annotated[
        str, typer.Argument(autocompletion=complete_variants, help="The variant to compare it with.")
    ] = "softmax",
    json: Json = False,
    **filters: Any,
) -> None:
    """Compare two variants in words and intervals, task by task."""
    from dataclasses import asdict

    from ...dashboards.escape import visible
    from ..api import pages as api
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
