"""Masks: what a query may not see changes no output: the future, padding, neighbours, other sequences of its row.

Sees any dependence of a value on later inputs that these inputs excite, in evaluation, in training, after steps of it,
and at the length to be measured; padding that enters a sum, a maximum or a normalisation, whatever stands in it, bounds
that are not kept, and packed sequences that see each other; drift in decoding, a state that grows beyond its
declaration, and state that is not in the state passed on. Cannot see a leak that needs other inputs, such as a branch
on a rare value, padding that only costs time, nor what happens after more tokens than it decodes: 95 before a
measurement, 512 in `check`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .case import INPUTS, SEQUENCE_SECONDS, Case, Inputs, gap, permuted
from .lengths import BLOCK
from .result import Answers, Measured, NotJudged
from .subject import future

FEW = 24
"""Positions where each query takes a sequence of its own."""
PAIR_SECONDS = 0.2
BATCH_SECONDS = 1.5
"""Seconds of the processor, which other work on the machine does not lengthen."""
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
    for found in _leaks(case):
        if case.module.causality == "selection" and isinstance(found, Measured):
            # Sorting and clustering look at whole sequences to choose keys. That is declared, shown on boards, and its
            # size is measured all the same.
            yield NotJudged("declared `selection`: which past keys are seen depends on the future", found)
        else:
            yield found


def future_values_change_nothing(case: Case) -> Answers:
    """another future of the values alone leaves the outputs before it as they are"""
    yield from _leaks(case, ("value",))


def _leaks(case: Case, parts: tuple[str, ...] = ()) -> Answers:
    length = case.length
    if length == 1:
        yield NotJudged("a sequence of one has no future")
    # Early, middle and last cuts: block-wise kernels fail at the edges of blocks, recurrences at the first step.
    cuts = {length // 2} if case.few_passes else {0, length // 3, length // 2, length - 2}
    for now in sorted(cuts & set(range(length - 1))):
        yield future(case, now + 1, f"the future after position {now} of {case.place} moves the past", parts=parts)


def prefix_stands_alone(case: Case) -> Answers:
    """the output on a prefix is the prefix of the output"""
    length, inputs = case.length, case.inputs()
    half = max(1, length // 2)
    cuts = sorted({half} if case.few_passes else {1, min(7, length), half, max(1, length - 1)})
    # few of many positions: where all of half of them are wrong alike, these have been examined
    for cut in (*cuts, *([BLOCK] if case.few_passes and half > BLOCK else [])):
        try:
            found = case.run(inputs.part(0, cut))
        except Exception:
            if cut in cuts:
                raise
            # it takes longer blocks alone
            continue
        error = gap(found, case.output[:, :, :cut])
        yield Measured(error, case.tolerance, f"the first {cut} positions of {case.place}")


def aligned_at_last_key(case: Case) -> Answers:
    """the last queries alone, against all keys, give the last outputs"""
    reason = case.module.supports(replace(case.shape, cross=True))
    if reason:
        yield NotJudged(reason)
        return
    length, inputs = case.length, case.inputs()
    for count in sorted({1, min(5, length)} | (set() if case.few_passes else {max(1, length // 2)})):
        # The contract's alignment: the last query sees all keys, as in decoding with a cache.
        last = inputs.part(length - count, length)
        error = gap(case.run(replace(last, key=inputs.key, value=inputs.value)), case.output[:, :, -count:])
        yield Measured(error, case.tolerance, f"{count} queries against all keys of {case.place}")


def padding_content(case: Case) -> Answers:
    """numbers in padded positions change no real output: padding at the end, at the start, in holes"""
    keys = case.inputs().key.shape[2]
    kinds = _kinds(keys)
    if case.own:
        # all at once, since the test makes few passes there
        ends = torch.arange(keys) >= keys // 8, torch.arange(keys) < keys - keys // 8
        kinds = {"padding at both ends and holes": kinds["holes"] & ends[0] & ends[1]}
    batch = len(kinds)
    inputs, other = case.inputs(batch=batch), case.inputs(batch=batch, salt=1)
    valid = torch.stack(list(kinds.values()))
    # large enough to show through a small weight, small enough for the squares of half precision
    size = 1e3 if case.dtype.itemsize > 2 else 30.0
    # The same real positions twice, with zeros and with large numbers in the padding: a difference comes from there.
    quiet = _filled(case, inputs, valid, Inputs(*map(torch.zeros_like, other)))
    loud = _filled(case, inputs, valid, Inputs(*(size * x for x in other)))
    found, expected = case.run(loud, valid), case.run(quiet, valid)
    for at, kind in enumerate(kinds):
        real = slice(None) if case.shape.cross else valid[at].to(found.device)
        yield Measured(gap(found[at][:, real], expected[at][:, real]), case.tolerance, f"{kind}, {case.place}")
    if case.kind == "training":
        # what is gathered there is used later
        gathered = []
        for filled in (quiet, loud):
            gathering = case.rebuilt()
            gathering.run(filled, valid)
            gathering.module.after_step()
            gathered.append(dict(gathering.module.named_buffers()))
        for name, buffer in gathered[0].items():
            yield Measured(gap(gathered[1][name], buffer), case.tolerance, f"buffer {name}, {case.place}")


def padding_length(case: Case) -> Answers:
    """a padded sequence gives the outputs of the shorter one, whatever the padding's length"""
    keys = case.inputs().key.shape[2]
    # at the length to be measured two, since what each pads may be taken from the first, and one where that takes long
    brief = {max(1, 2 * keys // 3)} | ({max(1, keys // 3)} if case.own and case.seconds < PAIR_SECONDS else set())
    reals = sorted(brief if case.few_passes else {1, max(1, keys // 3), max(1, keys - 13), max(1, keys - 1)})
    # one sequence of each length and, but for the length to be measured, one that is whole
    inputs = case.inputs(batch=len(reals) + (not case.own))
    valid = torch.ones(inputs.key.shape[0], keys, dtype=torch.bool)
    for at, real in enumerate(reals):
        valid[at, real:] = False
    found = case.run(inputs, valid)
    for at, real in enumerate(reals):
        alone = Inputs(*(x[at : at + 1] for x in inputs))
        few = alone.part(0, real)
        if case.shape.cross:
            few = replace(few, query=alone.query, hidden=alone.hidden)
        expected, real_places = case.run(few), slice(few.query.shape[2])
        detail = f"{real} real keys and {keys - real} of padding, {case.place}"
        yield Measured(gap(found[at : at + 1, :, real_places], expected), case.tolerance, detail)
        if at == 1 and not case.own:
            by_itself = case.run(alone, valid[at : at + 1])[:, :, real_places]
            yield Measured(gap(by_itself, expected), case.tolerance, f"a batch of one, {detail}")


def padding_without_numbers(case: Case) -> Answers:
    """NaN and infinity in padded positions change no real output and no real gradient; theirs are zero"""
    # precision and batch decide little over what becomes of NaN
    if case.own or case.interpreted or case.kind == "many" or case.dtype == torch.float64:
        return
    if not case.thorough and case.kind == "after step":
        return
    inputs = case.inputs(batch=4)
    valid = torch.stack(list(_kinds(inputs.key.shape[2]).values()))
    real = valid[:, None, :, None].to(inputs.key.device)
    # No loss depends on the output of a padded query.
    grad_output = case.grad_output(inputs.query)
    grad_output = grad_output if case.shape.cross else grad_output * real
    expected = case.passes(_filled(case, inputs, valid, Inputs(*map(torch.zeros_like, inputs))), valid, grad_output)
    both = torch.tensor([math.nan, math.inf]).repeat(inputs.query.shape[2])
    # apart as well in `check`: beside NaN what infinity does may not show
    fillers = {"NaN": both[:1], "infinity": both[1:2]} if case.thorough else {"NaN and infinity": both}
    for filler, numbers in fillers.items():
        # one number for each position, or one for all
        full = Inputs(*(numbers[: x.shape[2]].to(x)[:, None].expand_as(x) for x in inputs))
        found = case.passes(_filled(case, inputs, valid, full), valid, grad_output)
        for part, a, b in zip(("output", *INPUTS), found, expected, strict=False):
            by_query = part in ("output", "query", "hidden")
            at = torch.ones_like(a[:, :1, :, :1], dtype=torch.bool) if by_query and case.shape.cross else real
            name = part if part == "output" else f"gradient of {part}"
            detail = f"{name} of real positions with {filler} in the padding, {case.place}"
            yield Measured(gap(a.where(at, 0), b.where(at, 0)), case.tolerance, detail)
            if part != "output":
                rest = a.masked_fill(at, 0.0)
                size = rest.abs().max().item() if rest.isfinite().all() else math.inf
                yield Measured(size, 0.0, f"{name} of padded positions with {filler} in them, {case.place}")


def batch_independence(case: Case) -> Answers:
    """an example gives the same alone, in a batch, and among other neighbours"""
    if case.own:
        # what is too faint for the measured precision is looked for at few positions: float64 takes too long here
        if case.dtype == case.base.dtype:
            yield from _own_batch(case)
        return
    batch = max(3, case.batch)
    inputs, other = case.inputs(batch=batch), case.inputs(batch=batch, salt=1)
    # One by one, and a large batch in parts of 1, 3, 7 and the rest: variants that share statistics or patterns over
    # the batch differ here.
    ends = sorted({min(end, batch) for end in ([1, 4, 11, batch] if case.kind == "many" else range(1, batch + 1))})
    parts = [slice(*part) for part in zip([0, *ends], ends, strict=False)]
    alone = torch.cat([case.run(Inputs(*(x[part] for x in inputs))) for part in parts])
    yield Measured(gap(case.run(inputs), alone), case.tolerance, f"in a batch of {batch}, {case.place}")
    size = 100.0 if case.dtype.itemsize > 2 else 10.0
    crowd = Inputs(*(permuted(torch.cat([x[:1], size * y[1:]])) for x, y in zip(inputs, other, strict=True)))
    valid = None
    if case.shape.padding:
        valid = torch.ones(batch, inputs.key.shape[2], dtype=torch.bool)
        valid[1, 1:] = False
        valid[2] = False
    detail = f"among large neighbours{' and padding' if case.shape.padding else ''}, {case.place}"
    yield Measured(gap(case.run(crowd, valid)[:1], alone[:1]), case.tolerance, detail)


def _own_batch(case: Case) -> Answers:
    """The whole batch to be measured, or what `BATCH_SECONDS` take of it: finite, with its first and its last example
    as they are alone; the first only, where one takes long."""
    batch, seconds = case.measured, case.seconds
    # The first example is that of the other tests here, so that its output is there already.
    first, rest = case.inputs(), case.inputs(batch=max(1, batch - 1), salt=2)
    inputs = Inputs(*(permuted(torch.cat(pair))[:batch] for pair in zip(first, rest, strict=True)))
    if batch > 2 and batch * seconds > BATCH_SECONDS:
        # as many as there is time for, the first and the last among them
        batch = max(2, int(BATCH_SECONDS / seconds))
        inputs = Inputs(*(permuted(torch.cat([x[: batch - 1], x[-1:]])) for x in inputs))
    output = case.run(inputs)
    bad = float((~output.isfinite()).sum())
    yield Measured(bad, 0.0, f"entries that are no number in a batch of {batch}, {case.place}")
    for at in sorted({0} if seconds > SEQUENCE_SECONDS else {0, batch - 1}):
        alone = case.output if at == 0 else case.run(Inputs(*(x[at : at + 1] for x in inputs)))
        detail = f"example {at} in a batch of {batch}, {case.place}"
        yield Measured(gap(output[at : at + 1], alone), case.tolerance, detail)


def masked_rows(case: Case) -> Answers:
    """a query that may see no key yields exactly zero, and every gradient stays finite"""
    if case.own:
        return
    inputs = case.inputs(batch=2)
    keys = inputs.key.shape[2]
    valid = torch.ones(2, keys, dtype=torch.bool)
    valid[0] = False
    dead = torch.zeros(2, inputs.query.shape[2], dtype=torch.bool)
    dead[0] = True
    if case.shape.causal and keys > 1:
        first = keys // 2
        valid[1, :first] = False
        dead[1, :first] = True
    leaves = Inputs(*(x.detach().requires_grad_() for x in inputs))
    with torch.enable_grad():
        # Softmax over no key is 0 / 0: the usual error is NaN, first in the output and, once that is masked, in
        # gradients.
        output = case.forward(leaves, valid)
        rows = output.detach().transpose(1, 2)[dead.to(output.device)]
        largest = rows.abs().max().item() if rows.isfinite().all() else math.inf
        yield Measured(largest, 0.0, f"output of a query without a key, {case.place}")
        if not output.requires_grad:
            return
        trained = [p for p in case.module.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(output, [*leaves, *trained], case.grad_output(output), allow_unused=True)
    finite = all(g is None or bool(g.isfinite().all()) for g in gradients)
    yield Measured(0.0 if finite else math.inf, 0.0, f"gradient with a fully masked example, {case.place}")


def bounds_are_kept(case: Case) -> Answers:
    """with `bounds` in its mask, each query gives what it gives with the keys outside its bounds padded"""
    few = case.inputs(min(FEW, case.length), batch=1)
    inputs = Inputs(*(permuted(x.expand(2, -1, -1, -1)) for x in few))
    queries, keys = inputs.query.shape[2], inputs.key.shape[2]
    # windows of five keys, of nineteen in the second sequence, that move on with the queries; that of the second query
    # is empty
    middle = torch.arange(queries) * keys // queries + torch.tensor([[0], [1]])
    reach = torch.tensor([[2], [9]])
    lower, upper = (middle - reach).clamp(min=0), (middle + 1 + reach).clamp(max=keys)
    upper[:, 1:2] = lower[:, 1:2]
    bounds = torch.stack([lower, upper], -1).to(inputs.query.device)
    # every third key is padding, but for the first
    at, each = torch.arange(keys), torch.arange(queries)
    padding = ((at % 3 != 1) | (keys < 3)).expand(2, -1)
    found = case.run(inputs, bounds=bounds)
    tried = [
        (found[0], 0, None, "windows of five keys"),
        (found[1], 1, None, "windows of nineteen keys"),
        (case.run(inputs, padding, bounds=bounds)[1], 1, padding[1], "windows of nineteen keys and padding"),
        (case.run(inputs, bounds=bounds[:1])[1], 0, None, "one row of bounds for all sequences"),
    ]
    # one sequence for each query, whose window alone is real there; the last place is of that query
    repeated = Inputs(*(permuted(x.expand(queries, -1, -1, -1)) for x in few))
    alone: dict[int, Tensor] = {}
    for output, row, real_keys, name in tried:
        valid = (at >= lower[row, :, None]) & (at < upper[row, :, None])
        if real_keys is not None:
            valid = valid & real_keys
            alone.pop(row, None)
        if row not in alone:
            alone[row] = case.run(repeated, valid)[each, :, each].transpose(0, 1)
        # a padded query means nothing: where queries and keys are one sequence, the query without a key is one
        seen, meant = valid.any(-1), torch.ones(queries, dtype=torch.bool)
        if real_keys is not None and not case.shape.cross:
            meant = real_keys
        real, empty = ((seen & meant) | case.shape.cross).to(output.device), (~seen & meant).to(output.device)
        yield Measured(gap(output[:, real], alone[row][:, real]), case.tolerance, f"{name}, {case.place}")
        yield Measured(
            output[:, empty].abs().sum().item(), 0.0, f"output of a query without a key, {name}, {case.place}"
        )


def packed_sequences(case: Case) -> Answers:
    """with `lengths` in its mask, each sequence of a packed row has the outputs that it has alone"""
    inputs, third = case.inputs(case.length, case.length), max(1, case.length // 3)
    # two of one length, which may be computed as a batch, and a third of another
    lengths = tuple(n for n in (third, third, case.length - 2 * third) if n > 0)
    if sum(lengths) != case.length:
        yield NotJudged("too few positions for several sequences")
        return
    found, first = case.run(inputs, lengths=lengths), 0
    for length in lengths:
        error = gap(found[:, :, first : first + length], case.run(inputs.part(first, first + length)))
        yield Measured(error, case.tolerance, f"positions from {first} on of {lengths} packed")
        first += length


def _kinds(keys: int) -> dict[str, Tensor]:
    """Layouts of padding by name: the keys that are real, (keys,), at least one."""
    at = torch.arange(keys)
    holes = torch.rand(keys, generator=torch.Generator().manual_seed(keys)) < 0.7
    return {
        "padding at the end": at < max(1, 2 * keys // 3),
        "one real key": at < 1,
        "padding at the start": at >= keys // 3,
        "holes": holes | (at == keys // 2),
    }


def _filled(case: Case, inputs: Inputs, valid: Tensor, filler: Inputs) -> Inputs:
    """`inputs` with `filler` in the padded positions: of keys and values, and of the queries in self-attention."""
    at = valid[:, None, :, None].to(inputs.key.device)
    key, value = torch.where(at, inputs.key, filler.key), torch.where(at, inputs.value, filler.value)
    filled = replace(inputs, key=key, value=value)
    if not case.shape.cross:
        filled = Inputs(*(torch.where(at, x, y) for x, y in zip(inputs, filler, strict=True)))
    return Inputs(*map(permuted, filled))


def steps_equal_forward(case: Case) -> Answers:
    """decoding one token at a time gives the causal forward of the whole sequence"""
    length = min(case.length, INTERPRETED_STEPS) if case.interpreted else case.length
    batch = case.batch if case.own else max(3, case.batch)
    inputs = case.inputs(length, batch=batch)
    outputs, expected = _decoded_once(case, length, batch)[0][0], case.run(inputs)
    error = _decoding_error(case, outputs, expected)
    detail = f"{length} steps of {batch}, {case.place}"
    if error > case.tolerance:
        # The first step that is off says more than the size: 0 is an alignment, a power of two a buffer.
        off = (outputs - expected).abs().amax((0, 1, 3)).double() > case.tolerance * expected.abs().max().double()
        detail = f"from step {int(off.nonzero()[0])} of {detail}"
    yield Measured(error, case.tolerance, detail)
    # two sequences decoded in turns, as two users do: each must be as it is alone
    streams = [case.inputs(min(length, TURNS), batch=2, salt=salt) for salt in (0, 1)]
    both = decoded(case, streams)[0]
    error = max(_decoding_error(case, found, case.run(given)) for found, given in zip(both, streams, strict=True))
    yield Measured(error, case.tolerance, f"two sequences decoded in turns, {case.place}")


def _decoding_error(case: Case, found: Tensor, expected: Tensor) -> float:
    """The gap of two outputs; of nine rows in ten, where float64 finds a wrong row by itself and hardly one is far off.

    A recurrence divides its output by its size, and where query and key are nearly at right angles, a sum over its
    state is not rounded as the forward pass is. Far off is a row whose two last keys have scores so near that rounding
    chose the other one; a wrong position is more than one row in a thousand, since all heads and sequences have it.
    """
    error = gap(found, expected)
    if case.dtype == torch.float64 or case.in_float64 is None or not 0 < error < math.inf:
        return error
    rows = (found - expected).double().abs().amax(-1).flatten() / expected.double().abs().max()
    far = int((rows > case.largest_tolerance).sum())
    return error if far > len(rows) // 1000 else float(rows.quantile(0.9))


def state_as_declared(case: Case) -> Answers:
    """the decode state holds as many bytes as `state_bytes` says, within the slack of growing buffers"""
    length = min(case.length, INTERPRETED_STEPS) if case.interpreted else case.length
    declared = case.module.state_bytes(replace(case.shape, max_length=length))
    if declared is None:
        yield Measured(1.0, 0.0, "it decodes, but `state_bytes` is None")
        return
    state = _decoded_once(case, length, 1)[1][0]
    actual = case.factory.held(state)
    # what is held may be compared with that of a longer sequence, never what is declared
    roomy = case.module.state_bytes(replace(case.shape, max_length=max(length, STATE_ROOM))) or declared
    # Either way round: a state that is smaller than declared makes a board's memory column wrong too.
    low, high = (actual, declared) if actual < declared else (roomy, actual)
    ratio = (high - STATE_SLACK_BYTES) / max(1, low)
    yield Measured(max(1.0, ratio), STATE_FACTOR, f"{actual} bytes held, {declared} declared after {length} tokens")


def _decoded_once(case: Case, length: int, batch: int) -> tuple[list[Tensor], list[Any]]:
    """`decoded` of inputs of one size, once: at the length to be measured outputs and states are of the same tokens."""
    key = "decoded", length, batch
    if key not in case.memo:
        case.memo[key] = decoded(case, [case.inputs(length, batch=batch)])
    found: tuple[list[Tensor], list[Any]] = case.memo[key]
    return found


def decoded(case: Case, streams: list[Inputs]) -> tuple[list[Tensor], list[Any]]:
    """Outputs and last state of each of the streams, decoded token by token and in turns."""
    states: list[Any] = [None] * len(streams)
    outputs: list[list[Tensor]] = [[] for _ in streams]
    with torch.no_grad():
        for at in range(streams[0].query.shape[2]):
            for number, stream in enumerate(streams):
                now = stream.part(at, at + 1)
                with case.widened(case.shape.dtype):
                    output, states[number] = case.module.step_with(
                        now.query, now.key, now.value, states[number], now.states
                    )
                outputs[number].append(output)
    return [torch.cat(found, 2) for found in outputs], states
