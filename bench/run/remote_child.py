"""The side of the child of `remote.py`: makes instances, calls them, and gives back tensors as bytes; no verdict."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from ...variants.contract import AttentionShape, Mask, ScoredVariant
from ..core.decode import Text
from ..core.registry import VARIANTS
from ..core.spec import Spec
from ..gate.variant import VariantFactory, Widened
from ..measure.memory import reordered, storages
from ..process.ask import Reporter, Request
from .global_state import note_functions
from .link import DTYPES, WINDOW, Name, Size, at_the_code, keep, kept

_Kind = Literal["learns", "fixed", "buffer", "unsaved"]
"""A parameter that learns or does not, a buffer that is saved or is not."""

MIRRORED_BYTES = 2**20
"""Inputs, parameters and earlier outputs of more bytes are not looked at again after each call. Sizes of the short form
of the gate, which looks for side effects, are below."""


class ProcessSettings(msgspec.Struct, frozen=True):
    """The settings of a process that every call sees and may change. generator: the state of torch's random numbers."""

    dtype: Name
    threads: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    gradients: bool
    deterministic: bool
    precision: Literal["highest", "high", "medium"]
    generator: Tensor

    @classmethod
    def now(cls) -> ProcessSettings:
        return cls(
            dtype=str(torch.get_default_dtype()).removeprefix("torch."),
            threads=torch.get_num_threads(),
            gradients=torch.is_grad_enabled(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            precision=torch.get_float32_matmul_precision(),  # type: ignore[arg-type]
            generator=torch.get_rng_state(),
        )

    def apply(self) -> None:
        """Each only where it differs: a change of threads takes long."""
        now = ProcessSettings.now()
        if self.dtype != now.dtype:
            torch.set_default_dtype(DTYPES[self.dtype])
        if self.threads != now.threads:
            torch.set_num_threads(self.threads)
        if self.gradients != now.gradients:
            torch.set_grad_enabled(self.gradients)
        if self.deterministic != now.deterministic:
            torch.use_deterministic_algorithms(self.deterministic)
        if self.precision != now.precision:
            torch.set_float32_matmul_precision(self.precision)
        if not torch.equal(self.generator, now.generator):
            torch.set_rng_state(self.generator)


class Effects(msgspec.Struct, frozen=True):
    """The settings behind a call. others: a hash of the states of the random numbers of Python and NumPy."""

    settings: ProcessSettings
    others: int

    @classmethod
    def now(cls) -> Effects:
        _, numbers, *rest = np.random.get_state(legacy=True)
        return cls(ProcessSettings.now(), hash((random.getstate(), bytes(numbers), *rest)))  # type: ignore[arg-type]


ATTRIBUTES = (
    "kind", "causality", "crosses", "decodes", "twin", "simplex", "ignores", "uses_dropout", "takes_bounds",
    "drops_inside", "takes_hidden", "owns_projections", "brings_positions", "maps_products", "matches_parameters",
)  # fmt: skip
"""What the gate and a model ask of a variant beside its methods."""


class Opened(msgspec.Struct, frozen=True):
    """A maker of instances in the child. sizes: the heads, and the width, that it can be built for alone."""

    number: int
    implementations: tuple[Name, ...]
    forced: Name
    sizes: tuple[Size | None, Size | None]


class Made(msgspec.Struct, frozen=True):
    """An instance in the child: its number, what the gate asks of its class, and its parameters and buffers."""

    number: int
    attributes: dict[Name, bool | Text | list[Name] | None]
    has_loss: bool
    is_scored: bool
    found: Text
    is_audited: bool
    training: bool
    names: tuple[Name, ...]
    kinds: tuple[_Kind, ...]
    state: list[Tensor]
    effects: Effects


class _Sublayer(msgspec.Struct, frozen=True):
    """A layer in the child that a variant puts before its attention: its number, and its tensors with their kinds."""

    number: int
    tensors: list[tuple[Name, _Kind, Tensor]]


class RemoteCall(msgspec.Struct, frozen=True):
    """The call of an instance. places: numbers of the memory of the inputs, where the content of one that is None
    stands already; wanted: which of them gets a gradient."""

    method: Literal["forward", "weights", "weigh", "step", "after_step"]
    training: bool
    places: tuple[int, ...] = ()
    wanted: tuple[bool, ...] = ()
    causal: bool = False
    lengths: tuple[int, ...] | None = None
    rows: tuple[int | None, int | None] | None = None
    step_state: int | None = None
    is_widened: bool = False
    autocast: Name = ""


class CallResult(msgspec.Struct, frozen=True):
    """The result of a call. kept: the number of its graph, or of the state of a step; given, state, earlier: inputs,
    parameters and the last output as they are behind it, where it has changed them and they are small."""

    output: Tensor | None
    loss: Tensor | None
    kept: int | None
    given: list[Tensor | None]
    state: list[Tensor | None]
    learns: list[bool]
    training: bool
    earlier: Tensor | None
    implementation: Text
    casts: Size
    effects: Effects


class Gradients(msgspec.Struct, frozen=True):
    """Gradients of what was given and of the parameters; arriving: those that came, where the call has changed them."""

    found: list[Tensor | None]
    arriving: list[Tensor | None]
    effects: Effects


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVariant(Request[Opened]):
    """Import a variant, and keep its factory for `factory_of`."""

    variant: Spec

    def answer(self, reporter: Reporter) -> Opened:
        note_functions()
        return _open(self.variant)


def _open(variant: Spec) -> Opened:
    plain = variant.inner or variant
    of_class = getattr(VARIANTS.load(plain.name), "sizes", None) if not variant.layers else None
    factory = VariantFactory.of(variant)
    sizes = of_class(dict(plain.parameters)) if of_class else (None, None)
    return Opened(keep(factory), factory.implementations, factory.forced, sizes)


_EARLIER: list[tuple[Any, Tensor]] = []
"""The instance of the last call, and its output."""

_PLACES: OrderedDict[int, Tensor] = OrderedDict()
"""The tensors of the last calls by the number of their memory."""


def _at(place: int, x: Tensor | None, device: str) -> Tensor | None:
    """The tensor of this number with the content of `x`, or as it is where that is None; for -1 `x` as it is."""
    if place < 0 or (x is not None and place not in _PLACES):
        x = x if x is None else x.to(device)
        if place >= 0 and x is not None:
            _PLACES[place] = x
            while len(_PLACES) > WINDOW:
                _PLACES.popitem(last=False)
        return x
    known = _PLACES[place]
    if x is not None and not _same_bits(known, x):
        known.copy_(x)
    return known


def _named(variant: nn.Module) -> list[tuple[str, Tensor]]:
    return [*variant.named_parameters(), *variant.named_buffers()]


def _load(variant: nn.Module, state: list[Tensor]) -> None:
    """Numbers for all parameters and buffers; none where they are as they were."""
    for (_, x), new in zip(_named(variant) if state else [], state, strict=True):
        if (x.shape, x.dtype) != (new.shape, new.dtype):
            x.data = new.to(x.device)
        elif not _same_bits(x, new):
            x.copy_(new)


def _copied(x: Tensor | None) -> Tensor | None:
    return None if x is None or x.nbytes > MIRRORED_BYTES else x.clone()


def _changed(held: list[Any], before: list[Tensor | None]) -> list[Tensor | None]:
    """The tensors that differ from the copies of them, None for all others."""
    pairs = zip(held, before, strict=True)
    return [None if x is None or old is None or _same_bits(x, old) else x for x, old in pairs]


def _kinds_of(module: nn.Module) -> list[_Kind]:
    """The kind of each of `_named`."""
    saved = {*module.state_dict()}
    kinds: list[_Kind] = ["learns" if x.requires_grad else "fixed" for x in module.parameters()]
    return [*kinds, *("buffer" if name in saved else "unsaved" for name, _ in module.named_buffers())]


def _described(variant: Any) -> Made:
    values = {name: getattr(variant, name, None) for name in ATTRIBUTES}
    return Made(
        number=keep(variant),
        attributes={name: [*value] if isinstance(value, frozenset) else value for name, value in values.items()},
        has_loss=variant.has_loss,
        is_scored=isinstance(variant, ScoredVariant),
        found=getattr(variant, "found", ""),
        is_audited=hasattr(variant, "audited"),
        training=variant.training,
        names=tuple(name for name, _ in _named(variant)),
        kinds=tuple(_kinds_of(variant)),
        state=[x for _, x in _named(variant)],
        effects=Effects.now(),
    )


@at_the_code
def open_other(factory: Any, name: str) -> Opened:
    return _open(VARIANTS.resolve(Spec.parse(name)))


@at_the_code
def make(factory: Any, shape: AttentionShape, more: dict[str, str], settings: ProcessSettings) -> Made:
    settings.apply()
    return _described(factory.make(shape, **more).to(shape.device))


@at_the_code
def copy(variant: Any, state: list[Tensor], settings: ProcessSettings) -> Made:
    _load(variant, state)
    # they are answered too, and an answer is made without gradients
    settings.apply()
    return _described(deepcopy(variant))


@at_the_code
def trace(variant: Any, state: list[Tensor], settings: ProcessSettings) -> Made:
    _load(variant, state)
    settings.apply()
    torch._dynamo.reset()
    return _described(torch.compile(variant, backend="eager", dynamic=False))


@at_the_code
def convert(variant: Any, state: list[Tensor], dtype: str, device: str) -> list[Tensor]:
    """The parameters and buffers of the variant in another precision, or on another device."""
    _load(variant, state)
    # those of floats leave complex numbers as they are
    {"float64": variant.double, "float32": lambda: variant}.get(dtype, lambda: variant.to(DTYPES[dtype]))()
    variant.to(device)
    return [x for _, x in _named(variant)]


@at_the_code
def supports(variant: Any, shape: AttentionShape) -> Text | None:
    found: str | None = variant.supports(shape)
    return found


@at_the_code
def sublayer(variant: Any, width: int) -> _Sublayer | None:
    layer = variant.pre_layer(width)
    if layer is None:
        return None
    layer.to(variant.shape.device)
    named = zip(_named(layer), _kinds_of(layer), strict=True)
    return _Sublayer(keep(layer), [(name, kind, x) for (name, x), kind in named])


@at_the_code
def through_sublayer(layer: Any, state: list[Tensor], x: Tensor, valid: Tensor | None) -> Tensor:
    """The output of the layer in evaluation."""
    _load(layer, state)
    output: Tensor = layer.eval()(x, valid)
    return output


@at_the_code
def density(variant: Any, shape: AttentionShape) -> float:
    return float(variant.density(shape))


@at_the_code
def state_bytes(variant: Any, shape: AttentionShape) -> int | None:
    found: int | None = variant.state_bytes(shape)
    return found


@at_the_code
def chosen(state: Any, rows: Tensor) -> int:
    """The number of a state of these rows of another."""
    return keep(reordered(state, rows))


@at_the_code
def sizes(state: Any) -> list[int]:
    return list(storages(state).values())


@at_the_code
def call(
    variant: Any, given: list[Tensor | None], state: list[Tensor], how: RemoteCall, settings: ProcessSettings
) -> CallResult:
    """One call, with a graph where a gradient is wanted."""
    placed = [_at(place, x, variant.shape.device) for place, x in zip(how.places, given, strict=True)]
    _load(variant, state)
    if variant.training != how.training:
        variant.train(how.training)
    own = [x for _, x in _named(variant)]
    leaves = [x if x is None or not does else x.detach().requires_grad_()
              for x, does in zip(placed, how.wanted, strict=True)]  # fmt: skip
    # the copies with which the tensors are compared behind the call
    held = [*placed, *own, *(x for of, x in _EARLIER if of is variant and how.method == "forward")]
    before = [_copied(x) for x in held]
    mode = Widened()  # type: ignore[no-untyped-call]
    settings.apply()
    with ExitStack() as around:
        if how.is_widened:
            around.enter_context(mode)
        if how.autocast:
            around.enter_context(torch.autocast(torch.device(variant.shape.device).type, dtype=DTYPES[how.autocast]))
        output, loss, left = _METHODS[how.method](variant, leaves, how)
    effects = Effects.now()
    torch.set_grad_enabled(False)
    records = any(x is not None and x.requires_grad for x in (output, loss))
    if how.method != "step":
        left = (output, loss, leaves, own) if records else None
    changed = _changed(held, before)
    if output is not None and how.method == "forward":
        _EARLIER[:] = [(variant, output.detach())]
    return CallResult(
        output=output,
        loss=loss,
        kept=None if left is None else keep(left),
        given=changed[: len(placed)],
        state=changed[len(placed) :][: len(own)],
        learns=[x.requires_grad for _, x in _named(variant)],
        training=variant.training,
        earlier=next(iter(changed[len(placed) + len(own) :]), None),
        implementation=str(variant.implementation),
        casts=mode.casts,
        effects=effects,
    )


@at_the_code
def back(graph: Any, arriving: list[Tensor | None], wanted: list[bool], settings: ProcessSettings) -> Gradients:
    """Gradients of the leaves and parameters that are wanted."""
    output, loss, leaves, own = graph
    before = [_copied(x) for x in arriving]
    settings.apply()
    sources = [*leaves, *own]
    asked = [at for at, does in enumerate(wanted) if does and sources[at] is not None and sources[at].requires_grad]
    both = zip((output, loss), arriving, strict=True)
    ends = [(x, g.to(x.device)) for x, g in both if x is not None and g is not None and x.requires_grad]
    found: list[Tensor | None] = [None] * len(sources)
    if asked and ends:
        with torch.enable_grad():
            some = torch.autograd.grad(
                [x for x, _ in ends], [sources[at] for at in asked], [g for _, g in ends],
                allow_unused=True, retain_graph=True,
            )  # fmt: skip
        for at, gradient in zip(asked, some, strict=True):
            found[at] = gradient
    effects = Effects.now()
    torch.set_grad_enabled(False)
    return Gradients(found, _changed(arriving, before), effects)


def _forward(variant: Any, given: list[Any], how: RemoteCall) -> tuple[Tensor, Tensor | None, None]:
    query, key, value, hidden, valid, bounds = given
    mask = Mask(valid=valid, causal=how.causal, bounds=bounds, lengths=how.lengths)
    output = variant(query, key, value, mask, hidden)
    return output, variant.auxiliary_loss() if variant.has_loss else None, None


def _weights(variant: Any, given: list[Any], how: RemoteCall) -> tuple[Tensor | None, None, None]:
    query, key, hidden, valid = given
    rows = None if how.rows is None else slice(*how.rows)
    return variant.weights_with(query, key, Mask(valid=valid, causal=how.causal), rows, hidden), None, None


def _weigh(variant: Any, given: list[Any], how: RemoteCall) -> tuple[Tensor, None, None]:
    return variant.weigh(*given), None, None


def _step(variant: Any, given: list[Any], how: RemoteCall) -> tuple[Tensor, None, Any]:
    query, key, value, hidden = given
    state = None if how.step_state is None else kept(how.step_state)
    output, state = variant.step_with(query, key, value, state, hidden)
    return output, None, state


def _after_step(variant: Any, given: list[Any], how: RemoteCall) -> tuple[None, None, None]:
    variant.after_step()
    return None, None, None


_METHODS: dict[str, Callable[..., tuple[Tensor | None, Tensor | None, Any]]] = {
    "forward": _forward, "weights": _weights, "weigh": _weigh, "step": _step, "after_step": _after_step
}  # fmt: skip


def _same_bits(x: Tensor, new: Tensor) -> bool:
    """True for the same numbers in the same type; one that is no number is the same as itself."""
    if x.shape != new.shape or x.dtype != new.dtype:
        return False
    # numpy compares a whole word at once, torch.equal byte by byte
    a, b = (each.detach().cpu().contiguous().flatten().view(torch.uint8).numpy() for each in (x, new))
    return bool(np.array_equal(a, b))
