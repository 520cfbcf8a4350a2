"""AuditReport: what an audit found about a foreign attention, as one line, and the ten lines that show each failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...gate.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """All findings about one subject. True where nothing fails.

    findings: sizes are the largest movement over the output's standard deviation. convention: how the subject was
    called. question: what the audit must be told before it can judge; then no finding. building: lines of plain torch
    that make the module `m`.
    """

    target: str
    convention: str = ""
    findings: tuple[Result, ...] = ()
    question: str = ""
    building: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def failures(self) -> tuple[Result, ...]:
        return tuple(each for each in self.findings if each.verdict == "fails")

    @property
    def verdict(self) -> str:
        """The findings that decide, such as `fails: future; not decided: padding`."""
        unclear = ", ".join(each.property for each in self.findings if each.verdict == "asks")
        failed = ", ".join(each.property for each in self.failures)
        return (f"fails: {failed}" if failed else "nothing fails") + (f"; not decided: {unclear}" if unclear else "")

    def __bool__(self) -> bool:
        return not self.question and all(each.verdict not in ("fails", "asks") for each in self.findings)

    def __str__(self) -> str:
        return self.question or " · ".join(in_words(each) for each in self.findings if each.verdict != "n.a.")

    def reproduction(self, name: str) -> Sequence[str]:
        """A program of plain torch that prints the size of the failure `name`."""
        found = next(each for each in self.failures if each.property == name)
        return "import torch", *self.building, *found.program


def in_words(finding: Result) -> str:
    """Such as `future: ok` or `future: by design, leak at distance 1`."""
    by_design = "by design, " if finding.verdict == "by design" else ""
    return f"{finding.property}: {by_design}{finding.detail or 'ok'}"


def raised(error: Exception, length: int = 80) -> str:
    """The kind of an error, and the begin of its message in one line."""
    return f"raises {type(error).__name__}: {' '.join(str(error).split())[:length]}"
