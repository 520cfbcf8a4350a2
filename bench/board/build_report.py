"""Exhibition: Exhibits made of a Frame."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ..core.cell import REFERENCE
from ..core.metrics import QUANTITIES
from ..score.cost import Mode, controls, floor_of, timings_of_all
from ..score.key import Question
from ..score.matched_budget import Curves
from ..score.quality import Predictions, yardstick_of
from ..stats.metric import Yardstick
from ..stats.scoring import ratio
from ..store.rows import HeadNumber, Run, newest
from ..store.table import Frame
from .board import Board
from .length_board import Sweep, board_for_lengths, crossover
from .report import Alpha, CurveSpot, Exhibit, HeadValue, LengthSpot, NullControl, Source, Spot
from .report_maps import Maps, panels_of
from .task_board import board_for_task

HEAD_QUANTITIES = ("sparsity", "null_rate", "entropy", "attention_distance")
SHOWN_NUMBERS = 30

_PLACES = {name: at for at, name in enumerate(QUANTITIES)}


def exhibit_of_task(
    frame: Frame,
    question: Question,
    predictions: Predictions,
    curves: Curves,
    margin: float | None = None,
    maps: Maps = lambda name: None,
    room: int = 0,
    board: Board | None = None,
) -> Exhibit:
    """What a page shows of one question; `room`: characters that its attention maps may take.

    `board`: the question's, where it has been scored already with the same predictions, curves and margin.
    """
    if board is None:
        board = board_for_task(frame, question, predictions=predictions, curves=curves, margin=margin)
    yardstick = yardstick_of(frame, question)
    trained = newest(question.runs(frame, "train"), "key")
    runs = question.runs(frame, "train", "time", "baseline")
    panels, left_out = panels_of(trained, maps, room)
    controls_found = [ratio(control) for control in controls(timings_of_all(frame, question))]
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
        sources=tuple(_sources(frame, runs)),
        commands=_commands(question, runs),
        machines={name: _machine_words(frame, name) for name in sorted({run.machine for run in runs})},
    )  # fmt: skip


def exhibit_of_sweep(frame: Frame, sweep: Sweep, mode: Mode = "step") -> Exhibit:
    """What a page shows of cost over lengths; raises SelectionError where the mode was not timed."""
    board = board_for_lengths(frame, sweep, mode)
    questions = list(sweep.questions.values())
    runs = [run for question in questions for run in question.runs(frame, "time")]
    return Exhibit(
        name=board.name,
        board=board,
        lengths=tuple(_lengths(frame, sweep, mode)),
        sources=tuple(_sources(frame, runs)),
        commands=_commands(questions[-1], runs),
        machines={sweep.machine: _machine_words(frame, sweep.machine)},
    )


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


def _heads(frame: Frame, runs: Sequence[Run]) -> Iterator[HeadValue]:
    by_head: dict[tuple[str, str, str, int], list[float]] = {}
    for found in frame.heads_of(HEAD_QUANTITIES, runs):
        place = (found.run.variant, found.name, _layer_words(found), int(found.head))
        by_head.setdefault(place, []).append(found.value)
    # layers and heads stay in the order of the model
    for (variant, name, layer, head), values in sorted(by_head.items(), key=lambda item: item[0][:2]):
        value = math.fsum(values) / len(values)
        yield HeadValue(variant=variant, quantity=name, layer=layer, head=head, value=value)


def _alphas(frame: Frame, runs: Sequence[Run]) -> Iterator[Alpha]:
    for found in frame.heads_of(["alpha"], runs):
        layer, head = _layer_words(found), int(found.head)
        yield Alpha(variant=found.run.variant, layer=layer, head=head, seed=found.run.seed, value=found.value)


def _layer_words(found: HeadNumber) -> str:
    return f"{found.attention} {int(found.layer)}".strip()


def _curves(runs: Sequence[Run], read: Curves, yardstick: Yardstick) -> Iterator[CurveSpot]:
    wanted: list[tuple[Literal["quality", "loss"], str, float]] = [
        ("quality", f"validation_{yardstick.name}", yardstick.points), ("loss", "validation_loss", 1.0),
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


def _by_variant(runs: Sequence[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.variant):
        found.setdefault(run.variant, []).append(run)
    return found


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


def _sources(frame: Frame, runs: Sequence[Run]) -> Iterator[Source]:
    for run in sorted(runs, key=lambda run: (run.variant, run.lane, run.seed)):
        yield Source(
            key=run.key, variant=run.variant, lane=run.lane, seed=run.seed, outcome=run.outcome,
            reason=run.reason, machine=run.machine, started=run.started, seconds=run.seconds,
            digest=f"{run.code}-{run.variant_code}", numbers=tuple(_numbers(frame, run.at)),
            implementation=run.implementation,
        )  # fmt: skip


def _numbers(frame: Frame, at: int) -> list[str]:
    """Those of a whole model; those of one kind of attention stand in a table of their own."""
    measured = frame.numbers.of(at)
    names = sorted(measured.keys() & QUANTITIES.keys(), key=_PLACES.__getitem__)
    whole = [m for name in names for m in measured[name] if "attention" not in m.where]
    return [f"{' '.join([m.name, *_told_apart(m.where)])} {m.value:.6g}" for m in whole[:SHOWN_NUMBERS]]


def _told_apart(where: Mapping[str, Any]) -> Iterator[str]:
    """What tells measurements of one name apart, in words."""
    if block := where.get("block"):
        yield f"of {block} × {block}"
    yield from (str(where[key]) for key in ("split", "set", "how") if key in where)
    if where.get("shift"):
        yield "shifted"


def _commands(question: Question, runs: Sequence[Run]) -> dict[str, str]:
    """How to measure each variant again."""
    return {variant: _command(question, variant, own) for variant, own in _by_variant(runs).items()}


def _command(question: Question, variant: str, runs: Sequence[Run]) -> str:
    seeds = 1 + max((run.seed for run in runs if run.lane == "train"), default=0)
    selection = ["--selection", question.selection] if question.selection != "validation" else []
    words = ["attnbench", "run", "--variants", variant, "--task", question.task, "--preset", question.preset]
    return shlex.join([*words, "--seeds", str(seeds), *selection])


def _machine_words(frame: Frame, name: str) -> str:
    machine = frame.machines[name]
    versions = ", ".join(f"{package} {version}" for package, version in sorted(machine.versions.items()))
    device = machine.accelerators[0] if machine.accelerators else f"{machine.threads} of {machine.cores} cores"
    return f"{machine.processor}, {device}, {machine.system}" + (f"; {versions}" if versions else "")
