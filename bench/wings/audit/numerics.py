"""Numerics: gradients, half precision, draws in evaluation, torch.compile, grouped heads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...gate.gradients import DRAWS, derivative_errors
from ...gate.lengths import taken
from ...gate.modes import RATE
from ...gate.result import Answer, Answers, Measured, NotJudged, deviations, error_text
from ...run.link import at_the_code
from .calls import NAMES, Call, Inputs, constructed_anew
from .convention import with_argument
from .precision import gradients_in_training
from .program import setup
from .search import parameters_of
from .subject import SAME, STILL, ForeignSubject, by_position, run

Lines = tuple[str, ...]

AMOUNT_ALLOWED = 1e-3
"""The difference allowed, in standard deviations of the output, where a sequence is computed at another length."""

LARGE = 100
"""The factor of inputs whose scores overflow without a maximum that is subtracted."""

SHORT = 16
"""Positions of derivatives, where the subject takes so few."""

_TIMES = 5
"""How many times as large the inputs of other derivatives are."""

LONG_DERIVATIVE, QUICK_SECONDS = 608, 0.06
"""Positions of derivatives beyond a chunk, and the seconds of a pass up to which parameters have some there too."""

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


def evaluation(subject: ForeignSubject) -> Answers:
    """The same as `draws`, and what a module draws when it is built is saved with it."""
    yield from draws(subject)
    found = _restored(subject, subject.draw())
    if len(found) == 2 and bool(found[0].isfinite().all()):
        size = float((found[0] - found[1]).abs().max() / found[0].std())
        text = (
            f"a saved state gives other outputs in another module, by {deviations(size)}: a drawn buffer is not saved"
        )
        yield Measured(size, AMOUNT_ALLOWED, text, ("# build two modules after other seeds, and load one state_dict",))


@at_the_code
def _restored(subject: ForeignSubject, inputs: Inputs) -> list[Tensor]:
    """The outputs of two modules that were built after other seeds and have loaded the state of this one."""
    if not isinstance(subject.module, nn.Module):
        return []
    found = []
    with suppress(Exception):
        for seed in (1, 2):
            torch.manual_seed(seed)
            [other] = constructed_anew(subject.module, {})
            other.load_state_dict(subject.module.state_dict())
            found.append(subject.with_module(other.eval()).outputs(inputs))
    return found


def gradients(subject: ForeignSubject) -> Answers:
    """Gradients are numbers, those of padding and of the future zero, and the derivative; alone as together."""
    if subject.convention.kind == "model":
        yield _weights_have_gradients(subject)
        return
    # the largest and not what exceeds its allowance most: all sizes are parts of the same gradients
    problems = [each for each in _gradient_problems(subject) if each.value > each.allowed]
    if not problems:
        with suppress(Exception):
            # what takes no float64 has been refused before
            problems = [each for each in gradients_in_training(subject) if each.value > each.allowed]
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
        valid = subject.laid(valid)
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
    # a cap or a clamp changes scores that are large
    yield from _derivatives(subject, f" for inputs times {_TIMES}", own=False, times=_TIMES)
    start = subject.seconds
    for many in taken(subject, (LONG_DERIVATIVE,)):
        # between chunks, a carried state may be detached
        is_quick = subject.seconds - start < QUICK_SECONDS
        yield from _derivatives(subject, f" at {many} tokens", length=many, own=is_quick)
    if (dropping := subject.fresh(training=True, rate=RATE)) is not subject:
        # a backward pass may draw another mask
        yield from _derivatives(replace(dropping, pristine=dropping.module), " in training with dropout", training=True)


def _derivatives(
    subject: ForeignSubject, words: str = "", training: bool = False, length: int = 0, own: bool = True, times: int = 1
) -> Iterator[Measured]:
    """Gradients of each input and parameter against differences: of a detached part they are others.

    length: of the inputs, one sequence. own: of parameters too. times: how large inputs are; float32 tells too little
    of large ones.
    """
    for double in (True,) if times > 1 else (True, False):
        used = subject.fresh(training=training, double=double)
        inputs = used.draw(1, length) if length else used.draw(length=next(iter(taken(subject, (SHORT,))), None))
        inputs = tuple(times * x for x in inputs)
        trained = used.trained() if own else {}
        try:
            output, *found = used.passes(inputs, causal=True, parameters=tuple(trained))
        except Exception:
            # a module of float32 alone is judged by float32
            continue
        if output.dtype == used.dtype:
            break
    else:
        return
    arriving = torch.randn(output.shape, generator=torch.Generator().manual_seed(5)).to(output)
    named = dict(zip(NAMES[subject.convention.kind], inputs, strict=True)) | trained
    turned = [by_position(each, subject.convention.kind) for each in found[: len(inputs)]] + found[len(inputs) :]
    middle = used.outputs(inputs, None, True)
    if training and not torch.allclose(middle, used.outputs(inputs, None, True), equal_nan=True):
        # a seed of its own, which the finding `training` tells
        return
    if bad := float((~middle.isfinite()).double().mean()):
        text = f"{bad:.1%} of the outputs are NaN or infinite{words}"
        first = "m.train(); " if training else ""
        shown = f"{first}print(out([{times} * x for x in inputs]).isfinite().double().mean())"
        yield Measured(math.inf, 0.0, text, used.shown(shown, length=length or None))
        return

    def loss(name: str, moved: Tensor) -> float:
        """The loss less that where nothing has moved, entry by entry, so that no digits are lost."""
        given = tuple(
            moved if name == each else x for each, x in zip(NAMES[subject.convention.kind], inputs, strict=True)
        )
        with torch.no_grad():
            there = used.outputs_with(name, moved, inputs) if name in trained else used.outputs(given, None, True)
        return float(((there - middle) * arriving).sum())

    # the sizes of all gradients together say what a rounding of float32 is
    steps, floor = (
        ((1e-4, 1e-6), 1e-4) if double else ((1e-2, 1e-3), 0.1 * float(torch.stack([g.norm() for g in found]).max()))
    )
    allowed = DERIVATIVE_ALLOWED if double else DERIVATIVE_ALLOWED_FLOAT32
    for name, size in derivative_errors(named, turned, loss, seed=7, allowed=allowed, steps=steps, floor=floor):
        is_input = name not in trained
        of = f"{name}" if is_input else f"m.get_parameter({name!r})"
        lines = (
            "import copy; m = m.double() if hasattr(m, 'double') else m; torch.set_default_dtype(torch.float64)",
            f"inputs = [({times} * x.double()).requires_grad_() for x in inputs]",
            f"{subject.convention.names}, = inputs; p = {of}",
            "d = torch.randn(p.shape); loss = lambda: out(inputs).square().sum()",
            "slope = (torch.autograd.grad(loss(), [p])[0] * d).sum(); p.data += 1e-6 * d; ahead = loss()",
            "p.data -= 2e-6 * d; print((ahead - loss()) / 2e-6, slope); torch.set_default_dtype(torch.float32)",
        )
        text = f"the gradient of {name} is not the derivative{words}: it is wrong by {size:,.1%} of its size"
        yield Measured(size, allowed, text, subject.shown(*lines))


def second_derivatives(subject: ForeignSubject) -> Answers:
    """The derivative of gradients, where it can be taken, against differences of these gradients, in float64."""
    if subject.convention.kind == "model":
        yield NotJudged("its inputs are token numbers, which have no gradients")
        return
    used = subject.fresh(double=True)
    inputs = used.draw(length=next(iter(taken(subject, (SHORT,))), None))
    try:
        output, *first = used.passes(inputs, causal=True)
        drawn = torch.Generator().manual_seed(11)
        along = tuple(torch.randn(x.shape, generator=drawn, dtype=torch.float64) for x in inputs)
        arriving = torch.randn(output.shape, generator=drawn, dtype=torch.float64)
        found = _curvature(used, inputs, arriving, along)
        ahead, behind = (
            used.passes(tuple(x + step * d for x, d in zip(inputs, along, strict=True)), None, arriving, True)[1:]
            for step in (1e-5, -1e-5)
        )
    except Exception as error:
        yield NotJudged(f"it says that it has none, or takes no float64: {error_text(error, 80)}")
        return
    if output.dtype != torch.float64 or not found:
        yield NotJudged("its gradients have none, or it rounds to less than float64")
        return
    expected = [(a - b) / 2e-5 for a, b in zip(ahead, behind, strict=True)]
    scale = max(1e-6 * max(float(each.norm()) for each in first), *(float(each.norm()) for each in expected))
    turned = [by_position(each, subject.convention.kind) for each in found]
    size = max(float((a - b).norm()) for a, b in zip(turned, expected, strict=True)) / max(scale, 1e-30)
    text = f"for a gradient penalty, the derivative of its gradients is wrong by {size:,.1%} of its size, silently"
    lines = (
        "inputs = [x.double().requires_grad_() for x in inputs]; m.double(); torch.set_default_dtype(torch.float64)",
        "grad = lambda x, graph=False: torch.autograd.grad(out(x).square().sum(), x, create_graph=graph)",
        "d = [torch.randn_like(x) for x in inputs]",
        "move = lambda e: [(x + e * y).detach().requires_grad_() for x, y in zip(inputs, d)]",
        "slope = torch.autograd.grad(sum((g * y).sum() for g, y in zip(grad(inputs, True), d)), inputs)[0]",
        "print((slope - (grad(move(1e-5))[0] - grad(move(-1e-5))[0]) / 2e-5).norm() / slope.norm())",
    )
    answer = Measured(size, DERIVATIVE_ALLOWED, text, subject.shown(*lines))
    # few take it, and a backward pass of one's own seldom has it
    yield answer if size <= DERIVATIVE_ALLOWED else NotJudged(text, answer, "note")


@at_the_code
def _curvature(subject: ForeignSubject, inputs: Inputs, arriving: Tensor, along: Inputs) -> list[Tensor]:
    """The gradients of the gradients' sum along a direction; empty where they have none, raises where they say so."""
    with torch.enable_grad():
        leaves = tuple(each.detach().requires_grad_() for each in inputs)
        output = by_position(subject(leaves, None, True), subject.convention.kind)
        first = torch.autograd.grad(
            output, leaves, arriving, create_graph=True, allow_unused=True, materialize_grads=True
        )
        slope = sum((each * way).sum() for each, way in zip(first, along, strict=True))
        if not isinstance(slope, Tensor) or not slope.requires_grad:
            return []
        # through all of the graph: a part that has no derivative raises when it is reached
        slope.backward()  # type: ignore[no-untyped-call]
        for each in getattr(subject.module, "parameters", list)():
            each.grad = None
        return [torch.zeros_like(each) if each.grad is None else each.grad for each in leaves]


def learns(subject: ForeignSubject) -> Answers:
    """A gradient reaches each parameter, and each of query, key and value, for some draw of the inputs."""
    if subject.convention.kind == "model":
        yield NotJudged("a model may hold parts for other uses")
        return
    # what calls before have kept has a finding of its own
    subject = subject.fresh()
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


def idle_rows(subject: ForeignSubject) -> Iterator[str]:
    """Tables, such as of distances, of which most rows are never read though there are as many positions."""
    subject = subject.fresh()
    own = tuple(subject.trained())
    gradients = subject.passes(subject.draw(1), parameters=own, causal=subject.claims)[-len(own) :] if own else []
    for name, found in zip(own, gradients, strict=True):
        if found.ndim == 2 and len(found) <= subject.length:
            read = int(found.any(1).sum())
            if 0 < read < len(found) / 2:
                yield f"of {name}, {read} of {len(found)} rows are read by {subject.length} tokens"


def compiled(subject: ForeignSubject, backend: str) -> Answers:
    """torch.compile gives what eager gives."""
    if not backend:
        yield NotJudged("no backend was named: --compile aot_eager", verdict="not tried")
        return
    inputs, length = subject.draw(), subject.convention.length
    # at the start and inside: what is padded behind all tokens a causal mask hides
    valid = torch.ones(2, length, dtype=torch.bool)
    valid[0, :3], valid[1, 4:7] = False, False
    valid = subject.laid(valid)
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
