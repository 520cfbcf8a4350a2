"""Exhibition: Exhibits made of a Frame."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ..core.cell import REFERENCE
from ..core.metrics import METRICS, Metric
from ..score.cost import Mode, controls, costs_by_variant, floor_of
from ..score.key import BoardKey
from ..score.matched_budget import Curves
from ..score.quality import Predictions, metric_of
from ..stats.scoring import ratio
from ..store.rows import HeadMeasurement, ResultRow, newest
from ..store.table import ResultTable
from .board import Board
from .length_board import LengthTable, board_for_lengths, crossover
from .report import Alpha, CurveSpot, HeadValue, LengthSpot, NullControl, ParetoPoint, RecordSummary, Report
from .report_maps import Maps, panels_of
from .task_board import board_for_task

HEAD_METRICS = ("sparsity", "null_rate", "entropy", "attention_distance")
SHOWN_NUMBERS = 30

_PLACES = {name: at for at, name in enumerate(METRICS)}


def exhibit_of_task(
    table: ResultTable,
    board_key: BoardKey,
    predictions: Predictions,
    curves: Curves,
    margin: float | None = None,
    maps: Maps = lambda name: None,
    room: int = 0,
    board: Board | None = None,
) -> Report:
    """What a page shows of one question; `room`: characters that its attention maps may take.

    `board`: the question's, where it has been scored already with the same predictions, curves and margin.
    """
    if board is None:
        board = board_for_task(table, board_key, predictions=predictions, curves=curves, margin=margin)
    metric = metric_of(table, board_key)
    trained = newest(board_key.runs(table, "train"), "key")
    runs = board_key.runs(table, "train", "time", "baseline")
    panels, left_out = panels_of(trained, maps, room)
    controls_found = [ratio(control) for control in controls(costs_by_variant(table, board_key))]
    return Report(
        name=board_key.name,
        board=board,
        quality=metric.title if metric.title == metric.display_unit else f"{metric.title}, {metric.display_unit}",
        better="lower" if metric.sign < 0 else "higher",
        spots=tuple(_spots(board, metric)),
        heads=tuple(_heads(table, trained)),
        alphas=tuple(_alphas(table, trained)),
        curves=tuple(_curves(trained, curves, metric)),
        nulls=tuple(NullControl(block=f"block {at}", ratio=c.value, low=c.low, high=c.high)
                    for at, c in enumerate(controls_found, start=1)),
        panels=panels,
        panels_left_out=left_out,
        sources=tuple(_sources(table, runs)),
        commands=_commands(board_key, runs),
        machines={name: _machine_words(table, name) for name in sorted({run.machine for run in runs})},
    )  # fmt: skip


def exhibit_of_sweep(table: ResultTable, sweep: LengthTable, mode: Mode = "step") -> Report:
    """What a page shows of cost over lengths; raises SelectionError where the mode was not timed."""
    board = board_for_lengths(table, sweep, mode)
    questions = list(sweep.questions.values())
    runs = [run for board_key in questions for run in board_key.runs(table, "time")]
    return Report(
        name=board.name,
        board=board,
        lengths=tuple(_lengths(table, sweep, mode)),
        sources=tuple(_sources(table, runs)),
        commands=_commands(questions[-1], runs),
        machines={sweep.machine: _machine_words(table, sweep.machine)},
    )


def _spots(board: Board, metric: Metric) -> Iterator[ParetoPoint]:
    at = {column.name: i for i, column in enumerate(board.columns)}
    for row in board.ranked:
        quality, cost, share = (row.entries[at[name]] for name in (metric.name, "step_time", "frontier"))
        if quality.value is None or cost.value is None:
            continue
        yield ParetoPoint(
            variant=row.name,
            quality=quality.value,
            quality_low=quality.value if quality.low is None else quality.low,
            quality_high=quality.value if quality.high is None else quality.high,
            cost=cost.value,
            cost_low=cost.value if cost.low is None else cost.low,
            cost_high=cost.value if cost.high is None else cost.high,
            on_frontier=bool(share.note),
        )


def _heads(table: ResultTable, runs: Sequence[ResultRow]) -> Iterator[HeadValue]:
    by_head: dict[tuple[str, str, str, int], list[float]] = {}
    for found in table.heads_of(HEAD_METRICS, runs):
        place = (found.run.variant, found.name, _layer_words(found), int(found.head))
        by_head.setdefault(place, []).append(found.value)
    # layers and heads stay in the order of the model
    for (variant, name, layer, head), values in sorted(by_head.items(), key=lambda item: item[0][:2]):
        value = math.fsum(values) / len(values)
        yield HeadValue(variant=variant, quantity=name, layer=layer, head=head, value=value)


def _alphas(table: ResultTable, runs: Sequence[ResultRow]) -> Iterator[Alpha]:
    for found in table.heads_of(["alpha"], runs):
        layer, head = _layer_words(found), int(found.head)
        yield Alpha(variant=found.run.variant, layer=layer, head=head, seed=found.run.seed, value=found.value)


def _layer_words(found: HeadMeasurement) -> str:
    return f"{found.attention} {int(found.layer)}".strip()


def _curves(runs: Sequence[ResultRow], read: Curves, metric: Metric) -> Iterator[CurveSpot]:
    wanted: list[tuple[Literal["quality", "loss"], str, float]] = [
        ("quality", f"validation_{metric.name}", metric.points), ("loss", "validation_loss", 1.0),
    ]  # fmt: skip
    for variant, own in _by_variant(runs).items():
        names = [run.artifacts["curve"] for run in own if "curve" in run.artifacts]
        points = [point for found in map(read, names) for point in found or ()]
        for quantity, key, scale in wanted:
            by_step: dict[int, list[float]] = {}
            for point in points:
                value = point.get(key)
                if isinstance(value, int | float) and math.isfinite(value):
                    by_step.setdefault(int(point["step"]), []).append(scale * value)
            for step, values in sorted(by_step.items()):
                mean = math.fsum(values) / len(values)
                yield CurveSpot(
                    variant=variant, quantity=quantity, step=step, value=mean, low=min(values), high=max(values)
                )


def _by_variant(runs: Sequence[ResultRow]) -> dict[str, list[ResultRow]]:
    found: dict[str, list[ResultRow]] = {}
    for run in sorted(runs, key=lambda run: run.variant):
        found.setdefault(run.variant, []).append(run)
    return found


def _lengths(table: ResultTable, sweep: LengthTable, mode: Mode) -> Iterator[LengthSpot]:
    by_length = {length: costs_by_variant(table, board_key, mode) for length, board_key in sweep.questions.items()}
    floor = max(floor_of(found) for found in by_length.values())
    names = sorted({name for found in by_length.values() for name in found})
    for name in names:
        costs = {length: found[name].cost for length, found in by_length.items() if name in found}
        pays = crossover(costs, floor).length if name != REFERENCE else None
        for length, found in by_length.items():
            timing = found.get(name)
            if timing is None or timing.cost is None:
                continue
            ends = ratio(timing.cost)
            yield LengthSpot(
                variant=name, length=length, seconds=timing.median, ratio=ends.value, low=ends.low, high=ends.high,
                pays=pays is not None and length >= pays,
            )  # fmt: skip


def _sources(table: ResultTable, runs: Sequence[ResultRow]) -> Iterator[RecordSummary]:
    for run in sorted(runs, key=lambda run: (run.variant, run.lane, run.seed)):
        yield RecordSummary(
            key=run.key, variant=run.variant, lane=run.lane, seed=run.seed, outcome=run.outcome,
            reason=run.reason, machine=run.machine, started=run.started, seconds=run.seconds,
            digest=f"{run.version}-{run.data_code}-{run.variant_code}", numbers=tuple(_numbers(table, run.at)),
            implementation=run.implementation,
        )  # fmt: skip


def _numbers(table: ResultTable, at: int) -> list[str]:
    """Those of a whole model; those of one kind of attention stand in a table of their own."""
    measured = table.numbers.of(at)
    names = sorted(measured.keys() & METRICS.keys(), key=_PLACES.__getitem__)
    whole = [m for name in names for m in measured[name] if "attention" not in m.where]
    return [f"{' '.join([m.name, *_told_apart(m.where)])} {m.value:.6g}" for m in whole[:SHOWN_NUMBERS]]


def _told_apart(where: Mapping[str, Any]) -> Iterator[str]:
    """What tells measurements of one name apart, in words."""
    if block := where.get("block"):
        yield f"of {block} × {block}"
    yield from (str(where[key]) for key in ("split", "set", "how") if key in where)
    if where.get("shift"):
        yield "shifted"


def _commands(board_key: BoardKey, runs: Sequence[ResultRow]) -> dict[str, str]:
    """How to measure each variant again."""
    return {variant: _command(board_key, variant, own) for variant, own in _by_variant(runs).items()}


def _command(board_key: BoardKey, variant: str, runs: Sequence[ResultRow]) -> str:
    seeds = 1 + max((run.seed for run in runs if run.lane == "train"), default=0)
    selection = ["--selection", board_key.selection] if board_key.selection != "validation" else []
    words = ["attnbench", "run", "--variants", variant, "--task", board_key.task, "--preset", board_key.preset]
    return shlex.join([*words, "--seeds", str(seeds), *selection])


def _machine_words(table: ResultTable, name: str) -> str:
    machine = table.machines[name]
    versions = ", ".join(f"{package} {version}" for package, version in sorted(machine.versions.items()))
    device = machine.accelerators[0] if machine.accelerators else f"{machine.threads} of {machine.cores} cores"
    return f"{machine.processor}, {device}, {machine.system}" + (f"; {versions}" if versions else "")
