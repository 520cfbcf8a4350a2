"""Notes: the sentences that stand below boards of tasks, suites and lengths, in one table of topics.

A board shows its first six notes and has the others ready, so the table is in order of priority. A kind of board with a
sentence of its own makes the `Note` where the sentence belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core.cell import NO_ATTENTION, REFERENCE
from ..stats.intervals import LEVEL
from ..stats.scoring import CAP
from .board import Note, NoteKind

NAMED = 4
"""So many names a sentence lists; of more, it gives the number of the rest."""


class Topic(NamedTuple):
    """The word before a note, its kind, and its sentence as a template of `str.format`."""

    title: str
    kind: NoteKind
    template: str


# the order is the priority
TOPICS: dict[str, Topic] = {
    "reduced": Topic("reduced", "fact", "not the whole published task: {what}"),
    "learned": Topic(
        "learned", "warning",
        "not every seed learned: {learned}; values are means of the seeds that learned, of all where none did",
    ),
    "denied": Topic(
        "undecided", "fact",
        "{names}: the interval is clear of zero, but the mean over all seeds, or how many trainings learned, says the "
        "opposite",
    ),
    # versions and repetitions
    "stale": Topic(
        "version", "warning", "{some} of {all} Records are of {version}; now {now}: run the same command again"
    ),
    "behind": Topic("version", "fact", "{count} without a Record of the version shown; {what}"),
    # this board's error rate
    "error": Topic("error rate", "fact", "of simulated boards ({like}), {errors}"),
    "shares": Topic("shares", "fact", "a significant difference in how many trainings learned: {which}"),
    "machines": Topic("machines", "fact", "quality was measured on {machines}"),
    "repeated": Topic("repeated", "fact", "{what}, such as {example}"),
    # what ran
    "code": Topic("code", "fact", "{code}"),
    "unlike": Topic("unlike others", "fact", "{what}"),
    "power": Topic(
        "power", "fact", "differences {of} below {span} would be missed in more than 1 of 5 repetitions"
    ),
    "selection": Topic(
        "selection", "warning", "the test split chose the checkpoints, as in Long Range Arena: results are optimistic"
    ),
    # speeds
    "aa": Topic("A/A test", "warning", "{what}: trust no difference in time of that size"),
    "disturbed": Topic("{cause}", "warning", "{what}"),
    "floor": Topic(
        "A/A test", "fact", "differences in time below {floor} are ties (≈), without rank or crossover{control}"
    ),
    "harness": Topic("harness", "fact", "Records by the hash of the code that made them: {made}"),
    # scores
    "signature": Topic("score", "method", "{signatures}"),
    "uncounted": Topic("seeds", "fact", "{name}: {seeds} ignored, since a smaller seed is missing (they count from 0)"),
    "gain": Topic("attention", "fact", "{reference} less {no_attention}: {gap} {unit}{remark}"),
    "baseline": Topic("baseline", "fact", "not better than {best}, by the values shown: {names}"),
    "data": Topic("data", "fact", "{data}"),
    # how the numbers were made
    "intervals": Topic("intervals", "method", "{over}"),
    "preset": Topic("preset", "method", "{setting}"),
    "ranks": Topic("rank", "method", "{percent} rank intervals, ties in alphabetical order; {corrected}"),
    "speed": Topic(
        "speed", "method",
        "{work}, {rounds} rounds interleaved with {reference}, on {machine}; brackets: {percent} t intervals over "
        "{unit}; out of memory, timeout and incorrect count as {cap:.0f} × {reference}",
    ),
    "not_counted": Topic("not counted", "method", "{count}: {reason}"),
    "column": Topic("{title}", "method", "{text}"),
}  # fmt: skip

_PRIORITIES = {name: at for at, name in enumerate(TOPICS)}
_KNOWN = {"reference": REFERENCE, "no_attention": NO_ATTENTION, "cap": CAP, "percent": f"{100 * LEVEL:.0f} %"}


def note(topic: str, *, kind: NoteKind | None = None, column: str = "", **fields: object) -> Note:
    """The note on that topic of `TOPICS`, with these fields in its template.

    `kind`: where it is not that of the topic; `column`: the one that it explains.

    >>> note("power", of="from softmax", span="2.1 points").text
    'differences from softmax below 2.1 points would be missed in more than 1 of 5 repetitions'
    """
    title, usual, template = TOPICS[topic]
    fields = _KNOWN | fields
    text = template.format(**fields)
    # what is a warning here alone comes before facts
    priority = _PRIORITIES["learned" if kind == "warning" else topic]
    return Note(topic=title.format(**fields), text=text, kind=kind or usual, priority=priority, column=column)


def some(names: Sequence[object], most: int = NAMED) -> str:
    """The names as a part of a sentence, of many the first.

    >>> some(["a", "b"]), some([0, 1, 2, 3, 4, 5])
    ('a, b', '0, 1, 2, 3 (+2 more)')
    """
    rest = f" (+{len(names) - most} more)" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + rest
