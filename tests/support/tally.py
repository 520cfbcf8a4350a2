"""How many torture cases a test tries, and the count of those that passed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from seeds import seed

Case = TypeVar("Case")


class Extent:
    """How many of the generated cases a test tries: a seeded sample, or all of them."""

    def __init__(self, all_cases: bool):
        self.all_cases = all_cases

    def of(self, cases: Sequence[Case], *, sample: int) -> list[Case]:
        """All `cases`, or `sample` of them drawn with the seed of the test run, in their order."""
        if self.all_cases or sample >= len(cases):
            return list(cases)
        chosen = random.Random(seed()).sample(range(len(cases)), sample)
        return [cases[index] for index in sorted(chosen)]


class Tally:
    """Cases of one kind: each is tried, and passes or is kept with what went wrong."""

    def __init__(self, kind: str):
        self.kind = kind
        self.tried = 0
        self.failures: list[str] = []

    def check(self, case: str, problem: str | None) -> None:
        """Counts one case; `problem`: what went wrong, or None."""
        self.tried += 1
        if problem:
            self.failures.append(f"{case}: {problem}")

    def verdict(self) -> None:
        """Fails the test where a case failed, or where none was tried."""
        assert self.tried, f"no {self.kind} were tried"
        assert not self.failures, f"{len(self.failures)} of {self.tried} {self.kind}:\n" + "\n".join(self.failures[:20])
