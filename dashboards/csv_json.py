"""Tables: Boards for machines (CSV, JSON) and for papers (LaTeX with booktabs)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from ..bench.board.board import Board, Column, Row, TableCell
from .escape import visible

SCHEMA = 1

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "×": r"$\times$", "−": "$-$", "±": r"$\pm$", "≈": r"$\approx$", "–": "--", "†": r"\dag{}",
    "α": r"$\alpha$", "µ": r"$\mu$", "…": r"\dots{}", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "·": r"$\cdot$",
}  # fmt: skip


def to_csv(boards: Sequence[Board]) -> str:
    """One line per row of every board: group, places, then value (text where there is none), low and high by column.

    The parts of a board follow it, under its title and theirs.
    """
    boards = list(_each(boards))
    names = list(dict.fromkeys(column.name for board in boards for column in board.columns))
    header = ["board", "group", "rank_first", "rank_last", "variant", "reason"]
    header += [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for board in boards:
        title, places = visible(board.title), {column.name: at for at, column in enumerate(board.columns)}
        chosen = [places.get(name) for name in names]
        for group, row in _rows(board):
            numbers: list[float | str | None] = []
            for at in chosen:
                numbers += _numbers(TableCell() if at is None else row.entries[at])
            writer.writerow([title, group, row.first, row.last, visible(row.name), visible(row.reason), *numbers])
    return file.getvalue()


def to_json(boards: Sequence[Board]) -> str:
    """Every Board in full, entries keyed by their column."""
    return json.dumps({"schema": SCHEMA, "boards": [_board(board) for board in boards]}, indent=1) + "\n"


def to_latex(boards: Sequence[Board]) -> str:
    r"""A `table` with booktabs rules for each board and part; needs `\usepackage{booktabs}`."""
    return "\n\n".join(_latex(board) for board in _each(boards)) + "\n"


def _each(boards: Sequence[Board]) -> Iterator[Board]:
    """The boards, each followed by its parts."""
    for board in boards:
        yield board
        for part in board.parts:
            yield replace(part, title=f"{board.title}: {part.title}", question=part.question or board.question)


def _rows(board: Board) -> Iterator[tuple[str, Row]]:
    for group, rows in (("ranked", board.ranked), ("unranked", board.unranked), ("baseline", board.baselines)):
        for row in rows:
            yield group, row


def _numbers(entry: TableCell) -> list[float | str | None]:
    return [visible(entry.text) if entry.value is None else entry.value, entry.low, entry.high]


def _board(board: Board) -> dict[str, object]:
    names = [column.name for column in board.columns]
    rows: dict[str, list[dict[str, object]]] = {"ranked": [], "unranked": [], "baseline": []}
    for group, row in _rows(board):
        entries = {name: asdict(entry) for name, entry in zip(names, row.entries, strict=True)}
        rows[group].append(asdict(row) | {"entries": entries})
    return {
        "name": board.name,
        "title": board.title,
        "question": board.question,
        "columns": [asdict(column) for column in board.columns],
        "ranked": rows["ranked"],
        "unranked": rows["unranked"],
        "baselines": rows["baseline"],
        "footnotes": [asdict(footnote) for footnote in board.footnotes],
        "parts": [_board(part) for part in board.parts],
    }


def _latex(board: Board) -> str:
    everything = [row for _, row in _rows(board)]
    filled = [c for i, c in enumerate(board.columns) if any(row.entries[i].text for row in everything)]
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_tex(board.title)}. {_tex(board.question)}}}"]
    lines += [rf"\begin{{tabular}}{{ll{'r' * len(filled)}}}", r"\toprule"]
    lines.append(_tex_line(["rank", "variant", *(_tex_heading(column) for column in filled)]))
    before = None
    for group, row in _rows(board):
        here = (group, row.group)
        if here != before:
            lines.append(r"\midrule" if before is None or before[0] != group else r"\addlinespace")
        before = here
        entries = [row.entries[board.columns.index(column)] for column in filled]
        shown = [_tex(e.text + (f" {e.note}" if len(e.note) == 1 else "")) for e in entries]
        lines.append(
            _tex_line([_tex(row.place or ("baseline" if group == "baseline" else "–")), _tex(row.name), *shown])
        )
    lines += [r"\bottomrule", r"\end{tabular}", "", r"\footnotesize\raggedright"]
    lines += [
        rf"\textbf{{{_tex(row.name)}}} (unranked): {_tex(row.reason, 300)}. \\" for row in everything if row.reason
    ]
    lines += [rf"\textbf{{{_tex(f.topic)}}}: {_tex(f.text)}. \\" for f in board.footnotes]
    return "\n".join([*lines, r"\end{table}"])


def _tex_heading(column: Column) -> str:
    return _tex(column.title + {"higher": " ↑", "lower": " ↓"}.get(column.better, ""))


def _tex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _tex(text: str, longest: int | None = None) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in visible(text, longest))
