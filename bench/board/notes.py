"""Notes: the sentences below boards of tasks, suites and lengths, in one table of topics; and the headline above.

A board shows its first six notes and has the others ready, so the table is in order of priority. A kind of board with a
sentence of its own makes the `Note` where the sentence belongs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ..core.cell import NO_ATTENTION, REFERENCE
from ..core.metrics import Metric
from ..score.contrasts import Contrast
from ..stats.format import listed
from ..stats.intervals import LEVEL
from ..stats.scoring import CAP, Verdict
from .board import Note, NoteKind, Row

NAMED = 4
"""The most names that a sentence lists; of more, it gives the number of the rest."""


class Topic(NamedTuple):
    """The word before a note, its kind, and its sentence as a template of `str.format`."""

    title: str
    kind: NoteKind
    template: str


# the order is the priority
TOPICS: dict[str, Topic] = {
    "takeover": Topic("taken over", "fact", "a later set of Records counts in place of an earlier one: {names}"),
    "reduced": Topic("reduced", "fact", "not the whole published task: {what}"),
    "learned": Topic(
        "learned", "warning",
        "not every seed learned: {learned}; values are means of the seeds that learned, of all where none did",
    ),
    "unsettled": Topic(
        "not settled", "warning",
        "validation still improved at the end of training: {names}; no variant is called worse for such a result",
    ),
    "denied": Topic(
        "undecided", "fact",
        "{names}: the interval is clear of zero, but the mean over all seeds, or how many trainings learned, says the "
        "opposite",
    ),
    "in_doubt": Topic(
        "undecided", "fact",
        "{names}: fewer than {least} seeds, below halfway to a perfect score, so that all of them may have failed",
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
    "uneven": Topic(
        "uneven", "warning",
        "some calls cost far more than others, so that the mean of all calls is longer than what is compared: {names}",
    ),
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


def nothing_ranked(unranked: Sequence[Row]) -> str:
    """Why nothing is ranked: the reason that most rows share, and whether others have their own.

    >>> nothing_ranked([Row(name="rela", entries=(), reason="fewer than 3 seeds")])
    'Nothing is ranked: fewer than 3 seeds.'
    """
    reasons = Counter(row.reason for row in unranked if row.reason)
    if not reasons:
        return ""
    (commonest, rows), others = reasons.most_common(1)[0], len(reasons) - 1
    if not others:
        return f"Nothing is ranked: {commonest}."
    if rows == 1:
        return "Nothing is ranked; the reasons differ."
    return f"Nothing is ranked. The commonest reason: {commonest}. Other rows have reasons of their own."


def quality_headline(
    verdicts: Mapping[str, Verdict],
    within: str,
    *,
    average: bool = False,
    behind: Mapping[str, str] = MappingProxyType({}),
    missed: str = "",
    unsettled: Collection[str] = (),
    unestablished: Collection[str] = (),
    remarks: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The variants that are better and worse than the reference, or undecided; empty for no verdicts.

    `within`: the margin in words. `average`: whether the verdicts are on a mean over tasks. `behind`: who is worse, be
    it by more than the margin or not, and by how much. `missed`: which gaps this board would miss, in words.
    `unsettled`: who was still improving at the end of training; `unestablished`: who has no place and no verdict, since
    its implementation is not established. `remarks`: what limits the verdict on a variant, in words.

    >>> quality_headline({"rela": "better", "linear": "worse", "local": "undecided"}, "1 point", missed="5 points")
    'Better than softmax: rela. Worse than softmax by more than 1 point: linear. Undecided (gaps below 5 points would \
be missed): local.'
    >>> quality_headline({"rela": "undecided", "local": "undecided"}, "1 point", missed="5 points")
    'No variant differs measurably from softmax (gaps below 5 points would be missed).'
    >>> quality_headline({"rela": "undecided", "local": "undecided"}, "1 point", behind={"local": "by 0.1 to 3 points"})
    'Worse than softmax: local (by 0.1 to 3 points). Undecided: rela.'
    >>> quality_headline({"rela": "undecided"}, "1 point", unsettled=["rela"], unestablished=["fox"])
    'Not settled: rela. Not established: fox.'
    >>> quality_headline({"rela": "better"}, "1 point", average=True, remarks={"rela": "by copy alone"})
    'Better than the average of softmax: rela (by copy alone).'
    """
    kinds = ("better", "within margin", "worse", "behind", "undecided", "unsettled")
    groups: dict[str, list[str]] = {kind: [] for kind in kinds}
    for name, found in verdicts.items():
        if found == "undecided" and name in behind:
            groups["behind"].append(f"{name} ({behind[name]})")
        elif found == "undecided" and name in unsettled:
            groups["unsettled"].append(name)
        else:
            remark = f" ({remarks[name]})" if found in ("better", "worse") and name in remarks else ""
            groups[found].append(name + remark)
    of = f"the average of {REFERENCE}" if average else REFERENCE
    gaps = f" (gaps below {missed} would be missed)" if missed else ""
    said = []
    if verdicts and len(groups["undecided"]) == len(verdicts):
        who = "No variant differs" if len(verdicts) > 1 else f"{groups['undecided'][0]} does not differ"
        said = [f"{who} measurably from {of}{gaps}."]
        groups["undecided"] = []
    groups["unestablished"] = sorted(unestablished)
    words = {
        "better": f"Better than {of}",
        "within margin": f"At most {within} worse than {of}",
        "worse": f"Worse than {of} by more than {within}",
        "behind": f"Worse than {of}",
        "undecided": f"Undecided{gaps}",
        "unsettled": "Not settled",
        "unestablished": "Not established",
    }
    return " ".join([*said, *(f"{words[found]}: {', '.join(names)}." for found, names in groups.items() if names)])


MORE_PARAMETERS = 0.1
"""The share of added parameters from which on a headline and a mark name them."""


def describe_size(name: str, more: float, verdicts: Mapping[str, Verdict]) -> list[str]:
    """The parameters that a variant has more than the reference, and what is left of its lead at equal parameters.

    >>> describe_size("gate+softmax", 0.15, {"gate+softmax": "better", "matched+gate+softmax": "undecided"})
    ['with 15 % more parameters', 'undecided at equal parameters']
    """
    found = [f"with {100 * more:.0f} % more parameters"] if more > MORE_PARAMETERS else []
    matched = verdicts.get(f"matched+{name}")
    return [*found, *([f"{matched} at equal parameters"] if matched else [])]


def describe_tasks(average: Contrast, without: Mapping[str, Contrast]) -> list[str]:
    """The tasks that an order on average needs; `without`: by task, the mean over all others."""
    proven = average.direction(average.pairs)
    needed = [task for task, rest in without.items() if proven and rest.direction(rest.pairs) != proven]
    return [f"by {needed[0]} alone" if len(needed) == 1 else f"not without {' or '.join(needed)}"] if needed else []


def left_out(unlearned: Sequence[str], averaged: Sequence[str]) -> str:
    """
    >>> left_out(["lra-pathfinder"], ["lra-text", "lra-image"])
    'softmax did not learn lra-pathfinder: the average is over the other 2 tasks.'
    """
    if not unlearned:
        return ""
    rest = f"the average is over the other {len(averaged)} tasks" if averaged else "there is no average"
    return f"{REFERENCE} did not learn {listed(sorted(unlearned))}: {rest}."


def describe_gaps(undecided: Iterable[Contrast], metric: Metric) -> str:
    """The differences that a board would miss, from the smallest to the largest of these variants, in words."""
    effects = sorted(gap.minimal_detectable_effect() for gap in undecided if gap.compares_means)
    if not effects:
        return ""
    least, most = metric.value(effects[0]), metric.value(effects[-1])
    return f"{least if least == most else f'{least} to {most}'} {metric.of_difference}"


def describe_losses(contrasts: Mapping[str, Contrast], metric: Metric) -> dict[str, str]:
    """The loss of each variant that is worse than the reference, in words, or that more of its trainings fail."""
    return {
        name: f"by {metric.value(-gap.interval.high)} to {metric.value(-gap.interval.low)} {metric.of_difference}"
        if gap.interval.high < 0
        else "more of its trainings fail"
        for name, gap in contrasts.items()
        if gap.is_behind
    }


def where_better(by_task: Mapping[str, Sequence[str]]) -> str:
    """The variants that are better than the reference on each task of a suite.

    >>> where_better({"copy": ["rela", "entmax15"], "max": []})
    'Better than softmax on copy: rela, entmax15. On max no variant is better.'
    """
    winners = [f"Better than {REFERENCE} on {task}: {', '.join(names)}." for task, names in by_task.items() if names]
    others = [task for task, names in by_task.items() if not names]
    if winners and others:
        winners.append(f"On {listed(others)} no variant is better.")
    return " ".join(winners)


def cost_headline(faster: Mapping[str, bool | None], fastest: str = "") -> str:
    """The variants that are faster and slower than the reference; None: undecided. `fastest`: first in rank, in words.

    >>> cost_headline({"linear": True, "rela": None, "topk": False}, "linear, 2.00× faster")
    'Fastest: linear, 2.00× faster. Slower than softmax: topk. Undecided: rela.'
    """
    groups: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for name, found in faster.items():
        groups[found].append(name)
    if not faster:
        return ""
    if len(groups[None]) == len(faster):
        return f"No variant can be told from {REFERENCE} by its time."
    words = {True: f"Faster than {REFERENCE}", False: f"Slower than {REFERENCE}", None: "Undecided"}
    if fastest and groups[True]:
        groups[True] = [name for name in groups[True] if not fastest.startswith(f"{name},")]
        said = [f"Fastest: {fastest}."]
        words[True] = "Also faster"
    else:
        said = []
    return " ".join([*said, *(f"{words[found]}: {', '.join(names)}." for found, names in groups.items() if names)])
