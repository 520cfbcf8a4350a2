"""Grammar of ListOps: Long Range Arena's generator, level by level in numpy, many trees at once.

The rules: a node above depth 10 is an operator with probability 0.25 and 2 to 10 arguments, else a digit; a tree is
kept when its length is strictly between two bounds. Length counts the operator, its arguments and the closing bracket;
parentheses do not exist here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ....bench.core.hashing import axis_seed
from ...contract import Split
from ...data.prepared import pack

VERSION = 1
SEED = 0

OPERATORS = ("MIN", "MAX", "MED", "SM")
DIGIT = 1
OPEN = DIGIT + 10
CLOSE = OPEN + len(OPERATORS)
VOCABULARY = CLOSE + 1
SYMBOLS = (*"0123456789", *(f"[{name}" for name in OPERATORS), "]")
IDS = {symbol: DIGIT + index for index, symbol in enumerate(SYMBOLS)}
"""Fixed ids: digits 1 to 10, operators 11 to 14, the closing bracket 15; 0 is padding."""

DEPTH = 10
MIN_ARGUMENTS, MAX_ARGUMENTS = 2, 10
TREES = 20_000

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Number of expressions of each split, with lengths strictly between `low` and `high` tokens."""

    train: int = 96_000
    validation: int = 2_000
    test: int = 2_000
    low: int = 500
    high: int = 2_000

    @property
    def total(self) -> int:
        return self.train + self.validation + self.test


def generate(sizes: Sizes, seed: int = SEED, progress: Callable[[int], None] = lambda done: None) -> dict[str, Split]:
    """Distinct expressions with their values as labels, split by the SHA-256 of their ids, one byte an id.

    The lowest hashes are the test split and the next ones validation, so that the split follows from the content.
    `progress` is called with the number of expressions so far.
    """
    found: dict[bytes, tuple[Bytes, int]] = {}
    batch = 0
    while len(found) < sizes.total:
        # numpy promises that the raw stream of a bit generator never changes; distributions may change
        bits = np.random.PCG64(axis_seed(use="listops", version=VERSION, seed=seed, batch=batch))
        tokens, starts, values = grow(bits, TREES, sizes.low, sizes.high)
        for index, value in enumerate(values.tolist()):
            expression = tokens[starts[index] : starts[index + 1]]
            if len(found) < sizes.total:
                found.setdefault(hashlib.sha256(expression.tobytes()).digest(), (expression, value))
        progress(len(found))
        batch += 1
    ordered = [found[digest] for digest in sorted(found)]
    bounds = {"test": (0, sizes.test), "validation": (sizes.test, sizes.test + sizes.validation)}
    bounds["train"] = (sizes.test + sizes.validation, sizes.total)
    return {
        name: pack(
            (expression.astype(np.uint16) for expression, _ in ordered[low:high]),
            (value for _, value in ordered[low:high]),
        )
        for name, (low, high) in bounds.items()
    }


def grow(bits: np.random.PCG64, trees: int, low: int, high: int) -> tuple[Bytes, Array, Array]:
    """Grow `trees` trees. Returns of the accepted ones: tokens end to end, starts (accepted + 1,), values (accepted,).

    A draw of 64 bits describes a node: the lowest two bits its kind, the next two its operator, the upper half its
    digit or its number of arguments.
    """
    lengths = np.zeros(trees, dtype=np.int64)
    owner = np.arange(trees)
    levels: list[tuple[Array, Array]] = []
    for depth in range(1, DEPTH + 1):
        draws: Words = np.asarray(bits.random_raw(len(owner)), dtype=np.uint64)
        # the lowest two bits make an operator of one node in four; at the deepest level of none
        if depth == DEPTH:
            draws |= np.uint64(1)
        lengths += np.bincount(owner, minlength=trees) + np.bincount(owner[_is_operator(draws)], minlength=trees)
        levels.append((draws, owner))
        owner = np.repeat(owner[_is_operator(draws)], _arity(draws))
        # trees that are already too long are dropped before they grow further
        owner = owner if depth == DEPTH else _drop(levels, owner, lengths >= high)
    accepted = (lengths > low) & (lengths < high)
    return _layout([draws[accepted[owner]] for draws, owner in levels], lengths[accepted])


def _drop(levels: list[tuple[Array, Array]], owner: Array, lost: Array) -> Array:
    for index, (draws, owners) in enumerate(levels):
        keep = ~lost[owners]
        levels[index] = (draws[keep], owners[keep])
    return owner[~lost[owner]]


def _layout(levels: list[Array], lengths: Array) -> tuple[Bytes, Array, Array]:
    """Tokens, starts and values of whole trees, given level by level, with the children of each operator in order.

    Sizes and values are computed from the leaves upwards, positions of tokens from the roots downwards.
    """
    sizes: list[Array] = [np.empty(0)] * len(levels)
    values: list[Array] = [np.empty(0)] * len(levels)
    for level in reversed(range(len(levels))):
        draws = levels[level]
        operators = _is_operator(draws)
        sizes[level] = np.ones(len(draws), dtype=np.int64)
        values[level] = _scaled(draws, 10)
        if operators.any():
            # an operator takes two tokens, itself and its closing bracket, around the tokens of its arguments
            first = _exclusive(_arity(draws))
            sizes[level][operators] = 2 + np.add.reduceat(sizes[level + 1], first)
            values[level][operators] = _apply(_operator(draws[operators]), values[level + 1], first, _arity(draws))
    tokens = np.empty(int(lengths.sum()), dtype=np.uint8)
    starts = np.concatenate([_exclusive(lengths), [len(tokens)]])
    at = starts[:-1]
    for level, draws in enumerate(levels):
        operators = _is_operator(draws)
        tokens[at] = DIGIT + values[level]
        tokens[at[operators]] = OPEN + _operator(draws[operators])
        tokens[at[operators] + sizes[level][operators] - 1] = CLOSE
        if operators.any():
            arity = _arity(draws)
            before = _exclusive(sizes[level + 1])
            at = before + np.repeat(at[operators] + 1 - before[_exclusive(arity)], arity)
    return tokens, starts, values[0]


def _apply(operator: Array, values: Array, first: Array, arity: Array) -> Array:
    """The value of each operator over `values[first : first + arity]`."""
    result = np.select(
        [operator == 0, operator == 1],
        [np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)],
        np.add.reduceat(values, first) % 10,
    )
    medians = operator == 2
    first, arity = first[medians], arity[medians]
    # rows of arguments, padded with 10, which sorts after every digit
    column = np.arange(MAX_ARGUMENTS)
    inside = column < arity[:, None]
    table = np.where(inside, values[np.minimum(first[:, None] + column, len(values) - 1)], 10)
    table = np.sort(table.astype(np.uint8), axis=1).astype(np.int64)
    row = np.arange(len(table))
    # the mean of the middle two, truncated
    result[medians] = (table[row, (arity - 1) // 2] + table[row, arity // 2]) // 2
    return result


def _is_operator(draws: Words) -> npt.NDArray[np.bool_]:
    is_operator: npt.NDArray[np.bool_] = (draws & np.uint64(3)) == 0
    return is_operator


def _operator(draws: Words) -> Array:
    return ((draws >> np.uint64(2)) & np.uint64(3)).astype(np.int64)


def _arity(draws: Words) -> Array:
    return MIN_ARGUMENTS + _scaled(draws[_is_operator(draws)], MAX_ARGUMENTS - MIN_ARGUMENTS + 1)


def _scaled(draws: Words, count: int) -> Array:
    """Uniform in [0, count), from the upper 32 bits."""
    return (((draws >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)).astype(np.int64)


def _exclusive(counts: Array) -> Array:
    """The sum of all entries before each."""
    return np.cumsum(counts) - counts
