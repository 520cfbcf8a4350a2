"""Softmax with a floor: what does not reach a share of the mean weight is dropped."""

from torch import Tensor

from attnbench.variants.contract import AttentionShape, ScoredVariant, masked_softmax


class Floor(ScoredVariant):
    """Softmax attention whose smallest weights are exactly zero."""

    equation = "P' = max(softmax(S) - floor / keys, 0), normalised; O = P' V"
    paper = "not published"

    def __init__(self, shape: AttentionShape, *, floor: float = 0.5):
        super().__init__(shape)
        self.floor = floor

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        keys = scores.shape[-1] if allowed is None else allowed.sum(-1, keepdim=True, dtype=scores.dtype).clamp(min=1)
        kept = (masked_softmax(scores, allowed) - self.floor / keys).relu()
        return kept / kept.sum(-1, keepdim=True).clamp(min=1e-9)
