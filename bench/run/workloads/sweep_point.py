"""One point of a sweep, as the time lane measures it: attention alone, a layer, a block, or the whole encoder."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from ....tasks.contract import Dataset
from ....tasks.data.data import place
from ....tasks.sweep_point import Point, TimedTask
from ....variants.contract import AttentionShape, KeyValueCache, Mask, Variant
from ...core.errors import SelectionError, Unsupported
from ...core.hashing import axis_seed
from ...core.order import evenly_spaced
from ...core.record import Measurement
from ...core.registry import TASKS
from ...core.spec import Spec
from ...gate.build import build_checked
from ...measure.attention.synthetic import on_inputs
from ...measure.memory import storages
from ...models.blocks import Batch, BuildVariant, Model, TransformerBlock, added_parameters
from ...train.device import autocast
from ...train.objectives.registry import objective_for
from ...train.trainer import train_step
from .compiled import compile_now, compiled, require_same
from .workload import Workload, Workloads

DECODED = 16
"""Tokens of one decoding sample: the last ones up to the length, so that buffers that double need not grow in it."""

LEAST_LIMIT = 10.0
"""Seconds that one sample may take, however short the budget: the first one is counted, which slows it down."""


@dataclass(slots=True, kw_only=True)
class SweepWorkloads(Workloads):
    """Every workload gets the very same tensors: `heads`, query, key and value, and `hidden`; or `states`, or `batch`.

    `grad_output`: the gradient that arrives at the output in a training step.
    """

    point: Point
    task: TimedTask
    mask: Mask
    heads: tuple[Tensor, ...] = ()
    hidden: Tensor | None = None
    states: Tensor | None = None
    batch: Batch = ()
    grad_output: Tensor | None = None
    build: Callable[[Spec], BuildVariant] = build_checked

    @classmethod
    def of(
        cls,
        task: TimedTask,
        point: Point,
        dataset: Dataset,
        device: torch.device,
        build: Callable[[Spec], BuildVariant] = build_checked,
    ) -> SweepWorkloads:
        workloads = cls(
            recipe=point, device=device, mode=point.mode, sequences=point.batch,
            limit_seconds=max(point.timing_seconds, LEAST_LIMIT),
            units=DECODED if point.decoding else 1, real=point.batch * (1 if point.decoding else point.real),
            padded=point.batch * (1 if point.decoding else point.length), bare=point.level == "attention",
            point=point, task=task, mask=mask_of(point, device), build=build,
        )  # fmt: skip
        workloads.draw(dataset)
        return workloads

    def draw(self, dataset: Dataset) -> None:
        """Makes the inputs of this point's level."""
        point, device = self.point, self.device
        if point.level == "model":
            objective = objective_for(self.task.problem(), point)
            self.batch = objective.batch(dataset.train, evenly_spaced(len(dataset.train), point.batch), device)
            return
        if point.level in ("layer", "block"):
            self.states = torch.from_numpy(self.task.states(point)).to(device)
            shape = self.states.shape
        else:
            drawn = self.task.heads(point)
            self.heads = tuple(
                torch.from_numpy(array).to(device, self.dtype) for array in (drawn.query, drawn.key, drawn.value)
            )
            shape = self.heads[0].shape
        # One gradient for all variants: the cost of a backward pass may depend on how sparse it is.
        draw = torch.Generator().manual_seed(axis_seed(use="sweep gradient") % 2**31)
        self.grad_output = torch.randn(shape, generator=draw).to(device, self.dtype)
        if self.heads:
            hidden = torch.randn(shape[0], shape[2], point.heads * point.head_dim, generator=draw)
            self.hidden = hidden.to(device, self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.point.dtype)
        if self.point.level == "model" and self.device.type == "cpu":
            return torch.float32
        return dtype

    def workload(self, variant: Spec) -> Workload:
        make = {"attention": self._attention, "model": self._model}.get(self.point.level, self._block)
        workload = make(variant)
        workload.attention = lambda: self._sparsity(workload)
        workload.graph_on = self.device if self.captures else None
        return workload

    def null_control(self, reference: Spec, ready: Workload) -> Workload:
        # compiling takes minutes, and makes the same code
        return ready if self.point.compile else self.workload(reference)

    def steady(self) -> AbstractContextManager[object]:
        if not self.point.compile:
            return nullcontext()
        # compiling again would be timed as part of a sample
        stance: AbstractContextManager[object] = torch.compiler.set_stance("fail_on_recompile")
        return stance

    @property
    def captures(self) -> bool:
        """True if the work is captured once as a CUDA graph, and replayed."""
        return self.point.graph and self.device.type == "cuda"

    def _optimiser(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Rate 0: the work of a step without its effect, so that every sample meets the same parameters."""
        if self.captures:
            # it warns at the steps before the capture, of which there must be some
            warnings.filterwarnings("ignore", message="This instance was constructed with capturable=True")
        return torch.optim.AdamW(parameters, lr=0.0, fused=True, capturable=self.captures)

    def _built(self, spec: Spec) -> BuildVariant:
        """The function that makes the variant, or raises Unsupported for half the work of a softmax without a mask."""
        build = self.build(spec)

        def built(shape: AttentionShape) -> Variant:
            variant = build(shape)
            if not shape.causal and getattr(variant, "looks_back", False):
                raise Unsupported("it looks back alone, and softmax looks both ways here: --task 'sweep[causal=true]'")
            return variant

        return built

    def _attention(self, spec: Spec) -> Workload:
        with torch.random.fork_rng(devices=[]):
            # a pattern or a projection is drawn: the same for each run of a point
            torch.manual_seed(axis_seed(use="variant init", seed=0, layer=0))
            variant = self._built(spec)(shape_of(self.point, self.device)).to(self.device)
        variant.train(self.point.mode == "step")
        parameters = [p for p in variant.parameters() if p.requires_grad]
        count = sum(p.numel() for p in parameters)
        workload = Workload(
            variants=[variant], work=lambda: None, owners=(variant,), inputs=self.heads, parameters=(count, count),
            contents=self.heads if self.hidden is None else (*self.heads, self.hidden),
        )  # fmt: skip
        if self.point.mode == "decode":
            self._decode(workload, variant)
            return workload
        inputs = [*self.heads, self.hidden] if variant.takes_hidden and self.hidden is not None else self.heads
        query, key, value, *hidden = leaves = [x.detach().requires_grad_(self.point.mode == "step") for x in inputs]
        mask = self.mask

        def forward() -> Tensor:
            return variant(query, key, value, mask, *hidden)

        self._set_work(workload, forward, variant, [*leaves, *parameters], None)
        return workload

    def _decode(self, workload: Workload, variant: Variant) -> None:
        """Work that decodes the last tokens; before each sample the state is set back to the token before them."""
        if variant.state_bytes(variant.shape) is None:
            raise Unsupported("it cannot decode")
        first = max(self.point.length - DECODED, 0)
        decode = partial(decoded, variant, self.heads, self.hidden)
        # Prefilled once: the cost of a late token is asked for, and it depends on how much lies before it.
        before = decode(range(first), fills=True, progress=self.progress)

        def prepare() -> None:
            # A copy each time, untimed: decoding may change its state in place, and a second sample would start further
            # on.
            workload.state[:] = [copy.deepcopy(before)]

        def work() -> object:
            workload.state[:] = [decode(range(first, self.point.length), workload.state[0])]
            return workload.state

        workload.work, workload.prepare = work, prepare

    def _block(self, spec: Spec) -> Workload:
        """A block, or of it the layer: attention with its projections."""
        shape = shape_of(self.point, self.device)
        build = self._built(spec)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(axis_seed(use="variant init", seed=0, layer=0))
            variant = build(shape)
            before = variant.pre_layer(self.point.width)
            torch.manual_seed(axis_seed(use="init", seed=0))
            block: nn.Module = TransformerBlock(variant, before, self.point)
        if self.point.level == "layer":
            if before is not None:
                raise Unsupported("it has a sublayer of its own before attention, which level=block times too")
            block = cast(nn.Module, block.attention)
        block.to(self.device)
        block.train(self.point.mode == "step")
        parameters = list(block.parameters())
        optimiser = self._optimiser(parameters)
        states = self.states
        assert states is not None

        mask, device, mixed = self.mask, self.device.type, self.dtype is torch.bfloat16

        def forward() -> Tensor:
            with torch.autocast(device, torch.bfloat16, enabled=mixed):
                output: Tensor = block(states, mask)
            return output

        added = added_parameters(self.point.width, variant, before)
        workload = Workload(
            variants=[variant],
            work=lambda: None,
            owners=(block, optimiser),
            inputs=(states,),
            contents=(states,),
            parameters=(sum(p.numel() for p in parameters), added),
        )
        self._set_work(workload, forward, variant, parameters, optimiser)
        return workload

    def _set_work(
        self,
        workload: Workload,
        forward: Callable[[], Tensor],
        variant: Variant,
        leaves: Sequence[Tensor],
        optimiser: torch.optim.Optimizer | None,
    ) -> None:
        """A forward pass without gradients, or a training step; attention alone has no optimiser."""
        grad_output, ahead = self.grad_output, compiled(forward) if self.point.compile else forward

        @torch.no_grad()
        def passing() -> Tensor:
            return ahead()

        def gradients() -> tuple[Tensor, tuple[Tensor | None, ...]]:
            output, extra = ahead(), variant.auxiliary_loss()
            outputs, arriving = [output], [grad_output.to(output.dtype) if grad_output is not None else None]
            if extra is not None:
                outputs, arriving = [output, extra], [*arriving, torch.ones_like(extra)]
            # Not `backward()`: gradients that pile up in leaves would add memory from sample to sample.
            return output, torch.autograd.grad(outputs, leaves, arriving, allow_unused=True)

        def step() -> object:
            found = gradients()[1]
            if optimiser is not None:
                for leaf, gradient in zip(leaves, found, strict=True):
                    leaf.grad = gradient
                optimiser.step()
            variant.after_step()
            return found

        def examined() -> list[Tensor]:
            if self.point.mode != "step":
                return [passing()]
            output, found = gradients()
            return [output.detach(), *(gradient for gradient in found if gradient is not None)]

        workload.work = step if self.point.mode == "step" else passing
        if self.point.compile:
            self._compile(workload, forward, examined)

    def _compile(self, workload: Workload, forward: Callable[[], object], examined: Callable[[], list[Tensor]]) -> None:
        """Compiles what `work` calls, and compares it with its eager form.

        `examined`: output and gradients. Raises Unsupported and Incorrect.
        """
        workload.compilation = compile_now(workload.work, forward)
        owner = workload.owners[0]
        assert isinstance(owner, nn.Module)
        before = copy.deepcopy(owner.state_dict())
        with workload.eager:
            expected = examined()
        # a forward pass in training may move buffers
        owner.load_state_dict(before)
        require_same(expected, examined(), self.dtype)
        owner.load_state_dict(before)

    def _model(self, spec: Spec) -> Workload:
        objective = objective_for(self.task.problem(), self.point)
        model: Model = objective.model(self._built(spec), 0, str(self.device)).to(self.device)
        model.train(self.point.mode == "step")
        optimiser = self._optimiser(model.parameters())
        plain = model.forward
        if self.point.compile:

            def forward(*inputs: Tensor) -> Tensor:
                logits: Tensor = plain(*inputs)
                return logits

            # the loss calls it too
            model.forward = compiled(forward)

        def step() -> object:
            return train_step(model, optimiser, [self.batch], self.point, 0.0)

        @torch.no_grad()
        def passing() -> Tensor:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype is torch.bfloat16):
                logits: Tensor = model(*self.batch[:2])
            return logits

        def examined() -> list[Tensor]:
            if self.point.mode != "step":
                return [passing()]
            with autocast(self.point, self.device):
                loss = model.loss(self.batch)
            extra, parameters = model.auxiliary_loss(), [p for p in model.parameters() if p.requires_grad]
            found = torch.autograd.grad(loss if extra is None else loss + extra, parameters, allow_unused=True)
            return [loss.detach()[None], *(gradient for gradient in found if gradient is not None)]

        workload = Workload(
            variants=model.variants,
            work=step if self.point.mode == "step" else passing,
            owners=(model, optimiser) if self.point.mode == "step" else (model,),
            inputs=self.batch,
            parameters=model.parameter_counts(),
        )
        if self.point.compile:
            self._compile(workload, lambda: plain(*self.batch[:2]), examined)
        return workload

    def _sparsity(self, workload: Workload) -> Iterator[Measurement]:
        """Statistics of the weights on this point's inputs; of decoding, the bytes that its state holds."""
        if self.point.decoding:
            workload.once()
            held = sum(storages(workload.state).values()) / self.point.batch
            yield Measurement.of("state_bytes", held, length=self.point.length, how="measured")
            return
        yield from on_inputs(workload.variants, lambda: self._pass(workload))

    def _pass(self, workload: Workload) -> None:
        """The inputs through the variants once, whatever is timed."""
        owner = workload.owners[0]
        assert isinstance(owner, nn.Module)
        if self.point.level == "attention":
            owner(*self.heads, self.mask, self.hidden)
        elif self.point.level == "model":
            owner(*self.batch[:2])
        else:
            owner(self.states, self.mask)


@torch.no_grad()
def decoded(
    variant: Variant, heads: Sequence[Tensor], hidden: Tensor | None, tokens: range, state: Any = None, *,
    fills: bool = False, progress: Callable[[int, int], None] | None = None,
) -> Any:  # fmt: skip
    """The state after these `tokens` of `heads`: query, key and value. `fills`: nobody wants the outputs."""
    for at in tokens:
        query, key, value = (x[:, :, at : at + 1] for x in heads)
        # such a state is keys and values, whatever was attended to; one by one, its buffers are those of steps
        if fills and type(variant).step is Variant.step:
            (state := state or KeyValueCache.empty(key, value)).append(key, value)
        else:
            _, state = variant.step_with(query, key, value, state, None if hidden is None else hidden[:, at : at + 1])
        # what is timed reports nothing
        if progress is not None:
            progress(at + 1, tokens.stop)
    return state


def point_of(task: str, device: torch.device, preset: str = "quick") -> SweepWorkloads:
    """The inputs of one point outside of a run; raises SelectionError where `task` is no sweep."""
    built = TASKS.build(TASKS.resolve(Spec.parse(task)))
    recipe = built.recipe(Spec.parse(preset))
    if not isinstance(built, TimedTask) or not isinstance(recipe, Point):
        raise SelectionError(f"expected a sweep such as sweep[length=1024], got {task!r}")
    dataset = built.load(place(offline=True), recipe, 0, "validation")
    return SweepWorkloads.of(built, recipe, dataset, device, partial(build_checked, batch=recipe.batch))


def shape_of(point: Point, device: torch.device) -> AttentionShape:
    """The shape that a variant is built for at a point, at the levels below the model."""
    return AttentionShape(
        heads=point.heads,
        kv_heads=point.kv_heads or 0,
        head_dim=point.head_dim,
        max_length=point.length,
        causal=point.causal,
        padding=point.padding > 0,
        dtype=point.dtype,
        device=str(device),
    )


def mask_of(point: Point, device: torch.device) -> Mask:
    valid = None
    if point.padding > 0:
        valid = (torch.arange(point.length, device=device) < point.real)[None].repeat(point.batch, 1)
    return Mask(valid=valid, causal=point.causal)
