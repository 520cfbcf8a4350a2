"""The weights of every attention of a translation model on a sentence pair, token by token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....tasks.translation.problem import EvaluationPairs
from ...measure.attention.view import AttentionView, numbered, view
from .attention import attention_weights
from .model import Transformer


def views_of_pair(
    model: Transformer, test: EvaluationPairs, source: Sequence[int], target: Sequence[int], device: torch.device
) -> tuple[AttentionView, ...]:
    """The views of each kind of attention and layer, with the target forced."""
    inside, outside = (numbered(test.pieces(ids)) for ids in (source, target))
    inputs = numbered(test.pieces([model.problem.begin, *target[:-1]]))
    sides = {"encoder": (inside, inside), "decoder": (outside, inputs), "cross": (outside, inside)}
    return tuple(
        view(kind, layer, weights, *sides[kind])
        for kind, each in attention_weights(model, source, target, device).items()
        for layer, weights in enumerate(each)
    )
