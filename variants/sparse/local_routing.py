"""Local and routing attention side by side, half of the heads each."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from ..contract import AttentionShape, Count, Mask, Range, Variant, Width, repeat_heads
from ..ops.patterns import whole
from .local import Local
from .routing import Routing


class LocalRouting(Variant):
    """The Routing Transformer's layer: one half of the heads is local, the other half routes.

    With an odd number of heads, the extra head is local. Layers below `skip_first` are all local; the paper routes in
    every layer for text of 4k to 8k tokens, and in the last one only for books. The other parameters are those of
    `local` and `routing`; `max_relative` serves both, so it is at least query_block + flange and at least the window;
    `impl` serves both too. `flange`: how many keys beside its own block a block of local queries sees.
    """

    causality: ClassVar = "selection"
    crosses: ClassVar = False
    decodes: ClassVar = False
    equation: ClassVar = "local on heads 1..h/2, routing on the others"
    paper: ClassVar = "Roy et al. 2021, Efficient Content-Based Sparse Attention with Routing Transformers, sec. 4"
    time: ClassVar = "O(N (query_block + flange + clusters + window) d)"
    memory: ClassVar = "O(N (query_block + flange + clusters + window))"
    drops_inside: ClassVar = Local.drops_inside

    def __init__(
        self,
        shape: AttentionShape,
        *,
        skip_first: Annotated[int, Range(0, 1_000)] = 0,
        query_block: Count | None = None,
        flange: Annotated[int, Range(0, 1_048_576)] | None = None,
        clusters: Width | None = None,
        window: Count | None = None,
        form: Literal["paper", "strict"] = "paper",
        share_qk: bool = False,
        suppress_self: bool = False,
        scale: Annotated[float, Range(-1e3, 1e3)] = 1.0,
        decay: Annotated[float, Range(0, 0.999_999)] = 0.999,
        beta: Annotated[float, Range(0, 1e3)] = 1e-4,
        relative: bool = True,
        max_relative: Width | None = None,
        impl: Literal["auto", "eager", "triton"] = "auto",
    ):
        super().__init__(shape)
        # the paper's books model routes in its last layer only
        routes = shape.layer >= whole("skip_first", skip_first, 0, least=0)
        self.split = shape.heads - shape.heads // 2 if routes else shape.heads
        self.local = Local(
            _part(shape, self.split),
            query_block=query_block,
            flange=flange,
            relative=relative,
            max_relative=max_relative,
            impl=impl,
        )
        self.routing = None
        if self.split < shape.heads:
            self.routing = Routing(
                _part(shape, shape.heads - self.split),
                clusters=clusters,
                window=window,
                form=form,
                share_qk=share_qk,
                suppress_self=suppress_self,
                scale=scale,
                decay=decay,
                beta=beta,
                relative=relative,
                max_relative=max_relative,
                impl=impl,
            )
        # distances are told by the local heads; those that route know ranks within a cluster only
        self.brings_positions = self.local.brings_positions
        # what the layer can do is what its routing heads can do
        self.causality = "strict" if self.routing is None else self.routing.causality  # type: ignore[misc, assignment]
        self.decodes = self.routing is None or self.routing.decodes  # type: ignore[misc]

    def supports(self, shape: AttentionShape) -> str | None:
        if shape.heads < 2:
            return "it needs at least two heads, one local and one that routes"
        parts = [self.local] if self.routing is None else [self.local, self.routing]
        # the first reason of either part
        return super().supports(shape) or next(filter(None, (part.supports(shape) for part in parts)), None)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        (query, far_query), (key, far_key), (value, far_value) = map(self._halves, (query, key, value))
        # the padded slots are cleared already
        local = self.local.forward(query, key, value, mask)
        self.implementation = self.local.implementation
        if self.routing is None:
            return local
        routed = self.routing.forward(far_query, far_key, far_value, mask)
        # both, where they differ: a record says what ran
        self.implementation = "+".join(sorted({self.local.implementation, self.routing.implementation}))
        return torch.cat([local, routed], 1)

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        (query, far_query), (key, far_key) = map(self._halves, (query, repeat_heads(key, query.shape[1])))
        local = self.local.weights(query, key, mask, rows)
        if self.routing is None:
            return local
        return torch.cat([local, self.routing.weights(far_query, far_key, mask, rows)], 1)

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
        (query, far_query), (key, far_key), (value, far_value) = map(self._halves, (query, key, value))
        local_state, routing_state = state or (None, None)
        output, local_state = self.local.step(query, key, value, local_state)
        if self.routing is not None:
            routed, routing_state = self.routing.step(far_query, far_key, far_value, routing_state)
            output = torch.cat([output, routed], 1)
        return output, (local_state, routing_state)

    def density(self, shape: AttentionShape) -> float:
        local = self.local.density(shape) * self.split
        routed = 0.0 if self.routing is None else self.routing.density(shape) * (shape.heads - self.split)
        return (local + routed) / shape.heads

    def state_bytes(self, shape: AttentionShape) -> int | None:
        local = self.local.state_bytes(_part(shape, self.split))
        if self.routing is None:
            return local
        routed = self.routing.state_bytes(_part(shape, shape.heads - self.split))
        return None if routed is None else local + routed

    def auxiliary_loss(self) -> Tensor | None:
        return None if self.routing is None else self.routing.auxiliary_loss()

    def after_step(self) -> None:
        if self.routing is not None:
            self.routing.after_step()

    def _halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The heads that are local and those that route."""
        return x[:, : self.split], x[:, self.split :]


def _part(shape: AttentionShape, heads: int) -> AttentionShape:
    """The shape of some of the heads, to which keys and values come repeated for each."""
    return replace(shape, heads=heads, kv_heads=heads)
