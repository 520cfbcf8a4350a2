"""Version notes: Records of other versions than the present one, variants without current ones, and repetitions."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from ..core.cell import LANE_VERSIONS, LEAST_SEEDS
from ..core.harness import NAME, is_edited
from ..score.key import BoardKey
from ..stats.format import counted, listed
from ..store.rows import (
    NOT_RANKED,
    REPEATED,
    ResultRow,
    installed_version,
    is_disputed,
    problem_of,
    taken_over,
    tested,
    version_order,
)
from ..store.table import ResultTable
from .board import Note
from .notes import note, some


def version_notes(table: ResultTable, runs: Sequence[ResultRow], boards: Iterable[tuple[str, str]]) -> Iterator[Note]:
    """The number of `runs` of another version than the present one, and the harness that made them.

    Then how many Records do not count, by reason; `boards`: their tasks and presets.
    """
    older, present = _older_versions(runs)
    now = some([f"{name} {number}" for name, number in sorted(present.items())])
    for version, count in older.items():
        yield note("stale", some=f"{count:,}", all=f"{len(runs):,}", version=version, now=now)
    edited = sum(is_edited(table.records[row.at].machine.versions) for row in runs)
    made = Counter(table.records[row.at].machine.versions.get(NAME, "not stated") for row in runs)
    if len(made) > 1 or "not stated" in made or edited:
        words = some([f"{name} ({count:,})" for name, count in sorted(made.items())])
        if edited:
            words += f"; {edited:,} of {len(runs):,} were made by an edited harness"
        yield note("harness", kind="warning" if edited else "fact", made=words)
    wanted = set(boards)
    reasons: Counter[str] = Counter()
    for (task, preset, reason), count in table.replaced.items():
        reasons[reason] += count if (task, preset) in wanted else 0
    for reason, count in sorted((+reasons).items()):
        yield note("not_counted", count=counted(count, "older Record"), reason=reason)


def describe_stale(runs: Sequence[ResultRow]) -> str:
    """The number of `runs` of another version than the present one, in brief; empty where none is."""
    count = sum(_older_versions(runs)[0].values())
    if not count:
        return ""
    return "older version" if count == len(runs) else f"{count:,} of {len(runs):,} Records of an older version"


def outdated(runs: Sequence[ResultRow]) -> str:
    """The sentence of a headline for Records of an older task than is installed; empty where none is."""
    tasks = {run.task.partition("[")[0] for run in runs}
    newer = sorted(f"{task} version {now}" for task, now in _older_versions(runs)[1].items() if task in tasks)
    what = f"older than what is installed ({listed(newer)})"
    return f"These Records are {what}: measure anew before you conclude." if newer else ""


def left_behind_notes(table: ResultTable, board_keys: Sequence[BoardKey], names: Collection[str]) -> Iterator[Note]:
    """The variants that are no rows, since only Records of another version or an older preset are there.

    `names`: the variants that are rows. The command measures those anew that are older than the rows.
    """
    for board_key in board_keys:
        runs = board_key.runs(table, "train")
        here = {row.variant for row in runs}
        behind = {
            row.variant: row
            for row in _passed_over(table, board_key)
            if row.stale in NOT_RANKED and row.variant not in here and row.variant not in names
        }
        ranked = max((version_order(version) for version in {row.version for row in runs}), default=())
        # where a board is older than a variant, it is the others that are to be measured
        old = sorted(name for name, row in behind.items() if version_order(row.version) <= ranked)
        new = sorted(set(behind) - set(old))
        if old:
            anew = f"measure anew: `{command(old, board_key)}`"
            yield note("behind", count=counted(len(old), "variant"), what=anew)
        if new:
            ahead = f"measured only at a newer one, not yet complete: {some(new)}"
            yield note("behind", count=counted(len(new), "variant"), what=ahead)


def takeover_notes(table: ResultTable, board_keys: Sequence[BoardKey]) -> Iterator[Note]:
    """The variants of which newer code has taken the place of a complete set of older code."""
    named: dict[str, str] = {}
    for board_key in board_keys:
        counted_rows = {row.variant: row for row in board_key.runs(table, "train")}
        for variant, (code, since, seeds) in sorted(taken_over(_passed_over(table, board_key)).items()):
            if (now := counted_rows.get(variant)) is not None:
                words = f"{variant} (code {now.variant_code} in place of {seeds} seeds of {code} from {since})"
                named.setdefault(variant, words)
    if named:
        yield note("takeover", names=some(list(named.values())))


def repetition_notes(table: ResultTable, board_keys: Sequence[BoardKey]) -> Iterator[Note]:
    """Cells that were measured more than once: how many, and one value that does not count."""
    yield from dispute_notes(table, board_keys)
    repeated = [
        (first[row.key], row)
        for board_key in board_keys
        for first in [{row.key: row for row in board_key.runs(table, "train")}]
        for row in _passed_over(table, board_key)
        if row.stale == REPEATED and row.key in first
    ]
    for first, row in repeated[:1]:
        metric = row.metric or first.metric
        names = [metric.name] if metric else ["accuracy", "bleu", "bits_per_character"]
        mine, theirs = (
            next((f"{m.value:.4g}" for name in names if (m := table.number(name, at, split="test"))), "no score")
            for at in (row.at, first.at)
        )
        example = f"{row.variant} at seed {row.seed}: {mine} on {row.machine}, beside {theirs} on {first.machine}"
        yield note("repeated", what=f"{len(repeated):,} repeated results ignored (the first counts)", example=example)


def dispute_notes(table: ResultTable, board_keys: Sequence[BoardKey]) -> Iterator[Note]:
    """The number of cells that somebody has measured again with a result too far off, and one of them."""
    disputed = []
    for board_key in board_keys:
        counted_rows = {row.key: row for row in board_key.runs(table, "train")}
        for row in _passed_over(table, board_key):
            first = counted_rows.get(row.key)
            if row.stale != REPEATED or first is None or _code(row) != _code(first):
                continue
            ours, theirs = (tested(table.records[each.at]) for each in (row, first))
            if ours is not None and theirs is not None and is_disputed(ours, theirs):
                disputed.append((first, row))
    if disputed:
        first, row = disputed[0]
        where = f"machines {first.machine} and {row.machine} found too different ones"
        example = f"{row.variant} at seed {row.seed}"
        what = f"{counted(len(disputed), 'result')} disputed: {where}"
        yield note("repeated", kind="warning", what=what, example=example)


def _code(row: ResultRow) -> tuple[str, str, str]:
    return row.version, row.data_code, row.variant_code


def command(names: Sequence[str], board_key: BoardKey) -> str:
    """The command that measures these variants on the board's task, quoted for a shell, to which brackets are patterns.

    >>> key = BoardKey(task="lra-text", preset="quick", selection="validation", fidelity="official", protocol=1)
    >>> command(["rela", "linear"], key)
    'attnbench run --variants rela,linear --task lra-text --preset quick --seeds 3'
    >>> command(["rela[impl=eager]"], key)
    "attnbench run --variants 'rela[impl=eager]' --task lra-text --preset quick --seeds 3"
    """
    selection = [] if board_key.selection == "validation" else ["--selection", board_key.selection]
    words = ["attnbench", "run", "--variants", ",".join(names), "--task", board_key.task, "--preset", board_key.preset]
    return shlex.join([*words, "--seeds", str(LEAST_SEEDS), *selection])


def _older_versions(runs: Sequence[ResultRow]) -> tuple[Counter[str], dict[str, int]]:
    """The number of `runs` by each other version; and the present versions of lanes, objectives and tasks, by name."""
    older: Counter[str] = Counter()
    present: dict[str, int] = {}
    # of one task all have one problem, but for the first Records, which kept no preset that tells it
    kinds = Counter((run.lane, run.task, run.version, "steps" in run.setting) for run in runs)
    settings = {(run.task, "steps" in run.setting): run.setting for run in runs}
    for (lane, task, version, has_preset), count in kinds.items():
        problem, name = problem_of(settings[task, has_preset]), task.partition("[")[0]
        present_of = {"lane": (lane, LANE_VERSIONS[lane]), "objective": (problem.objective, problem.objective_version)}
        if (now := installed_version(name)) < math.inf:
            # infinite for a plugin's, which this process does not import
            present_of["task"] = name, int(now)
        found = re.findall(r"(lane|objective|task)(\d+)", version)
        made_by = {part: int(number) for part, number in found if part in present_of}
        behind = [part for part, (_, number) in present_of.items() if made_by.get(part) != number]
        if made_by and not made_by.keys() & behind:
            continue
        older[version] += count
        # what a version does not state is told of lanes, and of objectives where a preset names them
        stated = {*made_by, "lane", *(["objective"] if has_preset else [])}
        present |= {present_of[part][0]: present_of[part][1] for part in behind if part in stated}
    return older, present


def _passed_over(table: ResultTable, board_key: BoardKey) -> Iterator[ResultRow]:
    for row in table.passed_over(board_key.task, board_key.preset, board_key.fidelity, board_key.protocol):
        if row.lane == "train" and row.selection == board_key.selection:
            yield row
