"""Numerics: gradients, half precision, draws in evaluation, torch.compile, grouped heads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ...gate.gradients import DRAWS, derivative_errors
from ...gate.lengths import long_lengths, repeated, taken
from ...gate.modes import RATE
from ...gate.numerics import row_error
from ...gate.result import Answer, Answers, Measured, NotJudged, deviations, error_text, lacks_kernel
from ...run.link import DTYPES, at_the_code
from .calls import NAMES, Call, Inputs
from .convention import with_argument
from .program import setup
from .search import parameters_of
from .subject import SAME, STILL, ForeignSubject, by_position, run

Lines = tuple[str, ...]

HALF_ALLOWED = 0.25
"""Root mean square of the error in bfloat16 over that of the output, with the same rounded weights: a rotary embedding
whose angles are rounded to 8 bits loses a tenth at 64 positions."""

DRIFT_ALLOWED, EARLY, OF_EARLY = 0.03, 64, 3
"""The same error in the last `EARLY` of 1,100 equal tokens, beside so many times that of the first. Measured: 0.008 or
less of the variants of this package, 0.07 to 0.67 of a state in bfloat16, whose sums stop growing at some 256 terms."""

SHARPER, LATE_ALLOWED = 3, 0.1
"""How much larger inputs are than usual, and the median of the relative error of a late row. Measured: 0.0024 or less
of the variants of this package, 0.01 of softmax with scores in bfloat16, 0.7 of rotary angles in bfloat16."""

LAST_IN_HALF = 6
FUTURE_ALLOWED = 0.1
"""The movement of earlier outputs in bfloat16, in standard deviations, that another order of sums may make."""

AMOUNT_ALLOWED = 1e-3
"""The difference allowed, in standard deviations of the output, where a sequence is computed at another length."""

LARGE = 100
"""The factor of inputs whose scores overflow without a maximum that is subtracted."""

SHORT = 16
"""Positions of derivatives, where the subject takes so few."""

LONG_DERIVATIVE = 300
"""Positions of derivatives beyond a chunk."""

DERIVATIVE_ALLOWED, DERIVATIVE_ALLOWED_FLOAT32 = 3e-3, 1e-2
"""The errors allowed, as parts of the derivative: a module of float64 with a part in float32 is within a thousandth."""


def draws(subject: ForeignSubject) -> Iterator[Measured]:
    """Outputs are numbers, and two calls in evaluation the same, whatever the seed: dropout is off."""
    inputs, call = subject.draw(), subject.convention.plain
    used = subject.convention.call(padded=False, causal=subject.claims)
    with torch.no_grad():
        finite = bool(subject(inputs, None, subject.claims).isfinite().all())
    if not finite:
        program = (*setup(subject.convention, used, None, subject.claims), f"print(({used}).isfinite().float().mean())")
        yield Measured(math.nan, STILL, "some outputs are NaN or infinite", program)
        return
    for seed in (0, 1):
        with torch.no_grad():
            first = subject(inputs)
            other = subject(inputs, seed=seed)
        size = float((other - first).abs().max() / first.std())
        if size > STILL:
            break
    words = "in evaluation, another random seed changes outputs by" if seed else "two equal calls differ by"
    program = (
        *setup(subject.convention, call),
        f"torch.manual_seed(0); a = {call}",
        f"torch.manual_seed({seed}); b = {call}",
        "print((a - b).abs().max() / a.std())",
    )
    yield Measured(size, STILL, f"{words} {deviations(size)}", program)


def gradients(subject: ForeignSubject) -> Answers:
    """Gradients are numbers, those of padding and of the future zero, and the derivative; alone as together."""
    if subject.convention.kind == "model":
        yield _weights_have_gradients(subject)
        return
    # the largest and not what exceeds its allowance most: all sizes are parts of the same gradients
    problems = [each for each in _gradient_problems(subject) if each.value > each.allowed]
    yield max(problems, key=lambda each: (each.value, each.detail)) if problems else Measured(0.0, STILL)


def _weights_have_gradients(subject: ForeignSubject) -> Answer:
    try:
        found = subject.passes(subject.draw(), parameters=tuple(subject.trained()))[1:]
    except Exception as error:
        return NotJudged(f"raises {type(error).__name__}", verdict="not tried")
    finite = all(bool(each.isfinite().all()) for each in found)
    return Measured(0.0 if finite else math.inf, STILL, "some gradients of the weights are NaN or infinite")


def _gradient_problems(subject: ForeignSubject) -> Iterator[Measured]:
    kind, length = subject.convention.kind, subject.convention.length
    names, turned = subject.convention.names, subject.convention.turned
    call = subject.convention.call(padded=False, causal=True)
    inputs = subject.draw()
    output, *together = subject.passes(inputs, causal=True)
    arriving = torch.randn(output.shape, generator=torch.Generator().manual_seed(5)).to(output)
    scale = max(1e-30, *(float(each.abs().max()) for each in together))

    def program(loss: str, *lines: str, call: Call = call, valid: Tensor | None = None, causal: bool = True) -> Lines:
        """Lines that take the gradients `grads` of a loss of `a`, and print what the last of them say."""
        inputs = f"inputs = [each.requires_grad_() for each in ({names},)]"
        grads = f"grads = torch.autograd.grad(({loss}).sum(), inputs)"
        return (*setup(subject.convention, call, valid, causal), inputs, f"a = {call}", grads, *lines)

    def elsewhere(real: Tensor, valid: Tensor | None, causal: bool) -> float:
        """The largest gradient, at positions that are not real, of the outputs that are."""
        at_real = arriving * real.reshape(*real.shape, *[1] * (output.ndim - 2))
        found = subject.passes(inputs, valid, at_real, causal)[1:]
        return max(float(each[~real].abs().max()) for each in found) / scale

    if not all(bool(each.isfinite().all()) for each in together):
        lines = program("a.square()", "print([g.isfinite().all() for g in grads])")
        yield Measured(math.inf, STILL, "some gradients of the inputs are NaN or infinite", lines)
        return
    if subject.claims:
        half = length // 2 - 1
        size = elsewhere((torch.arange(length) < half).expand(2, length), None, True)
        shown = f"print(max(g{turned}[:, {half}:].abs().max() for g in grads))"
        text = f"outputs have gradients at later positions: {size:.1%} of the largest"
        yield Measured(size, STILL, text, program(f"a{turned}[:, :{half}].square()", shown))
    if subject.pads:
        valid = torch.ones(2, length, dtype=torch.bool)
        valid[0, -5:], valid[1, :3] = False, False
        causal = subject.masks_and_looks_back
        size = elsewhere(valid, valid, causal)
        masked = subject.convention.call(padded=True, causal=causal)
        shown = f"print(max(g{turned}[~valid].abs().max() for g in grads))"
        lines = program(f"a{turned}[valid].square()", shown, call=masked, valid=valid, causal=causal)
        yield Measured(size, STILL, f"outputs of tokens have gradients at padding: {size:.1%} of the largest", lines)
    for at, name in enumerate(NAMES[kind] if kind == "qkv" else ()):
        alone = subject.passes(inputs, None, arriving, True, only=at)[1]
        size = float((alone - together[at]).abs().max()) / scale
        others = "; ".join(f"{other} = {other}.detach()" for other in NAMES[kind] if other != name)
        differentiated = f"alone, = torch.autograd.grad(b.square().sum(), [{name}])"
        shown = f"print((alone - grads[{at}]).abs().max())"
        text = f"the gradient of {name} is another where {name} alone requires one, by {size:.1%} of the largest"
        yield Measured(size, SAME, text, program("a.square()", others, f"b = {call}", differentiated, shown))
    yield from _derivatives(subject)
    for many in taken(subject, (LONG_DERIVATIVE,)):
        # between chunks, a carried state may be detached
        yield from _derivatives(subject, f" at {many} tokens", length=many)
    if (dropping := subject.fresh(training=True, rate=RATE)) is not subject:
        # a backward pass may draw another mask
        yield from _derivatives(replace(dropping, pristine=dropping.module), " in training with dropout", training=True)


def _derivatives(
    subject: ForeignSubject, words: str = "", training: bool = False, length: int = 0
) -> Iterator[Measured]:
    """Gradients of each input and parameter against differences: of a detached part they are others.

    length: of the inputs, which are then tried alone.
    """
    for double in (True, False):
        used = subject.fresh(training=training, double=double)
        inputs = used.draw(1, length) if length else used.draw(length=next(iter(taken(subject, (SHORT,))), None))
        own = {} if length else used.trained()
        try:
            output, *found = used.passes(inputs, causal=True, parameters=tuple(own))
        except Exception:
            # a module of float32 alone is judged by float32
            continue
        if output.dtype == used.dtype:
            break
    else:
        return
    arriving = torch.randn(output.shape, generator=torch.Generator().manual_seed(5)).to(output)
    named = dict(zip(NAMES[subject.convention.kind], inputs, strict=True)) | own
    turned = [by_position(each, subject.convention.kind) for each in found[: len(inputs)]] + found[len(inputs) :]
    middle = used.outputs(inputs, None, True)
    if training and not torch.allclose(middle, used.outputs(inputs, None, True), equal_nan=True):
        # a seed of its own, which the finding `training` tells
        return

    def loss(name: str, moved: Tensor) -> float:
        """The loss less that where nothing has moved, entry by entry, so that no digits are lost."""
        given = tuple(
            moved if name == each else x for each, x in zip(NAMES[subject.convention.kind], inputs, strict=True)
        )
        with torch.no_grad():
            there = used.outputs_with(name, moved, inputs) if name in own else used.outputs(given, None, True)
        return float(((there - middle) * arriving).sum())

    # the sizes of all gradients together say what a rounding of float32 is
    steps, floor = (
        ((1e-4, 1e-6), 1e-4) if double else ((1e-2, 1e-3), 0.1 * float(torch.stack([g.norm() for g in found]).max()))
    )
    allowed = DERIVATIVE_ALLOWED if double else DERIVATIVE_ALLOWED_FLOAT32
    for name, size in derivative_errors(named, turned, loss, seed=7, allowed=allowed, steps=steps, floor=floor):
        is_input = name not in own
        of = f"{name}" if is_input else f"m.get_parameter({name!r})"
        lines = (
            "import copy; m = m.double() if hasattr(m, 'double') else m; torch.set_default_dtype(torch.float64)",
            "inputs = [x.double().requires_grad_() for x in inputs]",
            f"{subject.convention.names}, = inputs; p = {of}",
            "d = torch.randn(p.shape); loss = lambda: out(inputs).square().sum()",
            "slope = (torch.autograd.grad(loss(), [p])[0] * d).sum(); p.data += 1e-6 * d; ahead = loss()",
            "p.data -= 2e-6 * d; print((ahead - loss()) / 2e-6, slope); torch.set_default_dtype(torch.float32)",
        )
        text = f"the gradient of {name} is not the derivative{words}: it is wrong by {size:,.1%} of its size"
        yield Measured(size, allowed, text, subject.shown(*lines))


def learns(subject: ForeignSubject) -> Answers:
    """A gradient reaches each parameter, and each of query, key and value, for some draw of the inputs."""
    if subject.convention.kind == "model":
        yield NotJudged("a model may hold parts for other uses")
        return
    own = tuple(subject.trained())
    missed = names = [*NAMES[subject.convention.kind], *own]
    for seed in range(DRAWS):
        if missed:
            found = dict(zip(names, subject.passes(subject.draw(seed=seed), parameters=own)[1:], strict=True))
            missed = [name for name in missed if not bool(found[name].any())]
    lines = (
        "inputs = [x.requires_grad_() for x in inputs]; out(inputs).square().sum().backward()",
        f"named = dict(getattr(m, 'named_parameters', dict)()) | dict(zip({NAMES[subject.convention.kind]}, inputs))",
        "named = {name: p for name, p in named.items() if p.requires_grad and p.numel()}",
        "print([name for name, p in named.items() if p.grad is None or not p.grad.any()])",
    )
    text = f"no gradient reaches {', '.join(missed[:3])}{' …' if len(missed) > 3 else ''}: not used, or detached"
    yield Measured(float(len(missed)), 0.0, text, subject.shown(*lines))


def half(subject: ForeignSubject) -> Answers:
    """bfloat16 and float16 give what float32 gives from the same rounded weights and inputs, with padding too."""
    valid = torch.ones(2, subject.length, dtype=torch.bool)
    valid[0, -(subject.length // 3) :] = False
    refused: list[str] = []
    tried: list[Measured] = []
    for dtype, mask in product((torch.bfloat16, torch.float16), (None, valid)[: 1 + subject.pads]):
        causal = mask is None or subject.masks_and_looks_back
        name = str(dtype).removeprefix("torch.")
        listed, call = subject.convention.names, subject.convention.call(padded=mask is not None, causal=causal)
        lowered = f"{listed}, = [x.to({{}}) if x.is_floating_point() else x for x in ({listed},)]"
        cast = "m = m.to({}) if hasattr(m, 'to') else m"
        program = (
            *setup(subject.convention, call, mask, causal),
            *(line.format(f"torch.{name}") for line in (cast, lowered)),
            f"a = {call}",
        )
        try:
            found, exact = _rounded(subject, subject.draw(), dtype, mask)
        except Exception as error:
            refused.append(f"{name} raises {error_text(error, 60)}")
            if not lacks_kernel(error) and _raises_in_autocast(subject, dtype, mask, causal):
                yield Measured(math.inf, HALF_ALLOWED, f"{name}: raises {error_text(error, 80)}", program)
                return
            continue
        if found.dtype != dtype and subject.convention.kind != "model":
            # models give logits in float32 on purpose
            text = f"it returns {str(found.dtype)[6:]} for inputs of {name}, which costs later layers memory and speed"
            yield Measured(1.0, 0.0, text, (*program, "print(a.dtype)"))
            return
        real = torch.ones_like(valid) if mask is None else mask
        found, exact = (by_position(each, subject.convention.kind)[real].float() for each in (found, exact))
        size = float((found - exact).square().mean().sqrt() / exact.square().mean().sqrt())
        text = f"differs from float32 by {size:.0%} of the output" if math.isfinite(size) else "gives NaN or infinity"
        lines = (*(line.format("torch.float32") for line in (cast, lowered)), f"b = {call}")
        at = "" if mask is None else f"{subject.convention.turned}[valid]"
        shown = f"a, b = a{at}.float(), b{at}; print((a - b).square().mean().sqrt() / b.square().mean().sqrt())"
        tried.append(Measured(size, HALF_ALLOWED, f"{name} {text}", (*program, *lines, shown)))
    if not refused:
        with suppress(Exception):
            tried += _drift(subject)
    if refused and all(each.value <= each.allowed for each in tried):
        yield NotJudged("; ".join(dict.fromkeys(refused)), verdict="not tried")
    else:
        yield from tried


def _drift(subject: ForeignSubject) -> Iterator[Measured]:
    """In bfloat16 outputs are as exact behind many tokens as behind few: a sum over them is one in float32.

    Of equal tokens, since of others rounding alone may choose other keys, more often the more there are.
    """
    # a hundredth of the power of others: what equal tokens cancel has no size of its own
    least = 0.01 * float(subject.outputs(subject.draw()).square().mean())
    for length in long_lengths(subject):
        low, high = _rounded(subject, repeated(subject, length), torch.bfloat16, None)
        off, size = (by_position(each, subject.convention.kind).float() for each in (low - high, high))
        early = float((off[:, :EARLY].square().mean() / size[:, :EARLY].square().mean().clamp(min=least)).sqrt())
        late = float((off[:, -EARLY:].square().mean() / size[:, -EARLY:].square().mean().clamp(min=least)).sqrt())
        many = f"x[..., :1, :].expand(*x.shape[:-2], {length}, x.shape[-1]).bfloat16()"
        lines = (
            f"low = [{many if subject.has_inputs_of_numbers else f'x.expand(1, {length})'} for x in inputs]",
            "to = lambda kind: m.to(kind) if hasattr(m, 'to') else m; a = out(low, to(torch.bfloat16)).float()",
            "b = out([x.float() if x.is_floating_point() else x for x in low], to(torch.float32))",
            f"pairs = ((a[:, :{EARLY}], b[:, :{EARLY}]), (a[:, -{EARLY}:], b[:, -{EARLY}:]))",
            "print([((a - b).square().mean() / b.square().mean()).sqrt().item() for a, b in pairs])",
        )
        text = f"in bfloat16 the error grows from {early:.1%} to {late:.1%} over {length:,} tokens: a sum in bfloat16?"
        if bool(size.isfinite().all()):
            yield Measured(late, DRIFT_ALLOWED + OF_EARLY * early, text, subject.shown(*lines, batch=1, length=1))
        if subject.has_inputs_of_numbers:
            yield _late_error(subject, length)
        if subject.looks_back:
            yield _future_in_half(subject, length)


def _future_in_half(subject: ForeignSubject, length: int) -> Measured:
    """In bfloat16 the last of many tokens move no earlier output: 1,093 to 1,099 are one number, in a mask too."""
    used = replace(subject, module=subject.copied(dtype="bfloat16"), dtype=torch.bfloat16)
    inputs = used.draw(1, length)
    where = (torch.arange(length) >= length - LAST_IN_HALF)[None]
    base, other = (used.outputs(each)[:, :-LAST_IN_HALF].float() for each in (inputs, used.changed(inputs, where)))
    size = float((other - base).abs().max() / base.std().clamp(min=1e-30))
    axis, few = -2 if subject.has_inputs_of_numbers else -1, f"-{LAST_IN_HALF}"
    some = f"x.narrow({axis}, {few}, {LAST_IN_HALF})"
    lines = (
        "low, n = [x.bfloat16() if x.is_floating_point() else x for x in inputs], m.to(torch.bfloat16)",
        f"other = [x.clone() for x in low]; [{some}.copy_({some.replace(few, '0')}) for x in other]",
        "a, b = [out(each, n)[:, :-6].float() for each in (other, low)]; print((a - b).abs().max() / b.std())",
    )
    words = f"in bfloat16 the last {LAST_IN_HALF} of {length:,} tokens change earlier outputs"
    text = f"{words} by {deviations(size)}: a mask in bfloat16?"
    return Measured(size, FUTURE_ALLOWED, text, subject.shown(*lines, batch=1, length=length))


def _late_error(subject: ForeignSubject, length: int) -> Measured:
    """In bfloat16 half of the last rows are near those of float32, where large scores tell places apart.

    Half of them, since rounding may choose other keys in some.
    """
    inputs = tuple(SHARPER * x for x in subject.draw(1, length))
    low, high = _rounded(subject, inputs, torch.bfloat16, None)
    late_low, late_high = (by_position(each, subject.convention.kind)[:, -EARLY:] for each in (low, high))
    error = row_error(late_low, late_high, share=0.5)
    lines = (
        f"low, to = [({SHARPER} * x).bfloat16() for x in inputs], lambda kind: m.to(kind) if hasattr(m, 'to') else m",
        "a, b = out(low, to(torch.bfloat16)).float(), out([x.float() for x in low], to(torch.float32))",
        f"print(((a - b).norm(dim=-1) / b.norm(dim=-1))[:, -{EARLY}:].median())",
    )
    text = f"in bfloat16 half of the last of {length:,} rows differ by {error:.0%} from float32: positions in bfloat16?"
    return Measured(error, LATE_ALLOWED, text, subject.shown(*lines, batch=1, length=length))


def _rounded(subject: ForeignSubject, inputs: Inputs, dtype: torch.dtype, valid: Tensor | None) -> list[Tensor]:
    """The outputs in `dtype`, and those in float32 of the same rounded inputs and weights."""
    made, name = [], str(dtype).removeprefix("torch.")
    for each, module in ((dtype, subject.copied(dtype=name)), (torch.float32, subject.copied(by=name))):
        inputs, low = tuple(x.to(each) if x.is_floating_point() else x for x in inputs), subject.with_module(module)
        with torch.no_grad():
            made.append(low(inputs, valid, valid is None or subject.masks_and_looks_back))
    return made


def _raises_in_autocast(subject: ForeignSubject, dtype: torch.dtype, valid: Tensor | None, causal: bool) -> bool:
    """True if weights in float32 do not help: code may be made for autocast alone."""
    try:
        _in_autocast(subject, str(dtype).removeprefix("torch."), subject.draw(), valid, causal)
    except Exception as error:
        return not lacks_kernel(error)
    return False


@at_the_code
def _in_autocast(subject: ForeignSubject, dtype: str, inputs: Inputs, valid: Tensor | None, causal: bool) -> Tensor:
    """The outputs where PyTorch lowers the precision by itself."""
    with torch.autocast("cpu", dtype=DTYPES[dtype]):
        return subject.outputs(inputs, valid, causal)


def compiled(subject: ForeignSubject, backend: str) -> Answers:
    """torch.compile gives what eager gives."""
    if not backend:
        yield NotJudged("no backend was named: --compile aot_eager", verdict="not tried")
        return
    inputs, length = subject.draw(), subject.convention.length
    # at the start and inside: what is padded behind all tokens a causal mask hides
    valid = torch.ones(2, length, dtype=torch.bool)
    valid[0, :3], valid[1, 4:7] = False, False
    try:
        fast = subject.with_module(_compiled_by(subject, backend))
        for mask in (None, valid) if subject.pads else (None,):
            causal = True if mask is None else subject.masks_and_looks_back
            eager, found = (each.outputs(inputs, mask, causal) for each in (subject, fast))
            real = torch.ones_like(valid) if mask is None else mask
            size = float((found - eager)[real].abs().max() / eager[real].std())
            call, turned = subject.convention.call(padded=mask is not None, causal=causal), subject.convention.turned
            program = (
                *setup(subject.convention, call, mask, causal),
                f"out = lambda m: (torch.manual_seed(0), ({call}){turned})[1]",
                f"a, b = out(m), out(torch.compile(m, backend={backend!r}))",
                "print((a - b).abs().max() / a.std())"
                if mask is None
                else "print((a - b)[valid].abs().max() / a[valid].std())",
            )
            text = f"torch.compile changes outputs{'' if mask is None else ' with padding'} by {deviations(size)}"
            yield Measured(size, subject.allowance(size), text, program)
    except Exception as error:
        yield NotJudged(f"{backend} raises {type(error).__name__}", verdict="not tried")
    finally:
        _forget_compiled(subject)


@at_the_code
def _compiled_by(subject: ForeignSubject, backend: str) -> Any:
    """The module as torch.compile makes it, which has forgotten all that it compiled before."""
    torch._dynamo.reset()
    return torch.compile(subject.module, backend=backend)


@at_the_code
def _forget_compiled(subject: ForeignSubject) -> None:
    """Frees what torch.compile keeps."""
    torch._dynamo.reset()


def large(subject: ForeignSubject) -> Answers:
    """Inputs a hundred times as large, and zeros, give numbers and gradients that are numbers."""
    if not subject.has_inputs_of_numbers:
        yield NotJudged("its inputs are token numbers, which have no size")
        return
    for factor in (LARGE, 0):
        inputs = tuple(factor * each for each in subject.draw())
        lines = (
            f"inputs = [({factor} * x).requires_grad_() for x in inputs]",
            "a = out(inputs); grads = torch.autograd.grad(a.sum(), inputs)",
            "print(*[(~each.isfinite()).double().mean() for each in (a, *grads)])",
        )
        output, *gradients = subject.passes(inputs, causal=True)
        for name, found in (("outputs", output), ("gradients", torch.cat([each.flatten() for each in gradients]))):
            bad = float((~found.isfinite()).double().mean())
            text = f"with inputs times {factor}, {bad:.0%} of the {name} are NaN or infinite"
            yield Measured(bad, 0.0, text, subject.shown(*lines))


def grouped(subject: ForeignSubject) -> Answers:
    """Keys and values of fewer heads give what each of them repeated for its group of queries gives."""
    if subject.convention.kind != "qkv":
        yield NotJudged("its heads are its own")
        return
    query, key, value = subject.draw()
    few = key[:, :2], value[:, :2]
    call = str(subject.convention.plain)
    if "enable_gqa" in parameters_of(subject.module):
        call = with_argument(call, "enable_gqa", "True")
    try:
        with torch.no_grad():
            found = run(call, subject.module, "qkv", (query, *few), None, False)
            repeated = tuple(each.repeat_interleave(2, 1) for each in few)
            expected = subject((query, *repeated))
            in_turn = subject((query, *(each.repeat(1, 2, 1, 1) for each in few)))
        size, turns = (float((found - each).abs().max() / each.std()) for each in (expected, in_turn))
    except Exception:
        yield NotJudged("does not take fewer key heads")
        return
    if turns <= SAME < size:
        text = "key heads are repeated in turn (0, 1, 0, 1), not each for its group (0, 0, 1, 1)"
        yield NotJudged(text, Measured(size, SAME), "note")
        return
    program = (
        *setup(subject.convention, subject.convention.plain),
        "k, v = k[:, :2], v[:, :2]",
        f"a = {call}",
        "k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)",
        f"b = {subject.convention.plain}",
        "print((a - b).abs().max() / b.std())",
    )
    text = f"2 key heads for 4 query heads give other outputs than these heads repeated, by {deviations(size)}"
    yield Measured(size, SAME, text, program)
