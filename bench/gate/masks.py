"""Masks: padding, neighbours and keys out of bounds change no output; a query without a key yields zeros.

Sees padding that enters a sum, a maximum or a normalisation, whatever stands in it, bounds that are not kept, and
packed sequences that see each other. Cannot see padding that only costs time.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from .case import SEQUENCE_SECONDS, Answers, Case, Inputs, Measured, NotApplicable, gap, permuted

FEW = 24
"""Positions where each query takes a sequence of its own."""
BATCH_SECONDS = 1.5
"""Of the processor, which other work on the machine does not lengthen."""


def padding_content(case: Case) -> Answers:
    """numbers in padded positions change no real output: padding at the end, at the start, in holes"""
    # one kind at the length to be measured, since the test makes few passes there
    batch = 1 if case.own else 4
    inputs, other = case.inputs(batch=batch), case.inputs(batch=batch, salt=1)
    kinds = dict(list(_kinds(inputs.key.shape[2]).items())[:batch])
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


def padding_length(case: Case) -> Answers:
    """a padded sequence gives the outputs of the shorter one, whatever the padding's length"""
    keys = case.inputs().key.shape[2]
    brief = {max(1, 2 * keys // 3)}
    reals = sorted(brief if case.brief else {1, max(1, keys // 3), max(1, keys - 13), max(1, keys - 1)})
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
        error = gap(found[at : at + 1, :, : few.query.shape[2]], case.run(few))
        yield Measured(error, case.tolerance, f"{real} real keys and {keys - real} of padding, {case.place}")


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
        for part, a, b in zip(("output", "query", "key", "value", "hidden"), found, expected, strict=False):
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
    if not case.module.takes_bounds:
        yield NotApplicable("it does not support masks with bounds")
        return
    if not case.shape.padding:
        yield NotApplicable("the shape has no padding")
        return
    inputs = case.inputs(min(FEW, case.length), batch=1)
    queries, keys = inputs.query.shape[2], inputs.key.shape[2]
    # windows of five keys at most that move on with the queries; that of the second query is empty
    middle = torch.arange(queries) * keys // queries
    lower, upper = (middle - 2).clamp(min=0), (middle + 3).clamp(max=keys)
    upper[1:2] = lower[1:2]
    found = case.run(inputs, bounds=torch.stack([lower, upper], -1)[None].to(inputs.query.device))
    # one sequence for each query, whose window alone is real there; the last place is of that query
    at = torch.arange(keys)
    valid = (at >= lower[:, None]) & (at < upper[:, None])
    each = torch.arange(queries)
    repeated = Inputs(*(permuted(x.expand(queries, -1, -1, -1)) for x in inputs))
    expected = case.run(repeated, valid)[each, :, each].transpose(0, 1)[None]
    # a padded query means nothing: where queries and keys are one sequence, the query without a key is one
    real = (upper > lower).to(found.device) | case.shape.cross
    yield Measured(gap(found[:, :, real], expected[:, :, real]), case.tolerance, f"windows of five keys, {case.place}")
    empty = found[:, :, (upper <= lower).to(found.device)]
    yield Measured(empty.abs().sum().item(), 0.0, f"output of a query with empty bounds, {case.place}")


def packed_sequences(case: Case) -> Answers:
    """with `lengths` in its mask, each of the sequences in a row gives what it gives alone"""
    if case.shape.cross:
        yield NotApplicable("queries and keys are two sequences")
        return
    inputs, third = case.inputs(case.length, case.length), max(1, case.length // 3)
    # two of one length, which may be computed as a batch, and a third of another
    lengths = tuple(n for n in (third, third, case.length - 2 * third) if n > 0)
    if sum(lengths) != case.length:
        yield NotApplicable("too few positions for several sequences")
        return
    found, first = case.run(inputs, lengths=lengths), 0
    for length in lengths:
        error = gap(found[:, :, first : first + length], case.run(inputs.part(first, first + length)))
        yield Measured(error, case.tolerance, f"positions from {first} on of {lengths} packed")
        first += length


def _kinds(keys: int) -> dict[str, Tensor]:
    """Which keys are real: (keys,), at least one."""
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
