"""Checks every link and anchor: of the Markdown, as a code host shows it, and of a built site.

    python -m attnbench.docs.generator.links            # the Markdown of the repository
    python -m attnbench.docs.generator.links build/docs  # a built site too

It prints one line for each fault, then what was checked, and ends with code 1 where there is a fault.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from .repository import ROOT, anchors_of, is_elsewhere, links_of, markdown_files


@dataclass(slots=True)
class Checked:
    """What was looked at, and the faults, a line each."""

    what: str
    pages: int = 0
    links: int = 0
    anchors: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.what}: {self.pages} pages, {self.links} links, {self.anchors} of them to an anchor; " + (
            f"{len(self.faults)} faults" if self.faults else "no fault"
        )


def check_markdown(root: Path = ROOT, pages: list[str] | None = None) -> Checked:
    """The links between files of the repository, from every page, and their anchors."""
    checked = Checked("Markdown")
    texts = {name: (root / name).read_text(encoding="utf-8") for name in (markdown_files() if pages is None else pages)}
    anchors = {name: anchors_of(text) for name, text in texts.items()}
    for page, text in texts.items():
        checked.pages += 1
        for link in links_of(page, text):
            checked.links += 1
            target = root / link.path
            where = f"{page}:{link.line}: {link.target}"
            if link.path.startswith("..") or not target.exists():
                checked.faults.append(f"{where}: there is no {link.path}")
            elif link.anchor:
                checked.anchors += 1
                if link.path in anchors and link.anchor not in anchors[link.path]:
                    checked.faults.append(f"{where}: {link.path} has no heading #{link.anchor}")
    return checked


class Page(HTMLParser):
    """The ids of a page, its links, and what it loads from elsewhere."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if values.get(name)}
        target = values.get("href", values.get("src", ""))
        if not target:
            return
        # a page may point to other hosts, and must show without them
        if tag in ("script", "img", "iframe", "source", "audio", "video") or (
            tag == "link" and not {"canonical", "prev", "next"} & set(values.get("rel", "").split())
        ):
            self.loads.append(target)
        if tag != "base":
            self.links.append(target)


def check_site(site: Path) -> Checked:
    """The links of a built site between its own files, their anchors, and that no page loads from elsewhere."""
    checked = Checked("site")
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        checked.pages += 1
        name = path.relative_to(site).as_posix()
        elsewhere = [load for load in page.loads if is_elsewhere(load) and not load.startswith("data:")]
        checked.faults += [f"{name}: loads {load} from elsewhere" for load in elsewhere]
        # the page for wrong addresses names all files from the root of a host
        for target in page.links if name != "404.html" else []:
            if is_elsewhere(target):
                continue
            checked.links += 1
            file, _, anchor = unquote(target).partition("#")
            found = (path.parent / file.partition("?")[0]).resolve() if file else path.resolve()
            if found.is_dir():
                found /= "index.html"
            if not found.is_file():
                checked.faults.append(f"{name}: {target}: there is no such file")
            elif anchor and found.suffix == ".html":
                checked.anchors += 1
                if anchor not in pages[site / found.relative_to(site.resolve())].ids:
                    checked.faults.append(f"{name}: {target}: no such anchor")
    return checked


def main(arguments: list[str]) -> int:
    checks = [check_markdown(), *(check_site(Path(site)) for site in arguments)]
    for checked in checks:
        for fault in checked.faults:
            print(fault)
        print(checked)
    return 1 if any(checked.faults for checked in checks) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
