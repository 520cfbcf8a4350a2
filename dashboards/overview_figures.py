"""Figures of an overview: small charts of all tasks, one panel a task."""

from __future__ import annotations

import altair as alt

from ..bench.board.report import Overview
from .escape import visible
from .figures import GREY, PADDED, Chart, FigureData, FigureSpec, coloured, filled, over_seeds, painted, shaped, stroked


def overview_figures(overview: Overview) -> dict[str, Chart]:
    """The charts of an overview by name, with their data."""
    return painted(overview_specs(overview), overview_datasets(overview))


def overview_specs(overview: Overview) -> dict[str, FigureSpec]:
    """The charts of an overview, by name."""
    quality = visible(overview.quality)
    lengths, pareto = (visible(text, longest=400) for text in overview.left_out or ("", ""))
    specs = {
        "over-lengths": FigureSpec(
            draw=over_lengths,
            arguments=(quality,),
            data=("overview_by_length",),
            words=f"Test {quality}, by length: mean over the seeds that learned, with a band from the lowest to the "
            f"highest. Dotted: the longest sequences of training; right of it all lengths are new. {lengths}".strip(),
        ),
        "frontiers": FigureSpec(
            draw=frontiers,
            data=("overview_pareto",),
            words="Vertical: test result. Horizontal: training time ÷ softmax's. Lines through a point: 95 % "
            "intervals. No variant is both better and cheaper than those on the dashed line; labels that would "
            f"overlap are left out. {pareto}".strip(),
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
    y = alt.Y("quality:Q", title=None, scale=PADDED)
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
    return _panels(panels, "Quality against cost; left is cheaper", columns=4)


def over_lengths(quality: str) -> Chart:
    """Test results over length, one panel a task; each line has its name at its end, and no legend."""
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
    shape = alt.Shape("variant:N", sort=None, legend=None)
    dots = dots.encode(x=x, y=y, shape=shape, color=alt.Color("variant:N", sort=None, legend=None), tooltip=hint)
    # names that would lie over one another stand apart from their ends
    leaders = alt.Chart().transform_filter("datum.name").mark_rule(x2Offset=18)
    # their place is no result, so that a screen reader hears the name alone
    leaders = leaders.encode(x=x, x2="at:Q", y=y, y2="name_at:Q", stroke=stroked(), description="name:N")
    names = alt.Chart().mark_text(align="left", dx=21, fontSize=11, limit=135)
    names = names.encode(x=x, y=alt.Y("name_at:Q", title=title), text="name:N", description="name:N")
    panels = alt.layer(trained, band, line, leaders, dots, names, data=alt.NamedData("overview_by_length"))
    # lines that fit beside one another on a phone
    said = ("mean of the trainings that learned, band from", "the lowest to the highest; dotted: training length")
    return _panels(panels, f"Test {quality}, over length:", *said, columns=3)


def _panels(panels: Chart, *title: str, columns: int) -> Chart:
    """Small charts, one a task, side by side."""
    head = alt.Header(labelFontWeight="bold", labelLimit=330)
    chart = panels.properties(width=250, height=190).facet(
        facet=alt.Facet("task:N", title=None, sort=None, header=head), columns=columns
    )
    return chart.resolve_scale(x="independent", y="independent").properties(
        title=alt.TitleParams(text=list(title), anchor="start")
    )
