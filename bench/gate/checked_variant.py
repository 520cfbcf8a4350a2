"""The variant that the gate examines, and the settings that it is examined in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from time import process_time
from typing import Any, get_args

import torch
from torch import Tensor

from ...variants.contract import AttentionShape, ScoredVariant, Variant
from ..core.errors import Unsupported
from ..core.registry import VARIANTS, parameters
from ..core.spec import Spec
from .case import Case, Memo, Mode, RunSetting, interpreted, with_heads
from .distance import own_error

BASE_LENGTH = 96
WIDE_BATCH, WIDEST_BATCH = 11, 64
STEPS = 3
DOUBLE_LENGTH, DOUBLE_BYTES = 2048, 2**31
NARROW_LENGTH, NARROW_SCORES = 1024, 2**20
SEQUENCE_SECONDS, NARROW_SECONDS, NARROWEST = 0.5, 0.06, 512
HELD_SCORES = 8
"""Tensors of the size of all scores that a pass and its gradient hold at once, as measured for the plainest maps."""

VariantSource = Spec | str | type[Variant] | Callable[[AttentionShape], Variant]


@dataclass(frozen=True, slots=True)
class VariantFactory:
    """How instances come to be: `make(shape, **parameters)`. `implementations` are the values of a parameter `impl`;
    `forced`, which of them a selection asks for."""

    name: str
    make: Callable[..., Variant]
    implementations: tuple[str, ...] = ()
    forced: str = ""

    @classmethod
    def of(cls, given: VariantSource | VariantFactory) -> VariantFactory:
        """Raises SelectionError for an unknown name or parameter."""
        if isinstance(given, VariantFactory):
            return given
        if isinstance(given, str):
            given = Spec.parse(given)
        if isinstance(given, Spec):
            spec = VARIANTS.resolve(given)

            def make(shape: AttentionShape, **more: Any) -> Variant:
                variant: Variant = VARIANTS.build(Spec.of(spec.name, **(dict(spec.parameters) | more)), shape)
                return variant

            forced = str(spec.get("impl", ""))
            return cls(str(spec), make, _implementations(VARIANTS.load(spec.name)), forced)
        if isinstance(given, type):
            return cls(given.__name__, given, _implementations(given))
        return cls(getattr(given, "__name__", "variant"), given)


class CheckedVariant:
    """A variant built for one shape, in evaluation mode; every instance of it holds the same parameters and buffers.

    `settings`: where properties run it, the first being where those run that need one alone. `own_batch`: the batch
    that is to be measured at the longest setting. `thorough`: implementations that nothing here would choose by itself
    are examined too, which may take minutes, and float64 everywhere. `memo`: what tests compute once and share.
    """

    def __init__(
        self,
        source: VariantSource | VariantFactory,
        shape: AttentionShape,
        seed: int = 0,
        thorough: bool = True,
        settings: tuple[RunSetting, ...] = (),
        own_batch: int | None = None,
    ):
        self.source, self.shape, self.seed, self.thorough = VariantFactory.of(source), shape, seed, thorough
        self.settings, self.own_batch = settings or short_settings(shape), own_batch
        self.memo = Memo()

    def build(self, shape: AttentionShape, **more: Any) -> Variant:
        """A new instance; parameters stay in float32 under half precision. Raises Unsupported."""
        return build(self.source, shape, self.seed, **more)

    @cached_property
    def module(self) -> Variant:
        return self.build(self.shape)

    def like(
        self, *, dtype: str | None = None, dropout: float | None = None, mode: Mode = "evaluation", **more: Any
    ) -> Variant:
        """An instance with other numbers inside, or another implementation, and the state of `module`; after a step,
        that of `module` after the same steps."""
        shape = replace(self.shape, dtype=dtype or self.shape.dtype, dropout=dropout or self.shape.dropout)
        twin = self.build(shape, **more)
        twin.load_state_dict(self.module.state_dict())
        if mode == "after step":
            # its own steps, for what they change outside of the state, then the numbers that another precision reached
            after_steps(twin, shape, self.seed)
            twin.load_state_dict(self.stepped.state_dict())
        return twin.train(mode == "training")

    @cached_property
    def stepped(self) -> Variant:
        """The variant after a few steps of training, in evaluation mode."""
        return after_steps(self.like(), self.shape, self.seed)

    @cached_property
    def native(self) -> Case:
        """The variant in the precision that will be measured, in the first setting."""
        return self.cases[0]

    @cached_property
    def cases(self) -> list[Case]:
        """The variant in every setting and, where it does not refuse it, in float64 too."""
        return [case for setting in self.settings for case in self._cases(setting)]

    @property
    def measured(self) -> list[Case]:
        """The cases in the precision that will be measured."""
        return [case for case in self.cases if case.shape.dtype == self.shape.dtype]

    @property
    def at_own_length(self) -> bool:
        """Whether it is examined at the length that is to be measured."""
        return self.settings[0].own

    @cached_property
    def narrow(self) -> CheckedVariant:
        """At the length to be measured, the variant with no more heads than a million scores take, with no more tokens
        than float64 may have, and half as many as long as a pass takes long: for float64 and gradients, which cost
        most."""
        if not self.at_own_length:
            return self
        length = self.shape.max_length
        if length > DOUBLE_LENGTH:
            length = NARROW_LENGTH
        heads = min(self.shape.heads, max(1, NARROW_SCORES // length**2))
        narrow = self._smaller(heads, length) or self
        while narrow.shape.max_length >= 2 * NARROWEST and narrow.sequence_seconds > NARROW_SECONDS:
            shorter = narrow._smaller(narrow.shape.heads, narrow.shape.max_length // 2)
            if shorter is None:
                break
            narrow = shorter
        return narrow

    def in_float64(self, setting: RunSetting) -> Case | None:
        """A setting in float64, where leaks stand out from rounding.

        None where the variant refuses float64, or where it takes too much.
        """
        return self.memo.once(("float64", setting), lambda: self._in_float64(setting))

    def _cases(self, setting: RunSetting) -> Iterator[Case]:
        if setting.mode == "training":
            module = self.like(mode="training")
        else:
            module = self.module if setting.mode == "evaluation" else self.stepped
        if interpreted(module, self.shape) and setting != self.settings[0]:
            return
        # the same inputs and outputs in both: the first has no tolerance yet
        case = Case(module, self.shape, 0.0, self.seed, setting)
        if setting.mode == "training" and _draws(case):
            # what it draws depends on the shape of the inputs, so that two passes cannot be compared
            return
        if setting.mode != "evaluation" and not self.thorough and self._as_in_evaluation(case):
            return
        yield replace(case, tolerance=self._tolerance(case))
        double = self.in_float64(setting)
        if double is not None and (setting.double or (self.thorough and not double.interpreted)):
            yield double

    def _as_in_evaluation(self, case: Case) -> bool:
        """Whether a new instance with the same state gives the same bits in evaluation, with padding too."""
        plain = self.like()
        plain.load_state_dict(case.module.state_dict())
        inputs = case.inputs()
        masks: list[Tensor | None] = [None]
        if self.shape.padding:
            masks.append(inputs.padded_from(inputs.key.shape[2] // 2 + 1))
        return all(torch.equal(case.run(inputs, m), case.with_module(plain).run(inputs, m)) for m in masks)

    @cached_property
    def affordable(self) -> CheckedVariant:
        """At the length to be measured, the variant with one head where a sequence with all of them takes long."""
        if not self.at_own_length or self.shape.heads == 1 or self.sequence_seconds <= SEQUENCE_SECONDS:
            return self
        return self._smaller(1, self.shape.max_length) or self

    @cached_property
    def sequence_seconds(self) -> float:
        """A pass of one sequence, in seconds of the processor, which other work on the machine does not lengthen."""
        case = Case(self.module, self.shape, 0.0, self.seed, replace(self.settings[0], batch=1))
        # what is done once, such as loading kernels
        case.run(case.inputs(min(case.length, 64)))
        start = process_time()
        case.output()
        return process_time() - start

    def _smaller(self, heads: int, length: int) -> CheckedVariant | None:
        """Of fewer heads or positions, at the length to be measured; None where the variant refuses it, or where the
        shape would stay the same, since its heads share one key."""
        shape = with_heads(replace(self.shape, max_length=length), heads)
        if shape == self.shape:
            return None
        smaller = CheckedVariant(self.source, shape, self.seed, self.thorough, (own_setting(shape),))
        try:
            smaller.build(shape)
        except Unsupported:
            return None
        return smaller

    def _tolerance(self, case: Case) -> float:
        setting = case.setting
        epsilon = torch.finfo(getattr(torch, self.shape.dtype)).eps
        # float16 and bfloat16: the sums are made in float32 there, so fewer roundings stand behind an output.
        tolerance = (4 if epsilon > 1e-4 else 64) * epsilon
        if setting.own and self.narrow is not self and setting.length <= DOUBLE_LENGTH:
            # rounding does not depend on the heads, which share nothing, and little on the length
            return self.narrow.native.tolerance
        double = self.in_float64(setting)
        if double is None:
            return 4 * tolerance
        # A variant that rounds more, such as a long recurrence, gets more room, measured against itself in float64, but
        # never more than hides a leak.
        own = own_error(case.output(), double.output())
        return min(tolerance + 16 * own, max(5e-4, 8 * epsilon))

    def _in_float64(self, setting: RunSetting) -> Case | None:
        shape = replace(self.shape, dtype="float64")
        if setting.own and not fits_float64(shape, setting.batch, setting.length):
            return None
        try:
            module = self.like(dtype="float64", mode=setting.mode)
        except Unsupported:
            return None
        # 1e-9: far above the rounding of float64 and far below any leak through a real path.
        return Case(module, shape, 1e-9, self.seed, setting)


def short_settings(shape: AttentionShape, batch: int | None = None) -> tuple[RunSetting, ...]:
    """Every way of use at few positions: the usual one first, then many sequences, training, and after steps of it."""
    longest = shape.max_length
    return (
        # One less than a multiple of every block: an error at the edge of the last block needs a block that is not
        # full.
        RunSetting(min(longest, BASE_LENGTH - 1)),
        RunSetting(min(longest, 17), batch=min(max(batch or 0, WIDE_BATCH), WIDEST_BATCH), double=False),
        RunSetting(min(longest, 33), batch=3, mode="training", double=False),
        RunSetting(min(longest, 33), batch=3, mode="after step", double=False),
    )


def own_setting(shape: AttentionShape) -> RunSetting:
    """The length that is to be measured."""
    return RunSetting(shape.max_length, batch=1, own=True, double=False)


def fits_float64(shape: AttentionShape, batch: int, length: int) -> bool:
    """Whether a pass in float64 that holds all scores, and its gradient, stays within 2,048 tokens and 2 GiB."""
    return length <= DOUBLE_LENGTH and HELD_SCORES * 8 * batch * shape.heads * length**2 <= DOUBLE_BYTES


def after_steps(module: Variant, shape: AttentionShape, seed: int) -> Variant:
    """`module` after training steps on drawn inputs, in evaluation mode."""
    case = Case(module.train(), shape, 0.0, seed, RunSetting(min(shape.max_length, 33)))
    trained = [p for p in module.parameters() if p.requires_grad]
    for salt in range(STEPS):
        torch.manual_seed(seed)
        with torch.enable_grad():
            output = module(*case.inputs(salt=100 + salt).all(), case.mask())
            extra = module.auxiliary_loss()
            loss = output.square().mean() if extra is None else output.square().mean() + extra
            if loss.requires_grad and trained:
                found = torch.autograd.grad(loss, trained, allow_unused=True)
                with torch.no_grad():
                    for parameter, gradient in zip(trained, found, strict=True):
                        if gradient is not None:
                            parameter.sub_(1e-2 * gradient)
        module.after_step()
    return module.eval()


def _draws(case: Case) -> bool:
    """Whether a pass takes random numbers."""
    torch.manual_seed(case.seed)
    before = torch.get_rng_state()
    case.run(case.inputs())
    return not torch.equal(before, torch.get_rng_state())


class SoftmaxReference(ScoredVariant):
    """Softmax from elementary operations: its rounding error is what others are compared with."""


def build(source: VariantFactory, shape: AttentionShape, seed: int, **more: Any) -> Variant:
    """A new instance in evaluation mode, on the shape's device. Raises Unsupported where it refuses the shape."""
    # Random projections and patterns are part of a variant: two instances are compared only if they drew the same.
    torch.manual_seed(seed)
    variant = source.make(shape, **more)
    reason = variant.supports(shape)
    if reason:
        raise Unsupported(reason)
    variant.to(shape.device)
    return (variant.double() if shape.dtype == "float64" else variant).eval()


def _implementations(variant: type[Any]) -> tuple[str, ...]:
    known = parameters(variant)
    return tuple(get_args(known["impl"].kind)) if "impl" in known else ()
