"""Attention maps: the weights of queries (rows) over keys (columns), one panel a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from ....dashboards.escape import visible
from ....dashboards.figures import Chart, values

CELL = 11
"""Points of one weight: large enough for a token's name beside it."""


def chart(title: str, queries: Sequence[str], keys: Sequence[str], heads: Sequence[Sequence[Sequence[float]]]) -> Chart:
    """Weights of each query over the keys, each head on a scale of its own. heads: (heads, queries, keys)."""
    rows, columns = [visible(name) for name in queries], [visible(name) for name in keys]
    panels = [_head(head, weights, rows, columns) for head, weights in enumerate(heads)]
    return alt.hconcat(*panels).resolve_scale(color="independent").properties(title=visible(title))


def _head(head: int, weights: Sequence[Sequence[float]], rows: list[str], columns: list[str]) -> Any:
    cells = [
        {"query": rows[row], "key": columns[key], "weight": round(float(weight), 5)}
        for row, each in enumerate(weights)
        for key, weight in enumerate(each)
        if weight > 0
    ]
    return (
        alt.Chart(values(cells))
        .mark_rect()
        .encode(
            # tokens without any weight keep their place too
            x=alt.X("key:N", scale=alt.Scale(domain=columns), axis=alt.Axis(title=None, labelAngle=-90, orient="top")),
            y=alt.Y("query:N", scale=alt.Scale(domain=rows), axis=alt.Axis(title=None)),
            color=alt.Color(
                "weight:Q",
                scale=alt.Scale(scheme="blues", domainMin=0),
                legend=alt.Legend(title=None, gradientLength=60, tickCount=2),
            ),
            tooltip=["query:N", "key:N", alt.Tooltip("weight:Q", format=".3f")],
        )
        .properties(width=CELL * len(columns), height=CELL * len(rows), title=f"head {head}")
    )
