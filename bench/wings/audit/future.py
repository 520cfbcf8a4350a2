"""Future: whether later content moves earlier outputs, how far away, and what the pattern of distances suggests."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...gate.modes import RATE
from ...gate.result import Answers, NotJudged, deviations
from ...gate.subject import Change
from ...gate.subject import future as moved_by_future
from .away import is_module
from .subject import STILL, ForeignSubject

OFF_BY_ONE = "off by one"

MOSTLY_BACK = 0.3
"""The share of the movement by earlier content that later content makes, below which a claim is asked for."""

BATCHES = (1, 8, 33)
"""Sequences at once, beside the usual two: a kernel may leave a mask out from a size of its grid on."""

NOISE = 10
"""How many times the movement between two equal calls in training a leak there has to be."""

PREFIXES = (1, 3, 7, 15, 31, 32, 63)
"""Positions that are kept while all later ones change."""


def future(subject: ForeignSubject) -> Answers:
    """Later content moves no earlier output: of a subject that claims to be causal a failure, else said."""
    cuts = [cut for cut in PREFIXES if cut < subject.length]
    words = "later tokens change earlier outputs"
    tried = [moved_by_future(subject, cut, words) for cut in cuts]
    if subject.claims:
        half = subject.length // 2
        tried += [moved_by_future(subject, half, f"in a batch of {n}, {words}", batch=n) for n in BATCHES]
    found = max(tried, key=lambda each: each.value)
    if found.value == 0:
        yield found
        if subject.claims and is_module(subject.module):
            # masks may be left out for speed, such as by a kernel for training alone, or dropped with scores
            used = subject.fresh(rate=RATE)
            in_training = [moved_by_future(used, cut, f"in training alone, {words}", training=True) for cut in cuts]
            # a seed of its own moves as much between equal calls
            still = torch.zeros(subject.batch, subject.length, dtype=torch.bool)
            noise = NOISE * used.size(Change(where=still, look=~still, causal=True, training=True))
            yield from (each for each in in_training if each.value > noise)
        return
    near, cause = distances(influence(subject))
    choice = ": --causal makes it a leak, --no-causal accepts it" if subject.asked else ""
    if subject.claims:
        text = f"{words} by {deviations(found.value)}, at {near}{f' ({cause}?)' if cause else ''}"
        yield replace(found, detail=text)
    elif cause == OFF_BY_ONE:
        text = "an output depends on 1 later token and no more, as with a causal mask that is off by one"
        yield NotJudged(text + choice, found, "asks")
    elif (ahead := _share_ahead(subject)) < MOSTLY_BACK:
        text = f"it looks mostly back: later tokens change outputs {ahead:.1%} as much as earlier tokens do"
        yield NotJudged(text + choice, found, "asks")
    else:
        hint = " (if it should be causal: --causal)" if subject.asked else ""
        yield NotJudged(f"it looks both ways, at {near}{hint}", found, "note")


def _share_ahead(subject: ForeignSubject) -> float:
    """The movement of first outputs by later inputs, over that the other way round: where two blocks meet, none is."""
    at, ahead, back = torch.arange(subject.length).expand(subject.batch, -1), 0.0, 1e-30
    for part in (1 / 3, 1 / 2, 2 / 3):
        late = at >= int(part * subject.length)
        changes = (Change(where=where, look=~where, causal=True) for where in (late, ~late))
        sizes = [float(subject.movement(each).nan_to_num(posinf=0.0).sum()) for each in changes]
        ahead, back = ahead + sizes[0], back + sizes[1]
    return ahead / back


def future_under_mask(subject: ForeignSubject) -> Answers:
    """The same with padding on the left, on the right and inside: one mask must not replace the other."""
    length = subject.length
    if not subject.masks_and_looks_back or subject.convention.mask_ignored:
        yield NotJudged("it takes no padding mask and causality at once")
        return
    valid = torch.ones(2, length, dtype=torch.bool)
    valid[0, :2], valid[1, -2:], valid[:, length // 2] = False, False, False
    valid = subject.laid(valid)
    for cut in (length // 4, length // 2, length - 3):
        yield moved_by_future(subject, cut, "with a padding mask, later tokens change earlier outputs", valid=valid)


def influence(subject: ForeignSubject) -> Tensor:
    """True where a change of a position (second axis) moves an output (first axis), on one sequence."""
    length = subject.length
    inputs = subject.draw(1)
    with torch.no_grad():
        base = subject.outputs(inputs, None, True)
        columns = []
        for position in range(length):
            where = (torch.arange(length) == position)[None]
            other = subject.changed(inputs, where)
            moved = subject.outputs(other, None, True) - base
            columns.append(moved[0].flatten(1).abs().amax(-1) > STILL * base.std())
    return torch.stack(columns, 1)


def distances(moved: Tensor) -> tuple[str, str]:
    """The distances at which the future is seen, in words, and what their pattern suggests."""
    earlier, later = moved.triu(1).nonzero().T
    if not len(later):
        return "several positions together", ""
    gaps = later - earlier
    low, high, length = int(gaps.min()), int(gaps.max()), len(moved)
    words = f"distance {low}" if low == high else f"distances {low} to {high}"
    if high == 1:
        return words, OFF_BY_ONE
    if not earlier.any():
        return words, "the first position has no key, and a softmax over no key is a mean over all: a mask of tril(-1)"
    # a Fourier transform has some factors of zero
    if len(gaps) > 0.9 * length * (length - 1) / 2:
        return words, "no mask, a mean or an FFT over all"
    for block in (2, 4, 8, 16, 32):
        if high == block - 1 and bool((earlier // block == later // block).all()):
            return words, f"block of {block}"
    return words, f"window of {high} to both sides" if high < length // 2 else ""
