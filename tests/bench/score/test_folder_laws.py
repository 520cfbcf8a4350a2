"""The laws of scoring over random folders of Records: what one Record more, worse or elsewhere may do to a board."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from attnbench.bench.board.board import Board
from attnbench.bench.board.suite_board import board_for_suite
from attnbench.bench.board.task_board import board_for_task
from attnbench.bench.core.cell import REFERENCE
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.record import Measurement, Outcome, Record
from attnbench.bench.score.contrasts import COMPARISON_SETS, Contrasts
from attnbench.bench.score.key import board_keys
from attnbench.bench.score.quality import SeedScores, scores_by_variant
from attnbench.bench.store.table import ResultTable, table_of

NAMES = (REFERENCE, "rela", "linear", "mine", "theirs")
VERSIONS = ("lane0.objective0.task1", "lane0.objective1.task1", "lane1.objective1.task1")
LAWS = settings(
    deadline=None, max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
FEWER = settings(LAWS, max_examples=12)


@dataclass(frozen=True)
class Trial:
    """One Record to be: `right` of 500 examples, None where it failed."""

    variant: str
    seed: int
    right: int | None
    machine: str = "box-1"
    version: str = VERSIONS[0]
    code: str = "v1"
    task: str = "lra-text"


trials = st.builds(
    Trial,
    variant=st.sampled_from(NAMES),
    seed=st.integers(0, 5),
    right=st.one_of(st.none(), st.integers(200, 450), st.integers(200, 450), st.integers(200, 450)),
    machine=st.sampled_from(["box-1", "box-2"]),
)


@st.composite
def folders(draw: st.DrawFn, most: int = 5) -> list[Trial]:
    """Three seeds or more of most variants, and what else comes."""
    found = [
        Trial(variant=name, seed=seed, right=draw(st.integers(250, 400)))
        for name in NAMES
        for seed in range(draw(st.integers(2, most)))
    ]
    return found + draw(st.lists(trials, max_size=4))


def records(bench: Callable[..., Any], wanted: Sequence[Trial]) -> list[Record]:
    b = bench()
    for at, trial in enumerate(wanted):
        b.task = trial.task
        b.add(
            b.cell(trial.variant, trial.seed),
            [] if trial.right is None else [Measurement.of("accuracy", trial.right / 500, split="test", examples=500)],
            outcome=Outcome.OK if trial.right is not None else Outcome.CRASHED,
            digest=f"{trial.version}-d1-{trial.code}",
            started=f"2026-01-01T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}+00:00",
        )
        b.records[-1] = replace(b.records[-1], machine=replace(b.records[-1].machine, id=trial.machine))
    return list(b.records)


def scored(table: ResultTable) -> dict[str, SeedScores]:
    return scores_by_variant(table, board_keys(table)[0], lambda name: None)


def board(table: ResultTable) -> Board:
    return board_for_task(table, board_keys(table)[0])


def ranked(found: dict[str, SeedScores]) -> set[str]:
    return {name for name, one in found.items() if not one.missing_reason}


def estimates(found: dict[str, SeedScores]) -> dict[tuple[str, str], float]:
    contrasts, names = Contrasts(found), sorted(ranked(found))
    return {(one, other): contrasts.between(one, other).advantage.value for one in names for other in names}


@LAWS
@given(folders(), trials)
def test_a_record_more_takes_no_rank_from_another_variant(bench, folder: list[Trial], more: Trial) -> None:
    before, after = (scored(table_of(records(bench, each))) for each in (folder, [*folder, more]))
    assert ranked(before) - {more.variant} <= ranked(after)


@LAWS
@given(folders(), trials)
def test_a_record_more_moves_no_estimate_between_two_others(bench, folder: list[Trial], more: Trial) -> None:
    before, after = (estimates(scored(table_of(records(bench, each)))) for each in (folder, [*folder, more]))
    for pair, value in before.items():
        if more.variant not in pair:
            assert after[pair] == value


@LAWS
@given(folders(), trials)
def test_a_variant_that_is_not_declared_changes_no_interval_between_two_others(
    bench, folder: list[Trial], more: Trial
) -> None:
    assume(more.variant not in COMPARISON_SETS["accuracy"])
    before, after = (scored(table_of(records(bench, each))) for each in (folder, [*folder, more]))
    names = sorted(ranked(before) - {more.variant})
    one, two = Contrasts(before), Contrasts(after)
    for first in names:
        for second in names:
            if first != second:
                assert one.between(first, second).interval == two.between(first, second).interval


@FEWER
@given(folders(), st.randoms(use_true_random=False))
def test_a_stated_start_means_nothing(bench, folder: list[Trial], chance: Any) -> None:
    made = records(bench, folder)
    starts = [record.started for record in made]
    chance.shuffle(starts)
    restarted = [replace(record, started=started) for record, started in zip(made, starts, strict=True)]
    assert board(table_of(made)) == board(table_of(restarted))


@LAWS
@given(folders(), st.integers(1, 100), st.data())
def test_a_worse_score_never_helps(bench, folder: list[Trial], by: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(folder) - 1))
    trial = folder[at]
    assume(trial.right is not None)
    worse = [*folder[:at], replace(trial, right=trial.right - by), *folder[at + 1 :]]
    before, after = (estimates(scored(table_of(records(bench, each)))) for each in (folder, worse))
    assert before.keys() == after.keys()
    for (one, other), value in after.items():
        if one == trial.variant and other != trial.variant:
            assert value <= before[one, other]


@LAWS
@given(folders(), st.data())
def test_a_failure_in_place_of_a_score_never_helps(bench, folder: list[Trial], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(folder) - 1))
    trial = folder[at]
    # a second result of the cell would take its place
    assume(sum((each.variant, each.seed) == (trial.variant, trial.seed) for each in folder) == 1)
    failed = [*folder[:at], replace(trial, right=None), *folder[at + 1 :]]
    before, after = (scored(table_of(records(bench, each))) for each in (folder, failed))
    assert ranked(after) <= ranked(before) | ranked(after) - {trial.variant}
    if trial.variant in ranked(before) and trial.seed in before[trial.variant].seeds:
        assert trial.variant not in ranked(after)


@LAWS
@given(folders(), st.integers(0, 2), st.sampled_from(NAMES[1:]))
def test_without_one_of_the_first_seeds_there_is_no_rank(bench, folder: list[Trial], seed: int, name: str) -> None:
    rest = [trial for trial in folder if (trial.variant, trial.seed) != (name, seed)]
    assert name not in ranked(scored(table_of(records(bench, rest))))


@LAWS
@given(folders(), st.integers(0, 2), st.integers(200, 450), st.sampled_from(NAMES))
def test_measuring_a_cell_again_elsewhere_changes_nothing_and_is_named(
    bench, folder: list[Trial], seed: int, right: int, name: str
) -> None:
    first = next((t for t in folder if (t.variant, t.seed) == (name, seed) and t.right is not None), None)
    assume(first is not None)
    again = Trial(variant=name, seed=seed, right=right, machine="box-3")
    before, after = (table_of(records(bench, each)) for each in (folder, [*folder, again]))
    one, two = scored(before), scored(after)
    assert {n: (s.seeds, s.scores) for n, s in one.items()} == {n: (s.seeds, s.scores) for n, s in two.items()}
    notes = [note.text for note in board(after).notes if "repeated results ignored" in note.text]
    assert len(notes) == 1


@LAWS
@given(folders(most=4), st.lists(trials, max_size=12), st.lists(st.integers(0, 2), min_size=12, max_size=12))
def test_a_board_is_of_one_version_and_a_variant_of_one_code(
    bench, folder: list[Trial], others: list[Trial], of: list[int]
) -> None:
    mixed = [
        replace(trial, version=VERSIONS[at], code=f"v{at}") for trial, at in zip(others, of, strict=False)
    ]  # fmt: skip
    table = table_of(records(bench, folder + mixed))
    assert len({row.version for row in table.current}) == 1
    codes = {(row.variant, row.variant_code) for row in table.current}
    assert len(codes) == len({variant for variant, _ in codes})
    cells = [row.key for row in table.current]
    assert len(cells) == len(set(cells))
    assert {row.at for row in table.rows} == set(range(len(table.records)))


@LAWS
@given(folders(most=4), st.lists(trials, max_size=3))
def test_a_newer_version_takes_no_rank_before_it_is_complete(bench, folder: list[Trial], newer: list[Trial]) -> None:
    # three Records cannot complete the reference and another variant
    assume(len(ranked(scored(table_of(records(bench, folder))))) > 1)
    moved = [replace(trial, version=VERSIONS[1]) for trial in newer]
    before, after = (table_of(records(bench, each)) for each in (folder, folder + moved))
    assert ranked(scored(before)) == ranked(scored(after))
    assert estimates(scored(before)) == estimates(scored(after))


@FEWER
@given(folders(most=4), folders(most=4), st.sampled_from(NAMES[1:]))
def test_without_one_of_its_tasks_a_variant_has_no_average(
    bench, first: list[Trial], second: list[Trial], name: str
) -> None:
    both = first + [replace(trial, task="lra-image") for trial in second]
    dropped = [trial for trial in both if (trial.variant, trial.task) != (name, "lra-image")]
    whole, rest = (_suite(table_of(records(bench, each))) for each in (both, dropped))
    assert name not in {row.name for row in rest.ranked}
    # nobody else loses by that
    assert {row.name for row in whole.ranked} - {name} <= {row.name for row in rest.ranked} | _alone(rest)


def _suite(table: ResultTable) -> Board:
    return board_for_suite(table, "lra", board_keys(table))


def _alone(found: Board) -> set[str]:
    """The last variant that is complete has no other to be ranked against."""
    return {row.name for row in found.unranked if row.reason == "no other variant to be ranked against"}


LOW, HIGH = st.integers(5, 60), st.integers(300, 450)


@st.composite
def failing_folders(draw: st.DrawFn) -> list[Trial]:
    """Six seeds of each variant, at which some trainings fail."""
    return [
        Trial(variant=name, seed=seed, right=draw(st.one_of(HIGH, HIGH, LOW))) for name in NAMES for seed in range(6)
    ]


def with_bar(bench: Callable[..., Any], wanted: Sequence[Trial]) -> dict[str, SeedScores]:
    """Scores beside a trivial predictor that is right at 12 % of the examples."""
    made = records(bench, wanted)
    b = bench()
    b.task = wanted[0].task
    tested = Measurement.of("accuracy", 0.12, split="test", examples=500)
    b.add(b.cell("majority", lane="baseline"), [tested], digest=f"{VERSIONS[0]}-d1-v1")
    return scored(table_of([*made, *b.records]))


def orders(found: dict[str, SeedScores]) -> dict[tuple[str, str], int]:
    """Who is proven ahead of whom among those that have a rank."""
    contrasts, names = Contrasts(found), sorted(ranked(found))
    pairs = ((one, other) for one in names for other in names if one != other)
    return {(one, other): contrasts.between(one, other).direction(contrasts.pairs(one, other)) for one, other in pairs}


@LAWS
@given(failing_folders())
def test_where_trainings_fail_an_order_is_antisymmetric_and_that_of_all_seeds(bench, folder: list[Trial]) -> None:
    found = with_bar(bench, folder)
    contrasts = Contrasts(found)
    for (one, other), direction in orders(found).items():
        assert direction == -orders(found)[other, one]
        assert direction in (0, 1 if contrasts.between(one, other).of_all > 0 else -1)


@LAWS
@given(failing_folders(), st.randoms(use_true_random=False))
def test_where_trainings_fail_the_order_of_records_means_nothing(bench, folder: list[Trial], chance: Any) -> None:
    shuffled = list(folder)
    chance.shuffle(shuffled)
    assert orders(with_bar(bench, folder)) == orders(with_bar(bench, shuffled))


@LAWS
@given(failing_folders(), st.integers(1, 300), st.data())
def test_where_trainings_fail_a_worse_score_never_turns_an_order(
    bench, folder: list[Trial], by: int, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(folder) - 1))
    trial = folder[at]
    worse = [*folder[:at], replace(trial, right=max(trial.right - by, 0)), *folder[at + 1 :]]
    before, after = (with_bar(bench, each) for each in (folder, worse))
    was, now = orders(before), orders(after)
    for pair in was.keys() & now.keys():
        if pair[0] == trial.variant:
            assert Contrasts(after).between(*pair).of_all <= Contrasts(before).between(*pair).of_all
            assert not (was[pair] < 0 < now[pair])
        elif trial.variant not in pair and trial.variant not in COMPARISON_SETS["accuracy"]:
            assert was[pair] == now[pair]


@LAWS
@given(failing_folders(), st.sampled_from(NAMES), st.one_of(HIGH, LOW))
def test_where_trainings_fail_a_seed_more_of_one_variant_unranks_no_other(
    bench, folder: list[Trial], name: str, right: int
) -> None:
    more = [*folder, Trial(variant=name, seed=6, right=right)]
    before, after = (with_bar(bench, each) for each in (folder, more))
    assert ranked(before) - {name} <= ranked(after)


@LAWS
@given(failing_folders(), st.data())
def test_where_trainings_fail_a_dropped_cell_never_helps(bench, folder: list[Trial], data: st.DataObject) -> None:
    """A gap at one of the first seeds costs the rank, also where that training failed."""
    trial = data.draw(st.sampled_from([each for each in folder if each.seed < 3 and each.variant != REFERENCE]))
    rest = [each for each in folder if each != trial]
    assert trial.variant not in ranked(with_bar(bench, rest))


@LAWS
@given(failing_folders(), st.sampled_from([0.25, 0.5]))
def test_where_trainings_fail_the_unit_means_nothing(bench, folder: list[Trial], scale: float) -> None:
    """Of a metric without a unit of its own, such as BLEU: scores and bars times a number give the same orders."""
    found = with_bar(bench, folder)
    bleu = METRICS["bleu"]
    by_unit = [
        {
            name: replace(one, metric=bleu, scores=tuple(unit * score for score in one.scores), correct=None)
            for name, one in found.items()
        }
        for unit in (1.0, scale)
    ]
    assert orders(by_unit[0]) == orders(by_unit[1])
