"""Conversion of a checkpoint: what is loaded, what is measured, and the Records that it leaves."""

import json
import math
import os

import pytest
import torch

from attnbench.bench.core.errors import DataError, SelectionError, Unsupported
from attnbench.bench.core.record import Outcome
from attnbench.bench.store.store import Store

pytest.importorskip("transformers", reason="needs the extra attnbench[transformers]")

from transformers import LlamaConfig, LlamaForCausalLM

from attnbench.bench.run.convert import ConvertSetting, alpha_of, convert, with_alpha
from attnbench.bench.run.convert_table import gap_closed, sentence_of, tables_of, zeros_of
from attnbench.bench.run.pretrained import load_checkpoint

CPU = torch.device("cpu")
SETTING = ConvertSetting(alphas=2, temperatures=(1.0, 2.0), steps=4, batch=2, context=16, windows=4)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("a ship sees the kïng again.\n" * 80)
    return file


@pytest.fixture(scope="module")
def converted(checkpoint, text, tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("results"))
    store.prepare()
    return convert(checkpoint, text, SETTING, store, CPU, lambda line: None), store


def test_every_result_is_a_record_that_the_store_gives_back(converted):
    records, store = converted
    assert [(str(r.cell.variant), str(r.cell.preset)) for r in records] == [
        ("softmax", "zero-shot[temperature=1.0]"), ("entmax15", "zero-shot[temperature=1.0]"),
        ("softmax", "zero-shot[temperature=2.0]"), ("entmax15", "zero-shot[temperature=2.0]"),
        *[(name, records[-1].cell.preset.__str__()) for name in ("softmax", "entmax15")],
    ]  # fmt: skip
    assert {record.key for record in store.records()} == {record.key for record in records}
    assert {record.outcome for record in records} == {Outcome.OK}
    for record in records:
        assert record.metric.name == "bits_per_character" and record.cell.task.name == "convert"
        assert len(zeros_of(record)) == 2


def test_softmax_at_temperature_one_is_the_model_as_it_came(converted, checkpoint, text):
    record = converted[0][0]
    model = LlamaForCausalLM.from_pretrained(checkpoint, attn_implementation="eager").eval()
    ids = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    windows = ids[: len(ids) // 16 * 16].view(-1, 16)
    own = windows[int(len(windows) * 0.95) :]
    own = own[torch.linspace(0, len(own) - 1, 4).long()]
    with torch.no_grad():
        loss = model(input_ids=own, labels=own).loss.item()
    assert math.isclose(record.first("perplexity", split="test").value, math.exp(loss), rel_tol=1e-5)
    # a character of two bytes counts once
    bytes_predicted = own[:, 1:]
    characters = ((bytes_predicted & 0xC0) != 0x80).sum().item()
    bits = loss / math.log(2) * bytes_predicted.numel()
    assert math.isclose(record.first("bits_per_character", split="test").value, bits / characters, rel_tol=1e-5)


def test_fine_tuning_starts_from_the_first_weights_and_reports_cost(converted):
    tuned = converted[0][-1]
    assert tuned.cell.preset.get("steps") == 4 and tuned.first("steps").value == 4
    assert len(tuned.first("step_seconds").samples) == len(tuned.first("reference_step_seconds").samples) == 5
    zero_shot, costs, gaps, zeros = tables_of(converted[0], "entmax15")
    assert zero_shot[0][-1] == "T = 2" and [row[0] for row in zeros] == [
        "zeros by layer and head",
        "layer 0",
        "layer 1",
    ]
    assert costs[1][0] == "softmax, as it came" and costs[2][0].startswith("entmax15, zero-shot") and len(gaps) == 2


def test_boards_rank_conversions_like_any_other(converted):
    from attnbench.bench.api import boards

    # one for each temperature, and one of fine-tuning
    found = boards(converted[1].root)
    assert len(found) == 3
    for board in found:
        assert set(board.to_pandas()["variant"]) == {"softmax", "entmax15"}


def test_alpha_goes_from_softmax_to_the_target():
    assert [alpha_of(name) for name in ("softmax", "entmax15", "sparsemax", "entmax[alpha=1.2]", "rela")] == [
        1.0, 1.5, 2.0, 1.2, None,
    ]  # fmt: skip
    assert [with_alpha(alpha, "entmax15") for alpha in (1.0, 1.25, 1.5)] == [
        "softmax",
        "entmax[alpha=1.25]",
        "entmax15",
    ]
    assert gap_closed(3.0, 2.5, 2.0) == 0.5 and math.isnan(gap_closed(1.0, 1.0, 2.0))


def test_nothing_but_a_plain_local_checkpoint_is_loaded(checkpoint, tmp_path):
    with pytest.raises(DataError, match="nothing is downloaded"):
        load_checkpoint(tmp_path / "meta-llama")
    with pytest.raises(DataError, match=r"config\.json"):
        load_checkpoint(tmp_path)
    config = json.loads((checkpoint / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(DataError, match="safetensors"):
        load_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes()[:100])
    with pytest.raises(DataError, match="cannot load"):
        load_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "evil.Evil"}}))
    with pytest.raises(DataError, match="names code"):
        load_checkpoint(tmp_path)


def test_what_cannot_be_converted_is_said(checkpoint, text, tmp_path):
    store = Store(tmp_path)
    store.prepare()
    for changes, error, reason in (
        ({"to": "nystrom"}, Unsupported, "no causal form"),
        ({"to": "entmux"}, SelectionError, "entmux"),
        ({"temperatures": (0.0,)}, SelectionError, "above 0"),
    ):
        setting = ConvertSetting(**({"alphas": 2, "context": 16, "steps": 0, "temperatures": (1.0,)} | changes))
        with pytest.raises(error, match=reason):
            convert(checkpoint, text, setting, store, CPU, lambda line: None)
    setting = ConvertSetting(alphas=2, temperatures=(math.nan,))
    with pytest.raises(SelectionError, match="above 0"):
        convert(checkpoint, text, setting, store, CPU, lambda line: None)
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match="a named pipe"):
        convert(checkpoint, tmp_path / "pipe.txt", SETTING, store, CPU, lambda line: None)
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    with pytest.raises(DataError, match="got 0 bytes"):
        convert(checkpoint, empty, SETTING, store, CPU, lambda line: None)


def test_the_last_sentence_says_yes_no_or_undecided(bench):
    def told(*gaps):
        b = bench(task="convert[model=abc]", preset="fine-tune[steps=100]")
        for name, bits in (("softmax", [2.0] * len(gaps)), ("entmax15", [2.0 + gap for gap in gaps])):
            b.score(name, "bits_per_character", bits)
        return sentence_of(b.records, "entmax15")

    assert told(0.01, 0.012, 0.015).startswith("Convert to entmax15: yes: +0.0100 to +0.0150 bits per character")
    assert told(0.03, 0.05, 0.04).startswith("Convert to entmax15: no: ")
    assert told(0.01, 0.05, 0.04).startswith("Convert to entmax15: undecided: ")
    assert told(0.01).endswith("over 1 seed; `--seeds 3` decides.")
    assert told().endswith("nothing was fine-tuned (`--steps 100 --seeds 3`).")


def test_no_table_says_nan(converted):
    assert not any("nan" in cell for table in tables_of(converted[0], "entmax15") for row in table for cell in row)
