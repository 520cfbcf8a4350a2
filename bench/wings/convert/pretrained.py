"""Checkpoints of transformers, which strangers may have made: read within bounds, and tried in a child first."""

from __future__ import annotations

import hashlib
import inspect
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from torch import Tensor, nn

from ...core.cell import REFERENCE
from ...core.decode import brief
from ...core.errors import DataError, PluginError
from ...core.files import open_regular
from ...core.hashing import content_hash
from ...core.registry import VARIANTS
from ...process.ask import Reporter, Request, ask, asking

MOST_CONFIG = 2**20
HEADS = {
    "causal": ("ForCausalLM", "LMHeadModel", "AutoModelForCausalLM"),
    "masked": ("ForMaskedLM",),
    "classification": ("ForSequenceClassification",),
}
"""Endings of the names of classes that a text suffices for."""

OLD_VOCABULARIES = ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
"""Vocabularies of tokenizers that need code of their class."""

MOST_JSON = 2**28
"""Largest tokenizer or index of weights that is read, in bytes."""

SLACK = 4 * 2**30
"""Memory that loading may take beside that of the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model in memory, how it reads text, and the hashes of its files. `tokenizer` None: ids are bytes.

    `head`: "causal", "masked" or "classification"; "" for a model of which only a function of the user knows the use.
    """

    model: nn.Module
    tokenizer: Any
    files: dict[str, str]
    head: str

    @property
    def name(self) -> str:
        return content_hash(self.files, 10)

    def ids(self, text: bytes) -> Tensor:
        if self.tokenizer is None:
            return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        found = self.tokenizer(text.decode(errors="replace"), add_special_tokens=False, verbose=False)["input_ids"]
        return torch.tensor(found, dtype=torch.long)

    def characters(self, ids: Tensor) -> int:
        """Characters that these ids spell."""
        if self.tokenizer is None:
            # bytes that continue a character of UTF-8 begin none
            return int(((ids & 0xC0) != 0x80).sum())
        return len(self.tokenizer.decode(ids))

    @property
    def mask_id(self) -> int:
        """The id of the token that stands for a masked one. Raises DataError where there is none."""
        known = self.tokenizer.get_vocab() if self.tokenizer is not None else {}
        found = next((known[token] for token in ("[MASK]", "<mask>") if token in known), None)
        if found is None:
            raise DataError("a masked language model needs a tokenizer.json with [MASK] or <mask>")
        return int(found)

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """The ids that the tokenizer puts before and behind a text, such as [CLS] and [SEP]."""
        if self.tokenizer is None:
            return [], []
        found, own = (self.tokenizer("a", add_special_tokens=each)["input_ids"] for each in (True, False))
        at = next((at for at in range(len(found)) if found[at : at + len(own)] == own), 0)
        return found[:at], found[at + len(own) :]


def load_checkpoint(path: Path) -> Checkpoint:
    """The model that `save_pretrained` wrote to the folder `path`, with the head that its configuration names.

    Nothing is downloaded, and nothing of the folder is executed: weights are safetensors alone, code that a
    configuration names is refused, and so are kernels and quantisation, which would import other packages. Without
    files of a tokenizer ids are bytes. Raises DataError for anything else.
    """
    if not path.is_dir():
        raise DataError(f"no folder {path}; nothing is downloaded: write one with model.save_pretrained(FOLDER)")
    config_file, vocabulary = path / "config.json", path / "tokenizer.json"
    weights = sorted(path.glob("*.safetensors"))
    # transformers reads other files of the folder by itself
    for file in (config_file, *sorted(path.glob("*.json")), *weights):
        with _reading(file), open_regular(file) as opened:
            size, most = os.fstat(opened.fileno()).st_size, MOST_CONFIG if file == config_file else MOST_JSON
            if size > most and file not in weights:
                raise DataError(f"expected at most {most:,} bytes in {file}, got {size:,}")
    try:
        import transformers
        from safetensors import safe_open
    except ImportError as error:
        raise DataError("converting needs transformers; pip install 'attnbench[transformers]'") from error
    local = {"local_files_only": True, "trust_remote_code": False}
    tokenizer, of_file, tensors = None, transformers.PreTrainedTokenizerFast, 0
    with _reading(config_file):
        config = transformers.AutoConfig.from_pretrained(path, **local)
        if getattr(config, "auto_map", None) or getattr(config, "quantization_config", None):
            raise DataError(f"{config_file} names code or a quantisation; a plain checkpoint of transformers is needed")
        layers = getattr(config, "num_hidden_layers", 0)
        name = str((config.architectures or ["AutoModelForCausalLM"])[0])
        kind: Any = getattr(transformers, name, None)
        models = (transformers.PreTrainedModel, transformers.AutoModelForCausalLM)
        if not (inspect.isclass(kind) and issubclass(kind, models)):
            raise DataError(f"{config_file} names {name!r:.60}, which is no model of transformers")
        head = next((head for head, endings in HEADS.items() if name.endswith(endings)), "")
    if not weights:
        old = next((file.name for file in sorted(path.glob("*.bin"))), None)
        raise DataError(
            f"expected weights as safetensors in {path}; save the model again with save_pretrained" if old is None
            else f"{path / old} is a pickle, which may run code as it is read; where you trust it, write safetensors: "
            f'python -c "from transformers import {name} as M; '
            f"M.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})\""
        )  # fmt: skip
    if vocabulary.is_file():
        with _reading(vocabulary):
            tokenizer = of_file(tokenizer_file=str(vocabulary))  # type: ignore[no-untyped-call]
    elif head:
        slow = [file for file in OLD_VOCABULARIES if (path / file).exists()]
        if slow:
            raise DataError(
                f"{path} has {slow[0]} and no tokenizer.json, and its ids would be read as bytes; write one: "
                f'python -c "from transformers import AutoTokenizer as T; '
                f'T.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"'
            )
        if config.vocab_size < 256:
            raise DataError(f"{path} has no tokenizer.json, and {config.vocab_size} ids are too few for bytes")
    for file in weights:
        with _reading(file), safe_open(file, "pt") as opened:
            tensors += len(opened.keys())
    if not isinstance(layers, int) or layers > tensors:
        raise DataError(f"{config_file} names {layers!r:.30} layers, but its weights are {tensors:,} tensors")
    with _reading(path):
        # named, since a configuration may ask for a kernel that would be fetched
        model, found = cast(Any, kind).from_pretrained(
            path, config=config, use_safetensors=True, attn_implementation="eager", dtype=torch.float32,
            output_loading_info=True, **local,
        )  # fmt: skip
        if missing := sorted(found["missing_keys"]):
            raise DataError(f"the weights in {path} lack {len(missing)} tensors of {name}, such as {missing[0]}")
    files = {file.name: sha256_of(file) for file in (config_file, *weights)}
    return Checkpoint(model=model.eval(), tokenizer=tokenizer, files=files, head=head)


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Raises DataError, which names the file, for whatever a library raises over a file of strangers."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {brief(' '.join(str(error).split()), 300)}"
        raise DataError(f"cannot load {file}: {reason}; save the model again with save_pretrained") from error


@dataclass(frozen=True, slots=True)
class TryCheckpoint(Request[str]):
    """True if a checkpoint loads and predicts, tried where a crash, a hang and a lack of memory cost nothing."""

    path: Path

    def answer(self, reporter: Reporter) -> str:
        size = sum(file.stat().st_size for file in self.path.glob("*.safetensors") if file.is_file())
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = psutil.Process().memory_info().vms + SLACK + 6 * size
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
        checkpoint = load_checkpoint(self.path)
        with _reading(self.path), torch.no_grad():
            ids = checkpoint.ids(b"Some words, to try it.")[:8]
            if checkpoint.head:
                checkpoint.characters(ids)
                checkpoint.model(input_ids=ids[None])
        return checkpoint.name


def try_checkpoint(path: Path) -> None:
    """Loads the checkpoint in a child. Raises DataError where that fails in whatever way."""
    try:
        with asking():
            ask(VARIANTS, REFERENCE, TryCheckpoint(path), apart=True)
    except PluginError as error:
        raise DataError(f"cannot load {path}: {error.reason}; save the model again with save_pretrained") from None


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
