"""HTML: one self-contained page of all Exhibits; it loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from importlib.resources import files
from operator import attrgetter
from typing import Any

from ..bench.board.board import Board, Column, Row
from ..bench.board.report import RecordSummary, Report
from .escape import visible
from .figures import Chart, Sketch, datasets, sketches

_SOURCE = tuple(field.name for field in fields(RecordSummary))


def render(exhibits: Sequence[Report]) -> str:
    """The page as text. Needs the extra `dashboard`.

    What Records brought stands in JSON blocks, one a question, which the page's script reads when it is chosen and
    turns into text nodes; the page's own policy allows no script but its two, by hash, and no connection at all. What
    many questions share, columns and charts without their data, stands in a block of its own.
    """
    columns: dict[tuple[Column, ...], int] = {}
    charts: dict[Sketch, int] = {}
    blocks = []
    for report in exhibits:
        values = {
            "board": _board(report.board, columns),
            "figures": [
                [name, charts.setdefault(sketch, len(charts)), sketch.data] for name, sketch in sketches(report).items()
            ],
            "data": {name: [data.fields, data.rows] for name, data in datasets(report).items()},
            "panels": [asdict(panel) for panel in report.panels],
            "panelsLeftOut": report.panels_left_out,
            "sources": [_SOURCE, [*map(attrgetter(*_SOURCE), report.sources)]],
            "commands": dict(report.commands),
            "machines": dict(report.machines),
        }
        name = html.escape(report.name, quote=True)
        blocks.append(f'<script type="application/json" data-name="{name}">{_json(values)}</script>')
    shared = {"columns": [[asdict(c) for c in group] for group in columns], "charts": [*map(_spec, charts)]}
    blocks.append(f'<script type="application/json" id="shared">{_json(shared)}</script>')
    return _page("page.html", "page.js", {"exhibits": "\n".join(blocks)})


def render_figures(title: str, paragraphs: Sequence[str], charts: Mapping[str, Chart]) -> str:
    """A page of text and charts alone, under the same policy."""
    parts = {
        "title": html.escape(visible(title)),
        "text": "\n".join(f"<p>{html.escape(visible(text))}</p>" for text in paragraphs),
        "data": _json({name: chart.to_dict() for name, chart in charts.items()}),
    }
    return _page("figures.html", "figures.js", parts)


def _page(template: str, script_file: str, parts: Mapping[str, str]) -> str:
    bundle, script = _bundle(), _part(script_file)
    hashes = " ".join(f"'{_hash(text)}'" for text in (bundle, script))
    own = {"hashes": hashes, "style": _part("page.css"), "bundle": bundle, "script": script}
    return _filled(_part(template), {**parts, **own})


def _spec(sketch: Sketch) -> Any:
    from altair.utils.schemapi import debug_mode

    # the tests check the charts against the schema; here that would take most of the time
    with debug_mode(False):
        return sketch.chart().to_dict(validate=False)


def _board(board: Board, columns: dict[tuple[Column, ...], int]) -> dict[str, Any]:
    """`columns`: those of the shared block, where its own are put. Entries as text, value and note, where any is."""
    names = [column.name for column in board.columns]
    kinds = {"ranked": board.ranked, "unranked": board.unranked, "baselines": board.baselines}
    rows = {kind: [_row(row, names) for row in own] for kind, own in kinds.items()}
    footnotes = [asdict(footnote) for footnote in board.footnotes]
    return {
        "title": board.title,
        "question": board.question,
        "columns": columns.setdefault(board.columns, len(columns)),
        "footnotes": footnotes,
        "parts": [_board(part, columns) for part in board.parts],
        **rows,
    }


def _row(row: Row, names: list[str]) -> dict[str, Any]:
    filled = {
        name: [e.text, e.value, e.note]
        for name, e in zip(names, row.entries, strict=True)
        if e.text or e.note or e.value is not None
    }
    return {"name": row.name, "place": row.place, "group": row.group, "reason": row.reason, "entries": filled}


def _json(values: Any) -> str:
    """JSON that no HTML parser can leave early, and that JavaScript reads as JSON."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """Each `{{name}}` of the template replaced once; what is put in is not looked at again."""
    found = []
    for at, piece in enumerate(template.split("{{")):
        name, end, rest = piece.partition("}}")
        found.append(parts[name] + rest if at and end else piece)
    return "".join(found)


@cache
def _bundle() -> str:
    import vl_convert

    text = str(vl_convert.javascript_bundle())  # type: ignore[call-arg]
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _part(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
