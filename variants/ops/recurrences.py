"""Linear recurrences with a matrix as state, chunk by chunk: the gated one, the delta rule, and variants of them.

Inside a chunk everything is a product of matrices; a state (head_dim, value_dim) is handed from chunk to chunk, one
small product each, so that nothing runs token by token. All exponents are sums of log decays between two positions of
which the later one comes second, at most 0: no decay, however strong, overflows. Nothing after a position enters its
output, not even by rounding.

Density counts the scores inside chunks and what is read from and written to states, (head_dim) each, as if all were
scores.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, SelectionError, Unsupported, Variant, accumulator, repeat_heads

_CHUNK = 32


def gated_linear(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor) -> Tensor:
    """o_t = q_t S_t with S_t = diag(exp(log_decay_t)) S_(t-1) + k_t^T v_t, from S = 0.

    query, key, log_decay: (batch, heads, length, head_dim), log_decay <= 0; value: (batch, heads, length, value_dim);
    float32 or more. Returns (batch, heads, length, value_dim). Yang et al. 2024 (arXiv 2312.06635), section 4.
    """
    length = query.shape[2]
    size = min(_CHUNK, 1 << (length - 1).bit_length())
    q, k, v, decay = (_chunks(x, size) for x in (query, key, value, log_decay))
    # from the beginning of the chunk to each position, and from each position to the end
    since = decay.cumsum(-2)
    until = since[..., -1:, :] - since
    before = _carry(since[..., -1, :, None].exp(), (k * until.exp()).transpose(-2, -1) @ v)
    output = (q * since.exp()) @ before + _within(q, k, v, since)
    return output.flatten(2, 3)[:, :, :length]


def scalar_decay(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor) -> Tensor:
    """Gated linear attention with one decay for all dimensions, log_decay <= 0 (batch, heads, length).

    Inside a chunk the decays then are a matrix that multiplies the scores: Dao & Gu 2024 (arXiv 2405.21060), section 6.
    """
    length = query.shape[2]
    size = min(_CHUNK, length)
    q, k, v, decay = (_chunks(x, size) for x in (query, key, value, log_decay[..., None]))
    since = decay.cumsum(-2)
    # from each position to each later one, summed apart: a difference of two long sums would have their rounding
    between = decay.expand(*decay.shape[:-1], size).tril(-1).cumsum(-2)
    future = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
    written = (k * between[..., -1, :, None].exp()).transpose(-2, -1) @ v
    before = _carry(since[..., -1:, :].exp(), written)
    scores = (q @ k.transpose(-2, -1) * between.exp()).masked_fill(future, 0.0)
    output = (q * since.exp()) @ before + scores @ v
    return output.flatten(2, 3)[:, :, :length]


def delta_rule(query: Tensor, key: Tensor, value: Tensor, rate: Tensor, log_decay: Tensor | None = None) -> Tensor:
    """o_t = q_t S_t with S_t = (1 - r_t k_t^T k_t) a_t S_(t-1) + r_t k_t^T v_t, from S = 0; a_t = exp(log_decay_t).

    query, key: (batch, heads, length, head_dim), keys at most 1 long; value: (batch, heads, length, value_dim); rate
    in [0, 2] and log_decay <= 0: (batch, heads, length), log_decay None = none; float32 or more. Returns (batch, heads,
    length, value_dim). The product of a chunk's reflections is the solution of one triangular system (the UT
    transform): Yang et al. 2024 (arXiv 2406.06484), section 3; with a decay, Yang et al. 2024 (arXiv 2412.06464).
    log_decay (batch, heads, length, head_dim) decays each row of the state by itself, diag(a_t) in the place of a_t:
    Kimi Team 2025 (arXiv 2510.26692).
    """
    length = query.shape[2]
    by_channel = log_decay is not None and log_decay.dim() == query.dim()
    # halved again and again where channels decay apart
    size = min(_CHUNK, 1 << (length - 1).bit_length() if by_channel else length)
    q, k, v = (_chunks(x, size) for x in (query, key, value))
    r = _chunks(rate[..., None], size)
    # the state is read by what each key holds already, so all that is written is taken times the rate
    inside, scores, written, read = k @ k.transpose(-2, -1), q @ k.transpose(-2, -1), r * v, r * k
    kept = k.new_ones(())
    late = k
    if log_decay is not None:
        since = _chunks(log_decay if by_channel else log_decay[..., None], size).cumsum(-2)
        if by_channel:
            inside, scores = _decayed(torch.stack([k, q]), k, since).unbind()
        else:
            future = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
            # masked before exp: a strong decay after a position must not overflow
            between = (since - since.transpose(-2, -1)).masked_fill(future, -torch.inf).exp()
            inside, scores = inside * between, scores * between
        q, read, late = q * since.exp(), read * since.exp(), k * (since[..., -1:, :] - since).exp()
        kept = since[..., -1:, :].transpose(-2, -1).exp()
    # what a position writes is less by what earlier ones of the chunk wrote along its key
    solved = torch.linalg.solve_triangular(
        (r * inside).tril(-1), torch.cat([written, read], -1), upper=False, unitriangular=True
    )
    written, read = solved.split([v.shape[-1], k.shape[-1]], -1)
    late = late.transpose(-2, -1)
    # of a chunk as a whole: state -> turn @ state + late @ written
    turn = kept * torch.eye(k.shape[-1], dtype=k.dtype, device=k.device) - late @ read
    before = _carry(turn, late @ written)
    output = q @ before + scores.tril() @ (written - read @ before)
    found: Tensor = output.flatten(2, 3)[:, :, :length]
    return found


class RecurrentVariant(Variant):
    """A variant that reads a state (heads, head_dim, head_dim), written token by token; a subclass defines how.

    Causal only: a recurrence over the past has no form that sees both sides. There is no weight matrix, hence no
    dropout on it. Padded keys neither write nor decay. Each head's output is divided by its root mean square, with a
    scale for each dimension that the heads share, as in the released codes.
    """

    uses_dropout = False
    crosses: ClassVar = False
    takes_hidden = True
    time: ClassVar = "O(N d^2)"
    memory: ClassVar = "O(N d + N d^2 / 32)"

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        self.norm = nn.Parameter(torch.ones(shape.head_dim))

    def recur(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor, hidden: Tensor) -> Tensor:
        """The output of each query: what it reads of the state after its own token, (batch, heads, length, head_dim).

        query, key, value: (batch, heads, length, head_dim) and hidden (batch, length, hidden_width), float32 or more;
        real: (batch, length), False = padded.
        """
        raise TypeError(f"{type(self).__name__} defines no recur(query, key, value, real, hidden)")

    def advance(self, key: Tensor, value: Tensor, state: Tensor, hidden: Tensor) -> Tensor:
        """The state (batch, heads, head_dim, head_dim) after one more token, (batch, heads, 1, head_dim)."""
        raise TypeError(f"{type(self).__name__} defines no advance(key, value, state, hidden)")

    def read(self, query: Tensor) -> Tensor:
        """The query as it meets the state."""
        return query

    def finish(self, output: Tensor, hidden: Tensor) -> Tensor:
        """The output of each head, normalised; hidden: (batch, length, hidden_width)."""
        return F.rms_norm(output, output.shape[-1:], self.norm.to(output.dtype), eps=1e-5)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor) -> Tensor:  # type: ignore[override]
        queries, keys = query.shape[2], key.shape[2]
        if not mask.causal or queries != keys:
            name = type(self).__name__
            raise Unsupported(f"{name}: expected a causal mask over one sequence, got {queries} queries, {keys} keys")
        dtype = accumulator(query.dtype)
        query, key, states, hidden = query.to(dtype), key.to(dtype), value.to(dtype), hidden.to(dtype)
        output = self.recur(query, key, states, mask.real(key), hidden)
        return self.finish(output, hidden).to(value.dtype)

    def supports(self, shape: AttentionShape) -> str | None:
        refused = super().supports(shape)
        if refused is None and not shape.causal:
            return "it is a recurrence over the past, so it needs the causal form"
        return refused

    def density(self, shape: AttentionShape) -> float:
        length = shape.max_length
        computed = length * min(_CHUNK, length) + 2 * length * shape.head_dim
        return min(1.0, 2 * computed / (length * (length + 1)))

    def state_bytes(self, shape: AttentionShape) -> int:
        itemsize = accumulator(getattr(torch, shape.dtype)).itemsize
        return shape.heads * shape.head_dim**2 * itemsize

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Tensor | None = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if hidden is None:
            raise SelectionError(f"{type(self).__name__} takes the hidden state: expected hidden, got None")
        key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
        dtype = accumulator(query.dtype)
        q, k, v, x = (each.to(dtype) for each in (query, key, value, hidden))
        if state is None:
            state = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
        state = self.advance(k, v, state, x)
        return self.finish(self.read(q) @ state, x).to(value.dtype), state


def projected(linear: nn.Linear, hidden: Tensor) -> Tensor:
    """`linear` of the hidden state, (batch, length, hidden_width) -> (batch, length, out), in the dtype of `hidden`."""
    bias = None if linear.bias is None else linear.bias.to(hidden.dtype)
    return F.linear(hidden, linear.weight.to(hidden.dtype), bias)


def _carry(turn: Tensor, written: Tensor) -> Tensor:
    """States before each chunk, (batch, heads, chunks, head_dim, value_dim), of S -> turn S + written, from S = 0.

    turn: (…, chunks, head_dim, 1), a factor of each row, or (…, chunks, head_dim, head_dim), a matrix.
    """
    state = torch.zeros_like(written[:, :, 0])
    states = [state]
    # unbound, not indexed: the gradient of an index is a tensor of zeros as large as the whole, for each chunk
    for change, new in zip(turn.unbind(2)[:-1], written.unbind(2)[:-1], strict=True):
        state = (change * state if change.shape[-1] == 1 else change @ state) + new
        states.append(state)
    return torch.stack(states, 2)


def _within(q: Tensor, k: Tensor, v: Tensor, since: Tensor) -> Tensor:
    """The output of positions from their own run alone, (…, size, value_dim), size a power of 2.

    `since`: cumulated log decays. The late half of a run reads the early half relative to the border between them, so
    that both exponents are at most 0; each half is a run again.
    """
    size = q.shape[-2]
    if size == 1:
        # a position reads what it has just written, undecayed
        return (q * k).sum(-1, keepdim=True) * v
    halves = [torch.unflatten(x, -2, (2, size // 2)) for x in (q, k, v, since)]
    own = _within(*halves)
    (_, late_q), (early_k, _), (early_v, _), (early, late) = (x.unbind(-3) for x in halves)
    border = early[..., -1:, :]
    scores = (late_q * (late - border).exp()) @ (early_k * (border - early).exp()).transpose(-2, -1)
    first, second = own.unbind(-3)
    return torch.cat([first, second + scores @ early_v], -2)


def _decayed(q: Tensor, k: Tensor, since: Tensor) -> Tensor:
    """q_i diag(exp(since_i - since_j)) k_j^T for i >= j, zeros above: (…, size, size), size a power of 2.

    As `_within`, but the scores themselves, which the triangular system of the delta rule needs.
    """
    size = q.shape[-2]
    if size == 1:
        return (q * k).sum(-1, keepdim=True)
    half = size // 2
    # both halves have the same shape, so that one call makes both
    first, second = _decayed(*(torch.unflatten(x, -2, (2, half)) for x in (q, k, since))).unbind(-3)
    border = since[..., half - 1 : half, :]
    late, early = since[..., half:, :] - border, border - since[..., :half, :]
    across = (q[..., half:, :] * late.exp()) @ (k[..., :half, :] * early.exp()).transpose(-2, -1)
    return torch.cat([F.pad(first, (0, half)), torch.cat([across, second], -1)], -2)


def _chunks(x: Tensor, size: int) -> Tensor:
    """(batch, heads, length, d) -> (batch, heads, chunks, size, d); zeros at the end neither write nor decay."""
    return torch.unflatten(F.pad(x, (0, 0, 0, -x.shape[2] % size)), 2, (-1, size))
