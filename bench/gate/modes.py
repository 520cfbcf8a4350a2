"""Modes: training, dropout and half precision are the same function as evaluation in float32, but for what they say."""

from __future__ import annotations

import math
from contextlib import suppress

import torch
from torch import Tensor

from .case import Case, Inputs, RunSetting
from .lengths import long_lengths
from .maps import NOT_LINEAR, linear_in_value
from .result import Answers, Measured, NotJudged
from .subject import Subject, Tensors

RATE, RATES = 0.5, (0.3, 0.6)
"""A rate of dropout that shows it, and two that tell a wrong rate: neither half, where a swap would go unseen."""
NEARLY_ALL = 0.9999
DRAWN, PAIRS_DRAWN = 1024, 256
"""Sequences of one token, of which dropout takes a share, and of two, where whole heads are ten times that share or
more. Bounds follow from them. Some variants pad each sequence to a block: 4,096 of each took 400 s of reformer."""
MOST_PATTERNS = 256
"""Outputs of one token in training, where weights are dropped: two to the power of its heads."""
_ANEW = NotJudged(
    "two equal calls in training differ, though the seed is set before each: leaks and gradients there are not tested",
    verdict="not tried",
)
SEEDS_OF_PAIRS = (3, 5, 7, 11)
"""Drawn rows of two: one in which each head weighs one key alone would look as if whole heads were dropped."""


def training_is_evaluation(subject: Subject) -> Answers:
    """without draws, training gives what evaluation gives, of many tokens too"""
    inputs = subject.draw()
    for rate in (None, 0.0):
        try:
            found = subject.fresh(training=True, rate=rate).outputs(inputs)
        except Exception as error:
            yield NotJudged(f"it raises {type(error).__name__} in training", verdict="not tried")
            return
        # with the same seed, so that draws differ by their place alone
        again = subject.fresh(training=True, rate=rate).outputs(inputs, seed=1)
        if torch.equal(found, again):
            same = _compared_in_training(subject, inputs, found)
            if same.value <= same.allowed and _draws_anew(subject, inputs):
                yield _ANEW
                return
            yield same
            # evaluation may compute many tokens in pieces
            for length in long_lengths(subject):
                many = subject.draw(1, length)
                found = subject.fresh(training=True, rate=rate).outputs(many)
                yield _compared_in_training(subject, many, found, batch=1, length=length)
            return
    drawn = NotJudged("it draws random numbers in training", verdict="not tried")
    yield _ANEW if _draws_anew(subject, inputs) else drawn


def _compared_in_training(subject: Subject, inputs: Tensors, found: Tensor, **sizes: int) -> Measured:
    """`found` in training beside evaluation, both of copies that no call has met."""
    lines = "import copy; a, b = out(inputs, copy.deepcopy(m).train()), out(inputs)"
    at = f" of {sizes['length']:,} tokens" if sizes else ""
    words = f"training gives other outputs{at} than evaluation, though nothing is random"
    return subject.compared(words, found, subject.fresh().outputs(inputs), lines, **sizes)


def _draws_anew(subject: Subject, inputs: Tensors) -> bool:
    """True if two equal calls in training differ, at its own rate of dropout or at one that shows it."""
    with suppress(Exception):
        for rate in (None, RATE):
            first, second = (subject.fresh(training=True, rate=rate).outputs(inputs) for _ in range(2))
            if not torch.allclose(first, second, atol=1e-5, equal_nan=True):
                return True
    return False


_WITH_RATE = (
    "import copy; n = copy.deepcopy(m)",
    "rates = [(e, k) for e in n.modules() for k, v in vars(e).items() if type(v) in (int, float)]",
    f"[setattr(e, k, {RATE}) for e, k in rates if 'drop' in k or k in ('p', 'rate')]",
)
"""Lines of a program that make a copy `n` with another rate."""


def dropout(subject: Subject) -> Answers:
    """a rate of dropout leaves evaluation as it is, and in training takes that share of the weights, one by one"""
    inputs = subject.draw()
    dropping = subject.fresh(rate=RATE)
    if dropping is subject:
        yield NotJudged("no rate of dropout found")
        return
    lines = (*_WITH_RATE, "a, b = out(inputs, n), out(inputs)")
    words = f"a dropout rate of {RATE} changes the outputs in evaluation"
    for seed in (0, 1):
        yield subject.compared(words, dropping.outputs(inputs, seed=seed), subject.outputs(inputs), *lines)
    if name := subject.dropout_name():
        found = [subject.fresh(training=True, rate=RATE).outputs(inputs, seed=seed) for seed in (0, 1)]
        line = "print((out(inputs, n.train()) - out(inputs)).abs().max())"
        text = f"{name} is ignored: two training passes at a dropout rate of {RATE} are equal"
        yield Measured(float(torch.equal(*found)), 0.0, text, subject.shown(*_WITH_RATE, line))
    if subject.has_inputs_of_numbers and _is_affine(subject):
        for rate in RATES:
            yield from _shares(subject, rate)


def _is_affine(subject: Subject) -> bool:
    """True if the output of one token grows with its input: behind a norm, a kept weight is not seen to be larger."""
    inputs = subject.draw(1, 1, 3)
    # 3 and no power of two, with which rounding grows too: all that there is where a token sees nothing of itself
    zero, one, three = (subject.outputs(tuple(scale * each for each in inputs)) for scale in (0.0, 1.0, 3.0))
    return float((three - 3.0 * one + 2.0 * zero).abs().max()) <= 1e-4 * float((one - zero).abs().max())


def _shares(subject: Subject | _Rated, rate: float) -> Answers:
    """The shares of rows that keep all weights, and no weight; nothing where single numbers are dropped."""
    # One token has one weight in each head: a draw keeps it, larger, or not. Nearly all are dropped at the last rate.
    single = subject.draw(1, 1, SEEDS_OF_PAIRS[0])
    [empty], [kept] = _rows(subject, single, NEARLY_ALL, draws=1), _rows(subject, single, None, draws=1)
    rows = _rows(subject, single, rate)
    size = float((kept - empty).abs().max())
    patterns = len(torch.unique((rows / max(size, 1e-30) * 1e3).round(), dim=0))
    if not 1 < patterns <= MOST_PATTERNS or not size:
        return

    def share(rows: Tensor, row: Tensor) -> float:
        return float(((rows - row).abs().amax(-1) < 1e-3 * size).double().mean())

    all_kept, none_kept = share(rows, empty + (kept - empty) / (1 - rate)), share(rows, empty)
    # the larger share says how many weights there are: at a rate of 0.6 one draw in ten thousand keeps all of ten
    larger, of_one = max((all_kept, 1 - rate), (none_kept, rate))
    heads = max(1, round(math.log(larger) / math.log(of_one))) if larger else 1
    for found, expected, does in ((all_kept, (1 - rate) ** heads, "keep"), (none_kept, rate**heads, "drop")):
        allowed = 5 * math.sqrt(expected * (1 - expected) / DRAWN) + 1e-3
        words = f"at a dropout rate of {rate}, {found:.1%} of draws {does} all weights of a row, and not {expected:.1%}"
        yield Measured(abs(found - expected), allowed, f"{words}: another rate, or a wrong scale")
    if heads > 1:
        allowed, together = 3 * rate ** (2 * heads) + 5e-3, 1.0
        pairs = [subject.draw(1, 2, seed) for seed in SEEDS_OF_PAIRS]
        for each in pairs:
            # one row that shows single weights is enough
            if together > allowed:
                together = min(together, share(_rows(subject, each, rate, PAIRS_DRAWN), empty))
        words = f"at a dropout rate of {rate}, {together:.1%} of draws drop both weights of a row of two"
        if together <= allowed or _weighs_both(subject, pairs[0], rate, empty):
            yield Measured(together, allowed, f"{words}: it drops whole heads")


def _weighs_both(subject: Subject | _Rated, inputs: Tensors, rate: float, empty: Tensor) -> bool:
    """True if all of the last rows of two, but empty ones, depend on both tokens: else a head has one weight there.

    A pattern, or hard attention, leaves it one: no other weight is there to be kept where that is dropped.
    """
    before = _rows(subject, inputs, rate, PAIRS_DRAWN)
    distance = (before - empty).abs().amax(-1)
    kept = distance > 1e-3 * distance.max()
    # the tokens lie along the first axis of two behind the batch
    axis = next((at for at in range(inputs[-1].dim() - 1, 0, -1) if inputs[-1].shape[at] == 2), 0)
    for token in (0, 1) if axis else ():
        moved = inputs[-1].clone()
        # a little, which changes what is weighed and not which
        moved.select(axis, token).add_(0.01)
        other = _rows(subject, (*inputs[:-1], moved), rate, PAIRS_DRAWN)
        if not bool((other != before).any(-1)[kept].all()):
            return False
    return bool(axis)


def _rows(subject: Subject | _Rated, inputs: Tensors, rate: float | None, draws: int = DRAWN) -> Tensor:
    """Last rows (draws, all numbers) of one sequence in training, each with its own draws; evaluation for None."""
    used = subject if rate is None else subject.fresh(training=True, rate=rate)
    return used.outputs(tuple(each.expand(draws, *each.shape[1:]) for each in inputs))[:, -1].flatten(1)


class _Rated:
    """A Case of a variant as the Subject of shares of dropout."""

    def __init__(self, case: Case):
        self.case = case

    def draw(self, batch: int, length: int, seed: int) -> Tensors:
        return tuple(self.case.inputs(length, batch=batch, salt=seed))

    def outputs(self, inputs: Tensors) -> Tensor:
        return self.case.run(Inputs(*inputs)).transpose(1, 2)

    def fresh(self, *, training: bool, rate: float) -> _Rated:
        setting = RunSetting(self.case.length, self.case.batch, "training" if training else "usual")
        return _Rated(self.case.rebuilt(dropout=rate, setting=setting))


def dropout_share(case: Case) -> Answers:
    """a rate of dropout takes that share of single weights, each by itself"""
    if case.shape.dtype != "float32":
        yield NotJudged("outputs are told apart in float32 alone")
        return
    if not linear_in_value(case):
        # behind a norm, a kept weight is not seen to be larger
        yield NOT_LINEAR
        return
    # the rate at which whole heads of so many show; settings differ in their heads, so that `check` takes both
    yield from _shares(_Rated(case), RATES[case.shape.heads > 3])
