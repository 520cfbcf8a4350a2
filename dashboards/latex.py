"""LaTeX: a Board as a table with booktabs rules, for a paper."""

from __future__ import annotations

from collections.abc import Sequence

from ..bench.board.board import Board
from .csv_json import with_parts
from .escape import in_latex

LONGEST_REASON = 300


def to_latex(boards: Sequence[Board]) -> str:
    r"""A `table` with booktabs rules for each board and part; needs `\usepackage{booktabs}`."""
    return "\n\n".join(_board(board) for board in with_parts(boards)) + "\n"


def _board(board: Board) -> str:
    filled = board.filled
    caption = " ".join(filter(None, [board.question or f"{board.title}.", board.headline]))
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{in_latex(caption)}}}"]
    lines += [rf"\begin{{tabular}}{{ll{'r' * len(filled)}}}", r"\toprule"]
    lines.append(_line(["rank", "variant", *(in_latex(board.columns[at].heading) for at in filled)]))
    before = None
    for kind, row in board.rows:
        if before != (kind, row.group):
            lines.append(r"\midrule" if before is None or before[0] != kind else r"\addlinespace")
        before = kind, row.group
        rank = row.place or ("baseline" if kind == "baseline" else "–")
        cells = [row.entries[at].shown() for at in filled]
        lines.append(_line([in_latex(text) for text in (rank, row.name, *cells)]))
    lines += [r"\bottomrule", r"\end{tabular}", "", r"\footnotesize\raggedright"]
    lines += [
        rf"\textbf{{{in_latex(', '.join(names))}}} (unranked): {in_latex(reason, LONGEST_REASON)}. \\"
        for reason, names in board.reasons
    ]
    lines += [rf"\textbf{{{in_latex(note.topic)}}}: {in_latex(note.text)}. \\" for note in board.notes]
    return "\n".join([*lines, r"\end{table}"])


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
