"""Padding: whether the content and the amount of padding, or another sequence of the batch, moves outputs at tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from ...gate import traces
from ...gate.lengths import taken
from ...gate.result import Answers, Measured, NotJudged, deviations, error_text
from ...gate.subject import Change
from .calls import Inputs
from .numerics import AMOUNT_ALLOWED, draws
from .program import beside_alone, masks, setup
from .subject import SAME, STILL, ForeignSubject, behind

SQUARE = (8, 1, 7, 2, 6, 3, 5, 4)
"""Tokens of the sequences of a batch that has as many sequences as positions."""

_MANY = 608
"""Positions at which the amount of padding and other sequences are tried too: a scale may spare short texts, long ones
may go another way, and a selection of blocks may leave none out of few."""

_CROWDED = 70
"""Sequences of a batch that code may cut into parts."""

NO_MASK = NotJudged("it takes no mask")
UNTRIED = NotJudged("no padding mask found; if it takes one: --call", verdict="not tried")


def padding(subject: ForeignSubject) -> Answers:
    """Content at padding moves no output at tokens: left, right, inside, each sequence otherwise, batch of one."""
    convention = subject.convention
    if convention.question:
        yield NotJudged(convention.question, verdict="asks")
        return
    if not convention.padded:
        yield UNTRIED
        return
    failed: dict[str, Measured] = {}
    for name, valid in _layouts(convention.length, only_behind=convention.counts_tokens):
        change = Change(where=~valid, look=valid, valid=valid, causal=subject.masks_and_looks_back)
        found = subject.moved(change, "padding changes outputs of tokens")
        if found.value:
            failed[name] = found
    # a mask (N, N) may be taken for one of queries and keys, and that of a part for that of all
    for batch in (len(SQUARE), _CROWDED):
        # of parts of 8, 16, 32 or 64 each has other numbers
        counts = [SQUARE[(3 * at + at // 8) % len(SQUARE)] for at in range(batch)]
        valid = torch.arange(len(SQUARE)) < torch.tensor(counts)[:, None]
        change = Change(where=~valid, look=valid, valid=valid, causal=subject.masks_and_looks_back)
        with suppress(Exception):
            # it may take blocks alone
            found = subject.moved(change, "padding changes outputs of tokens")
            if found.value:
                failed[f"in a batch of {batch} sequences of {len(SQUARE)} positions"] = found
    if not failed:
        with suppress(Exception):
            yield from _of_integers(subject)
        yield Measured(0.0, STILL)
        return
    found = max(failed.values(), key=lambda each: each.value)
    # a batch of one is news where it fails alone
    said = ", ".join(each for each in failed if each.removesuffix(" in a batch of one") not in failed.keys() - {each})
    ignored = f"the mask is ignored, or hides queries instead of keys: {found.detail}"
    yield replace(found, detail=ignored if convention.mask_ignored else f"{found.detail}: {said}")


def _of_integers(subject: ForeignSubject) -> Iterator[Measured]:
    """The same under a mask of ones and zeros, which a tokenizer gives under the name `attention_mask`."""
    calls = (subject.convention.padded, subject.convention.padded_causal)
    padded, causal = (re.sub(r"attention_mask=valid(?=[,)])", r"\g<0>.long()", str(call)) for call in calls)
    if padded == str(calls[0]):
        return
    found = replace(subject, convention=replace(subject.convention, padded=padded, padded_causal=causal))
    valid = torch.ones(2, subject.length, dtype=torch.bool)
    valid[0, :3] = False
    change = Change(where=~valid, look=valid, valid=valid, causal=subject.masks_and_looks_back)
    yield found.moved(change, "under ones and zeros as integers, as of a tokenizer, padding changes outputs of tokens")


def _layouts(length: int, *, only_behind: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Layouts of padding by name, (batch, positions), True at tokens. only_behind: no padding stands before a token."""
    few = max(length // 10, 2)
    every = {"left": slice(0, few), "right": slice(-few, None), "inside": slice(few + 1, 2 * few)}
    for name, places in every.items() if not only_behind else [("right", every["right"])]:
        valid = torch.ones(2, length, dtype=torch.bool)
        valid[0, places] = False
        yield name, valid
        yield f"{name} in a batch of one", valid[:1]
    valid = torch.ones(3, length, dtype=torch.bool)
    valid[0, :few], valid[1, -few:], valid[2, : 2 * few : 3] = False, False, False
    if only_behind:
        yield "another number in each sequence", behind(valid)
    else:
        yield "other places in each sequence", valid
    # which code may think not worth a mask
    valid = torch.ones(3, length, dtype=torch.bool)
    valid[0, -1 if only_behind else 1] = False
    yield "a single position", valid


def amount(subject: ForeignSubject) -> Answers:
    """Padding behind a sequence does not change its outputs."""
    convention = subject.convention
    if not subject.pads:
        yield NO_MASK
        return
    if any(answer.value > answer.allowed for answer in draws(subject)):
        yield NotJudged("outputs are random")
        return
    for length in (convention.length, *taken(subject, (_MANY,))):
        yield from _amount(subject, length)
    with suppress(Exception):
        yield from _as_zeros(subject)


def _as_zeros(subject: ForeignSubject) -> Iterator[Measured]:
    """Padding on the left is no text of zeros, which enter a state by the biases that come after a mask of inputs."""
    if not subject.has_inputs_of_numbers or subject.convention.counts_tokens:
        return
    few, valid, inputs = _padded_on_the_left(subject)
    padded, alone = _outputs_of_tokens(subject)
    zeros = tuple(x * valid.reshape((1, 1, -1, 1) if x.ndim == 4 else (1, -1, 1)) for x in inputs)
    of_zeros = subject.outputs(zeros, None, subject.masks_and_looks_back)[:, few:]
    found = subject.compared("", padded, alone)
    if found.value > found.allowed and subject.compared("", padded, of_zeros).value <= SAME:
        text = f"{few} padded positions before tokens change their outputs by {deviations(found.value)}, as zeros would"
        causal = subject.masks_and_looks_back
        call, plain = (subject.convention.call(padded=masked, causal=causal) for masked in (True, False))
        program = tuple(beside_alone(subject.convention, call, plain, few, subject.length, valid, causal))
        yield replace(found, detail=f"{text}: is the mask used after the biases too?", program=program)


def _padded_on_the_left(subject: ForeignSubject) -> tuple[int, Tensor, Inputs]:
    """A number of padded positions, their mask (1, positions), and one sequence."""
    few = subject.length // 3
    return few, (torch.arange(subject.length) >= few)[None], subject.draw(1)


def _outputs_of_tokens(subject: ForeignSubject) -> tuple[Tensor, Tensor]:
    """The outputs of the tokens behind padding on the left, and of these tokens alone."""
    few, valid, inputs = _padded_on_the_left(subject)
    causal = subject.masks_and_looks_back
    alone = subject.part(inputs, few, subject.length)
    return subject.outputs(inputs, valid, causal)[:, few:], subject.outputs(alone, None, causal)


def _amount(subject: ForeignSubject, length: int) -> Answers:
    convention, causal = subject.convention, subject.masks_and_looks_back
    # together, since a mask may be taken from the first sequence
    # and sorted by a permutation that is not its own inverse
    counts = (length // 3, length - length // 4 - 3, 1, length - 1)
    valid = torch.arange(length) < torch.tensor(counts)[:, None]
    inputs = subject.draw(len(counts), length)
    padded, tried = subject.outputs(inputs, valid, causal), 0
    call, plain = (convention.call(padded=masked, causal=causal) for masked in (True, False))
    cut = "x[{0}:{0} + 1, :, :{1}]" if convention.kind == "qkv" else "x[{0}:{0} + 1, :{1}]"
    for at, tokens in enumerate(counts):
        try:
            alone = subject.outputs(subject.part(tuple(x[at : at + 1] for x in inputs), 0, tokens), None, causal)
        except Exception:
            # of blocks alone
            continue
        tried += 1
        size = float((padded[at : at + 1, :tokens] - alone).abs().max() / alone.std().clamp(min=1e-30))
        program = (
            *setup(subject.convention, call, valid, causal, batch=len(counts), length=length),
            f"torch.manual_seed(0); a = ({call}){convention.turned}[{at}, :{tokens}]",
            f"{convention.names}, = [{cut.format(at, tokens)} for x in ({convention.names},)]",
            *masks(plain, 1, tokens, None, causal),
            f"torch.manual_seed(0); b = ({plain}){convention.turned}[0]",
            "print((a - b).abs().max() / b.std())",
        )
        text = f"{length - tokens} padded positions after {tokens} tokens change their outputs by {deviations(size)}"
        yield Measured(size, subject.allowance(size, AMOUNT_ALLOWED), text, program)
    if not tried:
        yield NotJudged(f"it does not take {counts[0]} positions", verdict="not tried")


def counts_padding(subject: ForeignSubject) -> Iterator[str]:
    """True if padding on the left moves its outputs, as where positions are counted from the first column."""
    if not subject.pads or subject.convention.counts_tokens:
        return
    if subject.compared("", *_outputs_of_tokens(subject)).value > SAME:
        yield "padding on the left changes outputs of tokens: does it count places from the first column?"


def batch(subject: ForeignSubject) -> Answers:
    """Another sequence of the batch moves nothing, where a pattern leaves out tokens too."""
    words = "another sequence of the batch changes the outputs of this one"
    for length in (subject.convention.length, *taken(subject, (_MANY,))):
        other = torch.zeros(3, length, dtype=torch.bool)
        other[1] = True
        yield subject.moved(Change(where=other, look=~other, causal=subject.claims), words)
    yield from traces.neighbours(subject)


def empty_rows(subject: ForeignSubject) -> Answers:
    """Padding that leaves some positions nothing to see leaves outputs and gradients of tokens numbers."""
    if not subject.pads:
        yield NO_MASK
        return
    length = subject.convention.length
    alone, before, inside = torch.ones(3, 2, length, dtype=torch.bool)
    alone[1], before[1, : length // 2], inside[1, length // 4 : -length // 4] = False, False, False
    yield from _empty(subject, alone, "one sequence is all padding")
    yield from _empty(subject, before, "padding comes first, so that a causal mask leaves the first rows no key")
    yield from _empty(subject, inside, "padding fills half of a sequence, more than a window")


def _empty(subject: ForeignSubject, valid: Tensor, words: str) -> Answers:
    valid, convention, causal = subject.laid(valid), subject.convention, subject.masks_and_looks_back
    call = convention.call(padded=True, causal=causal)
    names = "" if convention.kind == "model" else convention.names
    program = (
        *setup(subject.convention, call, valid, causal),
        f"leaves = [each.requires_grad_() for each in [{names}]]",
        "leaves += [p for p in getattr(m, 'parameters', list)() if p.requires_grad]",
        f"a = ({call}){convention.turned}[valid]; print(a.isfinite().all())",
        "grads = torch.autograd.grad(a.sum(), leaves, allow_unused=True)",
        "print(all(g.isfinite().all() for g in grads if g is not None))",
    )
    own = tuple(subject.trained())
    inputs = subject.draw()
    try:
        output = subject.outputs(inputs, valid, causal)
        arriving = torch.ones_like(output) * valid.reshape(*valid.shape, *[1] * (output.ndim - 2))
        gradients = subject.passes(inputs, valid, arriving, causal, own)[1:]
    except Exception as error:
        yield Measured(math.nan, 0.0, f"where {words}, it raises {error_text(error, 80)}", program)
        return
    if not bool(output[valid].isfinite().all()):
        yield Measured(math.inf, 0.0, f"outputs of tokens are NaN where {words}", program)
    elif any(not bool(each.isfinite().all()) for each in gradients):
        yield Measured(math.inf, 0.0, f"gradients are NaN where {words}", program)
    else:
        yield Measured(0.0, 0.0)
