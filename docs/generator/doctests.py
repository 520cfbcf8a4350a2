"""An extension of griffe: examples of docstrings become blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class FenceDoctests(griffe.Extension):
    """Fences lines that begin with `>>>`, with what follows up to an empty line, as mkdocstrings reads Markdown."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """`text` with its examples as fenced code, without the directives of doctest.

    >>> print(fenced("Words.\\n\\n>>> f(1)  # doctest: +SKIP\\n2\\n\\nMore."))
    Words.
    <BLANKLINE>
    ```pycon
    >>> f(1)
    2
    ```
    <BLANKLINE>
    More.
    """
    blocks = re.split(r"\n\n", text)
    shown = []
    for block in blocks:
        if block.lstrip().startswith(">>>"):
            lines = [re.sub(r"\s*# doctest:.*", "", line) for line in block.strip("\n").split("\n")]
            block = "\n".join(["```pycon", *lines, "```"])
        shown.append(block)
    return "\n\n".join(shown)
