"""Tables of a conversion: its metric over alpha and temperature, cost, the gap closed, zeros."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ...core.cell import REFERENCE
from ...core.metrics import METRICS, Metric
from ...core.protocol import LEAST_SEEDS
from ...core.record import Record

Rows = list[tuple[str, ...]]


def gap_closed(before: float, after: float, reference: float) -> float:
    """Share of what a conversion lost, of costs, and that fine-tuning won back; NaN where nothing was lost.

    >>> gap_closed(before=3.0, after=2.25, reference=2.0)
    0.75
    """
    return (before - after) / (before - reference) if before > reference else math.nan


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
            share = gap_closed(*(-metric.sign * value_of(each, metric.name) for each in (lost, record, own)))
            gaps.append(
                (f"seed {record.cell.seed}", "nothing was lost zero-shot" if math.isnan(share) else f"{share:.0%}")
            )
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
