"""Fingerprints of Records: the versions, the data and the source of the variant that made them.

A digest is `VERSIONS-DATA-VARIANT`. Versions are declared: of the lane and the objective in `bench/core/cell.py`,
of the task in its class. Only the variant's own source is hashed, its file with the operations and kernels that it
imports, so that a changed mechanism is measured again and a tidier harness is not. Of our kernels only those of the
device count: on a processor `variants/kernels/triton` is left out, on a GPU `variants/kernels/cpu`. A cell that asks
for `impl=triton` on a processor runs in Triton's interpreter, so nothing is left out there. Nothing is left out on any
other kind of device either. Comments, docstrings, imports, blank lines and the places of files do not count. Text is
hashed and no syntax tree, whose form changes with the version of Python.
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

from ...variants.kernels import gpu
from ..core.cell import LANE_VERSIONS, REFERENCE, Cell
from ..core.files import PACKAGE
from ..core.hashing import content_hash
from ..core.record import Provenance
from ..core.registry import VARIANTS
from .facts import task_facts

BASELINE_WITH_A_MODEL = "untrained"
"""The one baseline that runs attention, that of the reference."""

INTERPRETER = "interpreter"
"""In place of a device: Triton's interpreter on a processor, as on a device of which nothing is known."""

DIGITS = 10

UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""Errors of parsing a text that is no Python, or that no parser has the depth for; it is hashed as it stands."""

_NATIVE = (".cpp", ".h")

_OURS = (PACKAGE / "variants", PACKAGE / "tasks")

_KERNELS = PACKAGE / "variants" / "kernels"
_KERNELS_OF_GPUS = _KERNELS / "gpu.py"
# by kind of device, the kernels that never run there
_OF_OTHER_DEVICES = {"cpu": gpu.FOLDER, "cuda": _KERNELS / "cpu"}

# shared by all variants: what they mean is guarded by the versions of objectives, not by the variants' hashes
_CONTRACTS = frozenset(
    PACKAGE / "variants" / f"{name}.py"
    for name in ("__init__", "contract", "mask", "padding", "products", "shape", "variant", "kernels/__init__")
)


def digest_of_cell(cell: Cell, data: Provenance | None, device: str) -> str:
    """The digest of a Record that `cell` would yield now on this kind of device, such as cpu or cuda.

    Raises SelectionError for a name that is not installed.
    """
    identity = content_hash([data.source, data.fidelity, data.files] if data else None, DIGITS)
    return f"{versions_of(cell)}-{identity}-{variant_hash(cell, device)}"


def versions_of(cell: Cell) -> str:
    """Declared versions of the cell's lane, of the objective that its problem has, and of its task."""
    task = task_facts(cell.task)
    objective = "" if task.objective_version is None else f".objective{task.objective_version}"
    return f"lane{LANE_VERSIONS[cell.lane]}{objective}.task{task.version}"


def variant_hash(cell: Cell, device: str) -> str:
    """Hash of the variant's own source, as far as it runs on this kind of device.

    A timing is a ratio to the reference in the same rounds, so the source of the reference counts there too.
    """
    # A trivial baseline has no variant; its code is the task's, whose version counts.
    names = [cell.variant.name] if cell.lane != "baseline" else []
    if cell.lane == "time" or cell.variant.name == BASELINE_WITH_A_MODEL:
        names.append(REFERENCE)
    asked = [each.get("impl") for each in cell.variant.variants]
    if device == "cpu" and "triton" in asked:
        device = INTERPRETER
    sources = {source: False for name in names for source in VARIANTS.sources(name)}
    # of a file that is named, those beside it that it imports count too
    sources |= {file: True for name in names for file in VARIANTS.named_files(name)}
    return content_hash([source_hash(source, device, beside) for source, beside in sources.items()], DIGITS)


def token_hash(files: Iterable[Path]) -> str:
    """Hash of the contents of `files`, whatever their names and order."""
    hashes = []
    for file in files:
        status = file.stat()
        hashes.append(_hash_of_file(file, status.st_mtime_ns, status.st_size))
    return content_hash(sorted(hashes), DIGITS)


@cache
def source_hash(source: Path | None, device: str, beside: bool = False) -> str:
    """Hash of one file of a variant with all that it imports and that runs on this kind of device.

    `beside`: with what lies in its folder too, where it is no package.
    """
    if source is None:
        return token_hash([])
    source = source.resolve()
    # the folder whose files count as one piece of work: our `variants` or `tasks`, or a stranger's top package
    root = next((ours for ours in _OURS if source.is_relative_to(ours)), source.parent)
    while root not in _OURS and (root / "__init__.py").is_file() and (root.parent / "__init__.py").is_file():
        root = root.parent
    return token_hash(closure(source, root, _OF_OTHER_DEVICES.get(device), beside) - _CONTRACTS)


def closure(source: Path, root: Path, left_out: Path | None = None, beside: bool = False) -> set[Path]:
    """`source` and all files that it imports or includes, directly or not, from the package `root` or from ours.

    `beside`: from the folder `root` too, where it is no package. Files in the folder `left_out` are none of them, and
    what they import is not followed.
    """
    found: set[Path] = set()
    waiting = [source]
    while waiting:
        file = waiting.pop()
        if file not in found and not (left_out and file.is_relative_to(left_out)):
            found.add(file)
            if file.suffix in _NATIVE:
                text = file.read_text(encoding="utf-8", errors="replace")
                included = re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)
                waiting += [(file.parent / name).resolve() for name in included if (file.parent / name).is_file()]
            else:
                waiting += _imported(file, root, beside)
            # A C++ file is built together with the header or source of its own name.
            waiting += [twin for twin in map(file.with_suffix, _NATIVE) if twin.is_file()]
    return found


def normalised(text: str) -> str:
    """`text` of a module without comments, docstrings, imports, blank lines and trailing blanks.

    >>> normalised('import os\\nx = 1  # one\\n\\n\\ndef f():\\n    "Says."\\n    return x   \\n')
    'x = 1\\ndef f():\\n    return x'
    """
    text = text.replace("\r\n", "\n")
    try:
        tree = ast.parse(text)
        comments = [t.start for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT]
    except (*UNREADABLE, tokenize.TokenError):
        return text
    lines = text.split("\n")
    inside: set[int] = set()
    idle = []
    for node in ast.walk(tree):
        # lines whose blanks may be part of a value
        if isinstance(node, ast.JoinedStr | ast.Constant) and node.end_lineno != node.lineno:
            inside.update(range(node.lineno, node.end_lineno or node.lineno))
        # imports, docstrings and other strings that stand alone
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        ):
            idle.append((node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0))
    for row, column in comments:
        lines[row - 1] = lines[row - 1][:column].rstrip()
        inside.discard(row)
    for first, start, last, end in idle:
        # columns of a syntax tree count UTF-8 bytes
        before, after = lines[first - 1].encode()[:start].decode(), lines[last - 1].encode()[end:].decode()
        lines[first - 1 : last] = [before + after] + [""] * (last - first)
        inside.difference_update(range(first, last + 1))
    kept = [line if row in inside else line.rstrip() for row, line in enumerate(lines, start=1)]
    return "\n".join(line for row, line in enumerate(kept, start=1) if line or row in inside)


def native_without_comments(text: str) -> str:
    """C++ without comments, inclusions of our own headers, and blank lines.

    >>> native_without_comments('#include "rows.h"  // rows\\n/* two\\n lines */\\nint x = 1;  // one\\n')
    'int x = 1;'
    """
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    lines = (re.sub(r"//.*", "", line).rstrip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line and not line.startswith('#include "'))


def _imported(file: Path, root: Path, beside: bool) -> Iterator[Path]:
    """The files that a module imports from the package `root`, from our variants and tasks, or `beside` it."""
    try:
        tree = ast.parse(file.read_bytes())
    except UNREADABLE:
        return
    asked: list[tuple[int, str, list[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            asked += [(0, alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            asked.append((node.level, node.module or "", [alias.name for alias in node.names]))
    for level, module, names in asked:
        top, *rest = module.split(".")
        if level:
            base = file.parents[level - 1] if level <= len(file.parents) else file.parent
            if not base.is_relative_to(root):
                continue
            base = base.joinpath(top, *rest)
        elif top == root.name:
            base = root.joinpath(*rest)
        elif top == "attnbench" and rest and rest[0] in ("variants", "tasks"):
            base = PACKAGE.joinpath(*rest)
        elif beside and top != "attnbench":
            base = root.joinpath(top, *rest)
        else:
            continue
        for candidate in (base, *(base / name for name in names)):
            for found in (candidate.with_name(candidate.name + ".py"), candidate / "__init__.py"):
                if found.resolve() == _KERNELS_OF_GPUS:
                    # in its place what it finds by name, and `launch`, which it asks whether that can run
                    yield from filter(None, map(gpu.file_of, ("__init__", "launch", *names)))
                elif found.is_file():
                    yield found.resolve()


@cache
def _hash_of_file(file: Path, changed: int, size: int) -> str:
    # a run asks for the same files once for each cell
    text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
    plain = native_without_comments(text) if file.suffix in _NATIVE else normalised(text)
    return hashlib.sha256(plain.encode(errors="surrogateescape")).hexdigest()
