"""The board of one task: who is ranked, who is not and why, and what stands beside."""

from dataclasses import replace

import numpy as np
import pytest
from boards import entry, facts, row
from boards import notes as notes_on
from boards import text as notes
from moderated_t import half_width_of_seeds

from attnbench.bench.board.board import Board, TableCell
from attnbench.bench.board.task_board import board_for_task
from attnbench.bench.core.cell import LANE_VERSIONS
from attnbench.bench.core.record import Measurement, Outcome
from attnbench.bench.core.spec import Spec
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.table import table_of

REFERENCE_TIMES = [1.0, 1.1, 0.9, 1.05, 0.95]


def board(b: object, at: int = 0, **options: object) -> Board:
    table = table_of(b.records)
    return board_for_task(table, board_keys(table)[at], predictions=b.predictions, **options)


def flips(share: float, count: int = 2000) -> np.ndarray:
    """`share` of the examples right: the first ones."""
    return (np.arange(count) < share * count).astype(np.uint8)


def three(bench: object) -> object:
    b = bench()
    for name, shares in (("softmax", (0.6, 0.6, 0.6)), ("rela", (0.599, 0.604, 0.609)), ("entmax15", (0.75,) * 3)):
        b.train(name, [], correct=[flips(share) for share in shares])
    return b


def test_quality_is_points_against_the_reference_with_a_verdict(bench) -> None:
    found = board(three(bench))
    gap = entry(found, "rela", "gap")
    # of seeds, moderated and corrected for 5 pairs; the little that 20 of 2,000 examples add is shared by no seed
    shares = {"softmax": (60.0, 60.0, 60.0), "rela": (59.9, 60.4, 60.9), "entmax15": (75.0, 75.0, 75.0)}
    half = half_width_of_seeds(shares, "rela", "softmax", list(shares), pairs=5)
    assert gap.value == pytest.approx(0.4)
    assert gap.high - gap.value == pytest.approx(half, rel=0.02)
    assert [entry(found, name, "verdict").text for name in ("rela", "entmax15")] == ["within 1 point", "better"]
    assert entry(found, "softmax", "gap").text == "reference"
    assert "paired by example" in notes(found, "intervals")


def test_variants_without_the_attention_dropout_of_the_preset_are_named(bench) -> None:
    b = three(bench)
    assert notes(board(b), "unlike others") == ""
    for name in ("nystrom", "linear"):
        b.train(name, [0.6] * 3, more=[Measurement.of("attention_dropout", 0.0)])
    assert notes(board(b), "unlike others").startswith("linear, nystrom ")


def test_margin_decides_what_is_no_worse(bench) -> None:
    b = bench()
    b.train("softmax", [], correct=[flips(0.60)] * 3)
    b.train("rela", [], correct=[flips(0.585)] * 3)
    assert entry(board(b), "rela", "verdict").text == "worse by > 0"
    assert board(b).headline == "Worse than softmax: rela (by 0.8 to 2.2 points)."
    assert entry(board(b, margin=3.0), "rela", "verdict").text == "within 3 points"
    assert entry(board(b, margin=0.5), "rela", "verdict").text == "worse by > 0.5 points"


def test_predictions_that_do_not_bear_out_their_accuracy_are_not_paired(bench) -> None:
    b = three(bench)
    for name in b.artifacts:
        b.artifacts[name] = 1 - b.artifacts[name]
    assert "independent" in notes(board(b), "intervals")


def test_fewer_than_three_seeds_get_no_rank(bench) -> None:
    b = bench()
    b.train("softmax", [0.6, 0.61])
    b.train("rela", [0.7, 0.71])
    found = board(b)
    assert found.ranked == ()
    assert {r.reason for r in found.unranked} == {"fewer than 3 seeds"}
    gap = entry(found, "rela", "gap")
    assert (gap.value, gap.low, entry(found, "rela", "verdict").text) == (pytest.approx(10), None, "")


def test_pairs_use_the_seeds_that_both_have(bench) -> None:
    b = bench()
    b.train("softmax", [0.6, 0.61, 0.62, 0.6])
    b.train("rela", [0.7, 0.7, 0.7])
    b.train("entmax15", [0.7] * 5)
    found = board(b)
    assert row(found, "rela").reason == "" and row(found, "rela").place
    # over seeds 0 to 2 alone: 0.7 less 0.61
    assert entry(found, "rela", "gap").value == pytest.approx(9.0)
    # a fifth seed that the reference lacks counts for its own level only
    assert entry(found, "entmax15", "seeds").value == 5
    assert entry(found, "entmax15", "gap").value == pytest.approx(70 - 60.75)


def test_seeds_behind_a_gap_do_not_count(bench) -> None:
    """Whoever keeps the best three of ten seeds has gaps; whoever drops the first seed has no rank."""
    b = three(bench)
    for seed in (0, 1, 2, 4):
        b.add(b.cell("local", seed), [Measurement.of("accuracy", 0.6 + seed / 100, split="test", examples=2000)])
    for seed in (1, 2, 3):
        b.add(b.cell("linear", seed), [Measurement.of("accuracy", 0.9, split="test", examples=2000)])
    found = board(b)
    assert entry(found, "local", "accuracy").value == pytest.approx(61) and row(found, "local").place
    assert row(found, "linear").reason == "seed 0 is missing, so that seed 1, 2, 3 does not count; run it"
    assert facts(notes(found, "seeds"), found) == ["linear", "1", "2", "3", "0", "local", "4", "0"]


def test_failures_are_named(bench) -> None:
    b = three(bench)
    b.add(b.cell("sparsemax", 1), outcome=Outcome.INCORRECT, reason="causality: future leaks")
    b.add(b.cell("topk", 0), outcome=Outcome.UNSUPPORTED, reason="it has no causal form", data=None, digest="")
    found = board(b)
    assert row(found, "sparsemax").reason == "incorrect at seed 1: causality: future leaks"
    assert row(found, "topk").reason == "unsupported at seed 0: it has no causal form"


def test_without_the_reference_nothing_is_ranked(bench) -> None:
    b = bench()
    b.train("rela", [0.6] * 3)
    assert "no result of softmax, the reference" in row(board(b), "rela").reason


def test_a_preset_that_only_proves_that_it_runs_is_never_ranked(bench) -> None:
    b = bench(preset="smoke")
    for name in ("softmax", "rela"):
        b.train(name, [0.6] * 3, setting={"ranked": False})
    b.add(b.cell("topk"), outcome=Outcome.CRASHED, reason="RuntimeError: shapes differ", setting={"ranked": False})
    found = board(b)
    assert "only shows that the code runs" in row(found, "rela").reason
    assert row(found, "topk").reason == "crashed at seed 0: RuntimeError: shapes differ"
    assert found.ranked == ()
    assert row(found, "rela").reason in found.headline


def test_differences_under_the_noise_floor_are_marked(bench) -> None:
    b = three(bench)
    null = [1.02 * t for t in REFERENCE_TIMES]
    b.time("softmax", REFERENCE_TIMES, REFERENCE_TIMES, null)
    b.time("rela", [1.01 * t for t in REFERENCE_TIMES], REFERENCE_TIMES, null)
    b.time("entmax15", [1.5 * t for t in REFERENCE_TIMES], REFERENCE_TIMES, null)
    found = board(b)
    assert entry(found, "rela", "step_time").note == "≈"
    assert entry(found, "entmax15", "step_time").note == ""


def test_a_null_control_that_separates_is_a_warning(bench) -> None:
    b = three(bench)
    b.time("softmax", REFERENCE_TIMES, REFERENCE_TIMES, [1.02 * t for t in REFERENCE_TIMES])
    (note,) = notes_on(board(b), "A/A test")
    assert note.warning and "1.020×" in note.text
    noisy = three(bench)
    noisy.time("softmax", REFERENCE_TIMES, REFERENCE_TIMES, list(reversed(REFERENCE_TIMES)))
    (note,) = notes_on(board(noisy), "A/A test")
    assert not note.warning


def test_times_that_cannot_be_are_not_used(bench) -> None:
    b = three(bench)
    b.time("softmax", REFERENCE_TIMES, REFERENCE_TIMES)
    b.time("rela", [0.0, 1.0, float("nan"), 1.0, 1.0], REFERENCE_TIMES)
    assert entry(board(b), "rela", "step_time").text == "too few rounds"


def test_speeds_of_two_machines_are_two_boards(bench) -> None:
    b = three(bench)
    b.time("softmax", REFERENCE_TIMES, REFERENCE_TIMES)
    b.time("softmax", REFERENCE_TIMES, REFERENCE_TIMES)
    b.records[-1] = replace(b.records[-1], machine=replace(b.records[-1].machine, id="box-2"))
    table = table_of(b.records)
    assert [q.machine for q in board_keys(table)] == ["box-1", "box-2"]
    assert [notes(board(b, at), "speed").count(f"machine box-{at + 1}") for at in (0, 1)] == [1, 1]


def test_heavier_models_are_marked(bench) -> None:
    b = three(bench)
    b.train("wide", [0.6] * 3, more=[])
    b.records[-3:] = [
        replace(r, measurements=(*r.measurements[:2], Measurement.of("parameters", 111_000))) for r in b.records[-3:]
    ]
    found = board(b)
    assert [entry(found, name, "parameters").note for name in ("rela", "wide")] == ["", "†"]
    assert "10 % more parameters" in notes(found, "parameters")


def test_a_board_of_gpu_trainings_shows_what_of_their_time_was_not_the_gpus(bench) -> None:
    b = bench()
    reason = "batches differ in shape"
    for variant, share, captured, why in (("softmax", 0.002, 0.99, {}), ("rela", 0.25, 0.0, {"reason": reason})):
        b.train(variant, [0.6] * 3, more=[
            Measurement.of("data_share", share), Measurement.of("host_seconds", 0.002),
            Measurement.of("captured_steps", captured, **why),
        ])  # fmt: skip
    found = board(b)
    assert entry(found, "rela", "data_share").text == "25.0 %" and entry(found, "softmax", "data_share").text == "0.2 %"
    assert entry(found, "rela", "host_time").text == "2 ms"
    assert entry(found, "rela", "captured_steps").note == reason


def test_a_board_says_nothing_of_data_that_came_in_time(bench) -> None:
    b = bench()
    b.train("softmax", [0.6] * 3, more=[Measurement.of("data_share", 0.009)])
    assert "data_share" not in [column.name for column in board(b).columns]


def test_the_speed_of_decoding_stands_beside_what_is_in_it(bench) -> None:
    b = bench()
    b.train("softmax", [0.6] * 3, more=[Measurement.of("decode_tokens_per_second", 2000.0)])
    b.train("rela", [0.6] * 3, more=[Measurement.of("decode_tokens_per_second", 1000.0)])
    found = board(b)
    assert entry(found, "rela", "decoded_rate").value == 1000 and "0.50×" in entry(found, "rela", "decoded_rate").text
    assert notes(found, "decoded tokens/s")
    assert not notes(board(three(bench)), "decoded tokens/s")


def test_figures_of_one_kind_of_attention_are_not_shown_as_the_variants(bench) -> None:
    b = bench()
    names = ("sparsity", "null_rate", "head_diversity")
    kinds = [Measurement.of(name, 0.25, attention="encoder") for name in names]
    kinds.append(Measurement.of("block_sparsity", 0.25, attention="encoder", block=64))
    b.train("softmax", [0.6] * 3, more=[*kinds, *(Measurement.of(name, 0.5) for name in names)])
    # it has no weights of its own: what the encoder does is softmax's doing
    b.train("linformer", [0.6] * 3, more=kinds)
    found = board(b)
    columns = ("sparsity", "null_rate", "diversity", "block_sparsity")
    assert [entry(found, "linformer", name) for name in columns] == [TableCell()] * 4
    assert [entry(found, "softmax", name).value for name in columns] == [0.5, 0.5, 0.5, None]


def test_the_board_says_what_it_rests_on(bench) -> None:
    b = bench(fidelity="surrogate")
    b.train("softmax", [0.6] * 3, cell={"selection": "test"}, digest="p0-t1-v1")
    b.train("softmax", [0.6] * 3, cell={"selection": "test"})
    found = board(b)
    assert "length 512" in notes(found, "preset") and "protocol 1" in notes(found, "preset")
    assert any(f.warning and "surrogate" in f.text for f in found.notes)
    assert notes_on(found, "selection")[0].warning
    assert notes(found, "not counted").startswith("3 ")
    assert facts(notes(found, "intervals"), found)[1:] == ["0", "1", "2", "1,000"]


def test_an_accuracy_that_cannot_be_counts_as_missing(bench) -> None:
    b = three(bench)
    b.train("odd", [0.6, float("nan"), 1.7])
    assert row(board(b), "odd").reason == "fewer than 3 seeds"


def test_quality_after_equal_time_stands_beside_that_after_equal_steps(bench) -> None:
    b = three(bench)
    for record in b.records:
        record.artifacts["curve"] = f"{record.cell.variant} {record.cell.seed}"
    b.time("softmax", REFERENCE_TIMES, REFERENCE_TIMES)
    b.time("rela", [2 * t for t in REFERENCE_TIMES], REFERENCE_TIMES)

    def curves(name: str) -> list[dict[str, float]]:
        return [
            {"step": step, "validation_accuracy": 0.5 + step / 1000, "validation_loss": 1.0} for step in (0, 50, 100)
        ]

    found = board(b, curves=curves)
    # half of the steps: 55 % against 60 %
    assert entry(found, "rela", "equal_time").value == pytest.approx(-5.0)
    assert notes(found, "at equal time")
    assert entry(board(b), "rela", "equal_time").text == ""


def test_quality_at_equal_decode_state_names_who_it_is_held_against(bench) -> None:
    b = three(bench)
    b.time("softmax", REFERENCE_TIMES, REFERENCE_TIMES, more=[Measurement.of("state_bytes", 2048.0, length=512)])
    b.time("rela", REFERENCE_TIMES, REFERENCE_TIMES, more=[Measurement.of("state_bytes", 4096.0, length=512)])
    found = board(b)
    assert entry(found, "softmax", "state").text == "2 KiB" and entry(found, "softmax", "equal_state").text == ""
    held = entry(found, "rela", "equal_state")
    assert held.text.endswith("vs softmax") and held.value == entry(found, "rela", "gap").value
    assert notes(found, "at equal state")


def test_the_decode_state_of_a_task_that_is_never_timed_is_that_of_its_trainings(bench) -> None:
    b = three(bench)
    b.train("held", [0.5, 0.6, 0.7], more=[Measurement.of("state_bytes", 1024.0, length=64)])
    assert entry(board(b), "held", "state").text == "1 KiB"
    # a timing is of the length that the task is trained at
    b.time("held", REFERENCE_TIMES, REFERENCE_TIMES, more=[Measurement.of("state_bytes", 2048.0, length=512)])
    assert entry(board(b), "held", "state").text == "2 KiB"


def test_a_decode_state_that_no_json_can_hold_is_none(bench) -> None:
    b = three(bench)
    b.time("rela", REFERENCE_TIMES, REFERENCE_TIMES, more=[Measurement.of("state_bytes", float("inf"), length=512)])
    assert entry(board(b), "rela", "state").value is None


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.55, []), (0.6, ["bag", "rela"]), (0.8, ["bag", "rela", "softmax"])],
)
def test_who_is_no_better_than_the_best_trivial_predictor_is_named(bench, share: float, expected: list[str]) -> None:
    b = bench()
    for name, right in (("softmax", 0.7), ("rela", 0.6)):
        b.train(name, [], correct=[flips(right)] * 3)
    for name, value in (("majority", 0.5), ("bag", share)):
        measured = Measurement.of("accuracy", value, split="test", examples=2000)
        b.add(b.cell(name, lane="baseline"), [measured])
    found = board(b)
    assert facts(notes(found, "baseline"), found) == expected


def test_records_of_another_version_are_counted(bench, monkeypatch) -> None:
    b = three(bench)
    (note,) = notes_on(board(b), "version")
    assert note.warning and note in board(b).shown_notes and note.text.startswith("9 of 9 Records are of version 0")
    b.train("topk", [0.6] * 3, digest="lane1.objective1.task1-d1-v1", cell={"preset": Spec.parse("base")})
    assert notes(board(b, 0), "version") == ""
    b.time("softmax", REFERENCE_TIMES, REFERENCE_TIMES, digest="lane1.objective1.task1-d1-v1")
    assert notes(board(b, 1), "version").startswith("9 of 10 Records are of version 0")
    monkeypatch.setitem(LANE_VERSIONS, "train", 2)
    assert "lane1.objective1.task1" in notes(board(b, 0), "version")


def test_calls_that_cost_far_more_than_others_are_named(bench) -> None:
    b = bench()
    steady, third = [1.0, 1.1, 0.9] * 3, [1.0, 1.0, 30.0] * 3
    for name, seconds in (("softmax", steady), ("rela", third), ("linear", [2 * t for t in steady])):
        b.train(name, [0.6] * 3)
        b.time(name, seconds, steady)
    text = notes(board(b), "uneven")
    # the mean of 1, 1 and 30 over their geometric mean, over that of the reference
    assert text.endswith(f": rela {(32 / 3) / 30 ** (1 / 3) / (1.0 / 0.99 ** (1 / 3)):.1f}×") and "linear" not in text


def test_an_older_task_than_is_installed_is_said_first(bench, monkeypatch) -> None:
    b = bench()
    for name in ("softmax", "rela", "linear"):
        b.train(name, [0.6] * 3, digest="lane1.objective1.task1-d1-v1")
    assert "version" not in board(b).headline and notes(board(b), "version") == ""
    # another question has been asked since, such as recall in four times the steps
    monkeypatch.setattr("attnbench.bench.board.version_notes.installed_version", lambda task: 2)
    found = board(b)
    assert found.headline.endswith(
        "These Records are older than what is installed (lra-text version 2): measure anew before you conclude."
    )
    assert notes(found, "version") == (
        "9 of 9 Records are of lane1.objective1.task1; now lra-text 2: run the same command again"
    )
    # a plugin's is not imported, and so has no version here
    monkeypatch.setattr("attnbench.bench.board.version_notes.installed_version", lambda task: float("inf"))
    assert "version" not in board(b).headline


def majority(b: object, share: float) -> None:
    b.add(b.cell("majority", lane="baseline"), [Measurement.of("accuracy", share, split="test", examples=2000)])


def test_who_did_not_learn_is_marked_and_ranked_all_the_same(bench) -> None:
    b = three(bench)
    b.train("linear", [], correct=[flips(0.5), flips(0.62), flips(0.62), flips(0.63)])
    b.train("topk", [], correct=[flips(0.5), flips(0.62), flips(0.62)])
    b.train("local", [], correct=[flips(0.5)] * 3)
    majority(b, 0.5)
    found = board(b)
    learned = {name: entry(found, name, "learned").brief for name in ("softmax", "linear", "local", "topk")}
    assert learned == {"softmax": "3 of 3", "linear": "3 of 4", "local": "0 of 3", "topk": "2 of 3"}
    assert entry(found, "linear", "learned").text == "3 of 4 (19–99 %)"
    assert "linear 3 of 4, local 0 of 3, topk 2 of 3" in notes(found, "learned")
    # the score is of those that learned; what all seeds reach stands beside it
    assert entry(found, "linear", "accuracy").value == pytest.approx(100 * (0.62 + 0.62 + 0.63) / 3)
    assert entry(found, "linear", "all_seeds").value == pytest.approx(100 * (0.5 + 0.62 + 0.62 + 0.63) / 4)
    assert row(found, "linear").place and not row(found, "topk").place
    assert row(found, "topk").reason == "learned at 2 of 3 seeds; a rank needs 3"
    assert "not even 3 of 3 against 0" in notes(found, "shares")
    assert row(found, "local").place and entry(found, "local", "accuracy").value == pytest.approx(50)
    assert not found.headline.startswith("softmax did not learn")
    assert not any(column.name == "learned" for column in board(three(bench)).columns)


def test_a_reference_that_did_not_learn_is_said_first_and_nobody_is_no_worse(bench) -> None:
    b = bench()
    for name in ("softmax", "rela", "linear"):
        b.train(name, [], correct=[flips(0.5)] * 3)
    assert entry(board(b, margin=20.0), "rela", "verdict").text == "within 20 points"
    majority(b, 0.5)
    found = board(b, margin=20.0)
    assert found.headline.startswith("Even softmax learned nothing here (0 of 3 seeds above majority, 50.0)")
    assert found.headline.endswith("so this board compares nothing.") and not found.learned
    assert entry(found, "rela", "verdict").text == "undecided" and row(found, "rela").place
    # three trainings that all learned beside three that all failed may be luck
    b.train("topk", [], correct=[flips(0.9)] * 3)
    assert not board(b).learned
    # who learned what softmax did not is an answer
    for name, share in (("softmax", 0.5), ("topk", 0.9)):
        b.train(name, [], correct=[flips(share)] * 6)
    assert board(b).learned and board(b).headline.startswith(
        "Even softmax learned nothing here (0 of 6 seeds above majority, 50.0). Better than softmax: topk. Undecided"
    )


def test_a_baseline_that_looks_at_the_input_is_a_bar_for_trainings_and_none_for_the_task(bench) -> None:
    b = three(bench)
    b.train("local", [], correct=[flips(0.7), flips(0.6), flips(0.6)])
    majority(b, 0.1)
    tested = Measurement.of("accuracy", 0.65, split="test", examples=2000)
    b.add(b.cell("bag-of-bytes", lane="baseline"), [tested])
    found = board(b)
    assert entry(found, "softmax", "learned").brief == "0 of 3" and row(found, "softmax").place
    assert found.learned and not found.headline.startswith("softmax did not learn")
    # above the rule at one seed, and more than halfway from the majority to its best at all of them
    assert entry(found, "local", "learned").brief == "1 of 3" and not row(found, "local").place


def test_no_speed_stands_in_one_column_for_two_machines(bench) -> None:
    b = three(bench)
    for at, record in enumerate(b.records):
        record.artifacts["curve"] = f"{record.cell.variant} {record.cell.seed}"
        b.records[at] = replace(record, measurements=(*record.measurements, Measurement.of("data_share", 0.2)))

    def curves(name: str) -> list[dict[str, float]]:
        return [{"step": 50, "validation_accuracy": 0.95, "seconds": 2.0}]

    names = {"seconds_to_high", "data_share"}
    alone = board(b, curves=curves)
    assert names <= {column.name for column in alone.columns} and notes(alone, "machines") == ""
    b.records[0] = replace(b.records[0], machine=replace(b.records[0].machine, id="box-2"))
    mixed = board(b, curves=curves)
    assert not names & {column.name for column in mixed.columns}
    assert "steps_to_high" in {column.name for column in mixed.columns}
    assert notes(mixed, "machines") == "quality was measured on box-1, box-2"


def test_variants_of_another_version_are_named_with_the_command_that_measures_them(bench) -> None:
    b = bench()
    for name in ("softmax", "rela", "linear", "local"):
        b.train(name, [0.6] * 3, digest="lane1.objective1.task0-d1-v1")
    for name in ("softmax", "rela", "linear"):
        b.train(name, [0.7] * 3, digest="lane1.objective1.task1-d1-v1")
    found = board(b)
    assert {r.name for r in found.ranked} == {"softmax", "rela", "linear"}
    # it is no row: one note counts it
    assert [r.name for _, r in found.rows if r.name == "local"] == []
    assert "attnbench run --variants local --task lra-text --preset quick --seeds 3" in notes(found, "version")


def test_a_cell_measured_twice_names_the_value_that_does_not_count(bench) -> None:
    b = three(bench)
    again = Measurement.of("accuracy", 0.9, split="test", examples=2000)
    b.add(b.cell("rela", 1), [again], machine=replace(b.records[0].machine, id="box-2"))
    found = board(b)
    assert entry(found, "rela", "gap").value == pytest.approx(0.4)
    assert "rela at seed 1: 0.9 on box-2, beside 0.604 on box-1" in notes(found, "repeated")


def test_the_correction_and_what_can_be_found_are_said(bench) -> None:
    b = three(bench)
    assert {"5", "15"} <= set(facts(notes(board(b), "rank"), board(b)))
    assert facts(notes(board(b), "error rate"), board(b))[:2] == ["3", "6"]
    assert notes_on(board(b), "power")[0] in board(b).shown_notes
    b.train("mine", [], correct=[flips(0.6)] * 3)
    assert "those of mine for 11 and 66" in notes(board(b), "rank")


def curves_of(levels: dict[str, list[float]]) -> object:
    """Curves by artifact: validation accuracy at steps 50, 100, …, each of which takes a second."""

    def read(name: str) -> list[dict[str, float]] | None:
        found = levels.get(name)
        return found and [
            {"step": 50 * at, "validation_accuracy": level, "seconds": float(at)} for at, level in enumerate(found, 1)
        ]

    return read


def test_the_model_without_attention_is_a_baseline_that_competes_with_nobody(bench) -> None:
    b = three(bench)
    before = board(b)
    b.train("no-attention", [], correct=[flips(0.55)] * 3)
    found = board(b)
    assert [r.name for r in found.baselines] == ["no-attention"]
    assert found.baselines[0].first is None and found.baselines[0].reason == ""
    assert [(r.name, r.place) for r in found.ranked] == [(r.name, r.place) for r in before.ranked]
    assert found.headline == before.headline
    assert entry(found, "no-attention", "accuracy").value == pytest.approx(55)
    assert entry(found, "no-attention", "gap").value == pytest.approx(-5)
    assert "+5.0 (" in notes(found, "attention")
    (note,) = [each for each in found.notes if each.topic == "attention"]
    assert not note.warning
    # a suite that names it has it among its variants
    declared = board(b, declared=["softmax", "rela", "entmax15", "no-attention"])
    assert row(declared, "no-attention").place == "4" and declared.baselines == ()


def test_a_task_that_attention_adds_nothing_to_says_so(bench) -> None:
    b = three(bench)
    b.train("no-attention", [], correct=[flips(0.6)] * 3)
    (note,) = [each for each in board(b).notes if each.topic == "attention"]
    assert note.warning


def test_too_few_seeds_show_no_gain_of_attention(bench) -> None:
    b = three(bench)
    b.train("no-attention", [0.1])
    (note,) = [each for each in board(b).notes if each.topic == "attention"]
    assert facts(note.text, board(b))[-2:] == ["+50.0", "1"] and not note.warning


def test_a_model_without_attention_that_failed_says_why(bench) -> None:
    b = three(bench)
    b.add(b.cell("no-attention"), outcome=Outcome.UNSUPPORTED, reason="two sequences", data=None, digest="")
    found = row(board(b), "no-attention")
    assert found.reason == "unsupported at seed 0: two sequences" and found in board(b).baselines


def test_the_chosen_learning_rate_is_shown(bench) -> None:
    assert "learning_rate" not in [column.name for column in board(three(bench)).columns]
    b = bench()
    for name, rate in (("softmax", 1e-3), ("rela", 4e-3)):
        b.train(name, [0.6] * 3, more=[Measurement.of("learning_rate", rate)])
    found = board(b)
    assert [entry(found, name, "learning_rate").text for name in ("softmax", "rela")] == ["0.001", "0.004"]
    assert "seeds that no board uses" in notes(found, "rate")


def test_steps_and_seconds_to_a_level_come_from_the_validation_curve(bench) -> None:
    b = bench()
    curves = {}
    for name, levels in {
        "softmax": ([0.5, 0.9, 1.0], [0.89, 0.5, 0.95], [0.2, 0.91, 0.3]),
        "rela": ([0.5, 0.6, 0.7], [0.5, 0.6, 0.93], [0.1, 0.1, 0.1]),
        "linear": ([0.1] * 3, [0.1] * 3, [0.1] * 3),
        "local": None,
    }.items():
        for seed in range(3):
            kept = {"curve": f"{name}{seed}"} if levels else {}
            curves |= {f"{name}{seed}": levels[seed]} if levels else {}
            b.add(b.cell(name, seed), [Measurement.of("accuracy", 0.9, split="test", examples=1000)], artifacts=kept)
    found = board(b, curves=curves_of(curves))
    steps = {name: entry(found, name, "steps_to_high") for name in ("softmax", "rela", "linear", "local")}
    # 100, 150 and 100: the first time counts, also where the level is lost again
    assert steps["softmax"].value == pytest.approx(350 / 3) and steps["softmax"].text == "117"
    assert (steps["softmax"].low, steps["softmax"].high) == (100, 150)
    assert steps["rela"].text == "150 (1 of 3)" and steps["rela"].value == 150
    assert (steps["linear"].text, steps["linear"].value) == ("never", None)
    assert steps["local"].text == ""
    assert entry(found, "softmax", "seconds_to_high").value == pytest.approx(7 / 3)
    # where no seed of any variant gets there, the board has no such column
    never = board(b, curves=curves_of({name: [0.1] for name in curves}))
    assert "steps_to_high" not in [column.name for column in never.columns]


def test_an_interval_clear_of_zero_that_proves_nothing_is_explained(bench) -> None:
    b = bench()
    b.train("softmax", [], correct=[flips(0.9), flips(0.91)] * 3)
    b.train("rela", [], correct=[flips(0.99), flips(0.5)] * 3)
    majority(b, 0.5)
    found = board(b)
    assert entry(found, "rela", "gap").low > 0 and entry(found, "rela", "verdict").text == "undecided"
    assert notes(found, "undecided").startswith("rela: ") and "linear" not in notes(found, "undecided")
    assert notes(board(three(bench)), "undecided") == ""


def test_the_note_on_errors_says_what_was_simulated_and_what_is_here(bench) -> None:
    b = three(bench)
    assert "(3 seeds, 6 variants; here 3 and 3)" in notes(board(b), "error rate")
    for at in range(7):
        b.train(f"mine{at}", [], correct=[flips(0.6)] * 3)
    assert "here 7 variants beyond 6 declared ones" in notes(board(b), "error rate")


def test_a_part_of_the_published_task_is_named_first(bench) -> None:
    b = three(bench)
    assert notes(board(b), "reduced") == ""
    cut = ("test: seeded slice of 2,000 of 25,000", "validation: seeded slice of 500 of 2,500")
    data = replace(b.records[0].data, notes=cut)
    b.records[:] = [replace(record, data=data, setting={"length": 256}) for record in b.records]
    assert board(b).notes[0].text.endswith(": lra-text at length 256, test: seeded slice of 2,000 of 25,000")


def test_harnesses_of_several_hashes_or_of_none_are_named(bench) -> None:
    b = three(bench)
    assert "not stated (9)" in notes(board(b), "harness")
    hashed = {"machine": replace(b.records[0].machine, versions={"harness": "a1"})}
    b.records[:] = [replace(record, **hashed) for record in b.records]
    assert notes_on(board(b), "harness")[0].warning and "9 of 9" in notes(board(b), "harness")
    b.train("linear", [0.6] * 3)
    assert "a1 (9), not stated (3)" in notes(board(b), "harness")
