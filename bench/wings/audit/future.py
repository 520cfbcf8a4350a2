"""Future: whether later content moves earlier outputs, how far away, and what the pattern of distances suggests."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .experiment import Experiment, confirmed
from .report import Finding
from .subject import STILL, Subject, by_position, changed

OFF_BY_ONE = "off by one"

PREFIXES = (1, 3, 7, 15, 31, 32, 63)
"""Positions that are kept while all later ones change."""


def future(subject: Subject, claims: bool) -> Finding:
    """Later content moves no earlier output: of a subject that claims to be causal a failure, else said."""
    length = subject.convention.length
    experiments = [_after(cut, length) for cut in PREFIXES if cut < length]
    sizes = [confirmed(each, subject) for each in experiments]
    if not any(sizes):
        trained = [replace(each, training=True) for each in experiments] if claims and _trains(subject) else []
        found = next((each for each in trained if each.size(subject)), None)
        if found is None:
            return Finding(name="future", verdict="ok", size=0.0)
        text = f"leak in training alone, moves outputs by {found.size(subject):.2g}"
        return _failed(found, subject, found.size(subject), text)
    worst = max(range(len(sizes)), key=sizes.__getitem__)
    near, cause = distances(influence(subject))
    if not claims and cause == OFF_BY_ONE:
        text = "sees 1 position ahead and no further, as a causal mask that is off by one: "
        text += "--causal makes it a leak, --no-causal accepts it"
        return Finding(name="future", verdict="question", size=sizes[worst], text=text)
    if not claims:
        text = f"looks both ways, at {near} (a leak if it should be causal: --causal)"
        return Finding(name="future", verdict="note", size=sizes[worst], text=text)
    text = f"leak at {near}{f' ({cause}?)' if cause else ''}, moves outputs by {sizes[worst]:.2g}"
    return _failed(experiments[worst], subject, sizes[worst], text)


def future_under_mask(subject: Subject, claims: bool) -> Finding:
    """As `future`, with padding on the left, on the right and inside: one mask must not replace the other."""
    length = subject.convention.length
    call = subject.convention.call(padded=True, causal=True)
    if not claims or not call or subject.convention.mask_ignored:
        return Finding(name="mask and future", verdict="n.a.", text="no mask and causality at once")
    valid = torch.ones(2, length, dtype=torch.bool)
    valid[0, :2], valid[1, -2:], valid[:, length // 2] = False, False, False
    experiments = []
    for cut in (length // 4, length // 2, length - 3):
        each = _after(cut, length)
        experiments.append(replace(each, valid=valid, look=each.look & valid))
    sizes = [confirmed(each, subject) for each in experiments]
    worst = max(range(len(sizes)), key=sizes.__getitem__)
    if not sizes[worst]:
        return Finding(name="mask and future", verdict="ok", size=0.0)
    text = f"with a mask later content moves earlier outputs by {sizes[worst]:.2g}"
    return replace(_failed(experiments[worst], subject, sizes[worst], text), name="mask and future")


def _after(cut: int, length: int) -> Experiment:
    late = (torch.arange(length) >= cut).expand(2, length)
    return Experiment(where=late, look=~late, causal=True)


def _failed(experiment: Experiment, subject: Subject, size: float, text: str) -> Finding:
    program = (*(("m.train()",) if experiment.training else ()), *experiment.program(subject))
    return Finding(name="future", verdict="fails", size=size, text=text, program=program)


def _trains(subject: Subject) -> bool:
    return hasattr(subject.module, "train")


def influence(subject: Subject) -> Tensor:
    """Which output (first axis) a change of which position (second axis) moves; Boolean, on one sequence."""
    length, kind = subject.convention.length, subject.convention.kind
    inputs = subject.draw(1)
    with torch.no_grad():
        base = by_position(subject(inputs, None, True), kind)
        columns = []
        for position in range(length):
            where = (torch.arange(length) == position)[None]
            other = changed(kind, inputs, where, subject.convention.shape[0])
            moved = by_position(subject(other, None, True), kind) - base
            columns.append(moved[0].flatten(1).abs().amax(-1) > STILL * base.std())
    return torch.stack(columns, 1)


def distances(moved: Tensor) -> tuple[str, str]:
    """The distances at which the future is seen, in words, and what their pattern suggests."""
    earlier, later = moved.triu(1).nonzero().T
    if not len(later):
        return "several positions at once only", ""
    gaps = later - earlier
    low, high, length = int(gaps.min()), int(gaps.max()), len(moved)
    words = f"distance {low}" if low == high else f"distance {low} to {high}"
    if high == 1:
        return words, OFF_BY_ONE
    # a Fourier transform has some factors of zero
    if len(gaps) > 0.9 * length * (length - 1) / 2:
        return words, "no mask, a mean or an FFT over all"
    for block in (2, 4, 8, 16, 32):
        if high == block - 1 and bool((earlier // block == later // block).all()):
            return words, f"block of {block}"
    return words, f"window of {high} to both sides" if high < length // 2 else ""
