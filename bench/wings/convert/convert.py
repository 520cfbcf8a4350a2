"""Conversion of a checkpoint: a model of another library with its attention replaced.

The model as it is predicts at several values of alpha and temperature. Then a short fine-tuning takes alpha from 1,
softmax, to that of the target. Every result is a Record of the train lane, task `convert[model=HASH]`, preset
`zero-shot[temperature=T]` or `fine-tune[...]`, and a board like any other ranks them: by bits per character of a
language model, accuracy of a classifier, or a function of the user.
"""

from __future__ import annotations

import inspect
import io
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ....tasks.data.data import place
from ....variants.contract import Mask, Variant
from ...core.cell import LANE_VERSIONS, LEAST_SEEDS, REFERENCE, Cell
from ...core.errors import DataError, SelectionError
from ...core.files import read_regular
from ...core.hashing import content_hash
from ...core.metrics import METRICS, Metric
from ...core.record import Machine, Measurement, Outcome, Provenance, Record, Started
from ...core.spec import Spec
from ...measure.machine import available_bytes, describe
from ...plan.fingerprint import variant_hash
from ...stats.format import size
from ...store.store import Store
from .convert_data import OwnMetric, data_of
from .pretrained import load_checkpoint, sha256_of, try_checkpoint

TASK = "convert"
VERSION = 1
"""The version of the measurement; raise it when its numbers change."""

Rows = list[tuple[str, ...]]
"""A table, its heading first."""

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
    path: Path, text: Path | None, setting: ConvertSetting, store: Store, device: torch.device,
    say: Callable[[str], None], own: OwnMetric | None = None,
) -> list[Record]:  # fmt: skip
    """Converts the checkpoint, and keeps every Record the moment it is known.

    `text`: lines TEXT, a tab, LABEL for a classifier; `own` ranks instead, and needs no text where nothing is tuned.
    Raises DataError for a checkpoint or a text that cannot be read, SelectionError for an unknown variant, Unsupported
    where the variant cannot stand in for the attention of this model.
    """
    return list(_Converter(path, text, setting, store, device, say, own).records())


class _Converter:
    def __init__(
        self, path: Path, text: Path | None, setting: ConvertSetting, store: Store, device: torch.device,
        say: Callable[[str], None], own: OwnMetric | None,
    ):  # fmt: skip
        if setting.alphas < 2 or not setting.temperatures or not all(0 < t < math.inf for t in setting.temperatures):
            raise SelectionError("expected at least 2 alphas, and temperatures above 0")
        content = None
        if text is not None:
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
        self.data = data_of(self.checkpoint, content, own, setting.context, setting.windows)
        if setting.steps and not len(self.data.train):
            raise DataError("fine-tuning needs a text; name one with --text, or measure alone with --steps 0")
        self._require_memory()
        self.machine: Machine = describe(device)
        code = inspect.getsourcefile(own) if own is not None else None
        files = [file for file in (text, Path(code) if code else None) if file is not None]
        self.provenance = Provenance(
            source=f"{files[-1].name if files else 'a function'}, read by a checkpoint",
            fidelity="official",
            files={file.name: sha256_of(file) for file in files} | self.checkpoint.files,
            counts={"train": len(self.data.train)} | {name: len(rows) for name, rows in self.data.splits.items()},
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
                begun = Started()
                self._attend(name, temperature)
                record = self._record(name, preset, 0, begun, self._measured())
                yield record
                found = record.first(self.data.metric.name, split="validation")
                cost = math.inf if found is None else -self.data.metric.sign * found.value
                if name == setting.to and cost < best[0]:
                    best = (cost, temperature)
        if not setting.steps:
            return
        temperature = best[1]
        preset = Spec.of("fine-tune", steps=setting.steps, temperature=temperature)
        for seed in range(setting.seeds):
            for name in dict.fromkeys((REFERENCE, setting.to)):
                begun = Started()
                # softmax at the temperature of its own training, the target at the best one
                seconds = self._fine_tune(name, 1.0 if name == REFERENCE else temperature, seed)
                more = [
                    Measurement.of("steps", setting.steps), Measurement.of("train_seconds", seconds),
                    *(self._cost(name, temperature) if name != REFERENCE else ()),
                ]  # fmt: skip
                yield self._record(name, preset, seed, begun, [*self._measured(), *more])
        self.model.load_state_dict(self.first, strict=False)

    def _require_memory(self) -> None:
        """Raises SelectionError where not even the scores and weights have room, in which zeros are counted."""
        rows, tokens = self.data.splits["validation"].shape
        heads = getattr(self.model.config, "num_attention_heads", None) or 0
        need, free = 10 * min(rows, ZERO_WINDOWS) * heads * tokens**2, available_bytes()
        if self.device.type == "cpu" and need > free:
            raise SelectionError(
                f"expected {size(need)} of memory for {tokens:,} tokens, got {size(free)}; set a smaller --context"
            )

    def _attend(self, name: str, temperature: float) -> None:
        from ....variants.integrations.transformers import attach, register

        if not self.checkpoint.head:
            # attach runs two tokens, which such a model may not take
            cast(Any, self.model).set_attn_implementation(register(name, temperature=temperature))
            return
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
            train = self.data.train
            self._step(train[torch.randint(len(train), (setting.batch,), generator=draw)], draw)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            seconds += time.perf_counter() - begun
            if step % 10 == 9:
                self.say(f"{name}, seed {seed}: step {step + 1} of {setting.steps}")
        self._attend(name, temperature)
        self.model.eval()
        return seconds

    def _step(self, rows: Tensor, draw: torch.Generator) -> None:
        self.model.train()
        torch.autograd.backward(self.data.loss(self.model, rows.to(self.device), draw))
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def _cost(self, name: str, temperature: float) -> list[Measurement]:
        """A training step, interleaved with one of softmax; raw samples of both."""
        batch, draw = self.data.train[: self.setting.batch], torch.Generator().manual_seed(0)
        seconds: dict[str, list[float]] = {REFERENCE: [], name: []}
        for number in range(COST_ROUNDS + 1):
            for each in (REFERENCE, name) if number % 2 else (name, REFERENCE):
                self._attend(each, 1.0 if each == REFERENCE else temperature)
                begun = time.perf_counter()
                self._step(batch, draw)
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
        """Both splits, and zeros by layer and head on the validation split."""
        self.model.eval()
        self.evaluated = {name: self.data.evaluate(self.model, name, self.setting.batch) for name in self.data.splits}
        found = [each for name, result in self.evaluated.items() for each in result.measurements(name)]
        zeros = self._zeros(self.data.splits["validation"][:ZERO_WINDOWS])
        if zeros.size:
            found.append(Measurement.of("sparsity", float(zeros.mean())))
            found += [
                Measurement.of("sparsity", float(share), layer=layer, head=head)
                for (layer, head), share in np.ndenumerate(zeros)
            ]
        return found

    @torch.no_grad()
    def _zeros(self, rows: Tensor) -> np.ndarray[Any, Any]:
        """Share of the allowed weights that are exactly zero, (layers, heads); empty where weights mean nothing."""
        from ....variants.integrations.transformers import observe

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

        if len(rows):
            with observe(count):
                self.model(**self.data.inputs(rows.to(self.device)))
        return np.stack([found[layer] for layer in sorted(found)]) if found else np.empty((0, 0))

    def _record(self, name: str, preset: Spec, seed: int, begun: Started, measured: list[Measurement]) -> Record:
        task = Spec.of(TASK, model=self.checkpoint.name)
        cell = Cell(variant=Spec.parse(name), task=task, preset=preset, seed=seed)
        artifacts = {}
        if predictions := self.evaluated["test"].predictions:
            np.savez_compressed(file := io.BytesIO(), **cast(Any, predictions))
            artifacts["predictions"] = self.store.put_artifact(file.getvalue(), ".npz")
        data = content_hash([self.provenance.source, self.provenance.fidelity, self.provenance.files], 10)
        record = Record.of(
            cell,
            Outcome.OK,
            "",
            begun,
            measurements=tuple(measured),
            machine=self.machine,
            data=self.provenance,
            digest=f"lane{LANE_VERSIONS['train']}.task{VERSION}-{data}-{variant_hash(cell, self.device.type)}",
            metric=self.data.metric,
            setting={**asdict(self.setting), "temperatures": list(self.setting.temperatures)},
            implementation="transformers",
            artifacts=artifacts,
        )
        self.store.append(record)
        found = self.evaluated["test"].values[self.data.metric.name]
        self.say(f"{name}, {preset}, seed {seed}: {found:.4f} {self.data.metric.title}")
        return record


def default_text(data_dir: Path | None, notice: Callable[[str], None]) -> Path:
    """The text of tinyshakespeare, if it is at hand; raises DataError otherwise."""
    root = place(data_dir, offline=True, notice=notice).root
    found = next((file for file in sorted(root.rglob("tinyshakespeare.txt")) if file.is_file()), None)
    if found is None:
        raise DataError(f"no text: tinyshakespeare.txt is not in {root}; --text FILE names another")
    return found


def gap_closed(before: float, after: float, reference: float, margin: float = 0.0) -> float:
    """Share of what a conversion lost, of costs, and that fine-tuning won back; NaN where no more than a margin was.

    >>> gap_closed(before=3.0, after=2.25, reference=2.0)
    0.75
    """
    return (before - after) / (before - reference) if before > reference + margin else math.nan


def tables_of(records: Sequence[Record], to: str) -> list[Rows]:
    """Tables of the Records of one conversion, each with its heading first: temperatures, costs, gap closed, zeros."""
    metric = _metric(records)
    # readers know the perplexity of a model; boards rank by what compares tokenizers
    shown = "perplexity" if metric.name == "bits_per_character" else metric.name
    zero_shot = [record for record in records if record.cell.preset.name == "zero-shot"]
    tuned = [record for record in records if record.cell.preset.name == "fine-tune"]
    temperatures = list(dict.fromkeys(record.cell.preset.get("temperature", 1.0) for record in zero_shot))
    names = list(dict.fromkeys(str(record.cell.variant) for record in zero_shot))
    found = {(str(r.cell.variant), r.cell.preset.get("temperature", 1.0)): r for r in zero_shot}
    values_of: Rows = [(f"{shown}, zero-shot", *(f"T = {each:g}" for each in temperatures))]
    for name in names:
        values = (value_of(found[name, each], shown) for each in temperatures)
        values_of.append((name, *(f"{value:.4g}" for value in values)))
    own = found.get((REFERENCE, 1.0))
    lost = min(
        (record for record in zero_shot if str(record.cell.variant) == to),
        key=lambda record: -metric.sign * value_of(record, metric.name, "validation"),
        default=None,
    )
    names_shown = dict.fromkeys((shown, metric.name))
    costs: Rows = [("", *(name.replace("_", " ") for name in names_shown), "zeros", "step time")]
    if own is not None:
        costs.append(_row("softmax, as it came", own, names_shown))
    if lost is not None:
        costs.append(_row(f"{to}, zero-shot, T = {lost.cell.preset.get('temperature', 1.0):g}", lost, names_shown))
    gaps: Rows = [("gap closed by fine-tuning", f"of the {metric.name.split('_')[0]} lost")]
    for record in tuned:
        steps = record.cell.preset.get("steps", 0)
        costs.append(_row(f"{record.cell.variant}, {steps} steps, seed {record.cell.seed}", record, names_shown))
        if own is not None and lost is not None and str(record.cell.variant) == to:
            margin = metric.margin / metric.points
            before, after, reference = (-metric.sign * value_of(each, metric.name) for each in (lost, record, own))
            share = gap_closed(before, after, reference, margin)
            words = f"no more than {margin:g} was lost zero-shot" if math.isnan(share) else f"{share:.0%}"
            gaps.append((f"seed {record.cell.seed}", words))
    last = next((record for record in reversed(tuned) if str(record.cell.variant) == to), lost)
    zeros = zeros_of(last) if last is not None else {}
    shares: Rows = [(f"layer {layer}", *(f"{share:.0%}" for share in heads)) for layer, heads in zeros.items()]
    tables = [values_of, costs, gaps, [("zeros by layer and head",), *shares]]
    return [table for table in tables if len(table) > 1]


def sentence_of(records: Sequence[Record], to: str) -> str:
    """The advice whether to convert: the target against softmax, seed by seed, after equal fine-tuning or as they came.

    Within the margin of the metric at each of three seeds is yes, beyond it at each is no.
    """
    metric = _metric(records)
    tuned = {(str(r.cell.variant), r.cell.seed): r for r in records if r.cell.preset.name == "fine-tune"}
    pairs = [(found, tuned[REFERENCE, seed]) for (name, seed), found in tuned.items()
             if name == to and (REFERENCE, seed) in tuned]  # fmt: skip
    if not pairs:
        return f"Convert to {to}: undecided: nothing was fine-tuned (`--steps 100 --seeds 3`)."
    gaps = [value_of(one, metric.name) - value_of(other, metric.name) for one, other in pairs]
    margin, losses = metric.margin / metric.points, [-metric.sign * gap for gap in gaps]
    said = f"{min(gaps):+.4f} to {max(gaps):+.4f}" if len(gaps) > 1 else f"{gaps[0]:+.4f}"
    facts = (
        f"{said} {metric.name.replace('_', ' ')} against softmax, fine-tuned alike, "
        f"over {len(gaps)} seed{'s' if gaps[1:] else ''}"
    )
    if len(gaps) < LEAST_SEEDS:
        return f"Convert to {to}: undecided: {facts}; `--seeds {LEAST_SEEDS}` decides."
    if max(losses) <= margin:
        return f"Convert to {to}: yes: {facts}, within {margin:g}."
    if min(losses) > margin:
        return f"Convert to {to}: no: {facts}, beyond {margin:g}."
    return f"Convert to {to}: undecided: {facts}, on both sides of {margin:g}; more seeds or a longer text may tell."


def zeros_of(record: Record) -> dict[int, list[float]]:
    """The share of allowed weights that are zero: a list over heads for each layer."""
    layers: dict[int, list[float]] = {}
    for measurement in record.measurements:
        if measurement.name == "sparsity" and "head" in measurement.where:
            layers.setdefault(int(measurement.where["layer"]), []).append(measurement.value)
    return layers


def value_of(record: Record, name: str, split: str = "test") -> float:
    found = record.first(name, split=split)
    return math.nan if found is None else found.value


def _metric(records: Sequence[Record]) -> Metric:
    return next((record.metric for record in records if record.metric), METRICS["bits_per_character"])


def _row(title: str, record: Record, names: Iterable[str]) -> tuple[str, ...]:
    sparsity, step, reference = (record.first(n) for n in ("sparsity", "step_seconds", "reference_step_seconds"))
    return (
        title,
        *(f"{value_of(record, name):.{4}{'g' if name == 'perplexity' else 'f'}}" for name in names),
        "" if sparsity is None else f"{sparsity.value:.1%}",
        "" if step is None or reference is None else f"{step.value / reference.value:.2f} x",
    )
