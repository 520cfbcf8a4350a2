"""Numerics: gradients, half precision, draws in evaluation, torch.compile, grouped heads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn

from ...gate.result import Answer, Answers, Measured, NotJudged
from .calls import NAMES, Call
from .convention import with_argument
from .program import setup
from .report import raised
from .search import parameters_of
from .subject import STILL, ForeignSubject, by_position, run

Lines = tuple[str, ...]

HALF_ALLOWED = 0.25
"""Root mean square of the error in bfloat16 over that of the output, with the same rounded weights: a rotary embedding
whose angles are rounded to 8 bits loses a tenth at 64 positions."""

AMOUNT_ALLOWED = 1e-3
"""The difference allowed, in standard deviations of the output, where a sequence is computed at another length."""

SAME = 1e-4
"""The same, where the same products are made."""

DERIVATIVE_ALLOWED = 1e-2
"""The error allowed, as a part of the derivative: a module of float64 with a part in float32 is within a thousandth."""


def draws(subject: ForeignSubject) -> Iterator[Measured]:
    """Outputs are numbers, and two calls in evaluation the same, whatever the seed: dropout is off."""
    inputs, call, kind = subject.draw(), subject.convention.plain, subject.convention.kind
    used = subject.convention.call(padded=False, causal=subject.claims)
    with torch.no_grad():
        finite = bool(subject(inputs, None, subject.claims).isfinite().all())
    if not finite:
        program = (*setup(subject.convention, used, None, subject.claims), f"print(({used}).isfinite().float().mean())")
        yield Measured(math.nan, STILL, "outputs are not all finite", program)
        return
    for seed in (0, 1):
        with torch.no_grad():
            first = subject(inputs)
            other = run(call, subject.module, kind, inputs, None, False, seed)
        size = float((other - first).abs().max() / first.std())
        if size > STILL:
            break
    words = "random draws in evaluation move outputs by" if seed else "two equal calls differ by"
    program = (
        *setup(subject.convention, call),
        f"torch.manual_seed(0); a = {call}",
        f"torch.manual_seed({seed}); b = {call}",
        "print((a - b).abs().max() / a.std())",
    )
    yield Measured(size, STILL, f"{words} {size:.2g}", program)


def gradients(subject: ForeignSubject) -> Answers:
    """Gradients are numbers, those of padding and of the future zero, and the derivative; alone as together."""
    if subject.convention.kind == "model":
        yield _weights_have_gradients(subject)
        return
    # the largest and not what exceeds its allowance most: all sizes are parts of the same gradients
    problems = [each for each in _gradient_problems(subject) if each.value > each.allowed]
    yield max(problems, key=lambda each: (each.value, each.detail)) if problems else Measured(0.0, STILL)


def _weights_have_gradients(subject: ForeignSubject) -> Answer:
    parameters = [each for each in subject.module.parameters() if each.requires_grad]
    try:
        output = subject(subject.draw(), None, True)
        found = torch.autograd.grad(output.float().logsumexp(-1).sum(), parameters, allow_unused=True)
    except Exception as error:
        return NotJudged(f"raises {type(error).__name__}")
    finite = all(bool(each.isfinite().all()) for each in found if each is not None)
    return Measured(0.0 if finite else math.inf, STILL, "gradients of weights are not finite")


def _gradient_problems(subject: ForeignSubject) -> Iterator[Measured]:
    kind, length = subject.convention.kind, subject.convention.length
    names, turned = subject.convention.names, subject.convention.turned
    call = subject.convention.call(padded=False, causal=True)
    leaves = [each.requires_grad_() for each in subject.draw()]
    output = subject.outputs(tuple(leaves), None, True)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(5))
    together = _gradients(output, weights, leaves)
    scale = max(1e-30, *(float(each.abs().max()) for each in together))

    def program(loss: str, *lines: str, call: Call = call, valid: Tensor | None = None, causal: bool = True) -> Lines:
        """Lines that take the gradients `grads` of a loss of `a`, and print what the last of them say."""
        inputs = f"inputs = [each.requires_grad_() for each in ({names},)]"
        grads = f"grads = torch.autograd.grad(({loss}).sum(), inputs)"
        return (*setup(subject.convention, call, valid, causal), inputs, f"a = {call}", grads, *lines)

    def elsewhere(real: Tensor, valid: Tensor | None, causal: bool) -> float:
        """The largest gradient, at positions that are not real, of the outputs that are."""
        output = subject.outputs(tuple(leaves), valid, causal)
        found = _gradients(output, weights * real.reshape(*real.shape, *[1] * (output.ndim - 2)), leaves)
        return max(float(by_position(each, kind)[~real].abs().max()) for each in found) / scale

    if not all(bool(each.isfinite().all()) for each in together):
        lines = program("a.square()", "print([g.isfinite().all() for g in grads])")
        yield Measured(math.inf, STILL, "gradients of the inputs are not finite", lines)
        return
    if subject.claims:
        half = length // 2 - 1
        size = elsewhere((torch.arange(length) < half).expand(2, length), None, True)
        shown = f"print(max(g{turned}[:, {half}:].abs().max() for g in grads))"
        text = f"outputs have gradients of later positions ({size:.2g})"
        yield Measured(size, STILL, text, program(f"a{turned}[:, :{half}].square()", shown))
    if subject.convention.padded and not subject.convention.mask_ignored:
        valid = torch.ones(2, length, dtype=torch.bool)
        valid[0, -5:], valid[1, :3] = False, False
        causal = subject.masks_and_looks_back
        size = elsewhere(valid, valid, causal)
        masked = subject.convention.call(padded=True, causal=causal)
        shown = f"print(max(g{turned}[~valid].abs().max() for g in grads))"
        lines = program(f"a{turned}[valid].square()", shown, call=masked, valid=valid, causal=causal)
        yield Measured(size, STILL, f"padding gets gradients of the outputs of tokens ({size:.2g})", lines)
    for at, name in enumerate(NAMES[kind] if kind == "qkv" else ()):
        alone = [each.detach().requires_grad_(here == at) for here, each in enumerate(leaves)]
        output = subject.outputs(tuple(alone), None, True)
        size = float((_gradients(output, weights, [alone[at]])[0] - together[at]).abs().max()) / scale
        others = "; ".join(f"{other} = {other}.detach()" for other in NAMES[kind] if other != name)
        taken = f"alone, = torch.autograd.grad(b.square().sum(), [{name}])"
        shown = f"print((alone - grads[{at}]).abs().max())"
        text = f"the gradient of {name} is another where {name} alone requires one ({size:.2g})"
        yield Measured(size, SAME, text, program("a.square()", others, f"b = {call}", taken, shown))
    size = _derivative_error(subject)
    first, drawn, *rest = program(
        "a.square()",
        "steps = [torch.randn(each.shape).double() for each in inputs]",
        f"def out({names}): torch.manual_seed(0); return ({call}).square().sum()",
        "ahead, behind = [out(*[x.detach() + d * s for x, s in zip(inputs, steps)]) for d in (1e-6, -1e-6)]",
        "print((ahead - behind) / 2e-6, sum((g * s).sum() for g, s in zip(grads, steps)))",
    )
    doubled = f"m = m.double() if hasattr(m, 'double') else m; {names}, = [x.double() for x in ({names},)]"
    text = f"the gradient is not the derivative ({size:.2g} of it)"
    yield Measured(size, DERIVATIVE_ALLOWED, text, (first, drawn, doubled, *rest))


def _gradients(output: Tensor, weights: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    if not output.requires_grad:
        return [torch.zeros_like(each) for each in leaves]
    loss = (output * weights.to(output.dtype)).sum()
    return list(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))


def _derivative_error(subject: ForeignSubject) -> float:
    """The least error over steps and directions, in float64: a kink or a rounding meets some of them, a fault all."""
    double = subject.in_float64()
    leaves = [each.requires_grad_() for each in double.draw()]
    errors = []
    try:
        output = double(tuple(leaves), None, True)
        if output.dtype != torch.float64:
            return 0.0
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
        found = _gradients(output, weights, leaves)
        for seed in (7, 8):
            generator = torch.Generator().manual_seed(seed)
            ways = [torch.randn(each.shape, generator=generator, dtype=torch.float64) for each in leaves]
            told = float(sum((g * w).sum() for g, w in zip(found, ways, strict=True)))
            for step in (1e-4, 1e-6):
                with torch.no_grad():
                    ahead = double(tuple(each + step * way for each, way in zip(leaves, ways, strict=True)), None, True)
                    behind = double(
                        tuple(each - step * way for each, way in zip(leaves, ways, strict=True)), None, True
                    )
                measured = float(((ahead - behind) * weights).sum()) / (2 * step)
                errors.append(abs(told - measured) / max(abs(measured), abs(told), 1e-6))
    except Exception:
        return 0.0
    return min(errors)


def half(subject: ForeignSubject) -> Answers:
    """bfloat16 and float16 give what float32 gives from the same rounded weights and inputs."""
    if not isinstance(subject.module, nn.Module):
        yield NotJudged("a function has no weights to round")
        return
    refused: list[str] = []
    sizes: list[float] = []
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        low = deepcopy(subject.module).to(dtype)
        inputs = subject.draw()
        rounded = tuple(each.to(dtype) if each.is_floating_point() else each for each in inputs)
        try:
            with torch.no_grad():
                found = subject.with_module(low)(rounded, None, True).float()
                high = deepcopy(low).float()
                floats = tuple(each.float() if each.is_floating_point() else each for each in rounded)
                exact = subject.with_module(high)(floats, None, True)
        except Exception as error:
            refused.append(f"{name} {raised(error, 60)}")
            continue
        size = float((found - exact).square().mean().sqrt() / exact.square().mean().sqrt())
        if not size <= HALF_ALLOWED:
            text = f"differs from float32 by {size:.2g}" if math.isfinite(size) else "gives NaN or infinity"
            listed, call = subject.convention.names, subject.convention.call(padded=False, causal=True)
            program = (
                *setup(subject.convention, call, None, True),
                f"m = m.to(torch.{name})",
                f"{listed}, = [x.to(torch.{name}) if x.is_floating_point() else x for x in ({listed},)]",
                f"a = ({call}).float()",
                "m = m.float()",
                f"{listed}, = [x.float() if x.is_floating_point() else x for x in ({listed},)]",
                f"b = {call}",
                "print((a - b).square().mean().sqrt() / b.square().mean().sqrt())",
            )
            yield Measured(size, HALF_ALLOWED, f"{name} {text}", program)
            return
        sizes.append(size)
    yield NotJudged("; ".join(refused), verdict="note") if refused else Measured(max(sizes), HALF_ALLOWED)


def compiled(subject: ForeignSubject, backend: str) -> Answers:
    """torch.compile gives what eager gives."""
    if not backend:
        yield NotJudged("no backend was named")
        return
    inputs = subject.draw()
    try:
        with torch.no_grad():
            eager = subject(inputs, None, True)
            torch._dynamo.reset()
            fast = subject.with_module(torch.compile(subject.module, backend=backend))(inputs, None, True)
    except Exception as error:
        yield NotJudged(f"{backend} raises {type(error).__name__}", verdict="note")
        return
    finally:
        torch._dynamo.reset()
    size = float((fast - eager).abs().max() / eager.std())
    call = subject.convention.call(padded=False, causal=True)
    program = (
        *setup(subject.convention, call, None, True),
        f"out = lambda m: (torch.manual_seed(0), {call})[1]",
        f"a, b = out(m), out(torch.compile(m, backend={backend!r}))",
        "print((a - b).abs().max() / a.std())",
    )
    yield Measured(size, SAME, f"under {backend} outputs differ by {size:.2g}", program)


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
    text = f"two key heads for four query heads differ from each repeated by {size:.2g}"
    yield Measured(size, SAME, text, program)
