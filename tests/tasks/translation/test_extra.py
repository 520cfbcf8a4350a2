"""Translation on a machine that lacks what it needs beside the data."""

import sys

import pytest

from attnbench.bench.core.errors import DataError
from attnbench.tasks.contract import DataPlace
from attnbench.tasks.translation.problem import TranslationRecipe
from attnbench.tasks.translation.tasks import EnglishGerman, Parallel


@pytest.fixture
def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sacrebleu", "sacrebleu.utils", "sentencepiece"):
        monkeypatch.setitem(sys.modules, name, None)


def test_without_the_extra_a_task_says_what_is_there_and_what_to_install(place: DataPlace, without_the_extra):
    task = EnglishGerman
    *_, downloaded = task().availability(place)
    assert not downloaded.ready and downloaded.detail == "sacreBLEU is not installed"
    assert downloaded.advice == "pip install 'attnbench[translation]'"
    assert task().problem() and task().recipe
    with pytest.raises(DataError, match=r"pip install 'attnbench\[translation\]'"):
        task().load(place, TranslationRecipe(), 0, "validation")


def test_no_source_of_pairs_needs_the_extra_to_say_that_it_has_none(place: DataPlace, without_the_extra):
    task = EnglishGerman()
    found = task.sources(task.cut(TranslationRecipe()))
    assert [source.prepared(place) for source in found] == [None] * 3
    ways = [source.availability(place) for source in found]
    assert "lacks newstest2014" in ways[0].detail and "attnbench[translation]" in ways[2].advice


@pytest.mark.parametrize(("language", "dictionaries"), [("ja", ("MeCab", "ipadic")), ("ko", ("mecab_ko",))])
def test_a_language_that_cannot_be_judged_here_is_refused_before_anything_is_trained(
    language, dictionaries, place: DataPlace, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("sacrebleu", reason="the extra `translation` is not installed")
    for name in dictionaries:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"sacrebleu.tokenizers.tokenizer_{language}_mecab", raising=False)
    with pytest.raises(DataError, match=rf"BLEU of '{language}' needs more: pip install 'sacrebleu\[{language}\]'"):
        Parallel(path="mine", source="en", target=language).load(place, TranslationRecipe(), 0, "validation")
