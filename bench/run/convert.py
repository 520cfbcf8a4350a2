"""Conversion of a checkpoint: a causal language model of another library with its attention replaced.

Perplexity with the weights as they are over alpha and temperature, then after a short fine-tuning in which alpha goes
from 1, softmax, to that of the target. Every result is a Record of the train lane, task `convert[model=HASH]`, preset
`zero-shot[temperature=T]` or `fine-tune[...]`, and a board like any other ranks them by bits per character.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...tasks.data.data import place
from ...variants.contract import Mask, Variant
from ..core.cell import REFERENCE, Cell
from ..core.errors import DataError, SelectionError
from ..core.files import read_regular
from ..core.hashing import content_hash
from ..core.metrics import METRICS
from ..core.protocol import LANE_VERSIONS
from ..core.record import Begun, Machine, Measurement, Outcome, Provenance, Record
from ..core.spec import Spec
from ..measure.machine import describe
from ..plan.fingerprint import variant_hash
from ..store.store import Store
from .pretrained import load_checkpoint, sha256_of, try_checkpoint

TASK = "convert"
VERSION = 1
"""Of what is measured here; raise it when its numbers change."""

MOST_TEXT = 2**28
ZERO_WINDOWS = 4
"""Windows in which zeros are counted."""

COST_ROUNDS = 5
ANNEALED = 0.5
"""Share of the steps in which alpha rises to that of the target."""

LEVELS = 10
"""Alphas on the way, softmax included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertSetting:
    """`context`: tokens of a window; `windows`: at most so many of each split are evaluated, evenly spaced.

    `alphas`: how many from 1 to that of the target are tried as they are. `steps`: of fine-tuning, 0 for none; softmax
    is trained for as many, as a control, from the same weights on the same batches.
    """

    to: str = "entmax15"
    alphas: int = 5
    temperatures: tuple[float, ...] = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
    steps: int = 100
    seeds: int = 1
    learning_rate: float = 3e-4
    batch: int = 8
    context: int = 256
    windows: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Bits, characters and predicted tokens of each window, float64 (windows,)."""

    bits: np.ndarray[Any, Any]
    characters: np.ndarray[Any, Any]
    tokens: np.ndarray[Any, Any]

    @property
    def bits_per_character(self) -> float:
        return float(self.bits.sum() / self.characters.sum())

    @property
    def perplexity(self) -> float:
        bits = float(self.bits.sum() / self.tokens.sum())
        return 2.0**bits if bits < 1024 else math.inf


def alpha_of(selection: str) -> float | None:
    """alpha of a variant of the entmax family, 1 of softmax; None of any other."""
    spec = Spec.parse(selection)
    named = {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0}
    if spec.name == "entmax":
        alpha = dict(spec.parameters).get("alpha", 1.5)
        return float(alpha) if isinstance(alpha, int | float) else None
    return named.get(spec.name)


def with_alpha(alpha: float, target: str) -> str:
    """The variant of that alpha on the way to `target`: softmax at 1, the target itself at its own."""
    if alpha <= 1.0 + 1e-9:
        return REFERENCE
    return target if math.isclose(alpha, alpha_of(target) or 0.0) else f"entmax[alpha={alpha:.4g}]"


def convert(
    path: Path, text: Path, setting: ConvertSetting, store: Store, device: torch.device, say: Callable[[str], None]
) -> list[Record]:
    """Converts the checkpoint, and keeps every Record the moment it is known.

    Raises DataError for a checkpoint or a text that cannot be read, SelectionError for an unknown variant, Unsupported
    where the variant cannot stand in for the attention of this model.
    """
    return list(_Converter(path, text, setting, store, device, say).records())


class _Converter:
    def __init__(
        self, path: Path, text: Path, setting: ConvertSetting, store: Store, device: torch.device,
        say: Callable[[str], None],
    ):  # fmt: skip
        if setting.alphas < 2 or not setting.temperatures or not all(0 < t < math.inf for t in setting.temperatures):
            raise SelectionError("expected at least 2 alphas, and temperatures above 0")
        try:
            content = read_regular(text, MOST_TEXT)
        except OSError as error:
            raise DataError(f"cannot read {text}: {error.strerror or error}; name a text with --text") from error
        if not content:
            raise DataError(f"expected a text of 1 byte to 256 MiB in {text}, got 0 bytes")
        try_checkpoint(path)
        self.checkpoint = load_checkpoint(path)
        self.model = self.checkpoint.model.to(device)
        self.first = {name: x.detach().clone() for name, x in self.model.state_dict().items()}
        self.setting, self.store, self.device, self.say = setting, store, device, say
        config: Any = self.model.config
        longest = getattr(config, "max_position_embeddings", None) or setting.context
        self.context = min(setting.context, longest)
        ids = self.checkpoint.ids(content)
        windows = ids[: len(ids) // self.context * self.context].view(-1, self.context)
        if len(windows) < 20:
            raise DataError(f"expected a text of at least {20 * self.context} tokens, got {len(ids)}")
        # the first nine tenths train; neighbouring parts of the rest validate and test
        first, second = int(len(windows) * 0.9), int(len(windows) * 0.95)
        self.train = windows[:first]
        self.splits = {
            "validation": _spaced(windows[first:second], setting.windows),
            "test": _spaced(windows[second:], setting.windows),
        }
        self.machine: Machine = describe(device)
        self.data = Provenance(
            source=f"{text.name}, read by a checkpoint",
            fidelity="official",
            files={text.name: sha256_of(text), **self.checkpoint.files},
            counts={"train": len(self.train)} | {name: len(split) for name, split in self.splits.items()},
        )

    def records(self) -> Iterator[Record]:
        setting = self.setting
        target_alpha = alpha_of(setting.to)
        chosen = [1.0] if target_alpha is None else np.linspace(1.0, target_alpha, setting.alphas).tolist()
        names = [with_alpha(alpha, setting.to) for alpha in chosen]
        names += [setting.to] if setting.to not in names else []
        best: tuple[float, float] = (math.inf, 1.0)
        for temperature in setting.temperatures:
            preset = Spec.of("zero-shot", temperature=temperature)
            for name in names:
                begun = Begun.now()
                self._attend(name, temperature)
                record = self._record(name, preset, 0, begun, self._measured())
                yield record
                found = record.first("bits_per_character", split="validation")
                if name == setting.to and found is not None and found.value < best[0]:
                    best = (found.value, temperature)
        if not setting.steps:
            return
        temperature = best[1]
        preset = Spec.of("fine-tune", steps=setting.steps, temperature=temperature)
        for seed in range(setting.seeds):
            for name in dict.fromkeys((REFERENCE, setting.to)):
                begun = Begun.now()
                # softmax at the temperature of its own training, the target at the best one
                seconds = self._fine_tune(name, 1.0 if name == REFERENCE else temperature, seed)
                more = [
                    Measurement.of("steps", setting.steps), Measurement.of("train_seconds", seconds),
                    *(self._cost(name, temperature) if name != REFERENCE else ()),
                ]  # fmt: skip
                yield self._record(name, preset, seed, begun, [*self._measured(), *more])
        self.model.load_state_dict(self.first, strict=False)

    def _attend(self, name: str, temperature: float) -> None:
        from ...variants.integrations.transformers import attach

        with torch.random.fork_rng(devices=[]):
            # what the variant draws is alike at every start
            torch.manual_seed(0)
            attach(self.model, name, temperature=temperature)
        self.model.to(self.device)

    def _fine_tune(self, name: str, temperature: float, seed: int) -> float:
        """Trains from the first weights; returns the seconds of the loop."""
        setting, alpha = self.setting, alpha_of(name)
        self.model.load_state_dict(self.first, strict=False)
        self._attend(name, temperature)
        optimiser = torch.optim.AdamW(self.model.parameters(), lr=setting.learning_rate, weight_decay=0.0)
        draw = torch.Generator().manual_seed(seed)
        rising, level, seconds = max(1, round(ANNEALED * setting.steps)), -1, 0.0
        for step in range(setting.steps):
            now = min(LEVELS, LEVELS * step // rising)
            if alpha is not None and name != REFERENCE and now != level:
                level = now
                share = now / LEVELS
                # the temperature goes along, from that of softmax to that of the target
                self._attend(with_alpha(1.0 + share * (alpha - 1.0), name), temperature**share)
            begun = time.perf_counter()
            rate = min(1.0, (step + 1) / max(1, setting.steps // 10)) * (1.0 - step / setting.steps)
            for group in optimiser.param_groups:
                group["lr"] = setting.learning_rate * rate
            self._step(self.train[torch.randint(len(self.train), (setting.batch,), generator=draw)])
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            seconds += time.perf_counter() - begun
            if step % 10 == 9:
                self.say(f"{name}, seed {seed}: step {step + 1} of {setting.steps}")
        self._attend(name, temperature)
        self.model.eval()
        return seconds

    def _step(self, ids: Tensor) -> None:
        self.model.train()
        nats, count = self._nats(ids.to(self.device))
        torch.autograd.backward(nats.sum() / count)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def _nats(self, ids: Tensor) -> tuple[Tensor, int]:
        """The cost of each token but the first, (batch, length - 1), and their number."""
        logits = self.model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        nats = nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        return nats, nats.numel()

    def _cost(self, name: str, temperature: float) -> list[Measurement]:
        """A training step, interleaved with one of softmax; raw samples of both."""
        batch = self.train[: self.setting.batch]
        seconds: dict[str, list[float]] = {REFERENCE: [], name: []}
        for number in range(COST_ROUNDS + 1):
            for each in (REFERENCE, name) if number % 2 else (name, REFERENCE):
                self._attend(each, 1.0 if each == REFERENCE else temperature)
                begun = time.perf_counter()
                self._step(batch)
                self.model.zero_grad(set_to_none=True)
                if number:
                    seconds[each].append(time.perf_counter() - begun)
        self._attend(name, temperature)
        self.model.eval()
        return [
            Measurement.of("step_seconds", float(np.median(seconds[name])), tuple(seconds[name])),
            Measurement.of("reference_step_seconds", float(np.median(seconds[REFERENCE])), tuple(seconds[REFERENCE])),
        ]

    def _measured(self) -> list[Measurement]:
        """Cost of predicting both splits, and zeros by layer and head on the validation split."""
        found = []
        self.evaluated = {name: self._evaluate(split) for name, split in self.splits.items()}
        for name, result in self.evaluated.items():
            of: dict[str, Any] = {"split": name, "examples": len(result.bits)}
            found.append(Measurement.of("bits_per_character", result.bits_per_character, **of))
            found.append(Measurement.of("perplexity", result.perplexity, **of, token="of the checkpoint"))
        zeros = self._zeros(self.splits["validation"][:ZERO_WINDOWS])
        if zeros.size:
            found.append(Measurement.of("sparsity", float(zeros.mean())))
            found += [
                Measurement.of("sparsity", float(share), layer=layer, head=head)
                for (layer, head), share in np.ndenumerate(zeros)
            ]
        return found

    @torch.no_grad()
    def _evaluate(self, windows: Tensor) -> Evaluated:
        self.model.eval()
        bits = []
        for first in range(0, len(windows), self.setting.batch):
            ids = windows[first : first + self.setting.batch]
            nats, _ = self._nats(ids.to(self.device))
            bits.append(nats.sum(1, dtype=torch.float64).cpu() / math.log(2))
        characters = [self.checkpoint.characters(ids[1:]) for ids in windows]
        return Evaluated(
            bits=torch.cat(bits).numpy(),
            characters=np.array(characters, dtype=np.float64),
            tokens=np.full(len(windows), windows.shape[1] - 1.0),
        )

    @torch.no_grad()
    def _zeros(self, windows: Tensor) -> np.ndarray[Any, Any]:
        """Share of the allowed weights that are exactly zero, (layers, heads); empty where weights mean nothing."""
        from ...variants.integrations.transformers import observe

        found: dict[int, np.ndarray[Any, Any]] = {}

        def count(
            module: nn.Module, variant: Variant, query: Tensor, key: Tensor, mask: Mask, hidden: Tensor | None
        ) -> None:
            weights = variant.weights_with(query, key, mask, None, hidden)
            if weights is not None:
                allowed = mask.allowed(query.shape[2], key.shape[2], query.device)
                seen = torch.ones_like(weights, dtype=torch.bool) if allowed is None else allowed.expand_as(weights)
                zero = ((weights == 0) & seen).sum((0, 2, 3)).double() / seen.sum((0, 2, 3)).clamp(min=1)
                found[variant.shape.layer] = zero.cpu().numpy()

        self.model.eval()
        with observe(count):
            self.model(input_ids=windows.to(self.device), use_cache=False)
        return np.stack([found[layer] for layer in sorted(found)]) if found else np.empty((0, 0))

    def _record(self, name: str, preset: Spec, seed: int, begun: Begun, measured: list[Measurement]) -> Record:
        task = Spec.of(TASK, model=self.checkpoint.name)
        cell = Cell(variant=Spec.parse(name), task=task, preset=preset, seed=seed)
        statistics = np.stack([self.evaluated["test"].bits, self.evaluated["test"].characters], axis=1)
        file = io.BytesIO()
        np.savez_compressed(file, statistics=statistics)
        data = content_hash([self.data.source, self.data.fidelity, self.data.files], 10)
        record = Record.of(
            cell,
            Outcome.OK,
            "",
            begun,
            measurements=tuple(measured),
            machine=self.machine,
            data=self.data,
            digest=f"lane{LANE_VERSIONS['train']}.task{VERSION}-{data}-{variant_hash(cell, self.device.type)}",
            metric=METRICS["bits_per_character"],
            setting={**asdict(self.setting), "temperatures": list(self.setting.temperatures)},
            implementation="transformers",
            artifacts={"predictions": self.store.put_artifact(file.getvalue(), ".npz")},
        )
        self.store.append(record)
        self.say(f"{name}, {preset}, seed {seed}: {record.measurements[2].value:.4f} bits per character")
        return record


def default_text(data_dir: Path | None, notice: Callable[[str], None]) -> Path:
    """The text of tinyshakespeare, if it is at hand; raises DataError otherwise."""
    root = place(data_dir, offline=True, notice=notice).root
    found = next((file for file in sorted(root.rglob("tinyshakespeare.txt")) if file.is_file()), None)
    if found is None:
        raise DataError(f"no text: tinyshakespeare.txt is not in {root}; --text FILE names another")
    return found


def _spaced(windows: Tensor, most: int) -> Tensor:
    """At most so many windows, evenly spaced."""
    if len(windows) <= most:
        return windows
    return windows[torch.linspace(0, len(windows) - 1, most).long()]
