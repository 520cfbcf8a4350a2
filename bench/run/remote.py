"""Remote: a variant whose code lies in a child, as the gate sees it here.

    with linked(VARIANTS, "mine.py:Mine", OpenVariant(variant=spec)) as link:
        examine(factory_of(link), shape)

It looks like any other variant: its parameters stand here, a call of it gives an output with a gradient, and whatever a
call changes in the child is changed here too: inputs, parameters, earlier outputs, random numbers, settings. So the
gate examines it unchanged, and compares in a process that has never imported the code.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ...variants.contract import AttentionShape, Mask, ScoredVariant, Variant
from ..core.entry_points import loaded, read_group
from ..core.registry import ADAPTERS
from ..gate.result import Result
from ..gate.variant import VariantFactory, Widened
from . import remote_child as there
from .link import Away, Link
from .remote_child import CallResult, Effects, Made, Opened, ProcessSettings, RemoteCall


def factory_of(link: Link, opened: Opened | None = None) -> VariantFactory:
    """The maker of instances of the variant that the link has opened, or of another one that it has."""
    opened = opened or link.facts
    away = Away(link, opened.number)

    def make(shape: AttentionShape, **more: str) -> Variant:
        return _instance(link, shape, there.make(away, shape, more, ProcessSettings.now()))

    def traced(variant: Remote) -> Remote:
        made = there.trace(variant.away, variant._values, ProcessSettings.now())
        # else what is compiled draws, as in training
        return _instance(link, variant.shape, made).train(variant.training)

    return VariantFactory(
        make, opened.implementations, opened.forced,
        twin=lambda name: factory_of(link, there.open_other(away, name)),
        traced=traced,
        held=lambda state: sum(there.sizes(state)),
        seconds=link.child.processor_seconds,
    )  # fmt: skip


@cache
def _audit() -> Callable[..., list[Result]] | None:
    """The test of a module as it is called by itself, where one is installed."""
    point = read_group(ADAPTERS).points.get("audit")
    return loaded(point) if point else None


def _instance(link: Link, shape: AttentionShape, made: Made) -> Remote:
    return (RemoteScored if made.is_scored else Remote)(shape, link, made)


class Remote(Variant):
    """An instance whose code lies in the child."""

    def __init__(self, shape: AttentionShape, link: Link, made: Made):
        super().__init__(shape)
        self.link, self.away, self.made = link, Away(link, made.number), made
        for name, value in made.attributes.items():
            setattr(self, name, frozenset(value) if isinstance(value, list) else value)
        self.found = made.found
        if made.is_audited and (audit := _audit()):
            self.audited = partial(audit, self.away)
        for name, kind, tensor in zip(made.names, made.kinds, made.state, strict=True):
            _hold(self, name, kind, tensor.to(shape.device))
        self.training = made.training
        self._loss: Tensor | None = None
        self._last: Callable[[], Tensor | None] = lambda: None
        self._sent: list[int] | None = None
        self._settle(made.effects)

    @property
    def has_loss(self) -> bool:
        return self.made.has_loss

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None = None) -> Tensor:
        if self.owns_projections:
            # it gets the hidden state alone, so the rest travels as sizes
            query, key, value = (x.new_zeros(()).expand(x.shape) for x in (query, key, value))
        given = [query, key, value, hidden, mask.valid, mask.bounds]
        found = self._run("forward", given, causal=mask.causal, lengths=mask.lengths)
        assert found is not None
        # those of whoever looks at the weights here
        for hook in self._forward_hooks.values():
            hook(self, (query, key, value, mask, *(() if hidden is None else (hidden,))), found)
        return found

    def weights_with(
        self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None, hidden: Tensor | None
    ) -> Tensor | None:
        picked = None if rows is None else (rows.start, rows.stop)
        return self._run("weights", [query, key, hidden, mask.valid], causal=mask.causal, rows=picked)

    def step_with(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any, hidden: Tensor | None
    ) -> tuple[Tensor, Any]:
        step_state = None if state is None else state.number
        given = [query, key, value, hidden]
        outcome = self._ask(given, method="step", step_state=step_state)
        self._mirror(given, outcome)
        self._settle(outcome.effects)
        assert outcome.output is not None
        return outcome.output.to(value.device), None if outcome.kept is None else _State(self.link, outcome.kept)

    def supports(self, shape: AttentionShape) -> str | None:
        return there.supports(self.away, shape)

    def pre_layer(self, width: int) -> nn.Module | None:
        found = there.sublayer(self.away, width)
        return None if found is None else _Before(self, found)

    def density(self, shape: AttentionShape) -> float:
        return there.density(self.away, shape)

    def state_bytes(self, shape: AttentionShape) -> int | None:
        return there.state_bytes(self.away, shape)

    def auxiliary_loss(self) -> Tensor | None:
        return self._loss

    def after_step(self) -> None:
        self._run("after_step", [])

    def __deepcopy__(self, memo: dict[int, Any]) -> Remote:
        return _instance(self.link, self.shape, there.copy(self.away, self._values, ProcessSettings.now()))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Remote:
        # such as `double()`: the code may convert itself in a way of its own, so it is done there
        probe = fn(torch.zeros(()))
        dtype, device = str(probe.dtype).removeprefix("torch."), str(probe.device)
        if dtype == "float32" and torch.device(device).type == torch.device(self.shape.device).type:
            # it is there already
            return self
        for x, new in zip(self._tensors, there.convert(self.away, self._values, dtype, device), strict=True):
            x.data = new.to(probe.device)
        self._sent = None
        return self

    @property
    def _tensors(self) -> list[Tensor]:
        named = dict(self.named_parameters(remove_duplicate=False)) | dict(self.named_buffers(remove_duplicate=False))
        return [named[name] for name in self.made.names]

    @property
    def _values(self) -> list[Tensor]:
        return [x.detach() for x in self._tensors]

    def _run(self, method: str, given: list[Tensor | None], **how: Any) -> Tensor | None:
        """The output of a call, with its gradient; what it has changed there is changed here."""
        own = self._tensors
        outcomes: list[CallResult] = []
        if self._learns(given, own):
            output, loss = _Through.apply(  # type: ignore[no-untyped-call]
                self, outcomes, {"method": method, **how}, len(given), *given, *own
            )
        else:
            outcome = self._ask(given, method=method, **how)
            outcomes.append(outcome)
            output, loss = (x if x is None else x.to(self.shape.device) for x in (outcome.output, outcome.loss))
        [outcome] = outcomes
        self._mirror(given, outcome)
        if method == "forward":
            self._loss = loss
            self._last = lambda: None
            if output is not None:
                self._last = weakref.ref(output)
        self._settle(outcome.effects)
        found: Tensor | None = output
        return found

    @staticmethod
    def _learns(given: Sequence[Tensor | None], own: Sequence[Tensor]) -> bool:
        return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (*given, *own))

    def _ask(self, given: Sequence[Tensor | None], wanted: Sequence[bool] = (), **how: Any) -> CallResult:
        mode, device = _get_current_dispatch_mode(), torch.device(self.shape.device).type
        step = how["method"] == "step"
        versions = [x._version for x in self._tensors]
        # steps have new tensors each time; what is expanded is small; without gradients nobody counts changes
        is_new = [step or x is None or 0 in x.stride() or x.is_inference() for x in given]
        placed = [(-1, False) if new or x is None else _place(self.link, x)
                  for x, new in zip(given, is_new, strict=True)]  # fmt: skip
        call = RemoteCall(
            training=self.training,
            places=tuple(place for place, _ in placed),
            wanted=tuple(wanted) or (False,) * len(given),
            is_widened=isinstance(mode, Widened),
            autocast=str(torch.get_autocast_dtype(device))[6:] if torch.is_autocast_enabled(device) else "",
            **how,
        )
        # parameters are sent again only where something has changed them
        state = [] if versions == self._sent else self._values
        sent = [None if x is None or is_there else x.detach() for x, (_, is_there) in zip(given, placed, strict=True)]
        outcome = there.call(self.away, sent, state, call, ProcessSettings.now())
        self._sent = versions
        if isinstance(mode, Widened):
            mode.casts += outcome.casts
        return outcome

    def _mirror(self, given: Sequence[Tensor | None], outcome: CallResult) -> None:
        """Change here what the call has changed there."""
        last = self._last()
        pairs = [*zip(given, outcome.given, strict=False), (last, outcome.earlier)]
        for x, new in pairs:
            if x is not None and new is not None and 0 not in x.stride():
                x.detach().copy_(new)
        own = self._tensors
        for x, new in zip(own, outcome.state, strict=False):
            if new is not None:
                x.data = new.to(x.device)
        for x, learns in zip(own, outcome.learns, strict=False):
            if isinstance(x, nn.Parameter) and x.requires_grad != learns:
                x.requires_grad_(learns)
        self.training, self.implementation = outcome.training, outcome.implementation

    def _settle(self, effects: Effects) -> None:
        try:
            effects.settings.apply()
        except (KeyError, RuntimeError) as error:
            self.link.lose(f"answered with settings that there are not: {error}")
        # random numbers of Python and NumPy that were drawn there count as drawn here
        if self.link.others not in (None, effects.others):
            random.seed(effects.others)
        self.link.others = effects.others


class _Before(nn.Module):
    """The operations that a variant puts before its attention, in evaluation."""

    def __init__(self, remote: Remote, found: Any):
        super().__init__()
        self.away = Away(remote.link, found.number)
        for name, kind, tensor in found.tensors:
            _hold(self, name, kind, tensor.to(remote.shape.device))

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        state = [each.detach() for each in (*self.parameters(), *self.buffers())]
        return there.through_sublayer(self.away, state, x, valid).to(x.device)


def _hold(module: nn.Module, name: str, kind: str, tensor: Tensor) -> None:
    """Adds a parameter, or a buffer, to the part of the module that its name says."""
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module._modules[part]  # type: ignore[assignment]
    if kind in ("learns", "fixed"):
        module.register_parameter(last, nn.Parameter(tensor, requires_grad=kind == "learns"))
    else:
        module.register_buffer(last, tensor, persistent=kind == "buffer")


class _State(Away):
    """The state that decoding keeps there between two steps."""

    def index_select(self, dim: int, rows: Tensor) -> _State:
        """The state of these rows, as a search that goes on with some of its outputs asks for."""
        return _State(self.link, there.chosen(self, rows))


class RemoteScored(Remote, ScoredVariant):
    """One in two maps, of which the gate calls the second by itself."""

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        found = self._run("weigh", [scores, allowed])
        assert found is not None
        return found


class _Through(torch.autograd.Function):
    """A call there, and its gradients there."""

    @staticmethod
    def forward(
        ctx: Any, remote: Remote, outcomes: list[CallResult], how: dict[str, Any], count: int, *tensors: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        given = tensors[:count]
        with torch.enable_grad():
            outcome = remote._ask(given, ctx.needs_input_grad[4 : 4 + count], **how)
        outcomes.append(outcome)
        ctx.remote, ctx.shapes = remote, [None if x is None else x.shape for x in tensors]
        ctx.graph = None if outcome.kept is None else Away(remote.link, outcome.kept)
        ctx.set_materialize_grads(False)
        device = remote.shape.device
        output, loss = (None if x is None else x.to(device) for x in (outcome.output, outcome.loss))
        if ctx.graph is None:
            ctx.mark_non_differentiable(*(x for x in (output, loss) if x is not None))
        return output, loss

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor | None) -> Any:
        remote, wanted = ctx.remote, list(ctx.needs_input_grad[4:])
        gradients = there.back(
            ctx.graph, [x if x is None else x.detach() for x in arriving], wanted, ProcessSettings.now()
        )
        for x, new in zip(arriving, gradients.arriving, strict=True):
            if x is not None and new is not None and 0 not in x.stride():
                x.copy_(new)
        if [None if x is None else x.shape for x in gradients.found] != [
            None if x is None else shape for x, shape in zip(gradients.found, ctx.shapes, strict=True)
        ]:
            remote.link.lose("returned gradients of other shapes than the inputs have")
        remote._settle(gradients.effects)
        device = remote.shape.device
        return None, None, None, None, *(x if x is None else x.to(device) for x in gradients.found)


def _place(link: Link, x: Tensor) -> tuple[int, bool]:
    """The number of the memory of a tensor, the same where one of the last has the same memory; and whether its content
    was sent before, and is as it was."""
    for number, other, version in link.window:
        if other.data_ptr() == x.data_ptr() and (other.shape, other.stride(), other.dtype) == (
            x.shape, x.stride(), x.dtype
        ):  # fmt: skip
            is_there, version[0] = version[0] == x._version, x._version
            return number, is_there
    link.places += 1
    # held, so that no other tensor gets its memory as long as it has the number
    link.window.append((link.places, x.detach(), [x._version]))
    return link.places, False
