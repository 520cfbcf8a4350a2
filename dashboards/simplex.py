"""Simplex: the weights that maps from scores to weights give, drawn on the simplex of three choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from ..bench.board.report import SimplexFigure
from .colours import PALETTE, paint
from .figures import COLOUR, Chart, inline, values

SIDE = 340
HEIGHT = SIDE * 3**0.5 / 2

# room for the names of the corners
_X = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[-0.12, 1.12]))
_Y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-0.1, 0.98]))
_BY_START = alt.Color("start:N", scale=COLOUR, legend=None)
_BY_LEVEL = alt.Color("level:Q", scale=alt.Scale(scheme="viridis"), legend=None)
_HINT = ["variant:N", *(alt.Tooltip(f"{name}:Q", format=".3f") for name in ("first", "second", "third", "temperature"))]


def charts(figure: SimplexFigure) -> dict[str, Chart]:
    """The figures by name."""
    order = alt.Order("temperature:Q", sort="descending")
    lines = alt.Chart().mark_line(strokeWidth=2).encode(x=_X, y=_Y, order=order, color=_BY_START, detail="start:N")
    at_one = alt.Chart().transform_filter("abs(datum.temperature - 1) < 0.05").mark_point(filled=True, size=60)
    points = alt.Chart().mark_point(filled=True, size=28, opacity=0.6, color=PALETTE[0])
    contours = alt.Chart().mark_rule(strokeWidth=1.4)
    return {
        "trajectories": _faceted(
            lines + at_one.encode(x=_X, y=_Y, color=_BY_START, tooltip=_HINT),
            figure.trajectories,
            "variant:N",
            "Five score vectors from high temperature (middle) to low (corner); dot: temperature 1",
        ),
        "random": _faceted(
            points.encode(x=_X, y=_Y, tooltip=_HINT),
            figure.random,
            "variant:N",
            "A hundred random score vectors; on an edge, weights are zero",
        ),
        "two-choices": two_choices(figure),
        "contours": _faceted(
            contours.encode(x=_X, y=_Y, x2="x2:Q", y2="y2:Q", color=_BY_LEVEL),
            figure.contours,
            "alpha:N",
            "Lines of equal Tsallis entropy (alpha = 1: Shannon's); where they meet an edge, weights become zero",
        ),
        "surface": surface(figure),
    }


def two_choices(figure: SimplexFigure) -> Chart:
    """Weight of the first of two choices over the difference of their scores."""
    chart = (
        alt.Chart(inline(figure.choices))
        .mark_line()
        .encode(
            x=alt.X("lead:Q", title="score of the first choice less that of the second"),
            y=alt.Y("weight:Q", title="weight of the first choice"),
            color=alt.Color("variant:N", legend=alt.Legend(title=None)),
            strokeDash=alt.StrokeDash("variant:N", legend=alt.Legend(title=None)),
            tooltip=["variant:N", alt.Tooltip("lead:Q", format=".2f"), alt.Tooltip("weight:Q", format=".3f")],
        )
        .properties(width=440, height=280, title="Two choices: weight of the first")
        .interactive()
        .to_dict()
    )
    paint(chart, dict.fromkeys(row["variant"] for row in figure.choices))
    return alt.Chart.from_dict(chart)


def surface(figure: SimplexFigure) -> Chart:
    """The entropies as surfaces over the simplex, in projection."""
    return (
        alt.Chart(inline(figure.surface))
        .mark_line(strokeWidth=0.8)
        .encode(
            x=alt.X("x:Q", axis=None),
            y=alt.Y("y:Q", axis=None),
            detail="line:N",
            order="at:O",
            color=alt.Color("alpha:N", scale=COLOUR, legend=None),
        )
        .properties(width=240, height=220)
        .facet(
            facet=alt.Facet("alpha:N", title=None, header=alt.Header(labelExpr="'alpha = ' + datum.value")), columns=3
        )
        .properties(title="The entropies over the simplex")
    )


def _outline() -> Chart:
    """The edges of the simplex and the numbers of its corners."""
    top = 3**0.5 / 2
    corners = [{"x": x, "y": y, "at": at} for at, (x, y) in enumerate([(0, 0), (1, 0), (0.5, top), (0, 0)])]
    names = [
        {"x": 0, "y": -0.06, "name": "1"},
        {"x": 1, "y": -0.06, "name": "2"},
        {"x": 0.5, "y": top + 0.06, "name": "3"},
    ]
    edge = alt.Chart(values(corners)).mark_line(color="#888888", strokeWidth=1).encode(x=_X, y=_Y, order="at:O")
    labels = alt.Chart(values(names)).mark_text(color="#888888").encode(x=_X, y=_Y, text="name:N")
    return edge + labels


def _faceted(chart: Chart, items: Sequence[Any], field: str, title: str) -> Chart:
    name = field.partition(":")[0]
    label = "'alpha = ' + datum.value" if name == "alpha" else "datum.value"
    return (
        (_outline() + chart)
        .properties(width=SIDE * 0.8, height=HEIGHT * 0.8, data=inline(items))
        .facet(facet=alt.Facet(field, title=None, header=alt.Header(labelExpr=label)), columns=3)
        .properties(title=title)
    )
