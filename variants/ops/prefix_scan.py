"""Softmax averages over prefixes and windows, in linear time and memory: the scan of the additive family.

A logit of `finfo.min` marks an entry that has no weight, and its value is zero; so a prefix without a weighted entry
averages to exactly zero and no mask has to travel along. Sums of exponentials are never formed on their own: every
partial result is a pair (log mass, mean), which merges by a softmax of the masses and neither overflows nor cancels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..contract import masked_softmax

PrefixSoftmax = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
_CHUNK = 32


def without(logits: Tensor, values: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits (…, length) and values (…, length, d) with no weight where `valid` (…, length) is False."""
    if valid is None:
        return logits, values
    lowest = torch.finfo(logits.dtype).min
    return logits.masked_fill(~valid, lowest), values.masked_fill(~valid[..., None], 0.0)


def prefix_softmax(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Log mass (…, length) and softmax average (…, length, d) of the entries up to each position.

    logits: (…, length), float32 or more; values: (…, length, d) of the same dtype. Chunks are weighed by small
    triangular matrices, and the chunks before them enter as one more entry, found by the same scan over chunks. No
    number of a later position enters an earlier one, not even through a maximum.
    """
    length, lowest = logits.shape[-1], torch.finfo(logits.dtype).min
    # a longer chunk wastes more of the triangle, a shorter one needs more levels
    size = min(_CHUNK, length)
    room = -length % size
    entry = F.pad(logits, (0, room), value=lowest).reshape(*logits.shape[:-1], (length + room) // size, size)
    value = F.pad(values, (0, 0, 0, room)).reshape(*entry.shape, values.shape[-1])
    # row i of a chunk is to see the entries up to i: the logits once for each row, as a view
    scores = entry[..., None, :].expand(*entry.shape, size)
    carried = int(entry.shape[-2] > 1)
    if carried:
        # a chunk as one entry: its log mass as logit and its average as value merge as if all entries stood there
        mass, mean = prefix_softmax(entry.logsumexp(-1), (entry.softmax(-1)[..., None, :] @ value).squeeze(-2))
        # each chunk gets what all before it come to; nothing stands before the first
        before = F.pad(mass[..., :-1], (1, 0), value=lowest)
        scores = torch.cat([before[..., None, None].expand(*entry.shape, 1), scores], -1)
        value = torch.cat([F.pad(mean[..., :-1, :], (0, 0, 1, 0))[..., None, :], value], -2)
    # the carried entry stands first and is seen by every row
    past = torch.ones(size, size + carried, dtype=torch.bool, device=logits.device).tril(carried)
    masses = scores.masked_fill(~past, lowest).logsumexp(-1)
    means = masked_softmax(scores, past) @ value
    return masses.flatten(-2)[..., :length], means.flatten(-3, -2)[..., :length, :]


def window_softmax(
    logits: Tensor, values: Tensor, window: int, prefixes: PrefixSoftmax = prefix_softmax
) -> tuple[Tensor, Tensor]:
    """Prefix softmax over the last `window` positions only, the own one among them.

    A window is the end of one block of `window` positions and the beginning of the next (van Herk 1992), so nothing is
    subtracted: the difference of two running sums, S_t - S_(t-W), loses all digits where the past outweighs the window.
    `prefixes` is what averages the prefixes: `prefix_softmax` or a fused form of it.
    """
    length, lowest = logits.shape[-1], torch.finfo(logits.dtype).min
    if window >= length:
        return prefixes(logits, values)
    room = -length % window
    entry = F.pad(logits, (0, room), value=lowest).reshape(*logits.shape[:-1], (length + room) // window, window)
    value = F.pad(values, (0, 0, 0, room)).reshape(*entry.shape, values.shape[-1])
    mass, mean = prefixes(entry, value)
    # from the end of each block: what its last entries come to
    late_mass, late_mean = prefixes(entry.flip(-1), value.flip(-2))
    # what the block before leaves to a position: its entries after the same position, so nothing at the last
    late_mass = F.pad(late_mass.flip(-1)[..., :-1, 1:], (0, 1, 1, 0), value=lowest)
    late_mean = F.pad(late_mean.flip(-2)[..., :-1, 1:, :], (0, 0, 0, 1, 1, 0))
    # both parts relative to their own mass, so that neither overflows
    total = torch.logaddexp(mass, late_mass)
    merged = mean * (mass - total).exp()[..., None] + late_mean * (late_mass - total).exp()[..., None]
    return total.flatten(-2)[..., :length], merged.flatten(-3, -2)[..., :length, :]


@dataclass(frozen=True, slots=True)
class Remembered:
    """The past as decoding keeps it: logits (batch, heads, entries) and values (batch, heads, entries, head_dim).

    Without a window all of the past is one entry, its log mass and its mean.
    """

    logits: Tensor
    values: Tensor


def extend(
    past: Remembered | None, logit: Tensor, value: Tensor, window: int | None = None
) -> tuple[Tensor, Remembered]:
    """The average with one more entry, (batch, heads, 1, head_dim), and what the next step needs.

    logit: (batch, heads, 1); value: (batch, heads, 1, head_dim).
    """
    logits = logit if past is None else torch.cat([past.logits, logit], -1)
    values = value if past is None else torch.cat([past.values, value], -2)
    # without a window these are two entries: the past and the new one
    mean = logits.softmax(-1)[..., None, :] @ values
    if window is None:
        return mean, Remembered(logits.logsumexp(-1, keepdim=True), mean)
    # one place is left for the entry of the next step
    start = max(0, logits.shape[-1] - window + 1)
    return mean, Remembered(logits[..., start:], values[..., start:, :])
