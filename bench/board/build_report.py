"""Build report: the Report of one board, from the table of results."""

from __future__ import annotations

import base64
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..core.cell import REFERENCE
from ..core.metrics import METRICS, Metric
from ..core.record import Outcome
from ..score.cost import Mode, controls, costs_by_variant, floor_of
from ..score.key import BoardKey
from ..score.pareto import Curves
from ..score.quality import Predictions, SeedScores, metric_of, scores_by_variant
from ..score.settings import LENGTH, POSITION, by_seed, place_of, series_of
from ..stats.scoring import ratio
from ..store.learning_rates import extended, without_rates
from ..store.rows import HeadMeasurement, ResultRow, newest
from ..store.table import ResultTable
from .board import Board
from .kinds import CostBoard, cost_boards, summaries
from .length_board import LengthSweep, board_for_lengths, crossover, part_timed, sweeps, with_modes
from .report import FigureRow, FigureRows, Report, SettingCurves
from .setting_tables import BY_AXIS, RIGHT_KEY, values_at
from .task_board import board_for_task
from .version_notes import describe_stale

HEAD_METRICS = ("sparsity", "null_rate", "entropy", "attention_distance")
SHOWN_NUMBERS = 30

_ORDER = {name: at for at, name in enumerate(METRICS)}


def report_for_task(
    table: ResultTable,
    board_key: BoardKey,
    predictions: Predictions,
    curves: Curves,
    margin: float | None = None,
    maps: Maps = lambda name: None,
    room: int = 0,
    board: Board | None = None,
) -> Report:
    """The report of a task's board; `room`: characters that its attention maps may take.

    `board`: the board, where it is already there, made with the same predictions, curves and margin.
    """
    if board is None:
        board = board_for_task(table, board_key, predictions=predictions, curves=curves, margin=margin)
    metric = metric_of(table, board_key)
    trained = newest(board_key.runs(table, "train"), "key")
    runs = board_key.runs(table, "train", "time", "baseline")
    shown_maps, left_out = attention_maps(trained, maps, room)
    nulls = [ratio(control) for control in controls(costs_by_variant(table, board_key))]
    return Report(
        name=board_key.name,
        board=board,
        quality=_with_unit(metric),
        better="lower" if metric.sign < 0 else "higher",
        pareto=_pareto(board, metric),
        heads=tuple(_heads(table, trained)),
        alphas=tuple(_alphas(table, trained)),
        curves=tuple(_curves(scores_by_variant(table, board_key, predictions), curves, metric)),
        settings=tuple(_settings(table, board_key, board, metric)),
        trained=tuple(_trained_length(board, runs)),
        nulls=tuple(
            {"block": f"block {at}", "ratio": null.value, "low": null.low, "high": null.high}
            for at, null in enumerate(nulls, start=1)
        ),
        maps=shown_maps,
        maps_left_out=left_out,
        commands=_commands(board_key, runs),
        **_origin(table, runs),
    )


def reports_for_sweeps(table: ResultTable, trained: list[BoardKey], untrained: list[BoardKey]) -> list[Report]:
    """The reports of all boards of cost alone: over batch and length, and over lengths what these do not show."""
    of_cost, left = cost_boards(table, untrained)
    swept = with_modes(table, sweeps(table, trained) + sweeps(table, left, least=1))
    # what a summary shows has boards of its own, with the Records and the commands
    of_many = [replace(_report_of_cost(table, each), records=(), commands={}) for each in summaries(table, swept)]
    alone = [report_for_sweep(table, sweep, mode) for sweep, mode in swept]
    return [*(_report_of_cost(table, each) for each in of_cost), *of_many, *alone]


def report_for_sweep(table: ResultTable, sweep: LengthSweep, mode: Mode = "step") -> Report:
    """The report of a board over lengths; raises SelectionError where the mode was not timed."""
    board = board_for_lengths(table, sweep, mode)
    board_keys = list(sweep.board_keys.values())
    runs = [run for board_key in board_keys for run in board_key.runs(table, "time")]
    return Report(
        name=board.name,
        board=board,
        lengths=tuple(_lengths(table, sweep, mode)),
        timed=f"{part_timed(runs)} on {table.machines[board_keys[-1].machine].words}",
        commands=_commands(board_keys[-1], runs),
        **_origin(table, runs),
    )


def _report_of_cost(table: ResultTable, found: CostBoard) -> Report:
    runs = [run for key in found.keys for run in key.runs(table, "time")]
    board, commands = found.board, _commands(found.keys[-1], runs)
    return Report(name=board.name, board=board, commands=commands, group=found.group, **_origin(table, runs))


def report_for_suite(table: ResultTable, board: Board, board_keys: Sequence[BoardKey]) -> Report:
    """The report of a suite's board, made from the boards of these keys."""
    runs = [run for board_key in board_keys for run in board_key.runs(table, "train", "baseline")]
    tasks = {board_key.task for board_key in board_keys}
    scores = [
        {"variant": row.name, "task": column.title, "value": cell.value, "text": cell.shown("bare")}
        for _, row in board.rows
        for column, cell in zip(board.columns, row.entries, strict=True)
        if column.name in tasks and cell.value is not None
    ]
    return Report(name=board.name, board=board, suite_scores=tuple(scores), commands={}, **_origin(table, runs))


def _origin(table: ResultTable, runs: Sequence[ResultRow]) -> dict[str, Any]:
    """The fields of a Report that say which Records, machines and versions stand behind it."""
    return {
        "records": tuple(_records(table, runs)),
        "machines": {name: _describe_machine(table, name) for name in sorted({run.machine for run in runs})},
        "newest": max((run.started for run in runs), default=""),
        "stale": describe_stale(runs),
    }


def _pareto(board: Board, metric: Metric) -> tuple[FigureRow, ...]:
    points = list(_points(board, metric))
    named = _apart(points)
    return tuple({**point, "name": point["variant"] if point["variant"] in named else ""} for point in points)


def _points(board: Board, metric: Metric) -> Iterator[FigureRow]:
    for row in board.ranked:
        quality, cost, share = (board.cell(row, name) for name in (metric.name, "step_time", "frontier"))
        if quality.value is not None and cost.value is not None:
            yield {
                "variant": row.name,
                "quality": quality.value,
                "quality_low": quality.value if quality.low is None else quality.low,
                "quality_high": quality.value if quality.high is None else quality.high,
                "cost": cost.value,
                "cost_low": cost.value if cost.low is None else cost.low,
                "cost_high": cost.value if cost.high is None else cost.high,
                "on_frontier": bool(share.note),
            }


def _apart(points: Sequence[FigureRow]) -> set[str]:
    """The points on the frontier whose names, right of them, lie over no point and no name of a better one."""
    if not points:
        return set()
    wide = max(math.log(point["cost_high"]) for point in points) - min(math.log(point["cost_low"]) for point in points)
    high = max(point["quality_high"] for point in points) - min(point["quality_low"] for point in points)
    named: list[FigureRow] = []
    for point in sorted((point for point in points if point["on_frontier"]), key=lambda point: -point["cost"]):
        if not any(
            other is not point
            and -0.3 * wide * (other in named) <= math.log(other["cost"] / point["cost"]) <= 0.3 * wide
            and abs(other["quality"] - point["quality"]) <= 0.1 * high
            for other in points
        ):
            named.append(point)
    return {point["variant"] for point in named}


def _heads(table: ResultTable, runs: Sequence[ResultRow]) -> Iterator[FigureRow]:
    by_head: dict[tuple[str, str, str, int], list[float]] = {}
    for found in table.heads_of(HEAD_METRICS, runs):
        place = (found.run.variant, found.name, _layer_words(found), int(found.head))
        by_head.setdefault(place, []).append(found.value)
    # layers and heads stay in the order of the model
    for (variant, name, layer, head), values in sorted(by_head.items(), key=lambda item: item[0][:2]):
        value = math.fsum(values) / len(values)
        yield {"variant": variant, "quantity": name, "layer": layer, "head": head, "value": value}


def _alphas(table: ResultTable, runs: Sequence[ResultRow]) -> Iterator[FigureRow]:
    for found in table.heads_of(["alpha"], runs):
        layer, head = _layer_words(found), int(found.head)
        yield {"variant": found.run.variant, "layer": layer, "head": head, "seed": found.run.seed, "value": found.value}


def _layer_words(found: HeadMeasurement) -> str:
    return f"{found.attention} {int(found.layer)}".strip()


def _curves(scores: Mapping[str, SeedScores], read: Curves, metric: Metric) -> Iterator[FigureRow]:
    """The mean curves of the seeds that learned, as all numbers of a board, or of all seeds where none did."""
    wanted: list[tuple[Literal["quality", "loss"], str, float]] = [
        ("quality", f"validation_{metric.name}", metric.points), ("loss", "validation_loss", 1.0),
    ]  # fmt: skip
    for variant, own in sorted(scores.items()):
        points = [point for found in map(read, filter(None, own.compared.curves)) for point in found or ()]
        for quantity, key, scale in wanted:
            by_step: dict[int, list[float]] = {}
            for point in points:
                value = point.get(key)
                if isinstance(value, int | float) and math.isfinite(value):
                    by_step.setdefault(int(point["step"]), []).append(scale * value)
            for step, values in sorted(by_step.items()):
                yield {"variant": variant, "quantity": quantity, "step": step, **_over_seeds(values)}


def _settings(table: ResultTable, board_key: BoardKey, board: Board, metric: Metric) -> Iterator[SettingCurves]:
    """The parts of the board that are by setting, and the trials of other learning rates beside them."""
    kinds: dict[str, Literal["quality", "weight"]] = {BY_AXIS: "quality", RIGHT_KEY: "weight"}
    rates = {
        row.name: row.entries[at].text
        for _, row in board.rows
        for at, column in enumerate(board.columns)
        if column.name == "learning_rate"
    }
    for part in board.parts:
        kind, _, axis = part.name.removeprefix(f"{board_key.name}/").partition("/")
        if kind not in kinds:
            continue
        points = [
            {
                "variant": row.name, "at": float(column.name.removeprefix(f"{axis}_")), "value": cell.value,
                "low": cell.value if cell.low is None else cell.low,
                "high": cell.value if cell.high is None else cell.high,
                "rate": rates.get(row.name, ""), "chosen": True,
            }
            for _, row in part.rows
            for column, cell in zip(part.columns, row.entries, strict=True)
            if cell.value is not None
        ]  # fmt: skip
        if kinds[kind] == "quality":
            points += _other_rates(table, board_key, metric, axis, rates)
        yield SettingCurves(axis=axis, title=part.title, quantity=kinds[kind], points=tuple(points))


def _other_rates(
    table: ResultTable, board_key: BoardKey, metric: Metric, axis: str, chosen: Mapping[str, str]
) -> Iterator[FigureRow]:
    """The mean over trials at every rate of the grid that a variant did not take."""
    setting = next((run.setting for run in board_key.runs(table, "train") if run.setting.get("learning_rates")), None)
    if setting is None:
        return
    rates = extended(setting["learning_rates"], setting.get("rate_extensions", 0))
    grid, rest = {f"{rate:g}" for rate in rates}, without_rates(setting)
    found: dict[tuple[str, str], list[ResultRow]] = {}
    for row in table.trials(board_key.task, board_key.fidelity, board_key.protocol):
        rate = f"{row.setting.get('learning_rate', 0):g}"
        wanted = row.outcome == Outcome.OK and row.variant in chosen and rate != chosen[row.variant] and rate in grid
        if wanted and without_rates(row.setting) == rest:
            found.setdefault((row.variant, rate), []).append(row)
    for (variant, rate), rows in sorted(found.items()):
        seeds = by_seed(table, rows, metric.name)
        for series in series_of({place for one in seeds for place in one}):
            for at, _ in series.places if series.axis == axis else ():
                values = [metric.points * value for value in values_at(series, at, seeds)]
                yield {"variant": variant, "at": at, **_over_seeds(values), "rate": rate, "chosen": False}


def _over_seeds(values: Sequence[float]) -> dict[str, float]:
    """The mean, the lowest and the highest value."""
    return {"value": math.fsum(values) / len(values), "low": min(values), "high": max(values)}


def _trained_length(board: Board, runs: Sequence[ResultRow]) -> Iterator[FigureRow]:
    """The length of training, where a figure is over lengths."""
    lengths = [run.setting["length"] for run in runs if run.lane == "train" and "length" in run.setting]
    if lengths and any(part.name.endswith((f"/{LENGTH}", f"/{POSITION}")) for part in board.parts):
        yield {"length": lengths[-1]}


def _by_variant(runs: Sequence[ResultRow]) -> dict[str, list[ResultRow]]:
    found: dict[str, list[ResultRow]] = {}
    for run in sorted(runs, key=lambda run: run.variant):
        found.setdefault(run.variant, []).append(run)
    return found


def _lengths(table: ResultTable, sweep: LengthSweep, mode: Mode) -> Iterator[FigureRow]:
    by_length = {length: costs_by_variant(table, board_key, mode) for length, board_key in sweep.board_keys.items()}
    floor = max(floor_of(found) for found in by_length.values())
    for name in sorted({name for found in by_length.values() for name in found}):
        costs = {length: found[name] for length, found in by_length.items() if name in found}
        pays = None if name == REFERENCE else crossover({n: each.cost for n, each in costs.items()}, floor).length
        for length, each in costs.items():
            if each.cost is not None:
                ends = ratio(each.cost)
                yield {
                    "variant": name, "length": length, "seconds": each.median, "ratio": ends.value, "low": ends.low,
                    "high": ends.high, "pays": pays is not None and length >= pays,
                }  # fmt: skip


def _records(table: ResultTable, runs: Sequence[ResultRow]) -> Iterator[FigureRow]:
    words: dict[int, dict[int, str]] = {}
    for run in sorted(runs, key=lambda run: (run.variant, run.lane, run.seed)):
        yield {
            "key": run.key, "variant": run.variant, "lane": run.lane, "seed": run.seed, "outcome": run.outcome,
            "reason": run.reason, "machine": run.machine, "started": run.started, "seconds": run.seconds,
            "digest": f"{run.version}-{run.data_code}-{run.variant_code}",
            "numbers": tuple(_numbers(table, run.at, words)), "implementation": run.implementation,
        }  # fmt: skip


def _numbers(table: ResultTable, at: int, words: dict[int, dict[int, str]]) -> Iterator[str]:
    """The numbers of the whole model; those of one kind of attention have a table of their own.

    `words`: those found so far, by the identity of labels, which many Records share, and the place in them.
    """
    measured = table.measured[at]
    labels = measured.labels
    if id(labels) not in words:
        names = sorted(labels.places.keys() & METRICS.keys(), key=_ORDER.__getitem__)
        places = [place for name in names for place in labels.places[name] if "attention" not in labels[place].where]
        shown = [(place, labels[place]) for place in places[:SHOWN_NUMBERS]]
        words[id(labels)] = {place: " ".join([label.name, *_where_words(label.where)]) for place, label in shown}
    return (f"{text} {measured.values[place]:.6g}" for place, text in words[id(labels)].items())


def _with_unit(metric: Metric) -> str:
    """The title and unit of a metric; a title such as bits/character says its unit itself."""
    title, unit = metric.title, metric.display_unit
    return title if title.startswith(unit) else f"{title}, {unit}"


def _where_words(where: Mapping[str, Any]) -> Iterator[str]:
    """The words that distinguish measurements of one name."""
    if block := where.get("block"):
        yield f"of {block} × {block}"
    yield from (str(where[key]) for key in ("split", "set", "how") if key in where)
    yield from (f"{axis} {value:,.12g}" for axis, value in place_of(where))
    if where.get("shift"):
        yield "shifted"


def _commands(board_key: BoardKey, runs: Sequence[ResultRow]) -> dict[str, str]:
    """The command that measures each variant again."""
    selection = ["--selection", board_key.selection] if board_key.selection != "validation" else []
    same = ["--task", board_key.task, "--preset", board_key.preset]
    found = {}
    for variant, own in _by_variant(runs).items():
        seeds = 1 + max((run.seed for run in own if run.lane == "train"), default=0)
        words = ["attnbench", "run", "--variants", variant, *same, "--seeds", str(seeds), *selection]
        found[variant] = shlex.join(words)
    return found


def _describe_machine(table: ResultTable, name: str) -> str:
    machine = table.machines[name]
    versions = ", ".join(f"{package} {version}" for package, version in sorted(machine.versions.items()))
    device = machine.accelerators[0] if machine.accelerators else f"{machine.threads} of {machine.cores} cores"
    return f"{machine.processor}, {device}, {machine.system}" + (f"; {versions}" if versions else "")


Maps = Callable[[str], npt.NDArray[Any] | None]
"""Reads an artifact: weights of (examples, layers, heads, rows, keys); None where it is not at hand."""

SIDE = 64


def sound(maps: npt.NDArray[Any]) -> bool:
    """True if these are weights of that shape: half floats, none negative or infinite, no side above 64."""
    if maps.ndim != 5 or maps.dtype != np.float16 or 0 in maps.shape or max(maps.shape[3:]) > SIDE:
        return False
    return bool(np.isfinite(maps).all() and (maps >= 0).all())


def attention_maps(runs: Iterable[ResultRow], read: Maps, room: int) -> tuple[FigureRows, int]:
    """The maps of each variant, of its lowest seed and first example; and how many do not fit in `room` characters."""
    found: list[FigureRow] = []
    left_out = 0
    by_variant: dict[str, list[str]] = {}
    for run in sorted(runs, key=lambda run: (run.variant, run.seed)):
        if "maps" in run.artifacts:
            by_variant.setdefault(run.variant, []).append(run.artifacts["maps"])
    for variant, names in by_variant.items():
        maps = read(names[0])
        if maps is None or not sound(maps):
            continue
        _, layers, heads, height, width = maps.shape
        first = maps[0].astype(np.float64)
        if 4 * -(-first.size // 3) > room:
            left_out += 1
            continue
        tops = first.max(axis=(2, 3))
        shades = np.rint(255 * first / np.where(tops > 0, tops, 1)[:, :, None, None]).astype(np.uint8)
        text = base64.b64encode(shades.tobytes()).decode()
        room -= len(text)
        found.append(
            {
                "variant": variant, "layers": layers, "heads": heads, "rows": height, "keys": width,
                "tops": tuple(float(top) for top in tops.ravel()), "shades": text,
            }
        )  # fmt: skip
    return tuple(found), left_out
