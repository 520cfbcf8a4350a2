"""Setting: a preset as a Record keeps it, in words that are true of its kind of problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CLASSIFYING = (
    "{layers} layers, width {width}, {heads} heads, feed-forward {feed_forward}",
    "{positions} positions, {pooling} pooling",
    "length {length}, batch {batch}, {steps:,} steps",
)

# recipes tell kinds apart by what only they have: a stride between windows, a beam
_PREDICTING = (
    "{layers} causal layers, width {width}, {heads} heads, feed-forward {feed_forward}",
    "{positions} positions (no table for a variant that brings its own), output tied to the embedding",
    "context {length}, judged in windows {stride} apart, batch {batch}, {steps:,} steps",
)
_TRANSLATING = (
    "{layers} + {layers} layers, {norm}-norm, width {width}, {heads} heads, feed-forward {feed_forward}",
    "{positions} positions, one vocabulary of at most {vocabulary:,}",
    "at most {length} tokens a sentence, batches of at most {tokens:,} a side, {steps:,} steps",
    "beam {beam}, length penalty {length_penalty:g}",
)

_TRAINING = (
    "learning rate {learning_rate:g}, {warmup:,} warm-up steps, {schedule} decay",
    "{precision}",
)


def setting_words(setting: Mapping[str, Any]) -> list[str]:
    """What a preset fixes, most telling first; a sentence that says so where not all of it was recorded.

    >>> setting_words({})
    ['no full setting was recorded']
    """
    kind = _PREDICTING if "stride" in setting else _TRANSLATING if "beam" in setting else _CLASSIFYING
    try:
        words = [part.format_map(setting) for part in (*kind, *_TRAINING)]
    except (KeyError, ValueError):
        return ["no full setting was recorded"]
    # absent from older Records, which were made before these were there
    if setting.get("accumulate", 1) > 1:
        words.append("{accumulate} batches to a step".format_map(setting))
    if setting.get("averaged", 1) > 1:
        words.append("the last {averaged} evaluated states averaged".format_map(setting))
    if setting.get("label_smoothing", 0) > 0:
        words.append("label smoothing {label_smoothing:g}".format_map(setting))
    return words
