"""LaTeX: a Board as a table with booktabs rules, for a paper."""

from __future__ import annotations

from collections.abc import Sequence

from ..bench.board.board import Board
from .csv_json import with_parts
from .escape import in_latex
from .view import ANSWER, View

LONGEST_REASON = 300


def to_latex(boards: Sequence[Board], view: View = ANSWER) -> str:
    r"""A `table` with booktabs rules for each board and part; needs `\usepackage{booktabs}`."""
    return "\n\n".join(_board(board, view) for board in with_parts(boards)) + "\n"


def _board(board: Board, view: View) -> str:
    caption = " ".join(filter(None, [board.question or f"{board.title}.", board.headline]))
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{in_latex(caption)}}}"]
    lines += [_tabular(board, view.places(board)), "", r"\footnotesize\raggedright"]
    lines += [
        rf"\textbf{{{in_latex(', '.join(names))}}} (unranked): {in_latex(reason, LONGEST_REASON)}. \\"
        for reason, names in board.reasons
    ]
    lines += [rf"\textbf{{{in_latex(note.topic)}}}: {in_latex(note.text)}. \\" for note in view.notes(board)]
    return "\n".join([*lines, r"\end{table}"])


def _tabular(board: Board, places: Sequence[int]) -> str:
    import pandas as pd

    rows = [
        [
            row.place or ("baseline" if kind == "baseline" else "–"),
            row.name,
            *(row.entries[at].shown() for at in places),
        ]
        for kind, row in board.rows
    ]
    headings = ["rank", "variant", *(board.columns[at].heading for at in places)]
    frame = pd.DataFrame(rows, columns=list(map(in_latex, headings)), dtype=object).map(in_latex)
    return str(frame.to_latex(index=False, column_format="ll" + "r" * len(places))).rstrip("\n")
