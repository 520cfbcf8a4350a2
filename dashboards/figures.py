"""Figures: the data of a Report as Altair charts; the same ones for the page and, as SVG or PNG, for papers.

A chart holds no numbers of a report: it names the datasets that it draws, so that hundreds of reports share it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ..bench.board.report import Report, SettingCurves
from .colours import BLACK, PALETTE, paint
from .escape import visible

Chart = Any
"""Altair's own types of layered and faceted charts do not compose."""

HEIGHT = 320
COLOUR = alt.Scale(range=PALETTE)
PADDED = alt.Scale(zero=False, padding=10)
"""Room beyond the ends of intervals, which look cut at the edge of a panel."""
TEXT_GAP = 6
"""Pixels between the labels of an axis; without any, 1,500 and 1,600 read as one number."""
GREY = "#808080"
"""The colour of lines that are not data: as far from the light ground as from the dark one."""
DARK_UP_TO = 0.43
"""The share of viridis' range up to which white text has the higher contrast, and then black; both have 4.5."""

LONGEST_NAME = 60

_STATISTICS = {
    "sparsity": "share of exact zeros",
    "null_rate": "queries that attend to nothing",
    "entropy": "entropy (1 = uniform)",
    "attention_distance": "mean distance in tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSpec:
    """A chart before it is drawn: its function and arguments; `data`: names of the datasets that it draws.

    `words`: how to read it, for everybody and for those who cannot see it.
    """

    draw: Callable[..., Chart]
    arguments: tuple[str, ...] = ()
    data: tuple[str, ...]
    words: str

    def chart(self) -> Chart:
        return self.draw(*self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureData:
    """Rows of values, in the order of `fields`."""

    fields: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, items: Sequence[Mapping[str, Any]]) -> FigureData:
        """Rows with the same columns, the names of variants harmless and short."""
        names = tuple(items[0])
        shown = {name: visible(name, longest=LONGEST_NAME) for name in {item.get("variant", "") for item in items}}
        rows = ({**item, "variant": shown[item["variant"]]} if "variant" in item else item for item in items)
        return cls(fields=names, rows=tuple(tuple(row.values()) for row in rows))

    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.fields, row, strict=True)) for row in self.rows]


def figures(report: Report) -> dict[str, Chart]:
    """The charts that the report has data for, by name, with their data."""
    return painted(figure_specs(report), datasets(report))


def painted(specs: Mapping[str, FigureSpec], data: Mapping[str, FigureData]) -> dict[str, Chart]:
    """The charts with their data and with each variant in its colour."""
    found = {}
    for name, spec in specs.items():
        rows = {each: data[each].records() for each in spec.data}
        chart = spec.chart().to_dict()
        own = chart.pop("datasets", {})
        paint(chart, dict.fromkeys(row["variant"] for each in rows.values() for row in each if "variant" in row))
        drawn = alt.Chart.from_dict(chart).properties(datasets=own | rows)
        found[name] = drawn.configure_axis(labelSeparation=TEXT_GAP)
    return found


def figure_specs(report: Report) -> dict[str, FigureSpec]:
    """The charts that the report has data for, by name: the one place to add a figure of a report."""
    quality, data = visible(report.quality), datasets(report)
    kinds = tuple(kind for kind in ("quality", "loss") if f"curves_{kind}" in data)
    by_setting = {
        _name_of(found): FigureSpec(
            draw=settings,
            arguments=(f"settings_{number}", marked, *_headings(found), *_axis_words(found, quality)),
            data=tuple(filter(None, [f"settings_{number}", marked])),
            words=_settings_words(found, quality),
        )
        for number, found in enumerate(report.settings)
        for marked in ["trained" if found.axis in ("length", "position") and "trained" in data else ""]
    }
    specs = {
        "suite": FigureSpec(
            draw=suite,
            arguments=(quality,),
            data=("suite_scores",),
            words=f"One square for each variant and task: the mean test {quality}, over seeds.",
        ),
        **by_setting,
        "frontier": FigureSpec(
            draw=frontier,
            arguments=(quality, report.better),
            data=("pareto",),
            words=f"Up: test {quality}. Across: the time of a training step over softmax's. Lines through a point: "
            "95 % intervals. No variant is both better and cheaper than those on the dashed line; labels that would "
            "overlap are left out.",
        ),
        "lengths": FigureSpec(
            draw=lengths,
            data=("lengths",),
            words="Time over softmax's at each length, with 95 % intervals as bands. Below 1: faster than softmax; "
            "filled: faster here and at all greater lengths.",
        ),
        "curves": FigureSpec(
            draw=curves,
            arguments=(quality, *kinds),
            data=tuple(f"curves_{kind}" for kind in kinds),
            words="Validation during training: mean over the seeds that learned, of all where none did, with a band "
            "from the lowest to the highest of them.",
        ),
        **{
            name.replace("_", "-"): FigureSpec(
                draw=heads,
                arguments=(name,),
                data=(name,),
                words=f"One square for each head, a row for each layer: {words}, mean over seeds.",
            )
            for name, words in _STATISTICS.items()
        },
        "alphas": FigureSpec(
            draw=alphas, data=("alphas",), words="How many heads learned which alpha: 1 is softmax, 2 is sparsemax."
        ),
        "null-control": FigureSpec(
            draw=null_control,
            data=("nulls",),
            words="softmax timed under a second name, over softmax, in each block of rounds, with 95 % intervals. "
            "Differences of this size between variants mean nothing.",
        ),
    }
    return {name: spec for name, spec in specs.items() if spec.data and data.keys() >= set(spec.data)}


def datasets(report: Report) -> dict[str, FigureData]:
    """The data of the charts, by the names that the charts use."""
    found: dict[str, list[Any]] = {
        name: list(getattr(report, name)) for name in ("pareto", "alphas", "nulls", "trained", "suite_scores")
    }
    # at one length all points would stand above each other
    if len({point["length"] for point in report.lengths}) > 1:
        found["lengths"] = list(report.lengths)
    found |= {f"settings_{number}": list(curves.points) for number, curves in enumerate(report.settings)}
    for point in report.curves:
        found.setdefault(f"curves_{point['quantity']}", []).append(point)
    for head in report.heads:
        found.setdefault(head["quantity"], []).append(head)
    return {name: FigureData.of(items) for name, items in found.items() if items}


def frontier(quality: str, better: str) -> Chart:
    """Quality against cost, with both intervals; the dashed line is the Pareto frontier."""
    data = alt.NamedData("pareto")
    x = alt.X("cost:Q", title="step time, × softmax (log)", scale=alt.Scale(type="log", nice=False, padding=40))
    title = f"test {quality}"
    y = alt.Y("quality:Q", title=title, scale=PADDED)
    hint = ["variant:N", alt.Tooltip("quality:Q", format=".1f"), alt.Tooltip("cost:Q", format=".2f")]
    base = alt.Chart(data).encode(stroke=stroked())
    line = (
        alt.Chart(data)
        .transform_filter("datum.on_frontier")
        .mark_line(interpolate="step-after", strokeDash=[5, 4], color=GREY)
        .encode(x=x, y=y, order="cost:Q")
    )
    across = base.mark_rule(opacity=0.6).encode(x="cost_low:Q", x2="cost_high:Q", y=y)
    along = base.mark_rule(opacity=0.6).encode(x=x, y=alt.Y("quality_low:Q", title=title), y2="quality_high:Q")
    dots = alt.Chart(data).mark_point(size=90, filled=True, opacity=1)
    dots = dots.encode(x=x, y=y, shape=shaped(), color=coloured(), tooltip=hint)
    names = alt.Chart(data).mark_text(align="left", dx=7, dy=-9).encode(x=x, y=y, text="name:N")
    up = "up" if better == "higher" else "down"
    return _sized(line + across + along + dots + names, f"Quality against cost; {up} and left is better")


# one legend of colours and shapes needs both in the points alone, so lines and bands have channels of their own
def _legend() -> alt.Legend:
    return alt.Legend(title=None, symbolOpacity=1, symbolStrokeWidth=0)


def coloured() -> alt.Color:
    return alt.Color("variant:N", sort=None, legend=_legend())


def shaped() -> alt.Shape:
    return alt.Shape("variant:N", sort=None, legend=_legend())


def stroked() -> alt.Stroke:
    return alt.Stroke("variant:N", sort=None, legend=None)


def filled() -> alt.Fill:
    return alt.Fill("variant:N", sort=None, legend=None)


def over_seeds() -> list[alt.Tooltip]:
    """The words that a pointer on a point of a mean over seeds shows."""
    words = {"value": "mean", "low": "lowest seed", "high": "highest seed"}
    return [alt.Tooltip(f"{name}:Q", title=title, format=".3g") for name, title in words.items()]


def lengths() -> Chart:
    """Ratio to the reference over length, both logarithmic; filled marks from the crossover on."""
    data = alt.NamedData("lengths")
    x = alt.X("length:Q", title="length, tokens (log)", scale=alt.Scale(type="log", base=2))
    y = alt.Y("ratio:Q", title="time, × softmax (log)", scale=alt.Scale(type="log"))
    base = alt.Chart(data)
    numbers = [alt.Tooltip("ratio:Q", format=".2f"), alt.Tooltip("seconds:Q", format=".4g")]
    hint = ["variant:N", "length:Q", *numbers, "pays:N"]
    rule = alt.Chart(values([{"one": 1}])).mark_rule(strokeDash=[2, 2], color=GREY).encode(y="one:Q")
    band = base.mark_area(opacity=0.15).encode(
        x=x, y=alt.Y("low:Q", title="time, × softmax (log)"), y2="high:Q", fill=filled()
    )
    line = base.mark_line().encode(x=x, y=y, stroke=stroked())
    whole = alt.condition("datum.pays", alt.value(1), alt.value(0))
    dots = base.mark_point(size=60, filled=True, opacity=1).encode(
        x=x, y=y, shape=shaped(), color=coloured(), stroke=stroked(), fillOpacity=whole, tooltip=hint
    )
    return _sized(rule + band + line + dots, "Cost over lengths; filled: faster than softmax from here on")


def _name_of(curves: SettingCurves) -> str:
    kind = "right-key" if curves.quantity == "weight" else "by"
    return f"{kind}-{re.sub(r'[^a-z0-9]+', '-', curves.axis.lower())}"


def _headings(curves: SettingCurves) -> tuple[str, str]:
    """Title and subtitle: what is fixed, in the parentheses of the title, and what thin lines are."""
    title, _, fixed = visible(curves.title).partition(" (")
    others = "dashed: rates not chosen" if any(not point["chosen"] for point in curves.points) else ""
    return title, "; ".join(filter(None, [fixed.removesuffix(")"), others]))


def _settings_words(curves: SettingCurves, quality: str) -> str:
    across = "length" if curves.axis == "length" else visible(curves.axis.replace("_", " "))
    if curves.quantity == "weight":
        return (
            f"Weight that the best head puts on the key that holds the answer, by {across}: mean over the seeds that "
            "learned, with a band from the lowest to the highest. A falling line is attention that spreads out."
        )
    others = " Thin, dashed: learning rates that validation did not choose." * any(
        not point["chosen"] for point in curves.points
    )
    learned = "mean over the seeds that learned, with a band from the lowest to the highest"
    return f"Test {quality}, by {across}: {learned}.{others}"


def _axis_words(curves: SettingCurves, quality: str) -> tuple[str, str, str, str, str]:
    """Titles of both axes, the tested values and the scale across, and the highest value, empty where there is none."""
    values = sorted({point["at"] for point in curves.points})
    scale = "log" if values[0] > 0 and values[-1] >= 4 * values[0] else "linear"
    across = visible(curves.axis.replace("_", " ")) + ", tokens" * (curves.axis in ("length", "position"))
    ticks = " ".join(map(repr, values))
    if curves.quantity == "weight":
        return across, "weight on the right key", ticks, scale, "1"
    return across, f"test {quality}", ticks, scale, "100" if quality.endswith("%") else ""


def settings(
    name: str, marked: str, title: str, subtitle: str, across: str, upright: str, ticks: str, scale: str, top: str
) -> Chart:
    """Results along an axis: a line a variant, its band from the lowest to the highest seed, other rates thin.

    `name` and `marked`: datasets of the points and of the training length, empty for none. `ticks`: the tested values.
    """
    log = scale == "log"
    x = alt.X(
        "at:Q",
        title=f"{across} (log)" if log else across,
        scale=alt.Scale(type="log", base=2, nice=False) if log else alt.Scale(nice=False),
        axis=alt.Axis(format=",.12~g", values=[float(each) for each in ticks.split()], labelOverlap="greedy"),
    )
    y = alt.Y("value:Q", title=upright, scale=alt.Scale(domain=[0, float(top)]) if top else alt.Scale(zero=False))
    # one legend of colours and shapes needs both in one layer alone; all layers colour the variants in one order
    unnamed = alt.Color("variant:N", sort=None, legend=None)
    hint = ["variant:N", alt.Tooltip("at:Q", title=across), *over_seeds(), alt.Tooltip("rate:N", title="learning rate")]
    # other rates are told apart by conditions and not by filters, after which the order of the variants would differ
    base = alt.Chart(alt.NamedData(name)).encode(detail="rate:N")

    def chosen(own: Any, others: Any) -> Any:
        return alt.condition("datum.chosen", alt.value(own), alt.value(others))

    band = base.mark_area(strokeWidth=0).encode(
        x=x, y=alt.Y("low:Q", title=upright), y2="high:Q", color=unnamed, fillOpacity=chosen(0.12, 0)
    )
    line = base.mark_line().encode(
        x=x, y=y, color=unnamed, strokeWidth=chosen(2.5, 0.8), strokeDash=chosen([1, 0], [4, 3]),
        strokeOpacity=chosen(1, 0.45),
    )  # fmt: skip
    dots = base.mark_point(filled=True, opacity=1).encode(
        x=x, y=y, color=coloured(), shape=shaped(), size=chosen(60, 12), fillOpacity=chosen(1, 0.5),
        tooltip=hint,
    )  # fmt: skip
    layers = [band, line, dots]
    if marked:
        rule = alt.Chart(alt.NamedData(marked)).encode(x="length:Q")
        words = rule.mark_text(align="left", text="training length").encode(y=alt.value(-11))
        layers = [rule.mark_rule(strokeDash=[2, 2], color=GREY), *layers, words]
    said = alt.TitleParams(text=title, subtitle=subtitle, offset=16, anchor="start")
    chart = alt.layer(*layers).resolve_scale(color="independent", shape="independent")
    chart = chart.resolve_legend(color="independent", shape="independent")
    return chart.properties(width=520, height=HEIGHT, title=said)


def suite(quality: str) -> Chart:
    """One square for each variant and task, with its mean test result."""
    data = alt.NamedData("suite_scores")
    share = quality.endswith("%")
    scale = alt.Scale(scheme="viridis", domain=[0, 100]) if share else alt.Scale(scheme="viridis")
    base = (
        alt.Chart(data)
        .transform_joinaggregate(low="min(value)", high="max(value)")
        .encode(
            x=alt.X("task:N", title=None, sort=None, axis=alt.Axis(labelAngle=0, orient="top")),
            y=alt.Y("variant:N", title=None, sort=None),
        )
    )
    squares = base.mark_rect().encode(
        color=alt.Color("value:Q", title=None, scale=scale), tooltip=["variant:N", "task:N", "text:N"]
    )
    words = base.mark_text(fontSize=11).encode(
        text="text:N",
        color=alt.condition(_is_dark(100 if share else 0), alt.value("white"), alt.value("black")),
    )
    return _sized(squares + words, f"Mean test {quality}, by task", height=alt.Step(24))


def _is_dark(top: float) -> str:
    """True if a square of viridis is dark, as Vega's expression; `top`: of a scale from 0, or 0 for low to high."""
    return (
        f"datum.value < {DARK_UP_TO * top:g}"
        if top
        else f"datum.value < datum.low + {DARK_UP_TO} * (datum.high - datum.low)"
    )


def curves(quality: str, *kinds: str) -> Chart:
    """Validation quality and loss over training steps: mean over seeds, band from the lowest to the highest."""
    x = alt.X("step:Q", title="training step")

    def panel(kind: str, title: str) -> Chart:
        base = alt.Chart(alt.NamedData(f"curves_{kind}"))
        y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False))
        band = base.mark_area(opacity=0.15)
        band = band.encode(x=x, y=alt.Y("low:Q", title=title), y2="high:Q", fill=filled())
        hint = ["variant:N", "step:Q", alt.Tooltip("value:Q", format=".3f")]
        line = base.mark_line().encode(x=x, y=y, stroke=stroked())
        dots = base.mark_point(size=40, filled=True, opacity=1)
        dots = dots.encode(x=x, y=y, shape=shaped(), color=coloured(), tooltip=hint)
        return _sized(band + line + dots, title)

    titles = {"quality": f"validation {quality}", "loss": "validation loss"}
    panels = [panel(kind, titles[kind]) for kind in kinds]
    return alt.vconcat(*panels).properties(title="Training: mean and range of the seeds that learned")


def heads(quantity: str) -> Chart:
    """One square a head, layers as rows and heads as columns, for each variant."""
    data = alt.NamedData(quantity)
    shares = quantity != "attention_distance"
    colour = alt.Color(
        "value:Q", title=None,
        scale=alt.Scale(scheme="viridis", domain=[0, 1]) if shares else alt.Scale(scheme="viridis"),
    )  # fmt: skip
    text = ".2f" if shares else ".3g"
    hint = ["variant:N", "layer:O", "head:O", alt.Tooltip("value:Q", format=".4f")]
    base = alt.Chart(data).encode(x=alt.X("head:O", axis=alt.Axis(labelAngle=0)), y=alt.Y("layer:O", sort=None))
    squares = base.mark_rect().encode(color=colour, tooltip=hint)
    dark = alt.condition(_is_dark(1 if shares else 0), alt.value("white"), alt.value("black"))
    words = base.mark_text(fontSize=10).encode(text=alt.Text("value:Q", format=text), color=dark)
    chart = (
        alt.layer(squares, words, data=data)
        .properties(width=alt.Step(38), height=alt.Step(30))
        .facet(facet=alt.Facet("variant:N", title=None, header=alt.Header(labelLimit=110)), columns=3)
        .properties(title=f"By layer and head: {_STATISTICS[quantity]}")
    )
    return chart if shares else chart.transform_joinaggregate(low="min(value)", high="max(value)")


def alphas() -> Chart:
    """The heads that learned each alpha, over all seeds, by variant."""
    return (
        alt.Chart(alt.NamedData("alphas"))
        .mark_bar()
        .encode(
            x=alt.X("value:Q", bin=alt.Bin(step=0.05), title="alpha (1 is softmax, 2 is sparsemax)"),
            y=alt.Y("count():Q", title="heads"),
            color=alt.Color("layer:O", scale=COLOUR, sort=None),
            row=alt.Row("variant:N", title=None),
            tooltip=["variant:N", "layer:O", "count():Q"],
        )
        .properties(width=520, height=120, title="Learned alphas of all heads and seeds")
    )


def null_control() -> Chart:
    """The reference under a second name against itself: no smaller difference is a difference."""
    data = alt.NamedData("nulls")
    x = alt.X("ratio:Q", title="time of softmax under a second name, × softmax", scale=PADDED)
    y = alt.Y("block:N", title=None)
    hint = ["block:N", *(alt.Tooltip(f"{name}:Q", format=".4f") for name in ("ratio", "low", "high"))]
    rule = alt.Chart(values([{"one": 1}])).mark_rule(strokeDash=[2, 2], color=GREY).encode(x="one:Q")
    base = alt.Chart(data).encode(y=y)
    ends = base.mark_rule(color=BLACK).encode(
        x=alt.X("low:Q", title="time of softmax under a second name, × softmax"), x2="high:Q"
    )
    dots = base.mark_point(filled=True, size=70, color=BLACK).encode(x=x, tooltip=hint)
    return _sized(rule + ends + dots, "Null control: softmax against itself", height=alt.Step(40))


def _sized(chart: Chart, title: str, height: Any = HEIGHT) -> Chart:
    return chart.properties(width=520, height=height, title=title)


def inline(items: Sequence[Any]) -> alt.InlineData:
    """Rows as the data of a chart that is not of a report."""
    return values(FigureData.of(items).records() if items else [])


def values(rows: list[dict[str, Any]]) -> alt.InlineData:
    return alt.InlineData(values=rows)
