"""Headline: the answer of a board in one or two sentences, as far as the Records give one.

It stands above the rows. A reader of a board acts on it first, so it says what cannot be told, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ..core.cell import REFERENCE
from ..core.metrics import Metric
from ..score.contrasts import Contrast
from ..stats.format import listed
from ..stats.scoring import Verdict
from .board import Row


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
    return f"Nothing is ranked, mostly: {commonest}. The other rows have reasons of their own."


def quality_headline(
    verdicts: Mapping[str, Verdict],
    within: str,
    *,
    average: bool = False,
    behind: Mapping[str, str] = MappingProxyType({}),
    missed: str = "",
) -> str:
    """Who is better and worse than the reference, and of whom that cannot be told; empty for no verdicts.

    `within`: the margin in words. `average`: whether the verdicts are on a mean over tasks. `behind`: who is worse, be
    it by more than the margin or not, and by how much. `missed`: which gaps this board would miss, in words.

    >>> quality_headline({"rela": "better", "linear": "worse", "local": "undecided"}, "1 point", missed="5 points")
    'Better than softmax: rela. Worse than softmax by more than 1 point: linear. Undecided (gaps below 5 points would \
be missed): local.'
    >>> quality_headline({"rela": "undecided", "local": "undecided"}, "1 point", missed="5 points")
    'No variant differs measurably from softmax (gaps below 5 points would be missed).'
    >>> quality_headline({"rela": "undecided", "local": "undecided"}, "1 point", behind={"local": "by 0.1 to 3 points"})
    'Worse than softmax: local (by 0.1 to 3 points). Undecided: rela.'
    """
    groups: dict[str, list[str]] = {"better": [], "within margin": [], "worse": [], "behind": [], "undecided": []}
    for name, found in verdicts.items():
        if found == "undecided" and name in behind:
            groups["behind"].append(f"{name} ({behind[name]})")
        else:
            groups[found].append(name)
    of = f"the average of {REFERENCE}" if average else REFERENCE
    gaps = f" (gaps below {missed} would be missed)" if missed else ""
    if verdicts and len(groups["undecided"]) == len(verdicts):
        who = "No variant differs" if len(verdicts) > 1 else f"{groups['undecided'][0]} does not differ"
        return f"{who} measurably from {of}{gaps}."
    words = {
        "better": f"Better than {of}",
        "within margin": f"At most {within} worse than {of}",
        "worse": f"Worse than {of} by more than {within}",
        "behind": f"Worse than {of}",
        "undecided": f"Undecided{gaps}",
    }
    return " ".join(f"{words[found]}: {', '.join(names)}." for found, names in groups.items() if names)


def describe_gaps(undecided: Iterable[Contrast], metric: Metric) -> str:
    """The differences that a board would miss, from the smallest to the largest of these variants, in words."""
    effects = sorted(gap.minimal_detectable_effect() for gap in undecided if gap.has_enough_seeds)
    if not effects:
        return ""
    least, most = metric.value(effects[0]), metric.value(effects[-1])
    return f"{least if least == most else f'{least} to {most}'} {metric.of_difference}"


def describe_losses(contrasts: Mapping[str, Contrast], metric: Metric) -> dict[str, str]:
    """By how much each variant that is worse than the reference is worse, or that more of its trainings fail."""
    return {
        name: f"by {metric.value(-gap.interval.high)} to {metric.value(-gap.interval.low)} {metric.of_difference}"
        if gap.interval.high < 0
        else "more of its trainings fail"
        for name, gap in contrasts.items()
        if gap.is_behind
    }


def where_better(by_task: Mapping[str, Sequence[str]]) -> str:
    """Who is better than the reference on which tasks of a suite.

    >>> where_better({"copy": ["rela", "entmax15"], "max": []})
    'Better than softmax on copy: rela, entmax15. On max no variant is better.'
    """
    winners = [f"Better than {REFERENCE} on {task}: {', '.join(names)}." for task, names in by_task.items() if names]
    others = [task for task, names in by_task.items() if not names]
    if winners and others:
        winners.append(f"On {listed(others)} no variant is better.")
    return " ".join(winners)


def cost_headline(faster: Mapping[str, bool | None], fastest: str = "") -> str:
    """Who is faster and slower than the reference; None: that cannot be told. `fastest`: first in rank, in words.

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
