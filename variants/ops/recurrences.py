"""Linear recurrences: a matrix as state that decays, forgets along keys and is written to, one equation for a family.

    S_t = D_t S_(t-1) + k_t^T (v_t - e_t D_t S_(t-1));  o_t = q_t S_t

S is (key_dim, value_dim), D_t = diag(exp(log_decay_t)). `recurrence_by_token` runs the equation as it stands, for one
token or many; `recurrence` is the same function chunk by chunk. Members, by what they put in:

| member | key, value | log_decay | erase e |
|---|---|---|---|
| linear attention without its denominator | k, v | none | none |
| RetNet, lightning attention | k, v | of each head, fixed | none |
| Mamba-2 (SSD) | k, t v | of each head, -A t | none |
| gated linear attention | k, v | of each channel | none |
| HGRN-2 | 1 - f, v | of each channel, ln f | none |
| DeltaNet, with a rate b | k, b v | none | b k |
| Gated DeltaNet; Kimi Delta Attention (KDA) | k, b v | of each head; of each channel | b k |
| Gated DeltaNet-2, with gates b and w of channels | k, w v | of each channel | b k |
| DeltaProduct: n steps a token | n keys and values a token | of the first step | b k of each |
| RWKV-7: S_t = (diag(w) - (a c)^T c) S_(t-1) + k^T v | a c, 0; then k, v | ln w; then 0 | c / w; then 0 |

Several steps a token are one sequence of steps: keys, values, decays and erasures are n times as many as queries, and a
query reads the state after the n-th step of its token. So a transition of rank n is n steps, and a write along another
key than the erasure is two. A step with a key of zero and no decay leaves the state as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..contract import SelectionError

# steps of a chunk of `recurrence`
CHUNK = 32


class Terms(NamedTuple):
    """The recurrence of a sequence: queries of `length` tokens, the rest of `steps` = n · length steps, n >= 1.

    query: (batch, heads, length, key_dim); key: (batch, heads, steps, key_dim); value: (batch, heads, steps,
    value_dim); log_decay <= 0: (batch, heads, steps), one decay of a head, or (batch, heads, steps, key_dim), -inf
    clears; erase: like the key. Without log_decay nothing decays, without erase nothing is erased. All of one dtype,
    float32 or float64. Where erase is b k, the states stay bounded for 0 <= b |k|^2 <= 2.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor | None = None
    erase: Tensor | None = None

    def without(self, absent: Tensor) -> Terms:
        """The same recurrence where tokens with True in `absent`, (batch, length), neither write nor decay nor erase.

        Their values have to be finite.
        """
        steps = absent.repeat_interleave(self.key.shape[2] // absent.shape[1], 1)[:, None]
        decay = self.log_decay
        if decay is not None:
            decay = decay.masked_fill(steps if decay.dim() == 3 else steps[..., None], 0.0)
        return self._replace(key=self.key.masked_fill(steps[..., None], 0.0), log_decay=decay)


def recurrence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None = None,
    erase: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The outputs (batch, heads, length, value_dim) and the state after the last step.

    The arguments are those of `Terms`, and `state` (batch, heads, key_dim, value_dim), that before the first step; None
    stands for zeros. A sequence may be cut anywhere: the state of the first part is what the second begins with.
    Differentiable in all six, as often as PyTorch's operators are. Raises SelectionError for shapes that do not fit.

    Inside a chunk everything is a product of matrices, and small products carry the state from chunk to chunk. An
    exponent is a sum of log decays and never a difference of two: it is at most 0, and no decay, however strong,
    overflows or blurs a weak one. Nothing after a position enters its output, not even by rounding. Erasures inside a
    chunk are the solution of one triangular system (the UT transform): Yang et al. 2024 (arXiv 2406.06484), section 3;
    decays of channels: Yang et al. 2023 (arXiv 2312.06635), section 4; both: Kimi Team 2025 (arXiv 2510.26692).
    """
    count = check_terms(query, key, value, log_decay, erase, state)
    # zero reads the state after the steps before the last of a token
    query = F.pad(query[:, :, :, None], (0, 0, count - 1, 0)).flatten(2, 3)
    steps = key.shape[2]
    # halved again and again where channels decay apart
    size = min(CHUNK, 1 << (steps - 1).bit_length())
    k, v = _chunks(key, size), _chunks(value, size)
    # both read what the state holds: the query for the output, the erasure for what is taken away
    readers = _chunks(query, size)[None] if erase is None else torch.stack([_chunks(query, size), _chunks(erase, size)])
    late, kept = k, k.new_ones(())
    if log_decay is None:
        scores = readers @ k.transpose(-2, -1)
    else:
        by_channel = log_decay.dim() == 4
        decay = _chunks(log_decay if by_channel else log_decay[..., None], size)
        since = decay.cumsum(-2)
        if by_channel:
            scores, late = _decayed(readers, k, decay), k * _until(decay).exp()
        else:
            # from each step to each later one
            between = decay.expand(*decay.shape[:-1], size).tril(-1).cumsum(-2)
            scores, late = readers @ k.transpose(-2, -1) * between.exp(), k * between[..., -1, :, None].exp()
        readers, kept = readers * since.exp(), since[..., -1, :, None].exp()
    scores, late = scores.tril(), late.transpose(-2, -1)
    state = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]) if state is None else state
    if erase is None:
        before, last = _carry(kept, late @ v, state)
        written = v
    else:
        # what a step writes is less by what earlier ones of the chunk wrote along its erasure
        solved = torch.linalg.solve_triangular(
            scores[1].tril(-1), torch.cat([v, readers[1]], -1), upper=False, unitriangular=True
        )
        written, erased = solved.split([v.shape[-1], k.shape[-1]], -1)
        # of a chunk as a whole: state -> turn @ state + late @ written
        turn = kept * torch.eye(k.shape[-1], dtype=k.dtype, device=k.device) - late @ erased
        before, last = _carry(turn, late @ written, state)
        written = written - erased @ before
    output = (readers[0] @ before + scores[0] @ written).flatten(2, 3)
    return output[:, :, count - 1 : steps : count], last


def recurrence_by_token(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None = None,
    erase: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`recurrence` step by step, as the equation stands: for decoding, and what other forms are compared with."""
    count = check_terms(query, key, value, log_decay, erase, state)
    state = key.new_zeros(*key.shape[:2], key.shape[-1], value.shape[-1]) if state is None else state
    outputs = []
    for step in range(key.shape[2]):
        if log_decay is not None:
            decay = log_decay[:, :, step].exp()
            state = decay.view(*decay.shape[:2], -1, 1) * state
        written = value[:, :, step, None]
        if erase is not None:
            written = written - erase[:, :, step, None] @ state
        state = state + key[:, :, step, :, None] * written
        if (step + 1) % count == 0:
            outputs.append(query[:, :, step // count, None] @ state)
    return torch.cat(outputs, 2), state


def check_terms(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    erase: Tensor | None,
    state: Tensor | None,
) -> int:
    """Steps a token. Raises SelectionError for shapes or dtypes that do not fit."""
    *lead, length, width = query.shape
    steps = key.shape[2]
    fits = steps >= length >= 1 and steps % length == 0 and key.shape == (*lead, steps, width)
    fits = fits and value.shape[:3] == key.shape[:3] and (erase is None or erase.shape == key.shape)
    fits = fits and (log_decay is None or log_decay.shape in (key.shape, key.shape[:3]))
    fits = fits and (state is None or state.shape == (*lead, width, value.shape[-1]))
    others = [x for x in (key, value, log_decay, erase, state) if x is not None]
    if not fits or any(x.dtype != query.dtype for x in others):
        names = ("query", "key", "value", "log_decay", "erase", "state")
        given = zip(names, (query, key, value, log_decay, erase, state), strict=True)
        got = ", ".join(f"{name} {tuple(x.shape)} {x.dtype}" for name, x in given if x is not None)
        raise SelectionError(
            "expected one dtype and query (batch, heads, length, key_dim), key and erase (batch, heads, n length, "
            "key_dim), value (batch, heads, n length, value_dim), log_decay like the key or without its last "
            f"dimension, state (batch, heads, key_dim, value_dim), got {got}"
        )
    return steps // length


def _carry(turn: Tensor, written: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """States before each chunk, (batch, heads, chunks, key_dim, value_dim), of S -> turn S + written, and the last.

    turn: one number, or (…, chunks, key_dim | 1, 1), a factor of each row, or (…, chunks, key_dim, key_dim), a matrix.
    """
    states = [state]
    # unbound, not indexed: the gradient of an index is a tensor of zeros as large as the whole, for each chunk
    turns = [turn] * written.shape[2] if turn.dim() == 0 else turn.unbind(2)
    for change, new in zip(turns, written.unbind(2), strict=True):
        state = (change * state if change.dim() == 0 or change.shape[-1] == 1 else change @ state) + new
        states.append(state)
    return torch.stack(states[:-1], 2), state


def _decayed(q: Tensor, k: Tensor, decay: Tensor) -> Tensor:
    """q_i diag(exp(sum of decay_t for j < t <= i)) k_j^T for i >= j, zeros above: (…, size, size), size a power of 2.

    The late half of a run reads the early half relative to the border between them, so that all exponents are sums of
    decays; each half is a run again.
    """
    size = q.shape[-2]
    if size == 1:
        # a step reads what it has just written, undecayed
        return (q * k).sum(-1, keepdim=True)
    half = size // 2
    # both halves have the same shape, so that one call makes both
    first, second = _decayed(*(torch.unflatten(x, -2, (2, half)) for x in (q, k, decay))).unbind(-3)
    late = q[..., half:, :] * decay[..., half:, :].cumsum(-2).exp()
    early = k[..., :half, :] * _until(decay[..., :half, :]).exp()
    across = late @ early.transpose(-2, -1)
    return torch.cat([F.pad(first, (0, half)), torch.cat([across, second], -1)], -2)


def _until(decay: Tensor) -> Tensor:
    """The sums of the decays behind each step up to the last, (…, size, d)."""
    behind = F.pad(decay[..., 1:, :], (0, 0, 0, 1))
    return behind.flip(-2).cumsum(-2).flip(-2)


def _chunks(x: Tensor, size: int) -> Tensor:
    """(batch, heads, steps, d) -> (batch, heads, chunks, size, d); zeros at the end neither write nor decay."""
    return torch.unflatten(F.pad(x, (0, 0, 0, -x.shape[2] % size)), 2, (-1, size))
