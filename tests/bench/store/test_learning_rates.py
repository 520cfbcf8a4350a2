"""Which learning rate of a grid is chosen: by validation alone, with ties to the smaller loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.bench.core.cell import FIRST_TUNING_SEED, Cell
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.record import Machine, Measurement, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.facts import recipe_facts
from attnbench.bench.store.learning_rates import choose_rate, first_results, search

MACHINE = Machine(id="here", system="Linux", processor="p", cores=2, threads=2, memory_bytes=1)
Pair = tuple[float, float]


def trial(rate: float, validation: Pair, seed: int = 0, test: float = 0.5, examples: int = 500, **changes) -> Record:
    """A trial with that validation accuracy and loss."""
    cell = Cell(
        variant=Spec("softmax"), task=Spec("t"), preset=Spec.of("quick", learning_rate=rate),
        seed=FIRST_TUNING_SEED + seed, lane="tune",
    )  # fmt: skip
    accuracy, loss = validation
    measured = (
        Measurement.of("accuracy", test, split="test", examples=1000),
        Measurement.of("accuracy", accuracy, split="validation", examples=examples),
        Measurement.of("loss", loss, split="validation", examples=examples),
    )
    record = Record(
        cell=cell, outcome=Outcome.OK, machine=MACHINE, measurements=measured, metric=METRICS["accuracy"],
        digest="a-b-c", started="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    return replace(record, **changes)


def chosen(validations: Mapping[float, Sequence[Pair]], **changes) -> float | None:
    tried = {
        rate: [trial(rate, one, seed, **changes) for seed, one in enumerate(own)] for rate, own in validations.items()
    }
    return choose_rate(tried).rate


@pytest.mark.parametrize(
    ("validations", "expected"),
    [
        ({1e-3: [(0.5, 2.0)], 4e-3: [(0.9, 1.0)]}, 4e-3),
        # a better loss does not make up for accuracy beyond the noise
        ({1e-3: [(0.9, 1.0)], 4e-3: [(0.5, 0.1)]}, 1e-3),
        # sqrt(0.9 * 0.1 / 500) is 1.34 points: 1.2 points are a tie, 1.6 are none
        ({1e-3: [(0.9, 0.5)], 4e-3: [(0.888, 0.4)]}, 4e-3),
        ({1e-3: [(0.9, 0.5)], 4e-3: [(0.884, 0.4)]}, 1e-3),
        # at 100 % the noise is that of one example, not none
        ({1e-3: [(1.0, 0.02)], 4e-3: [(0.998, 0.01)]}, 4e-3),
        ({1e-3: [(1.0, 0.02)], 4e-3: [(0.990, 0.01)]}, 1e-3),
        # equal in both: the smaller rate
        ({1e-3: [(0.7, 0.5)], 4e-3: [(0.7, 0.5)]}, 1e-3),
        # over seeds that scatter, a standard error is wide: 0.8 with sqrt(0.02 / 2) = 10 points
        ({1e-3: [(0.7, 0.5), (0.9, 0.5)], 4e-3: [(0.72, 0.4), (0.72, 0.4)]}, 4e-3),
    ],
)
def test_the_best_by_validation_counts_and_ties_go_to_the_smaller_loss(validations, expected) -> None:
    assert chosen(validations) == expected


def test_bits_are_better_when_lower_and_one_seed_makes_no_ties() -> None:
    def read(rate: float, bits: float, loss: float) -> Record:
        measured = (
            Measurement.of("bits_per_character", bits, split="validation", examples=50),
            Measurement.of("loss", loss, split="validation", examples=50),
        )
        return trial(rate, (0, 0), measurements=measured, metric=METRICS["bits_per_character"])

    assert choose_rate({1e-3: [read(1e-3, 2.0, 1.0)], 4e-3: [read(4e-3, 2.001, 0.9)]}).rate == 1e-3


def test_a_rate_beyond_the_grid_is_taken_only_where_it_is_better() -> None:
    """At 1.2e-2 both trials learn all with the smallest loss, and trainings fail right behind it."""
    found = {1e-3: (1.0, 0.03), 4e-3: (1.0, 0.02), 1.2e-2: (1.0, 0.01), 3.6e-2: (0.01, 5.0)}

    def searched(extensions: int) -> tuple[tuple[float, ...], float | None]:
        rates, choice = search([1e-3, 4e-3], extensions, 2, lambda rate: [trial(rate, found[rate], s) for s in (0, 1)])
        assert choice is not None
        return rates, choice.rate

    assert searched(2) == ((1e-3, 4e-3, 1.2e-2), 4e-3)
    found[4e-3] = (0.9, 0.5)
    found[3.33e-4] = (0.2, 2.0)
    assert searched(2) == ((3.33e-4, 1e-3, 4e-3), 1e-3)
    found[1e-3] = (0.7, 0.9)
    assert searched(2) == ((1e-3, 4e-3, 1.2e-2, 3.6e-2), 1.2e-2)
    assert searched(0) == ((1e-3, 4e-3), 4e-3)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 9)), min_size=2, max_size=5), st.data())
def test_what_the_test_split_gave_has_no_say(values, data) -> None:
    """With the same validation results, any test results give the same choice."""
    rates = [1e-3 * 2**at for at in range(len(values))]
    plain = {rate: [trial(rate, (v, loss), test=t)] for rate, (v, t, loss) in zip(rates, values, strict=True)}
    shuffled = data.draw(st.permutations([t for _, t, _ in values]))
    other = {
        rate: [trial(rate, (v, loss), test=1 - t)]
        for rate, (v, _, loss), t in zip(rates, values, shuffled, strict=True)
    }
    assert choose_rate(plain) == choose_rate(other)


def test_a_rate_that_failed_or_diverged_is_not_chosen() -> None:
    sound, diverged = trial(1e-3, (0.5, 1.0)), trial(4e-3, (0.9, math.nan))
    crashed = trial(4e-3, (0.9, 0.1), outcome=Outcome.CRASHED, reason="no luck", measurements=())
    assert choose_rate({1e-3: [sound], 4e-3: [diverged]}).rate == 1e-3
    assert choose_rate({1e-3: [sound], 4e-3: [crashed]}).rate == 1e-3
    # one seed of two is not enough
    assert choose_rate({1e-3: [sound, sound], 4e-3: [trial(4e-3, (0.9, 0.1)), crashed]}).rate == 1e-3


def test_where_no_rate_trained_the_outcome_and_a_reason_remain() -> None:
    refused = {"outcome": Outcome.UNSUPPORTED, "reason": "it has no causal form", "measurements": ()}
    found = choose_rate({rate: [trial(rate, (0, 0), **refused)] for rate in (1e-3, 4e-3)})
    assert (found.rate, found.outcome) == (None, Outcome.UNSUPPORTED)
    assert found.reason == "at every learning rate (0.001, 0.004): it has no causal form"
    found = choose_rate({rate: [trial(rate, (0.5, math.inf))] for rate in (1e-3, 4e-3)})
    assert (found.rate, found.outcome) == (None, Outcome.CRASHED) and "diverged" in found.reason


def test_of_repeated_trials_the_first_result_counts_on_whatever_machine() -> None:
    failed = trial(1e-3, (0, 0), outcome=Outcome.TIMEOUT, reason="slow")
    first = trial(1e-3, (0.5, 1.0), machine=replace(MACHINE, id="there"))
    # what it states of its start has no say
    second = trial(1e-3, (0.9, 0.1), started="2001-01-01T00:00:00+00:00")
    for order in ([failed, first, second], [first, second, failed]):
        assert list(first_results(order).values()) == [first]
    assert list(first_results([failed]).values()) == [failed]
    other_code = trial(1e-3, (0.1, 3.0), digest="a-b-d")
    assert len(first_results([first, other_code])) == 2


SCALED = "smoke[learning_rates=4e-3|8e-3,query_key_scales=0.1|0.3|1,tuning_seeds=2]"


@pytest.mark.parametrize(
    ("by_scale", "scale"), [((0.5, 0.9, 0.4), 0.1), ((0.9, 0.5, 0.4), 0.3), ((0.4, 0.5, 0.9), 1.0)]
)
def test_the_factor_on_queries_and_keys_is_chosen_at_the_chosen_rate(by_scale, scale: float) -> None:
    """The preset's own factor is 0.3, whose trials are those of the rate; validation by factor 0.3, 0.1 and 1."""
    grid = recipe_facts(Spec("recall"), Spec.parse(SCALED)).rates
    assert grid is not None and grid.scale == 0.3
    cell = Cell(variant=Spec("fox"), task=Spec("recall"), preset=Spec.parse(SCALED))
    values = dict(zip((None, 0.1, 1.0), by_scale, strict=True))
    trained: dict[tuple[str, str], Record] = {}

    def run(cells: Sequence[Cell]) -> list[tuple[float, float | None, int]]:
        """Trials that have no Record get one; the rate 8e-3 is the better one at each factor."""
        new = [each for each in cells if (each.key, "d") not in trained]
        for each in new:
            rate, factor = each.preset.get("learning_rate"), each.preset.get("query_key_scale")
            loss = 1.0 if rate == 8e-3 else 2.0
            trained[each.key, "d"] = trial(1e-3, (values[factor] if rate == 8e-3 else 0.1, loss), cell=each)
        return [(each.preset.get("learning_rate"), each.preset.get("query_key_scale"), each.seed) for each in new]

    cells, choice = grid.search(cell, trained, lambda each: "d")
    assert choice is None
    assert sorted(run(cells)) == [(rate, None, seed) for rate in (4e-3, 8e-3) for seed in (100, 101)]
    cells, choice = grid.search(cell, trained, lambda each: "d")
    assert choice is None
    assert sorted(run(cells)) == [(8e-3, factor, seed) for factor in (0.1, 1.0) for seed in (100, 101)]
    cells, choice = grid.search(cell, trained, lambda each: "d")
    assert (choice.rate, choice.scale, len(cells)) == (8e-3, scale, 8) and not run(cells)
    # another variant has as many trials of its own
    other, _ = grid.search(replace(cell, variant=Spec("softmax")), trained, lambda each: "d")
    assert len(run(other)) == 4


def test_factors_without_rates_to_try_them_at_are_refused() -> None:
    wrong = (
        ("parity", "quick[query_key_scales=0.3|1]"),
        ("recall", "quick[query_key_scale=1.0,query_key_scales=0.3|1]"),
    )
    for task, preset in wrong:
        with pytest.raises(SelectionError, match="expected learning_rates=… beside query_key_scales"):
            recipe_facts(Spec(task), Spec.parse(preset))


@pytest.mark.parametrize(
    ("preset", "scaled"),
    [("quick", [1.0]), ("quick[learning_rate=0.004]", None), ("quick[query_key_scale=0.5]", []), ("base", None)],
)
def test_one_rate_or_factor_takes_the_place_of_the_search(preset: str, scaled: list[float] | None) -> None:
    found = recipe_facts(Spec("recall"), Spec.parse(preset)).rates
    assert (None if found is None else [scale for scale, _ in found.scaled]) == scaled
