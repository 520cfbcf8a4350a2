"""Links of all Markdown of the repository. `mkdocs build --strict` checks them too, in a slow test."""

import re
from itertools import pairwise
from pkgutil import resolve_name
from posixpath import dirname, join, normpath

from markdown_it import MarkdownIt

from attnbench.docs.generator.repository import ROOT, markdown_files

READER = MarkdownIt().enable("table")


def links_and_anchors(text):
    """The targets of a page's links, and the anchors that a code host gives to its headings."""
    tokens = READER.parse(text)
    inner = [child for token in tokens for child in token.children or ()]
    targets = [str(token.attrs.get("href") or token.attrs.get("src") or "") for token in inner]
    headings = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return [target for target in targets if target and not re.match(r"[a-z+]+:|//", target)], anchors


def test_every_link_between_pages_of_the_repository_leads_to_a_file_and_a_heading():
    pages = {path: links_and_anchors((ROOT / path).read_text(encoding="utf-8")) for path in markdown_files()}
    assert {"README.md", "docs/concepts.md", "variants/kernels/NOTES.md"} <= pages.keys()
    checked, faults = 0, []
    for page, (targets, _) in pages.items():
        for target in targets:
            path, _, anchor = target.partition("#")
            path = normpath(join(dirname(page), path)) if path else page
            checked += 1
            if path.startswith("..") or not (ROOT / path).exists() or (anchor and anchor not in pages[path][1]):
                faults.append(f"{page}: {target}")
    assert faults == [] and checked > 50


def test_the_reference_names_what_the_package_has():
    named = [
        name
        for page in (ROOT / "docs" / "reference").glob("*.md")
        for name in re.findall(r"^::: (\S+)", page.read_text("utf-8"), re.MULTILINE)
    ]
    assert len(named) > 20 and all(resolve_name(name) is not None for name in named)
