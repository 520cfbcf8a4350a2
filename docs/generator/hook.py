"""What the site has beside the pages of docs/: generated pages, and the pages and files of the repository they link to.

mkdocs calls these functions. Pages of the repository stand below `source/` under their own path; a link from any page
to a file of the repository leads to its copy there, so that the site is whole without a code host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from posixpath import relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from attnbench.bench.core.registry import TASKS, VARIANTS
from attnbench.docs.generator import board_excerpts, figures, reference_pages, registry_pages
from attnbench.docs.generator.lists import for_python_markdown
from attnbench.docs.generator.repository import (
    LEFT_OUT,
    ROOT,
    is_elsewhere,
    links_of,
    markdown_files,
    resolved,
    rewrite,
)

START = (
    "index.md",
    "getting-started.md",
    "reading-a-board.md",
    "concepts.md",
    "statistics.md",
    "choosing.md",
    "commands.md",
)
GUIDES = (
    "own-variant.md",
    "own-kernel.md",
    "own-data.md",
    "reading-records.md",
    "public-board.md",
    "clusters.md",
    "gpu.md",
    "huggingface.md",
)
"""The order of the pages of docs/; one that is not here comes after them, one that is missing is left out."""

EVIDENCE = ("negative-results.md", "scoring_simulations.md")

PICTURES = (".png", ".svg", ".jpg")


@dataclass(slots=True)
class Site:
    """What a build has: `places`: path in the repository → path in the site."""

    places: dict[str, str] = field(default_factory=dict)


SITE = Site()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages, the pages of the repository, and the files that any page links to."""
    texts: dict[str, str] = {}
    for page in markdown_files():
        texts[page] = (ROOT / page).read_text(encoding="utf-8")
        SITE.places[page] = page.removeprefix("docs/") if _is_guide(page) else f"source/{page}"
        if not _is_guide(page):
            _add(files, config, SITE.places[page], texts[page])
    nav = _navigation(texts)
    for registry, folder, title, families, introduction in (
        (VARIANTS, "variants", "Variants", registry_pages.FAMILIES, "Attention mechanisms, by what they change."),
        (TASKS, "tasks", "Tasks", registry_pages.TASK_FAMILIES, "What variants are trained and timed on."),
    ):
        pages: dict[str, str | bytes] = {"index.md": registry_pages.index_page(registry, title, introduction, families)}
        for name in registry_pages.names(registry):
            if registry is VARIANTS:
                pages[f"{name}.md"], pictures = registry_pages.variant_page(name)
                pages |= {f"maps/{file}": content for file, content in pictures.items()}
            else:
                pages[f"{name}.md"] = registry_pages.task_page(name)
        for file, content in pages.items():
            _add(files, config, f"{folder}/{file}", content)
            if isinstance(content, str):
                texts[f"docs/{folder}/{file}"] = content
                SITE.places[f"docs/{folder}/{file}"] = f"{folder}/{file}"
        nav.insert(-3, {title: _by_family(registry, folder, families)})
    reference = {
        "commands.md": reference_pages.commands_page(),
        "python.md": reference_pages.python_page(),
        "variant-contract.md": reference_pages.contract_page("variants"),
        "task-contract.md": reference_pages.contract_page("tasks"),
    }
    for file, content in reference.items():
        _add(files, config, f"reference/{file}", content)
    nav.insert(-2, {"Reference": [f"reference/{file}" for file in reference]})
    for page, text in texts.items():
        for link in links_of(page, text):
            _add_linked(files, config, link.path)
    config.nav = nav
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links to the repository into links to the site, and lists into those of Python-Markdown."""
    # who searches wants to be told, not to read how the parts are built
    page.meta.setdefault("search", {"boost": 0.5 if page.file.src_uri.startswith("source/") else 2})
    own = {place: path for path, place in SITE.places.items()}.get(page.file.src_uri)
    if own is None:
        return for_python_markdown(markdown)

    def changed(line: int, match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        path, hash_sign, anchor = target.partition("#")
        if is_elsewhere(target) or not path:
            return match[0]
        place = _place(resolved(own, path))
        if place is None:
            # a drawing lies where the page says; a folder without a page has no link
            return match[0] if picture else str(text)
        there = relpath(place, page.file.src_uri.rpartition("/")[0] or ".")
        return f"{picture}[{text}]({there}{hash_sign}{anchor})"

    return for_python_markdown(rewrite(markdown, changed))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Puts the drawings of docs/figures into the page itself, so that they take its colours."""

    def inlined(match: re.Match[str]) -> str:
        drawing = ROOT / "docs" / "figures" / f"{match[2]}.svg"
        alt = re.search(r'alt="([^"]*)"', match[0])
        return figures.inline(drawing.read_text(encoding="utf-8"), alt[1] if alt else "")

    return re.sub(r'<img [^>]*src="([^"]*figures/([\w-]+)\.svg)"[^>]*>', inlined, html)


def _navigation(texts: dict[str, str]) -> list[Any]:
    own = [page.removeprefix("docs/") for page in texts if _is_guide(page)]
    known = (*START, *GUIDES, *EVIDENCE)
    boards: dict[str, str] = {}
    for board in board_excerpts.boards():
        boards.setdefault(SITE.places[board.page], board.title)
    readmes = [page for page in texts if not _is_guide(page) and not page.startswith("results/boards/")]
    top = [page for page in readmes if "/" not in page]
    folders = [page for page in readmes if "/" in page]
    return [
        {"Start": [page for page in START if page in own]},
        {"Guides": [page for page in (*GUIDES, *(page for page in own if page not in known)) if page in own]},
        {"Boards": [{title: page} for page, title in boards.items()]},
        {"Evidence": [page for page in EVIDENCE if page in own]},
        {
            "Repository": [
                *({_short(page): SITE.places[page]} for page in top),
                {"Folders": [{_short(page): SITE.places[page]} for page in folders]},
            ]
        },
    ]


def _is_guide(page: str) -> bool:
    """Whether mkdocs finds the page by itself."""
    return page.startswith("docs/") and not page.startswith("docs/generator/")


def _short(page: str) -> str:
    """The name of a page of the repository: its folder, or its own where it is no README."""
    name = page.removesuffix(".md")
    return name.removesuffix("/README") if name.endswith("/README") else name


def _by_family(registry: Any, folder: str, families: dict[str, str]) -> list[Any]:
    grouped: dict[str, list[Any]] = {}
    for name in registry_pages.names(registry):
        family = registry_pages.family(registry, name)
        title = families.get(family, family.replace("_", " ").capitalize())
        grouped.setdefault(title, []).append({name: f"{folder}/{name}.md"})
    order = [title for title in families.values() if title in grouped]
    rest = [title for title in grouped if title not in order]
    return [f"{folder}/index.md", *({title: grouped[title]} for title in [*order, *rest])]


def _place(path: str) -> str | None:
    """Where the site has a file of the repository; of a folder its page."""
    path = path.rstrip("/")
    if path.startswith("docs/figures/"):
        return path.removeprefix("docs/")
    return SITE.places.get(path) or SITE.places.get(f"{path}/README.md")


def _add_linked(files: Files, config: MkDocsConfig, path: str) -> None:
    """Copies a file of the repository into the site; source code as text, which a browser shows."""
    source = ROOT / path
    is_page = path.startswith("docs/") and not path.startswith(LEFT_OUT)
    if path.startswith("..") or is_page or _place(path) or not source.is_file():
        return
    is_picture = source.suffix in PICTURES
    place = f"source/{path}" if is_picture else f"source/{path}.txt"
    _add(files, config, place, source.read_bytes() if is_picture else source.read_text(encoding="utf-8"))
    SITE.places[path] = place


def _add(files: Files, config: MkDocsConfig, place: str, content: str | bytes) -> None:
    files.append(File.generated(config, place, content=content))
