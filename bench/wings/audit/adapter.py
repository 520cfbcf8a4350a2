"""Foreign attention as a variant: a module or function that was written for anything, called as `recognise` found.

A layer becomes a `Layer` with its projections, a function of query, key and value a `Variant`; a model of tokens is for
`attnbench audit`. `target.py` makes the module from the shape.
"""

from __future__ import annotations

import copy
import inspect
import math
import typing
import warnings
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....variants.contract import AttentionShape, Layer, Mask, Variant, score_map
from ...core.errors import SelectionError, Unsupported
from ...core.spec import Value, value_text
from ...gate.result import Result
from ...measure.memory import storages
from ...run.link import Away, at_the_code
from .away import ForeignFacts, opened
from .calls import Call, Convention, Inputs, accepted_by, called
from .convention import recognise, says_causal, sees_future
from .decoding import ALLOWED, Protocol, protocol
from .search import parameters_of
from .subject import ForeignSubject, draw, first_tensor
from .target import (
    ATTRIBUTE,
    CHANGES,
    CONFIGS,
    NEEDED,
    OF_THE_SHAPE,
    STATES,
    as_tested,
    hints_of,
    kind_of_settings,
    made,
    makes,
    own_name,
    redraw_constants,
)

HALVES = (torch.bfloat16, torch.float16)
NO_PADDING = "no argument that keeps padding out was found"


@dataclass(frozen=True, slots=True)
class Calls:
    """The findings of trials. `looks_ahead`: whether the plain call does; `draws`: whether training draws numbers, at
    a rate of dropout where it takes one; `coarse`: whether it rounds inside to less than float64; `cache`: how it
    decodes, where that gives what one pass gives; `cache_text`: the same in words."""

    convention: Convention
    looks_ahead: bool = False
    draws: bool = False
    coarse: bool = False
    cache: Protocol | None = None
    cache_text: str = ""


class Foreign(Variant):
    """A variant made of somebody's class, function or module. An instance is of the class that fits its kind."""

    target: ClassVar[Any]
    name: ClassVar[str]
    _known: ClassVar[dict[Any, Calls]]

    def __new__(cls, shape: AttentionShape, *, call: Call = "", **given: Value) -> Any:
        module, arguments = made(cls.target, cls.name, shape, given)
        module, changes = as_tested(module)
        key = (call, tuple(sorted(given.items())), shape.hidden_width, shape.heads, shape.causal)
        if key not in cls._known:
            with torch.random.fork_rng(devices=[]):
                twin, _ = as_tested(made(cls.target, cls.name, replace(shape, dropout=0.5), given)[0])
                cls._known[key] = _calls(module, twin, call, shape)
        calls = cls._known[key]
        found = calls.convention
        if found.kind == "model":
            raise SelectionError(
                f"{cls.name} is a model of tokens, no attention; `attnbench audit {cls.name}` tests it"
            )
        if found.kind == "layer" and found.shape != (shape.hidden_width,):
            raise Unsupported(f"it takes states of width {found.shape[0]}, and here the width is {shape.hidden_width}")
        texts = {
            name: value_text(value) if isinstance(value, bool | int | float | str) else repr(value)
            for name, value in arguments.items()
        }
        said = ", ".join(f"{name}={text}" for name, text in texts.items())
        # who asks for a causal module and gets one that looks ahead has a defect, which the gate is to find
        claims = any(arguments.get(name) is True for name in OF_THE_SHAPE["causal"]) or says_causal(module)
        both = calls.looks_ahead and not found.causal and not claims
        adapter = ForeignLayer if found.kind == "layer" else ForeignAttention
        more = " · looks both ways" if both else calls.cache_text
        more += "".join(f" · {CHANGES[line]}" for line in changes)
        built = adapter(shape, module, calls, f"{cls.name}({said}) is {found}{more}")
        built.audited = partial(_audited, module, cls.name, call)
        built.looks_back = not calls.looks_ahead
        if both:
            built.causality = None  # type: ignore[misc]
        return built

    @classmethod
    def sizes(cls, given: dict[str, Any]) -> tuple[int | None, int | None]:
        """The heads, and the width, that it can be built for alone; None where any will do."""
        said = {ATTRIBUTE[name]: int(v) for name, v in given.items() if name in ATTRIBUTE and isinstance(v, int)}
        width = said.get("hidden_width")
        if isinstance(cls.target, nn.Module):
            found = recognise(as_tested(copy.deepcopy(cls.target))[0], call=given.get("call", "")).convention
            width = found.shape[0] if found.kind == "layer" else None
        return said.get("heads"), width


class ForeignAttention(Variant):
    """A function or module of query, key and value."""

    module: Any
    calls: Any
    audited: Any
    looks_back: bool

    def __init__(self, shape: AttentionShape, module: Any, calls: Calls, found: str):
        super().__init__(shape)
        _describe(self, module, calls, found)
        if shape.cross and not shape.causal:
            # of what looks back alone, keys that are left out would move the last one, as only causal use has it
            self.crosses = calls.looks_ahead and self._crosses()  # type: ignore[misc]

    def supports(self, shape: AttentionShape) -> str | None:
        return _refusal(self, shape) or super().supports(shape)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        few, keys = query.shape[2], key.shape[2]
        if mask.causal and few < keys:
            # a causal switch may align the first query with the first key
            query = F.pad(query, (0, 0, keys - few, 0))
        # its own parameters stay in float32, and a model in half precision gives the inputs as they are
        half = query.dtype in HALVES and isinstance(self.module, nn.Module) and any(True for _ in self.parameters())
        with torch.autocast(query.device.type, query.dtype) if half else nullcontext():
            output = _output(self.module, self.calls.convention, (query, key, value), mask)
        empty = mask.seen(query.shape[2], keys, query.device) == 0
        return output.masked_fill(empty[:, None, :, None], 0.0)[:, :, -few:].to(value.dtype)

    def _crosses(self) -> bool:
        # of one block, and of several
        for lengths in ((3, 5), (43, 95)):
            query, key = (draw("qkv", (self.shape.heads, self.shape.head_dim), 1, n, 0)[0] for n in lengths)
            try:
                with torch.no_grad():
                    if _output(self.module, self.calls.convention, (query, key, key), Mask()).shape != query.shape:
                        return False
            except Exception:
                # a module of others may raise anything for keys of another length: it does not take them
                return False
        return True


class ForeignLayer(Layer):
    """A layer with projections of its own, and with its own cache where it has one."""

    module: Any
    calls: Calls

    def __init__(self, shape: AttentionShape, module: Any, calls: Calls, found: str):
        super().__init__(shape)
        _describe(self, module, calls, found)

    def supports(self, shape: AttentionShape) -> str | None:
        return _refusal(self, shape) or super().supports(shape)

    def transform(self, x: Tensor, mask: Mask) -> Tensor:
        if mask.valid is not None:
            # a sequence without a token means nothing, and a softmax over no key is no number
            mask = replace(mask, valid=mask.valid | ~mask.valid.any(1, keepdim=True))
        return _output(self.module, self.calls.convention, (x,), mask)

    def advance(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        assert self.calls.cache is not None
        return self.calls.cache.step(self.module, "layer", (x,), state)

    def state_bytes(self, shape: AttentionShape) -> int | None:
        """Bytes held after up to 1,024 positions; beyond these, as many more for each as for the last ones."""
        if not self.decodes:
            return None
        # more than most windows, whose cache holds no more behind them
        some = min(shape.max_length, 1024)
        few, many = (self._held(n) for n in (some - some // 2, some))
        return many + (many - few) * (shape.max_length - some) // max(1, some // 2)

    @torch.no_grad()
    def _held(self, length: int) -> int:
        x, state = next(self.module.parameters()).new_zeros(1, length, self.shape.hidden_width), None
        # the last by itself: after a first call, keys may be views of all projections
        for piece in x.split(max(1, length - 1), 1):
            state = self.advance(piece, state)[1]
        return sum(storages(state).values())


@at_the_code
def _opened(variant: Any) -> ForeignFacts:
    """In the child: the facts about the module that was made a variant."""
    from .examine import facts_of
    from .suite import prepared

    module, _, call = variant.audited.args
    own, changes, more = prepared(module)
    return facts_of(own, (*changes, *more), changes, call)


def audited_there(variant: Away, causal: bool | None) -> list[Result]:
    """The findings about the module of a variant that lies in a child."""
    facts = _opened(variant)
    return _audited(opened(variant.link, facts), "", facts.call, causal)


def _audited(module: Any, name: str, call: Call, causal: bool | None) -> list[Result]:
    """The findings of an audit about the module as it is, by the names that the gate has for the same."""
    from .report import IN_THE_GATE
    from .suite import audit_module

    # the gate compiles it too
    findings = audit_module(module, name, call=call, causal=causal, compile="").findings
    found = (replace(each, property=IN_THE_GATE.get(each.property, each.property)) for each in findings)
    return [each for each in found if each.property != "compiled"]


def as_variant(found: Any, name: str) -> type[Variant]:
    """The class of a variant for what somebody named: one of the contract as it is, or a Foreign.

    Raises SelectionError for what is neither a class, a function nor a module.
    """
    if isinstance(found, type) and issubclass(found, Variant):
        return found
    if not callable(found):
        raise SelectionError(f"expected {name} to be a class, a function or an nn.Module, got {type(found).__name__}")
    names = [] if isinstance(found, type | nn.Module) else list(parameters_of(found))
    if names[:2] == ["scores", "allowed"]:
        return score_map()(found)

    def described() -> None:
        """Placeholder whose signature lists the parameters of the target."""

    defaults, kinds = _parameters(found)
    defaults, kinds = defaults | {"call": ""}, kinds | {"call": str}
    # the usual names too, such as heads where the constructor says num_heads
    for each in (names[0] for names in OF_THE_SHAPE.values()):
        if (own := own_name(accepted_by(found), each)) != each:
            defaults[each], kinds[each] = None, kinds.get(own, Any)
    described.__annotations__ = {each: kinds.get(each, Any) for each in defaults}
    described.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=value) for each, value in defaults.items()]
    )
    doc = inspect.getdoc(found) or "Somebody's attention, as it is."
    members = {"__doc__": doc, "target": found, "name": name, "_known": {}, "parameters_from": staticmethod(described)}
    if not isinstance(found, type | nn.Module):
        # of a class, a plain function would be bound to the instance
        members["target"] = staticmethod(found)
    return type(getattr(found, "__name__", type(found).__name__), (Foreign,), members)


def _parameters(found: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments by which a module is made, and the fields of its settings: defaults and plain types by name."""
    if not makes(found):
        return {}, {}
    plain = {bool, int, float, str, type(None)}
    defaults: dict[str, Any] = {}
    kinds: dict[str, Any] = {}
    holders = [each for each, p in accepted_by(found).items() if each in CONFIGS and p.default is p.empty]
    for made_by in (*(kind_of_settings(found, each) for each in holders), found):
        told = {each: p.default for each, p in accepted_by(made_by).items() if each not in holders}
        # what the shape gives has no default of its own: `[heads=4]` is kept, whatever the author's default is
        free = {each for each, default in told.items() if default is inspect.Parameter.empty or each in ATTRIBUTE}
        defaults |= {each: None if each in free else default for each, default in told.items()}
        hints = hints_of(made_by).items()
        kinds |= {each: kind for each, kind in hints if {kind} <= plain or set(typing.get_args(kind)) & plain}
    return defaults, kinds


def adapted(found: Any, name: str) -> Any:
    """A function from a shape to a variant as it is; all else by `as_variant`."""
    return found if takes_shape(found) else as_variant(found, name)


def takes_shape(found: Any) -> bool:
    """True for a function from an AttentionShape to a variant, whatever its one argument is called."""
    if isinstance(found, type | nn.Module):
        return False
    names = list(parameters_of(found))
    return len(names) == 1 and names[0] not in {*NEEDED, *CONFIGS, *STATES}


def _at_width(module: Any, found: Convention, width: int) -> Convention:
    """The same call for states of another width, where the module takes them: one without parameters takes any."""
    states = draw("layer", (width,), 2, found.length, 1)
    with torch.no_grad(), suppress(Exception):
        if _output(module, found, states, Mask()).shape == states[0].shape:
            return replace(found, shape=(width,))
    return found


def _calls(module: Any, twin: Any, call: Call, shape: AttentionShape) -> Calls:
    """Try how a module behaves. `twin`: the same, made for a rate of dropout; `call`: see `recognise`."""
    with warnings.catch_warnings():
        # of calls that are only tried
        warnings.simplefilter("ignore")
        if isinstance(module, nn.Module):
            module = copy.deepcopy(module)
            redraw_constants(module)
        found = recognise(module, call=call, heads=shape.heads).convention
        if found.kind == "model":
            return Calls(found)
        if found.kind == "layer" and found.shape != (shape.hidden_width,):
            found = _at_width(module, found, shape.hidden_width)
        looks_ahead = sees_future(module, found, found.plain) is not False
    inputs = draw(found.kind, found.shape, 2, found.length, 1)
    with torch.no_grad():
        draws = coarse = False
        if isinstance(twin, nn.Module):
            twin = copy.deepcopy(twin).train()
            draws = not torch.equal(*(_output(twin, found, inputs, Mask()) for _ in range(2)))
        try:
            exact = copy.deepcopy(module).double().eval() if isinstance(module, nn.Module) else module
            coarse = _is_coarse(exact, found, tuple(x.double() for x in inputs))
        except Exception:
            # a call in float64 that raises is refused, and not a finding
            coarse = True
        cache, said = None, ""
        if found.kind == "layer" and (found.causal or not looks_ahead):
            subject = ForeignSubject(module, found)
            cache, size = protocol(subject.with_module(copy.deepcopy(module).eval()))
            if cache is not None:
                said = f" · cache {cache.later}"
            if cache is not None and not cache.argument:
                # what a module keeps is of one sequence, and the gate decodes two in turns
                cache = None
            elif size > ALLOWED:
                differs = " · its cache gives other outputs than one pass and is not used"
                cache, said = None, differs if size < math.inf else ""
    return Calls(found, looks_ahead, draws, coarse, cache, said)


def _is_coarse(module: Any, found: Convention, inputs: Inputs) -> bool:
    """True if something inside is rounded to float32 whatever comes in: twice a tiny step is not twice the change."""
    generator = torch.Generator().manual_seed(2)
    steps = [1e-9 * torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in inputs]
    base, once, twice = (
        _output(module, found, tuple(x + factor * step for x, step in zip(inputs, steps, strict=True)), Mask())
        for factor in (0, 1, 2)
    )
    change = (once - base).abs().max()
    return bool((twice - 2 * once + base).abs().max() > 1e-2 * change)


def _describe(variant: Any, module: Any, calls: Calls, found: str) -> None:
    variant.module, variant.calls, variant.found = module, calls, found
    variant.implementation, variant.uses_dropout = "as given", calls.draws
    if calls.convention.kind == "layer":
        variant.decodes = calls.cache is not None


def _refusal(variant: Any, shape: AttentionShape) -> str | None:
    found: Convention = variant.calls.convention
    causal = shape.causal and bool(found.causal)
    if shape.causal and variant.causality is None:
        return "it looks both ways: later tokens change earlier outputs"
    if shape.padding and (found.mask_ignored or not found.call(padded=True, causal=causal)):
        return NO_PADDING
    if shape.dtype == "float64" and variant.calls.coarse:
        return "it rounds to less than float64 inside, or takes no float64"
    return None


def _output(module: Any, found: Convention, inputs: Inputs, mask: Mask) -> Tensor:
    """The output of one call."""
    call = found.call(padded=mask.valid is not None, causal=mask.causal)
    if not call:
        call, mask = found.call(padded=False, causal=mask.causal), _without_padding(mask)
    elif found.counts_tokens and _has_padding_before(mask):
        raise Unsupported("it takes numbers of tokens, so that padding stands behind them")
    return first_tensor(called(call, module, found.kind, inputs, mask))


def _without_padding(mask: Mask) -> Mask:
    """The mask for a module that takes no padding: behind all tokens, none of which looks ahead, it changes nothing."""
    if not mask.causal or _has_padding_before(mask):
        raise Unsupported(NO_PADDING)
    return replace(mask, valid=None)


def _has_padding_before(mask: Mask) -> bool:
    return mask.valid is not None and bool((mask.valid[:, 1:] & ~mask.valid[:, :-1]).any())
