"""The figure of docs/huggingface.md from the Records of `attnbench convert`.

python tools/convert_figure.py RESULTS docs/huggingface.svg
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from attnbench.bench.store.store import Store
from attnbench.bench.wings.convert.convert_table import value_of
from attnbench.dashboards.colours import appearance

DASHES = ("", "7 3", "2 3", "7 3 2 3")
"""Of variants of one mechanism, which have one colour."""
LEFT, TOP, WIDTH, HEIGHT = 62, 46, 300, 200


def text(x: float, y: float, words: str, anchor: str = "middle", size: int = 11, colour: str = "#222222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{words}</text>'


def _stroke(colour: str, dash: str) -> str:
    return f'stroke="{colour}" stroke-width="2"' + (f' stroke-dasharray="{dash}"' if dash else "")


def main(results: str, out: str) -> None:
    records = list(Store(Path(results)).records())
    zero = [record for record in records if record.cell.preset.name == "zero-shot"]
    tuned = [record for record in records if record.cell.preset.name == "fine-tune"]
    names = list(dict.fromkeys(str(record.cell.variant) for record in zero))
    temperatures = sorted({float(record.cell.preset.get("temperature")) for record in zero})
    values = {(str(r.cell.variant), float(r.cell.preset.get("temperature"))): value_of(r, "perplexity") for r in zero}
    low, high = min(values.values()) * 0.98, max(values.values()) * 1.01
    across = {t: LEFT + WIDTH * at / (len(temperatures) - 1) for at, t in enumerate(temperatures)}

    def down(value: float) -> float:
        return TOP + HEIGHT * (high - value) / (high - low)

    parts = [text(LEFT + WIDTH / 2, 22, "Zero-shot perplexity by temperature", size=13)]
    for t, x in across.items():
        parts.append(text(x, TOP + HEIGHT + 18, f"{t:g}"))
    parts.append(text(LEFT + WIDTH / 2, TOP + HEIGHT + 36, "temperature (divides the scores)"))
    for half in range(math.ceil(2 * low), math.floor(2 * high) + 1):
        value = half / 2
        parts.append(f'<path d="M{LEFT} {down(value):.1f}h{WIDTH}" stroke="#dddddd"/>')
        parts.append(text(LEFT - 6, down(value) + 4, f"{value:.1f}", "end"))
    looks = [appearance(name)[0] for name in names]
    dashes = [DASHES[looks[:at].count(colour) % len(DASHES)] for at, colour in enumerate(looks)]
    for name, colour, dash in zip(names, looks, dashes, strict=True):
        points = " ".join(f"{across[t]:.1f},{down(values[name, t]):.1f}" for t in temperatures)
        parts.append(f'<polyline points="{points}" fill="none" {_stroke(colour, dash)}/>')
    for at, (name, colour, dash) in enumerate(zip(names, looks, dashes, strict=True)):
        y = TOP + 14 + 18 * at
        parts.append(f'<path d="M{LEFT + WIDTH + 14} {y - 4}h24" {_stroke(colour, dash)}/>')
        parts.append(text(LEFT + WIDTH + 44, y, name, "start"))
    shown = next(record for record in reversed(tuned) if str(record.cell.variant) != "softmax")
    zeros = {
        (int(m.where["layer"]), int(m.where["head"])): m.value
        for m in shown.measurements
        if m.name == "sparsity" and "head" in m.where
    }
    layers, heads = (1 + max(key[axis] for key in zeros) for axis in (0, 1))
    left, side = LEFT + WIDTH + 220, 42
    parts.append(text(left + heads * side / 2, 22, f"Zeros of {shown.cell.variant} after fine-tuning", size=13))
    for (layer, head), share in zeros.items():
        x, y = left + head * side, TOP + layer * side
        shade = round(255 - 175 * share)
        fill = f"rgb({shade},{round(255 - 105 * share)},255)"
        parts.append(f'<rect x="{x}" y="{y}" width="{side - 2}" height="{side - 2}" fill="{fill}"/>')
        parts.append(text(x + side / 2 - 1, y + side / 2 + 4, f"{share:.0%}"))
    for layer in range(layers):
        parts.append(text(left - 8, TOP + layer * side + side / 2 + 4, f"layer {layer}", "end"))
    for head in range(heads):
        parts.append(text(left + head * side + side / 2, TOP + layers * side + 14, str(head)))
    parts.append(text(left + heads * side / 2, TOP + layers * side + 32, "head"))
    size = f'width="{left + heads * side + 20}" height="{TOP + HEIGHT + 50}"'
    body = "\n".join(parts)
    Path(out).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
