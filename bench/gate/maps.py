"""Maps: the weights that a variant shows are those it uses.

Sees weights that do not make the output, where that is linear in the values. Cannot check the weights of variants that
are not, since weights times values is not their output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ...variants.contract import ScoredVariant, repeat_heads
from ..core.errors import Unsupported
from .case import Case, Inputs, RunSetting, with_heads
from .checked_variant import CheckedVariant
from .distance import gap
from .property import Answer, Measured, NotApplicable, worst
from .twins import SLOW, examined

COMMON_SCORES = (10.3, 1000.3, 10000.3)
COUNTS = (1000, 3000)
"""No powers of two: those hide a threshold that is rounded at the size of the scores."""


def weights_within_mask(checked: CheckedVariant) -> Answer:
    """weights are finite, and exactly zero where the mask forbids"""
    return _answers(checked, _outside)


def weights_by_rows(checked: CheckedVariant) -> Answer:
    """weights of a slice of the queries are that slice of all weights"""
    return _answers(checked, _rows)


def weights_make_output(checked: CheckedVariant) -> Answer:
    """where the output is linear in the values, weights times values is the output"""
    module = checked.module
    if not (isinstance(module, ScoredVariant) or module.simplex):
        return NotApplicable("neither a ScoredVariant nor declared `simplex`")
    return _answers(checked, _products)


def simplex(checked: CheckedVariant) -> Answer:
    """rows of weights are distributions over the allowed keys where that is declared, and not all where it is denied"""
    declared = checked.module.simplex
    if declared is None:
        return NotApplicable("`simplex` is not declared")
    return _answers(checked, _sums if declared else _other_sums)


def rows_sum_whatever_the_scores(checked: CheckedVariant) -> Answer:
    """rows of a distribution sum to one, forward and backward, for equal scores of any size over 1,000 keys"""
    if not checked.module.simplex:
        return NotApplicable("`simplex` is not declared")
    if checked.native.interpreted:
        return NotApplicable("too many keys for an interpreter")
    if not linear_in_value(checked.native):
        return NotApplicable("the output is not linear in the values")
    names = [name for name in examined(checked) if name not in SLOW] or [""]
    return worst(answer for name in names for answer in _common_scores(checked, name))


def closed_cases(checked: CheckedVariant) -> Answer:
    """a map onto the simplex: equal scores share evenly, two keys keep their order, a constant added changes nothing"""
    module = checked.module
    if not (isinstance(module, ScoredVariant) and module.simplex):
        return NotApplicable("not a ScoredVariant that declares `simplex`")
    return worst(_closed(module, checked.native))


def linear_in_value(case: Case) -> bool:
    """Whether twice the values give twice the output, and no values none."""
    length = min(case.length, 24)
    inputs = case.inputs(length)
    output = case.run(inputs)
    twice = case.run(Inputs(inputs.query, inputs.key, 2 * inputs.value))
    none = case.run(Inputs(inputs.query, inputs.key, torch.zeros_like(inputs.value)))
    return gap(twice, 2 * output) <= case.tolerance and not none.any()


def _common_scores(checked: CheckedVariant, name: str) -> Iterator[Answer]:
    crosses = checked.module.supports(replace(checked.shape, cross=True)) is None
    more = {"impl": name} if name else {}
    for keys in COUNTS if checked.thorough else COUNTS[:1]:
        # a value for each query head, so that its gradients sum to the queries
        shape = with_heads(replace(checked.shape, kv_heads=checked.shape.heads, max_length=keys), 2)
        try:
            module = checked.build(shape, **more)
        except Unsupported as refusal:
            yield NotApplicable(str(refusal))
            continue
        # Few queries where that can be, since the cost is theirs times the keys; more than kernels leave to others.
        queries = 32 if crosses else keys
        case = Case(module, shape, 0.0, checked.seed, RunSetting(queries))
        drawn = case.inputs(queries, keys, batch=1)
        for score in COMMON_SCORES if case.dtype.itemsize > 2 else COMMON_SCORES[:1]:
            # score = query · key / sqrt(head_dim), the same for every pair
            entry = math.sqrt(score) * shape.head_dim**-0.25
            query, key = (torch.full_like(x, entry) for x in (drawn.query, drawn.key))
            inputs = Inputs(query, key, torch.ones_like(drawn.value))
            output, _, _, gradient = case.passes(inputs, None, torch.ones_like(drawn.query))
            # Kernels that keep the logarithm of a row's sum round it at the size of the scores. A score is a sum of
            # head_dim equal products, which all round alike, so two passes that sum in another order differ by more
            # the larger head_dim is: PyTorch's own kernel with AVX-512 by 20 units in the last place at 128.
            allowed = 1e-4 + (4 + shape.head_dim / 4) * score * torch.finfo(case.dtype).eps
            where = f"of equal scores of {score:g} over {keys} keys{f', impl={name}' if name else ''}"
            off = (output.double() - 1).abs().max().item()
            yield Measured(off, allowed, f"sum of a row, away from 1, {where}")
            # every query gives a weight of one in all, so the gradients of the values sum to the queries
            total = gradient.double().sum(2) / queries
            off = (total - 1).abs().max().item()
            yield Measured(off, allowed, f"gradient of the values, away from 1 in all, {where}")


def _answers(checked: CheckedVariant, test: Callable[[Case], Iterable[Answer]]) -> Answer:
    case = checked.native
    with torch.no_grad():
        few = case.inputs(min(case.length, 24))
        if case.module.weights(few.query, few.key, case.mask()) is None:
            return NotApplicable("it shows no weights")
        return worst(test(case))


def _masked(case: Case) -> tuple[Inputs, Tensor | None]:
    inputs = case.inputs(case.length)
    if not case.shape.padding:
        return inputs, None
    return inputs, inputs.padded_from(max(1, 2 * inputs.key.shape[2] // 3))


def _weights(case: Case, inputs: Inputs, valid: Tensor | None, rows: slice | None = None) -> Tensor | None:
    return case.module.weights(inputs.query, inputs.key, case.mask(valid), rows)


def _all(case: Case, inputs: Inputs, valid: Tensor | None) -> Tensor:
    weights = _weights(case, inputs, valid)
    assert weights is not None
    return weights


def _allowed(case: Case, inputs: Inputs, valid: Tensor | None, like: Tensor) -> Tensor:
    allowed = case.mask(valid).allowed(inputs.query.shape[2], inputs.key.shape[2], inputs.query.device)
    return torch.ones_like(like, dtype=torch.bool) if allowed is None else allowed.expand_as(like)


def _outside(case: Case) -> Iterator[Answer]:
    inputs, valid = _masked(case)
    weights = _all(case, inputs, valid)
    expected = (*inputs.query.shape[:3], inputs.key.shape[2])
    if weights.shape != expected:
        yield Measured(math.inf, 0.0, f"expected shape {expected}, got {tuple(weights.shape)}")
        return
    yield Measured(float((~weights.isfinite()).sum()), 0.0, "weights that are no number")
    outside = weights.masked_fill(_allowed(case, inputs, valid, weights), 0.0)
    yield Measured(outside.abs().max().item(), 0.0, "a weight where the mask forbids")


def _rows(case: Case) -> Iterator[Answer]:
    inputs, valid = _masked(case)
    whole = _all(case, inputs, valid)
    queries = whole.shape[2]
    for first, last in {(0, 1), (queries // 3, 2 * queries // 3 + 1), (queries - 1, queries), (0, queries)}:
        # Statistics and maps read chunks of rows; a chunk that is numbered from zero would be masked wrongly.
        part = _weights(case, inputs, valid, slice(first, last))
        assert part is not None
        yield Measured(gap(part, whole[:, :, first:last]), case.tolerance, f"rows {first} to {last} of {queries}")


def _products(case: Case) -> Iterator[Answer]:
    if not linear_in_value(case):
        yield NotApplicable("the output is not linear in the values")
        return
    if case.setting.own:
        yield from _last_products(case)
        return
    for inputs, valid in (_masked(case), (case.inputs(), None)):
        weights = _all(case, inputs, valid)
        product = weights.double() @ repeat_heads(inputs.value.double(), weights.shape[1])
        # both the product and the weights are rounded on their way
        yield Measured(gap(case.run(inputs, valid), product), 2 * case.tolerance, "output against weights times values")


def _last_products(case: Case) -> Iterator[Answer]:
    """A few rows alone, at the length to be measured."""
    inputs = case.inputs()
    rows = slice(max(0, inputs.query.shape[2] - 8), inputs.query.shape[2])
    weights = _weights(case, inputs, None, rows)
    assert weights is not None
    product = weights.double() @ repeat_heads(inputs.value.double(), weights.shape[1])
    yield Measured(gap(case.output()[:, :, rows], product), 2 * case.tolerance, f"the last rows, {case.place}")


def _sums(case: Case) -> Iterator[Answer]:
    inputs, valid = _masked(case)
    weights = _all(case, inputs, valid).double()
    alive = _allowed(case, inputs, valid, weights).any(-1)
    if valid is not None and not case.shape.cross:
        # the weights of a padded query mean nothing
        alive = alive & valid[:, None].to(alive.device)
    sums = weights.sum(-1)[alive]
    yield Measured((sums - 1).abs().max().item(), max(case.tolerance, 1e-5), "sum of a row, away from 1")
    yield Measured(max(0.0, -weights.min().item()), 0.0, "a negative weight")


def _other_sums(case: Case) -> Iterator[Answer]:
    inputs, valid = _masked(case)
    weights = _all(case, inputs, valid).double()
    off = (weights.sum(-1) - 1).abs().max().item()
    same = off < 1e-3 and bool((weights >= 0).all())
    yield Measured(float(same), 0.0, f"declared no simplex; a row's sum is up to {off:.1e} away from 1")


def _closed(module: ScoredVariant, case: Case) -> Iterator[Answer]:
    shape, keys = case.shape, 7
    device = torch.device(shape.device)

    def weigh(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return module.weigh(scores.to(device), allowed).double()

    level = torch.full((1, shape.heads, 1, keys), 0.7)
    yield Measured(gap(weigh(level), torch.full_like(level, 1 / keys).to(device)), 1e-5, "constant scores")
    some = torch.zeros(1, 1, 1, keys, dtype=torch.bool, device=device)
    some[..., :3] = True
    # Mass must not go to forbidden keys, and what is left must be shared evenly.
    third = some.double().expand(1, shape.heads, 1, keys) / 3
    yield Measured(gap(weigh(level, some), third), 1e-5, "constant scores, three keys allowed")
    two = weigh(torch.tensor([0.9, 0.4]).expand(1, shape.heads, 1, 2))
    yield Measured(max(0.0, (two[..., 1] - two[..., 0]).max().item()), 0.0, "two keys, the lower above the higher")
    scores = torch.randn(1, shape.heads, 5, keys, generator=torch.Generator().manual_seed(case.seed))
    yield Measured(gap(weigh(scores + 3.0), weigh(scores)), 1e-4, "3 added to every score")
