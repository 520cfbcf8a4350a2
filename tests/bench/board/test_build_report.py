"""What a page shows beside a board, from Records; and the command that writes the page."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from attnbench.bench.board.build_report import report_for_suite, report_for_sweep, report_for_task
from attnbench.bench.board.length_board import sweeps
from attnbench.bench.board.report import COLUMNS, Report
from attnbench.bench.board.suite_board import board_for_suite
from attnbench.bench.cli.pages import dashboard
from attnbench.bench.core.record import Measurement
from attnbench.bench.core.spec import Spec
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.store import Store
from attnbench.bench.store.table import table_of

TIMES = [1.0, 1.02, 0.98, 1.01, 0.99]
CURVE = [
    {"step": step, "train_loss": 0.6, "validation_loss": 0.6 - step / 100, "validation_accuracy": 0.5 + step / 100}
    for step in (0, 10)
]


def right(share: float) -> np.ndarray:
    return (np.arange(2000) < 2000 * share).astype(np.uint8)


@pytest.fixture
def world(bench) -> object:
    b = bench()
    heads = [Measurement.of("sparsity", 0.1 * (1 + 2 * at), layer=0, head=at) for at in range(2)]
    alphas = [Measurement.of("alpha", 1.5, layer=1, head=0)]
    b.train("softmax", [], correct=[right(0.6)] * 3)
    b.train("entmax[alpha=learned]", [], correct=[right(0.7)] * 3, more=[*heads, *alphas])
    b.time("softmax", TIMES, TIMES)
    b.time("entmax[alpha=learned]", [2 * t for t in TIMES], TIMES)
    return b


def report(b: object) -> Report:
    table = table_of(b.records)
    return report_for_task(table, board_keys(table)[0], b.predictions, lambda name: None)


def test_rows_have_the_documented_columns(world) -> None:
    found = report(world)
    tables = ("pareto", "heads", "alphas", "curves", "nulls", "trained", "records")
    assert found.pareto and found.records
    for table in tables:
        assert {tuple(row) for row in getattr(found, table)} <= {COLUMNS[table]}, table


def test_spots_are_the_ranked_with_their_intervals(world) -> None:
    spots = {spot["variant"]: spot for spot in report(world).pareto}
    assert spots["entmax[alpha=learned]"]["cost"] == pytest.approx(2.0) and spots["softmax"]["cost_low"] == 1.0
    assert spots["entmax[alpha=learned]"]["quality"] == pytest.approx(70) and all(
        s["on_frontier"] for s in spots.values()
    )


def test_names_on_the_frontier_lie_over_no_other_name_and_over_no_point(bench) -> None:
    b = bench()
    qualities = {"softmax": 0.60, "rela": 0.599, "linear": 0.50, "entmax15": 0.505, "local": 0.70}
    for name, cost in (("softmax", 1.0), ("rela", 0.98), ("linear", 0.5), ("entmax15", 0.55), ("local", 2.0)):
        b.train(name, [qualities[name]] * 3)
        b.time(name, [cost * t for t in TIMES], TIMES)
    found = {spot["variant"]: spot for spot in report(b).pareto}
    assert {name for name, spot in found.items() if spot["on_frontier"]} == set(qualities)
    # the name of linear would lie over the point of entmax15, that of rela over softmax and its name
    assert {name: spot["name"] for name, spot in found.items() if spot["name"]} == {
        name: name for name in ("softmax", "entmax15", "local")
    }


def test_heads_are_means_over_seeds_and_alphas_are_single(world) -> None:
    found = report(world)
    assert [(h["layer"], h["head"], round(h["value"], 6)) for h in found.heads] == [("0", 0, 0.1), ("0", 1, 0.3)]
    assert [(a["seed"], a["value"]) for a in found.alphas] == [(0, 1.5), (1, 1.5), (2, 1.5)]


def test_heads_of_a_model_with_several_kinds_of_attention_are_the_samples_of_its_layers(bench) -> None:
    b = bench()
    layers = [
        Measurement.of("entropy", 0.5, (0.25, 0.75), attention=kind, layer=layer)
        for kind in ("encoder", "cross") for layer in range(2)
    ]  # fmt: skip
    rest = [Measurement.of("entropy", 0.5), Measurement.of("entropy", 0.5, (0.1, 0.2), attention="cross")]
    b.train("softmax", [0.5] * 2, more=[*rest, *layers])
    found = report(b).heads
    assert [h["layer"] for h in found] == [
        name for name in ("encoder 0", "encoder 1", "cross 0", "cross 1") for _ in "01"
    ]
    assert [(h["head"], h["value"]) for h in found] == [(0, 0.25), (1, 0.75)] * 4


def test_curves_band_from_the_lowest_seed_to_the_highest(bench) -> None:
    b = bench()
    b.train("softmax", [0.6, 0.6, 0.6])
    files = {}
    for at, record in enumerate(b.records):
        record.artifacts["curve"] = f"{at}.json"
        files[f"{at}.json"] = [p | {"validation_accuracy": p["validation_accuracy"] + 0.01 * at} for p in CURVE]
    files["2.json"] = None
    table = table_of(b.records)
    found = report_for_task(table, board_keys(table)[0], b.predictions, files.get).curves
    # the third curve is not at hand: mean of 50 and 51
    quality = [c for c in found if c["quantity"] == "quality"]
    assert [(c["step"], round(c["value"], 6), c["low"], c["high"]) for c in quality] == [
        (0, 50.5, 50.0, 51.0),
        (10, 60.5, 60.0, 61.0),
    ]


def test_curves_leave_out_seeds_that_did_not_learn_where_others_did(bench) -> None:
    b = bench()
    b.add(b.cell("majority", lane="baseline"), [Measurement.of("accuracy", 0.5, split="test", examples=1000)])
    b.train("softmax", [0.9, 0.5, 0.92])
    b.train("linear", [0.5, 0.5, 0.5])
    files = {}
    for at, record in enumerate(record for record in b.records if record.cell.lane == "train"):
        record.artifacts["curve"] = f"{at}.json"
        # each validation shows how the training ends
        files[f"{at}.json"] = [{"step": 10, "validation_accuracy": (0.9, 0.5, 0.92, 0.5, 0.51, 0.49)[at]}]
    table = table_of(b.records)
    found = report_for_task(table, board_keys(table)[0], b.predictions, files.get).curves
    assert {c["variant"]: (round(c["value"], 6), c["low"], c["high"]) for c in found} == {
        "softmax": (91.0, 90.0, 92.0),
        "linear": (50.0, 49.0, 51.0),
    }


def test_every_row_says_how_to_measure_it_again(world) -> None:
    found = report(world)
    assert found.commands["entmax[alpha=learned]"] == (
        "attnbench run --variants 'entmax[alpha=learned]' --task lra-text --preset quick --seeds 3"
    )
    assert len([s for s in found.records if s["variant"] == "softmax"]) == 4
    assert "accuracy test 0.6" in found.records[-1]["numbers"]


def test_numbers_of_a_setting_name_it(bench) -> None:
    b = bench(task="recall")
    results = [Measurement.of("accuracy", at, split="test", length=n) for at, n in ((0.75, 64), (0.5, 1024))]
    b.add(b.cell("softmax"), [Measurement.of("accuracy", 0.625, split="test"), *results])
    (source,) = report(b).records
    assert source["numbers"] == (
        "accuracy test 0.625", "accuracy test length 64 0.75", "accuracy test length 1,024 0.5"
    )  # fmt: skip


def test_a_title_that_says_its_unit_is_not_followed_by_it(bench) -> None:
    b = bench(task="tinyshakespeare")
    b.add(b.cell("softmax"), [Measurement.of("bits_per_character", 2.5, split="test")])
    assert report(b).quality == "bits/character"


def test_numbers_of_a_translation_model_say_what_tells_them_apart(bench) -> None:
    b = bench(task="wmt14-en-de")
    attention = ("sparsity", "null_rate", "entropy", "head_diversity")
    sets = [
        Measurement.of(name, value, split="test", set=of)
        for of, value in (("news", 2.2), ("pictures", 25.6)) for name in ("bleu", "chrf")
    ]  # fmt: skip
    errors = [
        Measurement.of("alignment_error_rate", 0.1 * (1 + 2 * shift + at), how=how, shift=shift, of_layer=0)
        for shift in (False, True) for at, how in enumerate(("best head", "averaged weights"))
    ]  # fmt: skip
    errors.insert(2, Measurement.of("alignment_error_rate", 0.745, how="diagonal"))
    training = ("best_step", "steps", "parameters", "extra_parameters", "train_seconds", "decode_tokens_per_second")
    b.add(b.cell("softmax"), [
        *sets, *(Measurement.of("loss", 4.0, split=split) for split in ("test", "validation")),
        *(Measurement.of(name, 7) for name in training),
        *(Measurement.of(name, 0.5, attention=kind) for kind in ("encoder", "cross") for name in attention),
        *(Measurement.of(name, 0.25) for name in attention), *errors,
        Measurement.of("block_sparsity", 0.125, block=16),
    ])  # fmt: skip
    (source,) = report(b).records
    assert source["numbers"] == (
        "bleu test news 2.2", "bleu test pictures 25.6", "chrf test news 2.2", "chrf test pictures 25.6",
        "alignment_error_rate best head 0.1", "alignment_error_rate averaged weights 0.2",
        "alignment_error_rate diagonal 0.745", "alignment_error_rate best head shifted 0.3",
        "alignment_error_rate averaged weights shifted 0.4", "loss test 4", "loss validation 4",
        *(f"{name} 7" for name in training),
        "sparsity 0.25", "block_sparsity of 16 × 16 0.125", "null_rate 0.25", "entropy 0.25", "head_diversity 0.25",
    )  # fmt: skip


def test_lengths_that_pay_are_marked(bench) -> None:
    b = bench()
    for length, factor in ((256, 2.0), (1024, 0.5)):
        b.task = f"sweep[length={length}]"
        b.time("softmax", TIMES, TIMES, setting={"length": length})
        setting = {"length": length, "level": "attention"}
        b.time("linear", [factor * t for t in TIMES], TIMES, setting=setting)
    table = table_of(b.records)
    (sweep,) = sweeps(table, board_keys(table))
    found = report_for_sweep(table, sweep)
    spots = [(s["length"], s["pays"]) for s in found.lengths if s["variant"] == "linear"]
    assert spots == [(256, False), (1024, True)] and found.timed == "attention alone on Abacus 9, 2 cores"


@pytest.fixture
def results(world, tmp_path: Path) -> Path:
    store = Store(tmp_path / "results")
    curve = store.put_artifact(json.dumps(CURVE).encode(), ".json")
    for record in world.records:
        record.artifacts.pop("predictions", None)
        if record.cell.lane == "train":
            record.artifacts["curve"] = curve
        store.append(record)
    return tmp_path / "results"


def test_the_command_writes_one_page_and_figures(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="the extra dashboard is not installed")
    pytest.importorskip("vl_convert", reason="the extra dashboard is not installed")
    app = typer.Typer()
    app.command()(dashboard)
    found = CliRunner().invoke(app, ["--results", str(results), "--out", str(tmp_path / "site"), "--figures", "svg"])
    assert found.exit_code == 0, found.output
    assert "index.html: 1 board\n" in found.output
    text = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "entmax[alpha=learned]" in text and '"curves"' in text
    names = sorted(path.name.rpartition("box-1-")[2] for path in (tmp_path / "site" / "figures").iterdir())
    assert names == ["alphas.svg", "curves.svg", "frontier.svg", "null-control.svg", "sparsity.svg"]


def grid_of(bench, chosen: dict[str, float]) -> object:
    """Two variants under a grid, tested at three lengths, with a trial at each rate; accuracy is 100 × the rate."""
    b = bench(task="recall", preset="quick[learning_rates=0.001|0.004]")
    base = {"length": 128, "shortest": 16, "steps": 9, "ranked": True}

    def measured(rate: float, seed: int) -> list[Measurement]:
        shares = {64: 100 * rate, 512: 90 * rate, 2048: (50 + seed) * rate}
        of_each = [
            Measurement.of("accuracy", share, split="test", length=length, examples=50)
            for length, share in shares.items()
        ]
        return [Measurement.of("accuracy", 80 * rate, split="test", examples=150), *of_each]

    for variant, own in chosen.items():
        for rate in (0.001, 0.004):
            cell = b.cell(variant, 100, "tune", preset=Spec.of("quick", learning_rate=rate))
            setting = base | {"learning_rate": rate, "learning_rates": [], "tuning_seeds": 1}
            b.add(cell, measured(rate, 0), setting=setting)
        for seed in range(3):
            setting = base | {"learning_rate": 0.001, "learning_rates": [0.001, 0.004], "tuning_seeds": 1}
            b.add(b.cell(variant, seed), [*measured(own, seed), Measurement.of("learning_rate", own)], setting=setting)
    # a trial under other settings, or of a rate outside the grid, is none of this board's
    for rate, steps in ((0.004, 10), (0.5, 9)):
        cell = b.cell("softmax", 100, "tune", preset=Spec.of("quick", learning_rate=rate, steps=steps))
        setting = base | {"learning_rate": rate, "learning_rates": [], "tuning_seeds": 1, "steps": steps}
        b.add(cell, measured(rate / 10, 0), setting=setting)
    return b


def test_lines_by_length_have_every_rate_and_the_chosen_one_from_the_seeds_of_the_board(bench) -> None:
    b = grid_of(bench, {"softmax": 0.004, "linear": 0.001})
    table = table_of(b.records)
    (key,) = board_keys(table)
    found = report_for_task(table, key, b.predictions, lambda name: None)
    (curves,) = found.settings
    assert (curves.axis, curves.quantity) == ("length", "quality") and "trained at 16 to 128" in curves.title
    assert [one["length"] for one in found.trained] == [128]
    lines: dict[tuple[str, str, bool], list[float]] = {}
    for point in curves.points:
        lines.setdefault((point["variant"], point["rate"], point["chosen"]), []).append(point["value"])
    assert lines == {
        ("softmax", "0.004", True): pytest.approx([40, 36, 20.4]),
        ("softmax", "0.001", False): pytest.approx([10, 9, 5]),
        ("linear", "0.001", True): pytest.approx([10, 9, 5.1]),
        ("linear", "0.004", False): pytest.approx([40, 36, 20]),
    }
    (last,) = [
        point for point in curves.points if point["variant"] == "softmax" and point["chosen"] and point["at"] == 2048
    ]
    assert (last["low"], last["high"]) == pytest.approx((20.0, 20.8))


def test_the_picture_of_a_suite_has_each_variant_on_each_task(bench) -> None:
    b = bench()
    for task, better in (("a", 0.7), ("b", 0.5)):
        b.task = task
        b.train("softmax", [], correct=[right(0.6)] * 3)
        b.train("rela", [], correct=[right(better)] * 3)
    table = table_of(b.records)
    keys = board_keys(table)
    board = board_for_suite(table, "mine", keys, predictions=b.predictions)
    found = report_for_suite(table, board, keys)
    assert {(s["variant"], s["task"]): (s["value"], s["text"]) for s in found.suite_scores} == {
        ("softmax", "a"): (pytest.approx(60), "60.0"), ("rela", "a"): (pytest.approx(70), "70.0"),
        ("softmax", "b"): (pytest.approx(60), "60.0"), ("rela", "b"): (pytest.approx(50), "50.0"),
    }  # fmt: skip
    assert len(found.records) == 12 and found.board is board
