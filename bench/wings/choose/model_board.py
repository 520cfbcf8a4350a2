"""`attnbench.choose_for_model`: prefill, a decoded token, cache and batch of a model, for each attention in it."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from ....variants.contract import AttentionShape
from ...api.boards import answered
from ...board.board import Board, Column, Note, Row, TableCell
from ...board.cells import EMPTY, Cell, cells_of, finished, number_cell, plain_columns
from ...board.notes import some
from ...core.cell import REFERENCE
from ...core.errors import LOG, Notice, SelectionError, StoreError
from ...core.files import PACKAGE, RESULTS
from ...core.registry import nearest
from ...core.spec import Names, Spec, specs_of
from ...measure.devices import Device, devices
from ...process.ask import asking
from ...score.cost import Mode
from ...score.key import Filters
from ...stats.format import counted, in_a_line, size
from ...store.records import Records
from ...store.table import ResultTable, table_of
from .choose import Judgement, Requirements, judge, longest_test, tokens_of, why_unknown
from .estimate import (
    CALL_SECONDS,
    Evidence,
    Guess,
    Timing,
    device_of,
    factors_of,
    family_of,
    group_of,
    guess,
    published_timings,
    quantile,
    stored_timings,
    target_of,
    trials,
)
from .models import ModelShape, known_models, model_of

ATTENTIONS = (
    "softmax[impl=cudnn]", "softmax[impl=flash]", "window[size=4096]", "window[size=1024]:5//softmax", "rela",
    "entmax15", "sparsemax", "moba", "nsa", "indexer[k=2048]", "mla", "linear", "gated-linear", "ssd", "delta",
    "delta[decay=channel]", "delta:3//softmax", "delta[decay=channel]:3//mla",
)  # fmt: skip
"""The rows where none are asked for; on a processor softmax has one kernel."""

PRODUCT_SHARE, BYTES_SHARE = 0.6, 0.7
"""The shares of the peaks that matrix products of a prefill, and the reading of weights for a token, reach: as in the
timings of whole models in `timings.toml` with bfloat16."""

MARKS: dict[Evidence, str] = {"measured": "m", "calibrated": "c", "other device": "o", "counted": "n"}
"""A mark for each kind of evidence, from the best to the weakest; of several the weakest counts."""

VERDICTS = ("better", "within margin", "worse", "undecided", "not compared")
"""What a board may say of an attention beside softmax, in the order of the columns."""

_CALLS_OF_A_LAYER = 8
"""Kernels of a layer outside of attention: two norms, projections, rotation, the feed-forward and sums."""

USED_MEMORY = 0.9
"""The share of the memory for weights and caches; the rest is for what is computed with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds and the ends of their interval, the bytes of the cache, and the guesses, one a kind of layer."""

    seconds: float
    low: float
    high: float
    cache_bytes: int
    guesses: tuple[Guess, ...]


Both = tuple[Cost | None, Cost | None]
"""The prefill and the next token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOnDevice:
    """The figures from which a model on a device is estimated. `factor_of_rest`: of all outside of attention."""

    model: ModelShape
    device: Device
    timings: Sequence[Timing]
    factor: Callable[[str, Guess], float]
    factor_of_rest: float = 1.0
    bytes_per_weight: float = 2.0

    def cost(self, attention: Spec, mode: Mode, length: int) -> Cost | None:
        """The prefill (`forward`) or the next token (`decode`) of one sequence.

        None of an attention that is not causal or cannot decode.
        """
        layers = [attention.at(layer) for layer in range(self.model.num_hidden_layers)]
        known = {spec: self._layer(spec, mode, length) for spec in dict.fromkeys(layers)}
        each = [found for spec in layers if (found := known[spec]) is not None]
        if len(each) < len(layers):
            return None
        weights, kind = self.model.parameters(active=True), self.device.kind
        peak = self.device.bfloat16 if kind == "card" else self.device.float32
        reading = weights * self.bytes_per_weight / self.device.bytes_per_second
        products = 2.0 * weights * length / peak if mode == "forward" else 0.0
        rest = max(reading / BYTES_SHARE, products / PRODUCT_SHARE, self.launches)
        seconds = rest + sum(one.seconds for one, _, _ in each)
        high = rest * self.factor_of_rest + sum(one.seconds * self.factor(kind, one) for one, _, _ in each)
        # no card beats its data sheet; the rates of a processor are no peaks
        least = max(reading, products) + sum(work for _, _, work in each) if kind == "card" else 0.0
        return Cost(
            seconds=seconds, low=max(seconds**2 / high, min(least, seconds)), high=high,
            cache_bytes=sum(kept for _, kept, _ in each), guesses=tuple(dict.fromkeys(one for one, _, _ in each)),
        )  # fmt: skip

    @property
    def launches(self) -> float:
        """Seconds in which the kernels outside of attention are called, below which no smaller model comes."""
        return self.model.num_hidden_layers * _CALLS_OF_A_LAYER * CALL_SECONDS[self.device.kind]

    def _layer(self, spec: Spec, mode: Mode, length: int) -> tuple[Guess, int, float] | None:
        """The best guess for one layer, by whatever kernel of softmax was timed on a card; its cache and its work."""
        model, kernels = self.model, [spec]
        if spec.name == REFERENCE and self.device.kind == "card":
            # a single query takes flash, whatever is asked for
            impls = ["flash"] if mode == "decode" else [spec.get("impl")] if spec.get("impl") else ["flash", "cudnn"]
            kernels = [Spec.of(REFERENCE, impl=impl) for impl in impls]
        heads, width, kv_heads = model.heads, model.width_of_head, model.kv_heads
        if family_of(spec) == "linear":
            (heads, width), kv_heads = model.recurrent_heads, 0
        dtype = "bfloat16" if self.device.kind == "card" else "float32"
        shape = AttentionShape(
            heads=heads, head_dim=width, kv_heads=kv_heads, max_length=length, causal=True, dtype=dtype
        )
        found = []
        for kernel in kernels:
            counted_as = Spec(REFERENCE) if spec.name == REFERENCE else spec
            if called := target_of(counted_as, shape, mode, self.device, model=model):
                found.append((guess(replace(called[0], variant=str(kernel)), self.timings), called[1], called[0].work))
        return min(found, key=lambda one: one[0].seconds, default=None)


def choose_for_model(
    model: str | Path | ModelShape,
    context: int | str,
    on: str,
    results: str | Path | Records = RESULTS,
    *,
    variants: Names | None = None,
    weight_bytes: float | None = None,
    margin: float | None = None,
    notice: Notice = LOG.warning,
    **filters: Unpack[Filters],
) -> Board:
    """The cost of each attention in that model at a context: measured, or counted and calibrated with its uncertainty.

    model: a name of `models.toml`, a config.json, or a shape. on: a card of `measure/devices.toml`, or the id of a
    machine of the Records. variants: the attentions; None for one or more of each family. weight_bytes: of a weight;
    None for 2 on a card, 4 on a processor. Raises SelectionError for a name that is none.
    """
    length, name = tokens_of(context), "the model" if isinstance(model, ModelShape) else str(model)
    shape = model if isinstance(model, ModelShape) else model_of(model)
    margins = Requirements(length=length, margin=margin)
    with asking():
        table, judged, longest = _read(results, notice, filters)
        served = _served(shape, on, table, weight_bytes)
        asked = specs_of(variants) if variants is not None else (shape.released, *map(Spec.parse, ATTENTIONS))
        if served.device.kind == "processor":
            asked = tuple(Spec(REFERENCE) if spec.name == REFERENCE else spec for spec in asked)
        elif variants is None:
            # the rows of its kernels stand for it
            asked = tuple(spec for spec in asked if spec != Spec(REFERENCE))
        both: dict[Spec, Both] = {
            spec: (served.cost(spec, "forward", length), served.cost(spec, "decode", length))
            for spec in dict.fromkeys((shape.released, *asked))
        }
        # what was timed on this device before what was guessed from others, which may look fastest by chance
        order = sorted(asked, key=lambda spec: (_is_guessed(first := both[spec][0]), first.seconds if first else 0.0))
        costs = {str(spec): both[spec] for spec in order}
    weights = served.bytes_per_weight * shape.parameters()
    free = USED_MEMORY * served.device.memory_bytes - weights

    def time(at: int, name: str) -> TableCell:
        found = costs[name][at]
        if found is None:
            return EMPTY
        mark = MARKS[_weakest(found)]
        down, up = (f"{factor:.{1 if factor < 9.95 else 0}f}"
                    for factor in (found.seconds / found.low, found.high / found.seconds))  # fmt: skip
        words, factors = _seconds(found.seconds), f"×÷{up}" if up == down else f"÷{down}×{up}"
        return TableCell(
            text=f"{words} {factors}", brief="" if up == down else f"{words} ×{up}", bare=words, value=found.seconds,
            low=found.low, high=found.high, note=mark,
        )  # fmt: skip

    def kept(name: str) -> float | None:
        return None if (found := costs[name][1]) is None else float(found.cache_bytes)

    def batch(name: str) -> TableCell:
        held = kept(name)
        return EMPTY if held is None else number_cell(max(0.0, free // max(held, 1)), "{:,.0f}".format)

    columns: list[tuple[Column, Cell]] = [
        (Column(name="prefill", title="prefill", unit="seconds", better="lower", importance=0,
                description=f"time of a prompt of {length:,} tokens, one sequence"), lambda name: time(0, name)),
        (Column(name="token", title="a token", unit="seconds", better="lower", importance=0,
                description=f"time of the token after {length:,}, one sequence"), lambda name: time(1, name)),
        (Column(name="cache", title="cache", unit="bytes", better="lower", importance=0,
                description="bytes that decoding keeps of one sequence"), lambda name: number_cell(kept(name), size)),
        (Column(name="batch", title="fit", better="higher", importance=0,
                description="sequences whose caches fit beside the weights"), batch),
    ]  # fmt: skip
    rows = [
        Row(name=name, entries=cells_of(columns, name), reason="" if all(found) else "has no causal form that decodes")
        for name, found in costs.items()
    ]
    verdicts = {name: _verdicts(judged, margins, name) for name in costs}
    compared = {name: found for name, found in verdicts.items() if found.total() > found["not compared"]}
    part = Board(
        name="quality", question="", ranked=(),
        title=f"better or worse than {REFERENCE}, on {counted(len(judged.contrasts), 'board')}; others not compared",
        columns=tuple(Column(name=each, title=each, short=each.split()[0] if "margin" in each else "",
                             description=f"number of boards: {each}") for each in VERDICTS),
        unranked=tuple(Row(name=name, entries=tuple(number_cell(found[each], str) for each in VERDICTS))
                       for name, found in compared.items()),
    )  # fmt: skip
    known = f"known up to {longest:,} tokens, on small models, and unknown beyond" if compared else "unknown"
    board = Board(
        name=f"model/{name}/{length}/{served.device.name}",
        title=f"{name} at {length:,} tokens",
        question=f"What does each attention cost in {name} at {length:,} tokens on one {served.device.card}?",
        headline=_headline(shape, both[shape.released], costs, free)
        + (f"Quality is {known}." if length > longest or not compared else ""),
        columns=plain_columns(columns),
        ranked=(),
        unranked=tuple(rows),
        notes=tuple(_notes(shape, served, weights, length, both[shape.released][1], judged)),
        parts=(part,) if compared else (),
    )
    return finished(board)


def back_test(results: str | Path | Records = RESULTS, *, notice: Notice = LOG.warning) -> dict[str, list[float]]:
    """Logarithms of the errors of estimates, by device and evidence: each timing, guessed from the others."""
    errors: dict[str, list[float]] = {}
    with asking():
        timings = _timings(_read(results, notice, {})[0])
        for target, found, error in trials(timings):
            kind, evidence = group_of(target.kind, found)
            for device in (f"every {kind}", target.device):
                errors.setdefault(f"{device}: {evidence}", []).append(error)
        for device, error in _whole_models(timings):
            errors.setdefault(f"{device}: whole models", []).append(error)
    return errors


def _read(results: str | Path | Records, notice: Notice, filters: Filters) -> tuple[ResultTable, Judgement, int]:
    """The Records, their judgement, and the longest test; of a folder without any, nothing and a notice."""
    try:
        table, predictions, keys = answered(results, notice, {**filters, "machine": None})
    except StoreError as lack:
        notice(f"{lack}; times are estimated without, and quality is unknown")
        return table_of([]), Judgement(contrasts={}, metrics={}, names=(), unlearned=(), older=()), 0
    judged = judge(table, keys, predictions)
    return table, judged, max((longest_test(table, key) for key in judged.contrasts), default=0)


def _timings(table: ResultTable) -> list[Timing]:
    return [*stored_timings(table), *published_timings()]


def _served(shape: ModelShape, on: str, table: ResultTable, weight_bytes: float | None) -> ModelOnDevice:
    """Raises SelectionError for a device that is none."""
    if on.lower() in devices():
        device = devices()[on.lower()]
    elif on in table.machines:
        device = device_of(table, on)
    else:
        raise SelectionError(
            f"expected --on with a card ({in_a_line(devices())}) or a machine of the Records "
            f"({in_a_line(table.machines) or 'none'}), got {on!r}{nearest(on, devices())}"
        )
    timings = _timings(table)
    return ModelOnDevice(
        model=shape, device=device, timings=timings, factor=factors_of(trials(timings)),
        factor_of_rest=quantile(error for _, error in _whole_models(timings)),
        bytes_per_weight=weight_bytes or (2.0 if device.kind == "card" else 4.0),
    )  # fmt: skip


def _whole_models(timings: Sequence[Timing]) -> Iterator[tuple[str, float]]:
    """The device, and the logarithm of the estimate over what others measured, of each timing of a whole model."""
    read = tomllib.loads((PACKAGE / "bench/wings/choose/timings.toml").read_text(encoding="utf-8"))["models"]
    for one in read:
        served = ModelOnDevice(
            model=known_models()[one["model"]], device=devices()[one["device"]], timings=timings,
            factor=lambda kind, found: 1.0, bytes_per_weight=one.get("weight_bytes", 2.0),
        )  # fmt: skip
        for length, seconds in one["seconds"].items():
            found = served.cost(Spec(REFERENCE), one["mode"], int(length))
            if found:
                yield one["device"], math.log(found.seconds / seconds)


def _billions(count: float) -> str:
    """
    >>> _billions(8.03e9), _billions(4_200_000)
    ('8.0B', '4.2M')
    """
    return f"{count / 1e9:.1f}B" if count >= 1e8 else f"{count / 1e6:.1f}M"


def _weakest(cost: Cost) -> Evidence:
    """The weakest evidence of its layers."""
    return max((each.evidence for each in cost.guesses), key=[*MARKS].index)


def _is_guessed(cost: Cost | None) -> bool:
    return cost is not None and _weakest(cost) in ("other device", "counted")


def _seconds(seconds: float) -> str:
    """A time in two digits, which is more than an estimate knows.

    >>> _seconds(588.13), _seconds(2343.9), _seconds(0.0805)
    ('590 s', '2,300 s', '80 ms')
    """
    unit, scale = next((each for each in (("s", 1.0), ("ms", 1e3)) if seconds * each[1] >= 1), ("µs", 1e6))
    return f"{float(f'{seconds * scale:.2g}'):,g} {unit}"


def _verdicts(judged: Judgement, margins: Requirements, name: str) -> Counter[str]:
    """The number of boards by what they say of the attention beside softmax; none of softmax itself."""
    found: Counter[str] = Counter()
    for board_key, metric in judged.metrics.items() if Spec.parse(name).name != REFERENCE else ():
        contrasts = judged.contrasts[board_key]
        if why_unknown(contrasts, name):
            found["not compared"] += 1
            continue
        gap = contrasts.between(name, REFERENCE)
        verdict = gap.verdict(margins.margin_of(metric, judged.metrics.values()) / metric.points)
        # as the boards have it: worse, by however little
        found["worse" if verdict == "undecided" and gap.is_behind else verdict] += 1
    return found


def _headline(shape: ModelShape, released: Both, costs: Mapping[str, Both], free: float) -> str:
    """The model with its own attention, what else can be used as it is, and what is faster than that beyond doubt."""
    prefill, token = released
    if not prefill or not token:
        return ""
    held, which = token.cache_bytes, "As released" if shape.source else "With its own attention"
    fit = f"{counted(int(free // held), 'sequence')} fit" if free > held else "no sequence fits beside the weights"
    own = [name for name in costs if name.startswith(f"{REFERENCE}[impl=") and shape.released == Spec(REFERENCE)]
    own = sorted(own) or [str(shape.released)]
    others = {name: both for name, both in costs.items() if name not in own}
    faster = [name for name, (first, then) in others.items()
              if (first and first.high < prefill.low) or (then and then.high < token.low)]  # fmt: skip
    found = f"beyond the uncertainty {some(faster) or 'none'} {'are' if faster[1:] else 'is'} faster"
    return (
        f"{which} ({shape.released}), for one sequence: prefill {_seconds(prefill.seconds)}, a token "
        f"{_seconds(token.seconds)}, {size(held)} of cache; {fit}. Without retraining only {' or '.join(own)} will do. "
        + (f"Others need training or conversion; {found}. " if others else "")
    )


def _notes(
    shape: ModelShape, served: ModelOnDevice, weights: float, length: int, token: Cost | None, judged: Judgement
) -> Iterator[Note]:
    device = served.device
    needed = weights + (token.cache_bytes if token else 0)
    if (count := math.ceil(needed / (USED_MEMORY * device.memory_bytes))) > 1:
        text = f"weights and one cache of {shape.released} need {count} such devices; times are as if one held them, "
        yield Note(topic="fit", kind="warning", text=f"{text}and communication is not counted")
    yield Note(
        topic="times",
        text="×÷1.6: nine in ten back-tests of such estimates lay within this factor; ÷1.2×1.6, or ×1.6 alone: the "
        "card's peaks bound it from below. m: measured; c: counted in FLOPs and bytes, and calibrated by times of this "
        "attention at other shapes; o: by its times on another card; n: by those of others of its family; o and n "
        "stand last",
    )
    if served.launches > weights / device.bytes_per_second / BYTES_SHARE:
        yield Note(
            topic="launches",
            text=f"a token of so small a model is bound by calls: {_CALLS_OF_A_LAYER} kernels a layer outside of "
            f"attention were counted, {1e6 * CALL_SECONDS[device.kind]:g} µs each; captured graphs take less",
        )
    kept = "bfloat16, states of linear attention in float32" if device.kind == "card" else "float32"
    yield Note(
        topic="memory",
        text=f"{_billions(shape.parameters())} weights of {served.bytes_per_weight:g} bytes take {size(weights)} of "
        f"{size(device.memory_bytes)}, of which a tenth is kept free; keys and values are in {kept}",
    )
    if shape.assumed:
        yield Note(topic="model", text=f"assumed: {' and '.join(shape.assumed)} (--feed-forward, --vocabulary)")
    if shape.max_position_embeddings and length > shape.max_position_embeddings:
        yield Note(
            topic="positions", text=f"it was made for {shape.max_position_embeddings:,} tokens, and not {length:,}"
        )
    if shape.source:
        yield Note(topic="model", kind="method", text=shape.source)
    yield Note(topic="device", kind="method", text=device.source)
    if judged.contrasts:
        names = ", ".join(f"{key.task} ({key.preset})" for key in judged.contrasts)
        yield Note(topic="quality", kind="method", text=f"judged on {names}")
