"""Maps: the weights that a variant shows are those it uses, and those that dropout drops.

Sees weights that do not make the output, where that is linear in the values; a rate of dropout that is not compensated,
and weights normalised after the drop, by their mean and variance over draws; a backward pass with a mask of its own, by
finite differences; and a fused path with another mask than its eager twin. Cannot check the weights of variants whose
output is not linear in the values, nor see draws that are not independent between heads, nor a rate that is not
compensated where a variant shows no weights and does not average the values: additive-lm drops two averages and
multiplies them, so that its mean is 0.53 and 0.75 of the output at rates of 0.5 and 0.25, which is what a forgotten
scale gives too.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ...variants.contract import ScoredVariant, repeat_heads
from ..core.errors import Unsupported
from .case import Case, Inputs, RunSetting, gap
from .gradients import directions, small
from .result import Answers, Measured, NotJudged
from .twins import FACTOR, SLOW, differences, examined
from .variant import EAGER, build, seed_draws, with_heads

COMMON_SCORES = (10.3, 1000.3, 10000.3)
COUNTS = (1000, 3000)
"""No powers of two: those hide a threshold that is rounded at the size of the scores."""
FEW = 24
"""Positions where many passes are made."""
RATE = 0.3
"""The drop rate. At 0.5 it equals the keep rate, and a swap would go unseen."""
DRAWS = 48
NO_WEIGHTS = NotJudged("it shows no weights")
NOT_LINEAR = NotJudged("the output is not linear in the values")
DROPS_NOTHING = "it declares that it drops nothing"


def weights_within_mask(case: Case) -> Answers:
    """weights are finite, and exactly zero where the mask forbids"""
    inputs, valid, weights = _shown(case)
    if weights is None:
        yield NO_WEIGHTS
        return
    expected = (*inputs.query.shape[:3], inputs.key.shape[2])
    if weights.shape != expected:
        yield Measured(math.inf, 0.0, f"expected shape {expected}, got {tuple(weights.shape)}")
        return
    yield Measured(float((~weights.isfinite()).sum()), 0.0, "weights that are no number")
    outside = weights.masked_fill(_allowed(case, inputs, valid, weights), 0.0)
    yield Measured(outside.abs().max().item(), 0.0, "a weight where the mask forbids")


def weights_by_rows(case: Case) -> Answers:
    """weights of a slice of the queries are that slice of all weights"""
    inputs, valid, whole = _shown(case)
    if whole is None:
        yield NO_WEIGHTS
        return
    queries = whole.shape[2]
    for first, last in {(0, 1), (queries // 3, 2 * queries // 3 + 1), (queries - 1, queries), (0, queries)}:
        # Statistics and maps read chunks of rows; a chunk that is numbered from zero would be masked wrongly.
        part = case.weights(inputs, valid, slice(first, last))
        assert part is not None
        yield Measured(gap(part, whole[:, :, first:last]), case.tolerance, f"rows {first} to {last} of {queries}")


def weights_make_output(case: Case) -> Answers:
    """where the output is linear in the values, weights times values is the output"""
    if case.weights(case.inputs(min(case.length, FEW))) is None:
        yield NO_WEIGHTS
        return
    if not linear_in_value(case):
        yield NOT_LINEAR
        return
    inputs, valid = case.inputs(case.length), None
    if case.own:
        # a few rows alone
        inputs = case.inputs()
        rows = slice(max(0, inputs.query.shape[2] - 8), inputs.query.shape[2])
        compared = [(case.output[:, :, rows], case.weights(inputs, None, rows), f"the last rows, {case.place}")]
    else:
        masked, valid, weights = _shown(case)
        name = "output against weights times values"
        compared = [(case.run(masked, valid), weights, name)]
        inputs = case.inputs()
        compared += [(case.run(inputs), case.weights(inputs), name)]
    for output, weights, name in compared:
        assert weights is not None
        product = weights.double() @ repeat_heads(inputs.value.double(), weights.shape[1])
        # both the product and the weights are rounded on their way
        yield Measured(gap(output, product), 2 * case.tolerance, name)


def simplex(case: Case) -> Answers:
    """rows of weights are distributions over the allowed keys where that is declared, and not all where it is denied"""
    inputs, valid, shown = _shown(case)
    if shown is None:
        yield NO_WEIGHTS
        return
    weights = shown.double()
    if not case.module.simplex:
        off = (weights.sum(-1) - 1).abs().max().item()
        same = off < 1e-3 and bool((weights >= 0).all())
        yield Measured(float(same), 0.0, f"declared no simplex; a row's sum is up to {off:.1e} away from 1")
        return
    alive = _allowed(case, inputs, valid, weights).any(-1)
    if valid is not None and not case.shape.cross:
        # the weights of a padded query mean nothing
        alive = alive & valid[:, None].to(alive.device)
    off = (weights.sum(-1)[alive] - 1).abs().max().item()
    yield Measured(off, max(case.tolerance, 1e-5), "sum of a row, away from 1")
    yield Measured(max(0.0, -weights.min().item()), 0.0, "a negative weight")


def rows_sum_whatever_the_scores(case: Case) -> Answers:
    """rows of a distribution sum to one, forward and backward, for equal scores of any size over 1,000 keys"""
    if not linear_in_value(case):
        yield NOT_LINEAR
        return
    crosses = case.module.supports(replace(case.shape, cross=True)) is None
    names = [name for name in examined(case.factory, case.shape.device, case.thorough) if name not in SLOW] or [""]
    for name, keys in [(name, keys) for name in names for keys in COUNTS[: 2 if case.thorough else 1]]:
        # a value for each query head, so that its gradients sum to the queries
        shape = with_heads(replace(case.shape, kv_heads=case.shape.heads, max_length=keys), 2)
        # Few queries where that can be, since the cost is theirs times the keys; more than kernels leave to others.
        queries = 32 if crosses else keys
        if keys > COUNTS[0] and not crosses and case.shape.padding:
            # millions of scores, which the settings without padding have as well: no padding stands here
            continue
        try:
            module = build(case.factory, shape, case.seed, **({"impl": name} if name else {}))
        except Unsupported as refusal:
            yield NotJudged(str(refusal))
            continue
        long = Case(case.factory, shape, RunSetting(queries), case.seed, module=module)
        drawn = long.inputs(queries, keys, batch=1)
        for score in COMMON_SCORES if long.dtype.itemsize > 2 else COMMON_SCORES[:1]:
            # score = query · key / sqrt(head_dim), the same for every pair
            entry = math.sqrt(score) * shape.head_dim**-0.25
            query, key = (torch.full_like(x, entry) for x in (drawn.query, drawn.key))
            inputs = replace(drawn, query=query, key=key, value=torch.ones_like(drawn.value))
            try:
                output, _, _, gradient, *_ = long.passes(inputs, None, torch.ones_like(drawn.query))
            except Unsupported as refusal:
                yield NotJudged(f"impl={name}: {refusal}")
                break
            # Kernels that keep the logarithm of a row's sum round it at the size of the scores. A score is a sum of
            # head_dim equal products, which all round alike, so two passes that sum in another order differ by more
            # the larger head_dim is: PyTorch's own kernel with AVX-512 by 20 units in the last place at 128.
            allowed = 1e-4 + (4 + shape.head_dim / 4) * score * torch.finfo(long.dtype).eps
            where = f"of equal scores of {score:g} over {keys} keys{f', impl={name}' if name else ''}"
            off = (output.double() - 1).abs().max().item()
            yield Measured(off, allowed, f"sum of a row, away from 1, {where}")
            # every query gives a weight of one in all, so the gradients of the values sum to the queries
            total = gradient.double().sum(2) / queries
            off = (total - 1).abs().max().item()
            yield Measured(off, allowed, f"gradient of the values, away from 1 in all, {where}")


def closed_cases(case: Case) -> Answers:
    """a map onto the simplex: equal scores share evenly, two keys keep their order, a constant added changes nothing"""
    module = case.module
    assert isinstance(module, ScoredVariant)
    heads, keys, device = case.shape.heads, 7, torch.device(case.shape.device)

    def weigh(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return module.weigh(scores.to(device), allowed).double()

    level = torch.full((1, heads, 1, keys), 0.7)
    yield Measured(gap(weigh(level), torch.full_like(level, 1 / keys).to(device)), 1e-5, "constant scores")
    some = torch.zeros(1, 1, 1, keys, dtype=torch.bool, device=device)
    some[..., :3] = True
    # Mass must not go to forbidden keys, and what is left must be shared evenly.
    third = some.double().expand(1, heads, 1, keys) / 3
    yield Measured(gap(weigh(level, some), third), 1e-5, "constant scores, three keys allowed")
    two = weigh(torch.tensor([0.9, 0.4]).expand(1, heads, 1, 2))
    yield Measured(max(0.0, (two[..., 1] - two[..., 0]).max().item()), 0.0, "two keys, the lower above the higher")
    scores = torch.randn(1, heads, 5, keys, generator=torch.Generator().manual_seed(case.seed))
    yield Measured(gap(weigh(scores + 3.0), weigh(scores)), 1e-4, "3 added to every score")


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


def dropout_in_training_only(case: Case) -> Answers:
    """a dropout rate leaves evaluation as it is, and changes training unless `uses_dropout` is False"""
    dropped, declared = case.rebuilt(dropout=RATE), case.module.uses_dropout
    inputs = case.inputs(min(FEW, case.length))
    error = gap(dropped.run(inputs), case.run(inputs))
    if error > case.tolerance:
        yield Measured(error, case.tolerance, "evaluation differs with a dropout rate")
    elif _draws(dropped, inputs, 2).diff(dim=0).any():
        yield Measured(float(not declared), 0.0, "" if declared else f"{DROPS_NOTHING}, and drops in training")
    elif declared:
        yield Measured(1.0, 0.0, f"two training passes at rate {RATE} are the same; see `uses_dropout`")
    else:
        yield NotJudged(DROPS_NOTHING)


def dropout_in_backward(case: Case) -> Answers:
    """the gradient in training is the derivative of the output with the same draws; a path that drops inside drops what
    its eager twin drops, forward and backward"""
    inputs = case.inputs(min(FEW, case.length))
    if not _draws(case.rebuilt(dropout=RATE), inputs, 2).diff(dim=0).any():
        yield NotJudged(DROPS_NOTHING)
        return
    # a case in training draws from the same state of the generator at each pass
    few = small(case, "training", RATE)
    if few is None:
        yield NotJudged("it refuses float64 on a small shape")
    else:
        yield from directions(few)
    names = examined(case.factory, case.shape.device, case.thorough)
    names = tuple(name for name in names if name in case.module.drops_inside)
    if not names:
        return
    setting = RunSetting(case.length, kind="training")
    eager = case.rebuilt(impl=EAGER, dropout=RATE, setting=setting)
    inputs, valid = eager.inputs(), None
    if case.shape.padding:
        # holes, which a kernel may move away before it draws
        valid = torch.ones(inputs.key.shape[0], inputs.key.shape[2], dtype=torch.bool)
        valid[0, 1::3] = False
    twin = case.rebuilt(dtype="float64", impl=EAGER, dropout=RATE, setting=setting)
    expected = twin.passes(Inputs(*(x.double() for x in inputs)), valid)
    floor = (16 if case.dtype.itemsize > 2 else 2) * torch.finfo(case.dtype).eps
    allowed = [FACTOR * gap(a, b) + floor for a, b in zip(eager.passes(inputs, valid), expected, strict=True)]
    for name in names:
        try:
            found = case.rebuilt(impl=name, dropout=RATE, setting=setting).passes(inputs, valid)
        except Unsupported as refusal:
            yield NotJudged(f"impl={name}: {refusal}")
            continue
        place = f"impl={name} at rate {RATE}, {eager.place}"
        yield from differences(twin, inputs, valid, found, expected, allowed, place)


def dropout_keeps_mean(case: Case) -> Answers:
    """the mean output over draws is the output without dropout, where that is linear in the values; without weights,
    where it averages the values"""
    inputs, dropped = case.inputs(min(FEW, case.length)), case.rebuilt(dropout=RATE)
    reason = _not_dropped(case, dropped, inputs)
    if case.weights(inputs) is None:
        # sums of dropped weights say the same
        inputs = replace(inputs, value=torch.ones_like(inputs.value))
        averages = gap(case.run(inputs), inputs.value.new_ones(inputs.query.shape)) <= case.tolerance
        if averages and _draws(dropped, inputs, 2).diff(dim=0).any():
            reason = ""
    if reason:
        yield NotJudged(reason)
        return
    expected = case.run(inputs).double()
    draws = _draws(dropped, inputs, DRAWS)
    # projected on the expected output all entries speak at once: 1 where the mean is kept, 1 - rate where not scaled
    shares = (draws * expected).flatten(1).sum(1) / expected.square().sum()
    error = shares.std().item() / math.sqrt(DRAWS)
    yield Measured(abs(shares.mean().item() - 1), 5 * error + 1e-3, f"{DRAWS} draws at rate {RATE}, relative to 1")


def dropout_never_renormalises(case: Case) -> Answers:
    """sums of dropped weights vary as independent drops make them, not fixed to one again"""
    inputs, dropped = case.inputs(min(FEW, case.length)), case.rebuilt(dropout=RATE)
    reason = _not_dropped(case, dropped, inputs)
    weights = case.weights(inputs)
    if reason or weights is None:
        yield NotJudged(reason)
        return
    # With values of one the output of a row is the sum of its dropped weights.
    ones = replace(inputs, value=torch.ones_like(inputs.value))
    sums = _draws(dropped, ones, DRAWS)[..., 0]
    # Of independent drops at rate p: the variance of sum(w m / (1 - p)) is sum(w²) p / (1 - p).
    expected = weights.double().square().sum(-1) * RATE / (1 - RATE)
    ratio = (sums.var(0).mean() / expected.mean()).item()
    detail = f"variance of a row's sum is {ratio:.2f} of what independent drops give"
    yield Measured(abs(math.log(max(ratio, 1e-12))), math.log(2.5), detail)


def _shown(case: Case) -> tuple[Inputs, Tensor | None, Tensor | None]:
    """Inputs, padded where the shape has padding, with their mask of keys and their weights; computed once."""
    if "weights" not in case.memo:
        inputs = case.inputs(case.length)
        valid = inputs.padded_from(max(1, 2 * inputs.key.shape[2] // 3)) if case.shape.padding else None
        case.memo["weights"] = inputs, valid, case.weights(inputs, valid)
    shown: tuple[Inputs, Tensor | None, Tensor | None] = case.memo["weights"]
    return shown


def _allowed(case: Case, inputs: Inputs, valid: Tensor | None, like: Tensor) -> Tensor:
    allowed = case.mask(valid).allowed(inputs.query.shape[2], inputs.key.shape[2], inputs.query.device)
    return torch.ones_like(like, dtype=torch.bool) if allowed is None else allowed.expand_as(like)


def linear_in_value(case: Case) -> bool:
    """True if twice the values give twice the output, and no values none."""
    inputs = case.inputs(min(case.length, FEW))
    output, twice = case.run(inputs), case.run(replace(inputs, value=2 * inputs.value))
    none = case.run(replace(inputs, value=torch.zeros_like(inputs.value)))
    return gap(twice, 2 * output) <= case.tolerance and not none.any()


def _not_dropped(case: Case, dropped: Case, inputs: Inputs) -> str:
    if case.weights(inputs) is None:
        return "it shows no weights that could be dropped"
    if not linear_in_value(case):
        return NOT_LINEAR.reason
    return "" if _draws(dropped, inputs, 2).diff(dim=0).any() else DROPS_NOTHING


def _draws(dropped: Case, inputs: Inputs, count: int) -> Tensor:
    """(count, batch, heads, queries, head_dim): outputs in training, each with dropout of its own."""
    seed_draws(dropped.seed)
    dropped.module.train()
    found = torch.stack([dropped.run(inputs).double() for _ in range(count)])
    dropped.module.eval()
    return found
