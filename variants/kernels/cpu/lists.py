"""Lists of tiles: which keys each query sees, for patterns that are no interval, in the order in which kernels go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

# queries of a block and keys of a tile, which is one word of bits
BLOCK = 64

Lists = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SeenTiles:
    """The tiles of a pattern, once by blocks of queries and once by blocks of keys, for the backward.

    Each is: offsets (patterns · blocks + 1) int32, where the tiles of a block begin; tiles (n) int32, which; words
    (n, 64) int64, for each row of the block the entries of the tile that are seen, the first in the lowest bit. order:
    (keys), which key lies at each place, so that those seen together share tiles; None where they lie as they came.
    """

    by_queries: Lists
    by_keys: Lists
    keys: int
    order: Tensor | None

    @classmethod
    def of(cls, visible: Callable[[Tensor], Tensor], queries: int, keys: int, order: Tensor | None = None) -> SeenTiles:
        """The lists of `visible(rows)`: Boolean (patterns, rows, keys) for some of the `queries`, by number."""
        blocks, tiles = -(-queries // BLOCK), -(-keys // BLOCK)
        places, by_rows, by_columns = [], [], []
        # block by block: nothing of queries × keys in memory
        for block in range(blocks):
            rows = torch.arange(block * BLOCK, min((block + 1) * BLOCK, queries))
            part = visible(rows) if order is None else visible(rows)[..., order]
            patterns = len(part)
            part = F.pad(part, (0, tiles * BLOCK - keys, 0, BLOCK - len(rows)))
            part = part.view(patterns, BLOCK, tiles, BLOCK).transpose(1, 2)
            pattern, tile = part.flatten(2).any(-1).nonzero(as_tuple=True)
            seen = part[pattern, tile]
            places.append(torch.stack([pattern, torch.full_like(pattern, block), tile]))
            by_rows.append(_words(seen)[..., 0])
            by_columns.append(_words(seen.transpose(1, 2))[..., 0])
        pattern, block, tile = torch.cat(places, 1)
        return cls(
            by_queries=_sorted(torch.cat(by_rows), pattern * blocks + block, tile, patterns * blocks),
            by_keys=_sorted(torch.cat(by_columns), pattern * tiles + tile, block, patterns * tiles),
            keys=keys,
            order=order,
        )

    def real(self, valid: Tensor | None, batch: int) -> Tensor:
        """Bits of the keys that are real, (batch, tiles of keys); `valid` (batch | 1, keys) as in a Mask."""
        shown = torch.ones(1, self.keys, dtype=torch.bool) if valid is None else valid
        shown = shown if self.order is None else shown[:, self.order]
        return _words(F.pad(shown, (0, -self.keys % BLOCK))).expand(batch, -1).contiguous()


def _sorted(words: Tensor, block: Tensor, tile: Tensor, blocks: int) -> Lists:
    """Lists of tiles, words (n, 64), in the order of their blocks and then of the tiles."""
    order = tile.argsort(stable=True)
    order = order[block[order].argsort(stable=True)]
    offsets = F.pad(torch.bincount(block, minlength=blocks).cumsum(0), (1, 0))
    return offsets.int(), tile[order].int(), words[order].contiguous()


def _words(bits: Tensor) -> Tensor:
    """Boolean (…, n · 64) to int64 (…, n), the first in the lowest bit."""
    packed = np.packbits(bits.contiguous().numpy(), axis=-1, bitorder="little")
    return torch.from_numpy(packed.view("<i8"))
