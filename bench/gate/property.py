"""Property: one promise of the contract, and the GateResult of testing it."""

from __future__ import annotations

import builtins
import math
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from ..core.errors import Unsupported
from .checked_variant import CheckedVariant

Verdict = Literal["holds", "fails", "n.a."]
TORCH = Path(torch.__file__).parent


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of a test: the property holds where `value` is at most `allowed`."""

    value: float
    allowed: float
    detail: str = ""

    @property
    def held(self) -> bool:
        return self.value <= self.allowed

    @property
    def excess(self) -> float:
        """How far beyond what is allowed; a value that is no number is infinitely far."""
        if math.isnan(self.value):
            return math.inf
        return self.value / self.allowed if self.allowed else (0.0 if self.value == 0 else math.inf)


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """Why a property says nothing about this checked; `value` where something was measured all the same."""

    reason: str
    value: float = math.nan


Answer = Measured | NotApplicable


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One property of one variant on one shape. `held` is None where it does not apply; `detail` says why, or where."""

    property: str
    held: bool | None
    measured: float = math.nan
    allowed: float = math.nan
    detail: str = ""

    @builtins.property
    def verdict(self) -> Verdict:
        return "n.a." if self.held is None else "holds" if self.held else "fails"


@dataclass(frozen=True, slots=True)
class Property:
    """`quick`: also tested before every measurement. `own`: at which of the two it is tested at the length and batch to
    be measured too, by few passes. `longest`: a result at that length replaces that at few positions. `whole`:
    with all heads there, however long a pass takes. The test's docstring is the meaning."""

    name: str
    test: Callable[[CheckedVariant], Answer]
    quick: bool = True
    own: Literal["never", "check", "always"] = "never"
    longest: bool = False
    whole: bool = False

    @property
    def meaning(self) -> str:
        return (self.test.__doc__ or "").strip()

    def examine(self, checked: CheckedVariant) -> GateResult:
        """A variant that raises has failed, one that declares it cannot has not."""
        try:
            answer = self.test(checked if self.whole else checked.affordable)
        except Unsupported as refusal:
            answer = NotApplicable(str(refusal))
        # A shortage of the machine says nothing about the variant, and must not be stored as its failure.
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            first = str(error).partition("\n")[0]
            answer = Measured(math.inf, 0.0, f"raised {type(error).__name__}: {first} ({_line_of(error)})")
        if isinstance(answer, NotApplicable):
            return GateResult(property=self.name, held=None, measured=answer.value, detail=answer.reason)
        return GateResult(
            property=self.name, held=answer.held, measured=answer.value, allowed=answer.allowed, detail=answer.detail
        )


def _line_of(error: Exception) -> str:
    """The innermost line outside PyTorch that raised, such as `line 23 of my_attention.py`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not Path(frame.filename).is_relative_to(TORCH)]
    return f"line {own[-1].lineno} of {Path(own[-1].filename).name}"


def worst(answers: Iterable[Answer]) -> Answer:
    """The measurement that exceeds its allowance most; the first refusal where nothing was measured."""
    answers = list(answers)
    measured = [answer for answer in answers if isinstance(answer, Measured)]
    # The worst and not the mean: a promise is broken if it is broken once.
    if measured:
        return max(measured, key=lambda answer: answer.excess)
    return answers[0] if answers else NotApplicable("no setting applies")
