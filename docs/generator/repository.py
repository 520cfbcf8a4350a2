"""The Markdown of the repository: its files, its links, and the anchors that a code host gives to headings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from posixpath import normpath

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = ("bench", "dashboards", "docs", "examples", "results", "tasks", "tests", "variants")
"""The folders with pages, beside those at the root."""

LEFT_OUT = ("results/local/", "tests/golden/", "tests/plugin/", "docs/public-board/")
"""Output of runs, expected output of tests, and templates whose links hold elsewhere."""

INLINE = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]*(?:\([^()]*\)[^()\s]*)*)\)")
"""An image or a link; its text may go over a line, its target may hold one pair of brackets and no space."""

CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link of a page. `target`: as written; `path`: from the root of the repository; `anchor`: without #."""

    line: int
    text: str
    target: str
    path: str
    anchor: str


def markdown_files() -> list[str]:
    """The paths of all pages from the root of the repository, sorted."""
    found = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    names = (path.relative_to(ROOT).as_posix() for path in found)
    return sorted(name for name in names if not name.startswith(LEFT_OUT))


def is_elsewhere(target: str) -> bool:
    """Whether a target names another host, a mail address or data."""
    return re.match(r"[a-z][a-z0-9+.-]*:|//", target) is not None


def links_of(page: str, text: str) -> list[Link]:
    """The links of a page to this repository, its own anchors among them; those in code are none."""
    found: list[Link] = []

    def note(line: int, match: re.Match[str]) -> str:
        target = match[3]
        if not is_elsewhere(target):
            path, _, anchor = target.partition("#")
            found.append(Link(line=line, text=match[2], target=target, path=resolved(page, path), anchor=anchor))
        return match[0]

    rewrite(text, note)
    return found


def resolved(page: str, target: str) -> str:
    """The path from the root that `target` names on `page`; the page itself where it is empty."""
    return normpath((PurePosixPath(page).parent / target).as_posix()) if target else page


def rewrite(text: str, change: Callable[[int, re.Match[str]], str]) -> str:
    """`text` with each link outside code replaced by what `change` makes of its line number and match."""
    # code keeps its length and loses its letters, so that places in both texts are the same
    plain = "\n".join(" " * len(line) if is_code else line for line, is_code in lines_of(text))
    spans = [match.span() for match in CODE.finditer(plain) if "\n\n" not in match[0]]
    changed, end = [], 0
    for match in INLINE.finditer(plain):
        start, stop = match.span()
        # a link whose text is code is a link; one inside code is not
        if "\n\n" in match[0] or any(first <= start and stop <= last for first, last in spans):
            continue
        changed += [text[end:start], change(text.count("\n", 0, start) + 1, match)]
        end = stop
    return "".join([*changed, text[end:]])


def lines_of(text: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is code: fenced, or indented by four after an empty line."""
    fence, indented, empty = "", False, True
    for line in text.split("\n"):
        start = re.match(r" {0,3}(`{3,}|~{3,})", line)
        if fence:
            yield line, True
            if start and line.strip() == fence:
                fence = ""
        elif start:
            fence = start[1]
            yield line, True
        else:
            indented = bool(re.match(r"    \S", line)) and (empty or indented)
            yield line, indented
        empty = not line.strip()


def slug(heading: str) -> str:
    """The anchor of a heading on code hosts: lower case, no punctuation, hyphens for spaces.

    >>> slug("How to add …"), slug("GPU: ReLA and the `entmax` family")
    ('how-to-add-', 'gpu-rela-and-the-entmax-family')
    """
    plain = INLINE.sub(lambda match: match[2], heading.strip())
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def anchors_of(text: str) -> set[str]:
    """The anchors of a page: its headings, the second of a name with -1, and names that it states itself."""
    found: set[str] = set()
    for line, is_code in lines_of(text):
        heading = None if is_code else re.match(r"#{1,6} +(.*?)(?: +#+)? *$", line)
        if heading:
            name, count = slug(heading[1]), 0
            while (f"{name}-{count}" if count else name) in found:
                count += 1
            found.add(f"{name}-{count}" if count else name)
        if not is_code:
            found |= set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line))
    return found


def title_of(text: str, otherwise: str) -> str:
    """The first heading of a page as plain text."""
    for line, is_code in lines_of(text):
        if not is_code and (heading := re.match(r"#{1,2} +(.*)", line)):
            return heading[1].strip().strip("*`")
    return otherwise


def mkdocs_slug(heading: str, separator: str) -> str:
    """`slug`, as mkdocs calls it."""
    return slug(heading)
