"""The words for what ended code of others."""

from pathlib import Path

import pytest

from attnbench.bench.core.errors import crash_text
from attnbench.bench.core.targets import target_of


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def words_of(error: type[Exception], *arguments: object) -> str:
    try:
        raise error(*arguments)
    except Exception as raised:
        return crash_text(raised)


def test_a_crash_is_one_line_with_its_innermost_frame() -> None:
    assert words_of(ValueError, "a\nb " + "x" * 9_000).startswith("ValueError: a b xxx")
    assert len(words_of(ValueError, "x" * 9_000)) < 600
    assert words_of(KeyError, "k").endswith("(words_of, line 18)")


def test_an_exception_that_has_no_text_is_named_all_the_same() -> None:
    assert words_of(Mute).startswith("Mute: its text cannot be had (words_of, line ")


def test_a_syntax_error_names_its_own_place_and_no_frame_of_the_importer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken_here.py").write_text("def f(:\nM = 1\n", encoding="utf-8")
    target = target_of("broken_here.py:M")
    assert target is not None
    with pytest.raises(SyntaxError) as caught:
        target.load()
    assert crash_text(caught.value) == "SyntaxError: invalid syntax (broken_here.py, line 1)"
