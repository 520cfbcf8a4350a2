"""Byte pairs: vocabularies that sentencepiece learns (Sennrich et al. 2016), and their place in the cache."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..contract import DataError, DataPlace
from .prepared import write_whole

"""Bytes of a model; one of 65,000 pieces has two million."""


def sentencepiece(instead: str = "") -> Any:
    """The library. Raises DataError that names the extra to install, and `instead`: another way out."""
    try:
        import sentencepiece as library
    except ModuleNotFoundError:
        raise DataError(f"subwords need sentencepiece: pip install 'attnbench[translation]'{instead}") from None
    return library


def learn_byte_pairs(sentences: Sequence[str], size: int, instead: str = "", **options: Any) -> bytes:
    """Learn a model of at most `size` pieces and return its bytes. The same sentences give the same bytes.

    Raises DataError where the size is too small; `instead` ends its message.
    """
    model = io.BytesIO()
    try:
        sentencepiece().SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=size,
            model_type="bpe",
            # no Unicode normalisation: decoded text must equal the original
            normalization_rule_name="identity",
            # small texts have fewer pairs than `size`, which is no error
            hard_vocab_limit=False,
            # order and threads could change the model from run to run
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


def cached_model(place: DataPlace, name: str, learn: Callable[[], bytes]) -> bytes:
    """The model of that name from the cache, learned if it is not there. Raises DataError if it cannot be written."""
    path = place.cache / "subwords" / f"{name}.model"
    with suppress(OSError, RuntimeError):
        found = path.read_bytes()
        # one that is damaged is learned anew, to the same bytes
        sentencepiece().SentencePieceProcessor(model_proto=found)
        return found
    model = learn()
    write_whole(path, model)
    return model
