"""Numerics: finite, the right shape, the same bits twice, no traces, and half precision near single precision.

Cannot see that a formula is wrong: a variant may be finite, deterministic and not what its paper says. Twins test that.
"""

from __future__ import annotations

import math
import pickle
import random as random_module
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...variants.contract import ScoredVariant
from . import masks
from .case import FEW, PARTS, Case, Inputs, gap, permuted
from .result import Answer, Answers, Measured, NotJudged, error_text, lacks_kernel
from .variant import EAGER, build, jitter

HALF_FACTOR = 2.5
GRADIENT_ROOM = 8
"""Gradients are sums over more entries than outputs are, so they round more."""


class SoftmaxReference(ScoredVariant):
    """Softmax from elementary operations: its rounding error is what others are compared with."""


class SoftmaxOfRoundedScores(SoftmaxReference):
    """Softmax as most write it, `(q @ k.mT).softmax(-1) @ v`: in half precision its scores are rounded to that."""

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        scores = super().score(query, key, first)
        return scores.to(query.dtype).to(scores.dtype)


def shape_and_dtype(case: Case) -> Answers:
    """the output has one vector per query, in the dtype and on the device of the values"""
    inputs, output = case.inputs(), case.output
    expected = (inputs.query.shape, inputs.value.dtype, inputs.value.device)
    found = (output.shape, output.dtype, output.device)
    yield Measured(float(found != expected), 0.0, "" if found == expected else f"expected {expected}, got {found}")


def finite(case: Case) -> Answers:
    """no NaN and no infinity in output and gradients, for inputs ten and a hundred times as large and for zeros"""
    # Ten times the usual size is what queries and keys reach late in training; zeros find divisions by a norm.
    scales = {"usual": 1.0, "ten times the usual": 10.0, "zero": 0.0}
    if case.dtype.itemsize > 2:
        scales["a hundred times the usual"] = 100.0
    if case.few_passes:
        scales = {"ten times the usual": 10.0}
    for name, scale in scales.items():
        inputs = Inputs(*(permuted(scale * x) for x in case.inputs()))
        yield _finite(case, inputs, f"{name} inputs, {case.place}")


def any_length(case: Case) -> Answers:
    """one, two, primes, powers of two and their neighbours, and the longest: the right shape and finite"""
    # 1 has no neighbour, primes fit no block, 64 fills one, 65 begins another.
    for length in sorted({min(n, case.length) for n in (1, 2, 3, 7, 31, 64, 65, case.length)}):
        yield _finite(case, case.inputs(length, batch=1), f"{length} long")
        if case.shape.padding and length > 1:
            inputs = case.inputs(length)
            bad = int((~case.run(inputs, inputs.padded_from(1)).isfinite()).sum())
            yield Measured(float(bad), 0.0, f"entries that are no number: {length} long with padding")


def empty_batch(case: Case) -> Answers:
    """no examples in, none out, forward and backward"""
    inputs = case.inputs(batch=0)
    found = case.passes(inputs)
    wrong = [tuple(x.shape) for x, y in zip(found, (inputs.query, *inputs), strict=True) if x.shape != y.shape]
    yield Measured(float(len(wrong)), 0.0, f"shapes {wrong} for a batch of 0" if wrong else "")


def crosses(case: Case) -> Answers:
    """queries and keys of different lengths, either way: the right shape and finite"""
    longest = case.length
    pairs = {(min(n, longest), min(m, longest)) for n, m in ((1, 7), (7, 1), (31, 64), (95, 17), (17, longest))}
    for n, m in sorted(pairs):
        if not case.shape.causal or n <= m:
            yield _finite(case, case.inputs(n, m), f"{n} queries, {m} keys")


def deterministic(case: Case) -> Answers:
    """the same bits twice, forward and backward, from two instances of one seed, and from one of another seed with the
    state of the first

    On a GPU sums may come in another order, so there rounding is allowed.
    """
    other = case.with_module(build(case.factory, case.shape, case.seed))
    first = case.first_passes
    for source, name in ((case, "the same instance"), (other, "another instance of the same seed")):
        for part, a, b in zip(PARTS, source.passes(case.inputs()), first, strict=False):
            yield Measured(gap(a, b), case.rerun_tolerance, f"{part}, {name}")
    loaded = build(case.factory, case.shape, case.seed + 1)
    loaded.load_state_dict(case.module.state_dict())
    error = gap(case.with_module(loaded).run(case.inputs()), case.output)
    detail = "output of another seed with the same state; what is drawn must be a buffer"
    yield Measured(error, case.rerun_tolerance, detail)


def layout(case: Case) -> Answers:
    """contiguous inputs give what slices of joined projections do, forward and backward; outputs are alike whether
    gradients are recorded or not; an input or parameter gets the same gradient whichever others get one"""
    grad_output = case.grad_output(case.output).contiguous()
    expected = case.first_passes
    found = case.passes(Inputs(*map(Tensor.contiguous, case.inputs())), None, grad_output)
    for part, a, b in zip(PARTS, found, expected, strict=False):
        yield Measured(gap(a, b), GRADIENT_ROOM * case.tolerance, f"{part} of contiguous inputs, {case.place}")
    yield Measured(gap(expected[0], case.output), case.tolerance, f"output with gradients recorded, {case.place}")
    if case.shape.padding:
        valid = case.inputs().padded_from(max(1, 2 * case.inputs().key.shape[2] // 3))
        recorded, plain = case.passes(case.inputs(), valid)[0], case.run(case.inputs(), valid)
        detail = f"output with gradients recorded and padding, {case.place}"
        yield Measured(gap(recorded, plain), case.tolerance, detail)
    yield from _asked_for(case, grad_output, expected)
    # that of a sum is one number in memory
    of_sum = grad_output.new_ones(()).expand(grad_output.shape)
    found, expected = (case.passes(case.inputs(), None, given) for given in (of_sum, of_sum.contiguous()))
    for part, a, b in zip(PARTS, found, expected, strict=False):
        yield Measured(gap(a, b), GRADIENT_ROOM * case.tolerance, f"{part} of a sum, {case.place}")


def _asked_for(case: Case, grad_output: Tensor, expected: list[Tensor]) -> Answers:
    """Gradients where one or two inputs alone get one, and those of the parameters where no input does."""
    own = [p for p in case.module.parameters() if p.requires_grad]

    def gradients(wanted: tuple[int, ...], of: Sequence[Tensor] | None = None) -> list[Tensor]:
        leaves = [x.detach().requires_grad_(at in wanted) for at, x in enumerate(case.inputs())]
        of = of or [leaves[at] for at in wanted]
        with torch.enable_grad():
            output = case.forward(Inputs(*leaves))
            if not output.requires_grad:
                return [torch.zeros_like(x) for x in of]
            return list(torch.autograd.grad(output, of, grad_output, allow_unused=True, materialize_grads=True))

    every = tuple(range(len(expected) - 1))
    for wanted in (*combinations(every, 1), *combinations(every, 2)):
        for at, found in zip(wanted, gradients(wanted), strict=True):
            others = f" beside that of {PARTS[1 + sum(wanted) - at][12:]}" if len(wanted) > 1 else " alone"
            error = gap(found, expected[at + 1])
            yield Measured(error, GRADIENT_ROOM * case.tolerance, f"{PARTS[at + 1]} asked for{others}, {case.place}")
    if own:
        for a, b in zip(gradients((), own), gradients(every, own), strict=True):
            detail = f"gradient of a parameter asked for alone, {case.place}"
            yield Measured(gap(a, b), GRADIENT_ROOM * case.tolerance, detail)


def no_state(case: Case) -> Answers:
    """a call gives the same bits before and after calls with a larger batch or a shorter sequence, keeps nothing of
    former parameters, and leaves earlier outputs as they are"""
    if case.kind == "many" and not case.thorough:
        return
    inputs = case.inputs()
    larger = case.inputs(batch=case.batch + (3 if case.thorough else 1), salt=3)
    valid = None
    if case.shape.padding:
        valid = torch.ones(larger.key.shape[0], larger.key.shape[2], dtype=torch.bool)
        valid[:, max(1, larger.key.shape[2] // 2) :] = False
    first = case.first_passes
    held = case.run(inputs)
    kept = held.clone()
    # without gradients as well, since a buffer may be used for outputs that need none; first of the same shape
    case.run(case.inputs(salt=4))
    used = case.run(larger, valid)
    yield Measured(gap(held, kept), 0.0, f"an output after another call, {case.place}")
    case.passes(larger, valid)
    for part, a, b in zip(PARTS, case.passes(inputs), first, strict=False):
        yield Measured(gap(a, b), case.rerun_tolerance, f"{part} after a larger batch, {case.place}")
    alone = case.rebuilt().run(larger, valid)
    yield Measured(gap(used, alone), case.rerun_tolerance, f"a larger batch after a smaller one, {case.place}")
    if case.base is not case:
        return
    # what is made at one call must fit later ones: another mask, other numbers in the same memory, a longer sequence,
    # other parameters
    unused = case.rebuilt()
    if valid is not None:
        error = gap(case.run(larger, valid.flip(1)), unused.run(larger, valid.flip(1)))
        yield Measured(error, case.rerun_tolerance, f"an output after another mask of the same shape, {case.place}")
    memory, other = Inputs(*(x.clone() for x in inputs)), case.inputs(salt=4)
    case.run(memory)
    for x, y in zip(memory, other, strict=True):
        x.copy_(y)
    # strides differ, and with them rounding may
    error = gap(case.run(memory), unused.run(other))
    yield Measured(error, case.tolerance, f"an output of other numbers in the same memory, {case.place}")
    shorter = case.rebuilt()
    shorter.run(case.inputs(min(FEW, case.length), batch=1))
    error = gap(shorter.run(inputs), kept)
    yield Measured(error, case.rerun_tolerance, f"an output after a shorter sequence, {case.place}")
    if any(p.requires_grad for p in case.module.parameters()):
        fresh = case.rebuilt()
        for each in (shorter, fresh):
            jitter(each.module, case.seed)
        error = gap(shorter.run(inputs), fresh.run(inputs))
        yield Measured(error, case.rerun_tolerance, f"an output after a change of its parameters, {case.place}")


def no_side_effects(case: Case) -> Answers:
    """a pass leaves inputs, mask, parameters, buffers, random numbers and global settings as they were"""
    # taken before the first pass, since one that has changed them shows no second change
    before = _global_settings()
    cases = [each for each in case.cases if each.dtype == case.dtype and (case.thorough or each.kind != "many")]
    torch.set_default_dtype(before["the default dtype"])
    drawn = []
    for seed in (case.seed, case.seed + 1):
        build(case.factory, case.shape, seed)
        drawn.append(_random_states())
    if drawn[0][0] == drawn[1][0]:
        yield Measured(1.0, 0.0, "changed: the seed of random numbers, in the constructor")
    # instances that have made no pass yet: the first may change what later ones leave alone
    fresh = []
    for each in cases:
        if each.kind == "after step":
            fresh.append(each.rebuilt())
        else:
            module = build(case.factory, case.shape, case.seed)
            fresh.append(each.with_module(module.train(each.kind == "training")))
    for each in fresh:
        yield _side_effects(each, before)


def _side_effects(case: Case, before: dict[str, Any]) -> Answer:
    inputs = case.inputs()
    valid = inputs.padded_from(max(1, inputs.key.shape[2] // 2)).to(inputs.key.device)
    given = valid if case.shape.padding else None
    kept, kept_valid = [x.clone() for x in inputs], valid.clone()
    parameters = {name: p.detach().clone() for name, p in case.module.named_parameters()}
    # in training a variant may gather statistics
    buffers = {name: b.clone() for name, b in case.module.named_buffers() if case.kind != "training"}
    flags = [(name, p.requires_grad) for name, p in case.module.named_parameters()], case.module.training
    random = _random_states()
    case.run(inputs, given)
    after, drawn = _global_settings(), _random_states()
    # what needs no copy, as tokens that are decoded, may be changed where the others are not
    plain = Inputs(*(x.clone(memory_format=torch.contiguous_format) for x in inputs))
    arriving = case.grad_output(inputs.query)
    case.run(plain, given)
    case.passes(inputs, given, arriving)
    now = dict(case.module.named_buffers())
    found = {
        "an input": not all(torch.equal(a, b) for a, b in zip([*inputs, *plain], [*kept, *kept], strict=True)),
        "the gradient that arrives": not torch.equal(arriving, case.grad_output(inputs.query)),
        "the mask": not torch.equal(valid, kept_valid),
        "a parameter": any(not torch.equal(p, parameters[n]) for n, p in case.module.named_parameters()),
        "a buffer": any(
            n in now and not (now[n].shape == b.shape and torch.equal(now[n], b)) for n, b in buffers.items()
        ),
        "a flag": flags
        != ([(name, p.requires_grad) for name, p in case.module.named_parameters()], case.module.training),
        "random numbers": random != drawn and case.kind != "training",
        **{name: True for name in before if before[name] != after[name]},
    }
    # Left as it was, or every later test of the process would see it.
    torch.set_default_dtype(before["the default dtype"])
    changed = [name for name, is_changed in found.items() if is_changed]
    return Measured(float(len(changed)), 0.0, f"changed: {', '.join(changed)}; {case.place}" if changed else "")


def compiled(case: Case) -> Answers:
    """torch.compile, which traces the code without making other, gives what the code gives"""
    inputs = case.inputs()
    at = torch.arange(inputs.key.shape[2])
    # at the start and in holes: what is padded behind all tokens a causal mask hides
    valid = torch.stack([at >= len(at) // 3, at % 4 != 1])
    torch._dynamo.reset()
    try:
        found = case.with_module(case.factory.traced(case.rebuilt().module)).run(inputs, valid)
    except Exception as error:
        # of the compiler, since the code itself runs
        yield NotJudged(f"torch.compile raises {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        return
    finally:
        torch._dynamo.reset()
    yield Measured(gap(found, case.run(inputs, valid)), case.tolerance, f"output of what is compiled, {case.place}")


def half(name: str, case: Case) -> Answers:
    """bfloat16 or float16, autocast too, stays as near float32 as softmax does, times two and a half, with inputs
    rounded twice"""
    if case.kind == "many":
        return
    try:
        yield from _in_half(name, case)
    except Exception as error:
        if not (case.is_foreign and lacks_kernel(error)):
            raise
        yield NotJudged(error_text(error, 60), verdict="not tried")


def _in_half(name: str, case: Case) -> Answers:
    dtype: torch.dtype = getattr(torch, name)
    # in float32 the definition, where there is one: kernels take seconds to compile for a dtype that is not measured
    eager: dict[str, Any] = {"impl": EAGER} if EAGER in case.factory.implementations else {}
    single, half = case.rebuilt(dtype="float32", **eager), case.rebuilt(dtype=name)
    # scores in float32 are promised by variants of the contract alone
    softmax = (SoftmaxOfRoundedScores if case.is_foreign else SoftmaxReference)(case.shape).eval()
    # sharp scores show what is kept in half precision: a score of 20 then errs by several per cent; one long sequence
    # has rows enough, and half precision is slow on a CPU
    inputs = Inputs(*(x.to(dtype) for x in single.inputs(batch=1 if case.own else 2)))
    inputs = replace(inputs, query=3 * inputs.query)
    exact = Inputs(*(x.float() for x in inputs))
    # a position that is turned, or another step before the product, rounds queries and keys once more, and projections
    # of its own do so twice: their weights, and what they give
    generator, nudge = torch.Generator().manual_seed(case.seed), torch.finfo(dtype).eps / 2
    nudge *= 2 if case.module.owns_projections else 1
    noise = [2 * torch.rand(x.shape, generator=generator).to(x.device) - 1 for x in (exact.query, exact.key)]
    query, key = (x * (1 + nudge * y) for x, y in zip((exact.query, exact.key), noise, strict=True))
    nudged = replace(exact, query=query, key=key)
    padded = [inputs.padded_from(max(1, 2 * inputs.key.shape[2] // 3))] if case.shape.padding else []
    # rows of the length to be measured are as many with padding, and few positions are tried both ways
    for valid in padded if padded and case.own else (*padded, None):
        expected, output = single.run(exact, valid), half.run(inputs, valid)
        own = row_error(output, expected)
        ideal = single.with_module(softmax).run(exact, valid)
        reference = row_error(half.with_module(softmax).run(inputs, valid), ideal)
        once_more = row_error(single.with_module(softmax).run(nudged, valid), ideal)
        # of its own scores, which a temperature makes larger; not of any size, or whoever jumps could hide behind it
        once_more = max(once_more, min(row_error(single.run(nudged, valid), expected), HALF_FACTOR * once_more))
        # tiny outputs lose digits in float16 whoever computes them
        allowed = math.hypot(HALF_FACTOR * reference, once_more) + row_error(expected.to(dtype), expected)
        masked = "" if valid is None else " with padding"
        yield Measured(own, allowed, f"relative error of a row, {case.words}{masked}; softmax {reference:.1e}")
        if output.dtype != dtype:
            yield Measured(1.0, 0.0, f"expected an output in {name}, got {output.dtype}, {case.words}")
        if not case.few_passes:
            with torch.autocast(torch.device(case.shape.device).type, dtype=dtype):
                found = single.run(exact, valid)
            detail = f"relative error of a row in autocast, {case.words}{masked}"
            yield Measured(row_error(found, expected), allowed, detail)
    looks_back = case.shape.causal and not case.shape.cross and case.module.causality == "strict"
    if looks_back and case.module.decodes and not case.few_passes:
        few = exact.part(0, min(FEW, case.length))
        with torch.autocast(torch.device(case.shape.device).type, dtype=dtype):
            found = masks.decoded(single, [few])[0][0]
        detail = f"relative error of a row decoded in autocast, {few.query.shape[2]} steps"
        yield Measured(row_error(found, single.run(few)), allowed, detail)


def row_error(found: Tensor, expected: Tensor, share: float = 0.9) -> float:
    """The error that `share` of the rows stay below, relative to the size of the row plus a tenth of the usual size."""
    found, expected = found.detach().double(), expected.detach().double()
    if not found.isfinite().all():
        return math.inf
    sizes = expected.norm(dim=-1)
    typical = sizes.square().mean().sqrt()
    if typical == 0:
        return 0.0 if torch.equal(found, expected) else math.inf
    # A tenth of the usual size is added, so that rows that are nearly zero do not count as wholly wrong.
    errors = (found - expected).norm(dim=-1) / (sizes + typical / 10)
    return float(errors.flatten().quantile(share))


def _finite(case: Case, inputs: Inputs, detail: str) -> Answer:
    with torch.enable_grad():
        leaves = Inputs(*(x.detach().requires_grad_() for x in inputs))
        output = case.forward(leaves)
        if output.shape != inputs.query.shape:
            return Measured(math.inf, 0.0, f"shape {tuple(output.shape)}: {detail}")
        tensors = [output.detach()]
        if output.requires_grad:
            found = torch.autograd.grad(output.double().sum(), list(leaves), allow_unused=True)
            tensors += [g for g in found if g is not None]
        auxiliary = case.module.auxiliary_loss()
        if auxiliary is not None:
            tensors.append(auxiliary.detach())
    # at once, since the host waits for a GPU at each number
    bad = float(sum((~x.isfinite()).sum() for x in tensors))
    return Measured(bad, 0.0, f"entries that are no number: {detail}")


def _global_settings() -> dict[str, Any]:
    return {
        "the default dtype": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "whether gradients are recorded": torch.is_grad_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the precision of float32 products": torch.get_float32_matmul_precision(),
    }


def _random_states() -> list[bytes]:
    others = random_module.getstate(), np.random.get_state()
    return [torch.get_rng_state().numpy().tobytes(), *(pickle.dumps(each) for each in others)]
