"""A folder of one's own text: what its sets are called says which train, and each test set is judged by itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.bench.core.errors import DataError, SelectionError
from attnbench.bench.core.spec import Spec
from attnbench.tasks.contract import DataPlace, Dataset
from attnbench.tasks.translation.problem import TranslationRecipe
from attnbench.tasks.translation.tasks import Parallel

pytest.importorskip("sentencepiece", reason="the extra `translation` is not installed")
pytest.importorskip("sacrebleu", reason="the extra `translation` is not installed")


def write(place: DataPlace, name: str, count: int, languages: tuple[str, str] = ("de", "en")) -> Path:
    folder = place.root / "mine"
    folder.mkdir(exist_ok=True)
    for language in languages:
        lines = [f"{name} {language} {number}\n" for number in range(count)]
        (folder / f"{name}.{language}").write_text("".join(lines), encoding="utf-8")
    return folder


def load(place: DataPlace, **parameters) -> Dataset:
    task = Parallel(path="mine", source="de", target="en", **parameters)
    recipe = replace(task.recipe(Spec("smoke")), vocabulary=70, test_examples=None)
    return task.load(place, recipe, 0, "validation")


def test_every_test_set_is_judged_under_its_own_name_and_the_one_called_test_ranks(place):
    for name, count in (("books", 60), ("test", 5), ("test_b", 4), ("Test.c", 3), ("test2016", 2)):
        write(place, name, count)
    test = load(place).test
    assert test.sets == ("test", "Test.c", "test2016", "test_b")
    assert test.labels.tolist() == [0] * 5 + [1] * 3 + [2] * 2 + [3] * 4
    assert [test.references[at] for at in (0, 5, 8, 10)] == ["test en 0", "Test.c en 0", "test2016 en 0", "test_b en 0"]


def test_only_names_that_say_so_are_held_out(place):
    for name, count in (("books", 60), ("test", 5), ("testament", 7), ("devtools", 8), ("value", 9), ("valid-1", 6)):
        write(place, name, count)
    dataset = load(place)
    assert dataset.provenance.counts == {"train": 60 + 7 + 8 + 9, "validation": 6, "test": 5}
    assert dataset.test.sets == ("test",)
    assert dataset.provenance.fidelity == "own"


def test_several_sets_to_validate_on_are_refused_by_name(place):
    for name in ("books", "test", "valid", "dev.2020"):
        write(place, name, 20)
    with pytest.raises(DataError, match=r"one set to validate on, got dev\.2020, valid: join them"):
        load(place)
    (way,) = Parallel(path="mine", source="de", target="en").availability(place)
    assert not way.ready and "dev.2020, valid" in way.detail


def test_a_set_to_train_on_that_is_not_there_is_refused_with_those_that_are(place):
    for name in ("books", "talks", "test"):
        write(place, name, 20)
    with pytest.raises(DataError, match=r"expected sets to join parts of books, talks by plus signs, got 'boks'"):
        load(place, sets="talks+boks")
    assert load(place, sets="talks").provenance.counts["train"] == 18


def test_what_a_folder_lacks_is_said(place):
    with pytest.raises(SelectionError, match="path=FOLDER"):
        Parallel().load(place, TranslationRecipe(), 0, "validation")
    with pytest.raises(DataError, match=r"mine: there is no such folder; put SET\.L1"):
        load(place)
    (place.root / "mine").mkdir()
    with pytest.raises(DataError, match="no set of these languages"):
        load(place)
    write(place, "test", 5)
    with pytest.raises(DataError, match="test, and none to train on"):
        load(place)
    write(place, "books", 20)
    for side in ("de", "en"):
        (place.root / "mine" / f"test.{side}").unlink()
    with pytest.raises(DataError, match="books, and none called test"):
        load(place)
