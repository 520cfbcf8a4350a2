"""Token ids in the memory of a GPU, from which batches are gathered there."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...tasks.contract import BatchLayout, Ids, Subset, TokenRows, Whole
from .device import move

SHARE = 0.05
"""Of the memory that is free: so much a model never misses, and of 80 GB it is more than any text here has."""


class DeviceTokens:
    """A copy of the token ids of a split on `device`, two bytes each."""

    def __init__(self, tokens: Ids, device: torch.device):
        self.device = device
        # as signed numbers, since torch indexes no unsigned ones of 16 bits; the same bits, read back by a mask
        held = np.array(tokens, dtype=np.uint16).view(np.int16)
        self.tokens = torch.from_numpy(held).to(device)

    @staticmethod
    def fit(subset: Subset, device: torch.device) -> bool:
        """Whether the tokens of `subset` take at most SHARE of the free memory, and are laid out as they lie there."""
        if type(subset).batch is not Subset.batch:
            # a task may make its batches in a way of its own
            return False
        free, _ = torch.cuda.mem_get_info(device)
        return 2 * len(subset.split.tokens) <= SHARE * free

    def read(self, layout: BatchLayout) -> tuple[Tensor, Tensor, Tensor]:
        """The batch that `layout.read` gives on the host: ids, lengths and labels, int64."""
        tables = [layout.ids] + ([layout.labels] if isinstance(layout.labels, TokenRows) else [])
        numbers = [part for table in tables for part in _parts(table)]
        if not isinstance(layout.labels, TokenRows):
            numbers.append(np.asarray(layout.labels, dtype=np.int64))
        # one copy for all that the host has to say about a batch
        (joined,) = move((torch.from_numpy(np.concatenate(numbers)),), self.device)
        parts = list(torch.split(joined, [len(part) for part in numbers]))
        lengths = parts[1].view(-1, layout.towers)
        found = [self._table(table, parts) for table in tables]
        labels = found[1] if len(found) > 1 else parts.pop(0)
        return found[0].view(-1, layout.towers, layout.ids.width), lengths, labels

    def _table(self, rows: TokenRows, parts: list[Tensor]) -> Tensor:
        """(rows, width), from the first of `parts`, which it takes."""
        starts, lengths = parts.pop(0)[:, None], parts.pop(0)[:, None]
        skipped = parts.pop(0)[:, None] if rows.skipped is not None else None
        places = torch.arange(rows.width, device=self.device)
        # where a row ends before the table does, what stands behind it is read and then cleared
        at = (starts + places).clamp_(max=max(len(self.tokens) - 1, 0))
        ids = (self.tokens[at] if len(self.tokens) else torch.zeros_like(at)).long() & 0xFFFF
        if rows.real() is None:
            return ids
        real = places < lengths
        return ids * (real if skipped is None else real & (places >= skipped))


def _parts(rows: TokenRows) -> list[Whole]:
    return [rows.starts, rows.lengths] + ([rows.skipped] if rows.skipped is not None else [])
