"""Screenshots of a page for the documentation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

READY = "body:has(figure):not(:has(figure:not([data-ready])))"
VIEWS: dict[str, tuple[int, int, Literal["light", "dark"]]] = {
    "light": (1440, 900, "light"),
    "dark": (1440, 900, "dark"),
    "narrow": (390, 844, "light"),
}


def take(page_file: Path, folder: Path, chromium: str = "/usr/bin/chromium") -> list[Path]:
    """One PNG for each view; needs playwright and a Chromium."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (width, height, scheme) in VIEWS.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(page_file.resolve().as_uri())
            page.wait_for_selector(READY)
            path = folder / f"page-{name}.png"
            page.screenshot(path=str(path))
            found.append(path)
        browser.close()
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="the page of `attnbench dashboard`, such as site/index.html")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    arguments = parser.parse_args()
    for taken in take(arguments.page, arguments.folder):
        print(taken)
