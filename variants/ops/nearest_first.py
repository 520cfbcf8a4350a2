"""The choice of the highest scores of each row, in which the last of equal ones come first."""

from __future__ import annotations

import torch
from torch import Tensor


def highest(scores: Tensor, allowed: Tensor | None, k: int) -> Tensor:
    """Boolean like `scores`, (…, keys): the k highest of each row, or all that are allowed where they are no more.

    Of equal scores the last positions are taken, whatever a kernel's order: a query then chooses the same keys in
    decoding as in the whole sequence. `allowed` broadcasts to the scores; None = all. Passes no gradient.
    """
    visible = scores.detach()
    if allowed is not None:
        visible = visible.masked_fill(~allowed, -torch.inf)
    least = visible.topk(min(k, scores.shape[-1]), sorted=False).values.amin(-1, keepdim=True)
    above, equal = visible > least, visible == least
    room = k - above.sum(-1, keepdim=True)
    # how many equal ones stand from here to the end
    behind = equal.flip(-1).cumsum(-1).flip(-1)
    kept = above | (equal & (behind <= room))
    return kept if allowed is None else kept & allowed
