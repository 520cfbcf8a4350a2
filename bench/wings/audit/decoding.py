"""Decoding: token by token and in pieces with a cache, against one pass."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ....variants.contract import Mask
from ...gate.lengths import LONG, taken
from ...gate.result import Answers, Measured, NotJudged, deviations, error_text
from ...run.link import at_the_code
from .calls import NAMES, Inputs, Kind, called
from .convention import FORMS, closing, with_argument
from .program import setup
from .search import CACHES, LIKE_CACHES, named_like, parameters_of, picked
from .subject import ForeignSubject

SWITCHES = (
    "use_cache", "return_cache", "return_state", "output_cache", "output_final_state", "return_next_prev_hidden",
    "return_intermediates", "return_hiddens",
)  # fmt: skip

_STARTS = ("start_pos", "start_position", "start_index", "start", "offset", "past_length", "cache_len", "seen_tokens")
"""Arguments that say how many positions were before, where a module keeps its cache itself."""

ALLOWED = 1e-3
"""The difference allowed, in standard deviations of the output: for other products in another order."""

LENGTHS, PREFILL = (150, 120, 24), 13
"""Positions of a decoded sequence, the first that the subject takes, and those of its first call."""

MOST_SINGLE, LATE = 64, 8
"""Positions of a sequence that is decoded token by token, and how many are so at the end of a longer one."""

PIECES = (5, PREFILL, 14, 46, 47, 110)
"""Ends of pieces: some of one token, some longer than a chunk."""


@dataclass(slots=True)
class KeyValues:
    """A cache as layers of transformers are handed one: `update` appends keys and values (batch, heads, length, d)."""

    kept: dict[Any, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def update(self, key: Tensor, value: Tensor, layer_idx: Any = 0, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        before = self.kept.get(layer_idx)
        new = (key, value) if before is None else (torch.cat((before[0], key), 2), torch.cat((before[1], value), 2))
        self.kept[layer_idx] = new
        return new

    def get_seq_length(self, layer_idx: Any = 0) -> int:
        return self.kept[layer_idx][0].shape[2] if layer_idx in self.kept else 0


@dataclass(frozen=True, slots=True)
class Protocol:
    """The way in which a subject hands on its cache.

    call: the first; argument: what takes the cache, empty where the module keeps it; place: where an output holds it,
    empty where a cache is handed in and filled. pick: what makes of the output that of the positions, such as `[0]`.
    whole: later calls get the sequence from its begin, as some libraries have it, and not the new positions alone.
    """

    call: str
    argument: str
    place: str
    pick: str
    whole: bool = False

    @property
    def later(self) -> str:
        return with_argument(self.call, self.argument, "cache") if self.argument else self.call

    def step(
        self, module: Any, kind: Kind, piece: Inputs, state: Any = None, valid: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """The outputs of more positions, and the state for the next; `state` is None at the first.

        valid: of all positions so far (batch, positions), for a call that takes a mask.
        """
        seen, before, cache = state or (0, None, None)
        given = tuple(torch.cat(pair, 1) for pair in zip(before, piece, strict=True)) if before else piece
        if not self.place:
            cache = KeyValues(dict(cache.kept) if cache else {})
        call = self.later if seen or not self.place else self.call
        mask = Mask(valid, causal=True)
        output = called(call, module, kind, given, mask, seen if given is piece else 0, cache)
        after = eval(f"output{self.place}", {"output": output}) if self.place else cache
        new = piece[0].shape[1]
        found: Tensor = eval(f"output{self.pick}", {"output": output})
        return found[:, -new:], (seen + new, given if self.whole else None, after)

    def program(self, subject: ForeignSubject, ends: tuple[int, ...], valid: Tensor | None = None) -> Iterator[str]:
        """Lines that print how far the pieces differ from one pass."""
        name = NAMES[subject.convention.kind][0]
        one_pass = subject.convention.call(padded=valid is not None, causal=True)
        yield from setup(subject.convention, f"{one_pass}{self.call}", valid, True, length=ends[-1])
        cache = "None" if self.place or not self.argument else "__import__('transformers').DynamicCache()"
        yield f"all, a, parts, cache, start = {name}, {one_pass}, [], {cache}, 0"
        whole = [each for each in ("valid", "seen", "pairs", "bias") if each in self.call]
        if whole:
            yield f"whole = {', '.join(whole)},"
        yield f"for end in {ends}:"
        yield f"    {name} = all[:, {'0' if self.whole else 'start'}:end]"
        for number, each in enumerate(whole):
            rows = ":, :end" if each == "valid" else f"..., {'0' if self.whole else 'start'}:end, :end"
            yield f"    {each} = whole[{number}][{rows}]"
        if "positions" in self.call:
            yield "    positions = torch.arange(start, end)[None]"
        yield f"    o = {self.later} if start else {self.call}" if self.place else f"    o = {self.later}"
        kept = f"cache = o{self.place}; " if self.place else ""
        yield f"    {kept}parts.append(o{self.pick}[:, start - end:]); start = end"
        yield "print((torch.cat(parts, 1) - a).abs().max() / a.std())"


@at_the_code
def _in_pieces(
    subject: ForeignSubject,
    protocol: Protocol,
    inputs: Inputs,
    ends: tuple[int, ...],
    valid: Tensor | None = None,
    of_pieces: bool = False,
) -> Tensor:
    """The outputs of all positions, piece by piece. of_pieces: a mask is that of the new positions alone."""
    parts, state = [], None
    for start, end in pairwise((0, *ends)):
        piece = tuple(each[:, start:end] for each in inputs)
        seen = None if valid is None else valid[:, start if of_pieces else 0 : end]
        part, state = protocol.step(subject.module, subject.convention.kind, piece, state, seen)
        parts.append(part)
    return torch.cat(parts, 1)


@at_the_code
def _branches(subject: ForeignSubject, protocol: Protocol, inputs: Inputs, others: Inputs) -> list[Tensor]:
    """The outputs of the last position behind a cache that has gone on otherwise before, and behind a new one.

    Empty for a cache that is an object or a list, which a step may change by design.
    """
    kind, parts = subject.convention.kind, []
    with torch.no_grad():
        for is_used in (True, False):
            before, last = tuple(each[:, :PREFILL] for each in inputs), tuple(each[:, PREFILL:] for each in inputs)
            state = protocol.step(subject.module, kind, before)[1]
            if not isinstance(state[2], Tensor | tuple):
                return []
            if is_used:
                protocol.step(subject.module, kind, tuple(each[:, PREFILL:] for each in others), state)
            parts.append(protocol.step(subject.module, kind, last, state)[0])
    return parts


@at_the_code
def _rounding(subject: ForeignSubject, protocol: Protocol) -> float:
    """The standard deviations by which a cache in a lower precision than float32 may move outputs; else 0."""
    with torch.no_grad():
        cache = protocol.step(subject.module, subject.convention.kind, subject.draw(2, PREFILL))[1][2]
    kept = tree_leaves(cache.kept if isinstance(cache, KeyValues) else cache)
    dtypes = {each.dtype for each in kept if isinstance(each, Tensor)}
    return max((8 * torch.finfo(each).eps for each in dtypes & {torch.float16, torch.bfloat16}), default=0.0)


def tests(subject: ForeignSubject) -> dict[str, Callable[[ForeignSubject], Answers]]:
    """One token at a time, and two pieces, give what one pass gives; the cache is searched once for both."""
    convention = subject.convention
    cache = protocol(subject)[0] if subject.looks_back else None
    length = next(iter(taken(subject, LENGTHS)), convention.length) if cache else 0
    single = (PREFILL, *range(PREFILL + 1, min(length, MOST_SINGLE) + 1))
    # a window or a ring of keys is full by then
    lengths = [length] * (length > MOST_SINGLE) + (taken(subject, (LONG,)) if cache else [])
    late = (tuple(range(end - LATE, end + 1)) for end in lengths)
    found: dict[str, Callable[[ForeignSubject], Answers]] = {}
    found["decoding"] = partial(decoded, protocol=cache, way="decoding token by token", sequences=(single, *late))
    if cache is not None:
        ends = (*(end for end in PIECES if end < length), length)
        found["pieces"] = partial(decoded, protocol=cache, way="prefill in pieces", sequences=(ends,))
    return found


def decoded(
    subject: ForeignSubject, protocol: Protocol | None, way: str, sequences: tuple[tuple[int, ...], ...]
) -> Answers:
    """Positions piece by piece up to each of the ends of a sequence, against one pass."""
    if protocol is None:
        names = [*named_like(subject.module, CACHES, LIKE_CACHES), *_starts(subject)]
        text = f"found no way to decode with {', '.join(names)}" if names else "no cache found"
        yield NotJudged(text, verdict="not tried" if names or subject.looks_back else "n.a.")
        return
    least = max(ALLOWED, _rounding(subject, protocol))
    for ends in sequences:
        size, refusal = _compared(protocol, subject, ends)
        if refusal and ends[-1] == LONG:
            # a table of keys may end before
            return
        if refusal:
            yield NotJudged(f"{way} {refusal}", verdict="not tried")
            return
        after = f" after a first call of {ends[0]}" if ends[0] > PREFILL else ""
        text = f"{way}{after} gives other outputs than one pass, by {deviations(size)}"
        allowed = subject.allowance(size, least, length=ends[-1])
        if size > allowed and ends[-1] == LONG:
            # the sums of so many tokens round more than others
            with suppress(Exception):
                exact, refusal = _compared(protocol, subject.fresh(double=True), ends)
                size = size if refusal else min(size, exact)
        yield Measured(size, allowed, text, tuple(protocol.program(subject, ends)))
    if len(sequences[0]) < 2 or sequences[0][1] > sequences[0][0] + 1:
        return
    with suppress(Exception):
        yield from _padded(subject, protocol, least)
    with suppress(Exception):
        size = _movement(*_branches(subject, protocol, *(subject.draw(2, PREFILL + 1, seed) for seed in (0, 1))))
        text = f"a step changes the cache that it is given: going on from it once more differs by {deviations(size)}"
        yield Measured(size, least, text, tuple(protocol.program(subject, (PREFILL, PREFILL + 1))))


def _movement(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.std())


def _padded(subject: ForeignSubject, protocol: Protocol, least: float) -> Iterator[Measured]:
    """Padding on the left of one sequence, by a mask of all positions so far or of the new ones, against one pass."""
    convention = subject.convention
    forms = [
        (name, form)
        for name, form in product(parameters_of(subject.module), FORMS)
        if with_argument(convention.plain, name, form) == convention.padded
    ]
    if not forms or not subject.masks_and_looks_back or convention.counts_tokens:
        return
    padded = replace(protocol, call=with_argument(protocol.call, *forms[0]))
    ends = (PREFILL, *range(PREFILL + 1, PREFILL + LATE))
    inputs, valid = subject.draw(2, ends[-1]), torch.ones(2, ends[-1], dtype=torch.bool)
    valid[1, : PREFILL // 2] = False
    whole, sizes = subject.outputs(inputs, valid, True)[valid], []
    for of_pieces in (False, True):
        with torch.no_grad(), suppress(Exception):
            sizes.append(_movement(_in_pieces(subject, padded, inputs, ends, valid, of_pieces)[valid], whole))
    if sizes:
        text = f"with padding, decoding gives other outputs than one pass, by {deviations(min(sizes))}"
        yield Measured(min(sizes), least, text, tuple(padded.program(subject, ends, valid)))


def _compared(found: Protocol, subject: ForeignSubject, ends: tuple[int, ...]) -> tuple[float, str]:
    """The difference of pieces from one pass, or infinity and what was raised."""
    inputs = subject.draw(2, ends[-1])
    try:
        with torch.no_grad():
            whole = subject(inputs, None, True)
            size = _movement(_in_pieces(subject, found, inputs, ends), whole)
    except Exception as error:
        return torch.inf, f"raises {error_text(error, 80)}"
    return size, ""


def protocol(subject: ForeignSubject) -> tuple[Protocol | None, float]:
    """The way in which a module decodes, and how far its first new position is from one pass; None without a cache.

    Libraries differ in what they want beside a cache and where they return it, so trials choose among all candidates.
    """
    best: tuple[Protocol | None, float] = (None, math.nan)
    for found in _all_candidates(subject):
        for candidate in (found, *([replace(found, whole=True)] if found.argument else [])):
            size = _compared(candidate, subject, (PREFILL, PREFILL + 1))[0]
            if size <= ALLOWED and not (candidate.whole and _ignores(candidate, subject)):
                return candidate, size
            if best[0] is None or best[1] == math.inf > size:
                best = candidate, size
    return best


def _ignores(found: Protocol, subject: ForeignSubject) -> bool:
    """True if outputs are the same with the cache of another sequence: a call with all positions may need no cache."""
    return torch.equal(*_after_others(subject, found, subject.draw(2, PREFILL + 1)))


@at_the_code
def _after_others(subject: ForeignSubject, found: Protocol, inputs: Inputs) -> list[Tensor]:
    """The outputs of the last position with the caches of two other sequences."""
    kind = subject.convention.kind
    with torch.no_grad():
        before = tuple(each[:, :PREFILL] for each in inputs) if found.whole else None
        last, outputs = tuple(each[:, PREFILL:] for each in inputs), []
        for seed in (0, 1):
            cache = found.step(subject.module, kind, subject.draw(2, PREFILL, seed))[1][2]
            outputs.append(found.step(subject.module, kind, last, (PREFILL, before, cache))[0])
        return outputs


@at_the_code
def _all_candidates(subject: ForeignSubject) -> list[Protocol]:
    """The ways of decoding that its arguments and outputs allow."""
    return list(_candidates(subject))


def _candidates(subject: ForeignSubject) -> Iterator[Protocol]:
    names = parameters_of(subject.module)
    kind = subject.convention.kind
    plain = str(subject.convention.call(padded=False, causal=True))
    if kind == "qkv" or not plain.startswith("m("):
        return
    call = plain[: closing(plain) + 1]
    turned = re.search(r"(\.mT|\.transpose\(0, 1\))$", plain[len(call) :])
    turn = turned[0] if turned else ""
    switch = next((name for name in SWITCHES if name in names or f"{name}=" in plain), "")
    call = with_argument(call, switch, "True") if switch else call
    inputs = subject.draw(1, 8)
    shape = eval(f"x{turn}.shape", {"x": inputs[0]})
    calls = [call, *([with_argument(call, "position_ids", "positions")] if "position_ids" in names else [])]
    for argument in _starts(subject):
        with torch.no_grad(), suppress(Exception):
            told = with_argument(call, argument, "start")
            pick = picked(called(told, subject.module, kind, inputs, Mask(causal=True)), shape, kind)
            kept_inside = Protocol(told, "", "", f"{pick}{turn}")
            if not torch.equal(*_after_others(subject, kept_inside, subject.draw(2, PREFILL + 1))):
                yield kept_inside
    for argument in named_like(subject.module, CACHES, LIKE_CACHES):
        handed, found = KeyValues(), []
        with torch.no_grad(), suppress(Exception):
            output = called(call, subject.module, kind, inputs, Mask(causal=True))
            pick = picked(output, shape, kind)
            found = [(place, pick) for place in _places(output, argument, pick)]
        yield from (Protocol(each, argument, place, f"{pick}{turn}") for place, pick in found for each in calls)
        pick = None
        with torch.no_grad(), suppress(Exception):
            with_cache = with_argument(call, argument, "cache")
            pick = picked(called(with_cache, subject.module, kind, inputs, Mask(causal=True), 0, handed), shape, kind)
        yield from (Protocol(each, argument, "", f"{pick}{turn}") for each in calls if handed.kept and pick is not None)


def _starts(subject: ForeignSubject) -> list[str]:
    return [name for name in _STARTS if name in parameters_of(subject.module)]


def _places(output: Any, argument: str, pick: str | None) -> list[str]:
    """Places of an output that may hold a cache, the likeliest first."""
    if getattr(output, argument, None) is not None:
        return [f".{argument}"]
    if not isinstance(output, tuple) or pick is None:
        return []
    places = (f"[{at}]" for at in reversed(range(len(output))) if output[at] is not None)
    return [place for place in places if place != pick]
