"""`attnbench.referee`: tasks with drawn parameters, trained after a variant was handed in, and its places there.

A published board can be tuned to: its tasks, sizes and seeds are known. What a secret draws when it is told cannot.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...api.boards import boards
from ...api.run import run
from ...core.cell import REFERENCE
from ...core.errors import LOG, SelectionError, StoreError
from ...core.files import RESULTS
from ...core.hashing import content_hash
from ...core.registry import VARIANTS
from ...core.spec import Names, Spec, specs_of
from ...plan.facts import resolve

if TYPE_CHECKING:
    from ...board.board import Board
    from ...run.events import RunListener

_FOLDER = "referee"
"""The folder of the Records, in a results folder: one below it for each secret."""

_SUITE = "synthetic"
"""The suite whose average makes the claims."""

_RIVALS = "linear,delta[decay=channel],window[size=16,sink=learned]"
_DRAWN, _SEEDS = 2, 3

_Verdict = Literal["holds", "turned", "mixed", "open", "no claim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The order of a variant and a rival: as claimed, and on each drawn task; 1 better, -1 worse, 0 not separated.

    None where a board has no rank for one of them.
    """

    rival: str
    claimed: int | None
    found: tuple[int | None, ...]

    @property
    def verdict(self) -> _Verdict:
        """True if the claim holds.

        >>> [Place(rival="a", claimed=1, found=one).verdict for one in ((1, 0), (0, -1), (1, -1), (0, None))]
        ['holds', 'turned', 'mixed', 'open']
        """
        if not self.claimed:
            return "no claim"
        agrees, differs = self.claimed in self.found, -self.claimed in self.found
        return "mixed" if agrees and differs else "holds" if agrees else "turned" if differs else "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefereeReport:
    """The drawn tasks with their boards, and the places of `variant` on them. `secret` draws the same again."""

    variant: str
    secret: str
    boards: tuple[Board, ...]
    places: tuple[Place, ...]

    @property
    def headline(self) -> str:
        """The number of places that hold, in a sentence."""
        counts = [(word, sum(place.verdict == word for place in self.places)) for word in ("turned", "mixed", "open")]
        claims = [place for place in self.places if place.verdict != "no claim"]
        if not claims:
            return f"{self.variant}: no claim to hold against {_DRAWN} drawn tasks"
        held = sum(place.verdict == "holds" for place in claims)
        rest = "".join(f", {count} {word}" for word, count in counts if count)
        return f"{self.variant}: {held} of {len(claims)} places hold{rest} (secret {self.secret})"


def drawn_tasks(secret: str) -> list[tuple[Spec, Spec]]:
    """Two tasks with their presets, a function of the secret alone.

    Kinds of tokens, numbers of stacks, shares and lengths are drawn. Sequences follow from a task's parameters and the
    seed, so that those of a secret are of no board.

    >>> drawn_tasks("a") == drawn_tasks("a") != drawn_tasks("b")
    True
    """
    draw = random.Random(content_hash(["referee", secret], 64))
    tasks = [
        Spec.of("recall", vocabulary=2 * draw.randint(60, 250)),
        Spec.of("stack", stacks=draw.randint(1, 3), values=draw.randint(8, 32)),
        Spec.of("flip-flop", ignored=draw.randint(60, 90) / 100),
        Spec.of("reverse", values=draw.randint(16, 64)),
    ]
    lengths = {"recall": 2 * draw.randint(40, 70), "reverse": draw.randint(10, 18)}
    found = draw.sample(tasks, _DRAWN)
    # the ordinary start, and the same steps for all
    return [(task, Spec.of("quick", length=lengths.get(task.name, 2 * draw.randint(26, 40)))) for task in found]


def referee(
    variant: Names,
    *,
    rivals: Names = _RIVALS,
    secret: str | None = None,
    claims: str | Path = RESULTS,
    results: str | Path = RESULTS,
    seeds: int = _SEEDS,
    device: str | None = None,
    threads: int = 0,
    jobs: int | None = None,
    progress: RunListener | None = None,
) -> RefereeReport:
    """Train a variant, softmax and some rivals on two tasks that a secret draws, and compare the order with the claims.

    secret: None draws one. claims: the results folder whose average over the suite `synthetic` says who is better.
    seeds: at least 3, the least that rank. The Records lie in `results`, in the folder `referee` and one below it that
    is named after the secret. Raises as `run`, and SelectionError for several variants or fewer seeds.

    >>> print(attnbench.referee("entmax15").headline)                                              # doctest: +SKIP
    """
    named = specs_of(variant)
    if len(named) != 1 or seeds < _SEEDS:
        raise SelectionError(f"expected one variant and at least {_SEEDS} seeds, got {len(named)} and {seeds}")
    one = resolve(VARIANTS, named[0])
    beside = [Spec(REFERENCE), *(resolve(VARIANTS, each) for each in specs_of(rivals))]
    others = [each for each in dict.fromkeys(beside) if each != one]
    secret = secret or secrets.token_hex(8)
    notice = progress.notice if progress else LOG.warning
    claimed = _claims(Path(claims))
    folder = Path(results) / _FOLDER / content_hash(secret, 12)
    found: list[Board] = []
    for task, preset in drawn_tasks(secret):
        notice(f"secret {secret}: {task}, {preset}")
        records = run(
            [one, *others], [task], preset=preset, seeds=seeds, lanes="baseline,train", results=folder, device=device,
            threads=threads, jobs=jobs, progress=progress,
        )  # fmt: skip
        found += boards(records, notice=notice)
    places = tuple(
        Place(
            rival=str(other),
            claimed=None if claimed is None else order_of(claimed, str(one), str(other)),
            found=tuple(order_of(board, str(one), str(other)) for board in found),
        )
        for other in others
    )
    return RefereeReport(variant=str(one), secret=secret, boards=tuple(found), places=places)


def _claims(folder: Path) -> Board | None:
    try:
        return boards(folder, suite=_SUITE)[0]
    except (SelectionError, StoreError):
        return None


def order_of(board: Board, one: str, other: str) -> int | None:
    """1 where `one` is shown to be better on the board, -1 where `other` is, 0 where their ranks overlap."""
    ranks: dict[str, Sequence[int]] = {
        row.name: (row.first, row.last) for row in board.ranked if row.first is not None and row.last is not None
    }
    if one not in ranks or other not in ranks:
        return None
    return int(ranks[one][1] < ranks[other][0]) - int(ranks[other][1] < ranks[one][0])
