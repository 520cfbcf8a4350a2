"""AuditReport: what an audit found about a foreign attention, a line each, and the ten lines that show each failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...gate.result import Result, summary, told_at

MUST_BE_DECIDED = ("future", "gradients")
"""Findings that a true report has tried; what padding means is asked about where it is not found out."""

IN_THE_GATE = {
    "future": "causal", "padding": "padding content", "amount of padding": "padding length", "batch":
    "batch independence", "empty rows": "masked rows", "packed rows": "packed sequences", "gradients": "gradient",
    "evaluation": "deterministic", "large inputs": "finite", "prefix": "prefix consistency", "inputs stay":
    "no side effects", "nothing remembered": "no state", "storage": "layout", "dropout": "dropout in training only",
    "decoding": "decode", "compile": "compiled",
}  # fmt: skip
"""The names that properties of the gate have which promise the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """All findings about one subject. True where nothing fails, and what must be decided is.

    findings: sizes are mostly standard deviations of the output. convention: how the subject was
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
    def properties_broken(self) -> tuple[str, ...]:
        """The names of the failures, as the gate has them."""
        return tuple(IN_THE_GATE.get(each.property, each.property) for each in self.failures)

    @property
    def verdict(self) -> str:
        """The last line: what fails, how many hold, and what was not tried."""
        return summary(self.findings)

    @property
    def tried_all(self) -> bool:
        """Nothing is left that was not tried or decided."""
        return bool(self) and all(each.verdict != "not tried" for each in self.findings)

    def __bool__(self) -> bool:
        untried = any(each.verdict == "not tried" and each.property in MUST_BE_DECIDED for each in self.findings)
        unclear = any(each.verdict in ("fails", "asks") for each in self.findings)
        return not (self.question or untried or unclear)

    def __str__(self) -> str:
        told = [each for each in sorted(self.findings, key=told_at) if each.verdict not in ("n.a.", "not tried")]
        fine = ", ".join(each.property for each in told if not each.detail)
        lines = [in_words(each) for each in told if each.detail] + ([f"ok: {fine}"] if fine else [])
        return self.question or "\n".join(lines)

    def reproduction(self, name: str) -> Sequence[str]:
        """A program of plain torch that prints the size of the failure `name`."""
        found = next(each for each in self.failures if each.property == name)
        return "import torch", *self.building, *found.program


def in_words(finding: Result) -> str:
    """Such as `future: by design, leak at distance 1`."""
    by_design = "by design, " if finding.verdict == "by design" else ""
    return f"{finding.property}: {by_design}{finding.detail}"
