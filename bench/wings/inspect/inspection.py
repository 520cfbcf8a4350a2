"""The weights of a trained model on chosen examples, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ....tasks.contract import Dataset
from ....tasks.problems.language_modeling import Windows
from ...core.decode import utf8
from ...core.errors import SelectionError
from ...measure.attention.recorder import Call, recording
from ...measure.attention.view import MOST_TOKENS, AttentionView, InspectsExamples, numbered, view
from ...models.blocks import Model
from ...models.decoder import Decoder
from ...train.objectives.registry import objective_for
from .generate import can_cache, sample
from .load_model import LoadedModel

CONTINUATION = 40
"""Tokens that a language model adds to a given text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedExample:
    """One example and its attention. `text`: the input and the output, as far as they are text."""

    name: str
    text: tuple[str, ...]
    views: tuple[AttentionView, ...]


def inspect_example(trained: LoadedModel, dataset: Dataset, example: int, device: torch.device) -> InspectedExample:
    """Example number `example` of the test split, with the target that it has. Raises SelectionError past the end."""
    test = dataset.test
    if not 0 <= example < len(test):
        raise SelectionError(f"expected an example from 0 to {len(test) - 1}, got {example}")
    name = f"test example {example}"
    objective = objective_for(trained.task.problem(), trained.recipe)
    if isinstance(objective, InspectsExamples):
        text, views = objective.inspect_example(trained.model, test, example, device)
        return InspectedExample(name=name, text=text, views=views)
    batch = objective.batch(test, np.array([example]), device)
    ids = batch[0][0, 0][: int(batch[1][0, 0])].tolist()
    if isinstance(test, Windows):
        pieces = [test.vocabulary.pieces[each] for each in ids]
        return InspectedExample(
            name=name, text=(_spelt(pieces),), views=_sequence(trained.model, batch[0], _letters(pieces))
        )
    return InspectedExample(name=name, text=(), views=_sequence(trained.model, batch, _labels(ids)))


def inspect_sentence(trained: LoadedModel, dataset: Dataset, sentence: str, device: torch.device) -> InspectedExample:
    """A given sentence and the output of the model: its translation, or the likeliest continuation.

    Raises SelectionError for a model that classifies, for no text at all, and for one that is not UTF-8.
    """
    test, model = dataset.test, trained.model
    if not sentence:
        raise SelectionError("expected a text of at least one byte, got none")
    text = utf8(sentence, "text")
    if isinstance(model, Decoder) and isinstance(test, Windows):
        return _continued(model, test, text, device)
    objective = objective_for(trained.task.problem(), trained.recipe)
    if isinstance(objective, InspectsExamples):
        texts, views = objective.inspect_sentence(model, test, sentence, device)
        return InspectedExample(name=sentence, text=texts, views=views)
    raise SelectionError(
        "only translation and language modelling take a text of your own; choose test examples by --example"
    )


def _continued(model: Decoder, windows: Windows, text: bytes, device: torch.device) -> InspectedExample:
    """A text, as far as the context reaches, and the likeliest continuation."""
    vocabulary = windows.vocabulary
    ids = vocabulary.encode(text)[: model.recipe.length].tolist()
    after = list(sample(model, ids, CONTINUATION, temperature=0.0, cached=can_cache(model)))
    pieces, added = ([vocabulary.pieces[each] for each in part] for part in (ids, after))
    views = _sequence(model, torch.tensor([[ids]], device=device), _letters(pieces))
    return InspectedExample(name=text.decode(), text=(_spelt(pieces), _spelt(added)), views=views)


@torch.inference_mode()
def _sequence(model: Model, batch: tuple[Tensor, ...] | Tensor, labels: tuple[str, ...]) -> tuple[AttentionView, ...]:
    """The attentions of a model over one sequence, or over ids (1, 1, length); none for a variant without weights."""
    found: list[Tensor] = []

    def record(_: int, call: Call) -> None:
        # of the queries that are shown only: a long sequence needs no N × N tensor
        weights = call.weights(slice(0, min(MOST_TOKENS, call.queries)))
        if weights is not None:
            found.append(weights[0].double().cpu())

    model.eval()
    with recording(model.variants, record):
        if isinstance(batch, Tensor):
            model(batch[:, 0])
        else:
            model.loss(batch)
    return tuple(view("self", layer, weights.numpy(), labels, labels) for layer, weights in enumerate(found))


def _letters(pieces: Sequence[bytes]) -> tuple[str, ...]:
    """Pieces of a text as they print; blanks and line ends by their signs, what does not print by hexadecimal numbers.

    >>> _letters([b"a", b" ", b"\\n", b" the", b"\\xc3"])
    ('1 a', '2 ␣', '3 ↵', '4 ␣the', '5 C3')
    """
    return numbered([_printed(piece) for piece in pieces])


def _printed(piece: bytes) -> str:
    shown = piece.decode(errors="replace").replace(" ", "␣").replace("\n", "↵")
    return shown if shown.isprintable() and "\N{REPLACEMENT CHARACTER}" not in shown else piece.hex().upper()


def _spelt(pieces: Sequence[bytes]) -> str:
    return b"".join(pieces).decode(errors="replace")


def _labels(ids: Sequence[int]) -> tuple[str, ...]:
    """Byte tokens as characters where these print, others as numbers."""
    return numbered([chr(each - 1) if 33 < each < 128 else str(each) for each in ids])
