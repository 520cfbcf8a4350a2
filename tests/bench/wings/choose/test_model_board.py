"""`attnbench choose --model`: prefill, token, cache and batch of a model, with what is known of quality."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import attnbench
from attnbench.bench.cli.app import app
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.record import Measurement
from attnbench.bench.measure.devices import devices
from attnbench.bench.store.store import Store
from attnbench.bench.wings.choose.estimate import published_timings
from attnbench.bench.wings.choose.model_board import _whole_models
from attnbench.bench.wings.choose.models import ModelShape, known_models

RESULTS = Path(__file__).parents[4] / "results"


def board(
    tmp_path: Path, model: str = "llama-3-8b", on: str = "h100", context: object = "32k", **more: object
) -> object:
    return attnbench.choose_for_model(model, context, on, tmp_path / "none", notice=lambda text: None, **more)


def value(found: object, name: str, column: str) -> float:
    row = next(row for row in found.unranked if row.name == name)
    return found.cell(row, column).value


def test_every_family_has_a_row_with_time_cache_and_batch(tmp_path: Path) -> None:
    found = board(tmp_path)
    asked = "softmax[impl=flash] softmax[impl=cudnn] mla nsa window[size=4096] entmax15 linear ssd delta:3//softmax"
    assert {*asked.split(), "delta[decay=channel]:3//mla"} <= {row.name for row in found.unranked}
    for row in found.unranked:
        prefill, token, cache, fit = row.entries
        assert prefill.low < prefill.value < prefill.high and token.low < token.value < token.high, row.name
        assert prefill.note in "mcon" and "×" in prefill.text and cache.value > 0 and fit.value > 0
    # 32 layers of keys and values of 8 heads of 128, and what is left of nine tenths of 80 GB in bfloat16
    assert value(found, "softmax[impl=flash]", "cache") == 32 * 2 * 8 * 128 * 32768 * 2
    left = 0.9 * 80e9 - 2 * known_models()["llama-3-8b"].parameters()
    assert value(found, "softmax[impl=flash]", "batch") == left // 2**32
    assert "Without retraining only softmax[impl=cudnn] or softmax[impl=flash] will do." in found.headline
    assert "beyond the uncertainty none is faster" in found.headline
    assert "As released (softmax), for one sequence" in found.headline and found.headline.endswith(
        "Quality is unknown."
    )


def test_what_was_timed_on_the_card_stands_before_what_is_guessed(tmp_path: Path) -> None:
    marks = ["mc".find(row.entries[0].note) < 0 for row in board(tmp_path).unranked]
    assert marks == sorted(marks) and {*marks} == {True, False}


def test_no_small_model_takes_less_than_its_calls(tmp_path: Path) -> None:
    small = ModelShape(num_hidden_layers=4, hidden_size=256, num_attention_heads=4)
    found = board(tmp_path, small, context=2048, variants="softmax")
    # eight kernels of 6 µs in each of four layers
    assert min(each.value for each in found.unranked[0].entries[:2]) > 4 * 8 * 6e-6
    assert "4.2M weights" in str(found.notes) and any(note.topic == "launches" for note in found.notes)
    assert not any(note.topic == "launches" for note in board(tmp_path, variants="softmax").notes)


def test_a_hybrid_lies_between_its_parts(tmp_path: Path) -> None:
    found = board(tmp_path, variants="softmax,delta,delta:3//softmax")
    for column, share in (("prefill", None), ("token", None), ("cache", 0.75)):
        delta, hybrid, softmax = (value(found, name, column) for name in ("delta", "delta:3//softmax", "softmax"))
        assert delta < hybrid < softmax
        if share:
            assert hybrid == pytest.approx(share * delta + (1 - share) * softmax)


def test_more_memory_bandwidth_and_shorter_prompts_help_as_they_should(tmp_path: Path) -> None:
    names = {"variants": "softmax,window[size=1024]"}
    h100, h200, short = (board(tmp_path, **names, **more) for more in ({}, {"on": "h200"}, {"context": 8192}))
    assert value(h200, "softmax", "batch") > 1.8 * value(h100, "softmax", "batch")
    assert value(h200, "softmax", "token") < value(h100, "softmax", "token")
    # softmax grows with the square of the prompt where attention rules, a window with the prompt
    assert value(h100, "softmax", "prefill") > 4 * value(short, "softmax", "prefill")
    assert value(h100, "window[size=1024]", "prefill") == pytest.approx(
        4 * value(short, "window[size=1024]", "prefill"), rel=0.1
    )
    half = board(tmp_path, **names, weight_bytes=1.0)
    assert value(half, "softmax", "batch") > value(h100, "softmax", "batch")
    assert value(half, "softmax", "token") < value(h100, "softmax", "token")


def test_what_does_not_fit_or_decode_is_said(tmp_path: Path) -> None:
    found = board(tmp_path, "llama-3-70b", variants="softmax,linformer")
    assert "no sequence fits beside the weights" in found.headline and value(found, "softmax", "batch") == 0
    # 141 GB of weights and 10.7 GB of cache, in 72 GB a card
    assert "softmax need 3 such devices; times are as if one held them" in " ".join(note.text for note in found.notes)
    reasons = {row.name: row.reason for row in found.unranked}
    assert reasons == {"softmax": "", "linformer": "has no causal form that decodes"}
    said = r"expected --on with a card \(a100, .*\) or a machine of the Records \(none\), got 'h300' \(did you mean 'h"
    with pytest.raises(SelectionError, match=said):
        board(tmp_path, on="h300")
    assert board(tmp_path, on="H100", variants="softmax").question.endswith("one NVIDIA H100?")


def test_no_interval_begins_below_the_peaks_of_the_card(tmp_path: Path) -> None:
    found = board(tmp_path, context="1M", variants="softmax,delta")
    token = next(row for row in found.unranked if row.name == "softmax").entries[1]
    # reads all weights and the cache once
    assert token.low >= (2 * known_models()["llama-3-8b"].parameters(active=True) + 2**37) / 3350e9
    assert token.text.startswith("81 ms ÷1.7×20") and token.shown("brief") == "81 ms ×20 c"
    assert "beyond the uncertainty delta is faster" in found.headline


def test_the_whole_models_of_others_are_met_but_for_the_shortest_prompt() -> None:
    errors = [abs(error) for _, error in _whole_models(list(published_timings()))]
    # a prompt of 1,000 tokens took others half a second to start
    assert len(errors) == 11 and sorted(errors)[-2] < np.log(2)


def test_records_are_the_times_where_there_are_any_and_judge_quality(bench, tmp_path: Path) -> None:
    b = bench()
    right = [(np.arange(4000) < 4000 * 0.6).astype(np.uint8)] * 3
    wrong = [(np.arange(4000) < 4000 * 0.3).astype(np.uint8)] * 3
    for name, correct in (("softmax", right), ("linear", wrong)):
        b.train(name, [], correct=correct)
    b.task = "sweep[causal=true,mode=forward]"
    setting = {"length": 4096, "level": "attention", "batch": 1, "heads": 4, "width": 256, "causal": True,
               "input": "iid", "dtype": "float32"}  # fmt: skip
    for name, seconds in (("softmax", 0.25), ("linear", 0.125)):
        more = [Measurement.of("forward_seconds", seconds, (seconds,) * 5)]
        b.time(name, [seconds] * 5, [0.25] * 5, setting=setting, more=more)
    store = Store(tmp_path / "results")
    for record in b.records:
        store.append(record)
    model = {"num_hidden_layers": 1, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1}
    (tmp_path / "config.json").write_text(json.dumps(model))
    machine = b.records[-1].measured_on
    found = attnbench.choose_for_model(
        tmp_path / "config.json", 4096, machine, tmp_path / "results", variants="softmax,linear"
    )
    rows = {row.name: row for row in found.unranked}
    # one layer: the Record, and what the same small products take in both
    times = [value(found, name, "prefill") for name in ("softmax", "linear")]
    assert times[0] - times[1] == pytest.approx(0.125) and 0.25 < times[0] < 0.3
    assert found.cell(rows["softmax"], "prefill").note == "m"
    (quality,) = found.parts
    assert {row.name: [entry.text for entry in row.entries] for row in quality.unranked} == {
        "linear": ["0", "0", "1", "0", "0"],
    }
    assert quality.title == "better or worse than softmax, on 1 board; others not compared"
    assert "known up to 512 tokens, on small models, and unknown beyond" in found.headline
    # of those whom nobody compared nothing is known
    other = attnbench.choose_for_model(
        tmp_path / "config.json", 4096, machine, tmp_path / "results", variants="softmax,rela"
    )
    assert not other.parts and other.headline.endswith("Quality is unknown.")


def test_what_sizes_leave_out_is_said_and_can_be_given(tmp_path: Path) -> None:
    def shown(*more: str) -> str:
        words = "--layers 28 --width 3584 --heads 28 --kv-heads 4 --head-dim 128 --context 32k --on a100"
        given = f"{words} --variants softmax --results {tmp_path}".split()
        ran = CliRunner().invoke(app, ["choose", *given, *more])
        assert ran.exit_code == 0, ran.exception
        return " ".join(ran.stdout.split())

    bare, whole = shown(), shown("--feed-forward", "18944", "--vocabulary", "152064")
    assert "assumed: a gated feed-forward of 4 × width (14,336) and no vocabulary (--feed-forward" in bare
    assert "5.1B weights" in bare and "As released" not in bare
    # Qwen2.5-7B, as its makers count
    assert "7.6B weights" in whole and "assumed" not in whole
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 4096}
        )
    )
    found = board(tmp_path, str(tmp_path), context=8192, variants="softmax")
    assert "it was made for 4,096 tokens, and not 8,192" in [note.text for note in found.notes]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model llama-3-8b --on h100", "expected --context and --on beside a model"),
        ("--model llama-3-8b --context 32k --on h100 --memory 4GB", "expected a model, or --memory and --mode"),
        ("--model llama-3-8b --layers 3 --context 1k --on h100", "expected a model, or the sizes of a model"),
        ("--length 512 --on h100", "expected --model NAME, or --layers, --width and --heads"),
        ("--layers 2 --context 1k --on h100", "at least --layers, --width and --heads"),
    ],
)
def test_options_that_do_not_go_together_are_told_apart(words: str, said: str, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["choose", *words.split(), "--results", str(tmp_path)])
    assert shown.exit_code != 0 and said in str(shown.exception) + shown.output


def test_the_answer_for_the_engineer_fits_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ["choose", "--model", "llama-3-8b", "--context", "32k", "--on", "h100", "--results", str(tmp_path)]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.exception
    lines = shown.stdout.split("\n")
    assert max(map(len, lines)) <= 80 and lines[0].endswith("at 32,768 tokens on one NVIDIA H100?")
    assert any(line.startswith("delta[decay=channel]:3//mla") for line in lines)
    sized = "choose --layers 2 --width 64 --heads 4 --kv-heads 2 --context 1k --on a100 --variants softmax"
    shown = CliRunner().invoke(app, [*sized.split(), "--results", str(tmp_path), "--format", "json"])
    (found,) = json.loads(shown.stdout)["boards"]
    assert "in the model at 1,024 tokens" in found["question"]
    assert devices()["a100"].card in found["question"]


def test_a_proven_loss_is_worse_however_small_as_on_the_boards() -> None:
    found = attnbench.choose_for_model(
        "llama-3-8b", "32k", "h100", RESULTS, variants="rela", task="max", notice=lambda text: None
    )
    # it learned at no seed where softmax learned at all
    assert [entry.text for entry in found.parts[0].unranked[0].entries] == ["0", "0", "1", "0", "0"]
    # every board of the present version of its task is named, however many
    whole = attnbench.choose_for_model("llama-3-8b", "32k", "h100", RESULTS, variants="rela", notice=lambda text: None)
    (judged,) = [note.text for note in whole.notes if note.topic == "quality"]
    assert judged == (
        "judged on lra-image (quick), lra-listops (quick), lra-text (quick), multi30k-en-de (quick), "
        "tinyshakespeare (record)"
    )
