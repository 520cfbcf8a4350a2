"""Grids of learning rates in a plan: which cells choose, which wait for them, and what a killed run leaves."""

from dataclasses import replace

import pytest

import attnbench
from attnbench.bench.core.cell import FIRST_TUNING_SEED, NO_ATTENTION
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.record import Machine, Measurement, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.facts import recipe_facts
from attnbench.bench.plan.planner import NO_ATTENTION_ADDED
from attnbench.bench.store.learning_rates import first_results
from attnbench.tasks.contract import Classification

MACHINE = Machine(id="here", system="Linux", processor="p", cores=2, threads=2, memory_bytes=1)
GRID = "smoke[learning_rates=2e-3|8e-3]"


@pytest.fixture
def make(make_plan):
    return lambda variants="softmax", tasks="lra-text", preset=GRID, seeds=2, **changes: make_plan(
        variants, tasks, preset, seeds, **changes
    )


@pytest.fixture
def done(store, digest_of):
    def keep(cell, outcome=Outcome.OK, accuracy=0.5, machine="here", seconds=1.0):
        measured = (
            Measurement.of("accuracy", accuracy, split="validation", examples=500),
            Measurement.of("loss", 1 - accuracy, split="validation"),
        )
        record = Record(
            cell=cell, outcome=outcome, machine=replace(MACHINE, id=machine), digest=digest_of(cell), block=cell.key,
            seconds=seconds, metric=METRICS["accuracy"], measurements=measured if outcome is Outcome.OK else (),
            reason="" if outcome is Outcome.OK else "no luck",
        )  # fmt: skip
        store.append(record)

    return keep


def short(steps):
    return [(s.cell.lane, str(s.cell.variant), str(s.cell.preset), s.cell.seed) for s in steps if s.state != "done"]


def of(made, *lanes):
    return [step.cell for step in made.steps if step.cell.lane in lanes]


@pytest.fixture
def choice(store, digest_of):
    def stored(cell):
        recipe = recipe_facts(cell.task, cell.preset)
        return recipe.rates.search(cell, first_results(store.records()), digest_of)[1]

    return stored


def test_a_grid_adds_a_trial_of_every_rate_before_all_training(make):
    made = make("softmax,rela")
    grid = "smoke[learning_rates=0.002|0.008]"
    assert short(step for step in made.steps if step.cell.lane in ("train", "tune")) == [
        *[("tune", name, f"smoke[learning_rate={rate}]", FIRST_TUNING_SEED)
          for name in ("softmax", "rela") for rate in (0.002, 0.008)],
        *[("train", name, grid, seed) for seed in (0, 1) for name in ("softmax", "rela")],
    ]  # fmt: skip
    # training at a rate that no trial has chosen yet is left to the next plan
    assert [job.lane for job in made.jobs].count("tune") == 4 and not [job for job in made.jobs if job.lane == "train"]
    assert set(made.undecided) == set(of(made, "train"))


def test_without_a_grid_nothing_is_tuned(make):
    assert not of(make(preset="smoke"), "tune")
    # one rate in the place of a grid, also of the recipe's own
    assert not of(make(preset="smoke[learning_rate=2e-3]"), "tune")


def test_more_tuning_seeds_are_more_trials(make):
    cells = of(make(preset="smoke[learning_rates=2e-3|8e-3,tuning_seeds=3]"), "tune")
    assert sorted({cell.seed for cell in cells}) == [100, 101, 102] and len(cells) == 6


def test_a_wider_grid_repeats_no_trial(make, done):
    for cell in of(make(), "tune"):
        done(cell)
    wider = make(preset="smoke[learning_rates=2e-3|4e-3|8e-3,tuning_seeds=2]")
    left = [(cell.preset.get("learning_rate"), cell.seed) for cell in of(wider, "tune")]
    todo = [(p[2], p[3]) for p in short(wider.steps) if p[0] == "tune"]
    assert len(left) == 6 and len(todo) == 4


def test_the_choice_is_a_function_of_the_records_on_whatever_machine(make, done, choice):
    trained = of(make(), "train")
    recipe = recipe_facts(Spec("lra-text"), Spec.parse(GRID))
    slow, fast = (cells[0] for cells in recipe.rates.trials(trained[0]).values())
    done(slow, accuracy=0.5)
    assert choice(trained[0]) is None
    done(fast, accuracy=0.9, machine="there")
    assert {choice(cell).rate for cell in trained} == {8e-3}
    # nothing of it is left to this machine
    assert all(lane != "tune" for lane, *_ in short(make().steps))
    assert make().undecided == ()


def tried(made):
    return [cell.preset.get("learning_rate") for cell in of(made, "tune")]


@pytest.mark.parametrize(
    ("best", "expected", "chosen"),
    [
        # inside the grid from the start
        ({2e-3: 0.5, 4e-3: 0.9, 8e-3: 0.5}, [2e-3, 4e-3, 8e-3], 4e-3),
        # one rate beyond the upper end is worse, so the best is inside
        ({8e-3: 0.9, 0.024: 0.5}, [2e-3, 4e-3, 8e-3, 0.024], 8e-3),
        ({0.024: 0.9, 0.072: 0.5}, [2e-3, 4e-3, 8e-3, 0.024, 0.072], 0.024),
        # twice at most
        ({0.024: 0.8, 0.072: 0.9}, [2e-3, 4e-3, 8e-3, 0.024, 0.072], 0.072),
        ({2e-3: 0.8, 6.67e-4: 0.9, 2.22e-4: 0.5}, [2.22e-4, 6.67e-4, 2e-3, 4e-3, 8e-3], 6.67e-4),
        # where nothing trained there is no end to go beyond
        ({}, [2e-3, 4e-3, 8e-3], None),
    ],
)
def test_a_best_rate_at_an_end_of_the_grid_is_searched_beyond_it(make, done, choice, best, expected, chosen):
    preset = "smoke[learning_rates=2e-3|4e-3|8e-3,rate_extensions=2]"
    for _ in range(4):
        made = make(preset=preset)
        left = [step.cell for step in made.left if step.cell.lane == "tune"]
        # no training before the search has ended, and then all of them
        decided = not made.undecided
        assert bool(left) is not decided
        assert [job.lane for job in made.jobs if job.lane in ("tune", "train")] == (
            ["train"] * 2 if decided else ["tune"] * len(left)
        )
        for cell in left:
            rate = cell.preset.get("learning_rate")
            outcome = Outcome.OK if best else Outcome.CRASHED
            # below the best at lower rates, so that the ends of the grid are no ties
            done(cell, outcome, best.get(rate, 0.4 if rate < 0.002 else 0.3 + 10 * rate if rate < 0.01 else 0.1))
    assert tried(made) == expected and made.undecided == ()
    assert choice(of(made, "train")[0]).rate == chosen


def test_a_search_repeats_no_trial_of_the_grid_alone_and_asks_for_none_once_all_is_trained(make, done):
    for cell in of(make(), "tune"):
        done(cell, accuracy=0.9 if cell.preset.get("learning_rate") == 8e-3 else 0.1)
    made = make(preset="smoke[learning_rates=2e-3|8e-3,rate_extensions=1]")
    assert [step.cell.preset.get("learning_rate") for step in made.left if step.cell.lane == "tune"] == [0.024]
    for cell in of(made, "train", "time", "baseline"):
        done(cell)
    assert make(preset="smoke[learning_rates=2e-3|8e-3,rate_extensions=1]").left == ()


def test_trials_come_back_only_where_training_is_left(make, done):
    for step in make().steps:
        if step.cell.lane != "tune":
            done(step.cell)
    assert make().left == () and not of(make(), "tune")
    assert [cell.seed for cell in of(make(seeds=3), "tune")] == [100, 100]


def test_a_failed_trial_is_final_once_another_rate_is_chosen(make, done):
    first, second = of(make(), "tune")
    done(first, Outcome.TIMEOUT)
    done(second)
    assert all(lane != "tune" for lane, *_ in short(make(retry=True).steps))


def test_where_no_rate_trained_a_retry_tries_them_again(make, done, choice):
    for cell in of(make(), "tune"):
        done(cell, Outcome.TIMEOUT)
    assert all(lane != "tune" for lane, *_ in short(make().steps))
    assert sum(lane == "tune" for lane, *_ in short(make(retry=True).steps)) == 2
    found = choice(of(make(), "train")[0])
    assert (found.rate, found.outcome) == (None, Outcome.TIMEOUT) and "no luck" in found.reason


def test_trials_and_training_of_one_variant_take_the_same_time(make, done):
    done(of(make(), "tune")[0], seconds=40.0)
    made = make()
    assert {step.seconds for step in made.left if step.cell.lane in ("tune", "train")} == {40.0}
    assert made.seconds == 40.0 * 3


def test_as_many_seeds_as_reach_the_tuning_seeds_are_refused(tmp_path):
    def planned(preset, seeds):
        return attnbench.plan("softmax", "lra-text", preset=preset, seeds=seeds, results=tmp_path, lanes="train")

    planned(GRID, FIRST_TUNING_SEED)
    with pytest.raises(SelectionError, match="at most 100 seeds with learning_rates"):
        planned(GRID, FIRST_TUNING_SEED + 1)
    planned("smoke", FIRST_TUNING_SEED + 1)


def test_trials_are_chosen_on_validation_data_whatever_the_selection(make):
    cells = of(make(selection="test"), "tune")
    assert {cell.selection for cell in cells} == {"validation"}
    assert {cell.key for cell in cells} == {cell.key for cell in of(make(), "tune")}


def test_the_model_without_attention_is_trained_for_every_ranked_task(make):
    made = make("rela", preset="quick", seeds=2)
    assert made.notices.count(NO_ATTENTION_ADDED) == 1
    where = [(step.cell.lane, step.cell.seed) for step in made.steps if step.cell.variant.name == NO_ATTENTION]
    assert where == [("train", 0), ("train", 1)]
    grid = make("rela", preset="quick[learning_rates=2e-3|8e-3]")
    assert sum(cell.variant.name == NO_ATTENTION for cell in of(grid, "tune")) == 2


@pytest.mark.parametrize(("tasks", "preset"), [("lra-text", "smoke"), ("sweep[length=64]", "quick")])
def test_it_is_not_added_where_it_answers_no_question(make, tasks, preset):
    made = make("rela", tasks, preset=preset)
    assert NO_ATTENTION_ADDED not in made.notices
    assert all(step.cell.variant.name != NO_ATTENTION for step in made.steps)


def test_it_is_not_added_where_a_model_cannot_do_without_attention(make, monkeypatch):
    monkeypatch.setattr(Classification, "works_without_attention", False)
    assert NO_ATTENTION_ADDED not in make("rela", "lra-listops", preset="quick").notices


def test_named_as_a_variant_it_is_timed_too(make):
    made = make(f"rela,{NO_ATTENTION}", preset="quick", seeds=1)
    assert NO_ATTENTION_ADDED not in made.notices
    assert [s.cell.lane for s in made.steps if s.cell.variant.name == NO_ATTENTION] == ["train", "time"]
