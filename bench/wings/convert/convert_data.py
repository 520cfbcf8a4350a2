"""The data that a converted model is measured and fine-tuned on: a text, labelled lines, or a function of the user."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...core.errors import DataError, SelectionError, crash_text
from ...core.metrics import METRICS, Metric
from ...core.record import Measurement
from .pretrained import Checkpoint

LEAST_WINDOWS = 20
MASKED = 0.15
"""Share of the tokens that are masked, as in BERT (Devlin et al. 2019, section 3.1); all by the mask token."""

OwnMetric = Callable[[nn.Module, str], float]
"""A function (model, split) of the user, split "validation" or "test"; larger is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Values of one split by the name of the metric, and what each example adds to the metric that ranks."""

    values: dict[str, float]
    examples: int = 1
    predictions: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def measurements(self, split: str) -> list[Measurement]:
        of: dict[str, Any] = {"split": split, "examples": self.examples}
        token: dict[str, Any] = {"perplexity": {"token": "of the checkpoint"}}
        return [Measurement.of(name, value, **of, **token.get(name, {})) for name, value in self.values.items()]


class ConvertData(ABC):
    """Examples as rows of ids, int64 (examples, width): `train`, and `splits` to validate and test."""

    metric: Metric
    train: Tensor
    splits: dict[str, Tensor]

    @abstractmethod
    def inputs(self, rows: Tensor) -> dict[str, Tensor]:
        """The arguments of the model."""

    @abstractmethod
    def loss(self, model: nn.Module, rows: Tensor, draw: torch.Generator) -> Tensor:
        """The mean cost of these examples, to train by."""

    @abstractmethod
    def evaluate(self, model: nn.Module, split: str, batch: int) -> Evaluated:
        """Measures a split with the model as it is."""


class TextData(ConvertData):
    """Windows of a text, of which a causal model predicts the next tokens and a masked one those that are masked.

    The first nine tenths train; neighbouring parts of the rest validate and test.
    """

    metric = METRICS["bits_per_character"]

    def __init__(self, checkpoint: Checkpoint, content: bytes, context: int, windows: int):
        self.checkpoint = checkpoint
        masked = checkpoint.head == "masked"
        self.mask = checkpoint.mask_id if masked else None
        self.first, self.last = checkpoint.around if masked else ([], [])
        ids, length = checkpoint.ids(content), context - len(self.first) - len(self.last)
        rows = ids[: len(ids) // length * length].view(-1, length)
        if len(rows) < LEAST_WINDOWS:
            needed = f"{LEAST_WINDOWS * length:,} tokens, {LEAST_WINDOWS} sequences of {length:,}"
            raise DataError(f"expected a text of at least {needed} (--context), got {len(ids):,} tokens")
        first, second = int(len(rows) * 0.9), int(len(rows) * 0.95)
        self.train = rows[:first]
        self.splits = {"validation": spaced(rows[first:second], windows), "test": spaced(rows[second:], windows)}

    def inputs(self, rows: Tensor) -> dict[str, Any]:
        if self.mask is None:
            return {"input_ids": rows, "use_cache": False}
        around = (torch.tensor(ids).expand(len(rows), -1).to(rows) for ids in (self.first, self.last))
        return {"input_ids": torch.cat([next(around), rows, next(around)], 1)}

    def loss(self, model: nn.Module, rows: Tensor, draw: torch.Generator) -> Tensor:
        nats, counted = self._nats(model, rows, draw)
        return nats.sum() / counted.sum()

    def _nats(self, model: nn.Module, rows: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """The cost of each token, and which are predicted, (batch, length): of a causal model without the first."""
        if self.mask is None:
            logits = model(**self.inputs(rows)).logits[:, :-1].float()
            nats = nn.functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
            return nats, torch.ones_like(rows[:, 1:])
        order = torch.rand(rows.shape, generator=draw).argsort(1)
        chosen = (order < max(1, round(MASKED * rows.shape[1]))).to(rows.device)
        logits = model(**self.inputs(rows.masked_fill(chosen, self.mask))).logits.float()
        logits = logits[:, len(self.first) :][:, : rows.shape[1]]
        return nn.functional.cross_entropy(logits.transpose(1, 2), rows, reduction="none") * chosen, chosen

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str, batch: int) -> Evaluated:
        rows, device, bits, tokens = self.splits[split], next(model.parameters()).device, [], []
        # the same tokens are masked whenever a split is evaluated
        draw = torch.Generator().manual_seed(0)
        for part in torch.split(rows, batch):
            nats, counted = self._nats(model, part.to(device), draw)
            bits.append(nats.sum(1, dtype=torch.float64).cpu() / math.log(2))
            tokens.append(counted.sum(1, dtype=torch.float64).cpu())
        predicted, spent = torch.cat(tokens).numpy(), torch.cat(bits).numpy()
        # of masked tokens: their share of the characters of the window
        known, share = (rows[:, 1:], 1.0) if self.mask is None else (rows, predicted / rows.shape[1])
        characters = np.array([self.checkpoint.characters(ids) for ids in known], dtype=np.float64) * share
        per_token = float(spent.sum() / predicted.sum())
        return Evaluated(
            values={
                "bits_per_character": float(spent.sum() / characters.sum()),
                "perplexity": 2.0**per_token if per_token < 1024 else math.inf,
            },
            examples=len(rows),
            predictions={"statistics": np.stack([spent, characters], axis=1)},
        )


class LabelledData(ConvertData):
    """Examples from lines TEXT, a tab, LABEL: a seeded tenth tests, a tenth validates.

    A row: label, length, ids with padding.
    """

    metric = METRICS["accuracy"]

    def __init__(self, checkpoint: Checkpoint, content: bytes, context: int, windows: int):
        config: Any = checkpoint.model.config
        labels = {str(name): int(label) for name, label in (config.label2id or {}).items()}
        labels |= {str(label): label for label in range(config.num_labels)}
        self.padding, rows = config.pad_token_id or 0, []
        for number, line in enumerate(content.decode(errors="replace").split("\n"), 1):
            text, tab, label = line.rstrip("\r").rpartition("\t")
            if line and not (tab and label in labels):
                known = ", ".join(list(labels)[:6])
                raise DataError(f"expected TEXT, a tab and a label of {known} in line {number}, got {line[-60:]!r}")
            if line:
                ids = [*checkpoint.around[0], *checkpoint.ids(text.encode()).tolist()]
                ids = [*ids[: context - len(checkpoint.around[1])], *checkpoint.around[1]]
                rows.append([labels[label], len(ids), *ids, *[self.padding] * (context - len(ids))])
        if len(rows) < LEAST_WINDOWS:
            raise DataError(f"expected at least {LEAST_WINDOWS} lines of TEXT, a tab and a label, got {len(rows)}")
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
        test, validation, self.train = torch.tensor(rows)[order].tensor_split([len(rows) // 10, len(rows) // 5])
        self.splits = {"validation": validation[:windows], "test": test[:windows]}

    def inputs(self, rows: Tensor) -> dict[str, Tensor]:
        longest = int(rows[:, 1].max())
        valid = torch.arange(longest, device=rows.device) < rows[:, 1:2]
        return {"input_ids": rows[:, 2 : 2 + longest], "attention_mask": valid.long()}

    def loss(self, model: nn.Module, rows: Tensor, draw: torch.Generator) -> Tensor:
        return nn.functional.cross_entropy(model(**self.inputs(rows)).logits.float(), rows[:, 0])

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str, batch: int) -> Evaluated:
        rows = self.splits[split].to(next(model.parameters()).device)
        logits = torch.cat([model(**self.inputs(part)).logits.float() for part in torch.split(rows, batch)])
        correct = (logits.argmax(-1) == rows[:, 0]).cpu().numpy()
        loss = float(nn.functional.cross_entropy(logits, rows[:, 0]))
        return Evaluated(
            values={"accuracy": float(correct.mean()), "loss": loss},
            examples=len(rows),
            predictions={"correct": correct.astype(np.uint8)},
        )


class OwnData(ConvertData):
    """A function of the user ranks; `data` trains, if there are any."""

    metric = METRICS["score"]

    def __init__(self, own: OwnMetric, data: ConvertData | None):
        self.own, self.data = own, data
        self.train = data.train if data else torch.empty(0, 1, dtype=torch.long)
        self.splits = data.splits if data else dict.fromkeys(("validation", "test"), self.train)

    def inputs(self, rows: Tensor) -> dict[str, Tensor]:
        return self.data.inputs(rows) if self.data else {}

    def loss(self, model: nn.Module, rows: Tensor, draw: torch.Generator) -> Tensor:
        assert self.data is not None
        return self.data.loss(model, rows, draw)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str, batch: int) -> Evaluated:
        try:
            value = self.own(model, split)
        except Exception as error:
            raise SelectionError(f"the function of --metric raises {crash_text(error)}") from error
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise DataError(f"expected a finite number of the function of --metric for {split!r}, got {value!r:.60}")
        return Evaluated(values={"score": float(value)})


def data_of(
    checkpoint: Checkpoint, content: bytes | None, own: OwnMetric | None, context: int, windows: int
) -> ConvertData:
    """The examples that the head of the checkpoint reads out of a text. Raises DataError where it reads none."""
    config: Any = checkpoint.model.config
    kind, takes = type(checkpoint.model).__name__, getattr(checkpoint.model, "main_input_name", "input_ids")
    if own is not None and content is None:
        return OwnData(own, None)
    if not checkpoint.head:
        raise DataError(
            f"{kind} takes {takes}, and a text measures causal and masked language models and classifiers alone; "
            "measure it by a function of your own, on data of your own: --metric FILE.py:NAME --steps 0"
        )
    if content is None:
        raise DataError(f"{kind} needs a text; name one with --text")
    reads = LabelledData if checkpoint.head == "classification" else TextData
    data = reads(
        checkpoint, content, min(context, getattr(config, "max_position_embeddings", None) or context), windows
    )
    return data if own is None else OwnData(own, data)


def spaced(rows: Tensor, most: int) -> Tensor:
    """The rows, or so many of them at even distances."""
    if len(rows) <= most:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, most).long()]
