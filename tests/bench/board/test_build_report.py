"""What a page shows beside a board, from Records; and the command that writes the page."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from attnbench.bench.board.build_report import report_for_sweep, report_for_task
from attnbench.bench.board.length_board import sweeps
from attnbench.bench.board.report import Report
from attnbench.bench.cli.pages import dashboard
from attnbench.bench.core.record import Measurement
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


def test_spots_are_the_ranked_with_their_intervals(world) -> None:
    spots = {spot.variant: spot for spot in report(world).pareto}
    assert spots["entmax[alpha=learned]"].cost == pytest.approx(2.0) and spots["softmax"].cost_low == 1.0
    assert spots["entmax[alpha=learned]"].quality == pytest.approx(70) and all(s.on_frontier for s in spots.values())


def test_heads_are_means_over_seeds_and_alphas_are_single(world) -> None:
    found = report(world)
    assert [(h.layer, h.head, round(h.value, 6)) for h in found.heads] == [("0", 0, 0.1), ("0", 1, 0.3)]
    assert [(a.seed, a.value) for a in found.alphas] == [(0, 1.5), (1, 1.5), (2, 1.5)]


def test_heads_of_a_model_with_several_kinds_of_attention_are_the_samples_of_its_layers(bench) -> None:
    b = bench()
    layers = [
        Measurement.of("entropy", 0.5, (0.25, 0.75), attention=kind, layer=layer)
        for kind in ("encoder", "cross") for layer in range(2)
    ]  # fmt: skip
    rest = [Measurement.of("entropy", 0.5), Measurement.of("entropy", 0.5, (0.1, 0.2), attention="cross")]
    b.train("softmax", [0.5] * 2, more=[*rest, *layers])
    found = report(b).heads
    assert [h.layer for h in found] == [name for name in ("encoder 0", "encoder 1", "cross 0", "cross 1") for _ in "01"]
    assert [(h.head, h.value) for h in found] == [(0, 0.25), (1, 0.75)] * 4


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
    quality = [c for c in found if c.quantity == "quality"]
    assert [(c.step, round(c.value, 6), c.low, c.high) for c in quality] == [
        (0, 50.5, 50.0, 51.0),
        (10, 60.5, 60.0, 61.0),
    ]


def test_every_row_says_how_to_measure_it_again(world) -> None:
    found = report(world)
    assert found.commands["entmax[alpha=learned]"] == (
        "attnbench run --variants 'entmax[alpha=learned]' --task lra-text --preset quick --seeds 3"
    )
    assert len([s for s in found.records if s.variant == "softmax"]) == 4
    assert "accuracy test 0.6" in found.records[-1].numbers


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
    assert source.numbers == (
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
        b.time("linear", [factor * t for t in TIMES], TIMES, setting={"length": length})
    table = table_of(b.records)
    (sweep,) = sweeps(table, board_keys(table))
    spots = [(s.length, s.pays) for s in report_for_sweep(table, sweep).lengths if s.variant == "linear"]
    assert spots == [(256, False), (1024, True)]


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
