"""The files of the site: pages of docs/, pages of the rest of the repository, generated pages, and files they link to.

mkdocs calls these functions. It knows each file by its path in the repository, so that links between files hold in the
site as they do on a code host, and `mkdocs build --strict` checks every link and anchor. In the site, files from
outside docs/ stand below `source/`.
"""

from __future__ import annotations

import re
from posixpath import dirname, join, normpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from attnbench.bench.core.registry import VARIANTS
from attnbench.docs.generator import boards, registry_pages
from attnbench.docs.generator.commands_page import commands_page
from attnbench.docs.generator.lists import for_python_markdown
from attnbench.docs.generator.repository import ROOT, markdown_files

START = ("index", "getting-started", "reading-a-board", "concepts", "statistics", "choosing", "commands")
GUIDES = (
    "own-variant", "own-kernel", "own-data", "reading-records", "records", "public-board", "clusters", "gpu",
    "huggingface", "atom-maps",
)  # fmt: skip
"""The order of the pages of docs/; a page that stands in no list here is the last of the guides."""

EVIDENCE = ("audit", "huggingface-models", "negative-results", "scoring_simulations")
REFERENCE = ("commands", "python", "variant-contract", "task-contract")

PICTURES = (".png", ".svg", ".jpg")

LINK = re.compile(r"\]\(([^()\s#:]+)")
"""A link to a file of the repository; a match inside of code does no harm."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by all files of the site."""
    site = Files([file for file in files if file.src_dir != config.docs_dir])
    pages = {path: (ROOT / path).read_text(encoding="utf-8") for path in markdown_files()}
    pages |= {"docs/reference/commands.md": commands_page()}
    registries: dict[str, Any] = {}
    for registry, folder, title, families, introduction in registry_pages.REGISTRIES:
        registries[title] = registry_pages.navigation(registry, folder, families)
        pages[f"docs/{folder}/index.md"] = registry_pages.index_page(registry, title, introduction, families)
        for name in registry_pages.names(registry):
            page = registry_pages.variant_page if registry is VARIANTS else registry_pages.task_page
            pages[f"docs/{folder}/{name}.md"], pictures = page(name)
            for file, content in pictures.items():
                site.append(_file(config, f"docs/{folder}/{file}", content))
    for path, text in pages.items():
        site.append(_file(config, path, text))
    linked = {normpath(join(dirname(path), target)) for path, text in pages.items() for target in LINK.findall(text)}
    for path in sorted(linked - pages.keys() | {"docs/site.css"}):
        if (ROOT / path).is_file() and not path.startswith(".."):
            site.append(_file(config, path, (ROOT / path).read_bytes()))
            # a template of docs/public-board may be a page that is linked and stands in no list
            site.get_file_from_path(path).inclusion = InclusionLevel.NOT_IN_NAV
    config.nav = _navigation(list(pages), registries)
    return site


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rank guides before pages of the repository in a search, and write lists as Python-Markdown reads them."""
    page.meta.setdefault("search", {"boost": 0.5 if page.url.startswith("source/") else 2})
    return for_python_markdown(markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the drawings of docs/figures into the page itself, where they take its colours and not their own."""

    def inlined(image: re.Match[str]) -> str:
        svg = (ROOT / "docs" / "figures" / image[1]).read_text(encoding="utf-8")
        bare = re.sub(r"<style>.*?</style>\n", "", svg, flags=re.DOTALL)
        return f'<div class="figure">{bare}</div>'

    return re.sub(r'<img [^>]*src="[^"]*figures/([\w-]+\.svg)"[^>]*>', inlined, html)


def _file(config: MkDocsConfig, path: str, content: str | bytes) -> File:
    """A file that mkdocs knows by its `path` in the repository, at its place in the site."""
    file = File(path, None, config.site_dir, use_directory_urls=False, dest_uri=_place(path))
    if isinstance(content, str):
        file.content_string = content
    else:
        file.content_bytes = content
    return file


def _place(path: str) -> str:
    """Return the place of a file of the repository in the site; source code is text there, which a browser shows."""
    is_guide = path.startswith("docs/") and not path.startswith("docs/generator/")
    place = path.removeprefix("docs/") if is_guide else f"source/{path}"
    if path.endswith(".md"):
        return re.sub(r"(^|/)README$", r"\1index", place.removesuffix(".md")) + ".html"
    return place if is_guide or path.endswith(PICTURES) else f"{place}.txt"


def _navigation(pages: list[str], registries: dict[str, Any]) -> list[Any]:
    own = [page.removeprefix("docs/").removesuffix(".md") for page in pages if re.fullmatch(r"docs/[\w-]+\.md", page)]
    others = [name for name in own if name not in (*START, *GUIDES, *EVIDENCE)]
    rest = [page for page in pages if _place(page).startswith("source/") and not page.startswith("results/boards/")]

    def guides(*names: str) -> list[str]:
        return [f"docs/{name}.md" for name in names]

    return [
        {"Start": guides(*START)},
        {"Guides": guides(*GUIDES, *others)},
        {"Boards": [{board.title: board.page} for board in boards.first_boards()]},
        *({title: listed} for title, listed in registries.items()),
        {"Evidence": guides(*EVIDENCE)},
        {"Reference": [f"docs/reference/{name}.md" for name in REFERENCE]},
        {"Repository": [{page.removesuffix(".md").removesuffix("/README"): page} for page in rest]},
    ]
