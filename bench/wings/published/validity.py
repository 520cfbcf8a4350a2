"""Hold the suite `external-validity` against published tables of language models: docs/external-validity.md."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from ...board.select import read_store
from ...cli.output import say
from ...core.errors import AttnbenchError
from ...plan.suite_file import SuiteFile, read_suite
from ...store.store import Store
from .boards import FOLDER

_SUITE = "external-validity"
# the rows that a correlation needs; draws of seeds, and of orders; the normal quantile of an interval of 95 %
FEWEST, DRAWS, _QUANTILE = 4, 2_000, 1.96

_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Ours = Mapping[str, _Floats]
"""By variant its score: one value, or one for each draw."""


class RankedTable(NamedTuple):
    """A published table. `values`: by our variant, with the sign that makes higher better."""

    paper: str
    name: str
    kind: str
    values: dict[str, float]

    def rho(self, ours: _Ours) -> _Floats:
        """Spearman's rank correlation with each draw of ours; nan where all of ours are equal."""
        scores = stats.rankdata(np.stack([ours[name] for name in self.values]), axis=0)
        theirs = stats.rankdata(list(self.values.values()))
        scores, theirs = scores - scores.mean(axis=0), theirs - theirs.mean()
        with np.errstate(invalid="ignore"):
            return np.asarray(theirs @ scores / np.sqrt((scores**2).sum(axis=0) * (theirs**2).sum()))

    def z(self, ours: _Ours) -> _Floats:
        """Fisher's z; a rho of 1 counts as half a swap of neighbours less, where z is finite."""
        most = 1 - 6 / (len(self.values) ** 3 - len(self.values))
        return np.arctanh(np.clip(self.rho(ours), -most, most))

    def p_value(self, ours: _Ours) -> float:
        """One-sided, from all orders of our scores, up to eight rows."""
        theirs = stats.rankdata(list(self.values.values()))
        found = stats.permutation_test(
            (stats.rankdata([ours[name][0] for name in self.values]),), lambda order, axis: order @ theirs,
            permutation_type="pairings", vectorized=True, alternative="greater", n_resamples=50_000,
        )  # fmt: skip
        return float(found.pvalue)


def read_tables() -> list[RankedTable]:
    """The published tables, in the order of their file."""
    found = []
    for paper in tomllib.loads((FOLDER / f"{_SUITE}.toml").read_text(encoding="utf-8"))["papers"]:
        for table in paper["tables"]:
            name = f"{paper['paper']}, {table['table']}, {table['size']}: {table['quantity']} [{paper['grade']}]"
            sign = {"higher": 1, "lower": -1}[table["better"]]
            rows = {variant: sign * value for variant, value in table["rows"].items()}
            found.append(RankedTable(paper["paper"], name, table["kind"], rows))
    return found


def read_scores(folder: Path, suite: SuiteFile) -> dict[str, _Floats]:
    """By variant its test accuracies, (tasks, seeds), where each task and seed of the suite has a good Record."""
    table, _ = read_store(Store(folder))
    found = {
        (row.variant, row.task, row.seed): table.number("accuracy", row.at, split="test")
        for row in table.current
        if row.lane == "train" and row.outcome == "ok" and row.preset == str(suite.preset)
    }
    scores = {}
    for variant in map(str, suite.variants):
        cells = [[found.get((variant, str(task), at)) for at in range(suite.seeds or 0)] for task in suite.tasks]
        if all(cell for row in cells for cell in row):
            scores[variant] = np.array([[cell.value for cell in row if cell] for row in cells])
    return scores


def resampled(scores: _Ours, random: np.random.Generator) -> dict[str, _Floats]:
    """By variant its mean over tasks for each draw of seeds, those of every task drawn by themselves."""
    return {
        name: np.take_along_axis(values[None], random.integers(values.shape[1], size=(DRAWS, *values.shape)), axis=2)
        .mean(axis=(1, 2))
        for name, values in scores.items()
    }  # fmt: skip


def pooled(tables: Sequence[RankedTable], ours: _Ours) -> _Floats:
    """The mean z of each paper's tables, averaged over papers with weights n - 3."""
    papers = [[table for table in tables if table.paper == name] for name in dict.fromkeys(t.paper for t in tables)]
    weights = np.array([np.mean([len(table.values) - 3 for table in paper]) for paper in papers])
    z = np.stack([np.mean([table.z(ours) for table in paper], axis=0) for paper in papers])
    return np.asarray(weights @ z / weights.sum())


def shuffled(ours: _Ours, random: np.random.Generator) -> dict[str, _Floats]:
    """Orders of our variants, the same for all tables: what chance alone gives, with the variants that papers share."""
    orders = random.permuted(np.tile([float(ours[name][0]) for name in ours], (DRAWS, 1)), axis=1)
    return dict(zip(ours, orders.T, strict=True))


def report(tables: Iterable[RankedTable], scores: _Ours) -> list[str]:
    """The two tables of the page and its verdict, as lines of Markdown."""
    random = np.random.default_rng(0)
    ours = {name: np.array([values.mean()]) for name, values in scores.items()}
    seeds, chance = resampled(scores, random), shuffled(ours, random)
    lines = ["| published table | n | rho | 95 % | of seeds alone | p |", "|---|--:|--:|---|---|--:|"]
    run, complete = [], True
    for table in tables:
        n, missing = len(table.values), [name for name in table.values if name not in scores]
        state = "too few rows" if n < FEWEST else f"not run: {', '.join(missing)}" if missing else ""
        complete &= not missing
        if state := state or ("all of ours are equal" if np.isnan(table.rho(ours)[0]) else ""):
            lines.append(f"| {table.name} | {n} | {state} | | | |")
            continue
        run.append(table)
        low, high = np.nanpercentile(table.rho(seeds), [2.5, 97.5])
        # of z over samples of variants (Fieller, Hartley & Pearson 1957)
        whole = _interval(float(table.z(ours)[0]), 1.06 / float(np.sqrt(n - 3)))
        cells = f"{table.rho(ours)[0]:.2f} | {whole} | {low:.2f} to {high:.2f}"
        lines.append(f"| {table.name} | {n} | {cells} | {table.p_value(ours):.3f} |")
    lines += ["", "| pooled by paper | tables | rho | 95 % | p |", "|---|--:|--:|---|--:|"]
    verdict = "not run"
    for kind in dict.fromkeys(kind for table in run for kind in ("all", table.kind)):
        chosen = [table for table in run if kind in ("all", table.kind)]
        z, by_chance = float(pooled(chosen, ours)[0]), pooled(chosen, chance)
        spread = float(np.hypot(by_chance.std(), np.nanstd(pooled(chosen, seeds))))
        p = np.mean([*(by_chance >= z - 1e-9), True])
        lines.append(f"| {kind} | {len(chosen)} | {np.tanh(z):.2f} | {_interval(z, spread)} | {p:.3f} |")
        if kind == "all" and complete:
            verdict = "success" if np.tanh(z) >= 0.7 and np.tanh(z - _QUANTILE * spread) > 0.3 else "null"
    return [*lines, "", f"Verdict: **{verdict}** (success: rho of all at least 0.7, and its lower bound above 0.3)."]


def _interval(z: float, spread: float) -> str:
    return f"{np.tanh(z - _QUANTILE * spread):.2f} to {np.tanh(z + _QUANTILE * spread):.2f}"


def _main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("results", type=Path, help=f"the results folder of `attnbench run --suite {_SUITE}`")
    try:
        scores = read_scores(options.parse_args().results, read_suite(_SUITE))
    except AttnbenchError as error:
        raise SystemExit(f"error: {error}") from None
    say("\n".join(report(read_tables(), scores)))


if __name__ == "__main__":
    _main()
