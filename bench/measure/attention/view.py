"""Views: the attention weights of a model on one example, with its tokens as text, as a page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from ....tasks.contract import Subset
from ...models.blocks import Model

MOST_TOKENS = 48
"""Tokens of a side that are shown; more do not fit on a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionView:
    """Weights (heads, queries, keys) of one layer on one example, with the tokens as text."""

    attention: str
    layer: int
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: npt.NDArray[np.float64]


@runtime_checkable
class InspectsExamples(Protocol):
    """An objective whose model has several kinds of attention, so that it shows its examples itself."""

    def inspect_example(
        self, model: Model, test: Subset, example: int, device: torch.device
    ) -> tuple[tuple[str, ...], tuple[AttentionView, ...]]:
        """The text and the views of a test example, with the target that it has."""

    def inspect_sentence(
        self, model: Model, test: Subset, sentence: str, device: torch.device
    ) -> tuple[tuple[str, ...], tuple[AttentionView, ...]]:
        """The text and the views of a given sentence and of what the model puts out."""


def view(
    attention: str, layer: int, weights: npt.NDArray[np.float64], queries: tuple[str, ...], keys: tuple[str, ...]
) -> AttentionView:
    """The first MOST_TOKENS of each side."""
    queries, keys = queries[:MOST_TOKENS], keys[:MOST_TOKENS]
    shown = weights[:, : len(queries), : len(keys)]
    return AttentionView(attention=attention, layer=layer, queries=queries, keys=keys, weights=shown)


def numbered(tokens: Sequence[str]) -> tuple[str, ...]:
    """Tokens with their positions, since labels of a chart must differ.

    >>> numbered(["a", "b"])
    ('1 a', '2 b')
    """
    return tuple(f"{place} {token}" for place, token in enumerate(tokens, start=1))
