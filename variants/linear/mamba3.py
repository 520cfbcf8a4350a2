"""Mamba-3: a state that decays and turns by angles of the tokens, and is written by this token and the one before."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, SelectionError, Unsupported, accumulator, repeat_heads
from ..kernels.dispatch import choose_implementation
from ..ops.projection import projected
from ..ops.recurrences import Terms
from ..ops.rotation import turned
from .recurrent import Impl, RecurrentVariant, by_head


@dataclass(slots=True)
class Mamba3State:
    """The state (batch, heads, key_dim, value_dim), the last key, turned, and value, and the sum of angles so far."""

    written: Tensor
    key: Tensor
    value: Tensor
    angle: Tensor


class Mamba3(RecurrentVariant):
    """Mamba-3 over queries (its C), keys (its B) and values (its x), each head by itself; SISO.

    A token's step t = softplus(w x + c) and slope A = softplus(v x) of its hidden state x give the decay exp(-A t). A
    state that is complex turns: queries and keys turn by the sum of t pi tanh(W x) of the tokens so far, a pair of
    dimensions each, half of them; so parity needs no negative eigenvalue. The trapezoidal rule writes a token twice:
    the share l = sigmoid(u x) with its own step, the rest with the step of the next. Queries and keys are normalised,
    with a scale, and a bias of each head from 1; c starts as in Mamba-2. The output is y + D v times SiLU(W x), without
    a norm, as in the released code; `output_gate=false` leaves the gate out. The paper's MIMO form, of several inputs a
    head, is left out. Causal only.
    """

    equation: ClassVar = (
        "S_i = a_i S_(i-1) + (1 - l_i) t_i a_i k_(i-1)^T v_(i-1) + l_i t_i k_i^T v_i; o_i = (q_i S_i + D v_i) * "
        "SiLU(W x_i); a_i = exp(-A_i t_i); q, k = R_i (RMSNorm(.) + b), R_i turns by sum_(j <= i) t_j pi tanh(W x_j)"
    )
    paper: ClassVar = (
        "Lahoti, Li, Chen, Wang, Bick, Kolter, Dao & Gu 2026, Mamba-3: Improved Sequence Modeling using State Space "
        "Principles (arXiv 2603.15569), section 3"
    )

    def __init__(self, shape: AttentionShape, *, output_gate: bool = True, impl: Impl = "auto"):
        super().__init__(shape, impl=impl)
        del self.norm
        heads, width = shape.heads, shape.head_dim
        self.pairs = max(1, width // 4)
        # step, slope and share of a head
        self.rates = nn.Linear(shape.hidden_width, 3 * heads, bias=False)
        start = torch.empty(heads, 1).uniform_(math.log(1e-3), math.log(0.1)).exp()
        # the bias whose softplus is drawn log-uniformly
        self.step_bias = nn.Parameter(start + (-torch.expm1(-start)).log())
        self.angles = nn.Linear(shape.hidden_width, self.pairs, bias=False)
        self.scales = nn.Parameter(torch.ones(2, width))
        self.biases = nn.Parameter(torch.ones(2, heads, 1, width))
        self.skip = nn.Parameter(torch.ones(heads, 1, 1))
        self.output_gate = nn.Linear(shape.hidden_width, shape.width, bias=False) if output_gate else None

    def supports(self, shape: AttentionShape) -> str | None:
        if shape.head_dim < 2:
            return "it turns pairs of dimensions, so a head needs two"
        if shape.dtype == "float16":
            # steps, values and the gate grow with the states, and no norm follows their product
            return "its outputs leave the range of float16; take bfloat16"
        return super().supports(shape)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None = None) -> Tensor:
        assert hidden is not None
        length, kind = query.shape[2], value.dtype
        if not mask.causal or length != key.shape[2]:
            raise Unsupported(f"Mamba3: expected a causal mask over one sequence, got {length}, {key.shape[2]} keys")
        dtype = accumulator(query.dtype)
        self.implementation = choose_implementation(self.impl, query, key, value, kernels=frozenset({"cpp"}))
        query, key, value, hidden = (x.to(dtype) for x in (query, key, value, hidden))
        step, slope, share = self._rates(hidden)
        real = mask.real(key)[:, None]
        if mask.valid is not None:
            # without a step a token neither writes, nor decays, nor turns
            step, value = step.masked_fill(~real, 0.0), value.masked_fill(~real[..., None], 0.0)
        query, key = self._turned(query, key, self._angles(hidden, step).cumsum(2))
        own, late = share * step, (1.0 - share) * step
        before = self._before(real)
        earlier_key, earlier_value = (_picked(x, before) for x in (key, value))
        # what the token before has written by now: its own share, and the rest by this token's step
        due = (_picked(own[..., None], before)[..., 0] + late) * (-slope * step).exp() * real
        read = self.read(Terms(query, earlier_key, due[..., None] * earlier_value, -slope * step), hidden)
        read = read + own[..., None] * (query * key).sum(-1, keepdim=True) * value
        return self._gated(read, value, hidden).to(kind)

    def state_bytes(self, shape: AttentionShape) -> int:
        itemsize = accumulator(getattr(torch, shape.dtype)).itemsize
        return super().state_bytes(shape) + shape.heads * (2 * shape.head_dim + self.pairs) * itemsize

    def step(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, state: Mamba3State | None = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Mamba3State]:
        if hidden is None:
            raise SelectionError("Mamba3 takes the hidden state: expected hidden, got None")
        dtype, kind = accumulator(query.dtype), value.dtype
        key, value = repeat_heads(key, query.shape[1]).to(dtype), repeat_heads(value, query.shape[1]).to(dtype)
        query, hidden = query.to(dtype), hidden.to(dtype)
        step, slope, share = self._rates(hidden)
        if state is None:
            nothing = key.new_zeros(*key.shape[:2], key.shape[3], value.shape[3])
            state = Mamba3State(nothing, torch.zeros_like(key), torch.zeros_like(value), key.new_zeros(()))
        angle = state.angle + self._angles(hidden, step)
        query, key = self._turned(query, key, angle)
        earlier = ((1.0 - share) * step)[..., None] * state.key.transpose(-2, -1) @ state.value
        written = (-slope * step).exp()[..., None] * (state.written + earlier)
        written = written + (share * step)[..., None] * key.transpose(-2, -1) @ value
        output = self._gated(query @ written, value, hidden).to(kind)
        # a copy: the value may be a slice of a whole sequence
        return output, Mamba3State(written, key, value.clone(), angle)

    def _rates(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Step t, slope A and share l, each (batch, heads, length)."""
        step, slope, share = projected(self.rates, hidden).transpose(1, 2).chunk(3, 1)
        # a state that never decays would grow
        return F.softplus(step + self.step_bias.to(step.dtype)), F.softplus(slope).clamp(min=1e-4), share.sigmoid()

    def _angles(self, hidden: Tensor, step: Tensor) -> Tensor:
        """By how much each token turns, (batch, heads, length, pairs)."""
        return step[..., None] * (math.pi * projected(self.angles, hidden).tanh())[:, None]

    def _turned(self, query: Tensor, key: Tensor, angle: Tensor) -> list[Tensor]:
        turning = 2 * self.pairs
        found = []
        for x, scale, bias in zip((query, key), self.scales.to(key.dtype), self.biases.to(key.dtype), strict=True):
            x = F.rms_norm(x, x.shape[-1:], scale, eps=1e-5) + bias
            found.append(torch.cat([turned(x[..., :turning], angle), x[..., turning:]], -1))
        return found

    def _before(self, real: Tensor) -> Tensor:
        """The last real position before each, -1 where there is none: (batch, 1, length) of the same."""
        at = torch.arange(real.shape[-1], device=real.device)
        last = torch.where(real, at, -1).cummax(-1).values
        return F.pad(last[..., :-1], (1, 0), value=-1)

    def _gated(self, read: Tensor, value: Tensor, hidden: Tensor) -> Tensor:
        output = read + self.skip.to(read.dtype) * value
        if self.output_gate is None:
            return output
        return output * F.silu(by_head(projected(self.output_gate, hidden), self.shape.heads))


def _picked(x: Tensor, at: Tensor) -> Tensor:
    """x (batch, heads, length, d) at the positions `at` (batch, 1, length), zeros where they are below 0."""
    place = at.expand(x.shape[0], x.shape[1], -1)[..., None].expand_as(x)
    return x.gather(2, place.clamp(min=0)).masked_fill(place < 0, 0.0)
