"""Inputs of a sweep: queries, keys and values whose scores have a known structure, drawn from a seed.

Every entry has mean 0 and variance 1, so a score q·k / sqrt(d) of unrelated tokens has a standard deviation of 1. The
input decides how much a sparse map can save. Independent normal entries leave no block of weights empty (measured for
1.5-entmax: 98 % zero weights, no empty 64 × 64 block); blocks of one topic leave most of them empty.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..bench.core.hashing import axis_seed
from .sweep_point import Floats, Heads

RUN = 128
"""Tokens of one topic in a row, and the range of `local` inputs in tokens."""

TOPICS = 16
SHARED = 0.5
"""Share of a token's variance that it has in common with its topic or its neighbourhood."""

Latent = Callable[[np.random.Generator, int, int, int], Floats]


def iid_latent(draw: np.random.Generator, rows: int, length: int, features: int) -> Floats:
    """`iid`: nothing is shared, queries and keys are independent."""
    return np.zeros((rows, length, features), dtype=np.float32)


def clustered_latent(draw: np.random.Generator, rows: int, length: int, features: int) -> Floats:
    """`clustered`: runs of 128 tokens share one of 16 directions; scores inside a topic are sqrt(d) / 2 higher."""
    centres = draw.standard_normal((rows, TOPICS, features), dtype=np.float32)
    chosen = draw.integers(TOPICS, size=(rows, -(-length // RUN)))
    per_token = np.repeat(chosen, RUN, axis=1)[:, :length]
    return np.take_along_axis(centres, per_token[:, :, None], axis=1)


def local_latent(draw: np.random.Generator, rows: int, length: int, features: int) -> Floats:
    """`local`: a moving mean over 128 tokens, so that scores fall from sqrt(d) / 2 to 0 at a distance of 128."""
    noise = draw.standard_normal((rows, length + RUN, features), dtype=np.float32)
    # a moving sum by differences, in float64, since the sums grow with the length
    sums = np.cumsum(noise, axis=1, dtype=np.float64)
    latent: Floats = ((sums[:, RUN:] - sums[:, :-RUN]) / np.sqrt(RUN)).astype(np.float32)
    return latent


INPUTS: dict[str, Latent] = {"iid": iid_latent, "clustered": clustered_latent, "local": local_latent}


def draw_heads(
    kind: str, batch: int, heads: int, length: int, head_dim: int, seed: int, kv_heads: int | None = None
) -> Heads:
    """Query (batch, heads, length, head_dim), key and value (batch, kv_heads, length, head_dim).

    Sequences and heads are independent, but for the heads of queries that share keys, whose number kv_heads divides.
    """
    # query and key share the latent part, so their scores have its structure; values are independent of both
    shared = kv_heads or heads
    latent, draw = _latent(kind, batch * shared, length, head_dim, seed)
    of_query = np.repeat(latent, heads // shared, axis=0)
    query, key = _blend(kind, of_query, draw), _blend(kind, latent, draw)
    shape = (batch, shared, length, head_dim)
    value = draw.standard_normal(shape, dtype=np.float32)
    return Heads(query=query.reshape(batch, heads, length, head_dim), key=key.reshape(shape), value=value)


def draw_states(kind: str, batch: int, length: int, width: int, seed: int) -> Floats:
    """Token states (batch, length, width) of the same structure, for a block that projects them into heads."""
    latent, draw = _latent(kind, batch, length, width, seed)
    return _blend(kind, latent, draw)


def _latent(kind: str, rows: int, length: int, features: int, seed: int) -> tuple[Floats, np.random.Generator]:
    draw = np.random.default_rng(axis_seed(use="sweep input", kind=kind, seed=seed))
    return INPUTS[kind](draw, rows, length, features), draw


def _blend(kind: str, latent: Floats, draw: np.random.Generator) -> Floats:
    own = draw.standard_normal(latent.shape, dtype=np.float32)
    if kind == "iid":
        return own
    # shares of variance add up to 1, so their square roots are the factors
    mixed: Floats = np.sqrt(np.float32(SHARED)) * latent + np.sqrt(np.float32(1 - SHARED)) * own
    return mixed
