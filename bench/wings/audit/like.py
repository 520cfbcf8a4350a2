"""Like: a layer's own queries, keys and values through one of our variants, and the likely cause of a difference.

Queries and keys are taken as they are multiplied, behind rotations and norms and without constant factors, or as they
were projected; one of both has to fit. Cannot see: a wrong rotation or norm, nor where `products.py` finds no product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, permutations, product

import torch
from torch import Tensor
from torch.nn import functional as F

from ....variants.contract import AttentionShape, Mask, Variant, masked_softmax, repeat_heads
from ...core.errors import AttnbenchError
from ...core.spec import Spec
from ...gate.lengths import taken
from ...gate.result import Answer, Answers, Measured, NotJudged, error_text
from ...gate.variant import VariantFactory, build
from ...models.positions import LinearBias
from ...run.link import at_the_code
from .calls import Inputs
from .numerics import idle_rows
from .padding import counts_padding
from .products import HeadInputs, Pass, Products, Unfound
from .softmax import under
from .subject import SAME, ForeignSubject, by_position

_LENGTHS = (150, 43)
"""Positions: more than a block of the usual online softmax, and no multiple of what a tail is filled up to."""

_OTHERS = ("softmax", "softmax1", "sigmoid", "relu-squared", "sparsemax", "entmax15", "softpick", "linear")
"""Variants without parameters that a layer may be like instead."""

_CAPS = (5, 10, 15, 20, 30, 50, 100)
"""Usual bounds of scores that pass a tanh."""

_CLOSE = 1e-9
"""Differences below this are alike, and the first cause is named."""

_LOWEST = -1e30
_MOST_CHOICES = 120
"""Ways to choose the reference's parameters among those of the layer."""


@dataclass(frozen=True, slots=True)
class _Slopes(LinearBias):
    """ALiBi with given slopes (heads,)."""

    table: Tensor

    def slopes(self, like: Tensor) -> Tensor:
        return self.table.to(like)[:, None]


@dataclass(frozen=True, slots=True)
class _Reference:
    """One of our variants on the heads of one sequence, in float64.

    slopes: those of ALiBi, by head. upper: the key behind the last that each query sees, in place of a causal mask.
    chosen: the layer's parameters that are the variant's. tail: keys behind the last position take part.
    """

    spec: Spec
    heads: HeadInputs
    causal: bool
    valid: Tensor | None
    slopes: Tensor | None = None
    upper: Tensor | None = None
    chosen: tuple[Tensor, ...] = ()
    tail: bool = False

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Mask]:
        """Query, key and value (1, heads, positions, width), with the bias in them, and the mask."""
        query, key, value = (x[None] for x in (self.heads.query, self.heads.key, self.heads.value))
        if not self.tail:
            key, value = (x[:, :, : query.shape[2]] for x in (key, value))
        if self.slopes is not None:
            key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))
            query, key, value = _Slopes(query.shape[1], self.slopes).widened(query, key, value)
        if self.upper is None:
            return query, key, value, Mask(self.valid, self.causal)
        bounds = torch.stack([torch.zeros_like(self.upper), self.upper.clamp(max=key.shape[2])], -1)
        return query, key, value, Mask(self.valid, bounds=bounds[None])

    def variant(self, seed: int = 0) -> Variant:
        """Raises Unsupported where it refuses the shape, Unfound where it needs more than heads."""
        query, key, _, _ = self.inputs()
        shape = AttentionShape(
            heads=query.shape[1], kv_heads=key.shape[1], head_dim=query.shape[3], max_length=key.shape[2],
            causal=self.causal, padding=self.valid is not None, dtype="float64",
        )  # fmt: skip
        source = VariantFactory.of(self.spec)
        made = build(source, shape, seed, **({"impl": "eager"} if "eager" in source.implementations else {}))
        if made.takes_hidden:
            raise Unfound(f"{self.spec} projects the hidden state by parameters of its own")
        with torch.no_grad():
            for own, chosen in zip(made.parameters(), self.chosen, strict=False):
                own.copy_(chosen.reshape(own.shape))
        return made

    def output(self, seed: int = 0) -> Tensor:
        """Sums of values (heads, positions, width)."""
        with torch.no_grad():
            mixed: Tensor = self.variant(seed)(*self.inputs())
        return mixed[0, ..., : self.heads.value.shape[-1]]

    def choices(self, parameters: tuple[Tensor, ...]) -> Iterator[_Reference]:
        """Itself with each choice of the layer's parameters that fits the variant's own."""
        sizes = [each.numel() for each in self.variant().parameters()]
        fitting = [each for each in parameters if each.numel() in sizes]
        for chosen in islice(permutations(fitting, len(sizes)), _MOST_CHOICES):
            if [each.numel() for each in chosen] == sizes:
                yield replace(self, chosen=chosen)


def alibi_slopes(heads: int) -> list[Tensor]:
    """(heads,) of Press et al. 2022, and as their released code has them where heads are no power of two."""
    low = 2 ** int(math.log2(heads))
    exponents = [[at / heads for at in range(1, heads + 1)]]
    if low < heads:
        exponents.append([*(at / low for at in range(1, low + 1)), *(at / 2 / low for at in range(1, 2 * low, 2))])
    return [2.0 ** (-8 * torch.tensor(each[:heads], dtype=torch.float64)) for each in exponents]


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of a layer: sums of values as its output projection gets them, and their order, as `Pass` has it.

    sums: those of its own product, where it makes them by one.
    """

    output: Tensor
    order: Tensor
    heads: list[HeadInputs]
    causal: bool
    valid: Tensor | None
    parameters: tuple[Tensor, ...] = ()
    sums: Tensor | None = None

    def arrange(self, mixed: Tensor) -> Tensor:
        """Sums of values (heads, positions, width) in the order of the output."""
        return F.pad(mixed.flatten(), (1, 0))[self.order]

    def difference(self, mixed: Tensor, first: int = 0) -> float:
        """The largest, over the standard deviation of the reference, of real tokens from the `first` on."""
        expected, rows = self.arrange(mixed), torch.ones_like(mixed)
        rows[:, :first] = 0
        look = self.arrange(rows if self.valid is None else rows * self.valid[0, :, None]) > 0
        off = (self.output - expected)[look].nan_to_num(nan=torch.inf).abs().max()
        return float(off / expected[look].std().clamp(min=1e-30))

    def has_sums(self, mixed: Tensor) -> bool:
        """The layer's own product is that, whatever follows it."""
        if self.sums is None or self.valid is not None or self.sums.numel() != mixed.numel():
            return False
        return torch.allclose(self.sums.reshape(mixed.shape), mixed, atol=SAME * float(mixed.std()))

    def times_a_number(self, mixed: Tensor) -> str:
        """The least and the largest factor, where each row of a head is that of `mixed` times a number; or nothing."""
        heads, length, _ = mixed.shape
        rows = torch.arange(heads * length, dtype=mixed.dtype).reshape(heads, length, 1)
        expected, at = self.arrange(mixed).flatten(), self.arrange(rows.expand_as(mixed)).long().flatten()
        along = torch.zeros(heads * length, dtype=mixed.dtype).index_add(0, at, self.output.flatten() * expected)
        factors = along / torch.zeros_like(along).index_add(0, at, expected.square())
        fits = self.difference(mixed * factors.reshape(rows.shape)) <= SAME
        return f"{factors.min():.2g} to {factors.max():.2g}" if fits else ""


def parsed(text: str) -> tuple[Spec, bool]:
    """The variant, and whether it has the bias of ALiBi: `softmax|alibi`. Raises SelectionError for an unknown name."""
    spec = Spec.parse(text.removesuffix("|alibi"))
    VariantFactory.of(spec)
    return spec, text.endswith("|alibi")


def compared_with(subject: ForeignSubject, text: str) -> Answers:
    """The layer gives what the reference gives on its queries, keys and values, with padding too."""
    length = next(iter(taken(subject, _LENGTHS)), subject.length)
    padded = torch.ones(1, length, dtype=torch.bool)
    padded[0, :3], padded[0, length // 2], padded[0, -2:] = False, False, False
    answer: Answer = Measured(math.inf, SAME)
    cases: list[tuple[ForeignSubject, Tensor | None]] = [
        (subject, None),
        *([(subject, subject.laid(padded))] if subject.pads else []),
    ]
    if subject.convention.kind == "qkv":
        # a scale that is a number is right at one width
        heads, width = subject.convention.shape
        cases.append((replace(subject, convention=replace(subject.convention, shape=(heads, 2 * width))), None))
    for one, valid in cases:
        try:
            answer = _compared(_found(one, length, valid), *parsed(text))
        except Exception as error:
            if one is not subject:
                # its parameters may be of one width
                break
            reason = str(error) if isinstance(error, Unfound | AttnbenchError) else f"raises {error_text(error, 80)}"
            answer = NotJudged(f"not compared: {reason}", Measured(math.inf, SAME), "asks")
        if not isinstance(answer, Measured) or not answer.value <= SAME:
            break
    yield answer


def _found(subject: ForeignSubject, length: int, valid: Tensor | None) -> _Found:
    """The result of the layer for one sequence. Raises Unfound."""
    convention, causal = subject.convention, subject.claims if valid is None else subject.masks_and_looks_back
    # a switch may be left out of the call with padding
    looks_back = causal if convention.causal else subject.looks_back
    used = subject.fresh(double=True)
    try:
        found = seen(used, inputs := used.draw(1, length), valid, causal)
    except Exception:
        # a module of float32 alone
        used = subject.fresh()
        found = seen(used, inputs := used.draw(1, length), valid, causal)
    if convention.kind == "qkv":
        heads = HeadInputs(inputs[0][0].double(), inputs[1][0].double(), inputs[2][0].double())
        order = torch.arange(1, found.raw.numel() + 1).reshape(found.raw.shape)
        return _Found(found.raw.double(), order, [heads], looks_back, valid)
    if found.reason:
        raise Unfound(found.reason)
    parameters = tuple(each.detach().double() for each in subject.trained().values())
    candidates = [_grouped(each) for each in found.heads]
    sums = found.sums[0].double() if len(found.sums) == 1 else None
    return _Found(found.output.double(), found.order, candidates, looks_back, valid, parameters, sums)


@at_the_code
def seen(
    subject: ForeignSubject,
    inputs: Inputs,
    valid: Tensor | None,
    causal: bool,
    shift: float = 0.0,
    ones: bool = False,
) -> Pass:
    """One pass, with `shift` added to all scores, or with ones for values."""
    fast = torch.backends.mha.get_fastpath_enabled()
    # one operation for a whole layer of torch would hide its products
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        length = inputs[0].shape[2 if subject.convention.kind == "qkv" else 1]
        found = Products(inputs, length, shift=shift, ones=ones)
        with torch.no_grad(), under(found):
            output = subject(inputs, valid, causal)
        return found.seen(output)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _grouped(heads: HeadInputs) -> HeadInputs:
    """The heads in float64, and keys and values once for each group where they are repeated. Raises Unfound."""
    query, key, value = (x.double() for x in (heads.query, heads.key, heads.value))
    firsts = [
        [at for at, head in enumerate(x) if not any(torch.equal(head, other) for other in x[:at])] for x in (key, value)
    ]
    if len(firsts[0]) == len(firsts[1]):
        key, value = key[firsts[0]], value[firsts[1]]
    more = key[:, query.shape[1] :]
    # a tail is of one kind; a single key more may be a sink, in front too
    if more.shape[1] == 1 or bool((more != key[:, -1:]).any()):
        raise Unfound(f"it has {key.shape[1]} keys for {query.shape[1]} positions")
    return replace(heads, query=query, key=key, value=value)


def _compared(found: _Found, spec: Spec, alibi: bool) -> Answer:
    """The difference with its likely cause. Raises Unfound, and AttnbenchError of a reference that cannot be had."""
    plain = [
        _Reference(spec, heads, found.causal, found.valid, slopes)
        for heads in found.heads
        for slopes in (alibi_slopes(len(heads.query)) if alibi else [None])
    ]
    tried = [(found.difference(each.output()), each) for one in plain for each in one.choices(found.parameters)]
    size, best = min(tried, key=lambda each: each[0], default=(math.inf, plain[0]))
    if size <= SAME:
        return Measured(size, SAME)
    mixed = best.output()
    if tried and not torch.equal(mixed, best.output(seed=1)):
        raise Unfound(f"{spec} draws numbers that the layer draws otherwise")
    if tried and found.has_sums(mixed):
        text = f"its sums of values are those of {spec}; what follows them, as a gate or a norm, changes them"
        return NotJudged(f"{text} by {size:.2g}", Measured(size, SAME), "asks")
    words = f"differs{'' if found.valid is None else ' with padding'}{f' by {size:.2g}' if tried else ''}"
    program = ("import attnbench", f"print(attnbench.audit(m, like={str(spec) + '|alibi' * alibi!r}, compile=''))")
    for one in (best, *(each for each in plain if each.heads is not best.heads)):
        if cause := _explained(found, one):
            return Measured(size, SAME, f"{words}; cause: {cause}", program)
    if not tried:
        raise Unfound(f"{spec} has parameters, and none of the layer is as large")
    return Measured(size, SAME, f"{words}, by none of the usual causes", program)


def _explained(found: _Found, reference: _Reference) -> str:
    """The first usual cause by which the reference becomes what was found; empty where none does."""
    tried = [(SAME, "")]
    for cause, changed in (*_changes(reference), *_temperatures(reference, found.parameters)):
        # a variant may refuse the change; the first row may have no key to see
        with suppress(Exception):
            tried.append((found.difference(changed.output(), 1), cause))
    if reference.spec.name == "softmax":
        tried += [(found.difference(mixed, 1), cause) for cause, mixed in _softmaxes(reference)]
    # the least: a cap does nearly the same before the mask and behind it
    cause = min(tried, key=lambda each: max(each[0], _CLOSE))[1]
    for causal in () if cause else {reference.causal, True}:
        with suppress(Exception):
            if factors := found.times_a_number(replace(reference, causal=causal).output()):
                cause = "weights are not divided by their sum, or by another one: rows are those of "
                cause += f"{reference.spec} times {factors}"
    return cause


def _temperatures(reference: _Reference, parameters: tuple[Tensor, ...]) -> Iterator[tuple[str, _Reference]]:
    """The reference with scores times each parameter that has one number, or one for each head."""
    words = "a parameter of the layer, which was drawn for this test: a learned temperature"
    heads = reference.heads
    count = len(heads.query)
    for each in parameters:
        if each.numel() in (1, count):
            for factor in (each, each.exp(), 1 / each, F.softplus(each), each * heads.query.shape[2] ** 0.5):
                scaled = replace(heads, query=heads.query * factor.reshape(-1, 1, 1))
                yield f"scores are multiplied by {words}", replace(reference, heads=scaled)


def _changes(reference: _Reference) -> Iterator[tuple[str, _Reference]]:
    """The reference with each usual mistake that a layer of any variant may have."""
    heads, (count, length, width) = reference.heads, reference.heads.query.shape
    changed = partial(replace, reference)
    divided = (count * width, len(heads.key) * width, count, length, 2 * width, width // 2)
    scales = {"not divided": 1.0, f"divided by {width}": 1 / width, f"multiplied by sqrt({width})": width**0.5}
    scales |= {f"divided by sqrt({each})": each**-0.5 for each in divided if each}
    for words, scale in scales.items():
        scaled = replace(heads, query=heads.query * scale * width**0.5)
        yield f"scores are {words}; a head is {width} wide: sqrt({width})", changed(heads=scaled)
    times = count // len(heads.key)
    for keys, values in [(True, True), (True, False), (False, True)] if times > 1 else ():
        key, value = (
            x.repeat(times, 1, 1) if turn else x.repeat_interleave(times, 0)
            for x, turn in ((heads.key, keys), (heads.value, values))
        )
        names = " and ".join(["keys"] * keys + ["values"] * values)
        text = f"heads of {names} are repeated in turn (0, 1, 0, 1), not each for its group (0, 0, 1, 1)"
        yield text, changed(heads=replace(heads, key=key, value=value))
    at = torch.arange(length)
    yield "a query sees one key ahead: the causal mask is off by one", changed(causal=False, upper=at + 2)
    yield "a query does not see its own key: the causal mask is off by one", changed(causal=False, upper=at)
    yield "later keys are seen: no causal mask", changed(causal=False)
    yield "later keys are hidden: a causal mask", changed(causal=True)
    if reference.slopes is None:
        for table in alibi_slopes(count):
            yield f"it has a bias of ALiBi: --like '{reference.spec}|alibi'", changed(slopes=table)
    else:
        table = reference.slopes
        yield "the bias of ALiBi has the other sign, and grows with the distance", changed(slopes=-table)
        yield "the bias of ALiBi is added twice", changed(slopes=2 * table)
        yield "there is no bias of ALiBi", changed(slopes=0 * table)
        yield f"the bias of ALiBi is divided by sqrt({width}), as scores are", changed(slopes=table * width**-0.5)
        yield "the slopes of ALiBi stand in another order of heads", changed(slopes=table.flip(0))
        first = 2.0 ** (-8 * torch.arange(count, dtype=torch.float64) / count)
        yield "the slopes of ALiBi begin at 1, one step early", changed(slopes=first)
    if heads.key.shape[1] > length:
        yield "keys that fill up a block take part", changed(tail=True)
    for size in (16, 32, 64, 128, 256):
        key, value = (F.pad(x[:, :length], (0, 0, 0, -length % size)) for x in (heads.key, heads.value))
        text = f"keys of zeros fill up a multiple of {size}, and take part"
        yield text, changed(heads=replace(heads, key=key, value=value), tail=True)
    known = dict(reference.spec.parameters)
    for name, own in known.items():
        for other in (own - 1, own + 1, 2 * own - 1, 2 * own) if isinstance(own, int) else ("none",):
            spec = Spec.of(reference.spec.name, **(known | {name: other}))
            yield f"it is like {spec}", changed(spec=spec, chosen=() if other == "none" else reference.chosen)
    for name in _OTHERS:
        yield f"it is like {name}", changed(spec=Spec(name), chosen=())


def _softmaxes(reference: _Reference) -> Iterator[tuple[str, Tensor]]:
    """Sums of values (heads, positions, width) by softmaxes that are computed wrongly."""
    query, key, _, mask = reference.inputs()
    value = repeat_heads(reference.heads.value[None, :, : key.shape[2]], query.shape[1])[0]
    scores = (query @ repeat_heads(key, query.shape[1]).mT * query.shape[-1] ** -0.5)[0]
    seen = mask.allowed(scores.shape[1], scores.shape[2], scores.device)
    allowed = torch.ones_like(scores, dtype=torch.bool) if seen is None else seen[0].expand_as(scores)
    hidden = scores.masked_fill(~allowed, _LOWEST)
    yield "the softmax runs over queries", hidden.softmax(1) @ value
    yield "the softmax runs over heads", hidden.softmax(0) @ value
    for cap in _CAPS:
        yield f"scores are capped at {cap}", masked_softmax(cap * (scores / cap).tanh(), allowed) @ value
        words = f"the cap of scores at {cap} comes after the mask, so that hidden keys get weight"
        yield words, (cap * (hidden / cap).tanh()).softmax(-1) @ value
    for block in (reference.heads.block,) if reference.heads.block else (16, 32, 64, 128):
        words = f"sums over blocks of {block} keys are not rescaled when the maximum grows"
        for rescaled in product((False, True), repeat=2):
            yield words, _online(hidden, value, block, *rescaled)


def _online(scores: Tensor, value: Tensor, block: int, sums_rescaled: bool, total_rescaled: bool) -> Tensor:
    """Softmax over one block of keys after the other, whose sums and total may be rescaled to a new maximum."""
    top, total, sums = scores.new_full((*scores.shape[:2], 1), _LOWEST), torch.zeros(()), torch.zeros(())
    for at in range(0, scores.shape[2], block):
        part, values = scores[:, :, at : at + block], value[:, at : at + block]
        higher = torch.maximum(top, part.amax(-1, keepdim=True))
        exps, rescale = (part - higher).exp(), (top - higher).exp()
        sums = sums * (rescale if sums_rescaled else 1.0) + exps @ values
        total = total * (rescale if total_rescaled else 1.0) + exps.sum(-1, keepdim=True)
        top = higher
    return sums / total


def weights(subject: ForeignSubject) -> Answers:
    """Facts that show which attention it is: the sums of its weights, shifted scores, order and number of keys."""
    inputs, facts = subject.draw(1), []
    found = seen(subject, inputs, None, subject.claims, ones=True)
    if found.plain:
        low, high = float(found.output.min()), float(found.output.max())
        one = max(abs(low - 1), abs(high - 1)) <= SAME
        facts.append(f"its weights sum to {'one' if one else f'{low:.2g} to {high:.2g}'}")
    base = subject.outputs(inputs)
    if found.sums:
        shifted = by_position(seen(subject, inputs, None, subject.claims, shift=1.0).raw, subject.convention.kind)
        same = subject.compared("", shifted, base).value <= SAME
        facts.append(f"a number added to all its scores changes {'nothing' if same else 'outputs'}")

    def last_moves(order: Tensor) -> bool:
        axis = 2 if subject.convention.kind == "qkv" else 1
        other = subject.outputs(tuple(each.index_select(axis, order) for each in inputs))
        return subject.compared("", other[:, -1:], base[:, -1:]).value > SAME

    at = torch.arange(subject.length)
    with suppress(Exception):
        counts = last_moves(torch.cat([at[:-1].flip(0), at[-1:]]))
        facts.append(f"the order of other tokens {'counts' if counts else 'changes nothing'}")
        if not counts:
            # every other token, since a sparse map may look at no single one
            more = last_moves(torch.cat([at[:-1], at[:-1:2], at[-1:]]))
            facts.append(f"tokens that stand twice count {'more' if more else 'once'}")
    for told in (idle_rows, counts_padding):
        with suppress(Exception):
            facts += told(subject)
    yield NotJudged("; ".join(facts), verdict="note" if facts else "n.a.")


def mixed_heads(subject: ForeignSubject) -> str:
    """The way in which heads mix positions where they are split or joined; empty where nothing is found."""
    with suppress(Exception):
        return seen(subject, subject.draw(1), None, subject.claims).mixes
    return ""
