"""Causality: nothing after a query changes its output, and fewer queries than keys are aligned at the end.

Sees any dependence of a value on later inputs that these inputs excite, in evaluation, in training, after steps of it,
and at the length to be measured. Cannot see a leak that needs other inputs, such as a branch on a rare value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from .case import Case, Inputs, permuted
from .checked_variant import CheckedVariant
from .distance import gap
from .property import Answer, Measured, NotApplicable, worst


def future_changes_nothing(checked: CheckedVariant) -> Answer:
    """another future of query, key and value leaves the outputs before it as they are"""
    refusal = _refusal(checked)
    if refusal:
        return refusal
    found = worst(_leaks(case, ("query", "key", "value")) for case in checked.cases)
    if checked.module.causality == "selection" and isinstance(found, Measured):
        # Sorting and clustering look at whole sequences to choose keys. That is declared, shown on boards, and its size
        # is measured all the same.
        return NotApplicable("declared `selection`: which past keys are seen depends on the future", found.value)
    return found


def future_values_change_nothing(checked: CheckedVariant) -> Answer:
    """another future of the values alone leaves the outputs before it as they are"""
    refusal = _refusal(checked)
    if refusal:
        return refusal
    if checked.module.causality != "selection":
        return NotApplicable("declared `strict`: `future` tests more")
    return worst(_leaks(case, ("value",)) for case in checked.cases)


def prefix_stands_alone(checked: CheckedVariant) -> Answer:
    """the output on a prefix is the prefix of the output"""
    refusal = _refusal(checked) or _not_strict(checked)
    return refusal or worst(answer for case in checked.cases for answer in _prefixes(case))


def aligned_at_last_key(checked: CheckedVariant) -> Answer:
    """the last queries alone, against all keys, give the last outputs"""
    refusal = _refusal(checked) or _not_strict(checked)
    if refusal:
        return refusal
    reason = checked.module.supports(replace(checked.shape, cross=True))
    return NotApplicable(reason) if reason else worst(a for case in checked.cases for a in _tails(case))


def _refusal(checked: CheckedVariant) -> NotApplicable | None:
    return None if checked.shape.causal else NotApplicable("the shape is not causal")


def _not_strict(checked: CheckedVariant) -> NotApplicable | None:
    if checked.module.causality == "strict":
        return None
    return NotApplicable(f"declared `{checked.module.causality}`, not `strict`")


def _leaks(case: Case, parts: tuple[str, ...]) -> Answer:
    found: list[Answer] = []
    length = case.length
    inputs, other, before = case.inputs(), case.inputs(salt=1), case.output()
    # Early, middle and last cuts: block-wise kernels fail at the edges of blocks, recurrences at the first step.
    cuts = {length // 2} if case.setting.brief else {0, length // 3, length // 2, length - 2}
    for now in sorted(cuts & set(range(length - 1))):
        changed = replace(inputs, **{p: _spliced(getattr(inputs, p), getattr(other, p), now) for p in parts})
        detail = f"the future after position {now} of {case.place} moves the past"
        found.append(_measured(case, case.run(changed)[:, :, : now + 1], before[:, :, : now + 1], detail))
    return worst(found) if found else NotApplicable("a sequence of one has no future")


def _spliced(x: Tensor, other: Tensor, now: int) -> Tensor:
    # Ten times as large, so that a small weight on the future shows.
    return permuted(torch.cat([x[:, :, : now + 1], 10 * other[:, :, now + 1 :]], 2))


def _prefixes(case: Case) -> Iterator[Answer]:
    length, inputs, whole = case.length, case.inputs(), case.output()
    cuts = {1, min(7, length), max(1, length // 2), max(1, length - 1)}
    for cut in sorted({max(1, length // 2)} if case.setting.brief else cuts):
        detail = f"the first {cut} positions of {case.place}"
        yield _measured(case, case.run(inputs.part(0, cut)), whole[:, :, :cut], detail)


def _tails(case: Case) -> Iterator[Answer]:
    length, inputs, whole = case.length, case.inputs(), case.output()
    counts = {1, min(5, length)} | (set() if case.setting.brief else {max(1, length // 2)})
    for count in sorted(counts):
        # The contract's alignment: the last query sees all keys, as in decoding with a cache.
        tail = Inputs(inputs.query[:, :, -count:], inputs.key, inputs.value)
        detail = f"{count} queries against all keys of {case.place}"
        yield _measured(case, case.run(tail), whole[:, :, -count:], detail)


def _measured(case: Case, found: Tensor, expected: Tensor, detail: str) -> Measured:
    return Measured(gap(found, expected), case.tolerance, detail)
