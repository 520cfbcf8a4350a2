"""Lengths: no sequence, one token, what no block divides, and more than blocks and chunks usually hold.

Sees a last block that is dropped or filled with zero keys, a carried state that loses tokens, a mask that hides the
tokens before a query, and a leak that begins late. Cannot see such a fault in a layer that refuses these lengths, nor a
lost token where a pattern leaves out tokens by design: then a token alone between others that are seen is no fault.
Whether a query sees its own token as a key is left open: a change of that token changes the query too, and some
mechanisms leave it out on purpose.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from .result import Answers, Measured, NotJudged, error_text
from .subject import Subject, Tensors, future

BLOCK = 128
"""A multiple of the usual blocks, up to that of tiles."""
ODD = (1, 2, 3, 31, 33, 43, 63, 65, 95, 100, 127, 129)
"""Lengths that no block divides, and one past a block."""
_WHOLE = (16, 48, 64, 128)
"""Lengths for which code may take another way."""
_LONG_ALLOWED = 0.1
"""What float32 may lose over so many equal tokens, in standard deviations; keys that are left out are several."""
LONG, EDGES = 1100, (130, 257, 513, 640, 1025, 1099)
"""A length beyond the usual chunks and blocks, and places behind their ends."""
_BETWEEN = 900
"""A length within a power of two that a transform may have been made for."""
SLOW_SECONDS = 0.2
_NEAR = 4
"""The most tokens before a query that a wrong mask hides. As many behind them are seen, which a stride leaves out."""
LAST = 8
"""Rows whose inputs are looked for."""
_FORGOTTEN = 1e-20
"""The part of the largest gradient below which a token is as good as forgotten."""
MOST_HOLES, MOST_LOST = 0.1, 0.6
"""The share of tokens that a fault may lose, of what looks back and of others: a pattern by design leaves out more."""


def empty_batch(subject: Subject) -> Answers:
    """no sequences in, none out"""
    shape = (0, *subject.outputs(subject.draw(1)).shape[1:])
    program = subject.shown("print(out(inputs).shape)", batch=0)
    try:
        found = subject.outputs(subject.draw(0))
    except Exception as error:
        # no fault and no news: most code does, by a `view(batch, length, -1)`
        yield NotJudged(f"a batch without sequences raises {error_text(error, 80)}")
    else:
        text = f"a batch without sequences gives the shape {tuple(found.shape)}, expected {shape}"
        yield Measured(float(found.shape != shape), 0.0, text, program)


def any_length(subject: Subject) -> Answers:
    """one token, odd numbers of them and one past a block are taken, and give numbers, unless it takes blocks alone"""
    refused: dict[int, str] = {}
    for length in ODD:
        try:
            found = subject.outputs(subject.draw(1, length))
        except Exception as error:
            refused[length] = error_text(error, 80)
            continue
        bad = float((~found.isfinite()).double().mean())
        line = "print((~out(inputs).isfinite()).double().mean())"
        text = f"at a length of {length}, {bad:.0%} of the outputs are NaN or infinite"
        yield Measured(bad, 0.0, text, subject.shown(line, batch=1, length=length))
    odd = [length for length in ODD if length % 2 and length > 1 and length not in refused]
    if refused and not odd:
        yield NotJudged(f"it takes only whole blocks, or only one length: else it raises {refused[max(refused)]}")
    # a table of positions may end
    for length in (each for each in refused if odd and each < max(odd)):
        text = f"at a length of {length}, it raises {refused[length]}"
        yield Measured(math.inf, 0.0, text, subject.shown("out(inputs)", batch=1, length=length))


def prefixes(subject: Subject) -> Answers:
    """the outputs of the first tokens are those that these tokens have alone"""
    # of what claims nothing, the first tokens may see each other
    if not subject.looks_back or (not subject.claims and any(future(subject, cut, "").value for cut in ODD[:3])):
        yield NotJudged("outputs depend on later tokens")
        return
    most = next(iter(taken(subject, (max(ODD), BLOCK))), 0)
    if not most:
        yield NotJudged(f"it does not take {BLOCK} tokens", verdict="not tried")
        return
    inputs = subject.draw(1, most)
    whole = subject.outputs(inputs)
    # some take whole blocks alone, where `any_length` finds no fault in it
    for cut in (each for each in (*ODD, *_WHOLE) if each < most):
        try:
            found = subject.outputs(subject.part(inputs, 0, cut))
        except Exception:
            continue
        words = f"at a length of {cut}, outputs differ from the first {cut} at a length of {most}"
        lines = f"a, b = out(part(inputs, 0, {cut})), out(inputs)[:, :{cut}]"
        yield subject.compared(words, found, whole[:, :cut], lines, batch=1, length=most)


def late_future(subject: Subject) -> Answers:
    """with more tokens than a block or a chunk holds, later ones still move no earlier output"""
    if not subject.looks_back:
        yield NotJudged("outputs depend on later tokens")
        return
    start = subject.seconds
    if not (lengths := long_lengths(subject)):
        yield NotJudged(f"it does not take {LONG:,} tokens", verdict="not tried")
        return
    # some loop over positions
    is_quick = subject.seconds - start < SLOW_SECONDS
    every = {lengths[0]: EDGES if is_quick else EDGES[-1:]} | dict.fromkeys(taken(subject, (_BETWEEN,)), (640,))
    takes_block = bool(taken(subject, (BLOCK,)))
    for length, edges in every.items():
        inputs = subject.draw(1, length)
        base = subject.outputs(inputs)
        if takes_block:
            words = f"the first {BLOCK} of {length:,} tokens have other outputs than alone"
            lines = f"a, b = out(part(inputs, 0, {BLOCK})), out(inputs)[:, :{BLOCK}]"
            alone = subject.outputs(subject.part(inputs, 0, BLOCK))
            yield subject.compared(words, alone, base[:, :BLOCK], lines, batch=1, length=length)
        for cut in edges:
            words = f"of {length:,} tokens, those from number {cut} on change earlier outputs"
            other = subject.changed(inputs, (torch.arange(length) >= cut)[None])
            found = subject.compared(words, subject.outputs(other)[:, :cut], base[:, :cut])
            # only here the whole proof, in float64 and with a program
            yield found if found.value <= found.allowed else future(subject, cut, words, length=length)


def tokens_count(subject: Subject) -> Answers:
    """every token has an influence on some other output, at whatever place it stands"""
    if subject.looks_back and subject.length > 4 * _NEAR:
        yield from _just_before(subject)
    if not subject.has_inputs_of_numbers:
        yield NotJudged("its inputs are token numbers, which have no gradients")
        return
    lengths = long_lengths(subject) if subject.looks_back else taken(subject, (43, 100))
    for length in lengths:
        unseen = _unseen(subject, length)
        lost = unseen.all(0)
        share, others = float(lost.double().mean()), int((unseen & ~lost).sum())
        if share > (MOST_HOLES if subject.looks_back else MOST_LOST) or others > int(lost.sum()):
            # a pattern by design, or a choice by content, which is another in each sequence
            yield NotJudged("its pattern leaves out tokens")
            continue
        at = lost.nonzero().flatten().tolist()
        words = f"{len(at)} of {length:,} tokens change no other output: numbers {', '.join(map(str, at[:3]))} …"
        rows = f"[:, -{LAST}:]" if subject.looks_back else ""
        lines = (
            "grads = torch.autograd.grad(out([x.requires_grad_() for x in inputs])" + rows + ".square().sum(), inputs)",
            f"print([part(grads, at, at + 1)[-1].abs().max() for at in {at[:3]}])",
        )
        yield Measured(len(at), 0.0, words, subject.shown(*lines, batch=2, length=length))
    if not lengths:
        yield NotJudged(f"it does not take {LONG if subject.looks_back else 43:,} tokens", verdict="not tried")


def _just_before(subject: Subject) -> Answers:
    """The tokens just before a query move its output: at some place and in some draw, since a choice may leave one out.

    Of strides and blocks no such gap is told: beyond the hidden tokens those of every distance have to be seen.
    """
    far, rows, seen, hidden = 2 * _NEAR, torch.arange(2 * _NEAR, subject.length), set[int](), 0
    for seed in range(3):
        # each sequence is looked at in one row of its own
        inputs, row = subject.draw(len(rows), seed=seed), torch.arange(len(rows))
        base = subject.outputs(inputs)[row, rows]
        for distance in {*range(1, far + 1)} - seen:
            where = torch.zeros(len(rows), subject.length, dtype=torch.bool)
            where[row, rows - distance] = True
            found = subject.compared("", subject.outputs(subject.changed(inputs, where))[row, rows], base)
            seen |= {distance} if found.value > found.allowed else set()
        hidden = min(seen, default=1) - 1
        if not hidden or not {*range(hidden + 1, hidden + _NEAR + 1)} <= seen:
            yield Measured(0.0, 0.0)
            return
    axis = -2 if subject.has_inputs_of_numbers else -1
    lines = (
        f"n, a = inputs[0].shape[{axis}], out(inputs)[:, -1]",
        f"other = lambda d: [x.index_copy({axis}, torch.tensor([n - 1 - d]), x.narrow({axis}, 0, 1)) for x in inputs]",
        f"print([(out(other(d))[:, -1] - a).abs().max().item() for d in range(1, {far + 1})])",
    )
    text = (
        f"an output ignores the {hidden} latest tokens before its own, and depends on older ones: a shifted causal mask"
    )
    yield Measured(hidden, 0.0, text, subject.shown(*lines))


def equal_tokens(subject: Subject) -> Answers:
    """where equal tokens give one output at whole blocks, they do at every other length"""

    def output(length: int) -> Tensor:
        return subject.outputs(repeated(subject, length))[0]

    try:
        base = output(BLOCK)
        steady = subject.compared("", output(BLOCK // 2), base[: BLOCK // 2])
        level = subject.compared("", base, base[:1].expand_as(base))
    except Exception:
        yield NotJudged(f"it does not take {BLOCK} tokens", verdict="not tried")
        return
    if any(each.value > each.allowed for each in (steady, level)):
        yield NotJudged("the output of equal tokens depends on their positions, or on their number")
        return
    for length in taken(subject, (*ODD, LONG)):
        cause = "keys left out" if length > 2 * BLOCK else "zero keys at the end"
        words = f"equal tokens give another output at a length of {length} than of {BLOCK} ({cause}?)"
        lines = (
            "many = lambda n: [x[..., :1, :].expand(*x.shape[:-2], n, x.shape[-1]) for x in inputs]",
            f"a, b = out(many({length})), out(many({BLOCK}))",
            "b = b[:, :1].expand_as(a)",
        )
        found = subject.compared(
            words, output(length), base[:1].expand(length, *base.shape[1:]), *lines, batch=1, length=1
        )
        yield replace(found, allowed=max(found.allowed, _LONG_ALLOWED)) if length == LONG else found


def repeated(subject: Subject, length: int) -> Tensors:
    """One sequence of equal tokens."""
    shapes = ((one, (*one.shape[:-2], length, one.shape[-1])) for one in subject.draw(1, 1))
    return tuple(one.expand(shape if subject.has_inputs_of_numbers else (1, length)) for one, shape in shapes)


def taken(subject: Subject, lengths: tuple[int, ...]) -> list[int]:
    """The lengths that it takes: a layer of blocks takes whole blocks alone."""
    found = []
    for length in lengths:
        with suppress(Exception):
            subject.outputs(subject.draw(1, length))
            found.append(length)
    return found


def long_lengths(subject: Subject) -> list[int]:
    """The length beyond the usual blocks that it takes: one that no block divides, or whole blocks."""
    return taken(subject, (LONG,)) or taken(subject, (9 * BLOCK,))


def _unseen(subject: Subject, length: int) -> Tensor:
    """True at tokens (sequences, positions) that move no output of other rows: of the last ones, or of half of them."""
    inputs, at = subject.draw(2, length), torch.arange(length)
    like, unseen = subject.outputs(inputs), torch.ones(2, length, dtype=torch.bool)
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(9)).to(like)
    halves = [(at // size) % 2 == odd for size in (1, 2, 7) for odd in (0, 1)]
    for rows in [at >= length - LAST] if subject.looks_back else halves:
        arriving = drawn * rows.reshape(-1, *[1] * (like.ndim - 2))
        found = subject.passes(inputs, None, arriving)[1:]
        sizes = torch.stack([each.flatten(2).abs().amax(-1) for each in found]).amax(0)
        unseen &= (sizes == 0) | rows
    if subject.looks_back:
        unseen[:, length - LAST :] = False
        # a window forgets what is old, and a decay lets its gradients run out of digits, some sooner than others
        unseen &= (sizes > _FORGOTTEN * sizes.amax(1, keepdim=True)).cumsum(1) > 0
    return unseen
