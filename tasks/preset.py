"""Presets: the recipe of a preset, its overrides, and the recipes that tasks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, Self, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from ..bench.core.errors import SelectionError
from ..bench.core.spec import Range, Spec, value_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All settings of one preset for one task: model, optimiser, schedule, lengths. All variants of a run share it.

    `length`: tokens per sequence. `test_examples`: size of a seeded slice of the test split, None = all of it; the same
    holds for validation and training. `pooling`: `mean` over real positions; `padded_mean` divides their sum by
    `length`. `deviation`: of token embeddings and learned positions at the start, both alike: embeddings of deviation 1
    would drown positions of 0.02. `schedule`: of the learning rate after a linear warm-up of `warmup` steps;
    `one_cycle` is torch's OneCycleLR; `until_solved` is constant and then, over as many steps as the warm-up has,
    linear to 0: the training ends so after three evaluations in a row with 99.5 % right, but not before a quarter of
    its steps, or after all of them. `clip`: the largest norm of all gradients together, `clip_value`: of each entry;
    0 = none. `accumulate`: batches whose mean gradient makes one step. `averaged`: the number of last evaluated states
    that are averaged into the tested model; 1 = the best by validation alone. `learning_rates`: a grid, of which each
    variant takes its best by validation on `tuning_seeds` seeds that no board uses; without one, all take
    `learning_rate`. `rate_extensions`: how often at most a variant whose best rate lies at an end of the grid gets one
    more rate beyond that end, by a factor of 3. `timing_seconds`: of the rounds of one
    timing job, all variants together, though never fewer than the least rounds; it ends earlier when a difference of
    `resolution` (a share) to the reference would be found. `departures`:
    where a preset named after a published setting differs from it, and why.

    `positions`: `learned` and `sinusoidal` are tables added to the embeddings; `rope` turns queries and keys by their
    positions (Su et al. 2021); `alibi` adds -m (i - j) to the scores of causal attention (Press et al. 2022).
    `convolution`: width of a causal convolution over the embeddings, added to them before the blocks, 0 = none; 2 sees
    the token before, as the token shift of RWKV does. `query_key_scale`: factor on the initial projections to queries
    and keys: small scores at the start keep sparse maps from rows of zero gradient.
    """

    layers: int = 2
    width: int = 64
    heads: int = 2
    feed_forward: int = 128
    dropout: float = 0.1
    attention_dropout: float = 0.1
    positions: Literal["learned", "sinusoidal", "none", "rope", "alibi"] = "learned"
    convolution: int = 0
    query_key_scale: float = 1.0
    pooling: Literal["mean", "padded_mean", "cls"] = "mean"
    deviation: float = 0.02
    length: int = 512
    batch: int = 32
    steps: int = 200
    learning_rate: float = 1e-3
    learning_rates: tuple[float, ...] = ()
    tuning_seeds: int = 1
    rate_extensions: int = 0
    warmup: int = 20
    schedule: Literal["linear", "cosine", "constant", "rsqrt", "one_cycle", "until_solved"] = "linear"
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    clip: float = 1.0
    clip_value: float = 0.0
    label_smoothing: float = 0.0
    evaluate_every: int = 50
    evaluate_batch: int = 64
    accumulate: int = 1
    averaged: int = 1
    train_examples: int | None = None
    validation_examples: int | None = 500
    test_examples: int | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    ranked: bool = True
    departures: str = ""
    timing_seconds: float = 60.0
    resolution: float = 0.03

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    def with_overrides(self, preset: Spec) -> Self:
        """This recipe with the parameters of a preset such as `quick[learning_rate=3e-3]`.

        `learning_rates=1e-3|4e-3` sets a grid, and `learning_rate` one rate in its place. Raises SelectionError for an
        unknown parameter and for a value out of its range.
        """
        kinds = get_type_hints(type(self))
        changes: dict[str, Any] = {}
        for name, value in preset.parameters:
            # a smoke run must not enter a ranking, and a text is no setting
            if name not in kinds or name in _NO_PARAMETERS:
                known = sorted(kinds.keys() - set(_NO_PARAMETERS))
                near = "".join(f" (did you mean {each!r}?)" for each in get_close_matches(name, known, n=1))
                raise SelectionError(
                    f"preset {preset.name!r} has no parameter {name!r}{near}; `attnbench show {preset.name}` lists all"
                )
            changes[name] = _accept(name, kinds[name], value, f"preset {preset.name!r}: expected {name}")
        if changes.keys() >= {"learning_rate", "learning_rates"}:
            raise SelectionError(f"preset {preset.name!r}: expected learning_rate or learning_rates, got both")
        if "learning_rate" in changes:
            changes["learning_rates"] = ()
        changed = replace(self, **changes)
        if changed.width % changed.heads:
            raise SelectionError(f"expected heads to divide width, got heads={changed.heads}, width={changed.width}")
        return changed

    def check_tested_positions(self, longest: int) -> None:
        """Raises SelectionError where a test of `longest` tokens would read positions that no training reads."""
        if self.positions == "learned" and longest > self.length:
            raise SelectionError(
                f"expected other positions than learned: those from {self.length} to {longest} are tested and never "
                "trained; take positions=none, rope, alibi or sinusoidal, or set longest to length"
            )


R = TypeVar("R", bound=Recipe)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def recipe_with(**defaults: Any) -> Callable[[type[R]], type[R]]:
    """Make a dataclass of a subclass of `Recipe` that gives some fields of `Recipe` other defaults."""

    def decorated(subclass: type[R]) -> type[R]:
        kinds = get_type_hints(Recipe)
        # a dataclass takes a new default for an inherited field only where the field is annotated again
        subclass.__annotations__ = {name: kinds[name] for name in defaults} | subclass.__annotations__
        for name, default in defaults.items():
            setattr(subclass, name, default)
        return dataclass(frozen=True, slots=True, kw_only=True)(subclass)

    return decorated


_NO_PARAMETERS = ("ranked", "departures")
_SHARE = Range(0, 0.999_999)
_RANGES = {
    "dropout": _SHARE,
    "attention_dropout": _SHARE,
    "label_smoothing": _SHARE,
    "beta1": _SHARE,
    "beta2": _SHARE,
    "warmup": Range(0, 10**9),
    "layers": Range(1, 1_000),
    "width": Range(1, 65_536),
    "heads": Range(1, 4_096),
    "feed_forward": Range(1, 1_048_576),
    "length": Range(1, 2**24),
    "learning_rate": Range(0, 100),
    "learning_rates": Range(0, 100),
    "tuning_seeds": Range(1, 100),
    "rate_extensions": Range(0, 10),
    "convolution": Range(0, 1_024),
    "query_key_scale": Range(0, 100),
    "query_key_scales": Range(0, 100),
    "timing_seconds": Range(0.01, 1e6),
    "resolution": Range(1e-4, 1),
}
"""The values of the settings that are not any number of 1 or more, or of 0 or more."""


def _accept(name: str, kind: Any, value: Any, expected: str) -> Any:
    """`value` as a field of that type and in its range; a list in ascending order."""
    if get_origin(kind) is tuple:
        return _accept_grid(name, value, expected)
    if get_origin(kind) is Literal:
        options = get_args(kind)
        # the grammar of selections reads the word none as no value
        word = "none" if value is None else value
        if word not in options:
            raise SelectionError(f"{expected} to be {' or '.join(options)}, got {value!r}")
        return word
    if type(None) in get_args(kind) and value is None:
        return None
    is_whole = kind is int or int in get_args(kind)
    limits = _RANGES.get(name, Range(1, 10**9) if is_whole else Range(0, 1e9))
    if type(value) is int and not is_whole:
        value = float(value)
    if type(value) is not (int if is_whole else float) or value not in limits:
        noun = "whole number" if is_whole else "number"
        raise SelectionError(f"{expected} to be a {noun} {limits}, got {value!r}")
    return value


MOST_RATES = 20


def _accept_grid(name: str, value: Any, expected: str) -> tuple[float, ...]:
    given = value if isinstance(value, tuple) else (value,)
    found = {_accept(name, float, each, expected) for each in given}
    if not 2 <= len(found) <= MOST_RATES:
        raise SelectionError(f"{expected} to be 2 to {MOST_RATES} values such as 1e-3|4e-3, got {value_text(value)}")
    return tuple(sorted(found))


PRESETS: dict[str, Recipe] = {
    "smoke": Recipe(length=128, batch=8, steps=6, evaluate_every=3, validation_examples=32, test_examples=64,
                    warmup=2, ranked=False, timing_seconds=4.0),
    "quick": Recipe(),
    "pt-2x64": Recipe(length=1024, steps=10_000, warmup=1_000, learning_rate=1e-4, evaluate_every=500,
                      validation_examples=None, precision="bfloat16"),
}  # fmt: skip
"""The recipes of a task without recipes of its own."""
