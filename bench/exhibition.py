"""Exhibition: Exhibits made of a Frame."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from typing import Literal

import pandas as pd

from .board import Board
from .cell import REFERENCE
from .exhibit import Alpha, CurveSpot, Exhibit, HeadValue, LengthSpot, NullControl, Source, Spot
from .frame import Frame
from .lengthboard import Sweep, board_for_lengths, crossover
from .matched import Curves
from .panels import Maps, panels_of
from .question import Question
from .record import QUANTITIES
from .score import ratio
from .taskboard import board_for_task
from .timings import Mode, controls, floor_of, timings_of_all
from .trials import Predictions
from .yardstick import Yardstick, yardstick_of

HEAD_QUANTITIES = ("sparsity", "null_rate", "entropy", "attention_distance")
SHOWN_NUMBERS = 12

_PLACES = {name: at for at, name in enumerate(QUANTITIES)}


def exhibit_of_task(
    frame: Frame,
    question: Question,
    predictions: Predictions,
    curves: Curves,
    margin: float | None = None,
    maps: Maps = lambda name: None,
    room: int = 0,
) -> Exhibit:
    """What a page shows of one question; `room`: characters that its attention maps may take."""
    board = board_for_task(frame, question, predictions=predictions, curves=curves, margin=margin)
    yardstick = yardstick_of(frame, question)
    trained = question.cells(frame, "train").drop_duplicates("key", keep="last")
    cells = question.cells(frame, "train", "time", "baseline")
    timings = timings_of_all(frame, question)
    panels, left_out = panels_of(trained, maps, room)
    controls_found = [ratio(control) for control in controls(timings)]
    return Exhibit(
        name=question.name,
        board=board,
        quality=yardstick.title if yardstick.title == yardstick.unit else f"{yardstick.title}, {yardstick.unit}",
        better=yardstick.better,
        spots=tuple(_spots(board, yardstick)),
        heads=tuple(_heads(frame, trained)),
        alphas=tuple(_alphas(frame, trained)),
        curves=tuple(_curves(trained, curves, yardstick)),
        nulls=tuple(NullControl(block=f"block {at}", ratio=c.value, low=c.low, high=c.high)
                    for at, c in enumerate(controls_found, start=1)),
        panels=panels,
        panels_left_out=left_out,
        sources=tuple(_sources(frame, cells)),
        commands={str(variant): _command(question, str(variant), rows) for variant, rows in cells.groupby("variant")},
        machines={name: _machine_words(frame, name) for name in sorted(set(cells["machine"]))},
    )  # fmt: skip


def exhibit_of_sweep(frame: Frame, sweep: Sweep, mode: Mode = "step") -> Exhibit:
    """What a page shows of cost over lengths; raises SelectionError where the mode was not timed."""
    board = board_for_lengths(frame, sweep, mode)
    questions = list(sweep.questions.values())
    cells = pd.concat([question.cells(frame, "time") for question in questions])
    return Exhibit(
        name=board.name,
        board=board,
        lengths=tuple(_lengths(frame, sweep, mode)),
        sources=tuple(_sources(frame, cells)),
        commands={str(v): _command(questions[-1], str(v), rows) for v, rows in cells.groupby("variant")},
        machines={sweep.machine: _machine_words(frame, sweep.machine)},
    )  # fmt: skip


def _spots(board: Board, yardstick: Yardstick) -> Iterator[Spot]:
    at = {column.name: i for i, column in enumerate(board.columns)}
    for row in board.ranked:
        quality, cost, share = (row.entries[at[name]] for name in (yardstick.name, "step_time", "frontier"))
        if quality.value is None or cost.value is None:
            continue
        yield Spot(
            variant=row.name,
            quality=quality.value,
            quality_low=quality.value if quality.low is None else quality.low,
            quality_high=quality.value if quality.high is None else quality.high,
            cost=cost.value,
            cost_low=cost.value if cost.low is None else cost.low,
            cost_high=cost.value if cost.high is None else cost.high,
            on_frontier=bool(share.note),
        )


def _heads(frame: Frame, cells: pd.DataFrame) -> Iterator[HeadValue]:
    table = frame.heads_of(HEAD_QUANTITIES, cells)
    for (variant, name, layer, head), value in (
        table.groupby(["variant", "name", "layer", "head"])["value"].mean().items()
    ):
        yield HeadValue(variant=variant, quantity=name, layer=int(layer), head=int(head), value=float(value))


def _alphas(frame: Frame, cells: pd.DataFrame) -> Iterator[Alpha]:
    for row in frame.heads_of(["alpha"], cells).itertuples():
        yield Alpha(
            variant=row.variant, layer=int(row.layer), head=int(row.head), seed=int(row.seed), value=float(row.value)
        )


def _curves(cells: pd.DataFrame, read: Curves, yardstick: Yardstick) -> Iterator[CurveSpot]:
    wanted: list[tuple[Literal["quality", "loss"], str, float]] = [
        ("quality", f"validation_{yardstick.name}", yardstick.points), ("loss", "validation_loss", 1.0),
    ]  # fmt: skip
    for variant, rows in cells.groupby("variant"):
        names = [artifacts["curve"] for artifacts in rows["artifacts"] if "curve" in artifacts]
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
                    variant=str(variant), quantity=quantity, step=step, value=mean, low=min(values), high=max(values)
                )


def _lengths(frame: Frame, sweep: Sweep, mode: Mode) -> Iterator[LengthSpot]:
    by_length = {length: timings_of_all(frame, question, mode) for length, question in sweep.questions.items()}
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


def _sources(frame: Frame, cells: pd.DataFrame) -> Iterator[Source]:
    for cell in cells.sort_values(["variant", "lane", "seed"]).itertuples():
        yield Source(
            key=cell.key, variant=cell.variant, lane=cell.lane, seed=int(cell.seed), outcome=cell.outcome,
            reason=cell.reason, machine=cell.machine, started=cell.started, seconds=float(cell.seconds),
            digest=f"{cell.code}-{cell.variant_code}", numbers=tuple(_numbers(frame, cell.Index)),
            implementation=cell.implementation,
        )  # fmt: skip


def _numbers(frame: Frame, at: int) -> list[str]:
    found: list[str] = []
    measured = frame.numbers.of(at)
    for name in sorted(measured.keys() & QUANTITIES.keys(), key=_PLACES.__getitem__):
        for measurement in measured[name]:
            split, block = measurement.where.get("split", ""), measurement.where.get("block")
            of_block = f" of {block} × {block}" if block else ""
            found.append(f"{name}{of_block}{' ' if split else ''}{split} {measurement.value:.6g}")
    return found[:SHOWN_NUMBERS]


def _command(question: Question, variant: str, rows: pd.DataFrame) -> str:
    seeds = int(rows[rows["lane"] == "train"]["seed"].max()) + 1 if (rows["lane"] == "train").any() else 1
    selection = ["--selection", question.selection] if question.selection != "validation" else []
    words = ["attnbench", "run", "--variants", variant, "--task", question.task, "--preset", question.preset]
    return shlex.join([*words, "--seeds", str(seeds), *selection])


def _machine_words(frame: Frame, name: str) -> str:
    machine = frame.machines[name]
    versions = ", ".join(f"{package} {version}" for package, version in sorted(machine.versions.items()))
    device = machine.accelerators[0] if machine.accelerators else f"{machine.threads} of {machine.cores} cores"
    return f"{machine.processor}, {device}, {machine.system}" + (f"; {versions}" if versions else "")
