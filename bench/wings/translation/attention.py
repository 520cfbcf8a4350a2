"""Statistics of every attention of a translation model, from its weights on one sentence pair at a time.

One pair at a time, so that nothing is padded and every row counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ....tasks.translation.problem import AlignedIds
from ....variants.contract import Mask
from ...core.record import Measurement
from ...measure.attention.heads import head_diversity
from ...measure.attention.recorder import Call, recording
from ...measure.attention.statistics import BLOCKS, AttentionSums, count_rows
from .alignment import LayerErrors, alignment_error_rate, diagonal, layer_errors
from .model import Transformer

SUMMARISED = ("sparsity", "null_rate", "block_sparsity", "entropy", "head_diversity")
"""Metrics that are also reported as the mean over layers, for the model and for each kind of attention in it."""

OFFSETS = (-2, -1, 0, 1, 2)
LONGEST = 1_024
"""The longest side of a pair that is measured: its weights are N × N."""

Weights = npt.NDArray[np.float64]


@torch.inference_mode()
def attention_weights(
    model: Transformer, source: Sequence[int], target: Sequence[int], device: torch.device
) -> dict[str, Weights]:
    """Weights (layers, heads, rows, keys) by kind of attention, with the target forced; kinds without any are left out.

    Rows of the decoder and of cross attention are the steps that put out the tokens of `target`.
    """
    found: dict[str, list[Tensor]] = {}
    places = [(kind, variant) for kind, variants in model.kinds().items() for variant in variants]

    def record(index: int, call: Call) -> None:
        weights = call.weights()
        if weights is not None:
            found.setdefault(places[index][0], []).append(weights)

    model.eval()
    with recording([variant for _, variant in places], record):
        ids = [torch.tensor([list(map(int, side))], device=device) for side in (source, target)]
        model(ids[0], torch.tensor([len(source)], device=device), ids[1])
    layers = model.recipe.layers
    return {kind: torch.cat(each).double().cpu().numpy() for kind, each in found.items() if len(each) == layers}


def offset_weights(weights: Weights, offsets: Sequence[int]) -> tuple[Weights, npt.NDArray[np.int64]]:
    """Weight that each head puts at each offset from the row's own place, summed over the rows where that is a key.

    Returns sums (heads, offsets) and rows (offsets,). A head whose mean at one offset is near 1 is positional (Voita et
    al. 2019; Correia et al. 2019, section 5.3).
    """
    heads, rows, keys = weights.shape
    sums = np.zeros((heads, len(offsets)))
    counted = np.zeros(len(offsets), dtype=np.int64)
    for at, offset in enumerate(offsets):
        # Rows at the edges have no key at that offset, and do not count.
        first, last = max(0, -offset), min(rows, keys - offset)
        places = np.arange(first, max(first, last))
        sums[:, at] = weights[:, places, places + offset].sum(-1)
        counted[at] = len(places)
    return sums, counted


@dataclass(slots=True)
class LayerSums:
    """Sums over sentences of one layer of one kind of attention."""

    sums: AttentionSums
    divergence: float = 0.0
    divergence_rows: int = 0
    offsets: Weights = field(default_factory=lambda: np.zeros((1, len(OFFSETS))))
    offset_rows: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(OFFSETS), dtype=np.int64))

    def add(self, weights: Weights, causal: bool) -> None:
        """weights: (heads, rows, keys)."""
        rows = weights.shape[1]
        count_rows(self.sums, torch.from_numpy(weights)[None], Mask(causal=causal), rows, slice(0, rows))
        diversity = head_diversity(weights)
        self.divergence += diversity.total
        self.divergence_rows += diversity.rows
        sums, counted = offset_weights(weights, OFFSETS)
        self.offsets = self.offsets + sums
        self.offset_rows = self.offset_rows + counted

    def measurements(self, **where: Any) -> Iterator[Measurement]:
        """Each figure of the layer: the mean over its heads, and each head's."""
        sums = self.sums
        quotients: list[tuple[str, Tensor, Tensor, dict[str, Any]]] = [
            ("sparsity", sums.zeros, sums.entries, {}),
            ("null_rate", sums.null, sums.rows, {}),
            ("entropy", sums.entropy, sums.entropy_rows, {}),
            *(("block_sparsity", sums.empty_tiles[b], sums.tiles[b], {"block": b}) for b in BLOCKS[:1]),
        ]
        if where["attention"] != "cross":
            quotients.append(("attention_distance", sums.distance, sums.distance_rows, {}))
        for name, above, below, extra in quotients:
            by_head = [float(a / b) for a, b in zip(above, below, strict=True) if b > 0]
            if by_head:
                yield Measurement.of(name, float(np.mean(by_head)), tuple(by_head), **where, **extra)
        if self.divergence_rows:
            share = self.divergence_rows / float(sums.rows[0])
            yield Measurement.of("head_diversity", self.divergence / self.divergence_rows, **where, rows=share)
        if where["attention"] != "cross":
            means = self.offsets / np.maximum(self.offset_rows, 1)
            best = means.argmax(1)
            confidence = means.max(1)
            yield Measurement.of(
                "positional_attention",
                float(confidence.max()),
                tuple(map(float, confidence)),
                **where,
                offsets=[OFFSETS[at] for at in best],
            )


def attention_measurements(
    model: Transformer, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device
) -> list[Measurement]:
    """Statistics of each kind of attention on these pairs of ids, over its layers and in each; samples are the heads.

    The kinds in which the variant under test is used come first, together.
    """
    sums: dict[tuple[str, int], LayerSums] = {}
    for source, target in pairs:
        if max(len(source), len(target)) > LONGEST:
            continue
        for kind, weights in attention_weights(model, source, target, device).items():
            for layer, each in enumerate(weights):
                place = sums.setdefault((kind, layer), LayerSums(AttentionSums(model.recipe.heads)))
                place.add(each, causal=kind == "decoder")
    figures = [m for (kind, layer), each in sums.items() for m in each.measurements(attention=kind, layer=layer)]
    return [*summaries(figures, model.problem.where), *figures, *_alphas(model)]


def summaries(figures: Sequence[Measurement], where: Sequence[str]) -> list[Measurement]:
    """Means over layers of what `SUMMARISED` names: of the kinds `where` together, then of each kind that there is."""
    kinds = tuple(dict.fromkeys(m.where["attention"] for m in figures))
    groups: list[tuple[Sequence[str], dict[str, Any]]] = [
        (where, {}),
        *(((kind,), {"attention": kind}) for kind in kinds),
    ]
    found = []
    for chosen, named in groups:
        layers: dict[tuple[str, int | None], list[float]] = {}
        for m in figures:
            if m.name in SUMMARISED and m.where["attention"] in chosen:
                layers.setdefault((m.name, m.where.get("block")), []).append(m.value)
        for (name, block), values in layers.items():
            of_block: dict[str, Any] = {} if block is None else {"block": block}
            found.append(Measurement.of(name, float(np.mean(values)), **named, **of_block))
    return found


def _alphas(model: Transformer) -> Iterator[Measurement]:
    """The alpha that each head has learned, where a variant learns one."""
    for kind, variants in model.kinds().items():
        for layer, variant in enumerate(variants):
            learned = variant.learned_alpha()
            if learned is not None:
                for head, value in enumerate(learned.detach().flatten().tolist()):
                    yield Measurement.of("alpha", value, attention=kind, layer=layer, head=head)


def alignment_measurements(model: Transformer, pairs: Sequence[AlignedIds], device: torch.device) -> list[Measurement]:
    """AER of cross attention, normal and shifted, with the target forced: the lowest of all layers, then each layer's.

    Between them, for scale, that of links along the diagonal. Samples of a layer's best head are all its heads.
    """
    weights, sources, targets, gold = [], [], [], []
    for pair in pairs:
        if max(len(pair.source), len(pair.target)) > model.recipe.length:
            continue
        found = attention_weights(model, pair.source.tolist(), pair.target.tolist(), device).get("cross")
        if found is None:
            return []
        weights.append(found)
        sources.append(pair.source_words)
        targets.append(pair.target_words)
        gold.append(pair.gold)
    if not gold:
        return []
    errors = layer_errors(weights, sources, targets, gold)
    figures = [m for shift in (False, True) for m in lowest_errors([e for e in errors if e.shift == shift], len(gold))]
    # An aligner that knows nothing but the sentence lengths: a score near it shows no alignment.
    straight = [diagonal(max(mine) + 1, max(its) + 1) for mine, its in zip(sources, targets, strict=True)]
    scale = alignment_error_rate(straight, gold)
    figures.append(Measurement.of("alignment_error_rate", scale, how="diagonal", sentences=len(gold)))
    for each in errors:
        where: dict[str, Any] = {"layer": each.layer, "shift": each.shift, "sentences": len(gold)}
        best = each.heads[each.best]
        figures += [
            Measurement.of("alignment_error_rate", best, each.heads, **where, how="best head", head=each.best),
            Measurement.of("alignment_error_rate", each.averaged, **where, how="averaged weights"),
            Measurement.of("alignment_error_rate", each.mean, **where, how="mean over heads"),
        ]
    return figures


def lowest_errors(errors: Sequence[LayerErrors], sentences: int) -> list[Measurement]:
    """The lowest AER that any head has, and that the averaged heads of any layer have; `of_layer` says of which."""
    # As papers report it: the best head on the same sentences, which is optimistic; the mean of all is beside it.
    best = min(errors, key=lambda each: each.heads[each.best])
    averaged = min(errors, key=lambda each: each.averaged)
    where: dict[str, Any] = {"shift": best.shift, "sentences": sentences}
    return [
        Measurement.of(
            "alignment_error_rate", best.heads[best.best], **where, how="best head", of_layer=best.layer,
            of_head=best.best,
        ),
        Measurement.of(
            "alignment_error_rate", averaged.averaged, **where, how="averaged weights", of_layer=averaged.layer
        ),
    ]  # fmt: skip
