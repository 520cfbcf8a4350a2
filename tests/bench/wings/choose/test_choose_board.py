"""The short list for requirements, and the reason of every variant that is not on it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from boards import entry, facts, notes, text

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.metrics import ACCURACY, METRICS
from attnbench.bench.core.record import Measurement, Outcome
from attnbench.bench.core.spec import bytes_of
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.table import table_of
from attnbench.bench.wings.choose.choose import Requirements, board_for_choice

TIMES = [1.0, 1.02, 0.98, 1.01, 0.99]


def right(share: float) -> np.ndarray:
    return (np.arange(4000) < 4000 * share).astype(np.uint8)


@pytest.fixture
def world(bench) -> object:
    b = bench()
    for name, share in (("softmax", 0.6), ("linear", 0.598), ("local", 0.5), ("rela", 0.7), ("hungry", 0.6)):
        b.train(name, [], correct=[right(share)] * 3)
    b.train("young", [], correct=[right(0.6)] * 2)
    b.time("softmax", TIMES, TIMES, peak=8e9)
    for name, factor, peak in (("linear", 0.5, 1e9), ("local", 0.2, 1e9), ("rela", 1.2, 8e9), ("hungry", 0.4, 9e10)):
        noisy = [factor * t * (1 + 0.01 * (-1) ** i) for i, t in enumerate(TIMES)]
        b.time(name, noisy, TIMES, peak=peak)
    b.time("young", TIMES, TIMES)
    b.add(b.cell("big", lane="time"), outcome=Outcome.OUT_OF_MEMORY, reason="tried 99 GiB")
    return b


def board(b: object, **requirements: object) -> object:
    table = table_of(b.records)
    return board_for_choice(table, board_keys(table), Requirements(**{"length": 512} | requirements), b.predictions)


def test_the_short_list_is_by_cost_with_the_records_behind_it(world) -> None:
    found = board(world, memory_bytes=bytes_of("40GB"))
    assert [(r.name, r.place) for r in found.ranked] == [("linear", "1"), ("softmax", "2"), ("rela", "3")]
    assert len(found.ranked[0].records) == 4
    assert text(found, "records").startswith("linear: ")


def test_what_ran_stands_beside_each_cost(bench) -> None:
    b = bench()
    half = [Measurement.of("declared_density", 0.34)]
    b.time("softmax", TIMES, TIMES, implementation="sdpa")
    b.time("window", TIMES, TIMES, more=half, implementation="cpp")
    found = board(b)
    assert [entry(found, name, "implementation").text for name in ("softmax", "window")] == [
        "sdpa", "cpp; computes 34 % of the scores",
    ]  # fmt: skip
    # long words break the names of variants on a narrow display
    assert entry(found, "window", "implementation").shown("brief") == "cpp"


def test_everyone_else_has_a_reason(world) -> None:
    reasons = {r.name: r.reason for r in board(world, memory_bytes=40e9).unranked}
    assert reasons == {
        "big": "out of memory on lra-text: tried 99 GiB",
        "hungry": "needs 83.8 GiB",
        "local": "worse than softmax by more than 1 point on lra-text",
        "young": "no accuracy to compare on lra-text: fewer than 3 seeds",
    }


def test_what_is_not_proven_is_not_chosen(world) -> None:
    reasons = {r.name: r.reason for r in board(world, margin=0.25).unranked}
    assert reasons["linear"] == "not shown to be within 0.25 points of softmax on lra-text: more seeds could show it"


def test_the_reference_is_taken_where_nobody_costs_less(bench) -> None:
    b = bench()
    for name, factor in (("softmax", 1.0), ("rela", 2.0)):
        b.train(name, [], correct=[right(0.6)] * 3)
        b.time(name, [factor * t for t in TIMES], TIMES)
    assert board(b).headline == (
        "Take softmax: no variant that fits costs less, timed on Abacus 9, 2 cores, not causal. "
        "Judged on lra-text up to 512 tokens."
    )


def test_without_a_limit_memory_is_no_reason(world) -> None:
    assert "hungry" in {r.name for r in board(world).ranked}


def test_a_length_that_nobody_timed_says_which_were(world) -> None:
    with pytest.raises(SelectionError, match="not timed at length 16,384; lengths with timings: 512") as raised:
        board(world, length=16384)
    # the command times those whose quality is known
    assert "--variants hungry,linear,local,rela,young " in str(raised.value)
    # the command is of the mode and the folder that were asked for
    table = table_of(world.records)
    wanted = Requirements(length=512, mode="decode")
    with pytest.raises(
        SelectionError,
        match=r"a decoding step was not timed at length 512, nor at any other; .*=512,mode=decode\]' --results mine`, "
        r"or estimate it: .* --context 512 ",
    ):
        board_for_choice(table, board_keys(table), wanted, world.predictions, folder=Path("mine"))


def test_cost_may_come_from_a_sweep_where_the_task_was_not_timed_at_that_length(world) -> None:
    world.task = "sweep"
    for name, factor in (("softmax", 1.0), ("rela", 0.25)):
        world.time(name, [factor * t for t in TIMES], TIMES, setting={"length": 4096, "level": "attention"})
    table = table_of(world.records)
    everything = board_keys(table)
    asked = [q for q in everything if q.task == "lra-text"]
    found = board_for_choice(table, asked, Requirements(length=4096), world.predictions, everything)
    assert [(r.name, r.entries[0].value) for r in found.ranked] == [("rela", pytest.approx(0.25)), ("softmax", 1.0)]
    assert "from sweep (quick)" in text(found, "cost")
    faster = "a training step of attention alone is 4.00× faster, timed on Abacus 9, 2 cores, not causal"
    assert found.headline == f"Take rela: {faster}. Judged on lra-text up to 512 tokens."
    assert found.columns[0].title == "a training step of attention alone"
    assert board(world).headline.startswith("Take hungry: a training step of the model is 2.50× faster")


def test_a_time_beyond_the_cap_is_a_bound(bench) -> None:
    b = bench()
    b.time("softmax", TIMES, TIMES)
    b.time("slow", [90 * t for t in TIMES], TIMES)
    assert entry(board(b), "slow", "cost").text == "≥ 64× slower"


def test_what_older_versions_measured_judges_nobody_beside_the_present(world) -> None:
    world.task = "lra-image"
    for name in ("softmax", "linear", "local"):
        world.train(name, [], correct=[right(0.6)] * 3, digest="lane1.objective1.task1-d1-v1")
    found = board(world)
    # on lra-text, which is of version 0, local is worse
    assert "local" in {row.name for row in found.ranked} and "lra-text" not in found.headline
    assert "nobody is judged on lra-text" in text(found, "version")
    assert "gap_lra-text_quick" not in [column.name for column in found.columns]


def test_quality_that_nobody_measured_is_said(bench) -> None:
    b = bench(task="sweep")
    b.time("softmax", TIMES, TIMES)
    b.time("linear", [0.5 * t for t in TIMES], TIMES)
    found = board(b)
    assert [r.name for r in found.ranked] == ["linear", "softmax"]
    assert notes(found, "not measured")[0].warning
    assert facts(found.headline, found)[:2] == ["linear", "2.00"] and "unknown" in found.headline
    b.time("rela", [0.5 * t for t in TIMES], TIMES)
    assert board(b, memory_bytes=1.0).headline == "No variant fits."
    assert facts(board(b).headline, board(b))[:2] == ["linear", "rela"]


def test_of_several_machines_the_newest_timings_count(bench) -> None:
    b = bench(task="sweep")
    b.time("softmax", TIMES, TIMES)
    b.time("linear", [0.5 * t for t in TIMES], TIMES)
    other = replace(b.records[0].machine, id="box-2")
    b.time("softmax", TIMES, TIMES, machine=other)
    b.time("linear", [0.25 * t for t in TIMES], TIMES, machine=other)
    table = table_of(reversed(b.records))
    found = board_for_choice(table, board_keys(table), Requirements(length=512), b.predictions)
    assert found.ranked[0].entries[0].value == pytest.approx(0.25)
    (cost,) = [note for note in found.notes if note.topic == "cost"]
    assert "on Abacus 9, 2 cores, not causal (box-2)" in cost.text and cost.text.endswith("; others: --machine box-1")


def test_times_of_two_shapes_are_not_mixed_and_the_plainest_counts(bench) -> None:
    b = bench()
    for task, factor, peak in (("sweep[causal=true]", 0.1, 1e9), ("sweep", 0.5, 2e9), ("lra-text", 0.9, 3e9)):
        b.task = task
        for name, times in (("softmax", TIMES), ("linear", [factor * t for t in TIMES])):
            b.time(name, times, TIMES, peak=peak, setting={"length": 512})
    for name in ("softmax", "linear"):
        b.train(name, [], correct=[right(0.6)] * 3)
    found = board(b)
    assert [(row.name, row.entries[0].value) for row in found.ranked] == [
        ("linear", pytest.approx(0.5)), ("softmax", 1.0),
    ]  # fmt: skip
    assert found.ranked[0].entries[1].value == 2e9
    (cost,) = [note for note in found.notes if note.topic == "cost"]
    assert "'sweep[causal=true]'" in cost.text.split("others: --task ")[1]


def test_what_is_proven_worse_is_said_before_what_is_undecided_or_unknown(world) -> None:
    for task, share in (("lra-image", None), ("lra-listops", 0.3)):
        world.task = task
        world.train("softmax", [], correct=[right(0.6)] * 3)
        if share:
            world.train("linear", [], correct=[right(share)] * 3)
    reasons = {row.name: row.reason for row in board(world).unranked}
    assert reasons["linear"] == "worse than softmax by more than 1 point on lra-listops"
    assert (
        reasons["rela"]
        == "no accuracy to compare on lra-image: no Records on this board, and likewise on 1 other board"
    )


def test_a_margin_of_points_is_none_of_bits() -> None:
    bits = METRICS["bits_per_character"]
    wanted = Requirements(length=512, margin=2.0)
    assert wanted.margin_of(bits, [bits, ACCURACY]) == bits.margin and wanted.margin_of(bits, [bits]) == 2.0
    assert wanted.margin_of(ACCURACY, [bits, ACCURACY]) == 2.0


def test_the_memory_of_decoding_is_the_state_of_a_sequence(bench) -> None:
    b = bench()
    for name, held in (("softmax", 4096.0), ("linear", 1024.0), ("unknown", None)):
        decode = {"decode_seconds": TIMES, "reference_decode_seconds": TIMES}
        more = [Measurement.of(n, 1.0, tuple(s)) for n, s in decode.items()]
        more += [Measurement.of("state_bytes", held, length=512)] if held else []
        b.time(name, TIMES, TIMES, more=more)
    found = board(b, mode="decode", memory_bytes=2048.0)
    assert [row.name for row in found.ranked] == ["linear"]
    assert {r.name: r.reason for r in found.unranked} == {
        "softmax": "needs 4 KiB", "unknown": "its decode state was not measured",
    }  # fmt: skip
    assert any(f.text == "limit of 2 KiB on the decode state of one sequence" for f in found.notes)


def test_a_task_that_the_reference_did_not_learn_judges_nobody(world) -> None:
    world.add(world.cell("majority", lane="baseline"), [Measurement.of("accuracy", 0.6, split="test", examples=4000)])
    found = board(world)
    assert "local" in {row.name for row in found.ranked}
    assert facts(found.headline, found)[0] == "local" and "softmax did not learn lra-text" in found.headline
    assert notes(found, "learned")[0].warning


def test_what_nobody_knows_is_no_answer_and_the_tasks_are_asked_for(world) -> None:
    world.task = "lra-image"
    world.train("softmax", [], correct=[right(0.6)] * 3)
    assert board(world).headline == (
        "No answer: of 4 variants that may fit, 4 were without enough Records on every task that is judged. Judged "
        "on lra-image and lra-text: name those that matter, as in `--task lra-image`."
    )
    # two presets of a task are two boards of one task
    world.preset = "quick[steps=9]"
    world.train("softmax", [], correct=[right(0.6)] * 3)
    assert "Judged on lra-image and lra-text: name" in board(world).headline
    reasons = {row.name: row.reason for row in board(world).unranked}
    assert (
        reasons["rela"]
        == "no accuracy to compare on lra-image: no Records on this board, and likewise on 1 other board"
    )


def test_one_open_variant_among_the_failed_is_no_answer(bench) -> None:
    b = bench()
    for name in ("softmax", "rela"):
        b.train(name, [], correct=[right(0.6)] * 3)
        b.time(name, TIMES, TIMES)
    b.time("linear", TIMES, TIMES)
    assert board(b).headline.startswith("Take ")
    only = bench()
    only.train("softmax", [], correct=[right(0.6)] * 3)
    for name in ("softmax", "linear"):
        only.time(name, TIMES, TIMES)
    assert board(only).headline == (
        "No answer: of 1 variant that may fit, 1 was without enough Records on every task that is judged."
    )
