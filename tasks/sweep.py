"""Sweep: the cost of attention on synthetic input, alone or inside a model, over lengths. Nothing is trained."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, ClassVar, Literal

import numpy as np

from ..bench.core.hashing import axis_seed
from .contract import Availability, Classification, DataPlace, Dataset, Provenance, Range, SelectionError, Spec, Split
from .preset import Recipe
from .sweep_inputs import draw_heads, draw_states
from .sweep_point import Floats, Heads, Level, Mode, Point, Precision, TimedTask

SOURCE = "drawn at random from a seed"
VOCABULARY = 257
BATCH = 1

MOST_TOKENS = 2**26
MOST_VALUES = 2**33
"""Tokens of a point, and values of its queries: more fit in no memory, and drawing them would take minutes."""
MEASURING = ("timing_seconds", "resolution")
"""The settings that a preset decides."""


class Sweep(TimedTask):
    """Time, memory, FLOPs and sparsity of one forward pass, training step or decoding step on drawn input.

    `sweep[length=256..4096]` is five points: a range doubles. `batch`: number of sequences, or `tokens`: number of
    tokens in all. `kv_heads`: heads of keys and values, each shared by a group of query heads. `input`: the structure
    that queries and keys share, see `sweep_inputs.py`. Decoding is always causal. `level`: attention alone, a layer of
    it with projections, beside which a layer with projections of its own meets its like, a block or a model.
    `positions`: `rope` turns queries and keys; else a model has a learned table, and the others have none. `compile`:
    what is timed goes through torch.compile as one graph, variant and reference alike; what breaks the graph is
    unsupported. `process`: a number for the same point once more, `process=1,2,3`, since two processes differ by more
    than the samples of one.
    A preset only decides how long a point is measured: until a difference of `resolution` would be found, and at most
    `timing_seconds`, as in `quick[resolution=0.02,timing_seconds=120]`.
    """

    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": Point(timing_seconds=0.5, ranked=False),
        "quick": Point(),
        "pt-2x64": Point(timing_seconds=120.0, resolution=0.03),
    }

    def __init__(
        self,
        *,
        length: Annotated[int, Range(1, 2**24)] = 1024,
        mode: Mode = "step",
        level: Level = "attention",
        heads: Annotated[int, Range(1, 4_096)] = 4,
        head_dim: Annotated[int, Range(1, 65_536)] = 64,
        batch: Annotated[int, Range(1, 2**20)] | None = None,
        tokens: Annotated[int, Range(1, MOST_TOKENS)] | None = None,
        layers: Annotated[int, Range(1, 1_000)] = 2,
        dtype: Precision = "float32",
        causal: bool = False,
        input: Literal["iid", "clustered", "local"] = "iid",
        padding: Annotated[float, Range(0, 0.999)] = 0.0,
        positions: Literal["learned", "rope"] = "learned",
        graph: bool = False,
        compile: bool = False,
        memory_bytes: Annotated[int, Range(1, 10**15)] | None = None,
        kv_heads: Annotated[int, Range(1, 4_096)] | None = None,
        process: Annotated[int, Range(1, 100)] = 1,
    ):
        if kv_heads is not None and heads % kv_heads:
            raise SelectionError(f"sweep: expected kv_heads that divides {heads} heads, got {kv_heads}")
        if kv_heads not in (None, heads) and level != "attention":
            raise SelectionError(f"sweep: the {level} has as many heads of keys as of queries; use level=attention")
        if positions == "rope" and (level == "attention" or head_dim % 2):
            raise SelectionError("sweep: rotary positions need level=layer, block or model and an even head_dim")
        if batch is not None and tokens is not None:
            raise SelectionError("sweep: expected batch (sequences) or tokens (in all), got both")
        # decoding keeps one state per sequence and grows it token by token: there is no padding at its end
        if mode == "decode" and (level != "attention" or padding):
            raise SelectionError("sweep: expected mode=decode at level=attention without padding; ask for that instead")
        if level == "model" and causal:
            raise SelectionError("sweep: the model is an encoder and not causal; use another level")
        # all but attention alone have the precisions of a recipe: float32 and bfloat16
        if level != "attention" and dtype == "float16":
            raise SelectionError(f"sweep: the {level} runs in float32 or bfloat16, got dtype=float16")
        if graph and mode == "decode":
            raise SelectionError("sweep: expected graph=true with mode=forward or step; a decode state grows")
        if compile and mode == "decode":
            raise SelectionError("sweep: expected compile=true with mode=forward or step; a decode state grows")
        if compile and memory_bytes is not None:
            raise SelectionError("sweep: expected compile=true without memory_bytes; each length would be compiled")
        total = (batch or BATCH) * length
        if total > MOST_TOKENS or total * heads * head_dim > MOST_VALUES:
            raise SelectionError(
                f"sweep: expected at most {MOST_TOKENS:,} tokens and {MOST_VALUES:,} values of queries, got {total:,} "
                f"tokens of {heads * head_dim:,} values"
            )
        self.point = Point(
            length=length,
            batch=max(1, tokens // length) if tokens is not None else batch or BATCH,
            layers=layers,
            heads=heads,
            width=heads * head_dim,
            feed_forward=4 * heads * head_dim,
            precision="bfloat16" if dtype == "bfloat16" else "float32",
            mode=mode,
            level=level,
            dtype=dtype,
            causal=causal or mode == "decode",
            input=input,
            padding=padding,
            positions=positions,
            graph=graph,
            compile=compile,
            memory_bytes=memory_bytes,
            # 32 of 32 is the same point as 32
            kv_heads=None if kv_heads == heads else kv_heads,
        )

    def recipe(self, preset: Spec) -> Point:
        """This point with the preset's measuring time. Raises SelectionError for an override of anything else."""
        for name, _ in preset.parameters:
            if name not in MEASURING:
                raise SelectionError(
                    f"a sweep takes no {name!r} from a preset, only {' and '.join(MEASURING)}; its own "
                    "parameters say the rest, such as sweep[heads=8]"
                )
        # the preset gives the time; everything else is fixed by the task's own parameters, which are part of its name
        wanted = super().recipe(preset)
        known_point = {field.name: getattr(self.point, field.name) for field in fields(Point)}
        return Point(**known_point | {name: getattr(wanted, name) for name in (*MEASURING, "ranked")})

    def problem(self) -> Classification:
        return Classification(vocabulary=VOCABULARY, classes=2, padded=self.point.padding > 0)

    def availability(self, place: DataPlace) -> list[Availability]:
        return [Availability(source=SOURCE, fidelity="synthetic", ready=True, detail="nothing is needed")]

    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        """Sequences of random ids for the model. Queries, keys and values come from `heads` and `states`."""
        point = self.point
        draw = np.random.default_rng(axis_seed(use="sweep ids"))
        # ids from 1, since 0 is padding; a fixed seed, so that every variant is timed on the same ids
        rows = draw.integers(1, VOCABULARY, size=(point.batch, point.real)).astype(np.uint16)
        split = Split.of_rows(rows, draw.integers(2, size=point.batch))
        provenance = Provenance(source=SOURCE, fidelity="synthetic")
        return Dataset(train=split.all(), validation=split.all(), test=split.all(), provenance=provenance)

    def heads(self, point: Point) -> Heads:
        return draw_heads(
            *(point.input, point.batch, point.heads, point.length, point.head_dim), seed=0, kv_heads=point.kv_heads
        )

    def states(self, point: Point) -> Floats:
        return draw_states(point.input, point.batch, point.length, point.width, seed=0)
