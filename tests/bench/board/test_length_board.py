"""Cost over lengths: means, caps, crossovers."""

import math
from dataclasses import replace

import pytest
from boards import entry

from attnbench.bench.board.length_board import board_for_lengths, crossover, sweeps, with_modes
from attnbench.bench.board.select import scored
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.record import Measurement, Outcome
from attnbench.bench.score.key import board_keys
from attnbench.bench.stats.intervals import Estimate, NoiseSource
from attnbench.bench.store.artifacts import StoredPredictions
from attnbench.bench.store.store import Store
from attnbench.bench.store.table import table_of

TIMES = [1.0, 1.02, 0.98, 1.01, 0.99]


def at(value: float, error: float = 0.01) -> Estimate:
    return Estimate(value, (NoiseSource(error, 4),))


def sweep(bench: object, costs: dict[str, dict[int, float | None]]) -> object:
    b = bench(task="sweep")
    lengths = sorted({length for by_length in costs.values() for length in by_length})
    for length in lengths:
        b.task = f"sweep[input=iid,length={length}]"
        setting = {"setting": {"length": length}, "block": f"b{length}"}
        b.time("softmax", TIMES, TIMES, **setting)
        for name, by_length in costs.items():
            if length in by_length:
                factor = by_length[length]
                if factor is None:
                    b.add(b.cell(name, lane="time"), outcome=Outcome.OUT_OF_MEMORY, **setting)
                else:
                    noisy = [factor * t * (1 + 0.01 * (-1) ** i) for i, t in enumerate(TIMES)]
                    b.time(name, noisy, TIMES, **setting)
    return b


def board(b: object) -> object:
    table = table_of(b.records)
    (found,) = sweeps(table, board_keys(table))
    return board_for_lengths(table, found)


def row(found: object, name: str) -> dict[str, object]:
    it = next(r for r in (*found.ranked, *found.unranked) if r.name == name)
    return {c.name: e for c, e in zip(found.columns, it.entries, strict=True)} | {"row": it}


def test_a_time_that_holds_projections_says_so_on_its_row_and_below(bench) -> None:
    b = bench(task="sweep")
    for length in (256, 512):
        b.task = f"sweep[length={length}]"
        setting = {"setting": {"length": length, "level": "attention"}, "block": f"b{length}"}
        b.time("softmax", TIMES, TIMES, **setting)
        own = [Measurement.of("own_projections", 64)]
        b.time("mine.py:Mine", [5 * t for t in TIMES], TIMES, more=own, **setting)
        b.time("linear", [5 * t for t in TIMES], TIMES, **setting)
    found = board(b)
    assert row(found, "mine.py:Mine")["implementation"].text.endswith("; its projections too")
    assert "projections" not in row(found, "linear")["implementation"].text
    assert "mine.py:Mine (with projections)" in found.headline
    (said,) = [note.text for note in found.notes if note.topic == "unlike others"]
    assert "mine.py:Mine holds projections of its own" in said and "level=layer" in said


@pytest.mark.parametrize(
    ("load", "threads", "ranked"), [(1.3, 2, False), (1.3, 1, False), (1.0, 1, True), (0.4, 2, True)]
)
def test_times_whose_cores_others_took_are_shown_and_not_ranked(load, threads, ranked, bench) -> None:
    b = bench(task="sweep")
    for length in (256, 512):
        b.task = f"sweep[input=iid,length={length}]"
        for name, factor in (("softmax", 1.0), ("rela", 0.5)):
            times = [factor * t for t in TIMES]
            b.time(name, times, TIMES, load=load, setting={"length": length}, block=f"b{length}")
    b.records[:] = [replace(record, machine=replace(record.machine, threads=threads)) for record in b.records]
    found = board(b)
    assert bool(found.ranked) is ranked and row(found, "rela")["at_256"].value == pytest.approx(0.5, rel=1e-2)
    reason = f"other processes used {load} of 2 cores; --retry on idle cores times it anew at 256"
    assert ranked or found.unranked[0].reason == reason


def test_the_mean_is_geometric(bench) -> None:
    found = board(sweep(bench, {"linear": {256: 2.0, 1024: 0.5}}))
    assert row(found, "linear")["mean"].value == pytest.approx(1.0, rel=1e-2)
    assert row(found, "linear")["at_256"].value == pytest.approx(2.0, rel=1e-2)
    assert [r.name for r in found.ranked] == ["linear", "softmax"] and found.ranked[0].place == "1–2"


def test_lengths_of_one_sweep_meet_and_others_do_not(bench) -> None:
    b = sweep(bench, {"linear": {256: 2.0, 1024: 0.5}})
    b.task = "other[length=256]"
    b.time("softmax", TIMES, TIMES, setting={"length": 256})
    table = table_of(b.records)
    assert [(s.name, list(s.board_keys)) for s in sweeps(table, board_keys(table))] == [
        ("sweep[input=iid], preset quick", [256, 1024])
    ]


def test_running_out_of_memory_counts_as_the_cap_and_never_helps(bench) -> None:
    slow = board(sweep(bench, {"big": {256: 2.0, 1024: 40.0}}))
    dead = board(sweep(bench, {"big": {256: 2.0, 1024: None}}))
    assert row(dead, "big")["mean"].value == pytest.approx(math.sqrt(2 * 64), rel=1e-2)
    assert row(dead, "big")["mean"].value > row(slow, "big")["mean"].value
    assert row(dead, "big")["at_1024"].text == "out of memory" and row(dead, "big")["row"].place == "2"


def test_a_length_that_was_skipped_costs_the_rank(bench) -> None:
    found = board(sweep(bench, {"lazy": {256: 0.5}, "linear": {256: 2.0, 1024: 0.5}}))
    assert row(found, "lazy")["row"].reason == "not measured at 1,024"
    assert row(found, "lazy")["mean"].text == ""


@pytest.mark.parametrize(
    ("costs", "length", "text"),
    [
        ({256: at(1.0), 512: at(-1.0), 1024: at(-2.0)}, 512, "from 512 on (about 362)"),
        ({256: at(-1.0), 512: at(-1.0)}, 256, "from 256 on, or sooner"),
        ({256: at(-1.0), 512: at(1.0)}, None, "not up to 512"),
        ({256: at(-1.0), 512: at(1.0), 1024: at(-1.0)}, 1024, "from 1,024 on (about 724)"),
        ({256: at(1.0), 512: at(-0.02, 0.1)}, None, "not up to 512"),
        ({256: at(-1.0), 512: None}, None, "not up to 512"),
    ],
)
def test_crossover_holds_at_every_larger_length(
    costs: dict[int, Estimate | None], length: int | None, text: str
) -> None:
    found = crossover(costs)
    assert (found.length, found.text) == (length, text)


def test_crossover_must_clear_the_noise_floor() -> None:
    assert crossover({256: at(1.0), 512: at(-0.05)}, floor=0.1).length is None


def test_one_length_makes_a_board_of_cost_alone(bench) -> None:
    b = sweep(bench, {"linear": {256: 2.0}, "fast": {256: 0.5}})
    table = table_of(b.records)
    (found,) = sweeps(table, board_keys(table), least=1)
    one = board_for_lengths(table, found)
    assert [c.name for c in one.columns] == ["at_256", "peak_ratio"]
    assert one.title.endswith("a training step at length 256")
    assert [(r.name, r.place) for r in one.ranked] == [("fast", "1"), ("softmax", "2"), ("linear", "3")]
    assert [mode for _, mode in with_modes(table, [found])] == ["step"]


@pytest.mark.parametrize(
    ("how", "share", "text"),
    [("declared", 0.4, "≤ 40 %"), ("declared", 1.8, ""), ("counted", 0.4, "40 %"), ("counted", 1.02, "102 %")],
)
def test_a_bound_above_the_best_is_not_shown(bench, how: str, share: float, text: str) -> None:
    b = sweep(bench, {"linear": {256: 2.0}})
    more = [Measurement.of("flops", 1e9, how=how), Measurement.of("peak_share", share)]
    at_256 = next(r for r in b.records if r.cell.variant.name == "linear")
    b.records[b.records.index(at_256)] = replace(at_256, measurements=(*at_256.measurements, *more))
    table = table_of(b.records)
    (found,) = sweeps(table, board_keys(table), least=1)
    assert entry(board_for_lengths(table, found), "linear", "peak_share").text == text


def test_time_to_compile_and_energy_have_columns_where_they_were_measured(bench) -> None:
    b = sweep(bench, {"linear": {256: 2.0}})
    more = [Measurement.of("compile_seconds", 41.0, graphs=1), Measurement.of("energy_joules", 0.5, source="nvml")]
    at_256 = next(r for r in b.records if r.cell.variant.name == "linear")
    b.records[b.records.index(at_256)] = replace(at_256, measurements=(*at_256.measurements, *more))
    table = table_of(b.records)
    (found,) = sweeps(table, board_keys(table), least=1)
    shown = row(board_for_lengths(table, found), "linear")
    assert (shown["compile"].text, shown["energy"].text) == ("41.00 s", "500 mJ")


def test_what_ran_stands_beside_the_ratio_and_eager_code_is_named_in_the_headline(bench) -> None:
    b = bench(task="sweep")
    half = [Measurement.of("declared_density", 0.34)]
    for length in (256, 1024):
        b.task, common = f"sweep[length={length}]", {"setting": {"length": length}, "block": f"b{length}"}
        b.time("softmax", TIMES, TIMES, implementation="sdpa", **common)
        b.time("window", [0.5 * t for t in TIMES], TIMES, more=half, implementation="cpp", **common)
        b.time("band", [3 * t for t in TIMES], TIMES, more=half, implementation="eager", **common)
        b.time("heavy", [2 * t for t in TIMES], TIMES, implementation="cpp", **common)
    found = board(b)
    texts = {name: row(found, name)["implementation"].text for name in ("softmax", "window", "band", "heavy")}
    assert texts == {
        "softmax": "sdpa", "window": "cpp; computes 34 % of the scores", "band": "eager; computes 34 % of the scores",
        "heavy": "cpp",
    }  # fmt: skip
    assert "Slower than softmax: heavy, band (eager)." in found.headline


def test_a_sweep_that_only_failed_shows_its_failures_and_trials_alone_say_what_to_run(bench, tmp_path) -> None:
    b = bench(task="sweep[length=256,mode=decode]")
    b.add(b.cell("routing", lane="time"), outcome=Outcome.UNSUPPORTED, reason="none", setting={"length": 256})
    table, kept = table_of(b.records), StoredPredictions(Store(tmp_path))
    (found,) = scored(table, kept, board_keys(table), None)
    assert found.headline == "Nothing is ranked: unsupported at 256: none."
    with pytest.raises(SelectionError, match="trials of learning rates are on none; repeat the `attnbench run`"):
        scored(table, kept, [], None)
