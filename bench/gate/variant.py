"""Instances of the variant that is examined, from what was named: a Spec, its text, a class or a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from time import process_time
from typing import Any, get_args

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...variants.contract import AttentionShape, Variant
from ..core.errors import SelectionError, Unsupported
from ..core.registry import VARIANTS, parameters
from ..core.spec import Spec
from ..measure.memory import storages

EAGER = "eager"
"""The value of `impl` that is the definition."""
OPENING = 0.1
"""Standard deviation of the entries that begin at zero."""

VariantSource = Spec | str | type[Variant] | Callable[[AttentionShape], Variant]


@dataclass(frozen=True, slots=True)
class VariantFactory:
    """A maker of instances: `make(shape, **parameters)`. `implementations` are the values of a parameter `impl`;
    `forced`, which of them a selection asks for. The rest is done where the code lies, here or in another process:
    `twin` makes the factory of a selection, `traced` an instance under torch.compile; `held` counts the bytes of a
    state of decoding; `seconds` tells processor time."""

    make: Callable[..., Variant]
    implementations: tuple[str, ...] = ()
    forced: str = ""
    twin: Callable[[str], VariantFactory] = lambda name: VariantFactory.of(name)
    traced: Callable[[Any], Any] = lambda variant: torch.compile(variant, backend="eager", dynamic=False)
    held: Callable[[Any], int] = lambda state: sum(storages(state).values())
    seconds: Callable[[], float] = process_time

    @classmethod
    def of(cls, given: VariantSource | VariantFactory) -> VariantFactory:
        """Raises SelectionError for an unknown name or parameter."""
        if isinstance(given, VariantFactory):
            return given
        make, kind, forced = given, given, ""
        if isinstance(given, str | Spec):
            spec = VARIANTS.resolve(Spec.parse(given) if isinstance(given, str) else given)
            if spec.layers:
                raise SelectionError(f"expected one variant, got the pattern {spec}; check each of its layers")
            inner = spec.inner or spec

            def make(shape: AttentionShape, **more: Any) -> Variant:
                # an implementation is one of the variant inside
                wrapped = Spec.wrapped(spec.wrappers, Spec.of(inner.name, **(dict(inner.parameters) | more)))
                variant: Variant = VARIANTS.build(wrapped, shape)
                return variant

            kind, forced = VARIANTS.load(inner.name), str(inner.get("impl", ""))
        known = parameters(kind) if isinstance(kind, type) else {}
        return cls(make, tuple(get_args(known["impl"].kind)) if "impl" in known else (), forced)  # type: ignore[arg-type]


def seed_draws(seed: int) -> None:
    """Seed all random numbers, as `torch.manual_seed` does.

    Where there is no accelerator, that one keeps the seed for each kind of them, with the stack of the call as text:
    3 ms each time, a fifth of all time of a gate.
    """
    (torch.manual_seed if _has_accelerator() else torch.default_generator.manual_seed)(seed)


@cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


def build(source: VariantFactory, shape: AttentionShape, seed: int, **more: Any) -> Variant:
    """A new instance in evaluation mode, on the shape's device; parameters stay in float32 under half precision.

    Trained entries that begin at zero, such as a gate that is shut at first, are drawn anew: what lies behind them is
    to be seen. Raises Unsupported where it refuses the shape.
    """
    # Random projections and patterns are part of a variant: two instances are compared only if they drew the same.
    seed_draws(seed)
    variant = source.make(shape, **more)
    reason = variant.supports(shape)
    if reason:
        raise Unsupported(reason)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in variant.parameters():
            shut = parameter == 0
            # what is not trained stays shut, such as the zeros of a fixed pattern
            if shut.any() and (parameter.requires_grad or shut.all()):
                drawn = OPENING * torch.randn(parameter.shape, generator=generator)
                parameter.copy_(torch.where(shut, drawn.to(parameter), parameter))
    variant.to(shape.device)
    return (variant.double() if shape.dtype == "float64" else variant).eval()


def jitter(module: Variant, seed: int) -> None:
    """Moves parameters off their first values, where a zero may hide a gradient and a kink may lie."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p), alpha=0.05)


class Widened(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps float64 where code casts it down to a fixed precision, such as for a softmax that is float32 always."""

    casts = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in this mode, and to skip the compiler is to import it, which takes two seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        down = kwargs.get("dtype") in (torch.float32, torch.bfloat16, torch.float16)
        if down and func is torch.ops.aten._to_copy.default and args[0].dtype == torch.float64:
            self.casts += 1
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def with_heads(shape: AttentionShape, heads: int, least: int = 1) -> AttentionShape:
    """`shape` with at most `heads` heads, or `least` groups of them where that is more; as many of them share a key."""
    group = shape.heads // shape.kv_heads
    groups = min(shape.kv_heads, max(least, min(heads, shape.heads) // group))
    return resized(shape, heads=groups * group, kv_heads=groups)


def resized(shape: AttentionShape, **changes: Any) -> AttentionShape:
    """`shape` with other heads; a hidden state as wide as all heads together stays so, since a layer splits it."""
    made = replace(shape, **changes)
    return replace(made, hidden_width=made.width) if shape.hidden_width == shape.width else made
