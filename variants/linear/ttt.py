"""TTT-Linear: the state is a linear model that each token trains by one step of gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Count, Mask, SelectionError, Unsupported, accumulator, repeat_heads
from ..ops.projection import projected
from .recurrent import RecurrentVariant

EPSILON = 1e-6


@dataclass(slots=True)
class Trained:
    """A model of the begin of a mini-batch, and how far its tokens have moved it: weights and biases, rows below."""

    #: (batch, heads, key_dim + 1, value_dim)
    begin: Tensor
    moved: Tensor
    #: tokens so far
    seen: int


class TTTLinear(RecurrentVariant):
    """TTT-Linear: a model f(k) = k + LN(k W + b) that learns to map the key to the value, and answers the query.

    Each token moves W and b against the gradient of |f(k) - v|^2 / 2, by a rate sigmoid(w x + c) / head_dim of its
    hidden state x; the gradients of a mini-batch of `batch` tokens are taken at the model before it, so that they are
    one product. W starts from N(0, 0.02), b at 0, both learned, as are scale and shift of LN, of each head. Behind it
    is one layer norm of all heads. The released code also scales the sums inside a mini-batch by 1 / position, learned,
    and turns queries and keys by the position in it; here rotations are the model's. Causal only.
    """

    equation: ClassVar = (
        "W_t = W_s - sum_(s < i <= t) n_i k_i^T g_i; b_t = b_s - sum n_i g_i; "
        "z_i = k_i W_s + b_s, g_i the gradient of |k_i + LN(z_i) - v_i|^2 / 2 there; "
        "o_t = LN(q_t + LN(q_t W_t + b_t)); s = batch floor((t - 1) / batch)"
    )
    paper: ClassVar = (
        "Sun et al. 2024, Learning to (Learn at Test Time): RNNs with Expressive Hidden States (arXiv 2407.04620), "
        "section 2"
    )
    memory: ClassVar = "O(N d + N d^2 / batch)"

    def __init__(self, shape: AttentionShape, *, batch: Count = 16):
        super().__init__(shape)
        self.batch = batch
        by_channel = (shape.heads, 1, shape.head_dim)
        # the last row is the bias
        begin = torch.cat([0.02 * torch.randn(shape.heads, shape.head_dim, shape.head_dim), torch.zeros(by_channel)], 1)
        self.begin = nn.Parameter(begin)
        self.rate = nn.Linear(shape.hidden_width, shape.heads)
        nn.init.normal_(self.rate.weight, std=0.02)
        nn.init.zeros_(self.rate.bias)
        self.inner_scale, self.inner_shift = nn.Parameter(torch.ones(by_channel)), nn.Parameter(torch.zeros(by_channel))
        self.norm, self.shift = nn.Parameter(torch.ones(by_channel)), nn.Parameter(torch.zeros(by_channel))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None = None) -> Tensor:
        assert hidden is not None
        length, kind = query.shape[2], value.dtype
        if not mask.causal or length != key.shape[2]:
            raise Unsupported(f"TTTLinear: expected a causal mask over one sequence, got {length}, {key.shape[2]} keys")
        dtype = accumulator(query.dtype)
        query, key, value = (x.to(dtype) for x in (query, key, value))
        rate = self._rate(hidden.to(dtype))
        if mask.valid is not None:
            rate = rate.masked_fill(~mask.valid[:, None, :, None], 0.0)
        model = self.begin.to(dtype).expand(len(query), -1, -1, -1)
        outputs = []
        for first in range(0, length, self.batch):
            q, k, v, n = (x[:, :, first : first + self.batch] for x in (query, key, value, rate))
            step = n * self._gradient(k, v, model)
            # what the tokens up to the query's own have moved: the 1 is the input of the bias
            seen = (q @ k.transpose(-2, -1) + 1.0).tril()
            outputs.append(self._answer(q, _applied(q, model) - seen @ step))
            model = model - _with_one(k).transpose(-2, -1) @ step
        output = self.finish(torch.cat(outputs, 2), hidden)
        # it answers without a key to learn from, too
        return (output if mask.valid is None else output.masked_fill(~mask.valid[:, None, :, None], 0.0)).to(kind)

    def finish(self, output: Tensor, hidden: Tensor) -> Tensor:
        centred = output - output.mean((1, 3), keepdim=True)
        size = torch.rsqrt(centred.square().mean((1, 3), keepdim=True) + EPSILON)
        return centred * size * self.norm.to(output.dtype) + self.shift.to(output.dtype)

    def state_bytes(self, shape: AttentionShape) -> int:
        itemsize = accumulator(getattr(torch, shape.dtype)).itemsize
        return 2 * shape.heads * (shape.head_dim + 1) * shape.head_dim * itemsize

    def step(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, state: Trained | None = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Trained]:
        if hidden is None:
            raise SelectionError("TTTLinear takes the hidden state: expected hidden, got None")
        dtype, kind = accumulator(query.dtype), value.dtype
        key, value = repeat_heads(key, query.shape[1]).to(dtype), repeat_heads(value, query.shape[1]).to(dtype)
        query = query.to(dtype)
        if state is None:
            begin = self.begin.to(dtype).expand(len(query), -1, -1, -1)
            state = Trained(begin.clone(), torch.zeros_like(begin), 0)
        step = self._rate(hidden.to(dtype)) * self._gradient(key, value, state.begin)
        moved = state.moved - _with_one(key).transpose(-2, -1) @ step
        output = self.finish(self._answer(query, _applied(query, state.begin + moved)), hidden).to(kind)
        seen = state.seen + 1
        if seen % self.batch == 0:
            return output, Trained(state.begin + moved, torch.zeros_like(moved), seen)
        return output, Trained(state.begin, moved, seen)

    def _rate(self, hidden: Tensor) -> Tensor:
        """n, (batch, heads, length, 1)."""
        return projected(self.rate, hidden).transpose(1, 2)[..., None].sigmoid() / self.shape.head_dim

    def _gradient(self, key: Tensor, value: Tensor, model: Tensor) -> Tensor:
        """The gradient of the loss with respect to k W + b of the model: (batch, heads, length, value_dim)."""
        scale, shift = self.inner_scale.to(key.dtype), self.inner_shift.to(key.dtype)
        inner = _applied(key, model)
        size = torch.rsqrt(inner.var(-1, correction=0, keepdim=True) + EPSILON)
        normed = (inner - inner.mean(-1, keepdim=True)) * size
        error = (normed * scale + shift + key - value) * scale
        along = normed * (error * normed).mean(-1, keepdim=True)
        return (error - error.mean(-1, keepdim=True) - along) * size

    def _answer(self, query: Tensor, inner: Tensor) -> Tensor:
        normed = F.layer_norm(inner, inner.shape[-1:], eps=EPSILON)
        return query + normed * self.inner_scale.to(query.dtype) + self.inner_shift.to(query.dtype)


def _with_one(x: Tensor) -> Tensor:
    """Keys (…, d) with the input of the bias, (…, d + 1)."""
    return F.pad(x, (0, 1), value=1.0)


def _applied(x: Tensor, model: Tensor) -> Tensor:
    return x @ model[..., :-1, :] + model[..., -1:, :]
