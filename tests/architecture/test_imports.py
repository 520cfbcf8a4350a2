"""Who may import whom, read from the source; and what the light commands cost."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import attnbench

ROOT = Path(attnbench.__file__).parent
FOLDERS = ("bench", "variants", "tasks", "dashboards")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
}

ALLOWED = {
    "core": set(),
    "stats": {"core"},
    "store": {"core", "stats"},
    "process": {"core"},
    "plan": {"core", "store", "process"},
    "models": {"core"},
    "measure": {"core", "models"},
    "gate": {"core", "models", "measure"},
    "train": {"core", "models", "measure", "stats"},
    "run": {"core", "stats", "store", "process", "plan", "models", "measure", "gate", "train"},
    "score": {"core", "stats", "store"},
    "board": {"core", "stats", "store", "score"},
}
ALLOWED["api"] = set(ALLOWED)
ALLOWED["cli"] = ALLOWED["api"] | {"api"}
ALLOWED["wings"] = ALLOWED["cli"] | {"cli"}
"""Which packages of bench/ each of them may import; late imports and those for typing count too."""

MOST_OF_CHECK, MOST_OF_LEADERBOARD = 60, 62
"""How many files `attnbench check` and `attnbench leaderboard` may reach."""

NO_TORCH = ("core", "stats", "store", "process", "plan", "score", "board")
"""Packages that never import torch, not even late: they run where Records are read."""

DOWN = {
    "variants": {
        "maps": {"ops", "kernels", "kernels/cpu", ""},
        "scores": {"ops", "kernels", "kernels/cpu", ""},
        "sparse": {"ops", "kernels", "kernels/cpu", ""},
        "linear": {"ops", "kernels", "kernels/cpu", ""},
        "low_rank": {"ops", ""},
        "pooling": {"ops", "kernels", ""},
        "wrappers": {"ops", ""},
        "integrations": {"ops", ""},
        "ops": {""},
        "kernels": {"kernels/triton", "kernels/cpu", "ops", ""},
        "kernels/cpu": {"ops", ""},
        "kernels/triton": {"ops", ""},
        "": set(),
    },
    "tasks": {
        "": set(),
        "problems": {"", "data"},
        "data": {"", "problems"},
        "lra/_text": {"", "data"},
        "lra/_image": {"", "data"},
        "lra/_listops": {"", "data"},
        "lra/_pathfinder": {"", "data"},
        "lra": {"", "data", "problems", "lra/_text", "lra/_image", "lra/_listops", "lra/_pathfinder"},
        "language_modeling": {"", "data", "problems"},
        "translation": {"", "data", "problems"},
        "synthetic": {"", "problems"},
    },
}
"""Which folders of variants/ and tasks/ each of them may import, from the root of both."""


def imports(name, only_at_import=False, typing=False):
    """Dotted names that a module of ours imports: ours from the root on, others as they are.

    `only_at_import`: those alone that run when it is imported; `typing`: those for type checkers as well.
    """
    return _imports(name, only_at_import, typing)


@cache
def _imports(name, only_at_import, typing):
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in reached(ast.parse(path.read_text()), only_at_import, typing):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1], *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                inner = ".".join([*base, alias.name])
                found.add(inner if inner in MODULES else ".".join(base))
    return frozenset(found)


def reached(node, only_at_import, typing):
    """The nodes that run; with `only_at_import` those that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if not typing and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        if not (only_at_import and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            yield from reached(child, only_at_import, typing)


def with_parents(name):
    """A module and the packages that are imported on the way to it."""
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts) + 1)}


def closure(start, only_at_import):
    """All that importing `start` imports, ours and others'."""
    found, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            if name in MODULES:
                for target in imports(name, only_at_import):
                    waiting += with_parents(target) if target in MODULES else [target]
    return found


def tops(names):
    return {name.split(".")[0] for name in names}


def ours(name):
    return {target for target in imports(name) if target.split(".")[0] in FOLDERS}


def below(package):
    return [name for name in MODULES if name == package or name.startswith(package + ".")]


def test_the_reader_of_imports_sees_what_is_there():
    assert "torch" in imports("variants.maps.softmax") and "variants.contract" in imports("variants.maps.softmax")
    assert "bench.core.registry" in imports("variants")
    assert "bench.core.registry" not in imports("variants", only_at_import=True)
    assert {"torch", "numpy"} <= tops(closure("bench.run.worker", only_at_import=True))


@pytest.mark.parametrize("package", NO_TORCH)
def test_what_reads_records_and_makes_boards_needs_no_torch(package):
    for name in below(f"bench.{package}"):
        assert "torch" not in tops(closure(name, only_at_import=False)), name


def test_every_file_of_bench_is_in_a_package_that_the_table_knows():
    assert {name.split(".")[1] for name in MODULES if name.startswith("bench.")} <= ALLOWED.keys()
    assert {path.name for path in (ROOT / "bench").glob("*.py")} == {"__init__.py"}


@pytest.mark.parametrize("package", ALLOWED)
def test_arrows_between_the_packages_of_bench_go_down_only(package):
    for name in below(f"bench.{package}"):
        for target in imports(name, typing=True):
            if target.startswith("bench.") and target.split(".")[1] != package:
                assert target.split(".")[1] in ALLOWED[package], f"{name} imports {target}"


def folder_of(name):
    """The folder of a module below its top package, '' for the top itself."""
    return MODULES[name].parent.relative_to(ROOT / name.split(".")[0]).as_posix().removeprefix(".")


def test_wings_stand_beside_each_other_on_one_floor():
    for name in below("bench.wings"):
        for target in imports(name, typing=True):
            if target.startswith("bench.wings."):
                assert target.split(".")[2] == name.split(".")[2], f"{name} imports {target}"


@pytest.mark.parametrize(
    ("door", "most"),
    [("bench.cli.check", MOST_OF_CHECK), ("bench.cli.leaderboard", MOST_OF_LEADERBOARD), ("bench.cli.app", 40)],
)
def test_whoever_changes_a_command_of_the_core_depends_on_few_files(door, most):
    """Late imports count too; packages that hold a docstring alone do not."""
    reached = {name for name in closure(door, only_at_import=False) if name in MODULES}
    files = {name for name in reached if len(ast.parse(MODULES[name].read_text()).body) > 1}
    assert len(files) <= most, f"{len(files)} files: {sorted(files)}"


def test_whoever_reads_a_board_never_reaches_the_trainer():
    reached = closure("bench.cli.leaderboard", only_at_import=False)
    assert not [name for name in reached if name.startswith(("bench.train", "bench.run", "bench.models"))]
    assert "torch" not in tops(reached)


@pytest.mark.parametrize("top", DOWN)
def test_arrows_between_folders_of_variants_and_tasks_go_down_only(top):
    for name in below(top):
        if name == top:
            continue  # the package itself re-exports
        here = folder_of(name)
        for target in imports(name, typing=True):
            if target in MODULES and target.split(".")[0] == top and folder_of(target) != here:
                assert folder_of(target) in DOWN[top][here], f"{name} imports {target}"


def test_the_dashboards_need_no_torch():
    for name in below("dashboards"):
        assert "torch" not in tops(closure(name, only_at_import=False)), name


def test_the_command_line_needs_neither_torch_nor_pandas_before_a_command_runs():
    needed = tops(closure("bench.cli", only_at_import=True))
    assert not needed & {"torch", "pandas", "numpy"}


def test_rich_is_for_dashboards_and_the_command_line_alone():
    for name in MODULES:
        if not name.startswith(("dashboards", "bench.cli", "bench.wings")):
            assert not tops(imports(name)) & {"rich", "typer"}, name


def test_every_text_of_a_command_passes_one_place():
    """Text of others must not reach a terminal as it is, so no command prints by itself."""
    for name in below("bench.cli") + below("bench.wings"):
        if name != "bench.cli.output":
            text = MODULES[name].read_text(encoding="utf-8")
            calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
            assert not {ast.unparse(call) for call in calls} & {"print", "typer.echo", "typer.secho", "Console"}, name


CONTRACT = {
    "bench.core." + name for name in ("spec", "errors", "record", "cell", "hashing", "metrics", "files", "decode")
}


@pytest.mark.parametrize("folder", ["variants", "tasks"])
def test_variants_and_tasks_know_their_contract_and_no_part_of_the_harness(folder):
    for name in below(folder):
        if name == "variants":
            continue  # its `build` is the door from outside, and asks the registry
        for target in ours(name):
            assert target.split(".")[0] == folder or target in CONTRACT, f"{name} imports {target}"


def test_build_asks_the_registry_and_nothing_else_of_the_harness():
    assert {t for t in ours("variants") if t.startswith("bench")} <= CONTRACT | {"bench.core.registry"}
    assert ours("variants").isdisjoint(imports("variants", only_at_import=True))


def test_the_harness_knows_of_variants_and_tasks_only_their_contracts_and_where_data_lies():
    for name in below("bench"):
        known = {"variants.contract", "variants", "tasks.contract", "tasks.data.data", "tasks.sweep_point"}
        known |= {f"tasks.problems.{kind}" for kind in ("language_modeling", "token_prediction")}
        if name.startswith("bench.wings.translation."):
            known |= {"tasks.translation.problem"}
        if name == "bench.cli.data":  # the command that gets, verifies and exports
            known |= {f"tasks.data.{name}" for name in ("prepared", "sources", "download", "tfds")}
        if name in ("bench.run.gate_first", "bench.plan.fingerprint"):  # compiles what a gate will launch; hashes it
            known |= {"variants.kernels.gpu"}
        if name == "bench.wings.convert.convert":  # checkpoints of another library
            known |= {"variants.integrations.transformers"}
        foreign = {t for t in ours(name) if t.split(".")[0] in ("variants", "tasks")}
        assert foreign <= known, f"{name} imports {foreign - known}"


def test_only_the_command_line_renders():
    for name in below("bench"):
        if not name.startswith(("bench.cli", "bench.wings")):
            assert not any(t.startswith("dashboards") for t in ours(name)), name


SHOWN = {"bench.board.board", "bench.board.report"}


def test_dashboards_see_a_board_and_nothing_behind_it():
    for name in below("dashboards"):
        for target in ours(name):
            assert target.split(".")[0] == "dashboards" or target in SHOWN, f"{name} imports {target}"
    # a board and a report are values: `Board.to_pandas` imports pandas when it is called, and nothing else may
    for name in SHOWN:
        assert ours(name) <= SHOWN | {"bench.stats.ranking"} and "torch" not in tops(imports(name)), name
        assert "pandas" not in tops(imports(name, only_at_import=True)), name


def test_imports_inside_the_package_are_relative():
    for name in MODULES:
        assert "attnbench" not in tops(imports(name)), name


def test_nothing_imports_in_a_circle():
    # late imports and those for typing count too: a circle that is hidden is still one
    state = {}

    def visit(name, path):
        assert state.get(name) != "open", " → ".join([*path[path.index(name) :], name])
        if name not in state:
            state[name] = "open"
            for target in sorted(t for t in imports(name, typing=True) if t in MODULES):
                visit(target, [*path, name])
            state[name] = "closed"

    for name in MODULES:
        if MODULES[name].name != "__init__.py":
            visit(name, [])


def test_the_root_module_imports_nothing_before_a_name_of_its_own_is_used():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    at_import = list(reached(tree, only_at_import=True, typing=False))
    assert not [node for node in at_import if isinstance(node, ast.Import | ast.ImportFrom)]
    # pytest imports it under the name of the clone's folder, where `attnbench` may be another copy
    foreign = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    assert foreign <= {"importlib", "typing"}


@pytest.mark.parametrize("use", ["", "attnbench.boards, attnbench.run, attnbench.AttnbenchError"])
def test_importing_the_package_and_naming_its_functions_imports_nothing_heavy(use):
    heavy = {"torch", "pandas", "numpy", "typer", "rich", "transformers"}
    script = f"import sys, attnbench\n{use}\nprint(sorted({heavy!r} & sys.modules.keys()))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("[]\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["list", "variants"], ["list", "tasks", "--json"]])
def test_help_and_lists_import_neither_torch_nor_pandas(arguments):
    script = (
        "import sys\n"
        "from attnbench.bench.cli.main import main\n"
        f"sys.argv = ['attnbench', *{arguments!r}]\n"
        "try:\n    code = main()\nexcept SystemExit as end:\n    code = end.code\n"
        "print(sorted({'torch', 'pandas', 'numpy'} & sys.modules.keys()), code or 0, file=sys.stderr)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.stderr == "[] 0\n"
    assert run.stdout
