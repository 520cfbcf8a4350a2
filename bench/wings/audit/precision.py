"""Precision: bfloat16 and float16 give what float32 gives of the same rounded numbers, behind many tokens too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from ...gate import traces
from ...gate.lengths import long_lengths, repeated
from ...gate.numerics import row_error
from ...gate.result import Answers, Measured, NotJudged, deviations, error_text, lacks_kernel
from ...run.link import at_the_code
from .away import is_module
from .calls import Inputs
from .convention import with_argument
from .program import setup
from .search import MEMORIES, parameters_of
from .subject import ForeignSubject, by_position

HALF_ALLOWED = 0.25
"""Root mean square of the error in bfloat16 over that of the output, with the same rounded weights: a rotary embedding
whose angles are rounded to 8 bits loses a tenth at 64 positions."""

DRIFT_ALLOWED, EARLY, OF_EARLY = 0.03, 64, 3
"""The same error in the last `EARLY` of 1,100 equal tokens, beside so many times that of the first. Measured: 0.008 or
less of the variants of this package, 0.07 to 0.67 of a state in bfloat16, whose sums stop growing at some 256 terms."""

SHARPER, LATE_ALLOWED = 3, 0.1
"""How much larger inputs are than usual, and the median of the relative error of a late row. Measured: 0.0024 or less
of the variants of this package, 0.01 of softmax with scores in bfloat16, 0.7 of rotary angles in bfloat16."""

_OUTLIERS, _SAME_SIZE = 512, 0.01
"""A size of hidden states that trained models have, whose squares float16 does not hold, and the movement of outputs by
the size of inputs below which they do not depend on it."""

LAST_IN_HALF = 6
FUTURE_ALLOWED = 0.1
"""The movement of earlier outputs in bfloat16, in standard deviations, that another order of sums may make."""


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
            if not lacks_kernel(error) and _autocast_error(subject, dtype, mask, causal):
                yield Measured(math.inf, HALF_ALLOWED, f"{name}: raises {error_text(error, 80)}", program)
                return
            continue
        if raised := _autocast_error(subject, dtype, mask, causal):
            setting = f"with torch.autocast('cpu', torch.{name}): {call}"
            text = f"in autocast to {name} it raises {raised}"
            yield Measured(math.inf, HALF_ALLOWED, text, (*setup(subject.convention, call, mask, causal), setting))
            return
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
        if dtype == torch.bfloat16 and (raised := _raises_behind_autocast(subject, subject.draw())):
            lines = (
                "with torch.autocast('cpu', torch.bfloat16): y = out(inputs)",
                "y.float().square().mean().backward()",
            )
            text = f"after a call in autocast to {name}, backward raises {raised}"
            yield Measured(math.inf, HALF_ALLOWED, text, subject.shown(*lines))
            return
    with suppress(Exception):
        tried += _float32(subject)
    if not refused:
        with suppress(Exception):
            tried += _drift(subject)
        with suppress(Exception):
            tried += _without_size(subject)
    if refused and all(each.value <= each.allowed for each in tried):
        yield NotJudged("; ".join(dict.fromkeys(refused)), verdict="not tried")
    else:
        yield from tried


def _without_size(subject: ForeignSubject) -> Iterator[Measured]:
    """In float16 a layer whose outputs do not depend on the size of its inputs takes large ones too."""
    if not subject.has_inputs_of_numbers:
        return
    inputs = tuple(_OUTLIERS * x for x in subject.draw(1))
    if row_error(subject.outputs(inputs), subject.outputs(subject.draw(1))) > _SAME_SIZE:
        return
    low, exact = _rounded(subject, inputs, torch.float16, None)
    error = row_error(by_position(low, subject.convention.kind), by_position(exact, subject.convention.kind))
    lines = (
        f"low, to = [({_OUTLIERS} * x).half() for x in inputs], lambda kind: m.to(kind) if hasattr(m, 'to') else m",
        "a, b = out(low, to(torch.float16)).float(), out([x.float() for x in low], to(torch.float32))",
        "print(((a - b).norm(dim=-1) / b.norm(dim=-1)).max())",
    )
    found = f"change outputs by {error:.0%}" if math.isfinite(error) else "give NaN or infinity"
    words = f"in float16 inputs times {_OUTLIERS} {found}, though their size changes nothing in float32"
    text = f"{words}: a norm whose squares are beyond 65,504?"
    yield Measured(error, HALF_ALLOWED, text, subject.shown(*lines, batch=1))


def _float32(subject: ForeignSubject) -> Iterator[Measured]:
    """In float32 half of many rows are those of float64: what is trained is the function that float64 shows."""
    for length in long_lengths(subject):
        inputs = subject.draw(1, length)
        found = subject.outputs(inputs)
        if not torch.equal(found, subject.outputs(inputs, seed=1)):
            # numbers that it draws, which `evaluation` tells, are others in float64
            return
        exact = subject.fresh(double=True).outputs(tuple(x.double() if x.is_floating_point() else x for x in inputs))
        error = row_error(found, exact, share=0.5)
        lines = (
            "import copy; n, wide = copy.deepcopy(m), [x.double() if x.is_floating_point() else x for x in inputs]",
            "a, b = out(inputs), out(wide, n.double() if hasattr(n, 'double') else n)",
            "print(((a - b).norm(dim=-1) / b.norm(dim=-1)).median())",
        )
        text = f"half of {length:,} rows in float32 differ by {error:.0%} from those in float64"
        yield Measured(error, LATE_ALLOWED, text, subject.shown(*lines, batch=1, length=length))


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
            yield from _late_in_autocast(subject, length)
        if subject.looks_back:
            yield from _future_in_half(subject, length)


def _future_in_half(subject: ForeignSubject, length: int) -> Iterator[Measured]:
    """In bfloat16 the last of many tokens move no earlier output: 1,093 to 1,099 are one number, in a mask too."""
    where = (torch.arange(length) >= length - LAST_IN_HALF)[None]

    def moved(used: ForeignSubject) -> float:
        inputs = used.draw(1, length)
        base, other = (used.outputs(each)[:, :-LAST_IN_HALF].float() for each in (inputs, used.changed(inputs, where)))
        return float((other - base).abs().max() / base.std().clamp(min=1e-30))

    size = moved(replace(subject, module=subject.copied(dtype="bfloat16"), dtype=torch.bfloat16))
    if size > FUTURE_ALLOWED and moved(subject) > FUTURE_ALLOWED:
        # a leak in float32 too has a finding of its own
        return
    axis, few = -2 if subject.has_inputs_of_numbers else -1, f"-{LAST_IN_HALF}"
    some = f"x.narrow({axis}, {few}, {LAST_IN_HALF})"
    lines = (
        "low, n = [x.bfloat16() if x.is_floating_point() else x for x in inputs], m.to(torch.bfloat16)",
        f"other = [x.clone() for x in low]; [{some}.copy_({some.replace(few, '0')}) for x in other]",
        "a, b = [out(each, n)[:, :-6].float() for each in (other, low)]; print((a - b).abs().max() / b.std())",
    )
    words = f"in bfloat16 the last {LAST_IN_HALF} of {length:,} tokens change earlier outputs"
    text = f"{words} by {deviations(size)}: a mask in bfloat16?"
    yield Measured(size, FUTURE_ALLOWED, text, subject.shown(*lines, batch=1, length=length))


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
    words = f"in bfloat16 half of the last of {length:,} rows differ by {error:.0%} from float32"
    text = f"{words}: positions or a sum in bfloat16?"
    return Measured(error, LATE_ALLOWED, text, subject.shown(*lines, batch=1, length=length))


def gradients_in_training(subject: ForeignSubject) -> Iterator[Measured]:
    """Gradients that an optimiser reads are those of the derivative, and float32 gives those of float64."""
    inputs = subject.draw()
    if is_module(subject.module):
        size = _lost_in_backward(subject.fresh(training=True), inputs)
        lines = (
            "own = [p for p in m.train().parameters() if p.requires_grad]; a = out(inputs).sum()",
            "exact = torch.autograd.grad(a, own, allow_unused=True, retain_graph=True); a.backward()",
            "print([(p.grad - g).norm() / g.norm() for p, g in zip(own, exact) if g is not None])",
        )
        text = f"backward leaves other gradients in .grad than torch.autograd.grad gives, by {size:.0%}: a hook?"
        yield Measured(size, LATE_ALLOWED, text, subject.shown(*lines))
    exact = subject.fresh(double=True).passes(tuple(x.double() for x in inputs))[1:]
    error = max(row_error(low, high, share=0.5) for low, high in zip(subject.passes(inputs)[1:], exact, strict=True))
    text = f"half of the gradients in float32 differ by {error:.0%} from those in float64"
    yield Measured(error, LATE_ALLOWED, text)


@at_the_code
def _lost_in_backward(subject: ForeignSubject, inputs: Inputs) -> float:
    """The largest difference, of a parameter, of what `.grad` holds from the derivative, relative to its size."""
    own, sizes = [each for each in subject.module.parameters() if each.requires_grad], [0.0]
    if not own:
        return 0.0
    with torch.enable_grad():
        output = subject(inputs, None, subject.claims)
        arriving = torch.randn(output.shape, generator=torch.Generator().manual_seed(5)).to(output)
        # of one pass, since another may draw other numbers
        exact = torch.autograd.grad(output, own, arriving, allow_unused=True, retain_graph=True)
        torch.autograd.backward(output, arriving)
    for each, expected in zip(own, exact, strict=True):
        if expected is not None and bool(expected.any()):
            found = torch.zeros_like(expected) if each.grad is None else each.grad
            sizes.append(float((found - expected).norm() / expected.norm()))
    return max(sizes)


def _late_in_autocast(subject: ForeignSubject, length: int) -> Iterator[Measured]:
    """The same where PyTorch lowers the precision of products by itself, such as of angles by positions."""
    inputs = tuple(SHARPER * x for x in subject.draw(1, length))
    with suppress(Exception):
        low = by_position(subject.in_autocast("bfloat16", inputs), subject.convention.kind)[:, -EARLY:]
        error = row_error(low, subject.outputs(inputs)[:, -EARLY:], share=0.5)
        lines = (
            f"x = [{SHARPER} * x for x in inputs]; b = out(x)",
            "with torch.autocast('cpu', torch.bfloat16): a = out(x).float()",
            f"print(((a - b).norm(dim=-1) / b.norm(dim=-1))[:, -{EARLY}:].median())",
        )
        words = f"in autocast half of the last of {length:,} rows differ by {error:.0%} from float32"
        text = f"{words}: positions by a product?"
        yield Measured(error, LATE_ALLOWED, text, subject.shown(*lines, batch=1, length=length))


def remembered(subject: ForeignSubject) -> Answers:
    """Nothing is remembered of earlier calls, and after one in inference mode it still trains."""
    yield from traces.nothing_remembered(subject)
    yield from _contexts_remembered(subject)
    problem = _behind_inference(subject.fresh(), subject.draw(1), subject.draw(1, seed=1))
    lines = (
        "import copy; n = copy.deepcopy(m)",
        "with torch.inference_mode(): out(inputs, n)",
        "n.train(); out(inputs, n).sum().backward()",
    )
    text = f"after a call in inference mode, training raises {problem}"
    yield Measured(float(bool(problem)), 0.0, text, subject.shown(*lines))


def _contexts_remembered(subject: ForeignSubject) -> Iterator[Measured]:
    """Keys and values of a context are kept for the next call, which has another one."""
    plain = subject.convention.plain
    if subject.convention.kind != "layer" or not isinstance(plain, str):
        return
    for name in MEMORIES:
        if name not in parameters_of(subject.module) or f"{name}=" in plain:
            continue
        call = with_argument(plain, name, "x.flip(1)")
        of_context = replace(subject, convention=replace(subject.convention, plain=call, causal=""), claims=False)
        with suppress(Exception):
            for each in traces.nothing_remembered(of_context):
                if isinstance(each, Measured) and each.value > each.allowed:
                    yield replace(each, detail=f"with {name}, {each.detail}")


@at_the_code
def _raises_behind_autocast(subject: ForeignSubject, inputs: Inputs) -> str:
    """The error of a backward pass after a call in autocast, which it is outside of; empty for none of its own."""
    leaves = tuple(x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs)
    parameters = subject.module.parameters() if is_module(subject.module) else ()
    with torch.enable_grad(), suppress(Exception):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = subject(leaves, None, subject.claims)
        loss = loss.float().square().mean()
        if loss.requires_grad:
            try:
                # nothing is left in .grad, which later tests read
                own = [each for each in (*leaves, *parameters) if each.requires_grad]
                torch.autograd.grad(loss, own, allow_unused=True)
            except Exception as error:
                return "" if lacks_kernel(error) else error_text(error, 80)
    return ""


@at_the_code
def _behind_inference(subject: ForeignSubject, inputs: Inputs, others: Inputs) -> str:
    """The error that a training step raises after a call in inference mode, and not before."""
    try:
        with torch.inference_mode():
            subject(tuple(x.clone() for x in inputs), None, subject.claims)
        subject.passes(others, parameters=tuple(subject.trained()))
    except RuntimeError as error:
        return error_text(error, 80) if "nference" in str(error) else ""
    except Exception:
        return ""
    return ""


def _rounded(subject: ForeignSubject, inputs: Inputs, dtype: torch.dtype, valid: Tensor | None) -> list[Tensor]:
    """The outputs in `dtype`, and those in float32 of the same rounded inputs and weights."""
    made, name = [], str(dtype).removeprefix("torch.")
    for each, module in ((dtype, subject.copied(dtype=name)), (torch.float32, subject.copied(by=name))):
        inputs, low = tuple(x.to(each) if x.is_floating_point() else x for x in inputs), subject.with_module(module)
        with torch.no_grad():
            made.append(low(inputs, valid, valid is None or subject.masks_and_looks_back))
    return made


def _autocast_error(subject: ForeignSubject, dtype: torch.dtype, valid: Tensor | None, causal: bool) -> str:
    """The error with weights in float32, for which code may be made alone; empty if it raises nothing of its own."""
    try:
        subject.in_autocast(str(dtype).removeprefix("torch."), subject.draw(), valid, causal)
    except Exception as error:
        return "" if lacks_kernel(error) else error_text(error, 80)
    return ""
