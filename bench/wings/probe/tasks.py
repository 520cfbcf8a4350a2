"""The probe of one variant: on which tasks, at which lengths, and what the gate said."""

from __future__ import annotations

from dataclasses import dataclass

CAUSAL_TASKS = ("recall", "selective-copy", "max")
"""The tasks that separate mechanisms most within minutes: how much, how far, how sharp (tasks/synthetic/README.md)."""

POOLED_TASKS = ("max-pooled",)
"""The tasks of a variant without a causal form."""

SWEPT_LENGTHS = (256, 1_024, 4_096)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The findings of the gate. `problem`: why the variant does not build or run here; empty where it was examined.

    `failures`: each failed property with its detail. `holding`: the names of those that hold. `causal`: whether it has
    a causal form; `only_causal`: whether it has no other; `sees_order`: whether the order of the keys matters to it, as
    under rotary positions, which the reference then has too.
    """

    holding: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    not_applicable: int = 0
    seconds: float = 0.0
    problem: str = ""
    unsupported: bool = False
    causal: bool = True
    only_causal: bool = False
    sees_order: bool = False

    @property
    def passed(self) -> bool:
        return not self.problem and not self.failures
