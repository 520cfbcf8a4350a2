"""Causality: nothing after a query changes its output, and fewer queries than keys are aligned at the end.

Sees any dependence of a value on later inputs that these inputs excite. Cannot see a leak that needs other inputs,
such as a branch on a rare value, or one beyond 384 positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from .checked_variant import CheckedVariant, Inputs, VariantInDtype
from .distance import gap
from .property import Answer, Measured, NotApplicable, worst


def future_changes_nothing(checked: CheckedVariant) -> Answer:
    """another future of query, key and value leaves the outputs before it as they are"""
    refusal = _refusal(checked)
    if refusal:
        return refusal
    found = worst(_leaks(view, ("query", "key", "value")) for view in checked.views)
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
    return worst(_leaks(view, ("value",)) for view in checked.views)


def prefix_stands_alone(checked: CheckedVariant) -> Answer:
    """the output on a prefix is the prefix of the output"""
    refusal = _refusal(checked) or _not_strict(checked)
    return refusal or worst(answer for view in checked.views for answer in _prefixes(view))


def aligned_at_last_key(checked: CheckedVariant) -> Answer:
    """the last queries alone, against all keys, give the last outputs"""
    refusal = _refusal(checked) or _not_strict(checked)
    if refusal:
        return refusal
    reason = checked.module.supports(replace(checked.shape, cross=True))
    return NotApplicable(reason) if reason else worst(a for view in checked.views for a in _tails(view))


def _refusal(checked: CheckedVariant) -> NotApplicable | None:
    return None if checked.shape.causal else NotApplicable("the shape is not causal")


def _not_strict(checked: CheckedVariant) -> NotApplicable | None:
    if checked.module.causality == "strict":
        return None
    return NotApplicable(f"declared `{checked.module.causality}`, not `strict`")


def _leaks(view: VariantInDtype, parts: tuple[str, ...]) -> Answer:
    found: list[Answer] = []
    for length in view.lengths:
        inputs, other = view.inputs(length), view.inputs(length, salt=1)
        before = view.run(inputs)
        # Early, middle and last cuts: block-wise kernels fail at the edges of blocks, recurrences at the first step.
        for now in sorted({0, length // 3, length // 2, length - 2} & set(range(length - 1))):
            changed = replace(inputs, **{p: _spliced(getattr(inputs, p), getattr(other, p), now) for p in parts})
            after = view.run(changed)
            detail = f"the future after position {now} of {length} moves the past ({view.shape.dtype})"
            found.append(_measured(view, after[:, :, : now + 1], before[:, :, : now + 1], detail))
    return worst(found) if found else NotApplicable("a sequence of one has no future")


def _spliced(x: Tensor, other: Tensor, now: int) -> Tensor:
    # Ten times as large, so that a small weight on the future shows.
    return torch.cat([x[:, :, : now + 1], 10 * other[:, :, now + 1 :]], 2)


def _prefixes(view: VariantInDtype) -> Iterator[Answer]:
    for length in view.lengths:
        inputs = view.inputs(length)
        whole = view.run(inputs)
        for cut in sorted({1, min(7, length), max(1, length // 2), max(1, length - 1)}):
            detail = f"the first {cut} of {length} positions ({view.shape.dtype})"
            yield _measured(view, view.run(inputs.part(0, cut)), whole[:, :, :cut], detail)


def _tails(view: VariantInDtype) -> Iterator[Answer]:
    for length in view.lengths:
        inputs = view.inputs(length)
        whole = view.run(inputs)
        for count in sorted({1, min(5, length), max(1, length // 2)}):
            # The contract's alignment: the last query sees all keys, as in decoding with a cache.
            tail = Inputs(inputs.query[:, :, -count:], inputs.key, inputs.value)
            detail = f"{count} queries against {length} keys ({view.shape.dtype})"
            yield _measured(view, view.run(tail), whole[:, :, -count:], detail)


def _measured(view: VariantInDtype, found: Tensor, expected: Tensor, detail: str) -> Measured:
    return Measured(gap(found, expected), view.tolerance, detail)
