"""Padding: whether the content and the amount of padding, or another sequence of the batch, moves outputs at tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .experiment import Experiment, confirmed, drawing, masks
from .numerics import draws
from .report import Finding
from .subject import Subject, by_position

NOT_MASKED = "no mask found"


def padding(subject: Subject, claims: bool) -> Finding:
    """Content at padding moves no output at tokens: left, right, inside, each sequence otherwise, batch of one."""
    if subject.convention.question:
        return Finding(name="padding", verdict="question", text=subject.convention.question)
    if not subject.convention.padded:
        return Finding(name="padding", verdict="n.a.", text=NOT_MASKED)
    causal = claims and bool(subject.convention.call(padded=True, causal=True))
    failed: dict[str, tuple[float, Experiment]] = {}
    for name, valid in layouts(subject.convention.length):
        experiment = Experiment(where=~valid, look=valid, valid=valid, causal=causal)
        size = confirmed(experiment, subject)
        if size:
            failed[name] = size, experiment
    if not failed:
        return Finding(name="padding", verdict="ok", size=0.0)
    size, experiment = max(failed.values(), key=lambda each: each[0])
    names = "the mask is ignored" if subject.convention.mask_ignored else ", ".join(failed)
    text = f"{names}: padded content moves tokens by {size:.2g}"
    return Finding(name="padding", verdict="fails", size=size, text=text, program=tuple(experiment.program(subject)))


def layouts(length: int) -> Iterator[tuple[str, Tensor]]:
    """Where padding may lie, (batch, positions), True at tokens."""
    few = max(length // 10, 2)
    for name, places in (("left", slice(0, few)), ("right", slice(-few, None)), ("inside", slice(few + 1, 2 * few))):
        valid = torch.ones(2, length, dtype=torch.bool)
        valid[0, places] = False
        yield name, valid
        yield f"{name} in a batch of one", valid[:1]
    valid = torch.ones(3, length, dtype=torch.bool)
    valid[0, :few], valid[1, -few:], valid[2, : 2 * few : 3] = False, False, False
    yield "each sequence otherwise", valid


def amount(subject: Subject, claims: bool) -> Finding:
    """A sequence with padding behind it gives what it gives alone."""
    if not subject.convention.padded or subject.convention.mask_ignored:
        return Finding(name="amount of padding", verdict="n.a.", text=NOT_MASKED)
    if draws(subject, claims).verdict != "ok":
        return Finding(name="amount of padding", verdict="n.a.", text="outputs are random")
    causal = claims and bool(subject.convention.call(padded=True, causal=True))
    length = subject.convention.length
    tokens, kind = length - length // 4 - 3, subject.convention.kind
    valid = (torch.arange(length) < tokens)[None]
    inputs = subject.draw(1, length)
    short = tuple(each[:, :, :tokens] if kind == "qkv" else each[:, :tokens] for each in inputs)
    with torch.no_grad():
        padded = by_position(subject(inputs, valid, causal), kind)[:, :tokens]
        try:
            alone = by_position(subject(short, None, causal), kind)
        except Exception:
            return Finding(name="amount of padding", verdict="n.a.", text=f"does not take {tokens} positions")
    size = float((padded - alone).abs().max() / alone.std().clamp(min=1e-30))
    if size <= 1e-3:
        return Finding(name="amount of padding", verdict="ok", size=size)
    call, plain = (subject.convention.call(padded=masked, causal=causal) for masked in (True, False))
    turned = ".transpose(1, 2)" if kind == "qkv" else ""
    names = "q, k, v" if kind == "qkv" else "ids" if kind == "model" else "x"
    cut = f"[:, :, :{tokens}]" if kind == "qkv" else f"[:, :{tokens}]"
    program = (
        *drawing(subject, 1, length),
        *masks(call, 1, length, valid, causal),
        f"torch.manual_seed(0); a = ({call}){turned}[:, :{tokens}]",
        f"{names} = {', '.join(name + cut for name in names.split(', '))}",
        *masks(plain, 1, tokens, None, causal),
        f"torch.manual_seed(0); b = ({plain}){turned}",
        "print((a - b).abs().max() / b.std())",
    )
    text = f"{length - tokens} padded positions behind {tokens} tokens move them by {size:.2g}"
    return Finding(name="amount of padding", verdict="fails", size=size, text=text, program=program)


def batch(subject: Subject, claims: bool) -> Finding:
    """Another sequence of the batch moves nothing."""
    other = torch.zeros(3, subject.convention.length, dtype=torch.bool)
    other[1] = True
    experiment = Experiment(where=other, look=~other, causal=claims)
    size = confirmed(experiment, subject)
    if not size:
        return Finding(name="batch", verdict="ok", size=0.0)
    text = f"another sequence moves this one by {size:.2g}"
    return Finding(name="batch", verdict="fails", size=size, text=text, program=tuple(experiment.program(subject)))


def empty_rows(subject: Subject, claims: bool) -> Finding:
    """A sequence of padding alone leaves outputs and gradients of the others numbers."""
    if not subject.convention.padded or subject.convention.mask_ignored:
        return Finding(name="empty rows", verdict="n.a.", text=NOT_MASKED)
    valid = torch.ones(2, subject.convention.length, dtype=torch.bool)
    valid[1] = False
    causal = claims and bool(subject.convention.call(padded=True, causal=True))
    inputs = subject.draw()
    leaves = [each.requires_grad_() for each in inputs if each.is_floating_point()]
    leaves += [each for each in getattr(subject.module, "parameters", list)() if each.requires_grad]
    call = subject.convention.call(padded=True, causal=causal)
    names = {"qkv": "q, k, v", "layer": "x", "model": ""}[subject.convention.kind]
    program = (
        *drawing(subject, 2, subject.convention.length),
        *masks(call, 2, subject.convention.length, valid, causal),
        f"leaves = [each.requires_grad_() for each in [{names}]]",
        "leaves += [p for p in getattr(m, 'parameters', list)() if p.requires_grad]",
        f"a = ({call})[0]; print(a.isfinite().all())",
        "grads = torch.autograd.grad(a.sum(), leaves, allow_unused=True)",
        "print(all(g.isfinite().all() for g in grads if g is not None))",
    )
    try:
        output = subject(inputs, valid, causal)
        gradients = torch.autograd.grad(output[0].sum(), leaves, allow_unused=True) if output.requires_grad else ()
    except Exception as error:
        text = f"raises {type(error).__name__}: {' '.join(str(error).split())[:80]}"
        return Finding(name="empty rows", verdict="fails", text=text, program=program)
    if not bool(output[0].isfinite().all()):
        text = "a sequence without a token makes others NaN"
    elif any(not bool(each.isfinite().all()) for each in gradients if each is not None):
        text = "gradients are NaN where one sequence has no token (and perhaps wherever a position sees none)"
    else:
        text = "" if bool(output[1].isfinite().all()) else "ok (its own outputs are NaN)"
        return Finding(name="empty rows", verdict="ok", size=0.0, text=text)
    return Finding(name="empty rows", verdict="fails", size=float("inf"), text=text, program=program)
