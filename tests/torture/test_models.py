"""Checkpoints of strangers that `convert` reads: each is refused in one line that names a file, or read."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tally import Extent, Tally

from attnbench.bench.core.errors import DataError

pytest.importorskip("transformers", reason="needs the extra attnbench[transformers]")

from transformers import LlamaConfig, LlamaForCausalLM

from attnbench.bench.wings.convert.pretrained import load_checkpoint, try_checkpoint

SECONDS = 75

VALUES: tuple[Any, ...] = (None, 0, -1, "many", [], {}, 1.5, 10**6, 10**18)
FIELDS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "head_dim",
    "hidden_act", "rope_parameters", "max_position_embeddings", "model_type", "architectures", "dtype",
)  # fmt: skip
FILES: dict[str, Callable[[Path], object]] = {
    "a tokenizer that is no JSON": lambda model: (model / "tokenizer.json").write_text("{"),
    "a tokenizer of an empty object": lambda model: (model / "tokenizer.json").write_text("{}"),
    "a tokenizer of another kind": lambda model: (model / "tokenizer.json").write_text('{"model": {"type": "BPE"}}'),
    "a tokenizer as a pipe": lambda model: os.mkfifo(model / "tokenizer.json"),
    "a tokenizer as a folder": lambda model: (model / "tokenizer.json").mkdir(),
    "a generation config as a pipe": lambda model: os.mkfifo(model / "generation.json"),
    "a configuration that is a list": lambda model: (model / "config.json").write_text("[]"),
    "a configuration nested deep": lambda model: (model / "config.json").write_text("[" * 100_000),
    "a configuration of 2 MB": lambda model: (model / "config.json").write_text(" " * 2_000_000),
    "a configuration as a device": lambda model: replaced(model / "config.json", Path("/dev/zero")),
    "weights as a pipe": lambda model: os.mkfifo(model / "more.safetensors"),
    "weights cut short": lambda model: (model / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}"),
    "weights with a long header": lambda model: (model / "model.safetensors").write_bytes(b"\xff" * 7 + b"\0{}"),
    "weights that are empty": lambda model: (model / "model.safetensors").write_bytes(b""),
    "an index that leads outside": lambda model: (model / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {"lm_head.weight": "../../../etc/passwd"}})
    ),
    "an adapter": lambda model: (model / "adapter_config.json").write_text('{"base_model_name_or_path": "/etc"}'),
}  # fmt: skip


def replaced(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def changed(field: str, value: Any) -> Callable[[Path], object]:
    def write(model: Path) -> None:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        (model / "config.json").write_text(json.dumps(config | {field: value}), encoding="utf-8")

    return write


def cases() -> list[tuple[str, Callable[[Path], object]]]:
    found = [(f"{field}={value!r}", changed(field, value)) for field in FIELDS for value in VALUES]
    return [*FILES.items(), *found]


def problem_of(model: Path) -> str | None:
    began = time.monotonic()
    try:
        try_checkpoint(model)
    except DataError as error:
        text = str(error)
        if "\n" in text or len(text) > 700 or str(model) not in text:
            return f"a message that is long, or names no file: {text!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    spent = time.monotonic() - began
    return f"it took {spent:.0f} s" if spent > SECONDS else None


@pytest.mark.slow  # transformers is imported in a child; the quicker case is below
def test_models(extent: Extent, tally: Tally, sound: Path, tmp_path: Path) -> None:
    """models of strangers: one line that names the file, within the time of a question, or read."""
    for name, make in extent.of(cases(), sample=1):
        model = tmp_path / "model"
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(sound, model)
        make(model)
        tally.check(name, problem_of(model))
    tally.verdict()


def test_a_million_layers_and_a_pipe_are_refused_at_once(sound: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(sound, model)
    changed("num_hidden_layers", 10**6)(model)
    with pytest.raises(DataError, match="names 1000000 layers, but its weights are"):
        load_checkpoint(model)
    os.mkfifo(model / "tokenizer.json")
    with pytest.raises(DataError, match=r"tokenizer\.json: OSError: .*a named pipe"):
        load_checkpoint(model)
