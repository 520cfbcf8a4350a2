"""Docstrings and lists as Markdown."""

import re

import pytest

from attnbench.docs.generator import lists


def test_examples_and_parameters_of_docstrings_become_code_and_lists():
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    from attnbench.docs.generator import docstrings

    text = "Words.\n\n>>> f(1)  # doctest: +SKIP\n2\n\nMore."
    assert docstrings.fenced(text) == "Words.\n\n```pycon\n>>> f(1)\n2\n```\n\nMore."


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("Words\n- one\n- two\n", ["p", "ul", "li", "li"]),
        ("1. one\n\n       code\n       more\n2. two\n", ["ol", "li", "p", "pre", "li", "p"]),
        ("1. one\n\n   more\n\n2. two\n\nend\n", ["ol", "li", "p", "p", "li", "p", "p"]),
        ("- one of\n  62. of them\n- two\n", ["ul", "li", "li"]),
        ("of\n1984. that is\n", ["p"]),
        ("- one\n  - inner\n", ["ul", "li", "ul", "li"]),
        ("```\n- no\n```\n", ["pre"]),
        ("- one\n\n      code\n\nend\n", ["ul", "li", "pre", "p"]),
    ],
)
def test_lists_are_read_as_code_hosts_read_them(text, tags):
    markdown_of = pytest.importorskip("markdown", reason="the extra docs is not installed").markdown
    made = markdown_of(lists.for_python_markdown(text), extensions=["fenced_code"])
    assert re.findall(r"<(p|ul|ol|li|pre)\b", made) == tags
