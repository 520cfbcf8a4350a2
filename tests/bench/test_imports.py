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
WITHOUT_TORCH = ("errors", "spec", "cell", "record", "registry", "store", "digest", "suite", "plan")
WITHOUT_TORCH += ("frame", "score", "board", "job", "lengthboard", "shorter", "longest")


def imports(name, only_at_import=False):
    """Dotted names that a module of ours imports: ours from the root on, others as they are. For typing: left out."""
    return _imports(name, only_at_import)


@cache
def _imports(name, only_at_import):
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in reached(ast.parse(path.read_text()), only_at_import):
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


def reached(node, only_at_import):
    """The nodes that run; with `only_at_import` those that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        if not (only_at_import and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            yield from reached(child, only_at_import)


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


def below(folder):
    return [name for name in MODULES if name.split(".")[0] == folder]


def test_the_reader_of_imports_sees_what_is_there():
    assert "torch" in imports("variants.softmax") and "variants.contract" in imports("variants.softmax")
    assert "variants.contract" in imports("variants")
    assert "variants.contract" not in imports("variants", only_at_import=True)
    assert {"torch", "numpy"} <= tops(closure("bench.worker", only_at_import=True))


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_what_stands_left_and_right_of_the_worker_needs_no_torch(name):
    assert "torch" not in tops(closure(f"bench.{name}", only_at_import=False))


def test_the_dashboards_need_no_torch():
    for name in below("dashboards"):
        assert "torch" not in tops(closure(name, only_at_import=False)), name


def test_the_command_line_needs_neither_torch_nor_pandas_before_a_command_runs():
    needed = tops(closure("bench.cli", only_at_import=True))
    assert not needed & {"torch", "pandas", "numpy"}


def test_rich_is_for_dashboards_and_the_command_line_alone():
    for name in MODULES:
        if not name.startswith(("dashboards", "bench.cli")):
            assert not tops(imports(name)) & {"rich", "typer"}, name


CONTRACT = {"bench.spec", "bench.errors", "bench.record", "bench.cell"}


@pytest.mark.parametrize("folder", ["variants", "tasks"])
def test_variants_and_tasks_know_their_contract_and_no_part_of_the_harness(folder):
    for name in below(folder):
        if name == "variants":
            continue  # its `build` is the door from outside, and asks the registry
        for target in ours(name):
            assert target.split(".")[0] == folder or target in CONTRACT, f"{name} imports {target}"


def test_build_asks_the_registry_and_nothing_else_of_the_harness():
    assert {t for t in ours("variants") if t.startswith("bench")} <= CONTRACT | {"bench.registry"}
    assert ours("variants").isdisjoint(imports("variants", only_at_import=True))


def test_the_harness_knows_of_variants_and_tasks_only_their_contracts_and_where_data_lies():
    for name in below("bench"):
        known = {"variants.contract", "variants", "tasks.contract", "tasks.language", "tasks.translation", "tasks.data"}
        known |= {"tasks.points"}
        if name == "bench.cli.data":  # the command that gets, verifies and exports
            known |= {"tasks.prepared", "tasks.checksums", "tasks.download", "tasks.recordsets"}
        foreign = {t for t in ours(name) if t.split(".")[0] in ("variants", "tasks")}
        assert foreign <= known, f"{name} imports {foreign - known}"


def test_only_the_command_line_renders():
    for name in below("bench"):
        if not name.startswith("bench.cli"):
            assert not any(t.startswith("dashboards") for t in ours(name)), name


SHOWN = {"bench.board", "bench.exhibit", "bench.triangle"}


def test_dashboards_see_a_board_and_nothing_behind_it():
    for name in below("dashboards"):
        for target in ours(name):
            assert target.split(".")[0] == "dashboards" or target in SHOWN, f"{name} imports {target}"
    # what is shown is values alone
    for name in SHOWN:
        assert ours(name) <= SHOWN | {"bench.ranks"} and not tops(imports(name)) & {"pandas", "torch"}, name


def test_imports_inside_the_package_are_relative():
    for name in MODULES:
        assert "attnbench" not in tops(imports(name)), name


def test_nothing_imports_in_a_circle():
    state = {}

    def visit(name, path):
        assert state.get(name) != "open", " → ".join([*path[path.index(name) :], name])
        if name not in state:
            state[name] = "open"
            for target in sorted(t for t in imports(name, only_at_import=True) if t in MODULES):
                visit(target, [*path, name])
            state[name] = "closed"

    for name in MODULES:
        visit(name, [])


def test_the_root_module_imports_nothing():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["list", "variants"], ["list", "tasks", "--json"]])
def test_help_and_lists_import_neither_torch_nor_pandas(arguments):
    script = (
        "import sys\n"
        "from attnbench.bench.cli import main\n"
        f"sys.argv = ['attnbench', *{arguments!r}]\n"
        "try:\n    code = main()\nexcept SystemExit as end:\n    code = end.code\n"
        "print(sorted({'torch', 'pandas', 'numpy'} & sys.modules.keys()), code or 0, file=sys.stderr)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.stderr == "[] 0\n"
    assert run.stdout
