"""A translation cell from text files to a Record, its baseline beside it, and its maps on a page."""

import io
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.core.record import Outcome
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec
from attnbench.bench.gate.build import build_checked
from attnbench.bench.plan.fingerprint import digest_of_cell
from attnbench.bench.run.context import WorkerContext
from attnbench.bench.run.lanes.baseline import baseline_cell
from attnbench.bench.run.lanes.train import train_cell
from attnbench.bench.stats.bootstrap import corpus_score, sound_statistics
from attnbench.bench.store.store import Store
from attnbench.bench.train.objectives.registry import objective_for
from attnbench.tasks.contract import DataPlace

sacrebleu = pytest.importorskip("sacrebleu")
pytest.importorskip("sentencepiece")

TASK = "parallel[path=mine,source=en,target=de{}]"
WORDS = {"the": "das", "a": "ein", "house": "Haus", "dog": "Tier", "sees": "sieht", "runs": "rennt", "old": "alt"}


@pytest.fixture
def context(tmp_path):
    random = np.random.default_rng(0)
    folder = tmp_path / "root" / "mine"
    folder.mkdir(parents=True)
    for name, count in (("train", 120), ("valid", 8), ("test", 12)):
        rows = [[list(WORDS)[at] for at in random.integers(0, 7, random.integers(2, 8))] for _ in range(count)]
        write(folder / f"{name}.en", [" ".join(row) for row in rows])
        write(folder / f"{name}.de", [" ".join(WORDS[word] for word in row) for row in rows])
    place = DataPlace(root=folder.parent, cache=tmp_path / "cache", offline=True, notice=lambda text: None)
    store = Store(tmp_path / "results", lambda text: None)
    return WorkerContext(job=Job(id="", cells=(), digests={}), place=place, store=store, send=lambda event: None)


def write(path: Path, lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def done(context, variant, lane="train", where=""):
    preset = Spec.parse("smoke[steps=2,evaluate_every=2,vocabulary=60,length=24]")
    cell = Cell(variant=Spec.parse(variant), task=Spec.parse(TASK.format(where)), preset=preset, lane=lane)
    context.job.digests[cell.key] = digest_of_cell(cell, None, "cpu")
    record = baseline_cell(context, cell) if lane == "baseline" else train_cell(context, cell)
    context.store.append(record)
    return record


@pytest.mark.slow
def test_a_cell_becomes_a_record_whose_bleu_is_that_of_its_kept_text(context):
    record = done(context, "softmax")
    assert record.outcome is Outcome.OK, record.reason
    tested = record.first("bleu", split="test", set="test")
    assert tested.where["examples"] == 12 and tested.where["signature"].startswith("nrefs:1|")
    with np.load(io.BytesIO(context.store.artifact(record.artifacts["predictions"]))) as kept:
        statistics, text = kept["statistics"], bytes(kept["translations"]).decode()
    references = (context.place.root / "mine" / "test.de").read_text(encoding="utf-8").split("\n")[:-1]
    assert tested.value == sacrebleu.corpus_bleu(text.split("\n"), [references]).score
    assert sound_statistics("bleu", statistics)
    assert corpus_score("bleu", statistics) == pytest.approx(tested.value, abs=1e-9)
    assert record.data.counts["test"] == 12 and record.data.fidelity == "own"
    kinds = {m.where["attention"] for m in record.measurements if m.name == "sparsity" and "attention" in m.where}
    assert kinds == {"encoder", "decoder", "cross"}
    assert record.first("decode_tokens_per_second", beam=4).value > 0


@pytest.mark.slow
def test_what_is_known_of_each_sentence_is_kept_of_baselines_too(context):
    copied, untrained, trained = (
        done(context, "copy", "baseline"),
        done(context, "untrained", "baseline"),
        done(context, "softmax"),
    )
    for record in (copied, untrained, trained):
        assert record.outcome is Outcome.OK, record.reason
        with np.load(io.BytesIO(context.store.artifact(record.artifacts["predictions"]))) as kept:
            assert kept["sentence_sets"].tolist() == [0] * 12 and kept["set_names"].tolist() == ["test"]
            found = corpus_score("bleu", kept["sentence_statistics"])
        assert found == pytest.approx(record.first("bleu", split="test", set="test").value, abs=1e-9)


@pytest.mark.slow
def test_the_untrained_model_is_that_with_which_the_reference_begins(context):
    record = done(context, "untrained", "baseline")
    task = TASKS.build(record.cell.task)
    recipe = task.recipe(record.cell.preset)
    dataset = task.load(context.place, recipe, 0, "validation")
    kind = objective_for(task.problem(), recipe)
    model = kind.model(build_checked(Spec("softmax")), 0)
    expected = kind.evaluate(model, dataset.test, context.device)
    with np.load(io.BytesIO(context.store.artifact(record.artifacts["predictions"]))) as kept:
        assert bytes(kept["translations"]).decode().split("\n") == list(expected.translations)
    assert record.first("loss", split="test").value == expected.loss
    assert record.first("alignment_error_rate") is None and record.first("sparsity").value == 0.0


@pytest.mark.slow
def test_a_variant_that_cannot_cross_is_unsupported_there_with_the_reason_and_fine_elsewhere(context):
    refused = done(context, "additive-lm")
    assert refused.outcome is Outcome.UNSUPPORTED and "attention" in refused.reason
    assert done(context, "additive-lm", where=",where=decoder").outcome is Outcome.OK


@pytest.mark.slow
def test_maps_of_a_trained_cell_become_a_page_and_images(context, tmp_path):
    inspect = pytest.importorskip("attnbench.bench.wings.inspect.command", exc_type=ImportError).inspect
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    record = done(context, "softmax")
    app = typer.Typer()
    app.command()(inspect)
    options = ["--sentence", "the old dog", "--out", str(tmp_path / "site"), "--figures", "svg", "--device", "cpu"]
    options += ["--results", str(context.store.root), "--data-dir", str(context.place.root)]
    run = CliRunner(env={"ATTNBENCH_CACHE": str(context.place.cache)}).invoke(app, [record.key, *options])
    assert run.exit_code == 0, run.output
    page = tmp_path / "site" / f"attention-{record.key[:8]}.html"
    assert "the old dog" in page.read_text(encoding="utf-8")
    names = sorted(path.name.removeprefix(f"{page.stem}-") for path in page.parent.glob("*.svg"))
    assert names == ["0-cross-0.svg", "0-decoder-0.svg", "0-encoder-0.svg"]
