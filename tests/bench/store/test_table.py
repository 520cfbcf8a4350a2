"""Which Records count, and which questions they answer."""

import math
import re
from dataclasses import replace

import pytest

from attnbench.bench.core import record
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.record import Measurement, Outcome, Provenance, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.rows import CODE, DATA, INCOMPLETE, REPEATED, RETRIED, SETTING, VERSION
from attnbench.bench.store.table import table_of


def stale(table: object) -> list[str]:
    return [row.stale for row in table.rows]


def test_of_one_cell_the_first_result_counts_wherever_it_was_measured_again(bench) -> None:
    """A second try, here or on another machine, is no second chance."""
    b = bench()
    b.train("rela", [0.5])
    for machine in ("box-1", "box-2"):
        b.train("rela", [0.6], machine=replace(b.records[0].machine, id=machine))
    table = table_of(b.records)
    assert stale(table) == ["", REPEATED, REPEATED]
    assert table.values("accuracy", [row.at for row in table.current], split="test") == [0.5]


def test_a_result_counts_before_failures_and_of_failures_the_newest(bench) -> None:
    b = bench()
    b.add(b.cell("rela", 0), outcome=Outcome.CRASHED, reason="boom")
    b.train("rela", [0.5])
    b.add(b.cell("rela", 0), outcome=Outcome.TIMEOUT, reason="slow")
    b.add(b.cell("linear", 0), outcome=Outcome.CRASHED, reason="boom")
    b.add(b.cell("linear", 0), outcome=Outcome.TIMEOUT, reason="slow")
    found = [(row.variant, row.outcome) for row in table_of(b.records).current]
    assert found == [("rela", "ok"), ("linear", "timeout")]


def test_of_timings_the_newest_counts(bench) -> None:
    """The reference is timed anew with whatever shares its rounds."""
    b = bench()
    b.time("softmax", [1.0] * 3, [1.0] * 3)
    b.time("softmax", [2.0] * 3, [2.0] * 3)
    table = table_of(b.records)
    assert stale(table) == [RETRIED, ""]


def complete(b: object, digest: str, *names: str, seeds: int = 3) -> None:
    for name in names:
        b.train(name, [0.5] * seeds, digest=digest)


V0, V1 = "lane1.objective1.task0-d1-v1", "lane1.objective1.task1-d1-v1"


def test_a_board_stays_at_the_version_that_is_complete(bench) -> None:
    b = bench()
    complete(b, V0, "softmax", "rela", "linear", "local")
    complete(b, V1, "softmax", "rela")
    b.train("linear", [0.5] * 2, digest=V1)
    table = table_of(b.records)
    assert {row.version for row in table.current} == {"lane1.objective1.task0"}
    assert {row.stale for row in table.rows if row.stale} == {INCOMPLETE}
    # the third seed of a second variant beside the reference completes the newer version
    b.train("linear", [0.5] * 3, digest=V1)
    table = table_of(b.records)
    assert {row.version for row in table.current} == {"lane1.objective1.task1"}
    assert {row.variant for row in table.rows if row.stale == VERSION} == {"softmax", "rela", "linear", "local"}


def test_with_two_variants_the_newest_version_at_which_both_are_complete_counts(bench) -> None:
    b = bench()
    complete(b, V0, "softmax", "rela")
    b.train("linear", [0.5], digest=V1)
    assert {row.version for row in table_of(b.records).current} == {"lane1.objective1.task0"}
    complete(b, V1, "softmax", "rela")
    assert {row.version for row in table_of(b.records).current} == {"lane1.objective1.task1"}


def test_a_straggler_of_an_old_version_does_not_bring_it_back(bench) -> None:
    b = bench()
    complete(b, V0, "softmax", "rela", "linear")
    complete(b, V1, "softmax", "rela", "linear")
    complete(b, V0, "local")
    assert {row.version for row in table_of(b.records).current} == {"lane1.objective1.task1"}


def test_newer_code_of_the_reference_counts_once_it_has_three_seeds(bench) -> None:
    b = bench()
    complete(b, V0, "softmax", "rela", "linear")
    b.train("softmax", [0.6] * 2, digest="lane1.objective1.task0-d1-v2")
    assert {row.variant_code for row in table_of(b.records).current} == {"v1"}
    b.train("softmax", [0.6] * 3, digest="lane1.objective1.task0-d1-v2")
    codes = {(row.variant, row.variant_code) for row in table_of(b.records).current}
    assert codes == {("softmax", "v2"), ("rela", "v1"), ("linear", "v1")}


def test_code_that_fails_does_not_fall_back_to_older_code(bench) -> None:
    b = bench()
    complete(b, V0, "softmax", "rela")
    for seed in range(3):
        failed = {"outcome": Outcome.INCORRECT, "reason": "future leaks", "digest": "lane1.objective1.task0-d1-v2"}
        b.add(b.cell("rela", seed), **failed)
    assert {row.outcome for row in table_of(b.records).current if row.variant == "rela"} == {"incorrect"}


def test_older_code_that_is_measured_again_counts_again(bench) -> None:
    """Whoever takes back a change measures one cell again; the first result of each cell counts as ever."""
    b = bench()
    complete(b, V0, "softmax", "rela")
    for seed in range(3):
        failed = {"outcome": Outcome.CRASHED, "reason": "SyntaxError", "digest": "lane1.objective1.task0-d1-v2"}
        b.add(b.cell("rela", seed), **failed)
    b.train("rela", [0.9], digest=V0)
    counted = [row for row in table_of(b.records).current if row.variant == "rela"]
    assert [row.variant_code for row in counted] == ["v1"] * 3 and {row.outcome for row in counted} == {"ok"}
    assert REPEATED in stale(table_of(b.records))


def test_other_data_of_the_task_set_all_older_records_aside(bench) -> None:
    b = bench()
    b.train("rela", [0.5], digest="lane1.objective1.task1-d1-v1")
    b.train("softmax", [0.5], digest="lane1.objective1.task1-d2-v1")
    assert stale(table_of(b.records)) == [DATA, ""]


def test_another_version_sets_all_older_records_aside(bench) -> None:
    for older in ("p1-t1-v1", "lane1.objective1.task0-d1-v1", "lane0.objective1.task1-d1-v1"):
        b = bench()
        b.train("rela", [0.5], digest=older)
        b.train("softmax", [0.5], digest="lane1.objective1.task1-d1-v1")
        assert stale(table_of(b.records)) == [VERSION, ""], older


def test_within_version_0_newer_code_of_the_harness_sets_older_records_aside(bench) -> None:
    b = bench()
    b.train("rela", [0.5], digest="p1-t1-v1")
    b.train("softmax", [0.5], digest="p2-t1-v1")
    table = table_of(b.records)
    assert stale(table) == [DATA, ""]
    assert {row.version for row in table.rows} == {"version 0"}


def test_newer_code_of_a_variant_sets_only_its_own_seeds_aside(bench) -> None:
    b = bench()
    b.train("rela", [0.5, 0.5], digest="p1-t1-v1")
    b.train("softmax", [0.5], digest="p1-t1-v1")
    b.train("rela", [0.5], digest="p1-t1-v2")
    assert stale(table_of(b.records)) == [CODE, CODE, "", ""]


def test_trainings_on_a_processor_and_on_a_gpu_are_averaged_only_where_their_code_is_one(bench) -> None:
    """The kernels of each are part of the variant's code; softmax has none."""
    b = bench()
    for name, code in [("softmax", "v1"), ("rela", "cpu")]:
        b.train(name, [0.5, 0.5, 0.5], digest=f"p1-t1-{code}")
    for name, code in [("softmax", "v1"), ("rela", "gpu")]:
        gpu = replace(b.records[0].machine, id="box-2", accelerators=("a GPU",))
        b.train(name, [0.5, 0.5, 0.5], digest=f"p1-t1-{code}", machine=gpu)
    assert stale(table_of(b.records)) == [""] * 3 + [CODE] * 3 + [REPEATED] * 3 + [""] * 3


def test_the_same_preset_with_another_setting_is_another_preset(bench) -> None:
    b = bench()
    b.train("rela", [0.5], setting={"steps": 100})
    b.train("softmax", [0.5], setting={"steps": 200})
    assert stale(table_of(b.records)) == [SETTING, ""]


def test_what_was_timed_under_another_setting_stands_beside_no_newer_training(bench) -> None:
    b = bench()
    old = b.time("rela", [1.0] * 3, [1.0] * 3, setting={"steps": 100})
    b.records[-1] = replace(old, machine=replace(old.machine, id="box-2"))
    b.train("rela", [0.5], setting={"steps": 200})
    table = table_of(b.records)
    assert stale(table) == [SETTING, ""]
    assert [q.machine for q in board_keys(table)] == [""]


def test_a_cell_that_failed_before_its_data_was_there_stays(bench) -> None:
    b = bench(fidelity="surrogate")
    b.train("softmax", [0.5])
    b.add(b.cell("rela"), outcome=Outcome.CRASHED, reason="boom", data=None, digest="p1-other-v1", setting={})
    table = table_of(b.records)
    assert stale(table) == ["", ""]
    assert [(row.fidelity, row.unplaced) for row in table.rows] == [("surrogate", False), ("surrogate", True)]
    assert len(board_keys(table)) == 1


def test_a_setting_read_from_a_file_is_the_one_that_was_written(bench) -> None:
    b = bench()
    b.train("rela", [0.5], setting={"betas": (0.9, 0.98), "steps": 100})
    b.train("softmax", [0.5], setting={"steps": 100, "betas": [0.9, 0.98]})
    assert stale(table_of(b.records)) == ["", ""]


def test_versions_of_what_counts_are_counted_by_task_and_preset(bench) -> None:
    b = bench()
    b.train("rela", [0.5, 0.5], digest="lane1.objective1.task1-d1-v1")
    b.time("rela", [1.0] * 3, [1.0] * 3, digest="lane0.objective1.task1-d1-v1")
    b.task = "other"
    b.train("rela", [0.5], digest="p1-t1-v1")
    b.train("rela", [0.6], digest="p1-t1-v1")
    table = table_of(b.records)
    assert table.versions() == {"lane1.objective1.task1": 2, "lane0.objective1.task1": 1, "version 0": 1}
    assert table.versions("other") == {"version 0": 1} == table.versions(task="other", preset="quick")
    assert table.versions(preset="base") == {}
    assert table.replaced == {("other", "quick", REPEATED): 1}


def test_heads_are_those_of_single_heads_and_of_layers_with_several_kinds_of_attention(bench) -> None:
    b = bench()
    heads = [
        Measurement.of("alpha", 1.5, layer=1, head=0),
        Measurement.of("alpha", 9.0, (1.0, 2.0), layer=0, attention="cross"),
        Measurement.of("alpha", 9.0, (1.0, 2.0), layer=0),
        Measurement.of("alpha", 9.0),
        Measurement.of("alpha", float("nan"), layer=0, head=1),
        Measurement.of("sparsity", 0.5, layer=0, head=1),
    ]
    b.train("rela", [0.5], more=heads)
    b.train("softmax", [0.5], more=heads[:1])
    table = table_of(b.records)
    found = list(table.heads_of(["alpha"], reversed(table.current)))
    assert [(m.run.variant, m.attention, m.layer, m.head, m.value) for m in found] == [
        ("rela", "", 1, 0, 1.5),
        ("rela", "cross", 0, 0, 1.0),
        ("rela", "cross", 0, 1, 2.0),
        ("softmax", "", 1, 0, 1.5),
    ]


def test_speeds_grow_stale_by_machine(bench) -> None:
    b = bench()
    old = b.time("softmax", [1.0] * 3, [1.0] * 3, digest="p1-t1-v1")
    b.records[-1] = replace(old, machine=replace(old.machine, id="box-2"))
    b.time("softmax", [1.0] * 3, [1.0] * 3, digest="p2-t1-v1")
    table = table_of(b.records)
    assert stale(table) == ["", ""]
    assert [q.machine for q in board_keys(table)] == ["box-1", "box-2"]


def test_numbers_of_a_layer_are_not_numbers_of_the_model(bench) -> None:
    b = bench()
    layers = [Measurement.of("sparsity", 0.1, layer=0), Measurement.of("sparsity", 0.2, layer=0, head=1)]
    b.train("rela", [0.5], more=[*layers, Measurement.of("sparsity", 0.9)])
    table = table_of(b.records)
    assert table.values("sparsity", [row.at for row in table.current]) == [0.9]


def test_numbers_are_found_by_what_narrows_them_and_by_what_does_not(bench) -> None:
    b = bench()
    kinds = [Measurement.of("sparsity", value, attention=kind) for kind, value in (("cross", 0.1), ("own", 0.2))]
    blocks = [Measurement.of("sparsity", 0.4, block=16), Measurement.of("sparsity", math.nan, block=64)]
    b.train("rela", [0.5], more=[*kinds, *blocks])
    b.train("linear", [0.5])
    b.train("local", [0.5], more=[*blocks, *kinds])
    made = table_of(b.records)
    read = table_of(Record.from_line(each.to_line()) for each in b.records)
    for table in (made, read):
        assert table.values("sparsity", [0, 1, 2]) == [0.1, 0.4]
        assert table.values("sparsity", [2, 1, 0], attention=None) == [0.4, 0.4]
        assert table.values("sparsity", [0, 1, 2], attention="own") == [0.2, 0.2]
        # the first that fits counts, and is left out where it is not finite
        assert table.values("sparsity", [0, 1, 2], block=64) == []
        assert math.isnan(table.number("sparsity", 0, block=64).value)
        assert table.number("sparsity", 0, block=32) is table.number("sparsity", 1) is None
        assert [m.value for m in table.named("sparsity", 2)][2:] == [0.1, 0.2]


@pytest.mark.parametrize("seeds", [5, 50])
def test_a_table_makes_no_measurement_that_nobody_asks_for(bench, monkeypatch, seeds) -> None:
    b = bench()
    b.train("rela", [0.5] * seeds, more=[Measurement.of("entropy", 0.5, layer=0, head=head) for head in range(8)])
    lines = [each.to_line() for each in b.records]
    made = []
    whole = record.Measurement
    monkeypatch.setattr(record, "Measurement", lambda **parts: made.append(parts) or whole(**parts))
    table = table_of(map(Record.from_line, lines))
    assert table.values("accuracy", range(seeds), split="test") == [0.5] * seeds
    assert len([*table.heads_of(["entropy"], table.rows)]) == 8 * seeds
    assert not made
    assert table.number("accuracy", 0, split="test").value == 0.5 and len(made) == 1


def test_every_axis_that_must_not_be_mixed_makes_a_question_of_its_own(bench) -> None:
    b = bench()
    b.train("softmax", [0.5])
    b.train("softmax", [0.5], cell={"preset": Spec("base")})
    b.train("softmax", [0.5], cell={"selection": "test"})
    b.train("softmax", [0.5], cell={"protocol": 2})
    b.train("rela", [0.5], data=Provenance(source="csv", fidelity="surrogate"), digest="p1-t1-v1")
    found = board_keys(table_of(b.records))
    assert [(q.preset, q.selection, q.protocol, q.fidelity) for q in found] == [
        ("base", "validation", 1, "official"),
        ("quick", "test", 1, "official"),
        ("quick", "validation", 1, "official"),
        ("quick", "validation", 2, "official"),
        ("quick", "validation", 1, "surrogate"),
    ]
    assert [q.preset for q in board_keys(table_of(b.records), preset="base")] == ["base"]


def test_speeds_stay_when_the_selection_is_filtered_and_boards_without_the_machine_go(bench) -> None:
    b = bench()
    b.train("softmax", [0.5], cell={"selection": "test"})
    b.train("softmax", [0.5])
    b.time("softmax", [1.0] * 3, [1.0] * 3)
    b.task = "other"
    b.train("softmax", [0.5])
    table = table_of(b.records)
    assert [(q.task, q.machine) for q in board_keys(table, selection="test")] == [("lra-text", "box-1")]
    by_machine = board_keys(table, machine="box-1")
    assert [(q.task, q.selection) for q in by_machine] == [("lra-text", "test"), ("lra-text", "validation")]


def test_a_filter_that_leaves_nothing_says_what_there_is(bench) -> None:
    b = bench()
    b.train("softmax", [0.5])
    with pytest.raises(SelectionError, match="no Records of task 'wmt'; there are Records of: lra-text"):
        board_keys(table_of(b.records), task="wmt")
    with pytest.raises(SelectionError, match="no Records of machine 'box-9'; there are Records of: none"):
        board_keys(table_of(b.records), machine="box-9")
    b.time("softmax", [1.0] * 3, [1.0] * 3)
    words = re.escape(b.records[-1].machine.words)
    with pytest.raises(SelectionError, match=rf"there are Records of: box-1 \({words}\)$"):
        board_keys(table_of(b.records), machine="EPYC")


def test_a_filter_that_leaves_nothing_names_each_task_once_and_not_more_than_a_line(bench) -> None:
    b = bench()
    for at in range(64):
        b.train("softmax", [0.5], cell={"task": f"lra-text[length={at + 1}]"})
    with pytest.raises(SelectionError, match=r"there are Records of: lra-text$"):
        board_keys(table_of(b.records), task="wmt")
    for at in range(64):
        b.train("softmax", [0.5], cell={"task": f"task-number-{at}"})
    with pytest.raises(SelectionError, match=r"task-number-10, .* …$") as raised:
        board_keys(table_of(b.records), task="wmt")
    assert len(str(raised.value)) < 420


def test_a_name_filters_all_of_its_parameters(bench) -> None:
    b = bench(task="lra-text[length=64]")
    b.train("softmax", [0.5])
    assert board_keys(table_of(b.records), task="lra-text")[0].task == "lra-text[length=64]"
    with pytest.raises(SelectionError):
        board_keys(table_of(b.records), task="lra-text[length=32]")


def test_no_records_make_an_empty_frame() -> None:
    table = table_of([])
    assert not table.rows and board_keys(table) == []
