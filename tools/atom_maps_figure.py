"""The figure of docs/atom-maps.md: weights of the mapping head of one reaction, by four attentions.

python tools/atom_maps_figure.py FOLDER docs/figures/atom-maps.svg        # FOLDER as for examples/atom_maps.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import atom_maps
import numpy as np

from attnbench.variants.integrations.transformers import attach

SHOWN = (("softmax", 1.0), ("entmax15", 1.0), ("entmax15", 2.0), ("sparsemax", 1.0))
REACTION, SIDE, LEFT, TOP = "paracetamol", 15, 30, 78
DARK = "<style>@media (prefers-color-scheme: dark) { text { fill: #dddddd } .ground { fill: #1e2129 } }</style>"


def text(x: float, y: float, words: str, size: int = 12, anchor: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}">{words}</text>'


def main(folder: str, out: str) -> None:
    model, ids = atom_maps.load(Path(folder))
    reaction = atom_maps.Reaction(atom_maps.REACTIONS[REACTION])
    atoms, product = np.array(reaction.atoms), reaction.is_product
    names = [reaction.tokens[at] for at in atoms]
    before, after = ([name for name, is_after in zip(names, product, strict=True) if is_after is side]
                     for side in (np.False_, np.True_))  # fmt: skip
    expected, _ = atom_maps.atom_map(reaction, atom_maps.weights_of(model, ids, reaction))
    parts, width = [], len(before) * SIDE + 44
    for at, (variant, temperature) in enumerate(SHOWN):
        attach(model, variant, temperature=temperature)
        weights = atom_maps.weights_of(model, ids, reaction)
        found, confidence = atom_maps.atom_map(reaction, weights)
        right = sum(a == b for a, b in zip(found, expected, strict=True))
        left = LEFT + at * width
        middle = left + len(before) * SIDE / 2
        parts.append(text(middle, 24, f"{variant}, temperature {temperature:g}", 13))
        parts.append(text(middle, 42, f"{right} of {len(found)} atoms, confidence {confidence:.0%}", 11))
        for row, values in enumerate(weights[np.ix_(atoms[product], atoms[~product])]):
            parts.append(text(left - 9, TOP + row * SIDE + 11, after[row], 10))
            for column, value in enumerate(values):
                place = f'x="{left + column * SIDE}" y="{TOP + row * SIDE}" width="{SIDE - 1}" height="{SIDE - 1}"'
                fill = f'fill="#3b6fb6" fill-opacity="{value:.2f}"' if value else 'fill="none"'
                line = "#c98a1b" if found[row] == column else "#88888855"
                parts.append(f'<rect {place} {fill} stroke="{line}"/>')
        parts += [text(left + (column + 0.5) * SIDE, TOP - 6, name, 10) for column, name in enumerate(before)]
    size = f"{LEFT + len(SHOWN) * width} {TOP + len(after) * SIDE + 40}"
    parts.append(text(LEFT, TOP + len(after) * SIDE + 26,
                      "Rows: atoms of paracetamol. Columns: atoms it is made of. Blue: weight; framed: the atom map.",
                      12, "start"))  # fmt: skip
    title = "<title>Weights of the mapping head between product and reactant atoms, by four attentions</title>"
    ground = '<rect class="ground" width="100%" height="100%" fill="white"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif">'
    Path(out).write_text("\n".join([head, title, DARK, ground, *parts, "</svg>", ""]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
