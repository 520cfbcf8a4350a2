"""Docstrings and tables as Markdown: the examples of the functions hold."""

import doctest

import pytest

from attnbench.docs.generator import markdown, repository


def test_the_examples_of_the_text_functions_hold():
    for module in (markdown, repository):
        assert doctest.testmod(module).failed == 0 and doctest.testmod(module).attempted > 0


def test_examples_and_parameters_of_docstrings_become_code_and_lists():
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    from attnbench.docs.generator import docstrings

    assert doctest.testmod(docstrings).failed == 0
    text = "Words.\n\n>>> f(1)  # doctest: +SKIP\n2\n\nMore."
    assert docstrings.fenced(text) == "Words.\n\n```pycon\n>>> f(1)\n2\n```\n\nMore."
