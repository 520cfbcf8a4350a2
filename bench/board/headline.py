"""Headline: the answer of a board in one or two sentences, as far as the Records give one.

It stands above the rows. A reader of a board acts on it first, so it says what cannot be told, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ..core.cell import REFERENCE
from ..stats.scoring import Verdict
from .board import Row
from .notes import some


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
    verdicts: Mapping[str, Verdict], within: str, *, average: bool = False, behind: Collection[str] = ()
) -> str:
    """Who is better and worse than the reference, and of whom that cannot be told; empty for no verdicts.

    `within`: the margin in words. `average`: whether the verdicts are on a mean over tasks. `behind`: who is worse, be
    it by more than the margin or not.

    >>> quality_headline({"rela": "better", "linear": "worse", "local": "undecided"}, "1 point")
    'Better than softmax: rela. Worse than softmax by more than 1 point: linear. Undecided: local.'
    >>> quality_headline({"rela": "undecided", "local": "undecided"}, "1 point")
    'None of the 2 variants can be told from softmax.'
    >>> quality_headline({"rela": "undecided", "local": "undecided"}, "1 point", behind=["local"])
    'Worse than softmax, perhaps by less than 1 point: local. Undecided: rela.'
    """
    groups: dict[str, list[str]] = {"better": [], "within margin": [], "worse": [], "behind": [], "undecided": []}
    for name, found in verdicts.items():
        groups["behind" if found == "undecided" and name in behind else found].append(name)
    of = f"the average of {REFERENCE}" if average else REFERENCE
    if verdicts and len(groups["undecided"]) == len(verdicts):
        return (
            f"None of the {len(verdicts)} variants can be told from {of}."
            if len(verdicts) > 1
            else f"{some(groups['undecided'])} cannot be told from {of}."
        )
    words = {
        "better": f"Better than {of}",
        "within margin": f"At most {within} worse than {of}",
        "worse": f"Worse than {of} by more than {within}",
        "behind": f"Worse than {of}, perhaps by less than {within}",
        "undecided": "Undecided",
    }
    return " ".join(f"{words[found]}: {some(names)}." for found, names in groups.items() if names)


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
    return " ".join([*said, *(f"{words[found]}: {some(names)}." for found, names in groups.items() if names)])
