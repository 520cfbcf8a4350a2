"""Spot check: now and then, foreign code is tested within the run itself, at moments and on rows that are drawn anew.

Code may look at its callers and be right under the gate alone. Later content must move no earlier output, and content
of padding none of a token, in a training and where the trained model is scored. Numbers that a training changes count
as parameters. While speeds are taken, an output must be a plain tensor, the same for the same content, gradients alike,
and other content must take as long. What recognises this file too remains possible; SECURITY.md says so.
"""

from __future__ import annotations

import copy
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from ...variants.contract import Mask, Variant
from ..core.registry import VARIANTS
from ..core.spec import Spec

_ROWS = 2
"""Sequences of a batch that are tested, every other time; else all, since a fault may need so many."""

_MOVED = {torch.float32: 1e-3, torch.float64: 1e-6}
"""The share of the outputs' deviation that may move; of other types, `_MOVED_ROUGHLY`."""

_MOVED_ROUGHLY = 0.1

_LONGER, _LONGER_SECONDS = 1.5, 3e-5
"""Content that was not seen before may take so many times as long, and so many seconds more."""

_COUNTER_BYTES = 256
"""Whole numbers that a training may change without being a parameter, such as a count of steps."""

_OFF = 3e-2
"""The part of an output that may be another in a copy, where rounding changes a choice of keys."""

_TRAINED, _TRAINED_FEW = 0.02, 0.5
"""Some twenty steps of Adam at the usual rate; and five hundred, which a temperature or a gate takes one way."""

_FEW = 256
"""The most numbers of such a parameter, one for each head or channel."""

_TRIES, _MOST_TRIES, _TRYING_SECONDS, _DOUBTING_SECONDS = 8, 64, 1.0, 20.0
"""Tries that must agree, and more while they take no longer than this: on a busy machine eight short ones may be late.

The second limit is for samples that take no more of the processor.
"""

_Sample = Callable[[], tuple[float, float]]
"""A function that takes a sample: its seconds by the wall's clock and by that of the processor."""

_LONG_SECONDS = 0.5
"""A sample from which on one try acquits."""

_ENTRIES = 2**16
"""About so many of an output decide over its scale."""

CONFIRMED = 2
"""Tests that must fail: rounding may move a choice of keys that are equally good, and so an output, but not often."""


class SpotCheck:
    """The tests of one Cell. `share`: of the calls that are tested, at random, while `watching`.

    `steady`: inputs and parameters are the same at each call, as where speeds are taken. `copies`: copies are called
    and not the variant, which may lie in another process. `learned`: numbers that a training changed and that are no
    trainable parameters.
    """

    learned = 0

    def __init__(self, variant: Spec, device: torch.device, share: float, *, steady: bool = False, copies: bool = True):
        # our own code has tests for it; on a GPU a test within a captured step would end the capture
        self.is_on = device.type == "cpu" and not VARIANTS.is_own(variant.name)
        self.share, self.failed, self.found, self.draw = share, 0, "", random.SystemRandom()
        self.is_testing, self.copies = False, copies
        self.steady, self.first, self.hooks = steady, dict[object, Tensor](), list[RemovableHandle]()

    @contextmanager
    def watching(self, variants: Iterable[Variant], optimiser: torch.optim.Optimizer | None = None) -> Iterator[None]:
        """Inside, calls of `variants` are tested; that of a training alone may change parameters of other modules."""
        watched = [*variants] if self.is_on else []
        hooks: list[RemovableHandle] = [each.register_forward_hook(self._look) for each in watched]
        untrained: dict[int, tuple[Tensor, Tensor]] = {}
        if watched and optimiser is not None:
            hooks += self._guarding(watched, optimiser)
            held = (each for variant in watched for each in (*variant.parameters(), *variant.buffers()))
            shown = {id(each) for group in optimiser.param_groups for each in group["params"]}
            untrained = {id(each): (each, each.detach().clone()) for each in held if id(each) not in shown}
        try:
            yield
            changed = [now for now, before in untrained.values() if not torch.equal(now.detach(), before)]
            self.learned = sum(each.numel() for each in changed if each.is_floating_point())
            # of whole numbers each byte, since one may hold several weights
            whole = sum(each.nbytes for each in changed if not each.is_floating_point())
            self.learned += whole if whole > _COUNTER_BYTES else 0
        finally:
            for hook in (*hooks, *self.hooks):
                hook.remove()
            self.hooks.clear()

    def _guarding(self, variants: Sequence[Variant], optimiser: torch.optim.Optimizer) -> list[RemovableHandle]:
        """Hooks that compare what the optimiser holds before a step with what it held before.

        Parameters, and moments of those of other modules, are those behind the step before; rates and other settings
        those that the first call of a variant in this step has met.
        """
        own = {id(each) for variant in variants for each in variant.parameters()}
        every = [each for group in optimiser.param_groups for each in group["params"]]
        others = [each for each in every if id(each) not in own]
        # a layer may keep a temperature within bounds
        large = [each for each in every if id(each) in own and each.numel() > _FEW]
        kept, met = list[Tensor](), list[Any]()

        def held() -> list[Tensor]:
            moments = (value for each in others for value in optimiser.state.get(each, {}).values())
            return [*large, *others, *(value for value in moments if isinstance(value, Tensor))]

        def settings() -> list[Any]:
            groups = optimiser.param_groups
            return [[(k, type(v), v) for k, v in group.items() if k != "params"] for group in groups]

        def meet(variant: nn.Module, _: Any) -> None:
            if variant.training and not met:
                met.append(settings())

        def keep(*_: Any) -> None:
            kept[:] = [each.detach().clone() for each in held()]

        def compare(*_: Any) -> None:
            plain = all(type(each) is dict for each in optimiser.param_groups)
            if any(getattr(each, "_post_accumulate_grad_hooks", None) for each in every):
                self.found = "it changes gradients when they have been accumulated, which is no part of its backward"
            if len(hooks) < len(optimiser._optimizer_step_pre_hooks) or not plain or (met and met[0] != settings()):
                self.found = "it takes part in the steps of the optimiser, which trains the whole model"
            met.clear()
            # by their bytes, since a training that diverges has parameters that are no numbers
            for before, now in zip(kept, held() if kept else (), strict=True):
                if not torch.equal(before.flatten().view(torch.uint8), now.detach().flatten().view(torch.uint8)):
                    shape, whose = " × ".join(map(str, now.shape)), "its own" if id(now) in own else "another module's"
                    self.found = f"between two steps of the optimiser, {whose} parameters changed (of shape {shape})"

        hooks = [optimiser.register_step_pre_hook(compare)]
        meeting = [each.register_forward_pre_hook(meet, prepend=True) for each in variants]
        return [*hooks, *meeting, optimiser.register_step_post_hook(keep)]

    def __deepcopy__(self, memo: Any) -> SpotCheck:
        return self

    def hooks_elsewhere(self, model: nn.Module, variants: Iterable[Variant]) -> str:
        """The words for foreign code that has put itself into modules of the model that are none of its own."""
        if not self.is_on:
            return ""
        own = {part for each in variants for part in each.modules()}
        for name, module in model.named_modules():
            ways = [key for key, value in vars(module).items() if key == "forward" or ("_hooks" in key and value)]
            if module not in own and ways:
                return f"it takes part in {name or 'the model'}, which is not its own, by {ways[0]}"
        return ""

    def _look(self, variant: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        if self.is_testing or self.draw.random() >= self.share or self.found:
            return
        self.found = self._changed(variant, inputs, output) if self.steady else ""
        # its copies have this hook too
        self.is_testing = True
        with torch.random.fork_rng(devices=[]):
            problem = self._problem(variant, inputs)
            if self.copies and not problem:
                problem = self._outside(variant, inputs, output)
        if variant.training and output.requires_grad and not (variant.owns_projections or problem):
            self._look_at_training(variant, inputs, output)
        self.is_testing = False
        self._add(problem)

    def _add(self, problem: str) -> None:
        self.failed += bool(problem)
        if self.failed >= CONFIRMED:
            self.found = problem

    def _outside(self, variant: Any, inputs: tuple[Any, ...], output: Tensor) -> str:
        """The words for an output that a copy does not give for the same inputs, which no other module has made."""
        *parts, mask = inputs[:4]
        copied, tensors = _copied(variant), (*parts, *inputs[4:])

        def ran(seed: int) -> Tensor:
            torch.manual_seed(seed)
            leaves = [each.detach().clone().requires_grad_(each.requires_grad) for each in tensors]
            found: Tensor = copied(*leaves[:3], mask, *leaves[3:])
            return found.detach().double()

        try:
            first, again = ran(1), ran(2)
        except Exception as error:
            return f"a copy of it raises {type(error).__name__} for inputs of the run"
        # what draws numbers, or counts calls, differs from call to call too
        size, off, usual = (float(each.norm()) for each in (first, output.detach().double() - first, again - first))
        if off <= max(_OFF * size, 10 * usual) or not first.isfinite().all():
            return ""
        return f"its output in the model is {off / max(size, 1e-30):.1%} off that of a copy for the same inputs"

    def _look_at_training(self, variant: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Gradients that arrive in the model are those that a copy gives for the same inputs, without the model."""
        *parts, mask = inputs[:4]
        if len({id(each) for each in parts}) < len(parts) or not all(each.requires_grad for each in parts):
            return
        copied, arrived = _copied(variant), dict[int, Tensor]()
        leaves = [each.detach().clone().requires_grad_() for each in parts]
        states = [each.detach().clone() for each in inputs[4:]]

        def compare(at: int, gradient: Tensor) -> None:
            arrived[at] = gradient.detach().clone()
            if len(arrived) <= len(parts):
                return
            self.is_testing = True
            try:
                with torch.random.fork_rng(devices=[]), torch.enable_grad():
                    first, again = (gradients(seed) for seed in (1, 2))
            finally:
                self.is_testing = False
            for number, (expected, other) in enumerate(zip(first, again, strict=True)):
                # one that draws numbers has another gradient each time
                off, size = float((arrived[number] - expected).norm()), float(expected.norm())
                if torch.equal(expected, other) and not off <= 5e-2 * size:
                    self._add("its gradients in the model are others than those of a copy for the same inputs")
                    return

        def gradients(seed: int) -> tuple[Tensor, ...]:
            torch.manual_seed(seed)
            return torch.autograd.grad(
                copied(*leaves, mask, *states), leaves, arrived[len(parts)], allow_unused=True, materialize_grads=True
            )

        # a timing takes the same inputs again, and would time the copies too
        self.hooks += [each.register_hook(partial(compare, at)) for at, each in enumerate((*parts, output))]

    def _changed(self, variant: Any, inputs: tuple[Any, ...], output: Tensor) -> str:
        if type(output) is not Tensor:
            return f"its output is a {type(output).__name__}, which may be computed when the time has been taken"
        # a module may be called with several inputs in one sample
        content = tuple(float(each.detach().double().sum()) for each in inputs if isinstance(each, Tensor))
        for at, each in enumerate(inputs):
            if isinstance(each, Tensor) and each.requires_grad:
                key = (id(variant), at, output.shape, content)
                look: Any = partial(self._look_at_gradient, key, variant.training)
                self.hooks.append(each.register_hook(look))  # type: ignore[no-untyped-call]
        first = self.first.setdefault((id(variant), output.shape, content), output.detach().clone())
        # in training it may draw numbers, and learn without gradients
        if variant.training or float((output.detach() - first).abs().max()) <= 1e-2 * float(first.abs().max()):
            return ""
        return "the same inputs give another output than they gave before"

    def _look_at_gradient(self, key: object, draws: bool, gradient: Tensor) -> None:
        first = self.first.setdefault(key, gradient.detach().clone())
        size, before = float(gradient.norm()), float(first.norm())
        # where it may draw numbers the size alone is compared
        off = abs(size - before) / 10 if draws else float((gradient - first).norm())
        if not off <= 5e-2 * before:
            self.found = "the same inputs give another gradient than they gave before"

    def kept_outputs(self, inputs: Sequence[Tensor], seconds: _Sample) -> str:
        """The words for a variant that keeps outputs from call to call: content that is new takes longer, each time.

        `inputs`: of the samples; they are as before when this returns. `seconds`: takes a sample.
        """
        if not inputs:
            return ""
        kept, beside = ([each.clone() for each in inputs] for _ in range(2))

        def with_other_content(places: Sequence[Tensor]) -> tuple[float, float]:
            # the same writes go before both, since they leave caches in some state
            for place, each in zip(places, kept, strict=True):
                moved = each.flatten().roll(self.draw.randrange(1, each.numel() + 1)).view_as(each)
                place.copy_(moved * self.draw.uniform(0.9, 1.1))
            return seconds()

        try:
            found = _slower(lambda: with_other_content(beside), lambda: with_other_content(inputs), self.draw)
        finally:
            for place, each in zip(inputs, kept, strict=True):
                place.copy_(each)
        return found and (
            f"a sample takes {found[1]:.2g} s with inputs that it has not seen, and {found[0]:.2g} s with those of "
            "the sample before: it keeps outputs from call to call"
        )

    def honest_if_watched(self, variants: Sequence[Variant], seconds: _Sample) -> str:
        """The words for a variant that takes longer, each time, while a hook is on it that does nothing."""
        kept, self.share = self.share, 0.0

        def watched() -> tuple[float, float]:
            with self.watching(variants):
                return seconds()

        found = _slower(seconds, watched, self.draw)
        self.share = kept
        return found and f"a sample takes {found[1]:.2g} s while a hook is on its layers, and {found[0]:.2g} s else"

    def fast_before_training(self, variants: Sequence[Variant], seconds: _Sample) -> str:
        """The words for a variant that takes longer, each time, once its weights are no longer those that it drew."""
        own = [each for variant in variants for each in variant.parameters() if each.is_floating_point()]
        if not own:
            # nothing moves, and a busy machine alone would tell the two apart
            return ""
        drawn = [each.detach().clone() for each in own]
        moves = {_TRAINED: [_TRAINED * (2.0 * torch.randint_like(each, 2) - 1.0) for each in drawn]}
        if any(each.numel() <= _FEW for each in own):
            for size in (_TRAINED_FEW, -_TRAINED_FEW):
                moves[size] = [torch.full_like(each, size * (each.numel() <= _FEW)) for each in drawn]

        @torch.no_grad()
        def set_to(values: Iterable[Tensor]) -> None:
            for each, value in zip(own, values, strict=True):
                each.copy_(value)

        def trained(by: Sequence[Tensor]) -> tuple[float, float]:
            set_to(value + move for value, move in zip(drawn, by, strict=True))
            try:
                return seconds()
            finally:
                set_to(drawn)

        for size, by in moves.items():
            if found := _slower(seconds, partial(trained, by), self.draw):
                return (
                    f"a sample takes {found[1]:.2g} s once its weights have moved by {size}, "
                    f"and {found[0]:.2g} s with those that it drew"
                )
        return ""

    def _problem(self, variant: Any, inputs: tuple[Any, ...]) -> str:
        query, key, value, mask, *hidden = inputs
        length, batch = query.shape[2], query.shape[0]
        if key.shape[2] != length or length < 2 or mask.bounds is not None:
            return ""
        rows = self.draw.sample(range(batch), self.draw.choice((batch, min(_ROWS, batch))))
        valid = None if mask.valid is None else mask.valid[rows]
        # each sequence has a cut of its own: a leak may stand at few places
        cuts = [self.draw.randrange(1, length) for _ in rows]
        late = torch.arange(length, device=query.device) >= torch.tensor(cuts, device=query.device)[:, None]
        places = []
        if mask.causal and variant.causality == "strict":
            places.append((late, ~late, "later positions move the outputs before them"))
        if valid is not None and valid.shape[1] == length and bool((~valid).any()) and bool(valid.any()):
            places.append((~valid, valid, "content of padding moves outputs of tokens"))
        if not places:
            return ""
        where, look, words = self.draw.choice(places)
        mask = Mask(valid=valid, causal=mask.causal)
        parts = [each.detach()[rows].clone() for each in (query, key, value)]
        states = [each.detach()[rows].clone() for each in hidden]
        seed = self.draw.randrange(2**31)

        def ran() -> Tensor:
            torch.manual_seed(seed)
            leaves = [each.detach().requires_grad_(torch.is_grad_enabled()) for each in parts]
            # with gradients where the run has them: a mask may be left out for one of both
            # as the model calls it, with whatever stands before its forward
            with nullcontext(_copied(variant)) if self.copies else _unhooked(variant) as called:
                outputs: Tensor = called(*leaves, mask, *states)
            return outputs.detach().double()

        try:
            before = ran()
            for each in (*parts, *states):
                here = where[:, None, :, None] if each.ndim == 4 else where[..., None]
                each.copy_(torch.where(here, 3 * each.roll(1, -2) + 1, each))
            after = ran()
        except Exception as error:
            # some layers refuse two rows; none refuses what it has just taken
            return f"a copy of it raises {type(error).__name__} for inputs of the run" if len(rows) == batch else ""
        # of a training that diverges, all are no numbers
        rows_before, rows_after = (each.transpose(1, 2)[look] for each in (before, after))
        off = torch.where(rows_before.isnan() & rows_after.isnan(), 0.0, rows_after - rows_before)
        moved = float(off.nan_to_num(nan=torch.inf).abs().max())
        # a few huge entries would hide a leak in all others
        kept = rows_before.flatten()[:: max(1, rows_before.numel() // _ENTRIES)].nan_to_num()
        usual, spread = float(kept.abs().quantile(0.9)), float(kept.std())
        scale = min(spread, usual) or spread
        if moved <= _MOVED.get(query.dtype, _MOVED_ROUGHLY) * scale:
            return ""
        return f"on rows of the run itself, {words} by {moved:.2g}"


def _slower(usual: _Sample, other: _Sample, draw: random.Random) -> tuple[float, float] | Literal[""]:
    """The shortest times of both where the other sample takes longer each time; empty as soon as it does not.

    In an order that is drawn, since the turns of other processes may follow a fixed one, and in one thread, since
    threads that wait for each other take processor time on a busy machine. Where only the wall's clock is longer, the
    code sleeps or the machine is busy, and more tries tell.
    """
    taken = list[tuple[float, float]](), list[tuple[float, float]]()
    began, threads = perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        while True:
            for at in draw.sample((0, 1), 2):
                taken[at].append((usual, other)[at]())
            walls, processors = (tuple(min(each[clock] for each in of) for of in taken) for clock in (0, 1))
            # one short sample may have met an interrupt
            is_sure = len(taken[0]) > 1 or walls[0] > _LONG_SECONDS
            if is_sure and not _is_longer(*walls):
                return ""
            tries, spent = len(taken[0]), perf_counter() - began
            patience = _TRYING_SECONDS if _is_longer(*processors) else _DOUBTING_SECONDS
            if tries >= _MOST_TRIES or (tries >= _TRIES and spent >= patience):
                return walls[0], walls[1]
    finally:
        torch.set_num_threads(threads)


def _is_longer(usual: float, other: float) -> bool:
    return other > _LONGER * usual + _LONGER_SECONDS


@contextmanager
def _unhooked(variant: nn.Module) -> Iterator[nn.Module]:
    """Inside, nobody measures its calls."""
    kept, variant._forward_hooks = variant._forward_hooks, OrderedDict()
    try:
        yield variant
    finally:
        variant._forward_hooks = kept


class _Detached(TorchFunctionMode):
    """Copies tensors that have a graph, such as weights that a layer keeps to show, which torch refuses."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))


def _copied(module: nn.Module) -> Any:
    """A copy by the attributes of the modules alone: one that says itself how it is copied may copy another layer."""
    modules = [*module.modules()]
    with _Detached():
        try:
            memo: dict[int, Any] = {id(each): type(each).__new__(type(each)) for each in modules}
            for each in modules:
                memo[id(each)].__dict__.update(copy.deepcopy(each.__dict__, memo))
        except Exception:
            # one that holds a lock can be copied by its own words alone
            return copy.deepcopy(module)
    return memo[id(module)]
