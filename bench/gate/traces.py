"""Traces: a call depends on its numbers alone, and leaves nothing behind, neither in its inputs nor for later calls."""

from __future__ import annotations

from contextlib import suppress

import torch

from .lengths import BLOCK, LONG
from .result import Answers, Measured, NotJudged
from .subject import Subject, Tensors

_MANY = 9
"""Sequences of a batch: one more than a kernel may take at once."""
CROWD = 100.0
"""The factor of the other sequences of a batch."""
_TURNED = "lambda x: torch.cat([x.transpose(0, 1)[:1], x.transpose(0, 1)])[1:].transpose(0, 1)"


def inputs_stay(subject: Subject) -> Answers:
    """a call changes no input, mask, parameter, buffer or seed; its output is a tensor of its own"""
    inputs, state = subject.draw(), subject.state()
    kept = [each.clone() for each in inputs]
    *after, held, first = subject.after(inputs, subject.draw(seed=4))
    found = subject.state()
    for name in (name for name, each in state.items() if not torch.equal(each, found.get(name, each))):
        lines = f"before = m.state_dict()[{name!r}].clone(); out(inputs)", f"print(m.state_dict()[{name!r}] - before)"
        yield Measured(1.0, 0.0, f"a call in evaluation changes the saved tensor {name}", subject.shown(*lines))
    if torch.equal(*subject.seeds_behind(inputs)):
        line = "out(inputs); a = torch.rand(1); torch.rand(1); out(inputs); print(a - torch.rand(1), 'seeded')"
        yield Measured(1.0, 0.0, "a call sets the global random seed", subject.shown(line))
    changed = sum(not torch.equal(one, other) for one, other in zip(after, kept, strict=True))
    lines = (
        "kept = [x.clone() for x in inputs]; out(inputs)",
        "print(sum(not torch.equal(x, y) for x, y in zip(inputs, kept)))",
    )
    yield Measured(float(changed), 0.0, f"a call changes {changed} of its inputs in place", subject.shown(*lines))
    if subject.pads:
        valid = torch.arange(subject.length).expand(2, -1) < subject.length - 3
        names = subject.masks_behind(inputs, valid)
        # and where a sequence has no token at all, for which code may make an exception; some refuse it
        with suppress(Exception):
            names = [*names, *subject.masks_behind(inputs, valid & torch.tensor([[True], [False]]))]
        for name in dict.fromkeys(names):
            text = f"a call changes its argument {name} in place, which the next layer gets too"
            yield Measured(1.0, 0.0, text, subject.shown())
    line = "a = out(inputs); b = a.clone(); out([x.roll(1, 0) for x in inputs])"
    yield subject.compared("a call changes the output tensor of the call before", first, held, line)


def nothing_remembered(subject: Subject) -> Answers:
    """outputs are those of a copy that no call has met, after calls with other numbers, lengths and batches"""
    used, inputs = subject.fresh(), subject.draw(seed=5)
    # first, and long: a table that is kept may be as exact as the call that made it
    with suppress(Exception):
        used.in_autocast("bfloat16", used.draw(1, LONG))
    for batch, length in ((3, None), (1, 9), (2, 2 * subject.length), (1, LONG), (2, None)):
        # some lengths are refused, as by layers of blocks
        with suppress(Exception):
            used.outputs(subject.draw(batch, length))
    lines = (
        "import copy; n = copy.deepcopy(m)",
        "out([x.roll(1, 0) for x in inputs]); a, b = out(inputs), out(inputs, n)",
    )
    words = "after calls with other inputs, outputs differ from those of a new copy"
    expected = subject.fresh().outputs(inputs)
    first = subject.compared(words, used.outputs(inputs), expected, *lines)
    yield first
    lines = (
        "import copy; n, y = copy.deepcopy(m), [x.roll(1, 0) for x in inputs]; out(y)",
        "[each.copy_(x) for each, x in zip(y, inputs)]; a, b = out(y), out(inputs, n)",
    )
    words = "inputs that are written over the ones before, in place, give other outputs than a new copy gives"
    yield subject.compared(words, used.refilled(subject.draw(seed=6), inputs), expected, *lines)
    for name, values in subject.trained().items() if first.value <= first.allowed else ():
        found, expected = (each.outputs_with(name, 2 * values + 1, inputs) for each in (used, subject.fresh()))
        lines = (
            f"import copy; n, p = copy.deepcopy(m), {name!r}; out(inputs)",
            "[each.get_parameter(p).data.mul_(2).add_(1) for each in (m, n)]; a, b = out(inputs), out(inputs, n)",
        )
        words = f"after a change of {name}, outputs differ from those of a new copy"
        yield subject.compared(words, found, expected, *lines)


def neighbours(subject: Subject) -> Answers:
    """a sequence has the same outputs alone, in a batch, and among others of any size"""
    inputs = subject.draw(_MANY)
    whole = subject.outputs(inputs)
    if not torch.equal(whole, subject.outputs(inputs, seed=1)):
        yield NotJudged("outputs are random")
        return
    for at in (0, _MANY - 1):
        alone = subject.outputs(tuple(each[at : at + 1] for each in inputs))
        line = f"a, b = out([x[{at} : {at + 1}] for x in inputs]), out(inputs)[{at} : {at + 1}]"
        words = "a sequence alone has other outputs than in a batch"
        yield subject.compared(words, alone, whole[at : at + 1], line, batch=_MANY)
    if subject.has_inputs_of_numbers:
        crowd = tuple(torch.cat([each[:1], CROWD * each[1:]]) for each in inputs)
        line = f"a, b = out([torch.cat([x[:1], {CROWD} * x[1:]]) for x in inputs])[:1], out(inputs)[:1]"
        words = "large values in other sequences of the batch change the outputs of this one"
        yield subject.compared(words, subject.outputs(crowd)[:1], whole[:1], line, batch=_MANY)


def storage(subject: Subject) -> Answers:
    """outputs and gradients do not depend on how inputs, or the gradient that arrives, lie in memory"""
    inputs = subject.draw()
    expected = subject.outputs(inputs)
    try:
        found = subject.outputs(_turned(inputs))
    except Exception as error:
        yield NotJudged(f"it raises {type(error).__name__} for inputs that are not contiguous", verdict="not tried")
    else:
        words = "inputs that are not contiguous give other outputs"
        program = f"turned = {_TURNED}", "a, b = out([turned(x) for x in inputs]), out(inputs)"
        yield subject.compared(words, found, expected, *program)
        # whole blocks may need no copy
        with suppress(Exception):
            blocks = subject.draw(2, BLOCK)
            found = subject.outputs(_turned(blocks))
            yield subject.compared(words, found, subject.outputs(blocks), *program, length=BLOCK)
    if not subject.has_inputs_of_numbers:
        return
    drawn = torch.randn(expected.shape, generator=torch.Generator().manual_seed(7)).to(expected)
    [turned], summed = _turned((drawn,)), expected.new_ones(()).expand(expected.shape)
    for words, one, other, line in (
        ("an arriving gradient that", turned, drawn, f"({_TURNED})(w)"),
        ("that of a sum, which", summed, summed.contiguous(), "w.new_ones(()).expand(w.shape)"),
    ):
        lines = (
            f"w = torch.randn(out(inputs).shape, generator=g); v = {line}; w = v.contiguous()",
            "inputs = [x.requires_grad_() for x in inputs]",
            "a, b = [torch.autograd.grad(out(inputs), inputs, y)[-1] for y in (v, w)]",
        )
        pairs = zip(subject.passes(inputs, None, one)[1:], subject.passes(inputs, None, other)[1:], strict=True)
        for found, expected in pairs:
            yield subject.compared(f"{words} is not contiguous gives other gradients", found, expected, *lines)


def _turned(inputs: Tensors) -> Tensors:
    """The same numbers, in memory with the first two axes in another order, and behind others, as parts of one are."""
    across = (each.transpose(0, 1) for each in inputs)
    return tuple(torch.cat([each[:1], each])[1:].transpose(0, 1) for each in across)
