"""Byte pairs: vocabularies that sentencepiece learns, kept in the cache."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...bench.core.errors import DataError
from ..contract import DataPlace
from .prepared import writing


def sentencepiece(instead: str = "") -> Any:
    """The library; without it raises DataError that says what to install, or what to do `instead`."""
    try:
        import sentencepiece as library
    except ModuleNotFoundError:
        raise DataError(f"subwords need sentencepiece: pip install 'attnbench[translation]'{instead}") from None
    return library


def learn_pairs(sentences: Sequence[str], size: int, instead: str = "", **options: Any) -> bytes:
    """The bytes of a model of at most `size` pieces; the same for the same sentences, in one thread.

    Text goes in as it is. Raises DataError, with what to do `instead`, where the size is too small.
    """
    model = io.BytesIO()
    try:
        sentencepiece().SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=size,
            model_type="bpe",
            normalization_rule_name="identity",
            hard_vocab_limit=False,
            shuffle_input_sentence=False,
            num_threads=1,
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        raise DataError(
            f"no vocabulary of {size:,} subwords can be learned from {len(sentences):,} lines: {error}{instead}"
        ) from None
    return model.getvalue()


def kept_model(place: DataPlace, name: str, learn: Callable[[], bytes]) -> bytes:
    """The model of that name, learned where the cache has none yet. Raises DataError where it cannot be written."""
    path = place.cache / "subwords" / f"{name}.model"
    if path.is_file():
        return path.read_bytes()
    model = learn()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, delete=False) as file:
            file.write(model)
        Path(file.name).replace(path)
    return model
