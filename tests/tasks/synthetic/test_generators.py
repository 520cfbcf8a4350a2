"""Every label recomputed from the ids alone, by loops that know the task's text and none of its code; streams apart."""

import numpy as np
import pytest

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec
from attnbench.tasks.contract import DataPlace, Dataset
from attnbench.tasks.problems.token_prediction import TokenBatch, TokenRecipe
from attnbench.tasks.synthetic.max_retrieval import MaxPooled
from attnbench.tasks.synthetic.task import SyntheticTask, distinct, first_value, majority

Answers = dict[int, tuple[int, int | None]]
"""By asked position: the answer, and the place that holds it."""


def solve_recall(ids: list[int], first: int = 2, last: int = 128) -> Answers:
    """Ids of 256: 2 to 128 are keys, 129 to 255 values, 1 is filler."""
    seen: dict[int, tuple[int, int]] = {}
    found: Answers = {}
    for at, token in enumerate(ids[:-1]):
        if first <= token <= last:
            if token in seen:
                found[at] = seen[token]
            else:
                seen[token] = (ids[at + 1], at + 1)
    return found


def solve_noisy_recall(ids: list[int]) -> Answers:
    """Ids of 160: 1 to 16 are noise, 17 to 87 keys, 88 to 158 values."""
    return solve_recall(ids, 17, 87)


def solve_max(ids: list[int]) -> Answers:
    assert ids[-1] == 1
    priorities = [(token - 2) // 8 for token in ids[:-1]]
    [place] = [at for at, each in enumerate(priorities) if each == max(priorities)]
    return {len(ids) - 1: (2 + (ids[place] - 2) % 8, place)}


def solve_selective_copy(ids: list[int]) -> Answers:
    """1 begins, 2 starts the copy, 3 is blank, 4 to 11 are data."""
    start = ids.index(2)
    places = [at for at in range(start) if ids[at] >= 4]
    assert ids[0] == 1 and set(ids[1:start]) <= set(range(3, 12))
    assert ids[start + 1 :] == [ids[at] for at in places][:-1]
    return {start + number: (ids[at], at) for number, at in enumerate(places)}


def solve_flip_flop(ids: list[int]) -> Answers:
    """1 writes, 2 reads, 3 ignores; 4 and 5 are bits."""
    found: Answers = {}
    last, place = 0, 0
    assert ids[0] == 1 and ids[-2] == 2
    for at in range(0, len(ids), 2):
        if ids[at] == 1:
            last, place = ids[at + 1], at + 1
        elif ids[at] == 2:
            assert ids[at + 1] == last
            found[at] = (last, place)
        else:
            assert ids[at] == 3
    return found


def solve_two_back(ids: list[int]) -> Answers:
    return {at: (ids[at - 2], at - 2) for at in range(2, len(ids))}


def solve_parity(ids: list[int], modulus: int = 2) -> Answers:
    """The digit d is the id d + 1, and so is a sum; the later half is asked."""
    assert set(ids) <= set(range(1, modulus + 1))
    return {at: (1 + sum(each - 1 for each in ids[: at + 1]) % modulus, None) for at in range(len(ids) // 2, len(ids))}


def solve_stack(ids: list[int]) -> Answers:
    """1 pushes, 2 pops, 3 to 18 are values."""
    lies: list[tuple[int, int]] = []
    found: Answers = {}
    for at in range(0, len(ids), 2):
        assert ids[at] in (1, 2) and 3 <= ids[at + 1] <= 18
        if ids[at] == 1:
            lies.append((ids[at + 1], at + 1))
        else:
            found[at] = lies.pop()
            assert ids[at + 1] == found[at][0]
    return found


def written(ids: list[int], target: list[tuple[int, int | None]]) -> Answers:
    """1 stands between source and target, 2 ends the target."""
    start = ids.index(1)
    assert ids[start + 1 :] == [token for token, _ in target]
    return {start + number: each for number, each in enumerate([*target, (2, None)])}


def solve_copy(ids: list[int]) -> Answers:
    return written(ids, [(token, at) for at, token in enumerate(ids[: ids.index(1)])])


def solve_reverse(ids: list[int]) -> Answers:
    return written(ids, [(token, at) for at, token in enumerate(ids[: ids.index(1)])][::-1])


def solve_sort(ids: list[int]) -> Answers:
    return written(ids, [(token, None) for token in sorted(ids[: ids.index(1)])])


def solve_mqmtar(ids: list[int]) -> Answers:
    """1 is a space, 2 stands between key and value, 3 before a question and an answer, 4 starts the answers, 5 ends."""
    start = ids.index(4)
    values = {(ids[at - 2], ids[at - 1]): at for at in range(start) if ids[at] == 2}
    assert len(values) == ids[:start].count(2)
    questions = [(ids[at + 1], ids[at + 2]) for at in range(start) if ids[at] == 3]
    assert len(questions) == 4 and len(set(questions)) == 4
    found: list[tuple[int, int | None]] = []
    for key in questions:
        at = values[key]
        found += [(3, None), (ids[at + 1], at + 1), (ids[at + 2], at + 2)]
    assert ids[start + 1 :] == [token for token, _ in found]
    return {start + number: each for number, each in enumerate([*found, (5, None)])}


SOLVERS = {
    "recall": solve_recall, "noisy-recall": solve_noisy_recall, "max": solve_max,
    "selective-copy": solve_selective_copy, "flip-flop": solve_flip_flop, "two-back": solve_two_back,
    "parity": solve_parity, "stack": solve_stack,
    "copy": solve_copy, "reverse": solve_reverse, "sort": solve_sort, "mqmtar": solve_mqmtar,
}  # fmt: skip


def task_named(text: str) -> SyntheticTask:
    found: SyntheticTask = TASKS.build(Spec.parse(text))
    return found


def loaded(place: DataPlace, text: str, seed: int = 0, selection: str = "validation") -> tuple[Dataset, TokenRecipe]:
    task = task_named(text)
    recipe = task.recipe(Spec("smoke"))
    return task.load(place, recipe, seed, selection), recipe


def check(ids: list[int], asked: list[int], answers: list[int], keys: list[int], name: str) -> None:
    expected = SOLVERS[name](ids)
    count = sum(answer > 0 for answer in answers)
    assert answers[count:] == [0] * (len(answers) - count)
    assert dict(zip(asked[:count], answers[:count], strict=True)) == {at: a for at, (a, _) in expected.items()}
    where = {at: -1 if key is None else key for at, (_, key) in expected.items()}
    assert dict(zip(asked[:count], keys[:count], strict=True)) == where
    assert len(asked[:count]) == len(set(asked[:count])) and 0 not in ids


def check_batch(batch: TokenBatch, name: str) -> None:
    for row in zip(batch.ids, batch.asked, batch.answers, batch.right_keys, strict=True):
        check(*(each.tolist() for each in row), name)


@pytest.mark.parametrize("name", SOLVERS)
def test_every_label_of_training_validation_and_test_is_that_of_the_solver(name: str, place: DataPlace) -> None:
    data, recipe = loaded(place, name)
    for step in range(12):
        check_batch(data.train.at(step, 6, name, 0), name)
    for subset in (data.validation, data.test):
        for at in range(len(subset)):
            batch, lengths = subset.taken(np.array([at]))
            assert batch.ids.shape[1] == lengths[0] == len(subset.split.sequence(at))
            check_batch(batch, name)
    quick = task_named(name)
    if "quick" in quick.presets():
        recipe = quick.recipe(Spec("quick"))  # type: ignore[assignment]
        random = np.random.default_rng(0)
        for setting in quick.settings(recipe):
            check_batch(quick.draw(random, 2, setting), name)


@pytest.mark.parametrize("name", SOLVERS)
def test_splits_have_exact_counts_and_lengths_within_what_the_problem_says(name: str, place: DataPlace) -> None:
    task = task_named(name)
    data, recipe = loaded(place, name)
    test, problem = data.test, task.problem()
    assert test.settings == task.settings(recipe) and len({tuple(each.items()) for each in test.settings}) > 0
    assert np.bincount(test.labels).tolist() == [recipe.test_examples // len(test.settings)] * len(test.settings)
    assert len(data.validation) == recipe.validation_examples
    for at, setting in enumerate(test.settings):
        longest = test.lengths()[test.labels == at]
        assert setting["length"] <= longest.min() and longest.max() <= problem.tokens(int(setting["length"]))
        assert setting["length"] <= recipe.longest
    drawn = {data.train.at(step, 2, name, 0).ids.shape[1] for step in range(60)}
    least, most = recipe.shortest, problem.tokens(recipe.length)
    assert least <= min(drawn) and max(drawn) <= most and len(drawn) > 1
    assert int(test.split.tokens.max()) < problem.vocabulary and int(test.answers.max()) < problem.vocabulary


@pytest.mark.parametrize("name", SOLVERS)
def test_no_sequence_of_a_test_is_in_training_or_validation(name: str, place: DataPlace) -> None:
    data, recipe = loaded(place, name)
    tested = {sequence.tobytes() for sequence in data.test.sequences()}
    assert len(tested) == len(data.test)
    for step in range(200):
        assert tested.isdisjoint(row.tobytes() for row in data.train.at(step, recipe.batch, name, 0).ids)
    assert tested.isdisjoint(row.tobytes() for row in data.validation.sequences())


@pytest.mark.parametrize("name", SOLVERS)
def test_the_test_is_the_same_for_every_seed_and_validation_is_not(name: str, place: DataPlace) -> None:
    (one, _), (again, _), (other, _) = (loaded(place, name, seed) for seed in (0, 0, 1))
    assert np.array_equal(one.test.split.tokens, other.test.split.tokens)
    assert one.provenance.files == other.provenance.files
    assert np.array_equal(one.validation.split.tokens, again.validation.split.tokens)
    assert not np.array_equal(one.validation.split.tokens, other.validation.split.tokens)
    chosen_on_test, _ = loaded(place, name, selection="test")
    assert np.array_equal(chosen_on_test.validation.split.tokens, one.test.split.tokens)
    assert any("chosen on the test split" in note for note in chosen_on_test.provenance.notes)


def test_a_sum_of_three_digits_is_taken_modulo_three() -> None:
    task = task_named("parity[modulus=3]")
    batch = task.draw(np.random.default_rng(0), 50, {"length": 21})
    for row in zip(batch.ids, batch.asked, batch.answers, strict=True):
        ids, asked, answers = (each.tolist() for each in row)
        expected = solve_parity(ids, 3)
        assert dict(zip(asked, answers, strict=True)) == {at: answer for at, (answer, _) in expected.items()}
    assert set(batch.answers.ravel().tolist()) == {1, 2, 3} and task.metric.chance == pytest.approx(1 / 3)


@pytest.mark.parametrize(("name", "values"), [
    ("recall", 127), ("noisy-recall", 71), ("max", 8), ("selective-copy", 8), ("flip-flop", 2), ("two-back", 16),
    ("parity", 2), ("parity[modulus=3]", 3),
])  # fmt: skip
def test_answers_are_spread_as_chance_says(name: str, values: int) -> None:
    task = task_named(name)
    recipe = task.recipe(Spec("smoke"))
    drawn = task.draw_training(recipe)  # type: ignore[arg-type]
    random = np.random.default_rng(0)
    answers = np.concatenate([drawn(random, 200).answers.ravel() for _ in range(20)])
    counts = np.bincount(answers[answers > 0])
    counts = counts[counts > 0]
    assert len(counts) == values and task.metric.chance == pytest.approx(1 / values)
    # the largest of so many shares stays within five deviations of the mean
    mean = counts.sum() / values
    assert abs(counts - mean).max() < 5 * np.sqrt(mean) + 1


def test_numbers_without_repeats_are_spread_evenly_whichever_way_they_are_drawn() -> None:
    for count, of in ((3, 50), (20, 50)):
        drawn = distinct(np.random.default_rng(0), 5_000, count, of)
        assert all(len(set(row)) == count for row in drawn.tolist())
        seen = np.bincount(drawn.ravel(), minlength=of) / 5_000
        np.testing.assert_allclose(seen, count / of, atol=5 * np.sqrt(count / of / 5_000))
        first = np.bincount(drawn[:, 0], minlength=of) / 5_000
        np.testing.assert_allclose(first, 1 / of, atol=5 * np.sqrt(1 / of / 5_000))


def test_the_majority_is_the_commonest_answer_of_training_and_the_first_value_one_of_the_sequence(
    place: DataPlace,
) -> None:
    data, recipe = loaded(place, "selective-copy[values=2]")
    assert len(np.unique(majority(data, recipe))) == 1
    values = first_value(data, recipe)
    for row, sequence in enumerate(data.test.sequences()):
        assert values[row, 0] == next(token for token in sequence.tolist() if token >= 4)


def test_a_preset_whose_longest_test_is_shorter_than_every_setting_is_refused(place: DataPlace) -> None:
    task = task_named("recall")
    recipe = task.recipe(Spec.parse("smoke[longest=32]"))
    with pytest.raises(SelectionError, match="no setting as short as longest=32"):
        task.load(place, recipe, 0, "validation")


# ---------------------------------------------------------------- the pooled form


def test_the_pooled_form_has_the_class_of_the_highest_item_at_every_length(place: DataPlace) -> None:
    task = MaxPooled()
    recipe = task.recipe(Spec("smoke"))
    data, other = (task.load(place, recipe, seed, "validation") for seed in (0, 1))
    lengths = set()
    for subset in (data.train, data.validation, data.test):
        for ids, label in zip(subset.sequences(), subset.labels, strict=True):
            [(answer, _)] = solve_max([*ids.tolist(), 1]).values()
            assert answer == 2 + label
            lengths.add(len(ids))
    assert min(lengths) == 4 and max(lengths) == recipe.length
    assert [len(subset) for subset in (data.train, data.validation, data.test)] == [64, 32, 64]
    assert np.array_equal(data.test.split.tokens, other.test.split.tokens)
    assert not np.array_equal(data.train.split.tokens, other.train.split.tokens)
    tested = {ids.tobytes() for ids in data.test.sequences() if len(ids) > 6}
    assert tested.isdisjoint(ids.tobytes() for ids in data.train.sequences())
