"""Links and anchors of all Markdown of the repository, and the reader that finds them."""

from attnbench.docs.generator.links import check_markdown, check_site
from attnbench.docs.generator.repository import anchors_of, links_of, markdown_files, slug


def test_every_link_between_pages_of_the_repository_leads_to_a_file_and_a_heading():
    checked = check_markdown()
    assert checked.faults == [] and checked.pages > 50 and checked.links > 50
    assert {"README.md", "docs/concepts.md", "variants/kernels/NOTES.md"} <= set(markdown_files())


def test_a_missing_file_a_missing_heading_and_a_way_out_of_the_repository_are_faults(tmp_path):
    (tmp_path / "there.md").write_text("# A heading\n")
    (tmp_path / "page.md").write_text(
        "[a](there.md#a-heading) [b](there.md#other)\n[over\ntwo lines](gone.md) [c](../x) [d](https://x.org/y)\n"
    )
    checked = check_markdown(tmp_path, ["page.md", "there.md"])
    assert [fault.partition(": ")[2] for fault in checked.faults] == [
        "there.md#other: there.md has no heading #other",
        "gone.md: there is no gone.md",
        "../x: there is no ../x",
    ]
    assert (checked.links, checked.anchors) == (4, 2)


def test_links_in_code_are_none_and_lines_are_counted_over_code():
    text = "a [x](y.md)\n\n```sh\n[no](no.md)\n```\n\n    [no](no.md)\n\n`[no](no.md)` and [`code`](z.md)\n"
    assert [(link.line, link.path) for link in links_of("docs/p.md", text)] == [(1, "docs/y.md"), (9, "docs/z.md")]


def test_anchors_are_those_of_code_hosts():
    assert slug("How to add …") == "how-to-add-"
    assert anchors_of("# A `b` c\n\n## A b c\n\n```\n# no heading\n```\n") == {"a-b-c", "a-b-c-1"}


def test_a_site_that_loads_from_elsewhere_or_lacks_a_page_has_faults(tmp_path):
    (tmp_path / "index.html").write_text('<script src="https://x.org/a.js"></script><a href="b.html#c">b</a>')
    (tmp_path / "b.html").write_text('<h1 id="d">b</h1><a href="gone.html">x</a><img src="data:,">')
    assert sorted(check_site(tmp_path).faults) == [
        "b.html: gone.html: there is no such file",
        "index.html: b.html#c: no such anchor",
        "index.html: loads https://x.org/a.js from elsewhere",
    ]
