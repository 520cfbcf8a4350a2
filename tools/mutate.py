"""Measure the power of the fast tests: plant small faults in a copy of the tree, and count those that some test finds.

    git worktree add ../mutate/attnbench COMMIT             # a copy: never a tree that somebody works in
    python tools/mutate.py draw --tree ../mutate/attnbench --out places.json
    python tools/mutate.py map --tree ../mutate/attnbench --out calls.json
    python tools/mutate.py run --tree ../mutate/attnbench --places places.json --calls calls.json --state state.jsonl
    python tools/mutate.py table before.jsonl after.jsonl

A place is a file, a function, the text of a statement and the number of the change within it, so that the same fault
can be planted in a later tree, where lines have other numbers; where the function or the statement is no more, it is
"gone". `run --renamed old=new` finds statements in which a name has changed since. `tools/planted.json` adds faults
that a person wrote. `map` runs the fast tests once and notes which test calls which function, in children too;
several maps, of a few folders each, add up. `run` gives each fault first to the tests of its own folder that call the
function, then, if it survives, to all others that call it: golden losses and the gate among them. Short tests come
first, one case of each test function before the second of any, until one fails or the budget is spent. `--only` gives
it to the tests of some files alone. Tests that compare tokens or versions are left out, since they fail for any
change. Each line of the state is one fault at one stage; a run that was interrupted goes on after the last.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
# folder: how many places are drawn in it
QUOTAS = {
    "variants/maps": 9, "variants/scores": 6, "variants/sparse": 9, "variants/linear": 6, "variants/low_rank": 5,
    "variants/pooling": 3, "variants/ops": 11, "variants/kernels/dispatch.py": 1, "variants/mask.py": 2,
    "variants/contract.py": 4, "bench/core": 5, "bench/stats": 8, "bench/score": 8, "bench/train": 9, "bench/models": 8,
    "bench/measure": 6, "bench/store": 4, "bench/gate": 4, "bench/plan": 3, "tasks/synthetic": 7, "tasks/lra": 9,
    "tasks/language_modeling": 4, "tasks/problems": 4, "tasks/translation": 4,
}  # fmt: skip
# another part of the same work removes these
LEAVE_OUT = ("fingerprint", "executor_settings", "captured_step", "device_tokens", "energy", "gpu.py", "fused_softmax")
TOKENS = "not changed_code_has_a_raised_version and not nothing_is_fingerprinted and not test_negative_results"
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


def heads(function: ast.FunctionDef) -> Iterator[tuple[ast.stmt, list[ast.expr]]]:
    """Each statement with the expressions of its own, without the statements inside it."""
    for node in ast.walk(function):
        if isinstance(node, ast.stmt) and node is not function and not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node, [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]


def text_of(statement: ast.stmt, own: list[ast.expr]) -> str:
    return f"{type(statement).__name__}: {' | '.join(ast.unparse(part) for part in own)}"


def changes(statement: ast.stmt, own: list[ast.expr]) -> Iterator[tuple[str, Callable[[], None]]]:
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
    for node in (found for part in own if part is not annotation for found in ast.walk(part)):
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


def candidates(source: str) -> Iterator[tuple[str, str, str, int]]:
    """(function, text of the statement, kind of change, its number) of each change that a file can take."""
    for name, function in functions(ast.parse(source)):
        for statement, own in heads(function):
            for number, (kind, _) in enumerate(changes(statement, own)):
                yield name, text_of(statement, own), kind, number


def draw(tree: Path, seed: int, quotas: dict[str, int]) -> list[Place]:
    """Places by quota, one in a function, few in a file, the kinds of change in turns."""
    chosen: list[Place] = []
    generator = random.Random(seed)
    for folder, quota in quotas.items():
        files = sorted((tree / folder).rglob("*.py")) if (tree / folder).is_dir() else [tree / folder]
        pool = []
        for file in files:
            if not any(word in str(file) for word in LEAVE_OUT) and file.name != "__init__.py":
                relative = str(file.relative_to(tree))
                pool += [(relative, *found) for found in candidates(file.read_text(encoding="utf-8"))]
        generator.shuffle(pool)
        used, kinds, per_file = set(), Counter(place.change for place in chosen), Counter()
        for number in range(quota):
            free = [
                found for found in pool if found[:2] not in used and per_file[found[0]] < 1 + 2 * quota / len(files)
            ]
            if not free:
                break
            # the rarest kind so far; of equals the first drawn
            file, function, text, kind, at = min(free, key=lambda found: kinds[found[3]])
            used.add((file, function))
            kinds[kind] += 1
            per_file[file] += 1
            chosen.append(Place(f"{folder}:{number}", file, function, text, kind, at))
    return chosen


def planted(source: str, place: Place) -> str | None:
    """The source with the fault; None where its function or statement is no more."""
    for name, function in functions(ast.parse(source)):
        if name != place.function:
            continue
        for statement, own in heads(function):
            if text_of(statement, own) != place.text:
                continue
            if place.change == "written":
                return spliced(source, statement, place.new)
            kind, apply = list(changes(statement, own))[place.number]
            if kind == "dropped":
                return spliced(source, statement, "pass")
            before = [ast.unparse(part) for part in own]
            apply()
            if isinstance(statement, ast.AugAssign):
                return spliced(source, statement, ast.unparse(statement))
            for part, text in zip(own, before, strict=True):
                if ast.unparse(part) != text:
                    return spliced(source, part, f"({ast.unparse(part)})")
    return None


def renamed(place: Place, words: list[str]) -> Place:
    """The place as it is called after names have changed, each given as `old=new`."""
    function, text, new = place.function, place.text, place.new
    for old, _, word in (each.partition("=") for each in words):
        function, text, new = (re.sub(rf"\b{old}\b", word, found) for found in (function, text, new))
    return replace(place, function=function, text=text, new=new)


def spliced(source: str, node: ast.stmt | ast.expr, text: str) -> str:
    """The source with the text of one node replaced; columns of ast count bytes."""
    lines = source.encode().split(b"\n")
    before = [*lines[: node.lineno - 1], lines[node.lineno - 1][: node.col_offset]]
    after = [lines[(node.end_lineno or 0) - 1][node.end_col_offset :], *lines[node.end_lineno :]]
    return (b"\n".join(before) + text.encode() + b"\n".join(after)).decode()


def environment(tree: Path, **more: str) -> dict[str, str]:
    """A home and a cache of its own, since a fault in the store may write anywhere."""
    home = tree.parent / "home"
    home.mkdir(exist_ok=True)
    paths = [str(tree.parent), str(tree / "tests" / "support"), str(HERE)]
    own = {"HOME": str(home), "OMP_NUM_THREADS": "1", "MUTATE_TREE": str(tree), "PYTHONPATH": os.pathsep.join(paths)}
    return os.environ | own | more


def pytest_run(tree: Path, arguments: list[str], seconds: int, log: Path, **more: str) -> int | None:
    """The exit code after at most so many seconds of processor time; None where it hung. Nothing is left alive."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    limit = ["prlimit", f"--cpu={seconds}"]
    with log.open("w") as out:
        child = subprocess.Popen(
            limit + command, cwd=tree, env=environment(tree, **more), stdout=out, stderr=out, start_new_session=True
        )
        try:
            # on a busy machine a second of processor time takes long
            return child.wait(20 * seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def make_map(tree: Path, out: Path, arguments: list[str]) -> None:
    """Runs the fast tests once; writes which of those that passed call which function, and the seconds of each."""
    with tempfile.TemporaryDirectory() as folder:
        calls, log = Path(folder, "calls"), out.with_suffix(".log")
        Path(folder, "sitecustomize.py").write_text("import record_calls\n")
        paths = os.pathsep.join([folder, environment(tree)["PYTHONPATH"]])
        chosen = ["-m", FAST, "-k", TOKENS, "-p", "record_calls", *arguments]
        pytest_run(tree, chosen, 7200, log, PYTHONPATH=paths, MUTATE_CALLS=str(calls))
        seconds: dict[str, float] = {}
        callers: defaultdict[str, set[str]] = defaultdict(set)
        lines = [line.split("\t") for line in calls.read_text().split("\n")[:-1]]
    for test, second, third in lines:
        if second == "passed":
            seconds[test] = float(third)
        elif second != "failed":
            callers[f"{second}:{third}"].add(test)
    found = {place: sorted(tests & seconds.keys()) for place, tests in sorted(callers.items())}
    # several runs, of a few folders each, add up
    known = json.loads(out.read_text()) if out.exists() else {"seconds": {}, "calls": {}}
    for place, tests in known["calls"].items():
        found[place] = sorted({*found.get(place, []), *tests})
    out.write_text(json.dumps({"seconds": known["seconds"] | seconds, "calls": found}))
    print(f"{len(seconds)} tests passed, {sum(seconds.values()):.0f} s, {len(found)} functions called; {log}")


def in_turns(tests: list[str], seconds: dict[str, float], budget: float) -> list[str]:
    """Within the budget: one case of each test function, short ones first, then a second case of each, and so on."""
    turns: list[tuple[int, float, str]] = []
    cases: Counter[str] = Counter()
    for test in sorted(tests, key=lambda test: (seconds[test], test)):
        function = test.partition("[")[0]
        turns.append((cases[function], seconds[test], test))
        cases[function] += 1
    chosen, total = [], 0.0
    for _, cost, test in sorted(turns):
        if total + cost <= budget:
            chosen.append(test)
            total += cost
    return chosen


def stages(place: Place, tests: list[str], only: list[str]) -> dict[str, list[str]]:
    """The tests that call the function of a place, by stage."""
    if only:
        return {f"only {' '.join(only)}": [test for test in tests if test.startswith(tuple(only))]}
    # tests of bench/train/objectives lie in tests/bench/train
    parts = Path("tests", place.file).parts[:3]
    folder = "/".join(part for part in parts if not part.endswith(".py")) + "/"
    # tests of variants/mask.py and of tasks/sweep.py lie in the folder itself, not in those below it
    near = [test for test in tests if test.startswith(folder) and (folder.count("/") > 2 or test.count("/") == 2)]
    return {"folder": near, "rest": sorted(set(tests) - set(near))}


def run(tree: Path, places: list[Place], calls: Path, state: Path, only: list[str], budget: float) -> None:
    known = json.loads(calls.read_text())
    seconds: dict[str, float] = known["seconds"]
    before = lines_of(state)
    done = {(line["name"], line["stage"]) for line in before}
    over = {line["name"] for line in before if line["outcome"] != "survived"}
    for place in places:
        tests = known["calls"].get(f"{place.file}:{place.function}", [])
        for stage, chosen in stages(place, tests, only).items():
            if (place.name, stage) in done or place.name in over:
                continue
            some = in_turns(chosen, seconds, budget)
            found = with_fault(tree, place, some, int(60 + 3 * sum(map(seconds.__getitem__, some))), state)
            line = asdict(place) | {"stage": stage, "tests": len(some), "of": len(chosen)} | found
            with state.open("a") as out:
                out.write(json.dumps(line) + "\n")
            print(f"{place.name} {stage}: {line['outcome']} {line['by']}", flush=True)
            if line["outcome"] != "survived":
                over.add(place.name)


def is_there(tree: Path, place: Place) -> bool:
    path = tree / place.file
    return path.exists() and planted(path.read_text(encoding="utf-8"), place) is not None


def with_fault(tree: Path, place: Place, tests: list[str], seconds: int, state: Path) -> dict[str, str]:
    """What becomes of one fault; the file is as it was afterwards."""
    path = tree / place.file
    clean = path.read_text(encoding="utf-8") if path.exists() else ""
    faulty = planted(clean, place)
    if faulty is None:
        return {"outcome": "gone", "by": ""}
    if not tests:
        return {"outcome": "survived", "by": "no test calls it"}
    names, log = state.with_suffix(".tests"), state.with_suffix(".log")
    names.write_text("\n".join(tests))
    try:
        path.write_text(faulty, encoding="utf-8")
        code = pytest_run(tree, ["-x", f"@{names}"], seconds, log)
    finally:
        path.write_text(clean, encoding="utf-8")
    return verdict(code, log.read_text(errors="replace"))


def verdict(code: int | None, log: str) -> dict[str, str]:
    """What an exit code of pytest and its output say of a fault."""
    if code == 0:
        return {"outcome": "survived", "by": ""}
    if code is None or code in (-signal.SIGKILL, -signal.SIGXCPU):
        # a loop without end, or a machine that had other work: no test has failed
        return {"outcome": "timeout", "by": ""}
    failed = [line for line in log.split("\n") if line.startswith(("FAILED", "ERROR"))]
    if code in (4, 5):
        # pytest could not start: a test of the map is no more, or the fault breaks what all tests load
        return {"outcome": "unclear", "by": f"exit code {code}"}
    return {"outcome": "killed", "by": failed[0][:200] if failed else f"exit code {code}"}


def lines_of(state: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in state.read_text().split("\n")[:-1]] if state.exists() else []


def table(before: Path, after: Path | None) -> None:
    """Killed of all, by folder, of the places that are in both trees; then those that not both sides killed."""
    sides = [ended(lines_of(path)) for path in (before, after) if path]
    both = [name for name in sides[0] if all(name in side and side[name]["outcome"] != "gone" for side in sides)]
    print("| places | number |" + " before | after |"[: 9 * len(sides)] + "\n|---|--:|" + "--:|" * len(sides))
    groups = defaultdict(list)
    for name in both:
        file = sides[0][name]["file"]
        groups["planted by hand" if sides[0][name]["change"] == "written" else file.partition("/")[0]].append(name)
    for group, names in groups.items():
        killed = [sum(side[name]["outcome"] == "killed" for name in names) for side in sides]
        print(f"| {group} | {len(names)} | {' | '.join(map(str, killed))} |")
    for name in both:
        outcomes = [side[name]["outcome"] for side in sides]
        if set(outcomes) != {"killed"}:
            line = sides[0][name]
            where = f"{line['file']} {line['function']}: {line['change']} {line['number']}"
            print(f"- {' → '.join(outcomes)}: {where} of `{line['text'][:90]}`")
    print(f"gone: {[name for name in sides[0] if name not in both]}")


def ended(lines: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    """The last stage of each place."""
    return {line["name"]: line for line in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("draw", "map", "run"):
        command = commands.add_parser(name)
        command.add_argument("--tree", type=Path, required=True, help="a copy that nobody works in")
    commands.choices["draw"].add_argument("--seed", type=int, default=30)
    commands.choices["draw"].add_argument(
        "--quotas", type=json.loads, help='faults by folder, such as {"bench/stats": 30}; without it a choice of all'
    )
    for name in ("draw", "map"):
        commands.choices[name].add_argument("--out", type=Path, required=True)
    commands.choices["map"].add_argument("tests", nargs="*", default=["tests"])
    for name in ("places", "calls", "state"):
        commands.choices["run"].add_argument(f"--{name}", type=Path, required=True)
    commands.choices["run"].add_argument("--renamed", nargs="*", default=[], metavar="OLD=NEW")
    commands.choices["run"].add_argument("--only", nargs="*", default=[], help="beginnings of test names")
    commands.choices["run"].add_argument("--names", default="", help="the beginning of the names of places")
    commands.choices["run"].add_argument("--planted", type=Path, default=HERE / "planted.json", help="faults by hand")
    commands.choices["run"].add_argument("--budget", type=float, default=40, help="seconds of tests in each stage")
    shown = commands.add_parser("table")
    shown.add_argument("before", type=Path)
    shown.add_argument("after", type=Path, nargs="?")
    asked = parser.parse_args()
    if asked.command == "draw":
        places = draw(asked.tree.resolve(), asked.seed, asked.quotas or QUOTAS)
        asked.out.write_text(json.dumps([asdict(place) for place in places], indent=1))
        print(len(places), Counter(place.change for place in places))
    elif asked.command == "map":
        make_map(asked.tree.resolve(), asked.out.resolve(), asked.tests)
    elif asked.command == "run":
        places = [Place(**entry) for file in (asked.planted, asked.places) for entry in json.loads(file.read_text())]
        chosen = [place for place in places if place.name.startswith(asked.names)]
        tree = asked.tree.resolve()
        found = [place if is_there(tree, place) else renamed(place, asked.renamed) for place in chosen]
        run(tree, found, asked.calls, asked.state.resolve(), asked.only, asked.budget)
    else:
        table(asked.before, asked.after)


if __name__ == "__main__":
    main()
