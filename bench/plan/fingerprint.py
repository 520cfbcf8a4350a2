"""Digest: which code made a Record, as `PROTOCOL-TASK-VARIANT`, so that a changed mechanism is measured again.

Each part hashes source files with the files that they import from their own package, and the C++ source of the same
name beside one with the headers that it includes from there. Of Python, comments, docstrings, blank lines and trailing
blanks do not count, so that a better sentence invalidates nothing. Text is hashed and no syntax tree, whose form
changes with the version of Python.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from ..core.cell import REFERENCE, Cell, Lane
from ..core.hashing import content_hash
from ..core.paths import PACKAGE
from ..core.record import Provenance
from ..core.registry import TASKS, VARIANTS

_EVERY = ("bench/core/cell.py", "bench/run/worker.py", "bench/run/context.py")
_MODELS = (
    "bench/models/blocks.py", "bench/train/objectives/objective.py", "bench/train/objectives/registry.py", "bench/train/objectives/classification.py",
    "bench/train/batching.py",
)  # fmt: skip

KIND_FILES: dict[str, tuple[str, ...]] = {
    "tasks/problems/language_modeling.py": ("bench/train/objectives/language_modeling.py", "bench/models/decoder.py", "bench/measure/attention/heads.py"),
    "tasks/problems/translation.py": (
        "bench/train/objectives/translation.py", "bench/models/encoder_decoder.py", "bench/models/decoding.py", "bench/models/beam_search.py", "bench/train/objectives/bleu.py",
        "bench/measure/attention/translation.py", "bench/measure/attention/alignment.py", "bench/measure/attention/heads.py",
    ),
}  # fmt: skip
"""The files of the harness that one kind of problem alone needs, by the module that a task of that kind imports."""

PROTOCOL_FILES: dict[Lane, tuple[str, ...]] = {
    "train": (
        *_EVERY, *_MODELS, "bench/train/trainer.py", "bench/train/checkpoint.py", "bench/measure/attention/statistics.py", "bench/measure/attention/maps.py",
        "bench/run/lanes/train.py",
    ),
    "time": (
        *_EVERY, *_MODELS, "bench/train/trainer.py", "bench/measure/timer.py", "bench/measure/memory.py", "bench/measure/flops.py",
        "bench/measure/attention/synthetic.py", "bench/measure/attention/statistics.py", "bench/measure/max_length.py", "bench/run/max_length_worker.py", "bench/run/lanes/time.py",
        "bench/run/workloads/workload.py", "bench/gate/cache.py", "bench/run/workloads/training_step.py", "bench/run/workloads/sweep_point.py",
        "bench/run/lanes/timing_record.py", "bench/run/lanes/max_length.py",
    ),
    "baseline": (*_EVERY, *_MODELS, "bench/run/lanes/baseline.py"),
}  # fmt: skip
"""What any lane's numbers depend on, beside `KIND_FILES`; what only starts, stores or shows is not among them."""

VARIANT_CONTRACT = PACKAGE / "variants" / "contract.py"
TASK_CONTRACT = PACKAGE / "tasks" / "contract.py"

_BASELINE_WITH_A_MODEL = "untrained"
"""The one baseline that runs attention, that of the reference."""

DIGITS = 10

_NATIVE = (".cpp", ".h")


def digest_of_cell(cell: Cell) -> str:
    """The digest of the code that `cell` would run now; raises SelectionError for a name that is not installed."""
    if cell.lane != "baseline":
        variant = VARIANTS.source(cell.variant.name)
    else:
        variant = VARIANTS.source(REFERENCE) if cell.variant.name == _BASELINE_WITH_A_MODEL else None
    digest = digest_of(variant, TASKS.source(cell.task.name), cell.lane)
    if cell.lane != "time":
        return digest
    # a timing is a ratio to the reference in the same rounds, so the reference's code made it too
    reference = _closure_hash(VARIANTS.source(REFERENCE), VARIANT_CONTRACT)
    protocol, task, own = digest.split("-")
    return f"{protocol}-{task}-{content_hash([own, reference], DIGITS)}"


def with_data(digest: str, data: Provenance | None) -> str:
    """`digest` with the data folded into its TASK part: other originals are another measurement."""
    protocol, task, variant = digest.split("-")
    identity = [data.source, data.fidelity, data.files] if data else None
    return f"{protocol}-{content_hash([task, identity], DIGITS)}-{variant}"


def digest_of(variant: Path | None, task: Path | None, lane: Lane) -> str:
    """`PROTOCOL-TASK-VARIANT` from the source files of a variant and a task; None for a part without source."""
    names = (*PROTOCOL_FILES[lane], *_kind_files(task))
    protocol = _hash_of([PACKAGE / name for name in names], PACKAGE)
    return "-".join([protocol, _closure_hash(task, TASK_CONTRACT), _closure_hash(variant, VARIANT_CONTRACT)])


@cache
def _kind_files(task: Path | None) -> tuple[str, ...]:
    needed = closure(task.resolve(), _root(task.resolve())) if task else set()
    return tuple(name for module, names in KIND_FILES.items() if PACKAGE / module in needed for name in names)


@cache
def _closure_hash(source: Path | None, contract: Path) -> str:
    # the contract counts however it is imported: a plugin may take it from `attnbench.variants`, which is lazy
    if source is None:
        return _hash_of([], PACKAGE)
    source = source.resolve()
    root = _root(source)
    return _hash_of(closure(source, root) | closure(contract, _root(contract)), root)


def closure(source: Path, root: Path) -> set[Path]:
    """`source` and all files that it imports or includes, directly or not, from the package `root` or from ours."""
    found: set[Path] = set()
    waiting = [source]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += _included(file) if file.suffix in _NATIVE else _imported(file, root)
            waiting += [twin for twin in map(file.with_suffix, _NATIVE) if twin.is_file()]
    return found


def normalised(text: str) -> str:
    """`text` of a module without what cannot change its results.

    >>> normalised('x = 1  # one\\n\\n\\ndef f():\\n    "Says."\\n    return x   \\n')
    'x = 1\\ndef f():\\n    return x'
    """
    text = text.replace("\r\n", "\n")
    try:
        tree = ast.parse(text)
        comments = [t.start for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT]
    except (SyntaxError, tokenize.TokenError):
        return text
    lines = text.split("\n")
    inside = set(_lines_inside_strings(tree))
    for row, column in comments:
        lines[row - 1] = lines[row - 1][:column].rstrip()
        inside.discard(row)
    for first, start, last, end in _idle_strings(tree):
        before, after = _cut(lines[first - 1], start)[0], _cut(lines[last - 1], end)[1]
        lines[first - 1 : last] = [before + after] + [""] * (last - first)
        inside.difference_update(range(first, last + 1))
    kept = [line if row in inside else line.rstrip() for row, line in enumerate(lines, start=1)]
    return "\n".join(line for row, line in enumerate(kept, start=1) if line or row in inside)


def _idle_strings(tree: ast.Module) -> Iterator[tuple[int, int, int, int]]:
    """Docstrings and other strings that stand alone as a statement: first line, column, last line, column."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0


def _lines_inside_strings(tree: ast.Module) -> Iterator[int]:
    """Lines whose blanks may be part of a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.Constant) and node.end_lineno != node.lineno:
            yield from range(node.lineno, node.end_lineno or node.lineno)


def _cut(line: str, column: int) -> tuple[str, str]:
    """`line` before and after a column that counts UTF-8 bytes, as syntax trees do."""
    return line.encode()[:column].decode(), line.encode()[column:].decode()


def _imported(file: Path, root: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(_absolute(alias.name, root), [])
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if not node.level:
                yield from _files(_absolute(node.module or "", root), names)
                continue
            folder = file.parents[node.level - 1] if node.level <= len(file.parents) else file.parent
            if folder.is_relative_to(root):
                yield from _files(folder.joinpath(*(node.module or "").split(".")), names)


def _included(file: Path) -> Iterator[Path]:
    for name in re.findall(r'^#include "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE):
        if (file.parent / name).is_file():
            yield (file.parent / name).resolve()


def _absolute(module: str, root: Path) -> Path | None:
    """Where `module` would be in the package `root`, or among our variants and tasks; None for any other."""
    top, *rest = module.split(".")
    if top == root.name:
        return root.joinpath(*rest)
    return PACKAGE.joinpath(*rest) if top == "attnbench" and rest and rest[0] in ("variants", "tasks") else None


def _files(base: Path | None, names: list[str]) -> Iterator[Path]:
    if base is None:
        return
    for candidate in (base, *(base / name for name in names)):
        for file in (candidate.with_name(candidate.name + ".py"), candidate / "__init__.py"):
            if file.is_file():
                yield file.resolve()


def _root(source: Path) -> Path:
    """The folder whose files count as one piece of work: our `variants` or `tasks`, or a stranger's top package."""
    for ours in (PACKAGE / "variants", PACKAGE / "tasks"):
        if source.is_relative_to(ours):
            return ours
    folder = source.parent
    while (folder / "__init__.py").is_file() and (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _hash_of(files: Iterable[Path], root: Path) -> str:
    parts = {}
    for file in files:
        home = root if file.is_relative_to(root) else PACKAGE
        state = file.stat()
        parts[file.relative_to(home).as_posix()] = _hash_of_file(file, state.st_mtime_ns, state.st_size)
    return content_hash(parts, DIGITS)


@cache
def _hash_of_file(file: Path, changed: int, size: int) -> str:
    # a run asks for the same files once for each cell
    return hashlib.sha256(normalised(file.read_text(encoding="utf-8-sig")).encode()).hexdigest()
