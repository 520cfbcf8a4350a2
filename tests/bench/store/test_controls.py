"""Positive controls: each variant names one that a run can train, and Records decide it."""

from dataclasses import replace

import pytest

from attnbench.bench.api.boards import boards
from attnbench.bench.core.cell import Cell
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.files import PACKAGE
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.record import Machine, Measurement, Outcome, Provenance, Record
from attnbench.bench.core.registry import TASKS, VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.facts import recipe_facts
from attnbench.bench.plan.fingerprint import closure
from attnbench.bench.store.controls import FILE, Control, all_controls, controls_in, controls_of, judged, unestablished
from attnbench.bench.store.store import Store

MACHINE = Machine(id="here", system="Linux", processor="p", cores=2, threads=2, memory_bytes=1)
CONTROLS = {str(control.name): control for control in all_controls()}


def trained(
    cell: Cell, outcome: Outcome = Outcome.OK, accuracy: float = 0.5, loss: float = 1.0, whole: float = 0.4
) -> Record:
    measured = (
        Measurement.of("accuracy", whole, split="test", examples=9),
        Measurement.of("accuracy", accuracy, split="test", length=64, pairs=8, examples=9),
        Measurement.of("loss", loss, split="validation", examples=9),
    )
    return Record(
        cell=cell, outcome=outcome, reason="" if outcome is Outcome.OK else "no memory", machine=MACHINE,
        measurements=measured if outcome is Outcome.OK else (), metric=METRICS["accuracy"], digest="a-b-c",
    )  # fmt: skip


def test_every_registered_variant_has_a_control() -> None:
    assert {control.name.name for control in CONTROLS.values()} == {entry.name for entry in VARIANTS.entries()}


@pytest.mark.parametrize("name", CONTROLS)
def test_the_cells_of_a_control_are_those_that_a_run_makes(name: str) -> None:
    for cell in CONTROLS[name].cells:
        assert VARIANTS.resolve(cell.variant) == cell.variant
        assert TASKS.resolve(cell.task) == cell.task
        assert recipe_facts(cell.task, cell.preset).preset == cell.preset


@pytest.mark.parametrize("name", [name for name, control in CONTROLS.items() if control.where])
def test_the_setting_of_a_control_is_tested(name: str) -> None:
    control = CONTROLS[name]
    task = TASKS.build(control.task)
    tested = task.settings(task.recipe(control.preset))
    assert any(dict(control.where).items() <= dict(setting).items() for setting in tested)


def test_the_hash_of_a_variant_does_not_see_its_controls() -> None:
    source = VARIANTS.source("topk")
    assert source is not None and (source.parent / FILE).is_file()
    assert source.parent / FILE not in closure(source.resolve(), PACKAGE / "variants")


@pytest.mark.parametrize(
    ("accuracy", "state"), [(0.99, "passed"), (0.989, "failed"), (float("nan"), "failed"), (1.0, "passed")]
)
def test_an_accuracy_decides(accuracy: float, state: str) -> None:
    control = CONTROLS["softmax"]
    assert (control.at_least, dict(control.where)) == (0.99, {"length": 64, "pairs": 8})
    found = judged(control, [trained(control.cells[0], accuracy=accuracy)])
    assert found.state == state


def test_what_must_stay_at_chance_fails_above_its_limit() -> None:
    control = CONTROLS["no-attention"]
    states = [judged(control, [trained(control.cells[0], accuracy=one)]).state for one in (0.05, 0.06)]
    assert states == ["passed", "failed"]


def test_two_losses_decide_an_identity() -> None:
    control = CONTROLS["topk"]
    mine, other = control.cells
    assert judged(control, [trained(mine)]).state == "never run"
    for loss, state in ((1.009, "passed"), (1.02, "failed"), (0.98, "failed"), (float("nan"), "failed")):
        found = judged(control, [trained(mine, loss=1.0), trained(other, loss=loss)])
        assert found.state == state, loss
    # both at chance
    found = judged(control, [trained(mine, whole=0.125), trained(other, whole=0.125)])
    assert (found.state, found.shown) == ("failed", "12.5 %")
    found = judged(control, [trained(mine, loss=1.0), trained(other, loss=1.25)])
    assert found.shown == "0.25 nats apart"


def test_a_training_that_failed_fails_its_control_and_says_why() -> None:
    control = CONTROLS["softmax"]
    found = judged(control, [trained(control.cells[0], Outcome.OUT_OF_MEMORY)])
    assert (found.state, found.shown) == ("failed", "out_of_memory: no memory")


def test_the_last_record_of_a_training_counts() -> None:
    control = CONTROLS["softmax"]
    records = [trained(control.cells[0], accuracy=one) for one in (0.0, 1.0)]
    assert [judged(control, order).state for order in (records, records[::-1])] == ["passed", "failed"]


def test_the_most_particular_control_counts_and_wrappers_have_none() -> None:
    found = {
        text: [str(each.name) for each in controls_of(Spec.parse(text))]
        for text in ("delta", "delta[decay=channel,eigenvalues=signed]", "gate+softmax", "window[size=8]")
    }
    assert found["delta"] == ["delta"] and found["gate+softmax"] == ["softmax"]
    assert found["delta[decay=channel,eigenvalues=signed]"][0].startswith("delta[")
    assert found["window[size=8]"] == ["window"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a]\nclaim = 'c'\nsource = 's'\ntask = 'recall'\n", "expected one of at_least and at_most"),
        ("[a]\nclaim = 'c'\nsource = 's'\ntask = 'recall'\nat_least = 1\nat_most = 1\n", "expected one of"),
        ("[a]\nclaim = 'c'\nsource = 's'\ntask = 'recall'\nat_leats = 1\n", "at_leats"),
        ("[a]\nclaim = 1\nsource = 's'\ntask = 'recall'\nat_least = 1\n", "Expected `str`"),
        ("[a\n", "line 1"),
        ("['a[']\nclaim = 'c'\nsource = 's'\ntask = 'recall'\nat_least = 1\n", "a["),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path, text: str, said: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(SelectionError, match=FILE) as raised:
        controls_in(tmp_path)
    assert said in str(raised.value) and str(tmp_path / FILE) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_without_a_file_has_no_control(tmp_path) -> None:
    assert controls_in(tmp_path) == ()


def test_an_identity_is_said_in_words() -> None:
    control: Control = CONTROLS["topk"]
    assert control.asks == "the loss of softmax within 0.01 nats, and at least 30.0% right"
    assert CONTROLS["softmax"].asks == "at least 99.0% right at length 64, pairs 8"


def test_whoever_failed_or_never_ran_is_not_established() -> None:
    good, bad = CONTROLS["softmax"], CONTROLS["sigmoid"]
    records = [trained(good.cells[0], accuracy=1.0), trained(bad.cells[0], accuracy=0.5)]
    names = ["softmax", "sigmoid", "gate+softmax", "gate+sigmoid", "delta//softmax", "of-a-stranger"]
    assert unestablished(names, records) == {
        "sigmoid": "its positive control failed: 50.0 %, asked at least 99.0% right at length 64, pairs 8",
        "gate+sigmoid": "its positive control failed: 50.0 %, asked at least 99.0% right at length 64, pairs 8",
        "delta//softmax": "its positive control was never run",
    }


def test_where_no_control_was_run_nobody_is_marked() -> None:
    assert unestablished(["softmax", "sigmoid"], []) == {}


def test_a_board_leaves_out_whose_control_failed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("attnbench.bench.store.controls.PACKAGE", tmp_path / "nowhere")
    board_cell = Cell(variant=Spec("softmax"), task=Spec("recall"), preset=Spec("quick"))
    store = Store(tmp_path)
    for name in ("softmax", "sigmoid"):
        for seed in range(3):
            cell = replace(board_cell, variant=Spec(name), seed=seed)
            data = Provenance(source="drawn", fidelity="regenerated")
            store.append(replace(trained(cell), digest="lane1.objective1.task1-a-b", data=data))
    for name, accuracy in (("softmax", 1.0), ("sigmoid", 0.5)):
        Store(tmp_path / "controls").append(trained(CONTROLS[name].cells[0], accuracy=accuracy))
    (board,) = boards(tmp_path)
    assert [row.reason for row in board.unranked if row.name == "sigmoid"] == [
        "not established: its positive control failed: 50.0 %, asked at least 99.0% right at length 64, pairs 8"
    ]
