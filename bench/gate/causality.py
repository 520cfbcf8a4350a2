"""Causality: nothing after a query changes its output, fewer queries than keys are aligned at the end, and decoding
token by token gives what the whole sequence gives.

Sees any dependence of a value on later inputs that these inputs excite, in evaluation, in training, after steps of it,
and at the length to be measured; drift in decoding, a state that grows beyond its declaration, and state that is not in
the state passed on. Cannot see a leak that needs other inputs, such as a branch on a rare value, nor what happens after
more tokens than it decodes: 95 before a measurement, 512 in `check`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..measure.memory import storages
from .case import Answers, Case, Inputs, Measured, NotApplicable, gap, permuted

STATE_FACTOR = 2.5
"""Buffers that double when full hold up to twice what is declared."""
STATE_SLACK_BYTES = 512
STATE_ROOM = 64
"""Tokens for which a buffer may have room from its first."""
TURNS = 8
INTERPRETED_STEPS = 8
"""Tokens to decode where Triton's interpreter runs: it takes a thousand times as long as the CPU."""


def future_changes_nothing(case: Case) -> Answers:
    """another future of query, key and value leaves the outputs before it as they are"""
    for found in _leaks(case, ("query", "key", "value", "hidden")):
        if case.module.causality == "selection" and isinstance(found, Measured):
            # Sorting and clustering look at whole sequences to choose keys. That is declared, shown on boards, and its
            # size is measured all the same.
            yield NotApplicable("declared `selection`: which past keys are seen depends on the future", found)
        else:
            yield found


def future_values_change_nothing(case: Case) -> Answers:
    """another future of the values alone leaves the outputs before it as they are"""
    if case.module.causality == "selection":
        yield from _leaks(case, ("value",))
    else:
        yield NotApplicable("declared `strict`: `future` tests more")


def _leaks(case: Case, parts: tuple[str, ...]) -> Answers:
    length, inputs, other = case.length, case.inputs(), case.inputs(salt=1)
    if length == 1:
        yield NotApplicable("a sequence of one has no future")
    # Early, middle and last cuts: block-wise kernels fail at the edges of blocks, recurrences at the first step.
    cuts = {length // 2} if case.brief else {0, length // 3, length // 2, length - 2}
    for now in sorted(cuts & set(range(length - 1))):
        moved = {}
        for part in parts:
            x, y = getattr(inputs, part), getattr(other, part)
            if x is not None:
                # Ten times as large, so that a small weight on the future shows.
                moved[part] = permuted(torch.cat([x[:, :, : now + 1], 10 * y[:, :, now + 1 :]], 2))
        error = gap(case.run(replace(inputs, **moved))[:, :, : now + 1], case.output[:, :, : now + 1])
        yield Measured(error, case.tolerance, f"the future after position {now} of {case.place} moves the past")


def prefix_stands_alone(case: Case) -> Answers:
    """the output on a prefix is the prefix of the output"""
    if case.module.causality != "strict":
        yield NotApplicable(f"declared `{case.module.causality}`, not `strict`")
        return
    length, inputs = case.length, case.inputs()
    half = max(1, length // 2)
    for cut in sorted({half} if case.brief else {1, min(7, length), half, max(1, length - 1)}):
        error = gap(case.run(inputs.part(0, cut)), case.output[:, :, :cut])
        yield Measured(error, case.tolerance, f"the first {cut} positions of {case.place}")


def aligned_at_last_key(case: Case) -> Answers:
    """the last queries alone, against all keys, give the last outputs"""
    if case.module.causality != "strict":
        yield NotApplicable(f"declared `{case.module.causality}`, not `strict`")
        return
    reason = case.module.supports(replace(case.shape, cross=True))
    if reason:
        yield NotApplicable(reason)
        return
    length, inputs = case.length, case.inputs()
    for count in sorted({1, min(5, length)} | (set() if case.brief else {max(1, length // 2)})):
        # The contract's alignment: the last query sees all keys, as in decoding with a cache.
        last = inputs.part(length - count, length)
        error = gap(case.run(replace(last, key=inputs.key, value=inputs.value)), case.output[:, :, -count:])
        yield Measured(error, case.tolerance, f"{count} queries against all keys of {case.place}")


def steps_equal_forward(case: Case) -> Answers:
    """decoding one token at a time gives the causal forward of the whole sequence"""
    refusal = _refusal(case)
    if refusal or case.module.causality != "strict":
        yield NotApplicable(refusal or f"declared `{case.module.causality}`: past choices depend on the future")
        return
    length = min(case.length, INTERPRETED_STEPS) if case.interpreted else case.length
    batch = case.batch if case.own else max(3, case.batch)
    inputs = case.inputs(length, batch=batch)
    outputs, expected = _decode(case, [inputs])[0][0], case.run(inputs)
    error = gap(outputs, expected)
    detail = f"{length} steps of {batch}, {case.place}"
    if error > case.tolerance:
        # The first step that is off says more than the size: 0 is an alignment, a power of two a buffer.
        off = (outputs - expected).abs().amax((0, 1, 3)).double() > case.tolerance * expected.abs().max().double()
        detail = f"from step {int(off.nonzero()[0])} of {detail}"
    yield Measured(error, case.tolerance, detail)
    # two sequences decoded in turns, as two users do: each must be as it is alone
    streams = [case.inputs(min(length, TURNS), batch=2, salt=salt) for salt in (0, 1)]
    both = _decode(case, streams)[0]
    error = max(gap(found, case.run(given)) for found, given in zip(both, streams, strict=True))
    yield Measured(error, case.tolerance, f"two sequences decoded in turns, {case.place}")


def state_as_declared(case: Case) -> Answers:
    """the decode state holds as many bytes as `state_bytes` says, within the slack of growing buffers"""
    refusal = _refusal(case)
    if refusal:
        yield NotApplicable(refusal)
        return
    length = min(case.length, INTERPRETED_STEPS) if case.interpreted else case.length
    declared = case.module.state_bytes(replace(case.shape, max_length=length))
    if declared is None:
        yield Measured(1.0, 0.0, "it decodes, but `state_bytes` is None")
        return
    state = _decode(case, [case.inputs(length, batch=1)])[1][0]
    actual = sum(storage for storage in storages(state).values())
    # what is held may be compared with that of a longer sequence, never what is declared
    roomy = case.module.state_bytes(replace(case.shape, max_length=max(length, STATE_ROOM))) or declared
    # Either way round: a state that is smaller than declared makes a board's memory column wrong too.
    low, high = (actual, declared) if actual < declared else (roomy, actual)
    ratio = (high - STATE_SLACK_BYTES) / max(1, low)
    yield Measured(max(1.0, ratio), STATE_FACTOR, f"{actual} bytes held, {declared} declared after {length} tokens")


def density_as_declared(case: Case) -> Answers:
    """`density` lies in (0, 1] and, for a pattern with zeros, is no less than the share of weights that are not zero"""
    length = case.length
    declared = case.module.density(replace(case.shape, max_length=length))
    if not 0 < declared <= 1:
        yield Measured(math.inf, 1.0, f"expected a density in (0, 1], got {declared}")
        return
    weights = case.weights(case.inputs(length, length))
    if weights is None:
        yield Measured(declared, 1.0, "declared; it shows no weights")
        return
    allowed = case.mask().allowed(length, length, weights.device)
    share = (weights != 0).double().mean().item()
    # Of the allowed pairs: half of a causal map is zero whatever the mechanism.
    share /= 1.0 if allowed is None else allowed.double().mean().item()
    if share > 0.8:
        # no pattern, but a map of features, such as a ReLU, whose products vanish here and there
        detail = f"declared; {share:.1%} of its weights are not zero, so they show no pattern"
        yield Measured(declared, 1.0, detail)
        return
    detail = f"share of weights not zero at {length}; declared {declared:.3g}"
    yield Measured(share, 1.05 * declared + 1 / length, detail)


def _refusal(case: Case) -> str:
    if not case.shape.causal or case.shape.cross:
        return "the shape is not causal self-attention"
    return "" if case.module.decodes else "it declares that it does not decode"


def _decode(case: Case, streams: list[Inputs]) -> tuple[list[Tensor], list[Any]]:
    """Outputs and last state of each of the streams, decoded token by token and in turns."""
    states: list[Any] = [None] * len(streams)
    outputs: list[list[Tensor]] = [[] for _ in streams]
    with torch.no_grad():
        for at in range(streams[0].query.shape[2]):
            for number, stream in enumerate(streams):
                now = stream.part(at, at + 1)
                hidden = None if now.hidden is None else now.hidden[:, 0]
                output, states[number] = case.module.step_with(now.query, now.key, now.value, states[number], hidden)
                outputs[number].append(output)
    return [torch.cat(found, 2) for found in outputs], states
