"""Masks: padding and neighbours in the batch change no real output; a query without a key yields zeros.

Sees padding that enters a sum, a maximum or a normalisation. Cannot see padding that only costs time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from .checked_variant import CheckedVariant, Inputs, VariantInDtype
from .distance import gap
from .property import Answer, Measured, NotApplicable, worst


def padding_content(checked: CheckedVariant) -> Answer:
    """what stands in padded positions changes no real output: padding at the end, at the start, in holes"""
    return _without_padding(checked) or worst(a for view in checked.views for a in _contents(view))


def padding_length(checked: CheckedVariant) -> Answer:
    """a padded sequence gives the outputs of the shorter one, whatever the padding's length"""
    return _without_padding(checked) or worst(a for view in checked.views for a in _lengths(view))


def batch_independence(checked: CheckedVariant) -> Answer:
    """an example gives the same alone, in a batch, and among other neighbours"""
    return worst(a for view in checked.views for a in _neighbours(view, checked.shape.padding))


def masked_rows(checked: CheckedVariant) -> Answer:
    """a query that may see no key yields exactly zero, and every gradient stays finite"""
    return _without_padding(checked) or worst(a for view in checked.views for a in _masked(view))


def _without_padding(checked: CheckedVariant) -> NotApplicable | None:
    return None if checked.shape.padding else NotApplicable("the shape has no padding")


def _contents(view: VariantInDtype) -> Iterator[Answer]:
    for length in view.lengths:
        inputs, other = view.inputs(length, batch=4), view.inputs(length, batch=4, salt=1)
        keys = inputs.key.shape[2]
        keep = torch.ones(4, keys, dtype=torch.bool)
        keep[0, max(1, 2 * keys // 3) :] = False
        keep[1, 1:] = False
        keep[2, : keys // 3] = False
        keep[3] = torch.rand(keys, generator=torch.Generator().manual_seed(length)) < 0.7
        # At least one real key: rows without any have a property of their own.
        keep[3, keys // 2] = True
        # large enough to show through a small weight, small enough for the squares of half precision
        size = 1e3 if view.dtype.itemsize > 2 else 30.0
        # The same real positions twice, with zeros and with large numbers in the padding: a difference comes from
        # there.
        quiet = _filled(view, inputs, keep, other.map(torch.zeros_like))
        loud = _filled(view, inputs, keep, other.map(partial(torch.mul, size)))
        kinds = ("padding at the end", "one real key", "padding at the start", "holes")
        found, expected = view.run(loud, keep), view.run(quiet, keep)
        for at, kind in enumerate(kinds):
            real = slice(None) if view.shape.cross else keep[at].to(found.device)
            yield Measured(
                gap(found[at][:, real], expected[at][:, real]),
                view.tolerance,
                f"{kind}, {length} positions ({view.shape.dtype})",
            )


def _filled(view: VariantInDtype, inputs: Inputs, keep: Tensor, filler: Inputs) -> Inputs:
    """`inputs` with `filler` in the padded positions: of keys and values, and of the queries in self-attention."""
    at = keep[:, None, :, None].to(inputs.key.device)
    query = inputs.query if view.shape.cross else torch.where(at, inputs.query, filler.query)
    return Inputs(query, torch.where(at, inputs.key, filler.key), torch.where(at, inputs.value, filler.value))


def _lengths(view: VariantInDtype) -> Iterator[Answer]:
    for length in view.lengths:
        inputs = view.inputs(length, batch=2)
        keys = inputs.key.shape[2]
        for real in sorted({1, max(1, keys // 3), max(1, keys - 13), max(1, keys - 1)}):
            keep = torch.ones(2, keys, dtype=torch.bool)
            keep[0, real:] = False
            alone = inputs.example(0)
            queries = alone.query if view.shape.cross else alone.query[:, :, :real]
            expected = view.run(Inputs(queries, alone.key[:, :, :real], alone.value[:, :, :real]))
            found = view.run(inputs, keep)[:1, :, : queries.shape[2]]
            detail = f"{real} real keys and {keys - real} of padding ({view.shape.dtype})"
            yield Measured(gap(found, expected), view.tolerance, detail)


def _neighbours(view: VariantInDtype, padding: bool) -> Iterator[Answer]:
    for length in view.lengths:
        inputs, other = view.inputs(length, batch=3), view.inputs(length, batch=3, salt=1)
        # One by one: variants that share statistics or patterns over the batch differ here.
        alone = torch.cat([view.run(inputs.example(at)) for at in range(3)])
        yield Measured(
            gap(view.run(inputs), alone), view.tolerance, f"in a batch of 3, {length} long ({view.shape.dtype})"
        )
        size = 100.0 if view.dtype.itemsize > 2 else 10.0
        crowd = Inputs(*(torch.cat([x[:1], size * y[1:]]) for x, y in zip(inputs.all(), other.all(), strict=True)))
        keep = None
        if padding:
            keep = torch.ones(3, inputs.key.shape[2], dtype=torch.bool)
            keep[1, 1:] = False
            keep[2] = False
        detail = f"among large neighbours{' and padding' if padding else ''}, {length} long ({view.shape.dtype})"
        yield Measured(gap(view.run(crowd, keep)[:1], alone[:1]), view.tolerance, detail)


def _masked(view: VariantInDtype) -> Iterator[Answer]:
    length = view.lengths[0]
    inputs = view.inputs(length)
    keys = inputs.key.shape[2]
    keep = torch.ones(2, keys, dtype=torch.bool)
    keep[0] = False
    dead = torch.zeros(2, inputs.query.shape[2], dtype=torch.bool)
    dead[0] = True
    if view.shape.causal and keys > 1:
        first = keys // 2
        keep[1, :first] = False
        dead[1, :first] = True
    leaves = inputs.leaves()
    with torch.enable_grad():
        # Softmax over no key is 0 / 0: the usual error is NaN, first in the output and, once that is masked, in
        # gradients.
        output = view.forward(leaves, keep)
        rows = output.detach().transpose(1, 2)[dead.to(output.device)]
        largest = rows.abs().max().item() if rows.isfinite().all() else math.inf
        yield Measured(largest, 0.0, f"output of a query without a key ({view.shape.dtype})")
        if not output.requires_grad:
            return
        trained = [p for p in view.module.parameters() if p.requires_grad]
        grad_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(view.seed)).to(output)
        gradients = torch.autograd.grad(output, [*leaves.all(), *trained], grad_output, allow_unused=True)
    finite = all(g is None or bool(g.isfinite().all()) for g in gradients)
    yield Measured(0.0 if finite else math.inf, 0.0, f"gradient with a fully masked example ({view.shape.dtype})")
