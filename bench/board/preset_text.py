"""Preset text: a preset as a Record keeps it, as a sentence that fits the objective of the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.spec import Spec
from ..store.learning_rates import RATE_SETTINGS
from ..store.problems import problem_of

_TRAINING = (
    "learning rate {rates}, {warmup:,} warm-up steps, {schedule} decay",
    "{precision}",
)


# absent from older Records, which were made before these were there: the smallest value that is no change, the text
_OPTIONAL = {
    "accumulate": (1, "{accumulate} batches to a step"),
    "averaged": (1, "the last {averaged} evaluated states averaged"),
    "label_smoothing": (0, "label smoothing {label_smoothing:g}"),
    "clip_value": (0, "entries of gradients clipped at {clip_value:g}"),
    "convolution": (0, "a causal convolution of width {convolution} over the embeddings"),
}


def short_preset(preset: str) -> str:
    """A preset for a heading; of many changed settings those that change the model or the data, or their number.

    >>> short_preset("quick[positions=rope,rate_extensions=2,tuning_seeds=2]")
    'quick[positions=rope,…]'
    >>> short_preset("quick[learning_rate=0.004]"), short_preset("quick[batch=64,length=64,steps=300]")
    ('quick[learning_rate=0.004]', 'quick with 3 settings changed')
    """
    spec, rest = Spec.parse(preset), beside_rates(preset)
    named = f"[{','.join(rest)},…]" if 0 < len(rest) <= 2 else f" with {len(spec.parameters)} settings changed"
    return preset if len(spec.parameters) <= 2 else spec.name + named


def beside_rates(preset: str) -> list[str]:
    """The settings of a preset as text, without those by which the learning rate was chosen: they change no model."""
    given = preset.partition("[")[2].removesuffix("]").split(",")
    return [each for each in given if each and each.partition("=")[0] not in RATE_SETTINGS]


def setting_words(setting: Mapping[str, Any]) -> list[str]:
    """The fields of a preset in words, the most important first; a sentence that says so where some are missing.

    >>> setting_words({})
    ['the full preset was not recorded']
    """
    problem = problem_of(setting)
    try:
        known = {**setting, "rates": _rates(setting)}
        known |= {f"{noun}_noun": noun if setting[f"{noun}s"] == 1 else f"{noun}s" for noun in ("layer", "head")}
        if setting.get("positions") == "none":
            known["positions"] = "no"
        words = [part.format_map(known) for part in (*problem.recipe_words, *_TRAINING)]
    except (KeyError, ValueError):
        return ["the full preset was not recorded"]
    words += [part.format_map(setting) for name, (least, part) in _OPTIONAL.items() if setting.get(name, 0) > least]
    if setting.get("query_key_scale", 1.0) != 1.0:
        words.append(f"initial projections to queries and keys times {setting['query_key_scale']:g}")
    if problem.objective == "language_modeling" and setting.get("longest"):
        words.append(f"by position in windows of {setting['longest']:,}")
    departures = setting.get("departures")
    return words + ([f"differs from the published code: {departures}"] if departures else [])


def _rates(setting: Mapping[str, Any]) -> str:
    """
    >>> _rates({"learning_rate": 0.001}), _rates({"learning_rate": 0.001, "learning_rates": [0.001, 0.004]})
    ('0.001', '0.001 or 0.004, of which each variant takes the best by validation on seeds that no board uses')
    >>> _rates({"learning_rate": 0.001, "learning_rates": [0.001, 0.004], "rate_extensions": 2}).partition(", of")[0]
    '0.001 or 0.004, and beyond an end of these while that is better by a standard error, at most 2 times'
    """
    grid = setting.get("learning_rates")
    if not grid:
        return f"{setting['learning_rate']:g}"
    listed = " or ".join(f"{rate:g}" for rate in grid)
    if extensions := setting.get("rate_extensions", 0):
        listed += f", and beyond an end of these while that is better by a standard error, at most {extensions} times"
    return f"{listed}, of which each variant takes the best by validation on seeds that no board uses"
