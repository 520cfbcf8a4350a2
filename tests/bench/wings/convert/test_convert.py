"""Conversion of a checkpoint: what is loaded, what is measured, and the Records that it leaves."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from attnbench.bench.core.errors import DataError, SelectionError, Unsupported
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.record import Outcome
from attnbench.bench.store.store import Store

pytest.importorskip("transformers", reason="needs the extra attnbench[transformers]")

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    CLIPConfig,
    CLIPModel,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

from attnbench.bench.wings.convert.convert import (
    ConvertSetting,
    alpha_of,
    convert,
    gap_closed,
    sentence_of,
    tables_of,
    with_alpha,
    zeros_of,
)
from attnbench.bench.wings.convert.convert_data import data_of
from attnbench.bench.wings.convert.pretrained import load_checkpoint

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


@pytest.mark.slow
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


OWN = """
import torch
from torch import nn

def squared(q, k, v, mask=None):
    weights = (q @ k.mT / q.shape[-1] ** 0.5).relu().square()
    weights = weights if mask is None else weights.masked_fill(~mask, 0.0)
    return weights / (weights.sum(-1, keepdim=True) + 1e-6) @ v

class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.project = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        x = self.project(x)
        return (x if mask is None else x * mask[..., None]).cumsum(1)
"""


@pytest.mark.slow  # a whole conversion
def test_a_function_of_a_file_takes_the_place_of_softmax_and_a_layer_is_refused(checkpoint, text, tmp_path):
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    store = Store(tmp_path / "results")
    store.prepare()
    to = f"{tmp_path}/own.py:squared"
    found = convert(checkpoint, text, replace(SETTING, to=to, temperatures=(1.0,)), store, CPU, lambda line: None)
    assert {str(record.cell.variant) for record in found} == {"softmax", to}
    assert {record.outcome for record in found} == {Outcome.OK}
    loss = {str(record.cell.variant): record.first("perplexity", split="test").value for record in found[:2]}
    assert loss[to] != loss["softmax"] and math.isfinite(loss[to])
    with pytest.raises(Unsupported, match=r"own\.py:Layer.*projections of its own"):
        convert(checkpoint, text, replace(SETTING, to=f"{tmp_path}/own.py:Layer"), store, CPU, lambda line: None)


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
    assert not any("nan" in cell for table in (zero_shot, costs, gaps, zeros) for row in table for cell in row)
    assert costs[1][0] == "softmax, as it came" and costs[2][0].startswith("entmax15, zero-shot") and len(gaps) == 2


def test_boards_rank_conversions_like_any_other(converted):
    from attnbench.bench.api.boards import boards

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
    # of a loss of 0.0001 bits any change is thousands of per cent
    assert math.isnan(gap_closed(8.0001, 7.9, 8.0, margin=0.02))


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


@pytest.mark.slow
def test_what_cannot_be_converted_is_said(checkpoint, text, tmp_path, monkeypatch):
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
    with monkeypatch.context() as patched, pytest.raises(SelectionError, match="smaller --context"):
        patched.setattr("attnbench.bench.wings.convert.convert.available_bytes", lambda: 1000)
        convert(checkpoint, text, replace(setting, to="rela", temperatures=(1.0,)), store, CPU, lambda line: None)
    (tmp_path / "short.txt").write_text("the ship")
    with pytest.raises(DataError, match=r"at least 320 tokens, 20 sequences of 16 \(--context\), got 8 tokens"):
        convert(
            checkpoint, tmp_path / "short.txt", replace(setting, temperatures=(1.0,)), store, CPU, lambda line: None
        )
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


WORDS = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "a", "ship", "sees", "the", "king", "sinks", "again"]
SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}


def encoder(folder, kind, **more):
    """A random BERT of words, saved with its tokenizer."""
    torch.manual_seed(0)
    vocabulary = {word: at for at, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    kind(BertConfig(vocab_size=len(WORDS), max_position_embeddings=18, **SMALL, **more)).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def tried():
    """Leaves out the child that loads a checkpoint first, which takes seconds, and which other tests go through."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnbench.bench.wings.convert.convert.try_checkpoint", lambda path: None)
        yield


def stored(folder):
    store = Store(folder / "results")
    store.prepare()
    return store


def quiet(line):
    """Says nothing."""


def test_a_masked_language_model_is_measured_by_its_masked_tokens(tried, tmp_path):
    folder = encoder(tmp_path, BertForMaskedLM)
    words = tmp_path / "words.txt"
    words.write_text("a ship sees the king again\n" * 100)
    records = convert(folder, words, SETTING, stored(tmp_path), CPU, quiet)
    assert len(records) == 6 and {r.metric.name for r in records} == {"bits_per_character"}
    # by hand: windows of 14 tokens between [CLS] and [SEP], two of each masked, drawn alike at each evaluation
    checkpoint = load_checkpoint(folder)
    rows = checkpoint.ids(words.read_bytes())[: 600 // 14 * 14].view(-1, 14)
    rows = rows[int(len(rows) * 0.95) :]
    assert len(rows) == 3
    order = torch.rand(2, 14, generator=(draw := torch.Generator().manual_seed(0))).argsort(1)
    order = torch.cat([order, torch.rand(1, 14, generator=draw).argsort(1)])
    nats, characters = 0.0, 0.0
    for ids, chosen in zip(rows, order < 2, strict=True):
        given = torch.tensor([[1, *[3 if hidden else int(i) for i, hidden in zip(ids, chosen, strict=True)], 2]])
        with torch.no_grad():
            logits = checkpoint.model(given).logits[0, 1:-1].double()
        nats += -sum(float(logits[at].log_softmax(-1)[ids[at]]) for at in chosen.nonzero()[:, 0])
        characters += len(" ".join(WORDS[i] for i in ids)) * 2 / 14
    found = records[0].first("bits_per_character", split="test").value
    assert math.isclose(found, nats / math.log(2) / characters, rel_tol=1e-5)
    assert math.isclose(records[0].first("perplexity", split="test").value, math.exp(nats / 6), rel_tol=1e-5)
    assert records[1].first("perplexity", split="test").value != records[0].first("perplexity", split="test").value


@pytest.fixture(scope="module")
def classified(tried, tmp_path_factory):
    folder = encoder(
        tmp_path_factory.mktemp("bert"), BertForSequenceClassification, id2label={0: "floats", 1: "sinks"},
        label2id={"floats": 0, "sinks": 1}, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    lines = folder / "lines.tsv"
    kinds = ("a ship sees the king\tfloats", "the ship sinks\tsinks", "again a ship sinks again and again\t1")
    lines.write_text("\n".join(kinds * 30) + "\n")
    store = stored(folder)
    setting = ConvertSetting(alphas=2, temperatures=(1.0,), steps=60, batch=16, context=16, learning_rate=1e-2)
    return convert(folder, lines, setting, store, CPU, quiet), store, folder


@pytest.mark.slow
def test_a_classifier_is_ranked_by_accuracy_on_lines_of_ones_own(classified):
    records, store, _ = classified
    assert [str(r.cell.variant) for r in records] == ["softmax", "entmax15"] * 2
    assert {r.metric.name for r in records} == {"accuracy"}
    for record in records:
        assert record.first("accuracy", split="test").where["examples"] == 9
        assert record.first("accuracy", split="test").value in [n / 9 for n in range(10)]
        assert len(zeros_of(record)) == 2
    # a word tells the class, and 60 steps find it
    assert [r.first("accuracy", split="test").value for r in records[2:]] == [1.0, 1.0]
    tables = tables_of(records, "entmax15")
    assert tables[0][0] == ("accuracy, zero-shot", "T = 1") and tables[1][0][1] == "accuracy"
    assert "+0.0000 accuracy against softmax" in sentence_of(records, "entmax15")
    from attnbench.bench.api.boards import boards

    assert all("accuracy" in board.to_pandas() for board in boards(store.root))


def test_a_line_without_a_label_is_named(classified):
    lines = b"the ship sinks\tsinks\nthe ship\n"
    with pytest.raises(DataError, match=r"a label of floats, sinks, 0, 1 in line 2, got 'the ship'"):
        data_of(load_checkpoint(classified[2]), lines, None, 16, 4)


def test_a_higher_metric_is_better_in_the_last_sentence(bench):
    def told(*values):
        b = bench(task="convert[model=abc]", preset="fine-tune[steps=100]")
        b.score("softmax", "accuracy", [0.8] * 3)
        b.score("entmax15", "accuracy", values)
        return sentence_of([replace(record, metric=METRICS["accuracy"]) for record in b.records], "entmax15")

    assert told(0.795, 0.9, 0.8).startswith("Convert to entmax15: yes: -0.0050 to +0.1000 accuracy")
    assert told(0.7, 0.75, 0.7).startswith("Convert to entmax15: no: ")


OTHERS = {
    "pixel_values": lambda: ViTForImageClassification(ViTConfig(**SMALL, image_size=16, patch_size=8)),
    "input_ids": lambda: CLIPModel(
        CLIPConfig(
            text_config={**SMALL, "vocab_size": 99, "max_position_embeddings": 16},
            vision_config={**SMALL, "image_size": 16, "patch_size": 8}, projection_dim=16,
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("takes", OTHERS)
def test_a_model_of_images_is_refused_with_the_way_to_measure_it(takes, text, tmp_path):
    torch.manual_seed(0)
    OTHERS[takes]().save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    with pytest.raises(DataError, match=rf"takes {takes}, and a text measures .* --metric FILE\.py:NAME --steps 0"):
        data_of(checkpoint, text.read_bytes(), None, 16, 4)


def test_a_function_of_ones_own_ranks_a_model_of_images(tried, tmp_path):
    torch.manual_seed(0)
    OTHERS["pixel_values"]().save_pretrained(tmp_path)
    images = torch.randn(20, 3, 16, 16, generator=torch.Generator().manual_seed(0))

    def spread(model, split):
        return float(model(images).logits.std()) + (split == "test")

    setting = ConvertSetting(alphas=2, temperatures=(1.0,), steps=0)
    records = convert(tmp_path, None, setting, stored(tmp_path), CPU, quiet, spread)
    model = load_checkpoint(tmp_path).model
    with torch.no_grad():
        expected = float(model(images).logits.std())
    own, other = ([r.first("score", split=split).value for split in ("validation", "test")] for r in records)
    assert own == pytest.approx([expected, expected + 1], rel=1e-5) and other[0] != own[0]
    assert {r.metric.name for r in records} == {"score"}
    with pytest.raises(DataError, match="fine-tuning needs a text"):
        convert(tmp_path, None, SETTING, stored(tmp_path), CPU, quiet, spread)
    with pytest.raises(DataError, match="expected a finite number of the function"):
        convert(tmp_path, None, setting, stored(tmp_path), CPU, quiet, lambda model, split: math.nan)
    with pytest.raises(SelectionError, match=r"the function of --metric raises KeyError: 'dev' \(<lambda>"):
        convert(tmp_path, None, setting, stored(tmp_path), CPU, quiet, lambda model, split: {}["dev"])


def test_old_files_are_refused_with_the_remedy(tmp_path, checkpoint):
    folder = encoder(tmp_path, BertForMaskedLM)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(
        DataError, match=r"pytorch_model\.bin is a pickle.*import BertForMaskedLM as M; M\.from_pretrained"
    ):
        load_checkpoint(folder)
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    (folder / "tokenizer.json").rename(folder / "vocab.txt")
    with pytest.raises(DataError, match=r"has vocab\.txt and no tokenizer\.json.*import AutoTokenizer as T"):
        load_checkpoint(folder)


def test_weights_without_the_head_are_refused(tmp_path):
    folder = encoder(tmp_path, BertForMaskedLM)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertForSequenceClassification"]}))
    with pytest.raises(DataError, match=r"lack 4 tensors of BertForSequenceClassification, such as bert\.pooler"):
        load_checkpoint(folder)
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["Trainer"]}))
    with pytest.raises(DataError, match="no model of transformers"):
        load_checkpoint(folder)


@pytest.mark.slow
def test_the_command_takes_a_function_by_its_file(tmp_path):
    torch.manual_seed(0)
    OTHERS["pixel_values"]().save_pretrained(tmp_path / "vit")
    (tmp_path / "mine.py").write_text(
        "import torch\n\ndef spread(model, split):\n"
        "    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))\n"
        "    return float(model(images).logits.std())\n"
    )
    command = [sys.executable, "-m", "attnbench", "convert", "vit", "--metric", "mine.py:spread"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode and "fine-tuning needs a text" in refused.stderr
    more = ["--steps", "0", "--alphas", "2", "--temperatures", "1,2"]
    ended = subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "score, zero-shot" in ended.stdout and "4 Records in results" in ended.stdout
