"""Pages in Chromium: opened, watched for any trouble, waited for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CHROMIUM = Path("/usr/bin/chromium")

HOSTILE = "a[p=<script>alert(1)</script>]"
"""A name of a variant, which must stay text."""


def watch(opened: object) -> list[str]:
    """What the page logs, throws, asks or requests from now on; a sound page leaves it empty."""
    troubles: list[str] = []
    opened.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
    opened.on("pageerror", lambda error: troubles.append(f"error: {error}"))
    opened.on("dialog", lambda dialog: (troubles.append("dialog"), dialog.dismiss()))
    opened.on("request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else troubles.append(r.url))
    return troubles


def untroubled(browser: object, file: Path, width: int) -> Iterator[object]:
    """A page of a file, for a fixture; fails at the end if anything was logged, asked, thrown or requested."""
    opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="light")
    troubles = watch(opened)
    open_at(opened, file)
    yield opened
    opened.close()
    assert troubles == []


def open_at(opened: object, file: Path, state: str = "") -> None:
    # a busy machine draws for longer than playwright waits by itself
    opened.set_default_timeout(600_000)
    # a state alone changes no document, so leave first
    opened.goto("about:blank")
    opened.goto(file.as_uri() + state)
    drawn(opened)


def drawn(opened: object) -> None:
    """Waits until there are figures and all are drawn."""
    # a selector: the policy of the page forbids playwright to evaluate a condition there
    opened.wait_for_selector("body:has(figure):not(:has(figure:not([data-ready])))", state="attached")
