"""Result: what a property says of a subject; and the answers of its test, of which the worst decides."""

from __future__ import annotations

import builtins
import math
import traceback
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..core.decode import brief

Verdict = Literal["holds", "fails", "n.a.", "not tried", "note", "asks", "by design"]
"""The last four are of modules that promise nothing by themselves: something that might be wrong and was not tried,
something worth knowing, a question to the author, and a failure that the author means."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement: the property holds where `value` is at most `allowed`.

    program: lines of plain torch that show it, where the subject can be built without attnbench.
    """

    value: float
    allowed: float
    detail: str = ""
    program: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NotJudged:
    """The reason why a test neither holds nor fails; `found`: what was measured all the same."""

    reason: str
    found: Measured = Measured(math.nan, math.nan)
    verdict: Literal["n.a.", "not tried", "note", "asks"] = "n.a."


def deviations(size: float) -> str:
    """A size of two digits with its unit, without an exponent where it is large: 2,300 standard deviations."""
    digits = f"{float(f'{size:.2g}'):,.0f}" if 10 <= size < 1e9 else f"{size:.2g}"
    return f"{digits} standard deviations" if math.isfinite(size) else "an infinite amount"


Answer = Measured | NotJudged
Answers = Iterator[Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One property of one subject. `detail` says where it fails, or why there is no verdict."""

    property: str
    verdict: Verdict
    measured: float = math.nan
    allowed: float = math.nan
    detail: str = ""
    program: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, answer: Answer, cause: str = "") -> Result:
        """`cause`: what is mostly wrong where this property fails."""
        if isinstance(answer, NotJudged):
            found = answer.found
            return cls(property=name, verdict=answer.verdict, measured=found.value, detail=answer.reason)
        value, allowed, detail, program = answer.value, answer.allowed, answer.detail, answer.program
        # `<=` and not `>`, so that a value that is no number fails
        if value <= allowed:
            return cls(property=name, verdict="holds", measured=value, allowed=allowed, detail=detail)
        if cause and not detail.startswith("raised "):
            detail += f"; usual cause: {cause}"
        return cls(property=name, verdict="fails", measured=value, allowed=allowed, detail=detail, program=program)

    @builtins.property
    def held(self) -> bool | None:
        """None where there is no verdict."""
        return {"holds": True, "fails": False}.get(self.verdict)

    @builtins.property
    def severity(self) -> tuple[float, float]:
        """Failed above asked above held above not tried and not judged; then by how much of the allowance is used."""
        if self.held is None:
            return ({"asks": 2, "by design": 2, "not tried": 0.5}.get(self.verdict, 0), 0.0)
        return (3 if not self.held else 1, self.measured / self.allowed if self.allowed else self.measured)


def worst(answers: Iterable[Answer]) -> Answer:
    """The measurement that exceeds its allowance most; a refusal where nothing was measured."""

    def excess(answer: Answer) -> tuple[bool, float]:
        applies = isinstance(answer, Measured)
        found = answer if isinstance(answer, Measured) else answer.found
        if math.isnan(found.value):
            # a measured value that is no number is infinitely far
            return applies, math.inf if applies else 0.0
        return applies, found.value / found.allowed if found.allowed else (math.inf if found.value else 0.0)

    # The worst and not the mean: a promise is broken if it is broken once.
    return max(answers, key=excess, default=NotJudged("no setting applies"))


class ErrorElsewhere(Exception):
    """An error of code in another process. parts: of its text."""

    def __init__(self, parts: tuple[str, str, str]):
        super().__init__(parts[1])
        self.parts = parts


def error_text(error: Exception, length: int = 200) -> str:
    """The kind of an error, the begin of its message, and the innermost line outside PyTorch that raised it."""
    kind, message, line = error_parts(error)
    return f"{kind}: {brief(message, length)}{f' ({line})' if line else ''}"


def error_parts(error: Exception) -> tuple[str, str, str]:
    """The three parts of its text; the line in words, or empty."""
    if isinstance(error, ErrorElsewhere):
        return error.parts
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if "torch" not in Path(frame.filename).parts][-1]
    # an assertion of others often has no text but its line
    message = " ".join((str(error).partition("\n")[0] or str(outside.line)).split())
    # the text of a call is no file
    line = f"line {outside.lineno} of {Path(outside.filename).name}" if outside.filename != "call" else ""
    return type(error).__name__, message, line


def lacks_kernel(error: Exception) -> bool:
    """True if PyTorch has no kernel for a precision on this device, which is no fault of the code that asks for it."""
    named = isinstance(error, NotImplementedError) or error_parts(error)[0] == NotImplementedError.__name__
    # the last is of FFTs, which say it in their own words
    return named or any(words in str(error) for words in ("not implemented for '", "Unsupported dtype "))


def as_meant(results: Iterable[Result], by_design: Collection[str]) -> list[Result]:
    """The results, where failures and questions of the properties that are named are by design."""
    return [
        replace(each, verdict="by design") if each.property in by_design and each.verdict in ("fails", "asks") else each
        for each in results
    ]


_OF_CALLS = {"empty batch", "inputs stay", "no side effects", "nothing remembered", "no state", "storage", "layout"}
"""Properties of calls and not of attention, as audit and gate name them: a reader wants them last."""


def told_at(result: Result) -> tuple[int, bool]:
    """The place of a result in a report: what fails, what asks, what is by design, notes, and then all else."""
    before = ("fails", "asks", "by design", "note", result.verdict)
    return before.index(result.verdict), result.property in _OF_CALLS


def summary(results: Iterable[Result]) -> str:
    """Three parts: what fails, how many hold, and what was not tried, each reason once; questions stand behind."""
    found = sorted(results, key=told_at)
    failed = ", ".join(each.property for each in found if each.verdict == "fails")
    asked = ", ".join(each.property for each in found if each.verdict == "asks")
    untried: dict[str, list[str]] = {}
    for each in found:
        if each.verdict == "not tried":
            untried.setdefault(each.detail, []).append(each.property)
    reasons = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in untried.items())
    parts = [f"fails: {failed or 'nothing'}", f"holds: {sum(each.verdict == 'holds' for each in found)}"]
    parts += [f"not decided: {asked}"] if asked else []
    return " · ".join((*parts, f"not tried: {reasons or 'nothing'}"))
