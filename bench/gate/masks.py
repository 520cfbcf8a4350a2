"""Masks: padding, neighbours and keys out of bounds change no output; a query without a key yields zeros.

Sees padding that enters a sum, a maximum or a normalisation, whatever stands in it, bounds that are not kept, and
packed sequences that see each other. Cannot see padding that only costs time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ...variants.contract import Mask
from .case import Case, Inputs, permuted
from .checked_variant import SEQUENCE_SECONDS, CheckedVariant
from .distance import gap
from .property import Answer, Measured, NotApplicable, worst

FEW = 24
"""Positions where each query takes a sequence of its own."""
BATCH_SECONDS = 1.5
"""Of the processor, which other work on the machine does not lengthen."""


def padding_content(checked: CheckedVariant) -> Answer:
    """numbers in padded positions change no real output: padding at the end, at the start, in holes"""
    return _without_padding(checked) or worst(a for case in checked.cases for a in _contents(case))


def padding_length(checked: CheckedVariant) -> Answer:
    """a padded sequence gives the outputs of the shorter one, whatever the padding's length"""
    return _without_padding(checked) or worst(a for case in checked.cases for a in _lengths(case))


def padding_without_numbers(checked: CheckedVariant) -> Answer:
    """NaN and infinity in padded positions change no real output and no real gradient; theirs are zero"""
    return _without_padding(checked) or worst(a for case in checked.cases for a in _no_numbers(case, checked.thorough))


def batch_independence(checked: CheckedVariant) -> Answer:
    """an example gives the same alone, in a batch, and among other neighbours"""
    return worst(a for case in checked.cases for a in _neighbours(case, checked))


def masked_rows(checked: CheckedVariant) -> Answer:
    """a query that may see no key yields exactly zero, and every gradient stays finite"""
    return _without_padding(checked) or worst(a for case in checked.cases for a in _masked(case))


def bounds_are_kept(checked: CheckedVariant) -> Answer:
    """with `bounds` in its mask, each query gives what it gives with the keys outside its bounds padded"""
    if not checked.module.takes_bounds:
        return NotApplicable("it does not support masks with bounds")
    return _without_padding(checked) or worst(_bounded(checked.native))


def packed_sequences(checked: CheckedVariant) -> Answer:
    """with `lengths` in its mask, each of the sequences in a row gives what it gives alone"""
    if checked.shape.cross:
        return NotApplicable("queries and keys are two sequences")
    return worst(_packed(checked.native))


def _without_padding(checked: CheckedVariant) -> NotApplicable | None:
    return None if checked.shape.padding else NotApplicable("the shape has no padding")


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


def _contents(case: Case) -> Iterator[Answer]:
    inputs, other = case.inputs(batch=4), case.inputs(batch=4, salt=1)
    if case.setting.own:
        # one kind, since the test makes few passes here
        inputs, other = case.inputs(batch=1), case.inputs(batch=1, salt=1)
    keys = inputs.key.shape[2]
    kinds = dict(list(_kinds(keys).items())[: inputs.key.shape[0]])
    valid = torch.stack(list(kinds.values()))
    # large enough to show through a small weight, small enough for the squares of half precision
    size = 1e3 if case.dtype.itemsize > 2 else 30.0
    # The same real positions twice, with zeros and with large numbers in the padding: a difference comes from there.
    quiet = _filled(case, inputs, valid, other.map(torch.zeros_like))
    loud = _filled(case, inputs, valid, other.map(partial(torch.mul, size)))
    found, expected = case.run(loud, valid), case.run(quiet, valid)
    for at, kind in enumerate(kinds):
        real = slice(None) if case.shape.cross else valid[at].to(found.device)
        yield Measured(gap(found[at][:, real], expected[at][:, real]), case.tolerance, f"{kind}, {case.place}")


def _filled(case: Case, inputs: Inputs, valid: Tensor, filler: Inputs) -> Inputs:
    """`inputs` with `filler` in the padded positions: of keys and values, and of the queries in self-attention."""
    at = valid[:, None, :, None].to(inputs.key.device)
    query = inputs.query if case.shape.cross else torch.where(at, inputs.query, filler.query)
    filled = Inputs(query, torch.where(at, inputs.key, filler.key), torch.where(at, inputs.value, filler.value))
    return filled.map(permuted)


def _lengths(case: Case) -> Iterator[Answer]:
    keys = case.inputs().key.shape[2]
    brief = {max(1, 2 * keys // 3)}
    reals = sorted(brief if case.setting.brief else {1, max(1, keys // 3), max(1, keys - 13), max(1, keys - 1)})
    # one sequence of each length and, but for the length to be measured, one that is whole
    inputs = case.inputs(batch=len(reals) + (not case.setting.own))
    valid = torch.ones(inputs.key.shape[0], keys, dtype=torch.bool)
    for at, real in enumerate(reals):
        valid[at, real:] = False
    found = case.run(inputs, valid)
    for at, real in enumerate(reals):
        alone = inputs.example(at)
        queries = alone.query if case.shape.cross else alone.query[:, :, :real]
        expected = case.run(Inputs(queries, alone.key[:, :, :real], alone.value[:, :, :real]))
        detail = f"{real} real keys and {keys - real} of padding, {case.place}"
        yield Measured(gap(found[at : at + 1, :, : queries.shape[2]], expected), case.tolerance, detail)


def _no_numbers(case: Case, thorough: bool) -> Iterator[Answer]:
    # precision and batch decide little over what becomes of NaN
    if case.setting.own or case.interpreted or case.setting.repeats or case.dtype == torch.float64:
        return
    first = not case.setting.brief
    if not (thorough or first or case.setting.mode == "training"):
        return
    inputs = case.inputs(batch=4)
    kinds = _kinds(inputs.key.shape[2])
    valid = torch.stack(list(kinds.values()))
    real = valid[:, None, :, None].to(inputs.key.device)
    # No loss depends on the output of a padded query.
    grad_output = case.grad_output(inputs.query)
    grad_output = grad_output if case.shape.cross else grad_output * real
    expected = case.passes(_filled(case, inputs, valid, inputs.map(torch.zeros_like)), valid, grad_output)
    both = torch.tensor([math.nan, math.inf]).repeat(inputs.query.shape[2])
    # apart as well in `check`: beside NaN what infinity does may not show
    fillers = {"NaN": both[:1], "infinity": both[1:2]} if thorough else {"NaN and infinity": both}
    for filler, numbers in fillers.items():
        filled = _filled(case, inputs, valid, inputs.map(lambda x, numbers=numbers: _full(x, numbers)))  # type: ignore[misc]
        found = case.passes(filled, valid, grad_output)
        for part, a, b in zip(("output", "query", "key", "value"), found, expected, strict=True):
            by_query = part in ("output", "query")
            at = torch.ones_like(a[:, :1, :, :1], dtype=torch.bool) if by_query and case.shape.cross else real
            name = part if part == "output" else f"gradient of {part}"
            detail = f"{name} of real positions with {filler} in the padding, {case.place}"
            yield Measured(gap(a.where(at, 0), b.where(at, 0)), case.tolerance, detail)
            if part != "output":
                rest = a.masked_fill(at, 0.0)
                size = rest.abs().max().item() if rest.isfinite().all() else math.inf
                yield Measured(size, 0.0, f"{name} of padded positions with {filler} in them, {case.place}")


def _neighbours(case: Case, checked: CheckedVariant) -> Iterator[Answer]:
    if case.setting.own:
        yield from _own_batch(case, checked)
        return
    batch = max(3, case.setting.batch)
    inputs, other = case.inputs(batch=batch), case.inputs(batch=batch, salt=1)
    # One by one, and a large batch in parts of 1, 3, 7 and the rest: variants that share statistics or patterns over
    # the batch differ here.
    ends = [1, 4, 11, batch] if case.setting.repeats else range(1, batch + 1)
    ends = sorted({min(end, batch) for end in ends})
    parts = zip([0, *ends], ends, strict=False)
    alone = torch.cat([case.run(inputs.map(lambda x, part=part: x[slice(*part)])) for part in parts])  # type: ignore[misc]
    yield Measured(gap(case.run(inputs), alone), case.tolerance, f"in a batch of {batch}, {case.place}")
    size = 100.0 if case.dtype.itemsize > 2 else 10.0
    crowd = Inputs(*(torch.cat([x[:1], size * y[1:]]) for x, y in zip(inputs.all(), other.all(), strict=True)))
    valid = None
    if checked.shape.padding:
        valid = torch.ones(batch, inputs.key.shape[2], dtype=torch.bool)
        valid[1, 1:] = False
        valid[2] = False
    detail = f"among large neighbours{' and padding' if checked.shape.padding else ''}, {case.place}"
    yield Measured(gap(case.run(crowd.map(permuted), valid)[:1], alone[:1]), case.tolerance, detail)


def _own_batch(case: Case, checked: CheckedVariant) -> Iterator[Answer]:
    """The whole batch to be measured, or what `BATCH_SECONDS` take of it: finite, with its first and its last example
    as they are alone; the first only, where one takes long."""
    batch, seconds = checked.own_batch or 1, checked.sequence_seconds
    # The first example is that of the other tests here, so that its output is there already.
    first, rest = case.inputs(), case.inputs(batch=max(1, batch - 1), salt=2)
    inputs = Inputs(*(torch.cat(pair) for pair in zip(first.all(), rest.all(), strict=True))).map(permuted)
    inputs = inputs.map(lambda x: x[:batch])
    if batch > 2 and batch * seconds > BATCH_SECONDS:
        # as many as there is time for, the first and the last among them
        batch = max(2, int(BATCH_SECONDS / seconds))
        inputs = inputs.map(lambda x: permuted(torch.cat([x[: batch - 1], x[-1:]])))
    output = case.run(inputs)
    bad = float((~output.isfinite()).sum())
    yield Measured(bad, 0.0, f"entries that are no number in a batch of {batch}, {case.place}")
    for at in sorted({0} if seconds > SEQUENCE_SECONDS else {0, batch - 1}):
        alone = case.output() if at == 0 else case.run(inputs.example(at))
        detail = f"example {at} in a batch of {batch}, {case.place}"
        yield Measured(gap(output[at : at + 1], alone), case.tolerance, detail)


def _bounded(case: Case) -> Iterator[Answer]:
    inputs = case.inputs(min(FEW, case.length), batch=1)
    queries, keys = inputs.query.shape[2], inputs.key.shape[2]
    # windows of five keys at most that move on with the queries; that of the second query is empty
    middle = torch.arange(queries) * keys // queries
    lower, upper = (middle - 2).clamp(min=0), (middle + 3).clamp(max=keys)
    upper[1:2] = lower[1:2]
    bounds = torch.stack([lower, upper], -1)[None].to(inputs.query.device)
    with torch.no_grad():
        found = case.module(*inputs.all(), Mask(causal=case.shape.causal, bounds=bounds))
    # one sequence for each query, whose window alone is real there; the last place is of that query
    at = torch.arange(keys)
    valid = (at >= lower[:, None]) & (at < upper[:, None])
    repeated = inputs.map(lambda x: permuted(x.expand(queries, -1, -1, -1)))
    each = torch.arange(queries)
    expected = case.run(repeated, valid)[each, :, each].transpose(0, 1)[None]
    # a padded query means nothing: where queries and keys are one sequence, the query without a key is one
    real = (upper > lower).to(found.device) | case.shape.cross
    yield Measured(gap(found[:, :, real], expected[:, :, real]), case.tolerance, f"windows of five keys, {case.place}")
    empty = found[:, :, (upper <= lower).to(found.device)]
    yield Measured(empty.abs().sum().item(), 0.0, f"output of a query with empty bounds, {case.place}")


def _packed(case: Case) -> Iterator[Answer]:
    inputs = case.inputs(case.length, case.length)
    third = max(1, case.length // 3)
    # two of one length, which may be computed as a batch, and a third of another
    lengths = tuple(n for n in (third, third, case.length - 2 * third) if n > 0)
    if sum(lengths) != case.length:
        yield NotApplicable("too few positions for several sequences")
        return
    with torch.no_grad():
        found = case.module(*inputs.all(), Mask(causal=case.shape.causal, lengths=lengths))
    first = 0
    for length in lengths:
        piece = slice(first, first + length)
        alone = case.run(inputs.part(first, first + length))
        yield Measured(gap(found[:, :, piece], alone), case.tolerance, f"positions from {first} on of {lengths} packed")
        first += length


def _full(like: Tensor, numbers: Tensor) -> Tensor:
    """Filled with one number for each position, or with one for all."""
    return numbers[: like.shape[2]].to(like)[:, None].expand_as(like)


def _masked(case: Case) -> Iterator[Answer]:
    if case.setting.own:
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
    leaves = inputs.leaves()
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
        gradients = torch.autograd.grad(output, [*leaves.all(), *trained], case.grad_output(output), allow_unused=True)
    finite = all(g is None or bool(g.isfinite().all()) for g in gradients)
    yield Measured(0.0 if finite else math.inf, 0.0, f"gradient with a fully masked example, {case.place}")
