"""`attnbench.choose`: the variants that meet a length, a memory and a quality, from Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ...api.boards import answered
from ...core.log import LOG, Notice
from ...core.paths import RESULTS
from ...core.spec import bytes_of
from ...store.records import Records

if TYPE_CHECKING:
    from ...board.board import Board
    from ...score.cost import Mode
    from ...score.key import Filters


def choose(
    length: int | str,
    results: str | Path | Records = RESULTS,
    *,
    mode: Mode = "step",
    memory: str | int | None = None,
    margin: float | None = None,
    notice: Notice = LOG.warning,
    **filters: Unpack[Filters],
) -> Board:
    """The variants that fit a length, a memory and a loss of quality, by cost; the others with the reason.

    length: tokens, or text such as `16k`, which is 16,384. memory: bytes, or text such as `40GB`, that a training step,
    or decoding one sequence, may hold. Raises SelectionError where nothing was timed at that length.
    """
    from ...score.key import board_keys
    from .choose_board import Requirements, board_for_choice, tokens_of

    limit = None if memory is None else bytes_of(str(memory))
    # a machine is asked for its speeds; quality may come from any
    table, predictions, keys = answered(results, notice, {**filters, "machine": None})
    every = board_keys(table, fidelity=filters.get("fidelity"), machine=filters.get("machine"))
    wanted = Requirements(length=tokens_of(length), mode=mode, memory_bytes=limit, margin=margin)
    return board_for_choice(table, keys, wanted, predictions, every, predictions.store.root)


def lengths_to_choose_at(
    results: str | Path | Records = RESULTS, *, notice: Notice = LOG.warning, **filters: Unpack[Filters]
) -> dict[Mode, list[int]]:
    """The lengths that `choose` can answer for, by mode; empty where nothing was timed."""
    from ...score.key import board_keys
    from .choose_board import lengths_timed

    table, _, _ = answered(results, notice, {**filters, "machine": None})
    return lengths_timed(table, board_keys(table, fidelity=filters.get("fidelity"), machine=filters.get("machine")))
