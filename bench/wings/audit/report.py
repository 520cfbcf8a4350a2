"""AuditReport: what an audit found about a foreign attention, as one line, and the ten lines that show each finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "fails", "by design", "question", "note", "n.a."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One property. size: the largest movement over the output's standard deviation; NaN where none was measured.

    text: the finding in words, after the name. program: lines of plain torch that print `size`, after the subject is
    built; empty where nothing failed.
    """

    name: str
    verdict: Verdict
    size: float = float("nan")
    text: str = ""
    program: tuple[str, ...] = ()

    def __str__(self) -> str:
        by_design = "by design, " if self.verdict == "by design" else ""
        return f"{self.name}: {by_design}{self.text or self.verdict}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """All findings about one subject. True where nothing fails.

    convention: how it was called. question: what the audit must be told before it can judge; then no finding.
    building: lines of plain torch that make the module `m`.
    """

    target: str
    convention: str = ""
    findings: tuple[Finding, ...] = ()
    question: str = ""
    building: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.verdict == "fails")

    @property
    def verdict(self) -> str:
        """The findings that decide, such as `fails: future; not decided: padding`."""
        unclear = ", ".join(each.name for each in self.findings if each.verdict == "question")
        failed = ", ".join(each.name for each in self.failures)
        return (f"fails: {failed}" if failed else "nothing fails") + (f"; not decided: {unclear}" if unclear else "")

    def __bool__(self) -> bool:
        return not self.question and all(each.verdict not in ("fails", "question") for each in self.findings)

    def __str__(self) -> str:
        return self.question or " · ".join(str(each) for each in self.findings if each.verdict != "n.a.")

    def reproduction(self, name: str) -> Sequence[str]:
        """A program of plain torch that prints the size of the failure `name`."""
        found = next(each for each in self.failures if each.name == name)
        return "import torch", *self.building, *found.program
