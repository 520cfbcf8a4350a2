"""Case: a built variant in one setting, with inputs that depend on a seed alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from ...variants.contract import AttentionShape, Mask, Variant
from ..core.errors import Unsupported
from .result import Measured
from .subject import Change
from .variant import VariantFactory, VariantSource, Widened, build, seed_draws, with_heads

BASE_LENGTH = 96
"""Positions of the short form: one tile of the kernels and a part of the next."""
WIDE_BATCH, WIDEST_BATCH = 11, 64
"""Sequences of a large batch: at least more than a grid of eight, at most what few positions cost."""
STEPS = 3
"""Steps of training before what is examined after `after_step()`."""
DOUBLE_LENGTH, DOUBLE_BYTES = 2048, 2**31
"""Positions, and bytes of all scores, up to which float64 takes part."""
SEQUENCE_SECONDS = 0.5
"""Seconds of one sequence, of the processor, above which one head stands for all."""
REDUCED_LENGTH, REDUCED_SCORES = 1024, 2**20
REDUCED_SECONDS, LEAST_LENGTH = 0.06, 512
"""Sizes of `Case.reduced`: positions where float64 allows no more, scores, seconds of a pass, least positions."""
FEW = 13
"""Positions of a pass that is to cost little."""
HELD_SCORES = 8
"""Tensors of the size of all scores that a pass and its gradient hold at once, as measured for the plainest maps."""
INPUTS = ("query", "key", "value", "hidden")
"""Names of `Inputs`; the last is of variants that take the hidden state."""
PARTS = ("output", "gradient of query", "gradient of key", "gradient of value", "gradient of the hidden state")
"""Names of what `Case.passes` gives; the last is of variants that take the hidden state."""

Kind = Literal["usual", "many", "training", "after step", "own"]


def gap(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest expected entry; infinite where something is not finite.

    Raises ValueError where the shapes differ.
    """
    if found.shape != expected.shape:
        raise ValueError(f"expected shape {tuple(expected.shape)}, got {tuple(found.shape)}")
    if found.numel() == 0:
        return 0.0
    found, expected = found.detach().double(), expected.detach().double()
    # Relative to the largest entry of all and not entry by entry: near a zero any rounding is large. Both at once: at
    # each number the host waits for a GPU. What is not finite leaves a difference that is not.
    difference, scale = torch.stack([(found - expected).abs().max(), expected.abs().max()]).tolist()
    if not math.isfinite(difference):
        return math.inf
    return difference / scale if scale else (0.0 if difference == 0 else math.inf)


def permuted(x: Tensor) -> Tensor:
    """The same values, laid out in memory as (batch, length, heads, head_dim), which is how models pass them."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@dataclass(frozen=True, slots=True)
class Inputs:
    """(batch, heads | kv_heads, queries | keys, head_dim); the hidden state as one head, (batch, 1, queries, width)."""

    query: Tensor
    key: Tensor
    value: Tensor
    hidden: Tensor | None = None

    def __iter__(self) -> Iterator[Tensor]:
        """Query, key and value, and the hidden state where there is one."""
        return iter((self.query, self.key, self.value, *(() if self.hidden is None else (self.hidden,))))

    @property
    def states(self) -> Tensor | None:
        """The hidden state as a layer has it, (batch, queries, width)."""
        return None if self.hidden is None else self.hidden[:, 0]

    def part(self, first: int, last: int) -> Inputs:
        """Positions first .. last - 1 of all."""
        return Inputs(*(x[:, :, first:last] for x in self))

    def padded_from(self, first: int) -> Tensor:
        """A mask of the keys, (batch, keys), True = real: the first sequence is padding from key `first` on."""
        valid = torch.ones(self.key.shape[0], self.key.shape[2], dtype=torch.bool)
        valid[0, first:] = False
        return valid


@dataclass(frozen=True, slots=True)
class RunSetting:
    """`length` and `batch` of the inputs. `kind`: "usual"; "many", which differs from it in length and batch alone;
    "training", without dropout; "after step": evaluation after steps of training; "own": the length to be measured."""

    length: int
    batch: int = 2
    kind: Kind = "usual"


class Case:
    """A variant built for `shape`, whose dtype is the precision, in one setting.

    `base`: the case in evaluation whose parameters and buffers this one holds. `thorough`: implementations that
    nothing here would choose by itself are examined too, which may take minutes, and float64 everywhere. `measured`:
    the batch that is to be measured. `memo`: what several tests need. Raises Unsupported where the variant refuses the
    shape, SelectionError for an unknown name.
    """

    def __init__(
        self,
        source: VariantSource | VariantFactory,
        shape: AttentionShape,
        setting: RunSetting | None = None,
        seed: int = 0,
        *,
        thorough: bool = True,
        measured: int = 1,
        module: Variant | None = None,
        base: Case | None = None,
    ):
        self.factory, self.shape, self.seed = VariantFactory.of(source), shape, seed
        # One less than a multiple of every block: an error at the edge of the last block needs a block that is not
        # full.
        self.setting = setting or RunSetting(min(shape.max_length, BASE_LENGTH - 1))
        self.thorough, self.measured = thorough, measured
        self.module = build(self.factory, shape, seed) if module is None else module
        self.base = base or self
        self.length, self.batch, self.kind = self.setting.length, self.setting.batch, self.setting.kind
        self.own = self.kind == "own"
        # a test makes one pass of a kind here: all but the usual setting differ from it in one thing
        self.few_passes = self.kind != "usual"
        self.dtype: torch.dtype = getattr(torch, shape.dtype)
        # Triton's interpreter runs kernels that were asked for without a GPU
        on_cpu = torch.device(shape.device).type == "cpu"
        self.interpreted = on_cpu and any(getattr(part, "impl", "") == "triton" for part in self.module.modules())
        # where a test failed, for its detail
        mode = {"training": " in training", "after step": " after after_step()"}.get(self.kind, "")
        self.words = f"{self.length} long{mode}"
        self.place = f"{self.words} ({shape.dtype})"
        # by how much the same pass may differ: atomic additions on a GPU come in another order each time
        self.rerun_tolerance = 0.0 if shape.device == "cpu" else 8 * torch.finfo(self.dtype).eps
        # whether a pass in float64 that holds all scores, and its gradient, stays within 2,048 tokens and 2 GiB
        held = HELD_SCORES * 8 * self.batch * shape.heads * self.length**2
        self.fits_float64 = self.length <= DOUBLE_LENGTH and held <= DOUBLE_BYTES
        self.drawn: dict[tuple[int, ...], Inputs] = {}
        self.memo: dict[Any, Any] = {}

    def with_module(self, module: Variant, dtype: str | None = None, setting: RunSetting | None = None) -> Case:
        """Another variant in the same setting, or another setting."""
        shape, setting = replace(self.shape, dtype=dtype or self.shape.dtype), setting or self.setting
        more: dict[str, Any] = {"thorough": self.thorough, "measured": self.measured, "base": self.base}
        return Case(self.factory, shape, setting, self.seed, module=module, **more)

    def rebuilt(
        self, *, dtype: str | None = None, dropout: float = 0.0, setting: RunSetting | None = None, **parameters: Any
    ) -> Case:
        """A case with a new instance that holds the state of the base case; after a step, that of it after the steps.

        parameters: of the variant, such as another `impl`. Raises Unsupported.
        """
        setting = setting or self.setting
        shape = replace(self.shape, dtype=dtype or self.shape.dtype, dropout=dropout or self.shape.dropout)
        module = build(self.factory, shape, self.seed, **parameters)
        module.load_state_dict(self.base.module.state_dict())
        if setting.kind == "after step":
            # its own steps, for what they change outside of the state, then the numbers that another precision reached
            after_steps(module, shape, self.seed)
            module.load_state_dict(self.base.trained.state_dict())
        return self.with_module(module.train(setting.kind == "training"), dtype, setting)

    @cached_property
    def trained(self) -> Variant:
        """The variant after a few steps of training, in evaluation mode."""
        usual = self.rebuilt(setting=RunSetting(self.length))
        return after_steps(usual.module, self.shape, self.seed)

    def inputs(
        self, queries: int | None = None, keys: int | None = None, *, batch: int | None = None, salt: int = 0
    ) -> Inputs:
        """Standard normal entries, fewer keys than queries where the shape is cross; drawn in float32 on the CPU.

        Slices of joined projections, so that no tensor is contiguous. Drawn once: tests share them.
        """
        shape, width = self.shape, self.shape.head_dim
        queries = self.length if queries is None else queries
        if keys is None:
            keys = max(1, 2 * queries // 3) if shape.cross and not shape.causal else queries
        batch = self.batch if batch is None else batch
        wanted = (queries, keys, batch, salt)
        if wanted not in self.drawn:
            # Drawn on the CPU in float32 and then moved: every device and precision sees the same numbers.
            generator = torch.Generator().manual_seed(1000 * self.seed + salt)

            def joined(length: int, parts: int) -> Tensor:
                drawn = torch.randn(batch, length, parts, shape.heads, width, generator=generator)
                return drawn.to(shape.device, self.dtype).permute(2, 0, 3, 1, 4)

            query, key, value = joined(queries, 3) if queries == keys else [*joined(queries, 1), *joined(keys, 2)]
            hidden = None
            if self.module.takes_hidden:
                hidden = torch.randn(batch, 1, queries, shape.hidden_width, generator=generator)
                hidden = hidden.to(shape.device, self.dtype)
            self.drawn[wanted] = Inputs(query, key[:, : shape.kv_heads], value[:, : shape.kv_heads], hidden)
        return self.drawn[wanted]

    def mask(self, valid: Tensor | None = None, **more: Any) -> Mask:
        return Mask(valid=None if valid is None else valid.to(self.shape.device), causal=self.shape.causal, **more)

    def forward(self, inputs: Inputs, valid: Tensor | None = None, **more: Any) -> Tensor:
        if self.kind == "training":
            # noise of training must not look like a leak
            seed_draws(self.seed)
        with self.widened(self.shape.dtype):
            return self.module(inputs.query, inputs.key, inputs.value, self.mask(valid, **more), inputs.states)

    def widened(self, dtype: str) -> Widened | nullcontext[None]:
        """The mode in which passes in `dtype` run: float64 stays float64 throughout."""
        keeps = dtype == "float64" and self.base.casts_down
        return Widened() if keeps else nullcontext()  # type: ignore[no-untyped-call]

    @cached_property
    def casts_down(self) -> bool:
        """True if code that is given float64 casts it down; a mode that asks each operation is slow where none does."""
        shape = replace(self.shape, dtype="float64", dropout=0.0)
        few = Inputs(*(x.double() for x in self.inputs(min(self.length, FEW), batch=1)))
        found = Widened()  # type: ignore[no-untyped-call]
        with suppress(Exception), found, torch.no_grad():
            build(self.factory, shape, self.seed)(few.query, few.key, few.value, self.mask(), few.states)
        return bool(found.casts > 0)

    def moved(self, change: Change, words: str) -> Measured:
        """The movement of the outputs of `inputs()`, relative to the largest of those that should stay."""
        where = change.where[:, None, :, None].to(self.shape.device)
        inputs, other = self.inputs(), self.inputs(salt=1)
        # Ten times as large, so that a small weight on what changes shows.
        changed = {
            part: permuted(torch.where(where, 10 * getattr(other, part), x))
            for part in change.parts or INPUTS
            if (x := getattr(inputs, part)) is not None
        }
        found = self.run(replace(inputs, **changed), change.valid).transpose(1, 2)
        expected = self.output if change.valid is None else self.run(inputs, change.valid)
        look = change.look.to(found.device)
        size = gap(found[look], expected.transpose(1, 2)[look])
        # a Fourier transform rounds small outputs at the size of large ones: what float64 does not show is rounding,
        # but of our own kernels, to which float64 may be another path
        small = self.is_foreign and self.tolerance < size <= self.largest_tolerance
        if small and self.dtype == torch.float32 and self.in_float64:
            exact = self.in_float64.moved(change, words)
            size = self.tolerance if exact.value <= exact.allowed else size
        return Measured(size, self.tolerance, words)

    def run(self, inputs: Inputs, valid: Tensor | None = None, **more: Any) -> Tensor:
        """The output, without gradients; `more` are other parts of the mask."""
        with torch.no_grad():
            return self.forward(inputs, valid, **more)

    def weights(self, inputs: Inputs, valid: Tensor | None = None, rows: slice | None = None) -> Tensor | None:
        with torch.no_grad(), self.widened(self.shape.dtype):
            return self.module.weights_with(inputs.query, inputs.key, self.mask(valid), rows, inputs.states)

    @cached_property
    def output(self) -> Tensor:
        """The output for `inputs()` without a mask of keys."""
        # a copy: a variant that writes to one buffer is found by `no state`, and not by all that share this
        return self.run(self.inputs()).clone()

    @cached_property
    def first_passes(self) -> list[Tensor]:
        """`passes(inputs())`, as they are at first."""
        return [x.clone() for x in self.passes(self.inputs())]

    def grad_output(self, like: Tensor) -> Tensor:
        """A random gradient of the output `like`, laid out as a model's output projection passes it."""
        batch, heads, queries, width = like.shape
        generator = torch.Generator().manual_seed(7)
        return torch.randn(batch, queries, heads, width, generator=generator).transpose(1, 2).to(like)

    def passes(
        self,
        inputs: Inputs,
        valid: Tensor | None = None,
        grad_output: Tensor | None = None,
        parameters: Sequence[Tensor] = (),
    ) -> list[Tensor]:
        """The output and, for a random direction of it, the gradients of the inputs, then those of `parameters`.

        Zeros where none arrives.
        """
        with torch.enable_grad():
            # the same tensors, strides included, gathering gradients
            leaves = Inputs(*(x.detach().requires_grad_() for x in inputs))
            output = self.forward(leaves, valid)
            arriving = self.grad_output(output) if grad_output is None else grad_output
            if not output.requires_grad:
                return [output, *(torch.zeros_like(x) for x in (*leaves, *parameters))]
            sought = [*leaves, *parameters]
            found = torch.autograd.grad(output, sought, arriving, allow_unused=True, materialize_grads=True)
        return [output.detach(), *found]

    @property
    def is_foreign(self) -> bool:
        """True for what was not written for the contract, which an audit examines too."""
        return getattr(self.module, "audited", None) is not None

    @cached_property
    def in_float64(self) -> Case | None:
        """The setting in float64, where leaks stand out from rounding.

        None where the variant refuses float64, or where it takes too much.
        """
        if self.own and not self.fits_float64:
            return None
        try:
            return self.rebuilt(dtype="float64")
        except Unsupported:
            return None

    @cached_property
    def tolerance(self) -> float:
        """The difference that rounding explains, relative to the largest output."""
        if self.dtype == torch.float64:
            # far above the rounding of float64 and far below any leak through a real path
            return 1e-9
        epsilon = torch.finfo(self.dtype).eps
        # float16 and bfloat16: the sums are made in float32 there, so fewer roundings stand behind an output.
        usual = (4 if epsilon > 1e-4 else 64) * epsilon
        if self.own and self.length <= DOUBLE_LENGTH and self.reduced is not self:
            # rounding does not depend on the heads, which share nothing, and little on the length
            return self.reduced.tolerance
        if self.in_float64 is None:
            return 4 * usual
        # A variant that rounds more, such as a long recurrence, gets more room, measured against itself in float64, but
        # never more than hides a leak. Of the rows nine in ten: where rounding flips a choice of keys, a few rows
        # differ wholly, which does not measure rounding.
        found, expected = self.output.double(), self.in_float64.output.double()
        scale = expected.abs().max().item()
        if not 0 < scale < math.inf:
            return usual
        error = ((found - expected).abs().amax(-1).flatten() / scale).quantile(0.9).item()
        return min(usual + 16 * (error if math.isfinite(error) else 0.0), self.largest_tolerance)

    @property
    def largest_tolerance(self) -> float:
        """More would hide a leak, however much rounding explains."""
        return max(5e-4, 8 * torch.finfo(self.dtype).eps)

    @cached_property
    def seconds(self) -> float:
        """A pass at the length to be measured, in seconds of the processor, which other work does not lengthen."""
        # what is done once, such as loading kernels
        self.run(self.inputs(min(self.length, 64)))
        start = self.factory.seconds()
        self.run(self.inputs())
        return self.factory.seconds() - start

    def of_size(self, heads: int, length: int) -> Case:
        """The case with fewer heads or positions, at the length to be measured.

        It is this one where the variant refuses that, or the shape would stay the same, since its heads share one key.
        """
        shape = with_heads(replace(self.shape, max_length=length), heads)
        with suppress(Unsupported):
            if shape != self.shape:
                return Case(self.factory, shape, RunSetting(length, 1, "own"), self.seed, thorough=self.thorough)
        return self

    @cached_property
    def one_head_if_slow(self) -> Case:
        """This case; at the length to be measured with one head, where a sequence with all of them takes long."""
        cheap = not self.own or self.shape.heads == 1 or self.seconds <= SEQUENCE_SECONDS
        return self if cheap else self.of_size(1, self.length)

    @cached_property
    def reduced(self) -> Case:
        """This case; at the length to be measured a smaller one, for float64 and gradients, which cost most.

        That has no more heads than a million scores take, no more tokens than float64 may have, and half as many as
        long as a pass takes long; of code of others no fewer, since nothing else says that it does there what it does
        at few.
        """
        if not self.own:
            return self
        length = self.length if self.length <= DOUBLE_LENGTH else REDUCED_LENGTH
        reduced = self.of_size(min(self.shape.heads, max(1, REDUCED_SCORES // length**2)), length)
        while not self.is_foreign and reduced.length >= 2 * LEAST_LENGTH and reduced.seconds > REDUCED_SECONDS:
            shorter = reduced.of_size(reduced.shape.heads, reduced.length // 2)
            if shorter is reduced:
                break
            reduced = shorter
        reduced.__dict__["reduced"] = reduced
        return reduced

    @cached_property
    def cases(self) -> list[Case]:
        """This case and the others of its shape, each in float64 too, where the variant does not refuse it."""
        few, many = min(self.shape.max_length, 17), min(max(self.measured, WIDE_BATCH), WIDEST_BATCH)
        middle = min(self.shape.max_length, 33)
        others = [RunSetting(few, many, "many"), RunSetting(middle, 3, "training"), RunSetting(middle, 3, "after step")]
        found = [self]
        for setting in () if self.own or self.interpreted else others:
            if setting.kind == "training":
                case = self.rebuilt(setting=setting)
            else:
                module = self.trained if setting.kind == "after step" else self.module
                case = self.with_module(module, setting=setting)
            inputs = case.inputs()
            if setting.kind == "training":
                seed_draws(self.seed)
                before = torch.get_rng_state()
                case.run(inputs)
                if not torch.equal(before, torch.get_rng_state()):
                    # it draws, by the shape of the inputs, so that two passes cannot be compared
                    continue
            if setting.kind != "many" and not self.thorough:
                # left out where a new instance with the same state gives the same bits in evaluation, padded too
                plain = case.with_module(self.rebuilt().module)
                plain.module.load_state_dict(case.module.state_dict())
                padded = inputs.padded_from(inputs.key.shape[2] // 2 + 1)
                masks = [None, padded] if self.shape.padding else [None]
                if all(torch.equal(case.run(inputs, mask), plain.run(inputs, mask)) for mask in masks):
                    continue
            found.append(case)
        cases = []
        for case in found:
            cases.append(case)
            in_float64 = case.in_float64 if self.thorough or not case.few_passes else None
            if in_float64 is not None and not (in_float64.few_passes and in_float64.interpreted):
                cases.append(in_float64)
        return cases


def after_steps(module: Variant, shape: AttentionShape, seed: int) -> Variant:
    """`module` after training steps on drawn inputs, in evaluation mode."""
    case = Case(lambda _: module, shape, RunSetting(min(shape.max_length, 33)), seed, module=module.train())
    trained = [p for p in module.parameters() if p.requires_grad]
    for salt in range(STEPS):
        seed_draws(seed)
        with torch.enable_grad():
            loss = case.forward(case.inputs(salt=100 + salt)).square().mean()
            loss = loss if (extra := module.auxiliary_loss()) is None else loss + extra
            if loss.requires_grad and trained:
                found = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
                with torch.no_grad():
                    for parameter, gradient in zip(trained, found, strict=True):
                        parameter.sub_(1e-2 * gradient)
        module.after_step()
    return module.eval()
