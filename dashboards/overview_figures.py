"""Figures of an overview: small charts of all tasks, one panel a task."""

from __future__ import annotations

import altair as alt

from ..bench.board.report import Overview
from .escape import visible
from .figures import GREY, Chart, FigureData, FigureSpec, coloured, filled, over_seeds, shaped, stroked


def overview_specs(overview: Overview) -> dict[str, FigureSpec]:
    """The charts of an overview, by name."""
    quality = visible(overview.quality)
    left_out = [visible(text, longest=400) for text in overview.left_out]
    specs = {
        "over-lengths": FigureSpec(
            draw=over_lengths,
            arguments=(quality,),
            data=("overview_by_length",),
            words=f"Test {quality}, by length: mean over seeds, with a band from the lowest to the highest seed. The "
            "dotted line marks the longest sequences of training; what lies right of it was never trained.",
        ),
        "frontiers": FigureSpec(
            draw=frontiers,
            data=("overview_pareto",),
            words=" ".join(
                [
                    "Up: test result. Across: the time of a training step over softmax's. Lines through a point: 95 % "
                    "intervals. No variant is both better and cheaper than those on the dashed line; of them those are "
                    "named that do not overlap.",
                    *left_out,
                ]
            ),
        ),
    }
    data = overview_datasets(overview)
    return {name: spec for name, spec in specs.items() if data.keys() >= set(spec.data)}


def overview_datasets(overview: Overview) -> dict[str, FigureData]:
    """The data of the charts of an overview."""
    found = {"overview_by_length": overview.by_length, "overview_pareto": overview.pareto}
    return {name: FigureData.of(items) for name, items in found.items() if items}


def frontiers() -> Chart:
    """Quality against cost, one panel a task; each panel has its own scales."""
    ticks = alt.Axis(format=".3~g", tickCount=4, labelOverlap="greedy")
    scale = alt.Scale(type="log", nice=False, padding=24)
    x = alt.X("cost:Q", title="step time, × softmax (log)", scale=scale, axis=ticks)
    y = alt.Y("quality:Q", title=None, scale=alt.Scale(zero=False))
    hint = ["variant:N", alt.Tooltip("quality:Q", format=".3g"), alt.Tooltip("cost:Q", format=".2f")]
    line = (
        alt.Chart()
        .transform_filter("datum.on_frontier")
        .mark_line(interpolate="step-after", strokeDash=[5, 4], color=GREY)
        .encode(x=x, y=y, order="cost:Q")
    )
    base = alt.Chart().encode(stroke=stroked())
    across = base.mark_rule(opacity=0.6).encode(x="cost_low:Q", x2="cost_high:Q", y=y)
    along = base.mark_rule(opacity=0.6).encode(x=x, y=alt.Y("quality_low:Q", title=None), y2="quality_high:Q")
    dots = alt.Chart().mark_point(size=70, filled=True, opacity=1)
    dots = dots.encode(x=x, y=y, shape=shaped(), color=coloured(), tooltip=hint)
    names = alt.Chart().mark_text(align="left", dx=6, dy=-8, fontSize=10).encode(x=x, y=y, text="name:N")
    panels = alt.layer(line, across, along, dots, names, data=alt.NamedData("overview_pareto"))
    return _panels(panels, "Quality against cost; left is cheaper")


def over_lengths(quality: str) -> Chart:
    """Test results over length, one panel a task; each panel has its own lengths."""
    ticks = alt.Axis(format=",.12~g", labelOverlap="greedy")
    x = alt.X("at:Q", title="length, tokens (log)", scale=alt.Scale(type="log", base=2, nice=False), axis=ticks)
    title = f"test {quality}"
    top = alt.Scale(domain=[0, 100]) if quality.endswith("%") else alt.Scale(zero=False)
    y = alt.Y("value:Q", title=title, scale=top)
    hint = ["variant:N", alt.Tooltip("at:Q", title="length, tokens"), *over_seeds()]
    trained = alt.Chart().mark_rule(strokeDash=[2, 2], color=GREY).encode(x="mean(trained):Q")
    band = alt.Chart().mark_area(opacity=0.1, strokeWidth=0)
    band = band.encode(x=x, y=alt.Y("low:Q", title=title), y2="high:Q", fill=filled())
    line = alt.Chart().mark_line(strokeWidth=2).encode(x=x, y=y, stroke=stroked())
    dots = alt.Chart().mark_point(size=45, filled=True, opacity=1)
    dots = dots.encode(x=x, y=y, shape=shaped(), color=coloured(), tooltip=hint)
    panels = alt.layer(trained, band, line, dots, data=alt.NamedData("overview_by_length"))
    return _panels(panels, f"Test {quality}, over length; dotted: training length")


def _panels(panels: Chart, title: str) -> Chart:
    """Small charts, one a task, in two columns."""
    head = alt.Header(labelFontWeight="bold", labelLimit=330)
    chart = panels.properties(width=250, height=190).facet(
        facet=alt.Facet("task:N", title=None, sort=None, header=head), columns=2
    )
    return chart.resolve_scale(x="independent", y="independent").properties(
        title=alt.TitleParams(text=title, anchor="start")
    )
