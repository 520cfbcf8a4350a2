import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attnbench.bench.core.record import Provenance
from attnbench.tasks.contract import Recipe
from attnbench.tasks.data.data import make_dataset, stratified
from attnbench.tasks.data.prepared import PreparedData, pack

LABELS = np.arange(1_000) % 2


def prepared(train: int = 1_000, test: int = 300, repeated: tuple[int, ...] = (), **more: int) -> PreparedData:
    sizes = {"train": train, "test": test, **more}
    splits = {
        name: pack([np.array([1 + i % 7], np.uint16) for i in range(n)], [i % 2 for i in range(n)])
        for name, n in sizes.items()
    }
    provenance = Provenance(source="x", fidelity="official", notes=("as found",))
    return PreparedData(splits=splits, provenance=provenance, repeated={"train": repeated})


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=80).map(np.array),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**63 - 1),
)
def test_a_stratified_slice_has_its_size_and_each_labels_share(labels: np.ndarray, share: float, seed: int) -> None:
    count = int(share * len(labels))
    taken = stratified(labels, count, seed)
    assert len(set(taken.tolist())) == count and (np.diff(taken) > 0).all()
    expected = np.bincount(labels, minlength=5) * count / len(labels)
    # a label's count is within half an example of its share of the ranks up to the cut, and so is their sum, per label
    classes = len(np.unique(labels))
    assert np.abs(np.bincount(labels[taken], minlength=5) - expected).max() <= (1 + classes) / 2 + 1e-9


def test_a_smaller_slice_is_part_of_a_larger_one() -> None:
    small, large = stratified(LABELS, 100, 7), stratified(LABELS, 400, 7)
    assert set(small.tolist()) < set(large.tolist())
    assert set(small.tolist()) != set(stratified(LABELS, 100, 8).tolist())


def test_slices_are_the_same_under_every_numpy() -> None:
    """Pinned: a new numpy that draws others would silently change every test slice."""
    assert stratified(LABELS, 6, seed=(1 << 40) + 3).tolist() == [113, 158, 273, 324, 397, 444]


def test_excluded_examples_are_never_drawn_and_balance_holds_all_the_same() -> None:
    excluded = np.arange(0, 400, 2)  # 200 of label 0
    taken = stratified(LABELS, 500, 3, excluded)
    assert not np.isin(taken, excluded).any()
    assert np.bincount(LABELS[taken]).tolist() == [250, 250]


def test_validation_is_carved_from_training_balanced_and_apart() -> None:
    dataset = make_dataset(
        prepared(repeated=(3, 5)), task="t", recipe=Recipe(validation_examples=None), seed=0, selection="validation"
    )
    train, held_out = set(dataset.train.indices.tolist()), set(dataset.validation.indices.tolist())
    assert len(held_out) == 100 and len(train) == 900 and not train & held_out
    assert np.bincount(dataset.validation.labels).tolist() == [50, 50]
    assert dataset.provenance.counts == {"train": 900, "validation": 100, "test": 300}
    assert {3, 5} <= train, "content that occurs elsewhere stays out of validation"


def test_the_carve_out_depends_on_the_seed_and_the_test_slice_does_not() -> None:
    recipe = Recipe(validation_examples=40, test_examples=50, train_examples=200)
    first, second = (make_dataset(prepared(), task="t", recipe=recipe, seed=s, selection="validation") for s in (0, 1))
    assert first.test.indices.tolist() == second.test.indices.tolist()
    assert first.validation.indices.tolist() != second.validation.indices.tolist()
    assert first.train.indices.tolist() != second.train.indices.tolist()
    again = make_dataset(prepared(), task="t", recipe=recipe, seed=0, selection="validation")
    assert again.train.indices.tolist() == first.train.indices.tolist()
    other = make_dataset(prepared(), task="another", recipe=recipe, seed=0, selection="validation")
    assert other.test.indices.tolist() != first.test.indices.tolist()


def test_every_slice_is_told_on_the_board() -> None:
    recipe = Recipe(validation_examples=40, test_examples=50, train_examples=200)
    notes = make_dataset(prepared(), task="t", recipe=recipe, seed=0, selection="validation").provenance.notes
    assert notes == (
        "as found",
        "test: seeded slice of 50 of 300",
        "validation: seeded slice of 40 of 100",
        "train: seeded slice of 200 of 900",
    )


def test_validation_is_the_test_split_only_when_selection_says_so() -> None:
    recipe = Recipe(validation_examples=40, test_examples=60)
    dataset = make_dataset(prepared(), task="t", recipe=recipe, seed=0, selection="test")
    assert dataset.validation.indices.tolist() == dataset.test.indices.tolist()
    assert dataset.validation.split is dataset.test.split and len(dataset.train) == 1_000
    assert any("chosen on the test split" in note for note in dataset.provenance.notes)
    usual = make_dataset(prepared(), task="t", recipe=recipe, seed=0, selection="validation")
    assert usual.validation.split is not usual.test.split
    assert not any("chosen on the test split" in note for note in usual.provenance.notes)


def test_a_validation_split_of_its_own_is_used_and_training_keeps_everything() -> None:
    recipe = Recipe(validation_examples=None)
    dataset = make_dataset(prepared(validation=70), task="t", recipe=recipe, seed=0, selection="validation")
    assert len(dataset.validation) == 70 and len(dataset.train) == 1_000
