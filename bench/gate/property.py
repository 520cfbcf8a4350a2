"""Property: one promise that a variant keeps, breaks, or does not make; its test, and on which cases that is run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from ...variants.contract import ScoredVariant
from ..core.errors import Unsupported
from .case import Case
from .result import Answer, Answers, Measured, NotJudged, Result, error_text, worst
from .variant import EAGER

NEEDS: dict[str, Callable[[Case], object]] = {
    "causality": lambda case: case.shape.causal,
    "padding": lambda case: case.shape.padding,
    "cross-attention": lambda case: case.shape.cross,
    "self-attention": lambda case: not case.shape.cross,
    "several heads": lambda case: case.shape.heads > 1,
    "compiled kernels": lambda case: not case.interpreted,
    "causal use where it has one": lambda case: case.shape.causal or case.module.causality is None,
    "strict causality": lambda case: case.module.causality == "strict",
    "causality by selection": lambda case: case.module.causality == "selection",
    "bounds": lambda case: case.module.takes_bounds,
    "decoding": lambda case: case.module.decodes,
    # a kind that is none promises nothing, and is told
    "exactness": lambda case: case.module.kind not in ("approximate", "different"),
    "an eager path": lambda case: EAGER in case.factory.implementations,
    "no eager path": lambda case: EAGER not in case.factory.implementations,
    "a declared `simplex`": lambda case: case.module.simplex is not None,
    "a simplex": lambda case: case.module.simplex,
    "a score map": lambda case: isinstance(case.module, ScoredVariant),
    "weights of the output": lambda case: isinstance(case.module, ScoredVariant) or case.module.simplex,
    # half precision takes long: before a measurement it is examined where it is measured
    "bfloat16": lambda case: case.thorough or case.shape.dtype == "bfloat16",
    "float16": lambda case: case.thorough or case.shape.dtype == "float16",
}
"""Conditions by name, of a shape or a variant, for a property to apply; the name says what is missing."""


@dataclass(frozen=True, slots=True)
class Property:
    """One promise of the contract; the docstring of `test` is its meaning, `cause` what is mostly wrong where it fails.

    `needs`: names of NEEDS. `over`: which cases the test gets: the "first", those in the precision to be "measured",
    "all", which are float64 too, or "reduced", with fewer heads and tokens at the length to be measured. `quick`: also
    tested before every measurement. `own`: at which of the two it is tested at the length and batch to be measured too,
    by few passes. `longest`: a result at that length replaces that at few positions. `whole`: with all heads there,
    however long a pass takes. `dropout`: about a rate of it alone.
    """

    name: str
    test: Callable[[Case], Answers]
    over: Literal["first", "measured", "all", "reduced"] = "first"
    needs: tuple[str, ...] = ()
    cause: str = ""
    quick: bool = True
    own: Literal["never", "check", "always"] = "never"
    longest: bool = False
    whole: bool = False
    dropout: bool = False

    def examine(self, first: Case) -> Result:
        """A variant that raises has failed, one that declares it cannot has not."""
        missing = [need for need in self.needs if not NEEDS[need](first)]
        if missing:
            return Result.of(self.name, NotJudged(f"needs {missing[0]}"))
        answers: list[Answer] = []
        try:
            for case in self._cases(first):
                try:
                    for answer in self.test(case):
                        answers.append(answer)
                except Unsupported as refusal:
                    # a kernel may refuse inputs only as it gets them; what was measured before counts
                    answers.append(NotJudged(str(refusal)))
            found = worst(answers)
        except Unsupported as refusal:
            found = NotJudged(str(refusal))
        # A shortage of the machine says nothing about the variant, and must not be stored as its failure.
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            found = Measured(math.inf, 0.0, f"raised {error_text(error)}")
        return Result.of(self.name, found, self.cause)

    def _cases(self, first: Case) -> Iterable[Case]:
        case = first if self.whole else first.one_head_if_slow
        if self.over == "first":
            return [case]
        cases = case.reduced.cases if self.over == "reduced" else case.cases
        return [each for each in cases if self.over == "all" or each.dtype == first.dtype]
