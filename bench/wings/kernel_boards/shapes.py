"""Shapes at which kernels were timed on a GPU, each in two modes and perhaps in several processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ...core.cell import LEAST_ROUNDS, REFERENCE
from ...core.record import Measurement
from ...core.spec import Spec
from ...score.cost import Mode, RelativeCost, costs_by_variant
from ...score.key import BoardKey
from ...stats.intervals import Estimate, mean_estimate, mean_of
from ...stats.scoring import log_ratio
from ...store.rows import newest
from ...store.table import ResultTable

RATE = "kernel_flops_per_second"
BLOCK = 64

WORK = {"forward": 1.0, "backward": 2.5, "both": 3.5}
"""Nominal FLOPs over those of a forward pass. A backward pass makes the scores once more: five products for two."""

MODES: Mapping[str, Mode] = {"forward": "forward", "both": "step"}
"""The mode of a sweep that times each; a backward pass is the difference of both and a forward pass."""

LEAST_PROCESSES = 3
"""The number of processes from which on an interval is over these: they differ by more than the rounds of one."""

TOLD = {
    "batch", "length", "tokens", "heads", "kv_heads", "head_dim",
    "dtype", "causal", "input", "level", "mode", "process",
}  # fmt: skip
"""Parameters of a sweep that the title tells, or that make no other shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShape:
    """`title`: the shape in words; `setting`: of its Records; `keys`: boards of its processes, for both and forward."""

    table: ResultTable
    title: str
    setting: Mapping[str, Any]
    keys: Mapping[str, Sequence[BoardKey]]

    def costs(self, work: str) -> list[dict[str, RelativeCost]]:
        """The costs of all variants, by process."""
        return [costs_by_variant(self.table, key, MODES[work]) for key in self.keys.get(work, ())]

    def processes(self, work: str, name: str) -> list[RelativeCost]:
        """The costs of a variant in the processes that it was timed in; empty where it failed in one of them."""
        found = [costs[name] for costs in self.costs(work) if name in costs]
        return found if all(cost.seconds for cost in found) else []

    def seconds(self, work: str, name: str) -> float | None:
        """Median of the medians of the processes; of a backward pass the difference of two of these."""
        if work == "backward":
            both, forward = self.seconds("both", name), self.seconds("forward", name)
            return both - forward if both and forward and both > forward else None
        found = self.processes(work, name)
        return median(each.median for each in found) if found else None

    def best(self, work: str) -> str:
        """The fastest dense kernel; empty where none ran."""
        dense = {name for costs in self.costs(work) for name in costs if Spec.parse(name).name == REFERENCE}
        timed = {name: seconds for name in sorted(dense) if (seconds := self.seconds(work, name)) is not None}
        return min(timed, key=timed.__getitem__, default="")

    def over_best(self, work: str, name: str) -> Estimate | None:
        """Log-ratio of its time to that of the best dense kernel, in the same rounds."""
        best = self.best(work)
        pairs = [(costs[name], costs[best]) for costs in self.costs(work) if {name, best} <= costs.keys()]
        logs = [log for mine, theirs in pairs if (log := _log_ratio(mine, theirs)) is not None]
        if not logs or not self.processes(work, name):
            return None
        return mean_estimate([log.value for log in logs]) if len(logs) >= LEAST_PROCESSES else mean_of(logs)

    def between(self, work: str, name: str) -> float | None:
        """Medians of the processes: the largest less the smallest, over their median."""
        medians = [each.median for each in self.processes(work, name)]
        return (max(medians) - min(medians)) / median(medians) if len(medians) > 1 else None

    def measured(self, name: str, quantity: str, **where: object) -> list[Measurement]:
        """The measurements of the variant, by process: of both first."""
        rows = [each.row for work in ("both", "forward") for each in self.processes(work, name)]
        return [found for row in rows if (found := self.table.number(quantity, row, **where)) is not None]

    def number(self, name: str, quantity: str, **where: object) -> float | None:
        return next((found.value for found in self.measured(name, quantity, **where)), None)

    def rate(self, work: str, name: str) -> float | None:
        """Nominal TFLOP/s, by 4 · batch · heads · length² · width of a head, half of them where it is causal."""
        one, seconds = self.setting, self.seconds(work, name)
        full = 4e-12 * int(one["batch"]) * int(one["width"]) * int(one["length"]) ** 2
        return WORK[work] * full * (0.5 if one.get("causal") else 1.0) / seconds if seconds else None

    def executed(self, work: str, name: str) -> float | None:
        """TFLOP/s of the scores that it computes, in blocks that are not empty."""
        rate, density = self.rate(work, name), self.number(name, "declared_density")
        empty = self.number(name, "block_sparsity", block=BLOCK)
        return rate and rate * (1.0 if density is None else density) * (1.0 - (empty or 0.0))

    def of_product(self, work: str, name: str) -> float | None:
        """The rate over what a large product of its precision reached in the same processes."""
        keys, rate = self.keys.get("both" if work == "backward" else work, ()), self.rate(work, name)
        reached = [m.value for m in rates(self.table, keys, kernel="product", dtype=self.setting.get("dtype"))]
        return 1e12 * rate / median(reached) if rate and reached else None


def kernel_shapes(table: ResultTable, board_keys: Sequence[BoardKey]) -> dict[tuple[str, str], list[KernelShape]]:
    """The shapes of attention alone in whose processes known kernels were timed too, by machine and preset."""
    found: dict[tuple[str, str], dict[str, dict[str, list[BoardKey]]]] = {}
    settings: dict[str, Mapping[str, Any]] = {}
    for key in sorted(board_keys):
        setting = next((run.setting for run in key.runs(table, "time") if run.setting.get("length")), {})
        work = next((work for work, mode in MODES.items() if mode == setting.get("mode")), "")
        measured = {"batch", "heads", "width", "length"} <= setting.keys() and setting.get("level") == "attention"
        if work and measured and next(rates(table, [key]), None) is not None:
            # one shape may have two names, by its tokens and by its batch
            title = _title(setting, key.task)
            found.setdefault((key.machine, key.preset), {}).setdefault(title, {}).setdefault(work, []).append(key)
            settings[title] = setting
    return {
        group: [
            KernelShape(table=table, title=title, setting=settings[title], keys=keys)
            for title, keys in sorted(shapes.items(), key=lambda item: _order(settings[item[0]]))
        ]
        for group, shapes in found.items()
    }


def claimed(*groups: Sequence[KernelShape]) -> set[BoardKey]:
    """The boards that these shapes are made of, which need no other."""
    return {key for shapes in groups for shape in shapes for keys in shape.keys.values() for key in keys}


def rates(table: ResultTable, keys: Sequence[BoardKey], pace: str = "cooled", **where: object) -> Iterator[Measurement]:
    """The rates that known kernels reached in the processes of these boards."""
    for run in (run for key in keys for run in newest(key.runs(table, "time"), "variant")):
        for measured in table.named(RATE, run.at):
            if (where | {"pace": pace}).items() <= measured.where.items() and measured.value > 0:
                yield measured


def _log_ratio(mine: RelativeCost, theirs: RelativeCost) -> Estimate | None:
    """The log-ratio by rounds where they shared them, with or without the reference; else through the reference."""
    if mine.block == theirs.block and len(mine.seconds) == len(theirs.seconds) >= LEAST_ROUNDS:
        return log_ratio(mine.seconds, theirs.seconds)
    ran = all(each.cost is not None and not each.disturbed for each in (mine, theirs))
    return theirs.advantage_over(mine) if ran else None


def _order(setting: Mapping[str, Any]) -> tuple[object, ...]:
    """Sort key: the width of a head, then what else is no number, and the length."""
    width = int(setting["width"]) // max(int(setting["heads"]), 1)
    return width, *(str(setting.get(axis)) for axis in ("input", "causal", "dtype", "heads")), int(setting["length"])


def _title(setting: Mapping[str, Any], task: str) -> str:
    """The shape, and what else tells it from others."""
    heads, keys = int(setting["heads"]), setting.get("kv_heads")
    shape = f"{setting['batch']} × {setting['length']:,} tokens, {heads} heads"
    shape += f" ({keys} of keys)" * bool(keys) + f" of {int(setting['width']) // max(heads, 1)}"
    words = [shape, setting.get("dtype"), "causal" if setting.get("causal") else "full", setting.get("input")]
    more = [f"{name}={value}" for name, value in Spec.parse(task).parameters if name not in TOLD]
    # a stranger's Record may have words of any length
    return ", ".join(str(word)[:60] for word in [*words, *more] if word)
