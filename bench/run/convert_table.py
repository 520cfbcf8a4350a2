"""The result of a conversion as text: perplexity over alpha and temperature, the gap closed, zeros, cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..core.cell import REFERENCE
from ..core.record import Record


def gap_closed(before: float, after: float, reference: float) -> float:
    """Share of the bits that a conversion lost and that fine-tuning won back; NaN where nothing was lost.

    >>> gap_closed(before=3.0, after=2.25, reference=2.0)
    0.75
    """
    return (before - after) / (before - reference) if before > reference else math.nan


def table_of(records: Sequence[Record], to: str) -> str:
    """The table that the command prints, of the Records of one conversion."""
    zero_shot = [record for record in records if record.cell.preset.name == "zero-shot"]
    tuned = [record for record in records if record.cell.preset.name == "fine-tune"]
    temperatures = list(dict.fromkeys(record.cell.preset.get("temperature", 1.0) for record in zero_shot))
    names = list(dict.fromkeys(str(record.cell.variant) for record in zero_shot))
    found = {(str(r.cell.variant), r.cell.preset.get("temperature", 1.0)): r for r in zero_shot}
    width = max(map(len, [*names, "perplexity, zero-shot"])) + 2
    lines = ["perplexity, zero-shot".ljust(width) + "".join(f"T = {each:g}".rjust(11) for each in temperatures)]
    for name in names:
        values = (value_of(found[name, each], "perplexity") for each in temperatures)
        lines.append(name.ljust(width) + "".join(f"{value:.4g}".rjust(11) for value in values))
    own = found.get((REFERENCE, 1.0))
    lost = min(
        (record for record in zero_shot if str(record.cell.variant) == to),
        key=lambda record: value_of(record, "bits_per_character", "validation"),
        default=None,
    )
    head = "", "perplexity", "bits/char", "zeros", "step time"
    lines += ["", head[0].ljust(width + 14) + "".join(title.rjust(12) for title in head[1:])]
    if own is not None:
        lines.append(_row("softmax, as it came", own, width))
    if lost is not None:
        lines.append(_row(f"{to}, zero-shot, T = {lost.cell.preset.get('temperature', 1.0):g}", lost, width))
    for record in tuned:
        steps = record.cell.preset.get("steps", 0)
        lines.append(_row(f"{record.cell.variant}, {steps} steps, seed {record.cell.seed}", record, width))
    if own is not None and lost is not None:
        for record in tuned:
            if str(record.cell.variant) == to:
                bits = (value_of(each, "bits_per_character") for each in (lost, record, own))
                lines.append(
                    f"gap closed by fine-tuning, seed {record.cell.seed}: {gap_closed(*bits):.0%} of the bits lost"
                )
    shown = next((record for record in reversed(tuned) if str(record.cell.variant) == to), lost)
    if shown is not None:
        lines += ["", "zeros by layer and head", *zeros_of(shown)]
    return "\n".join(lines)


def zeros_of(record: Record) -> list[str]:
    """A line for each layer: the share of allowed weights that are zero, by head."""
    layers: dict[int, list[float]] = {}
    for measurement in record.measurements:
        if measurement.name == "sparsity" and "head" in measurement.where:
            layers.setdefault(int(measurement.where["layer"]), []).append(measurement.value)
    return [f"layer {layer}: " + "  ".join(f"{share:.0%}" for share in heads) for layer, heads in layers.items()]


def value_of(record: Record, name: str, split: str = "test") -> float:
    found = record.first(name, split=split)
    return math.nan if found is None else found.value


def _row(title: str, record: Record, width: int) -> str:
    sparsity, step, reference = (record.first(n) for n in ("sparsity", "step_seconds", "reference_step_seconds"))
    cells = (
        f"{value_of(record, 'perplexity'):.4g}",
        f"{value_of(record, 'bits_per_character'):.4f}",
        "" if sparsity is None else f"{sparsity.value:.1%}",
        "" if step is None or reference is None else f"{step.value / reference.value:.2f} x",
    )
    return title.ljust(width + 14) + "".join(cell.rjust(12) for cell in cells)
