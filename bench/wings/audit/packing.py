"""Packing and windows: texts packed in one row see nothing of each other, and a window ends where it says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...gate.result import Answers, Measured, NotJudged, deviations
from ...gate.subject import Change
from ...run.link import at_the_code
from .calls import Inputs, accepted_by
from .convention import with_argument
from .numerics import AMOUNT_ALLOWED
from .program import beside_alone, setup
from .search import parameters_of
from .subject import STILL, ForeignSubject

PACKED = {
    "cu_seqlens": "torch.tensor([0, {first}, {length}], dtype=torch.int32)",
    **dict.fromkeys(
        ("document_ids", "doc_ids", "segment_ids", "seq_idx", "seq_ids", "sequence_ids"),
        "(torch.arange({length}) >= {first}).int()[None]",
    ),
}
"""Arguments that say which text a position belongs to, and what they are given for two texts in one row."""

POSITIONS = "torch.cat([torch.arange({first}), torch.arange({rest})])[None]"
"""Positions of two texts in one row, each from 0. They promise no separation, which some libraries read off them."""

WINDOWS = ("sliding_window", "window_size", "window", "local_attn_window_size")

WIDTH = 8
"""The window that is asked for where a call takes one."""

_KEPT_APART = 0.5
"""The movement by another text, over that in one text without `position_ids`, below which these are to part texts."""

MOST_SINKS = 16
"""First tokens that all later ones may see without breaking a window, as attention sinks are."""


def packed(subject: ForeignSubject) -> Answers:
    """Two texts in one row do not move each other, and the second has the outputs that it has alone."""
    length = subject.convention.length
    parameters = parameters_of(subject.module)
    argument = next((each for each in (*PACKED, "position_ids") if each in parameters), "")
    plain = subject.convention.call(padded=False, causal=subject.claims)
    if not argument or not isinstance(plain, str):
        yield NotJudged("no argument for them")
        return
    # not in the middle, and yet whole blocks
    promised, first = argument in PACKED, length // 4
    value = PACKED.get(argument, POSITIONS).format(first=first, length=length, rest=length - first)
    call = with_argument(plain, argument, value)
    both = replace(subject, convention=replace(subject.convention, plain=call, causal=""))
    late = (torch.arange(length) >= first)[None]
    words = f"with {argument}, one text changes the outputs of another in its row"
    found = max((both.moved(Change(where=each, look=~each), words) for each in (~late, late)), key=lambda x: x.value)
    if argument != "cu_seqlens":
        yield from _each_row(subject, plain, argument)
    if found.value and not promised:
        # what moves later tokens much less than without them means to keep texts apart
        later = Change(where=~late, look=(torch.arange(length) >= first + WIDTH)[None])
        promised = both.size(later) < _KEPT_APART * subject.size(replace(later, causal=subject.claims))
        found = replace(found, detail=f"{found.detail}, and less than without it: a convolution or a shift over both?")
    if found.value:
        yield found if promised else NotJudged("position_ids alone do not keep texts apart", found, "note")
        return
    inputs, axis = subject.draw(1), 2 if subject.convention.kind == "qkv" else 1
    with torch.no_grad():
        packed_row = both.outputs(inputs)[:, first:]
        second = tuple(x.narrow(axis, first, length - first) for x in inputs)
        alone = subject.outputs(second, None, subject.claims)
    size = float((packed_row - alone).abs().max() / alone.std())
    program = tuple(beside_alone(subject.convention, call, plain, first, length, None, subject.claims))
    text = f"with {argument}, a text behind another has other outputs than alone, by {deviations(size)}"
    answer = Measured(size, AMOUNT_ALLOWED, text, program)
    yield answer if promised or size <= AMOUNT_ALLOWED else NotJudged(text, answer, "note")


def _each_row(subject: ForeignSubject, plain: str, argument: str) -> Answers:
    """Rows that are packed otherwise have the outputs that they have alone."""
    length, inputs = subject.convention.length, subject.draw(2)
    values = [
        PACKED.get(argument, POSITIONS).format(first=first, length=length, rest=length - first)
        for first in (length // 4, length // 2)
    ]

    def outputs(value: str, given: Inputs) -> Tensor:
        call = with_argument(plain, argument, value)
        return replace(subject, convention=replace(subject.convention, plain=call, causal="")).outputs(given)

    both = f"torch.cat([{values[0]}, {values[1]}])"
    try:
        together = outputs(both, inputs)
        alone = torch.cat([outputs(value, tuple(x[at : at + 1] for x in inputs)) for at, value in enumerate(values)])
    except Exception:
        # it takes one row of them for all
        return
    size = float((together - alone).abs().max() / alone.std())
    if size <= AMOUNT_ALLOWED:
        # whether texts of one row are kept apart is for others to say
        return
    text = f"with {argument} of its own, a row has other outputs than alone, by {deviations(size)}"
    names, turned = subject.convention.names, subject.convention.turned
    program = (
        *setup(subject.convention, plain),
        f"a = ({with_argument(plain, argument, both)}){turned}[1:]",
        f"{names}, = [x[1:] for x in ({names},)]",
        f"b = ({with_argument(plain, argument, values[1])}){turned}",
        "print((a - b).abs().max() / b.std())",
    )
    yield Measured(size, AMOUNT_ALLOWED, text, program)


def window(subject: ForeignSubject) -> Answers:
    """A change of the first token is seen no further than a window reaches, through all layers of a model."""
    length = subject.convention.length
    plain = subject.convention.call(padded=False, causal=True)
    width, layers = _declared(subject)
    parameters = parameters_of(subject.module)
    argument = next((each for each in WINDOWS if each in parameters), "")
    # of a module that has a window, the argument of that name may mean something else
    if argument and not width and isinstance(plain, str):
        width = WIDTH
        pair = isinstance(parameters[argument].default, tuple)
        call = with_argument(plain, argument, f"({WIDTH}, 0)" if pair else str(WIDTH))
        subject = replace(subject, convention=replace(subject.convention, plain=call, causal=""))
    if not width or width * layers >= length:
        yield NotJudged("no window, or one as long as all positions")
        return
    # a window of blocks reaches as far as the block before it
    most, many = 2 * width * layers, f" in {layers} layers" if layers > 1 else ""

    def reached(place: int) -> tuple[Change, Tensor, int]:
        where = (torch.arange(length) == place)[None]
        change = Change(where=where, look=~where, causal=True)
        far = (torch.arange(length) - place).abs()
        return change, far, int(far[subject.movement(change)[0] > STILL].amax().item()) if subject.size(change) else 0

    for place, way in ((0, "back"), (length - 1, "ahead")):
        change, far, reach = reached(place)
        text = f"a window of {width}{many} reaches {reach} tokens {way}"
        # the first tokens may be sinks, which all later ones see
        behind = min(MOST_SINKS, length - 2 - most)
        if reach >= most and place == 0 < behind and (past := reached(behind)[2]) < most:
            text = f"a window of {width}{many} reaches {past} tokens back, and all see the first tokens: sinks?"
        elif reach >= most:
            said = "it is ignored" if reach == length - 1 else "more than two windows"
            yield replace(subject.moved(replace(change, look=(far >= most)[None]), ""), detail=f"{text}: {said}")
            return
        yield NotJudged(text, Measured(reach, length - 1), "note")


@at_the_code
def _declared(subject: ForeignSubject) -> tuple[int, int]:
    """The width that a module or its configuration names, and the layers through which it adds up; 0 where some layer
    has none."""
    module = subject.module
    config = getattr(module, "config", None)
    if config is None:
        widths = [getattr(module, name, None) for name in WINDOWS]
        # under whatever name it is kept: the constructor says what it is
        told = [each.default for name, each in accepted_by(type(module)).items() if name in WINDOWS]
        widths += [each for each in told if each in vars(module).values()] if isinstance(module, nn.Module) else []
        width = next((each for each in widths if isinstance(each, int) and each > 0), 0)
        # a dilated window has its keys so many tokens apart
        told = [each.default for name, each in accepted_by(type(module)).items() if name == "dilation"]
        apart = next((each for each in (getattr(module, "dilation", None), *told) if type(each) is int and each > 0), 1)
        return width * apart, _layers(module, width)
    named, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if not isinstance(named, int) or not kinds or set(kinds) != {"sliding_attention"}:
        return 0, 1
    return named, len(kinds)


def _layers(module: Any, width: int) -> int:
    """The number of modules of one kind that keep this window: a stack of layers reaches so many windows back."""
    inside = module.modules() if isinstance(module, nn.Module) else ()
    kinds = Counter(type(each) for each in inside if width in [getattr(each, name, None) for name in WINDOWS])
    return max(kinds.values(), default=1)
