"""Decoding: token by token gives what the whole sequence gives, and the state is as large as declared.

Sees drift, state that grows beyond its declaration, and state that is not in the state passed on. Cannot see what
happens after more tokens than it decodes: 95 before a measurement, 512 in `check`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..measure.memory import storages
from .case import Case
from .checked_variant import CheckedVariant
from .distance import gap
from .property import Answer, Measured, NotApplicable, worst

STATE_FACTOR = 2.5
"""Buffers that double when full hold up to twice what is declared."""
STATE_SLACK_BYTES = 512
STATE_ROOM = 64
"""Tokens for which a buffer may have room from its first."""
TURNS = 8


def steps_equal_forward(checked: CheckedVariant) -> Answer:
    """decoding one token at a time gives the causal forward of the whole sequence"""
    refusal = _refusal(checked)
    if refusal:
        return refusal
    if checked.module.causality != "strict":
        return NotApplicable(f"declared `{checked.module.causality}`: past choices depend on the future")
    return worst(answer for case in checked.cases for answer in (_steps(case), _two_streams(case)))


def state_as_declared(checked: CheckedVariant) -> Answer:
    """the decode state holds as many bytes as `state_bytes` says, within the slack of growing buffers"""
    refusal = _refusal(checked)
    if refusal:
        return refusal
    case = checked.native
    length = case.steps
    declared = checked.module.state_bytes(replace(checked.shape, max_length=length))
    if declared is None:
        return Measured(1.0, 0.0, "it decodes, but `state_bytes` is None")
    state = _decode(case, length, batch=1)[1]
    actual = sum(storage for storage in storages(state).values())
    # what is held may be compared with that of a longer sequence, never what is declared
    roomy = checked.module.state_bytes(replace(checked.shape, max_length=max(length, STATE_ROOM))) or declared
    # Either way round: a state that is smaller than declared makes a board's memory column wrong too.
    low, high = (actual, declared) if actual < declared else (roomy, actual)
    ratio = (high - STATE_SLACK_BYTES) / max(1, low)
    return Measured(max(1.0, ratio), STATE_FACTOR, f"{actual} bytes held, {declared} declared after {length} tokens")


def density_as_declared(checked: CheckedVariant) -> Answer:
    """`density` lies in (0, 1] and, for a pattern with zeros, is no less than the share of weights that are not zero"""
    case = checked.native
    length = case.length
    declared = checked.module.density(replace(checked.shape, max_length=length))
    if not 0 < declared <= 1:
        return Measured(math.inf, 1.0, f"expected a density in (0, 1], got {declared}")
    inputs = case.inputs(length, length)
    with torch.no_grad():
        weights = checked.module.weights(inputs.query, inputs.key, case.mask())
    if weights is None:
        return Measured(declared, 1.0, "declared; it shows no weights")
    allowed = case.mask().allowed(length, length, inputs.query.device)
    share = (weights != 0).double().mean().item()
    # Of the allowed pairs: half of a causal map is zero whatever the mechanism.
    share /= 1.0 if allowed is None else allowed.double().mean().item()
    if share > 0.8:
        # no pattern, but a map of features, such as a ReLU, whose products vanish here and there
        return Measured(declared, 1.0, f"declared; {share:.1%} of its weights are not zero, so they show no pattern")
    return Measured(
        share, 1.05 * declared + 1 / length, f"share of weights not zero at {length}; declared {declared:.3g}"
    )


def _refusal(checked: CheckedVariant) -> NotApplicable | None:
    if not checked.shape.causal or checked.shape.cross:
        return NotApplicable("the shape is not causal self-attention")
    if not checked.module.decodes:
        return NotApplicable("it declares that it does not decode")
    return None


def _steps(case: Case) -> Answer:
    length, batch = case.steps, case.setting.batch if case.setting.own else max(3, case.setting.batch)
    outputs, _ = _decode(case, length, batch)
    expected = case.run(case.inputs(length, batch=batch))
    error = gap(outputs, expected)
    detail = f"{length} steps of {batch}, {case.place}"
    if error > case.tolerance:
        # The first step that is off says more than the size: 0 is an alignment, a power of two a buffer.
        off = (outputs - expected).abs().amax((0, 1, 3)).double() > case.tolerance * expected.abs().max().double()
        detail = f"from step {int(off.nonzero()[0])} of {detail}"
    return Measured(error, case.tolerance, detail)


def _two_streams(case: Case) -> Answer:
    """Two sequences decoded in turns, as two users do: each must be as it is alone."""
    length = min(case.steps, TURNS)
    streams = [case.inputs(length, batch=2, salt=salt) for salt in (0, 1)]
    states: list[Any] = [None, None]
    outputs: list[list[Tensor]] = [[], []]
    with torch.no_grad():
        for at in range(length):
            for stream in (0, 1):
                output, states[stream] = case.module.step(*streams[stream].part(at, at + 1).all(), states[stream])
                outputs[stream].append(output)
    error = max(gap(torch.cat(found, 2), case.run(given)) for found, given in zip(outputs, streams, strict=True))
    return Measured(error, case.tolerance, f"two sequences decoded in turns, {case.place}")


def _decode(case: Case, length: int, batch: int) -> tuple[Tensor, Any]:
    inputs, state, outputs = case.inputs(length, batch=batch), None, []
    with torch.no_grad():
        for at in range(length):
            now = inputs.part(at, at + 1)
            output, state = case.module.step(*now.all(), state)
            outputs.append(output)
    return torch.cat(outputs, 2), state
