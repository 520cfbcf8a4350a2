"""The pages of the repository: all Markdown files that the site shows."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = ("bench", "dashboards", "docs", "examples", "results", "tasks", "tests", "tools", "variants")
"""The folders with pages, beside the pages at the root."""

LEFT_OUT = ("results/local/", "tests/golden/", "tests/plugin/", "docs/public-board/")
"""Output of runs, expected output of tests, and templates whose links hold in another repository."""


def markdown_files() -> list[str]:
    """Return the paths of all pages from the root of the repository, sorted."""
    paths = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    names = (path.relative_to(ROOT).as_posix() for path in paths)
    return sorted(name for name in names if not name.startswith(LEFT_OUT))
