"""HTML: one self-contained page of all Reports; it loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..bench.board.board import Board, Column
from ..bench.board.report import COLUMNS, Overview, Report
from .colours import appearance
from .escape import in_html, in_script
from .figures import Chart, FigureData, FigureSpec, datasets, figure_specs
from .overview_figures import overview_datasets, overview_specs


def render(reports: Sequence[Report], overview: Overview | None = None, title: str = "attnbench") -> str:
    """The page as text, which opens with `overview`, or with the first report where that is None; `title` names it.

    Needs the extra `dashboard`.

    All text from Records is in JSON blocks, one a report, which the page's script reads when the report is chosen and
    turns into text nodes; the page's own policy allows no script but its two, by hash, and no connection at all. The
    columns and charts that reports share are in a block of their own, the charts without their data.
    """
    columns: dict[tuple[Column, ...], int] = {}
    colours: dict[str, tuple[str, str]] = {}
    charts: dict[FigureSpec, int] = {}
    blocks = []

    def drawn(specs: Mapping[str, FigureSpec], data: Mapping[str, FigureData]) -> dict[str, Any]:
        for found in data.values():
            if "variant" in found.fields:
                at = found.fields.index("variant")
                colours.update((row[at], appearance(row[at])) for row in found.rows if row[at] not in colours)
        return {
            "figures": [
                [name, charts.setdefault(spec, len(charts)), spec.data, spec.words] for name, spec in specs.items()
            ],
            "data": {name: [found.fields, found.rows] for name, found in data.items()},
        }

    for report in reports:
        values = {
            "board": _board(report.board, columns),
            **drawn(figure_specs(report), datasets(report)),
            "maps": list(report.maps),
            "mapsLeftOut": report.maps_left_out,
            "records": [COLUMNS["records"], [list(record.values()) for record in report.records]],
            "commands": dict(report.commands),
            "machines": dict(report.machines),
        }
        blocks.append((report.name, values))
    front = None
    if overview is not None:
        front = {
            "lead": overview.lead,
            "answer": overview.answer and asdict(overview.answer),
            "groups": [asdict(group) for group in overview.groups],
            **drawn(overview_specs(overview), overview_datasets(overview)),
        }
    shared = {
        "columns": [[{**asdict(c), "heading": c.heading} for c in group] for group in columns],
        "charts": [*map(_vega, charts)],
        "colours": colours,
    }
    return _page("page.html", "page.js", {"title": title, "reports": blocks, "overview": front, "shared": shared})


def render_figures(title: str, paragraphs: Sequence[str], charts: Mapping[str, Chart]) -> str:
    """A page of text and charts alone, under the same policy."""
    data = {name: chart.to_dict() for name, chart in charts.items()}
    return _page("figures.html", "figures.js", {"title": title, "paragraphs": paragraphs, "data": data})


def _page(template: str, script_file: str, values: Mapping[str, Any]) -> str:
    bundle, script = _bundle(), _part(script_file)
    digests = [hashlib.sha256(text.encode()).digest() for text in (bundle, script)]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    own = {"hashes": hashes, "style": _part("page.css"), "bundle": bundle, "script": script}
    # our own files are markup; whatever else a template shows is escaped
    return _templates().get_template(template).render({**values, **{name: Markup(text) for name, text in own.items()}})


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader(__package__), autoescape=True, finalize=in_html, undefined=StrictUndefined
    )
    templates.filters["json"] = lambda values: Markup(in_script(values))
    return templates


def _vega(spec: FigureSpec) -> Any:
    from altair.utils.schemapi import debug_mode

    # tests check the charts against the schema; here that would take most of the time
    with debug_mode(False):
        return spec.chart().to_dict(validate=False)


def _board(board: Board, columns: dict[tuple[Column, ...], int]) -> dict[str, Any]:
    """`columns`: those of the shared block, where its own are put. Entries as text, value and note, where any is."""
    rows = []
    for kind, row in board.rows:
        filled = {
            column.name: [e.text, e.value, e.note]
            for column, e in zip(board.columns, row.entries, strict=True)
            if e.text or e.note or e.value is not None
        }
        named = {"kind": kind, "name": row.name, "place": row.place, "group": row.group, "reason": row.reason}
        rows.append({**named, "entries": filled})
    return {
        "title": board.title,
        "question": board.question,
        "columns": columns.setdefault(board.columns, len(columns)),
        "shownColumns": [board.columns[at].name for at in board.shown_columns],
        "headline": board.headline,
        "notes": [
            {**asdict(note), "warning": note.warning, "shown": note in board.shown_notes} for note in board.notes
        ],
        "parts": [_board(part, columns) for part in board.parts],
        "rows": rows,
    }


@cache
def _bundle() -> str:
    import vl_convert

    # its stub demands an argument that has a default
    javascript_bundle: Any = vl_convert.javascript_bundle
    text = str(javascript_bundle())
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _part(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")
