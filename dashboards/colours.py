"""Colours: softmax is black, and every other variant has one colour and one shape in all figures of the project."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32

BLACK = "#000000"
"""The colour of softmax. A page on a dark ground draws it in the colour of its text."""

PALETTE = [
    "#0072b2", "#d55e00", "#009e73", "#c4569f", "#a67c00", "#7f7f7f", "#7b5fd3", "#8f6248", "#d0455b", "#5f8f1e",
    "#7d7420", "#1f8a99",
]  # fmt: skip
"""The first are near Okabe and Ito's, told apart by all common kinds of colour vision, shapes by everybody. All have a
contrast of at least 3 with the page's light ground and with its dark one, as lines and points need. Two with the same
shape, which stand seven apart, are far from each other."""

SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"]
"""Seven beside twelve colours, so that 84 variants differ in one of the two."""

IN_ORDER = (
    "scalable-softmax", "entmax15", "rela", "linear", "local", "window", "indexer", "delta", "sparsemax",
    "gate+softmax", "delta//softmax", "fox", "local-routing", "routing", "entmax", "additive", "feedforward",
    "general", "dot", "location", "softmax1", "softpick", "relu-squared", "differential", "differential-v2",
    "selective", "asentmax", "stick-breaking", "additive-lm", "longformer", "bigbird", "sparse", "sinkhorn",
    "reformer", "moba", "nsa", "topk", "linformer", "nystrom", "performer", "skyformer", "synthesizer", "cosformer",
    "gated-linear", "no-attention", "ssd", "sigmoid", "relative", "fastformer", "path",
    "retention", "hgrn2", "delta-product", "gated-delta-2", "rwkv7", "log-linear", "mla", "mamba3", "ttt",
)  # fmt: skip
"""Each name has the next colour and the next shape. A name that is not here takes those that its hash gives."""

CHANNELS = ("color", "stroke", "fill", "shape")


def appearance(variant: str) -> tuple[str, str]:
    """The colour of the mechanism, and the shape of a point: that of the mechanism too, or of its parameters.

    >>> appearance("softmax"), appearance("entmax15"), appearance("entmax15[impl=eager]")[0]
    (('#000000', 'circle'), ('#d55e00', 'square'), '#d55e00')
    """
    name, _, parameters = variant.partition("[")
    at = IN_ORDER.index(name) if name in IN_ORDER else crc32(name.encode())
    shape = at + crc32(parameters.encode())
    if name == "softmax":
        return BLACK, SHAPES[crc32(parameters.encode()) % len(SHAPES)]
    return PALETTE[at % len(PALETTE)], SHAPES[shape % len(SHAPES)]


def paint(part: dict[str, Any], variants: Iterable[str]) -> None:
    """Gives each of the variants its colour and shape in a Vega-Lite chart and all charts inside it."""
    names = list(variants)
    for channel in CHANNELS:
        encoding = part.get("encoding", {}).get(channel, {})
        if encoding.get("field") == "variant":
            looks = {name: appearance(name)[channel == "shape"] for name in names}
            if encoding.get("legend", {}) is None:
                # of channels with one domain Vega-Lite makes one legend, and none where one of them wants none
                looks[""] = BLACK
            encoding["scale"] = {"domain": list(looks), "range": list(looks.values())}
    for inner in (key for name in ("layer", "hconcat", "vconcat", "concat") for key in part.get(name, ())):
        paint(inner, names)
    if "spec" in part:
        paint(part["spec"], names)
