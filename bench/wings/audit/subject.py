"""ForeignSubject: a foreign module or function with its Convention, called in one way whatever it is.

    subject = recognise(module)             # of `convention.py`; or a function over q, k and v
    subject((x,), valid=valid)              # x (batch, positions, width), valid (batch, positions): True is a token

A call is the text of a Python expression, so that what was found is what a person reads, can replace (`--call`) and
finds again in the lines that reproduce a finding. Its names: `m` the module; `x`, `q`, `k`, `v` or `ids`; `valid`, True
at tokens; `pairs` (batch, 1, queries, keys), True where a query may see a key; `seen` (queries, keys), the causal part
of it; `bias`, 0 where `pairs` is True and the lowest number elsewhere; `causal`, whether it is to be causal;
`positions` (1, positions) of the inputs, and `rotary(size)`, their cosines and sines (1, positions, size).
"""

from __future__ import annotations

import math
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

from ....variants.contract import Mask
from ...core.errors import SelectionError
from ...gate.result import Measured, deviations
from ...gate.subject import Change
from ...gate.variant import Widened, seed_draws
from ...run.link import DTYPES, Away, Name, at_the_code
from .away import is_module
from .calls import Call, Convention, Inputs, Kind, Watched, accepted_by, called, remade, set_rate
from .program import of_change, with_out

STILL = 1e-5
"""The part of the output's spread that a rounding may move, in float32."""

SAME = 1e-4
"""The same where two calls make the same products, perhaps in another order."""

ROUNDED, MOST_ROUNDED = 10, 1e-2
"""How many times the error of one pass in float32 such a difference may be, and the most that it may be."""


@dataclass(frozen=True, slots=True)
class ForeignSubject:
    """A module or function with its convention, called in one way whatever it is.

    module: itself, or an Away where it lies in a child; what uses it is under `@at_the_code`. claims: it claims to be
    causal. asked: whether it does is not known, and a finding may ask. looks_back: it is, claimed or found. dtype: of
    the inputs that are drawn for it. pristine: a module that no call has met, of which `fresh` makes copies.
    """

    module: Any
    convention: Convention
    claims: bool = False
    looks_back: bool = False
    dtype: torch.dtype = torch.float32
    pristine: Any = None
    asked: bool = True

    def about(self) -> dict[str, Any]:
        """All but the module, plain, for the process where that lies."""
        dtype = str(self.dtype).removeprefix("torch.")
        return {"convention": asdict(self.convention), "claims": self.claims, "dtype": dtype}

    @classmethod
    def of_about(cls, module: Any, about: dict[str, Any]) -> ForeignSubject:
        """The subject of a module that `about` describes."""
        convention = Convention(**{**about["convention"], "shape": tuple(about["convention"]["shape"])})
        return cls(module, convention, about["claims"], dtype=DTYPES[about["dtype"]])

    @at_the_code
    def __call__(self, inputs: Inputs, valid: Tensor | None = None, causal: bool = False, seed: int = 0) -> Tensor:
        """Output (batch, heads, positions, head_dim) of q, k, v; (batch, positions, width or vocabulary) of others.

        inputs: q, k, v (batch, heads, positions, head_dim); x (batch, positions, width); or ids (batch, positions).
        """
        call = self.convention.call(padded=valid is not None, causal=causal)
        if not call:
            raise SelectionError("expected a call with a mask, and this subject takes none")
        if self.dtype != torch.float64:
            return first_tensor(run_raw(call, self.module, self.convention.kind, inputs, valid, causal, seed))
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            # what code makes or casts in a fixed precision stays as exact as all else
            with Widened():  # type: ignore[no-untyped-call]
                return first_tensor(run_raw(call, self.module, self.convention.kind, inputs, valid, causal, seed))
        finally:
            torch.set_default_dtype(before)

    def draw(self, batch: int = 2, length: int | None = None, seed: int = 0) -> Inputs:
        """Inputs of the standard normal distribution, or tokens."""
        drawn = draw(self.convention.kind, self.convention.shape, batch, length or self.convention.length, seed)
        return tuple(each.to(self.dtype) if each.is_floating_point() else each for each in drawn)

    def part(self, inputs: Inputs, first: int, last: int) -> Inputs:
        axis = 2 if self.convention.kind == "qkv" else 1
        return tuple(each.narrow(axis, first, last - first) for each in inputs)

    def changed(self, inputs: Inputs, where: Tensor) -> Inputs:
        """Other content at `where` (batch, positions)."""
        return changed(self.convention.kind, inputs, where, self.convention.shape[0])

    @at_the_code
    def state(self) -> dict[str, Tensor]:
        """A copy of what is saved of the module; of a function nothing."""
        saved = self.module.state_dict() if isinstance(self.module, nn.Module) else {}
        return {name: each.clone() for name, each in saved.items() if isinstance(each, Tensor)}

    def with_module(self, module: Any) -> ForeignSubject:
        return replace(self, module=module)

    def fresh(self, *, training: bool = False, double: bool = False, rate: float | None = None) -> ForeignSubject:
        """With a copy that no call has met; itself where a rate of dropout is asked for, and it has none."""
        if not is_module(self.module):
            return self.in_float64() if double else self
        pristine = self if self.pristine is None else self.with_module(self.pristine)
        module = pristine.copied(training=training, rate=rate)
        if module is None:
            return self
        found = self.with_module(module)
        return found.in_float64() if double else found

    def in_float64(self) -> ForeignSubject:
        """The same with a copy of the module in float64."""
        return replace(self, module=self.copied(dtype="float64"), dtype=torch.float64)

    @at_the_code
    def copied(self, training: bool | None = None, dtype: str = "", rate: float | None = None, by: str = "") -> Any:
        """A copy of the module, a function as it is; None where it has no rate of dropout to set.

        by: a precision to which its numbers are rounded, but for those that it cannot hold, such as -1e9 of a mask.
        """
        if not isinstance(self.module, nn.Module):
            return self.module
        module = deepcopy(self.module)
        if rate is not None and not set_rate(module, rate) and (module := remade(self, rate)) is None:
            return None
        if training is not None:
            module.train(training)
        for each in (*module.parameters(), *module.buffers()) if by else ():
            if each.is_floating_point() or each.is_complex():
                low = each.data.to(DTYPES[by]).to(each.dtype)
                each.data = torch.where(low.isinf(), each.data, low)
        # those of floats leave complex numbers as they are
        casts = {"": lambda: module, "float64": module.double, "float32": module.float}
        return casts.get(dtype, lambda: module.to(DTYPES[dtype]))()

    @at_the_code
    def dropout_name(self) -> str:
        """An argument of the constructor, an attribute or a class that is named after dropout; empty where none is."""
        # a recurrent layer of torch drops between layers alone
        heard = [each for each in self.module.modules() if not isinstance(each, nn.RNNBase)]
        names = [*accepted_by(type(self.module))] if self.module in heard else []
        names += [name for each in heard for name in (type(each).__name__, *vars(each))]
        return next((name for name in names if "drop" in name.lower()), "")

    def outputs(
        self, inputs: Inputs, valid: Tensor | None = None, causal: bool | None = None, *, seed: int = 0
    ) -> Tensor:
        """The outputs of a call without gradients, always (batch, positions, …)."""
        with torch.no_grad():
            found = self(inputs, valid, self.claims if causal is None else causal, seed)
        return by_position(found, self.convention.kind)

    @at_the_code
    def in_autocast(self, dtype: str, inputs: Inputs, valid: Tensor | None = None, causal: bool = False) -> Tensor:
        """The outputs where PyTorch lowers the precision by itself."""
        with torch.autocast("cpu", dtype=DTYPES[dtype]), torch.no_grad():
            return self(inputs, valid, causal)

    def passes(
        self,
        inputs: Inputs,
        valid: Tensor | None = None,
        arriving: Tensor | None = None,
        causal: bool | None = None,
        parameters: tuple[str, ...] = (),
        only: int | None = None,
    ) -> list[Tensor]:
        """The outputs, and the gradients of the inputs, by position, then those of the parameters that are named.

        only: the number of the one input that has a gradient; None for all.
        """
        found = self._passes(inputs, valid, arriving, causal, parameters, only)
        if isinstance(self.module, Away):
            leaves = [x for at, x in enumerate(inputs) if x.is_floating_point() and only in (None, at)]
            shapes = [by_position(each, self.convention.kind).shape for each in leaves]
            given = [each.shape for each in found[1:]]
            if given[: len(shapes)] != shapes or len(given) != len(shapes) + len(parameters):
                self.module.link.lose("returned gradients of other shapes than the inputs have")
        return found

    @at_the_code
    def _passes(
        self,
        inputs: Inputs,
        valid: Tensor | None,
        arriving: Tensor | None,
        causal: bool | None,
        parameters: tuple[str, ...],
        only: int | None,
    ) -> list[Tensor]:
        with_gradient = [each.is_floating_point() and only in (None, at) for at, each in enumerate(inputs)]
        leaves = tuple(x.detach().requires_grad_(does) for x, does in zip(inputs, with_gradient, strict=True))
        own = dict(self.module.named_parameters()) if parameters else {}
        wanted = [*(each for each in leaves if each.requires_grad), *(own[name] for name in parameters)]
        with torch.enable_grad():
            output = by_position(self(leaves, valid, self.claims if causal is None else causal), self.convention.kind)
            if arriving is None:
                arriving = torch.randn(output.shape, generator=torch.Generator().manual_seed(5)).to(output)
            found = [torch.zeros_like(each) for each in wanted]
            if output.requires_grad:
                found = list(torch.autograd.grad(output, wanted, arriving, allow_unused=True, materialize_grads=True))
        few = len(wanted) - len(parameters)
        turned = [by_position(each, self.convention.kind) for each in found[:few]]
        return [output.detach(), *turned, *found[few:]]

    def compared(
        self, words: str, found: Tensor, expected: Tensor, *lines: str, batch: int = 2, length: int | None = None
    ) -> Measured:
        """The largest difference over the standard deviation of what is expected."""
        if found.shape != expected.shape:
            return Measured(math.inf, SAME, f"{words}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
        off = torch.where(found.isnan() & expected.isnan(), 0.0, (found - expected).nan_to_num(nan=torch.inf))
        spread = expected[expected.isfinite()].std() if expected.numel() > 1 else expected.abs().max()
        size = float(off.abs().max() / spread.clamp(min=1e-30)) if off.numel() else 0.0
        program = self.shown(*lines, "print((a - b).abs().max() / b.std())", batch=batch, length=length)
        allowed = self.allowance(size, batch=batch, length=length)
        return Measured(size, allowed, f"{words}, by {deviations(size)}", program)

    def allowance(self, size: float, least: float = SAME, *, batch: int = 2, length: int | None = None) -> float:
        """The difference that rounding explains: `least`, or more where one pass in float32 differs from float64."""
        if not least < size <= MOST_ROUNDED:
            # decided without these passes
            return least
        # no fewer positions than usual: one alone has hardly any sums
        error, length = 0.0, max(length or 0, self.length)
        # a module that refuses float64 has the usual allowance
        with suppress(Exception):
            found, exact = (each.outputs(each.draw(batch, length)) for each in (self.fresh(), self.fresh(double=True)))
            error = float((found - exact).abs().max() / exact.std())
        return min(MOST_ROUNDED, max(least, ROUNDED * error))

    def shown(self, *lines: str, batch: int = 2, length: int | None = None) -> tuple[str, ...]:
        """A program of plain torch: the inputs, `out(inputs)`, `part(inputs, first, last)` and then `lines`."""
        call = self.convention.call(padded=False, causal=self.claims)
        return (*with_out(self.convention, call, batch, length or self.length, self.claims), *lines)

    def moved(self, change: Change, words: str) -> Measured:
        """The largest movement over the standard deviation of all outputs; 0 where it is no more than rounding."""
        size, by_channel = self.size(change), False
        if is_module(self.module) and (size or (self.is_uneven and not change.training)):
            # a module of float32 alone is judged by float32
            with suppress(Exception):
                double, by_channel = self.in_float64(), not size
                found = double.size(change, by_channel=by_channel)
                size = found if by_channel else size if found > size * 1e-3 else 0.0
        program = tuple(of_change(self.convention, change, by_channel=by_channel))
        return Measured(size, STILL, f"{words} by {deviations(size)}", program)

    @property
    def is_uneven(self) -> bool:
        """True if some channels of the outputs are a hundred times as large as others, and hide what moves in these."""
        each = (rows := self.outputs(self.draw()).flatten(2)).std((0, 1))
        return bool((100 * each[each > 0] < rows.std()).any())

    def size(self, change: Change, *, by_channel: bool = False) -> float:
        """The largest movement in this precision alone; 0 where it is no more than rounding."""
        found = float(self.movement(change, by_channel=by_channel).max())
        return found if found > STILL else 0.0

    def movement(self, change: Change, *, by_channel: bool = False) -> Tensor:
        """The movement of each output, (batch, positions), over the standard deviation of all, or of its own channel.

        What becomes NaN, or is no more, moves endlessly; what is NaN both times has not moved.
        """
        before = self.draw(*change.where.shape)
        after = self.changed(before, change.where)
        found = []
        for inputs in (before, after):
            # statistics that a module keeps in training must not pass from one call to the next
            subject = self.with_module(self.copied(training=True)) if change.training else self
            found.append(subject.outputs(inputs, change.valid, change.causal))
        base, other = found
        rows = base[change.look & base.flatten(2).isfinite().all(-1)].flatten(1)
        spread = rows.std() if len(rows) else rows.new_ones(())
        if by_channel:
            # one row has no deviation of its own
            spread = rows.std(0, correction=int(len(rows) > 1)).clamp(min=1e-6 * float(spread))
        same = (other.isnan() & base.isnan()) | (other == base)
        moved = torch.where(same, 0.0, (other - base).nan_to_num(nan=torch.inf)).flatten(2).abs()
        return torch.where(change.look, (moved / spread.clamp(min=1e-30)).amax(-1), 0.0)

    @at_the_code
    def after(self, inputs: Inputs, others: Inputs) -> list[Tensor]:
        """The inputs after a call, its output at once, and the same tensor after a call on `others`."""
        first = self.outputs(inputs)
        held, after = first.clone(), [each.clone() for each in inputs]
        self.outputs(others)
        return [*after, held, first]

    @at_the_code
    def refilled(self, inputs: Inputs, others: Inputs) -> Tensor:
        """The outputs for `others`, which are written over the inputs of a call before."""
        used = tuple(each.clone() for each in inputs)
        self.outputs(used)
        for each, other in zip(used, others, strict=True):
            each.copy_(other)
        return self.outputs(used)

    @at_the_code
    def masks_behind(self, inputs: Inputs, valid: Tensor) -> list[Name]:
        """The names, or numbers, of the arguments that a call with this mask has changed in place."""
        self.with_module(watched := Watched(self.module)).outputs(inputs, valid, self.masks_and_looks_back)
        return watched.changed

    @at_the_code
    def seeds_behind(self, inputs: Inputs) -> list[Tensor]:
        """The states of random numbers behind two calls with other seeds."""
        states = []
        for seed in (5, 6):
            self.outputs(inputs, seed=seed)
            states.append(torch.get_rng_state())
        return states

    @at_the_code
    def trained(self) -> dict[str, Tensor]:
        """The parameters that learn, by name; none without elements, which have nothing to learn."""
        named = self.module.named_parameters() if isinstance(self.module, nn.Module) else ()
        return {name: each for name, each in named if each.requires_grad and each.numel()}

    @at_the_code
    def outputs_with(self, name: str, values: Tensor, inputs: Inputs) -> Tensor:
        """The outputs with other numbers for the parameter of this name, which gets its own back."""
        own = dict(self.module.named_parameters())[name]
        kept = own.detach().clone()
        with torch.no_grad():
            own.copy_(values)
            found = self.outputs(inputs, None, True)
            own.copy_(kept)
        return found

    @property
    def seconds(self) -> float:
        """Processor time that the code may have taken so far."""
        is_away = isinstance(self.module, Away)
        return self.module.link.child.processor_seconds() if is_away else process_time()

    @property
    def length(self) -> int:
        return self.convention.length

    @property
    def pads(self) -> bool:
        """True if some call takes a mask of padding, which does something."""
        return bool(self.convention.padded) and not self.convention.mask_ignored

    def laid(self, valid: Tensor) -> Tensor:
        """Padding of this layout (batch, positions); behind all tokens where the call takes their number alone."""
        return behind(valid) if self.convention.counts_tokens else valid

    @property
    def has_inputs_of_numbers(self) -> bool:
        return self.convention.kind != "model"

    @property
    def batch(self) -> int:
        """Sequences of a change, so that they have neighbours."""
        return 2

    @property
    def masks_and_looks_back(self) -> bool:
        """It claims to be causal, and some call has a mask of padding and causality at once."""
        return self.claims and bool(self.convention.call(padded=True, causal=True))


def run(
    call: Call, module: Any, kind: Kind, inputs: Inputs, valid: Tensor | None, causal: bool, seed: int = 0
) -> Tensor:
    """The output of one call as a tensor, wherever the module lies."""
    every = Convention(kind=kind, shape=(), length=0, plain=call, padded=call, causal=call, padded_causal=call)
    return ForeignSubject(module, every)(inputs, valid, causal, seed)


def run_raw(
    call: Call, module: Any, kind: Kind, inputs: Inputs, valid: Tensor | None, causal: bool, seed: int = 0
) -> Any:
    """The result of one call as it is; random numbers are those of the seed each time."""
    seed_draws(seed)
    return called(call, module, kind, inputs, Mask(valid, causal))


def first_tensor(output: Any) -> Tensor:
    """The output itself; among several the logits or the first tensor of floats."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(output, name, None), Tensor):
            found: Tensor = getattr(output, name)
            return found
    values = output.values() if isinstance(output, dict) else output
    return next(each for each in values if isinstance(each, Tensor) and each.is_floating_point())


def draw(kind: Kind, shape: tuple[int, ...], batch: int, length: int, seed: int) -> Inputs:
    """Inputs as `ForeignSubject.draw`. The first tokens of a vocabulary are left out: they may mean padding."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "model":
        return (torch.randint(min(3, shape[0] - 1), shape[0], (batch, length), generator=generator),)
    if kind == "layer":
        return (torch.randn(batch, length, *shape, generator=generator),)
    size = (batch, shape[0], length, shape[1])
    return tuple(torch.randn(size, generator=generator) for _ in range(3))


def changed(subject_kind: Kind, inputs: Inputs, where: Tensor, vocabulary: int = 0) -> Inputs:
    """`inputs` with other content at `where` (batch, positions); queries too, since a position is one token."""
    if subject_kind == "model":
        low = min(3, vocabulary - 1)
        return (torch.where(where, (inputs[0] - low + 7) % (vocabulary - low) + low, inputs[0]),)
    shape = where[:, None, :, None] if subject_kind == "qkv" else where[..., None]
    return tuple(torch.where(shape, 3 * each.roll(1, 0) + 1, each) for each in inputs)


def behind(valid: Tensor) -> Tensor:
    """A mask (batch, positions) with as much padding in each sequence, behind its tokens."""
    return torch.arange(valid.shape[1]) < valid.sum(1, keepdim=True)


def by_position(output: Tensor, kind: Kind) -> Tensor:
    """(batch, positions, …) of any output."""
    return output.transpose(1, 2) if kind == "qkv" else output
