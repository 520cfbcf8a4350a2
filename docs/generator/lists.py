"""Lists as code hosts read them, for Python-Markdown: an empty line before a list, and four spaces inside an item."""

from __future__ import annotations

import re

ITEM = re.compile(r"( {0,3})([-*+]|\d{1,3}\.) +(?=\S)")


def for_python_markdown(text: str) -> str:
    """Return `text` with an empty line before each list after a paragraph, and the content of items indented by four.

    >>> print(for_python_markdown("Words\\n1. one\\n\\n       code\\n\\n   more\\n\\nend"))
    Words
    <BLANKLINE>
    1. one
    <BLANKLINE>
            code
    <BLANKLINE>
        more
    <BLANKLINE>
    end
    """
    lines: list[str] = []
    held = 0  # where the text of the current item begins; 0 outside a list
    shift = 0  # by how much the lines of the current block move
    fence = ""
    for line in text.split("\n"):
        is_empty, after_empty = not line.strip(), not lines or not lines[-1].strip()
        indent = len(line) - len(line.lstrip(" "))
        edge = re.match(r" *(`{3,}|~{3,})", line)
        item = ITEM.match(line)
        if fence:
            fence = "" if line.strip() == fence else fence
            lines.append(" " * shift + line if line.strip() else line)
            continue
        if held and after_empty and indent < held and not is_empty and not item:
            held = 0
        begins = item is not None and (item[2] in ("-", "*", "+", "1.") or bool(held) or after_empty)
        if item and begins and indent < (held or 4):
            if not after_empty and (not held or shift):
                lines.append("")
            held, shift = item.end(), 0
            lines.append(line)
            continue
        inner = held and indent >= held and not is_empty
        nested = item is not None and item[2] in ("-", "*", "+", "1.")
        if inner and item and not nested:
            # a number that a line of text happens to begin with
            line = re.sub(r"(\d)\.", r"\1\\.", line, count=1)
        # what follows a paragraph without an empty line belongs to it, wherever it begins
        shift = max(4 - held, 0) if inner and (after_empty or nested or edge or shift) else 0
        fence = edge[1] if edge else ""
        lines.append(" " * shift + line)
    return "\n".join(lines)
