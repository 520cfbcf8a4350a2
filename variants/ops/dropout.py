"""Dropout of attention weights by a mask that is computed, never stored: a function of (seed, batch, head, query, key).

A fused kernel makes its part of the mask in the forward, and again in the backward; the eager form makes the same one.
The mask depends on nothing else: not on tiles, threads, the number of keys, padding, or how many heads share a key.

Definition. The pair (query i, key j) of head h of sequence b, counted from 0 in the tensors of the call and h among the
heads of the queries, takes 16 bits of one Philox block:

    words = Philox4x32-7(counter = (j // 8, i, h, b), key = (seed mod 2^32, seed // 2^32))
    bits  = 16 bits of words[j % 8 // 2], the low half where j is even, the high half where j is odd
    kept  = bits >= threshold, threshold = round(2^16 rate)

Kept weights are multiplied by 2^16 / (2^16 - threshold), so the mean is kept exactly; the rate itself is a multiple of
2^-16. Eight keys share a block, since a block costs more than the rest of a tile of rectified scores.

Philox: Salmon, Moraes, Dror & Shaw 2011, Parallel random numbers: as easy as 1, 2, 3. Seven rounds are the fewest at
which Philox4x32 passes BigCrush there (table 2). FlashAttention takes seven as well. In Triton it is
`tl.philox(seed, j // 8, i, h, b, n_rounds=7)` with counters of 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDS = 7
KEYS_PER_BLOCK = 8
LEVELS = 2**16
_LOW = 2**32 - 1
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def threshold(rate: float) -> int:
    """The number of the 65,536 values of 16 bits that drop a weight: all of them at a rate of 1."""
    return round(rate * LEVELS)


def kept_scale(rate: float) -> float:
    """The factor of the weights that are kept; 0 where none is."""
    kept = LEVELS - threshold(rate)
    return LEVELS / kept if kept else 0.0


def draw_seed(device: torch.device) -> Tensor:
    """A seed below 2^63 from torch's generator of `device`: int64, no dimension, on `device`.

    A tensor, so that the host waits for nothing, and a CUDA graph draws anew each time it is replayed.
    """
    return torch.randint(2**63 - 1, (), device=device)


def philox(seed: Tensor, counter: Words, rounds: int = ROUNDS) -> Words:
    """Philox4x32 of `counter`, four int64 tensors of 32-bit numbers, broadcast; so are the four words returned."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _LOW, seed >> 32 & _LOW
    for _ in range(rounds):
        # of a product that leaves 63 bits int64 keeps the right ones; the shift brings in its sign, which goes
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = _mixed(second, c1, k0), _mixed(first, c3, k1)
        # only their low halves are numbers of this round, and nothing reads the others
        c1, c3 = second, first
        k0, k1 = k0 + _WEYL[0] & _LOW, k1 + _WEYL[1] & _LOW
    return c0, c1 & _LOW, c2, c3 & _LOW


def _mixed(product: Tensor, other: Tensor, key: Tensor) -> Tensor:
    """The high half of a product of 64 bits, with the low halves of both others, exclusive or."""
    found = product >> 32
    # the first rounds broadcast, the others are most of the work
    if found.shape == other.shape:
        return found.bitwise_xor_(other).bitwise_xor_(key).bitwise_and_(_LOW)
    return (found ^ (other ^ key)).bitwise_and_(_LOW)


def kept_pairs(seed: Tensor, rate: float, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Boolean: True if the weights of these pairs are kept. The four numbers are int64 tensors, broadcast.

    It computes a block for each pair; `keep_mask` computes one for eight keys.
    """
    # after seven rounds each word depends on all of the counter, so all have the shape that the four broadcast to
    words = torch.stack(philox(seed, (key // KEYS_PER_BLOCK, query, head, batch)), -1)
    piece = (key % KEYS_PER_BLOCK).expand(words.shape[:-1])
    word = words.take_along_dim(piece[..., None] // 2, -1)[..., 0]
    return (word >> piece % 2 * 16 & LEVELS - 1) >= threshold(rate)


def keep_rows(
    seed: Tensor, rate: float, batch: Tensor, head: Tensor, query: Tensor, keys: int, first: Tensor | None = None
) -> Tensor:
    """True for the weights of `keys` keys that are kept, of these queries, from key 0 or `first` on: (…, keys).

    The four numbers are int64 tensors, broadcast to (…).
    """
    # keys that begin inside a block end in one more
    blocks = torch.arange(-(-keys // KEYS_PER_BLOCK) + (first is not None), device=seed.device)
    if first is not None:
        blocks = first[..., None] // KEYS_PER_BLOCK + blocks
    words = philox(seed, (blocks, query[..., None], head[..., None], batch[..., None]))
    pairs = torch.empty(*words[0].shape, len(words), dtype=torch.int32, device=seed.device)
    for at, word in enumerate(words):
        pairs[..., at] = word
    # both halves of a word at once, low before high; with the first bit turned their order is that of signed numbers
    halves = pairs.view(torch.int16).bitwise_xor_(-(2**15)).flatten(-2)
    least = threshold(rate)
    # no number of 16 bits lies below the least of them
    kept = halves > least - 1 - 2**15 if least else torch.ones_like(halves, dtype=torch.bool)
    if first is None:
        return kept[..., :keys]
    places = (first % KEYS_PER_BLOCK)[..., None] + torch.arange(keys, device=seed.device)
    return kept.gather(-1, places.expand(*kept.shape[:-1], keys))


def by_sequence(made: Callable[[Tensor], Tensor], batch: int, device: torch.device) -> Tensor:
    """The results of `made` for all sequences, joined along the first dimension; it takes their numbers, (n,) int64.

    On a CPU it gets one after the other: its temporary tensors then stay in caches, and the system need not clear
    fresh memory for each, which took most of the time where they were larger than 32 MiB.
    """
    sequences = torch.arange(batch, device=device)
    if batch < 2 or device.type != "cpu" or torch.compiler.is_compiling():
        return made(sequences)
    return torch.cat([made(sequences[at : at + 1]) for at in range(batch)])


def keep_mask(seed: Tensor, rate: float, batch: int, heads: int, queries: int, keys: int) -> Tensor:
    """The mask of all pairs, Boolean (batch, heads, queries, keys), on the device of `seed`; True = kept."""
    head, query = (torch.arange(count, device=seed.device) for count in (heads, queries))
    return by_sequence(
        lambda one: keep_rows(seed, rate, one[:, None, None], head[:, None], query, keys), batch, seed.device
    )


def drop_by_seed(weights: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Weights (batch, heads, queries, keys) after dropout at `rate` by the mask of `seed`."""
    batch, heads, queries, keys = weights.shape
    return KeptPairs(keep_mask(seed, rate, batch, heads, queries, keys), kept_scale(rate)).apply(weights)


@dataclass(frozen=True, slots=True)
class KeptPairs:
    """The weights (…, queries, keys) that are kept, True = kept, and their factor; made of a `WeightDropout`."""

    mask: Tensor
    scale: float

    def apply(self, weights: Tensor) -> Tensor:
        """Weights after dropout; one that is no number stays so."""
        return weights * self.mask.to(weights.dtype).mul_(self.scale)


@dataclass(frozen=True, slots=True)
class WeightDropout:
    """Dropout of the attention weights in one forward: its rate, and the seed of the mask, as `draw_seed` draws it."""

    rate: float
    seed: Tensor

    @classmethod
    def drawn(cls, rate: float, device: torch.device) -> WeightDropout | None:
        """Draw a seed now; None at rate 0, where nothing is drawn."""
        return None if rate == 0.0 else cls(rate, draw_seed(device))

    def kept(self, batch: int, heads: int, query: Tensor, keys: int, first: Tensor | None = None) -> KeptPairs:
        """The pairs of queries with `keys` keys, from key 0 or `first` on, (batch, heads, …, keys).

        query, first: numbers, int64, broadcast to (heads | 1, …).
        """
        device = self.seed.device
        behind = (1,) * (query.dim() if first is None else max(query.dim(), first.dim()))
        head = torch.arange(heads, device=device).view(-1, *behind[1:])
        mask = by_sequence(
            lambda one: keep_rows(self.seed, self.rate, one.view(-1, *behind), head, query, keys, first), batch, device
        )
        return KeptPairs(mask, kept_scale(self.rate))

    def apply(self, weights: Tensor) -> Tensor:
        """Weights (batch, heads, queries, keys) after dropout."""
        return drop_by_seed(weights, self.rate, self.seed)
