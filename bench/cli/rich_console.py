"""Consoles of rich that show control characters instead of sending them to the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ...dashboards.escape import visible


class VisibleConsole(Console):
    """A console that styles text, while the text itself moves no cursor, changes no colour and reorders nothing."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        # every text passes here before it is measured and cut; rich's own control codes are segments of their own kind
        for segment in super().render(renderable, options):
            if segment.control or (segment.text.isascii() and segment.text.isprintable()):
                yield segment
            else:
                text = "\n".join(map(visible, segment.text.split("\n")))
                yield Segment(text, segment.style)


def console(**options: Any) -> Console:
    """A console of the commands; `options` as rich's Console takes them."""
    return VisibleConsole(**{"highlight": False} | options)
