"""Give stored Records the hashes that today's code gives their variants, where old and new code compute the same.

    git worktree add --detach OLD/attnbench 2931481
    python tools/migrate_digests.py OLD/attnbench [--fast | --preset quick] [--work FOLDER] [--write] [--name FILE.toml]

The VARIANT part of a digest is a hash of source text, so a renamed function makes a new measurement of every cell. A
Record is mapped if its hash is the one that the old checkout gives, and if of its variant

- the golden losses are equal: three steps in float64 under every objective;
- trainings and timings of `smoke` are equal, with the baselines of two tasks: outcome, implementation, curve,
  predictions, maps and every measurement but times, memory and load;
- without --fast, so are three trainings at the shapes of `quick` with their trials of learning rates, of a variant and
  a task drawn with seed 0, beside softmax. `--preset quick` makes them as long as the stored ones.

Equal means to the last bit. A timing needs this of softmax too, whose hash is part of its own. All else is listed with
the reason and stays as it is. `--write` changes the digests in results/records, and nothing else of a line, and writes
the table of what it did. `--work` keeps the runs, so that the next call goes on where this one ended; delete FOLDER/new
after a change of the code.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

NEW = Path(__file__).resolve().parents[1]
SHORT_TASKS = "max-pooled,selective-copy"
SHORT = "smoke[steps=20]"
LONGER = "quick[evaluate_every=100,steps=200,test_examples=200,validation_examples=100]"
DRAWN = 3
VARYING_UNITS = ("seconds", "cores", "J", "MHz", "°C", "1/second", "× peak")
VARYING = ("data_share", "host_bound", "captured_steps", "peak_bytes", "reserved_bytes")
SYNTHETIC = ("recall", "noisy-recall", "selective-copy", "max")

HASHES = """
import json, sys
from attnbench.bench.core.cell import Cell
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.fingerprint import variant_hash
found = []
for variant, lane in json.load(sys.stdin):
    cell = Cell(variant=Spec.parse(variant), task=Spec("max"), preset=Spec("quick"), lane=lane)
    try:
        found.append(variant_hash(cell, "cpu"))
    except Exception as error:
        found.append(f"no hash: {error}")
json.dump(found, sys.stdout)
"""

LOSSES = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("golden", "tests/golden/test_versions.py")
golden = importlib.util.module_from_spec(spec)
spec.loader.exec_module(golden)
found = {
    name: {objective: repr(golden.losses(objective, name)) for objective in golden.OBJECTIVE_VERSIONS}
    for name in json.load(sys.stdin)
}
json.dump(found, sys.stdout)
"""


class Group(NamedTuple):
    """Records whose digests end alike. `variant`: of a baseline its name."""

    variant: str
    lane: str
    code: str

    @property
    def name(self) -> str:
        return self.variant.partition("[")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("--results", type=Path, default=NEW / "results")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--preset", default=LONGER)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--name", type=Path)
    chosen = parser.parse_args()
    work = chosen.work or Path(tempfile.mkdtemp(prefix="migrate-"))
    trees = {"old": chosen.old.resolve(), "new": NEW}
    groups = Counter(group_of(record) for _, record in lines_of(chosen.results) if is_versioned(record))
    ordered = sorted(groups)
    asked = [(group.variant, group.lane) for group in ordered]
    old, new = (dict(zip(ordered, asked_of(tree, HASHES, asked), strict=True)) for tree in trees.values())
    wanted = [group for group in ordered if group.code == old[group] != new[group]]
    problems = {} if not wanted else differences(trees, wanted, work, "" if chosen.fast else chosen.preset)
    mapped: dict[Group, str] = {}
    left: dict[Group, str] = {}
    for group in ordered:
        if group.code == new[group]:
            continue
        if group not in wanted:
            left[group] = "made by older code" if not old[group].startswith("no hash") else old[group]
            continue
        names = (group.variant, *(("softmax",) if group.lane == "time" else ()))
        found = [problem for name in names for problem in problems.get(name, ())]
        if new[group].startswith("no hash"):
            found.append(new[group])
        if found:
            left[group] = "; ".join(found[:3])
        else:
            mapped[group] = new[group]
    table = "".join(table_of(groups, mapped, left))
    sys.stdout.write(table)
    if chosen.write:
        changed = rewrite(chosen.results, mapped)
        (chosen.name or chosen.results / "migration.toml").write_text(table, encoding="utf-8")
        print(f"# {changed} Records have new digests")


def differences(trees: dict[str, Path], wanted: Sequence[Group], work: Path, preset: str) -> dict[str, list[str]]:
    """By variant, how the two checkouts differ; a variant without an entry is equal, and ran."""
    found: dict[str, list[str]] = defaultdict(list)
    variants = sorted({group.variant for group in wanted if group.lane != "baseline"} | {"softmax"})
    names = sorted({variant.partition("[")[0] for variant in variants})
    losses = {label: asked_of(tree, LOSSES, names) for label, tree in trees.items()}
    for variant in variants:
        name = variant.partition("[")[0]
        for objective, value in losses["old"][name].items():
            if losses["new"][name][objective] != value:
                found[variant].append(f"golden losses of {objective} differ")
    runs = [
        ("--task", SHORT_TASKS, "--preset", SHORT, "--lanes", "train,baseline", "--variants", ",".join(variants)),
        ("--task", "sweep", "--preset", "smoke", "--lanes", "time", "--variants", ",".join(variants)),
    ]
    trained = sorted({group.variant for group in wanted if group.lane == "train"})
    pairs = [(variant, task) for variant in trained for task in SYNTHETIC]
    for variant, task in random.Random(0).sample(pairs, min(DRAWN, len(pairs))) if preset else ():
        lanes = "tune,train,baseline"
        runs.append(("--task", task, "--preset", preset, "--lanes", lanes, "--variants", f"softmax,{variant}"))
    ran: Counter[str] = Counter()
    made = {label: run_all(tree, runs, work / label) for label, tree in trees.items()}
    for cell in sorted(made["old"].keys() | made["new"].keys()):
        variant, task, _, lane, _ = cell
        one, other = made["old"].get(cell), made["new"].get(cell)
        at = f"{lane} on {task}"
        if one is None or other is None:
            found[variant].append(f"{at}: only one checkout has it")
        elif one != other:
            parts = ", ".join(part for part in one if one[part] != other.get(part))
            found[variant].append(f"{at}: {parts} differ")
        else:
            ran[variant] += one["outcome"] == "ok"
    for variant in variants:
        if not ran[variant]:
            found[variant].append("no cell of it ran")
    return found


def run_all(tree: Path, runs: Sequence[Sequence[str]], results: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What each cell of the runs gave, but for what may differ between two runs of one code."""
    for run in runs:
        command = [sys.executable, "-m", "attnbench", "run", *run, "--seeds", "1", "--threads", "1", "--jobs", "1"]
        command += ["--device", "cpu", "--results", str(results)]
        results.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(command, env=environment(tree), cwd=results, stdout=subprocess.DEVNULL)
        *options, variants = run
        if done.returncode not in (0, 1) and "," in variants:
            # a variant that one checkout does not have stops all that are asked for beside it
            run_all(tree, [(*options, variant) for variant in re.split(r",(?![^\[]*\])", variants)], results)
    return {cell_of(record): numbers_of(record, results) for _, record in lines_of(results)}


def numbers_of(record: dict[str, Any], results: Path) -> dict[str, Any]:
    kept = {part: record[part] for part in ("outcome", "implementation", "metric", "setting")}
    for measurement in record["measurements"]:
        name = measurement["name"]
        if measurement["unit"] not in VARYING_UNITS and name not in VARYING:
            where = json.dumps(measurement["where"], sort_keys=True)
            kept[f"{name} {where}"] = (measurement["value"], measurement["samples"])
    for kind, file in record["artifacts"].items():
        kept[kind] = file
        if kind == "curve":
            curve = json.loads((results / "artifacts" / file).read_text(encoding="utf-8"))
            kept[kind] = [{name: value for name, value in point.items() if "seconds" not in name} for point in curve]
    return kept


def asked_of(tree: Path, script: str, question: Any) -> Any:
    """The answer of a checkout's code to a script, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(question), capture_output=True, text=True, cwd=tree,
        env=environment(tree),
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{tree}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def environment(tree: Path) -> dict[str, str]:
    paths = f"{tree.parent}{os.pathsep}{tree / 'tests' / 'support'}"
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def lines_of(results: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted((results / "records").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").split("\n"):
            if line:
                yield path, json.loads(line)


def is_versioned(record: dict[str, Any]) -> bool:
    return str(record["digest"]).startswith("lane")


def group_of(record: dict[str, Any]) -> Group:
    return Group(record["cell"]["variant"], record["cell"]["lane"], record["digest"].rpartition("-")[2])


def cell_of(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record["cell"][part] for part in ("variant", "task", "preset", "lane", "seed"))


def rewrite(results: Path, mapped: dict[Group, str]) -> int:
    """Changes the digests of mapped Records, and no other byte; returns how many."""
    changed = 0
    for path in sorted((results / "records").glob("*.jsonl")):
        lines = path.read_text(encoding="utf-8").split("\n")
        for at, line in enumerate(lines):
            record = json.loads(line) if line else {"digest": ""}
            if is_versioned(record) and (code := mapped.get(group_of(record))):
                digest = f'"digest":"{record["digest"]}"'
                if line.count(digest) != 1:
                    raise SystemExit(f"{path}:{at + 1}: expected one {digest}")
                lines[at] = line.replace(digest, f'{digest.rpartition("-")[0]}-{code}"')
                changed += 1
        path.write_text("\n".join(lines), encoding="utf-8")
    return changed


def table_of(groups: Counter[Group], mapped: dict[Group, str], left: dict[Group, str]) -> Iterator[str]:
    yield "# Hashes of variants in the digests of Records: what tools/migrate_digests.py changed, and what it left.\n"
    for group, code in mapped.items():
        yield (
            f'\n[[mapped]]\nvariant = "{group.variant}"\nlane = "{group.lane}"\nold = "{group.code}"\nnew = "{code}"\n'
            f"records = {groups[group]}\n"
        )
    for group, reason in left.items():
        yield (
            f'\n[[left]]\nvariant = "{group.variant}"\nlane = "{group.lane}"\ncode = "{group.code}"\n'
            f"records = {groups[group]}\nreason = {json.dumps(reason)}\n"
        )


if __name__ == "__main__":
    main()
