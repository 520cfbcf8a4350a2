"""Measure the power of the fast tests: plant small faults in a copy of the tree, and count those that some test finds.

    git worktree add ../copy/attnbench COMMIT               # a copy: never a tree that somebody works in
    python tools/mutate.py draw ../copy/attnbench before.jsonl bench/gate=10 variants/sparse=5
    python tools/mutate.py run ../copy/attnbench before.jsonl before.jsonl
    python tools/mutate.py run ../later/attnbench before.jsonl after.jsonl
    python tools/mutate.py table before.jsonl after.jsonl

A place is a file, a function, the text of a statement and the number of the change within it, so that the same fault
can be planted in a later tree, where lines have other numbers. A statement that has moved to another file is found
there; `--renamed old=new` finds one in which names have changed; what is in no file is "gone". A state is a list of
places too: each line is one fault at one stage of the tests. A run that was interrupted goes on after the last.

The stages are, until a test fails: the test that killed the fault before; then the fast test files of the folder that
mirrors the file, that of the same name first, and those that name the function or the module. At the end the tests that
killed run without a fault, since one that fails by itself has found nothing. Tests that compare tokens or versions are
left out: they fail for any change. mutmut and cosmic-ray plant such faults too, but know them by a number within a
function or a file, which changes with the code around it, and cannot find them again in a later tree.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

FOLDERS = ("bench", "variants", "tasks", "dashboards")
# code that only runs on a GPU, and fingerprints of code, which see any change
LEAVE_OUT = ("fingerprint", "captured_step", "device_tokens", "energy", "gpu.py", "triton", "__init__")
TOKENS = "not changed_code_has_a_raised_version and not nothing_is_fingerprinted and not test_negative_results"
EXAMPLES = "tests/architecture/test_docstrings.py::test_the_examples_of_a_module_hold[{}]"
FAST = "not slow and not soak and not gpu"
SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "amin": "amax", "amax": "amin", "any": "all", "all": "any", "cos": "sin",
         "sin": "cos", "minimum": "maximum", "maximum": "minimum", "floor": "ceil", "ceil": "floor"}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """One fault: `change` number `number` of the statement `text` in `function` of `file`; or `text` becomes `new`."""

    name: str
    file: str
    function: str
    text: str
    change: str
    number: int = 0
    new: str = ""


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods with their qualified names; an inner function belongs to the outer one."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{item.name}", item) for item in node.body if isinstance(item, ast.FunctionDef))


def statements(source: str) -> Iterator[tuple[str, str, ast.stmt, list[ast.expr]]]:
    """Each statement in a function: the function, the text of the statement, and its own expressions."""
    for name, function in functions(ast.parse(source)):
        for node in ast.walk(function):
            if (
                isinstance(node, ast.stmt)
                and node is not function
                and not isinstance(node, ast.FunctionDef | ast.ClassDef)
            ):
                parts = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
                yield name, f"{type(node).__name__}: {' | '.join(map(ast.unparse, parts))}", node, parts


def changes(statement: ast.stmt, parts: list[ast.expr]) -> Iterator[tuple[str, Callable[[], None]]]:
    """The changes that can be made in one statement, each with its kind and the function that makes it."""
    if isinstance(statement, ast.AugAssign) and type(statement.op) in SWAPS:
        yield "operator", lambda: setattr(statement, "op", SWAPS[type(statement.op)]())
    call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    # without `super().__init__()` nothing works at all, which tells nothing
    if (call and "super()" not in ast.unparse(statement)) or isinstance(statement, ast.AugAssign):
        yield "dropped", lambda: None
    if isinstance(statement, ast.Raise | ast.Assert):
        return
    annotation = statement.annotation if isinstance(statement, ast.AnnAssign) else None
    for node in (inner for part in parts if part is not annotation for inner in ast.walk(part)):
        if isinstance(node, ast.BinOp) and type(node.op) in SWAPS and not isinstance(node.left, ast.JoinedStr):
            yield "operator", lambda node=node: setattr(node, "op", SWAPS[type(node.op)]())
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield "comparison", lambda node=node: node.ops.__setitem__(0, SWAPS[type(node.ops[0])]())
        elif isinstance(node, ast.BoolOp):
            yield "operator", lambda node=node: setattr(node, "op", SWAPS[type(node.op)]())
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield "constant", lambda node=node: setattr(node, "value", not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield "constant", lambda node=node: setattr(node, "value", node.value + 1)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield "operator", lambda node=node: setattr(node, "op", ast.UAdd())
        elif isinstance(node, ast.Call) and len(node.args) > 1 and ast.dump(node.args[0]) != ast.dump(node.args[1]):
            yield "arguments", lambda node=node: node.args.__setitem__(slice(0, 2), node.args[1::-1])
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            yield "name", lambda node=node: setattr(node, "attr", NAMES[node.attr])


class Sources:
    """The source files of a tree: their texts, and the file and function of each statement by its text."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts
        self.holders: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for file, source in texts.items():
            for function, text, _, _ in statements(source):
                self.holders[text].append((file, function))


def sources_in(tree: Path, *folders: str) -> dict[str, str]:
    paths = [path for folder in folders for path in sorted((tree / folder).rglob("*.py"))]
    return {str(path.relative_to(tree)): path.read_text(encoding="utf-8") for path in paths}


def draw(tree: Path, seed: int, quotas: dict[str, int], since: Path | None) -> list[Place]:
    """Places by folder, one in a function and few in a file, the kinds of change in turns; no statement of `since`."""
    before = sources_in(since, *FOLDERS) if since else {}
    old = {item[:2] for source in before.values() for item in statements(source)}
    generator = random.Random(seed)
    chosen: list[Place] = []
    kinds: Counter[str] = Counter()
    for folder, quota in quotas.items():
        pool = []
        for file, source in sources_in(tree, folder).items():
            if any(word in file for word in LEAVE_OUT):
                continue
            for function, text, statement, parts in statements(source):
                if (function, text) not in old:
                    pool += [(file, function, text, kind, at) for at, (kind, _) in enumerate(changes(statement, parts))]
        generator.shuffle(pool)
        files = {item[0] for item in pool}
        for number in range(quota):
            used = [(place.file, place.function) for place in chosen]
            most = 1 + 2 * quota // max(1, len(files))
            free = [item for item in pool if item[:2] not in used and [file for file, _ in used].count(item[0]) < most]
            if not free:
                break
            # the rarest kind so far; of equals the first drawn
            best = min(free, key=lambda item: kinds[item[3]])
            kinds[best[3]] += 1
            chosen.append(Place(f"{folder}:{number}", *best))
    return chosen


def planted(source: str, place: Place) -> str | None:
    """The source with the fault; None where its function or statement is no more."""
    for name, text, statement, parts in statements(source):
        if (name, text) != (place.function, place.text):
            continue
        if place.change == "written":
            return spliced(source, statement, place.new)
        kind, apply = list(changes(statement, parts))[place.number]
        if kind == "dropped":
            return spliced(source, statement, "pass")
        before = [ast.unparse(part) for part in parts]
        apply()
        if isinstance(statement, ast.AugAssign):
            return spliced(source, statement, ast.unparse(statement))
        for part, old in zip(parts, before, strict=True):
            if ast.unparse(part) != old:
                return spliced(source, part, f"({ast.unparse(part)})")
    return None


def spliced(source: str, node: ast.stmt | ast.expr, text: str) -> str:
    """The source with the text of one node replaced; columns of ast count bytes."""
    lines = source.encode().split(b"\n")
    before = [*lines[: node.lineno - 1], lines[node.lineno - 1][: node.col_offset]]
    after = [lines[(node.end_lineno or 0) - 1][node.end_col_offset :], *lines[node.end_lineno :]]
    return (b"\n".join(before) + text.encode() + b"\n".join(after)).decode()


def located(place: Place, sources: Sources, renamed: dict[str, str]) -> Place | None:
    """The place in this tree: where it was, under new names, or in the only other function with that statement."""
    entry = asdict(place)
    for old, new in renamed.items():
        for key in ("function", "text", "new"):
            entry[key] = re.sub(rf"\b{old}\b", new, entry[key])
    later = Place(**entry)
    for candidate in (place, later):
        if planted(sources.texts.get(place.file, ""), candidate):
            return candidate
    moved = [Place(**entry | {"file": file, "function": function}) for file, function in sources.holders[later.text]]
    same = [found for found in moved if found.function == later.function] or moved
    return same[0] if len(same) == 1 else None


def test_files(tree: Path) -> dict[str, str]:
    """Test files with their text, without those that test the text of files."""
    paths = sorted((tree / "tests").rglob("test_*.py"))
    files = {str(path.relative_to(tree)): path.read_text(encoding="utf-8") for path in paths}
    examples = EXAMPLES.partition("::")[0]
    return {file: text for file, text in files.items() if file == examples or file.split("/")[1] != "architecture"}


def killers(by: str, files: dict[str, str]) -> list[str]:
    """The test that killed a fault before, with all its cases, in whatever file it is now."""
    file, _, test = re.sub("^(FAILED|ERROR) ", "", by).partition("::")
    if EXAMPLES.startswith(f"{file}::"):
        return [f"{file}::{test.partition(' - ')[0]}"]
    name = re.split(r"\W", test)[0]
    holders = [path for path, text in files.items() if name and f"def {name}(" in text]
    return [f"{path}::{name}" for path in holders if path == file or len(holders) == 1]


def near(place: Place, source: str, files: dict[str, str]) -> list[str]:
    """The examples of docstrings, test files of the same folder, and those that name the function or the module."""
    path = Path("tests", place.file)
    words = {path.stem, *place.function.split(".")} - {"__init__"}
    same = str(path.with_name(f"test_{path.name}"))
    # tests of variants/mask.py lie in the folder itself, not in those below it
    inside = {file for file in files if Path(file).parent.parts[:3] == path.parent.parts[:3]}
    named = {file: len(words & set(re.findall(r"\w+", text))) for file, text in files.items()}
    found = [file for file in files if named[file] or file in inside]

    def distance(file: str) -> tuple[bool, bool, bool, int]:
        return file != same, file not in inside, Path(file).parent != path.parent, -named[file]

    examples = [EXAMPLES.format(place.file)] if ">>> " in source else []
    return examples + sorted(found, key=distance)


def run(tree: Path, entries: list[dict[str, Any]], state: Path, renamed: dict[str, str], budget: int) -> None:
    """Plants each fault, runs its tests, and adds a line to the state for each stage."""
    files, sources = test_files(tree), Sources(sources_in(tree, *FOLDERS))
    known = [line for line in lines_of(state) if "stage" in line]
    done = {(line["name"], line["stage"]) for line in known}
    killed = {line["name"] for line in known if line["outcome"] == "killed"}
    for entry in entries:
        before = Place(**{field.name: entry[field.name] for field in fields(Place) if field.name in entry})
        place = located(before, sources, renamed)
        stages = {"gone": [""]}
        if place is not None:
            source = sources.texts[place.file]
            stages = {"killer": killers(entry.get("by", ""), files), "near": near(place, source, files)}
        for stage, tests in stages.items():
            if before.name in killed or (before.name, stage) in done or not tests:
                continue
            outcome, by = "gone", ""
            if place is not None:
                outcome, by = with_fault(tree, place, source, tests, budget, state)
            if outcome == "killed":
                killed.add(before.name)
            line = asdict(place or before) | {"stage": stage, "outcome": outcome, "by": by}
            with state.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
            print(f"{before.name} {stage}: {outcome} {by}", flush=True)
    tests = sorted({test for line in last_lines(state).values() for test in killers(line.get("by", ""), files)})
    if tests:
        # one that fails by itself has found nothing
        print(f"{len(tests)} tests without a fault: {pytest_run(tree, tests, 3600, state.with_suffix('.log'))}")


def with_fault(tree: Path, place: Place, text: str, tests: list[str], budget: int, state: Path) -> tuple[str, str]:
    """The outcome of one fault, and the test that found it; the file is as it was afterwards."""
    path, log = tree / place.file, state.with_suffix(".log")
    try:
        path.write_text(planted(text, place) or "", encoding="utf-8")
        outcome = pytest_run(tree, ["-x", *tests], budget, log)
    finally:
        path.write_text(text, encoding="utf-8")
    failed = [line for line in log.read_text(errors="replace").split("\n") if line.startswith(("FAILED", "ERROR"))]
    return outcome, failed[0][:200] if failed and outcome == "killed" else ""


def verdict(code: int | None) -> str:
    """The outcome of a fault by the exit code of pytest."""
    if code is None or code in (-signal.SIGKILL, -signal.SIGXCPU):
        # more tests than the budget, or a loop without end: no test has failed
        return "budget"
    # 2: a file cannot be read, perhaps without a fault either, 4: a test is no more, 5: none is fast
    return {0: "survived", 2: "unclear", 4: "unclear", 5: "survived"}.get(code, "killed")


def prepare(tree: Path) -> None:
    """Sets the environment of all runs: the package of this tree, and a home, since a fault may write anywhere."""
    folder, home = tree.parent / "attnbench-0.dist-info", tree.parent / "home"
    folder.mkdir(exist_ok=True)
    home.mkdir(exist_ok=True)
    # entry points as this tree states them; those that are installed may be another tree's
    stated = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = []
    for group, names in (stated["entry-points"] | {"console_scripts": stated["scripts"]}).items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in names.items())]
    (folder / "METADATA").write_text(distribution("attnbench").read_text("METADATA") or "", encoding="utf-8")
    (folder / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    paths = [str(tree.parent), str(tree / "tests" / "support")]
    sys.path[:0] = paths
    os.environ |= {"HOME": str(home), "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": ""}


def pytest_run(tree: Path, arguments: list[str], seconds: int, log: Path) -> str:
    """The outcome of so many seconds of processor time at most. Nothing is left alive."""
    # a fork of this process, which has imported what takes most of the start
    child = multiprocessing.get_context("fork").Process(target=_pytest, args=(tree, arguments, seconds, log))
    child.start()
    # on a busy machine a second of processor time takes long
    child.join(10 * seconds)
    code = child.exitcode
    with suppress(ProcessLookupError):
        os.killpg(child.pid or 0, signal.SIGKILL)
    child.join()
    return verdict(code)


def _pytest(tree: Path, arguments: list[str], seconds: int, log: Path) -> None:
    import pytest

    os.setsid()
    os.chdir(tree)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    sys.exit(int(pytest.main(["-q", "-p", "no:cacheprovider", "-m", FAST, "-k", TOKENS, *arguments])))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line] if path.exists() else []


def last_lines(path: Path) -> dict[str, dict[str, Any]]:
    """The last stage of each place."""
    return {line["name"]: line for line in lines_of(path)}


def table(paths: list[Path]) -> None:
    """Killed of all, by folder, of the places that are in all trees; then those that some side did not kill."""
    sides = [{name: line.get("outcome", "gone") for name, line in last_lines(path).items()} for path in paths]
    kept = [name for name in sides[0] if all(side.get(name, "gone") != "gone" for side in sides)]
    groups = defaultdict(list)
    for name in kept:
        groups[name.partition(":")[0]].append(name)
    for group, names in [*groups.items(), ("all", kept)]:
        killed = [sum(side[name] == "killed" for name in names) for side in sides]
        print(f"| {group} | {len(names)} | {' | '.join(map(str, killed))} |")
    for name, line in last_lines(paths[0]).items():
        outcomes = [side.get(name, "gone") for side in sides]
        if set(outcomes) != {"killed"}:
            where = f"{line['file']} {line['function']}: {line['change']} {line['number']}"
            print(f"- {' → '.join(outcomes)}: {name} {where} of `{line['text'][:90]}`")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing, running, showing = (commands.add_parser(name) for name in ("draw", "run", "table"))
    for command in (drawing, running):
        command.add_argument("tree", type=Path, help="a copy that nobody works in")
    drawing.add_argument("out", type=Path, help="file of the places")
    drawing.add_argument("quotas", nargs="+", metavar="FOLDER=NUMBER", help="how many faults in each folder")
    drawing.add_argument("--seed", type=int, default=30)
    drawing.add_argument("--since", type=Path, metavar="TREE", help="leave out statements of this older tree")
    running.add_argument("places", type=Path, help="what `draw` wrote, or the state of an earlier tree")
    running.add_argument("state", type=Path, help="gets a line for each fault and stage")
    running.add_argument("--renamed", nargs="*", default=[], metavar="OLD=NEW")
    running.add_argument("--names", default="", help="the beginning of the names of places")
    running.add_argument("--budget", type=int, default=40, help="seconds of processor time of each stage")
    showing.add_argument("states", type=Path, nargs="+")
    asked = parser.parse_args()
    if asked.command == "table":
        return table(asked.states)
    tree = asked.tree.resolve()
    if asked.command == "draw":
        quotas = {folder: int(number) for folder, number in (quota.split("=") for quota in asked.quotas)}
        places = draw(tree, asked.seed, quotas, asked.since)
        asked.out.write_text("".join(json.dumps(asdict(place)) + "\n" for place in places), encoding="utf-8")
        return print(len(places), Counter(place.change for place in places))
    prepare(tree)
    # imported once, before the forks; all of the tree itself is imported behind them
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401

    entries = [entry for name, entry in last_lines(asked.places).items() if name.startswith(asked.names)]
    run(tree, entries, asked.state.resolve(), dict(word.split("=") for word in asked.renamed), asked.budget)


if __name__ == "__main__":
    main()
