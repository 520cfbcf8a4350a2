"""An extension of griffe: docstrings, written to be read in the source, as Markdown for the reference."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import griffe


class DocstringsAsMarkdown(griffe.Extension):
    """Examples become blocks of code, and what is said of one parameter or field after another becomes a list."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        if obj.docstring:
            names = {parameter.name.lstrip("*") for parameter in getattr(obj, "parameters", ())}
            names |= {name for name, member in obj.members.items() if member.is_attribute} if obj.is_class else set()
            obj.docstring.value = listed(fenced(obj.docstring.value), names)


def fenced(text: str) -> str:
    """Return `text` with its examples as fenced code, without the directives of doctest."""
    shown = []
    for block in text.split("\n\n"):
        if block.lstrip().startswith(">>>"):
            lines = [re.sub(r"\s*# doctest:.*", "", line) for line in block.strip("\n").split("\n")]
            block = "\n".join(["```pycon", *lines, "```"])
        shown.append(block)
    return "\n\n".join(shown)


def listed(text: str, names: Collection[str]) -> str:
    """Return `text` with a line of a list for each `name: what it is` that begins a sentence.

    >>> print(listed("Does it.\\n\\nsuite: its name. mode, margin: two. Returns Boards.", {"suite", "mode", "margin"}))
    Does it.
    <BLANKLINE>
    - `suite`: its name.
    - `mode`, `margin`: two.
    <BLANKLINE>
    Returns Boards.
    """
    if not names:
        return text
    name = "(?:" + "|".join(sorted(map(re.escape, names), key=len, reverse=True)) + ")"
    start = re.compile(rf"(?:\A|(?<=\. )|(?<=\.\n)|(?<=\n\n))`?({name}`?(?:, `?{name}`?)*): ")
    blocks = []
    for block in text.split("\n\n"):
        if start.search(block) and not block.startswith("```"):
            block = start.sub(lambda match: "\n- " + _codes(match[1]) + ": ", block)
            # what follows the last of them is said of the whole again
            head, *rest = re.split(r"\n(?=- )", block)
            last, *after = re.split(r"(?<=\.)\s+(?=(?:Returns|Raises|Yields) )", rest[-1], maxsplit=1)
            items = "\n".join(item.rstrip() for item in [*rest[:-1], last])
            blocks += [part for part in (head.strip(), items, *after) if part]
        else:
            blocks.append(block)
    return "\n\n".join(blocks)


def _codes(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.replace("`", "").split(", "))
