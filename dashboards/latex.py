"""LaTeX: a Board as a table with booktabs rules, for a paper."""

from __future__ import annotations

from collections.abc import Sequence

from ..bench.board.board import Board
from .csv_json import with_parts
from .escape import visible

LONGEST_REASON = 300

_LETTERS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "×": r"$\times$", "−": "$-$", "±": r"$\pm$", "≈": r"$\approx$", "–": "--", "†": r"\dag{}",
    "α": r"$\alpha$", "µ": r"$\mu$", "…": r"\dots{}", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "·": r"$\cdot$",
    "≤": r"$\leq$", "●": r"$\bullet$",
}  # fmt: skip


def to_latex(boards: Sequence[Board]) -> str:
    r"""A `table` with booktabs rules for each board and part; needs `\usepackage{booktabs}`."""
    return "\n\n".join(_board(board) for board in with_parts(boards)) + "\n"


def _board(board: Board) -> str:
    filled = board.filled
    caption = " ".join(filter(None, [board.question or f"{board.title}.", board.headline]))
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(caption)}}}"]
    lines += [rf"\begin{{tabular}}{{ll{'r' * len(filled)}}}", r"\toprule"]
    lines.append(_line(["rank", "variant", *(_escaped(board.columns[at].heading) for at in filled)]))
    before = None
    for kind, row in board.rows:
        if before != (kind, row.group):
            lines.append(r"\midrule" if before is None or before[0] != kind else r"\addlinespace")
        before = kind, row.group
        rank = row.place or ("baseline" if kind == "baseline" else "–")
        cells = [row.entries[at].shown() for at in filled]
        lines.append(_line([_escaped(text) for text in (rank, row.name, *cells)]))
    lines += [r"\bottomrule", r"\end{tabular}", "", r"\footnotesize\raggedright"]
    lines += [
        rf"\textbf{{{_escaped(', '.join(names))}}} (unranked): {_escaped(reason, LONGEST_REASON)}. \\"
        for reason, names in board.reasons
    ]
    lines += [rf"\textbf{{{_escaped(note.topic)}}}: {_escaped(note.text)}. \\" for note in board.notes]
    return "\n".join([*lines, r"\end{table}"])


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escaped(text: str, longest: int | None = None) -> str:
    return "".join(_LETTERS.get(letter, letter) for letter in visible(text, longest))
