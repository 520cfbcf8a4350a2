"""Targets: a class, function or object named by its place, `mine.py:Mine` or `package.module:Mine`.

A target stands where an entry point of an installed package stands. Naming one imports nothing: a file is read as text,
and imported where plugins are, in child processes. What a file imports from its own folder is found there.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import SelectionError

LARGEST_SOURCE = 2_000_000
"""The largest source file that is read as text, in bytes; nobody writes a larger one."""


MOST_COMPARED = 1_000
"""Names of a file that a wrong one is compared with."""


@dataclass(frozen=True, slots=True)
class Target:
    """An entry point of no distribution. `file`: of `FILE.py:NAME`; `value`: the name in messages."""

    name: str
    module: str
    attr: str
    file: Path | None
    dist: None = None

    @property
    def value(self) -> str:
        """A path is absolute, so that no file passes for a module of attnbench."""
        return f"{self.file or self.module}:{self.attr}"

    @property
    def source(self) -> Path | None:
        return self.file or module_source(self.module)

    def load(self) -> Any:
        """The object, imported now. Raises what its module raises, and AttributeError where it is not there."""
        depth = self.module.count(".") + 1
        folder = Path.cwd() if self.file is None else self.file.parents[depth - 1 + (self.file.stem == "__init__")]
        if str(folder) not in sys.path:
            # last: a neighbour named like a module of Python or of a package does not take its place
            sys.path.append(str(folder))
        if self.file is None or "." in self.module:
            found: Any = importlib.import_module(self.module)
        else:
            found = _module_of(self.file)
        for part in self.attr.split("."):
            found = getattr(found, part)
        return found


def target_of(name: str) -> Target | None:
    """The target that `name` names; None for a plain name. Raises SelectionError where nothing is there."""
    place, colon, attribute = name.rpartition(":")
    if not colon:
        return None
    if not place.endswith(".py"):
        source = module_source(place)
        if source is None and not _has_module(place.split(".")[0]):
            raise SelectionError(f"no module {place!r} is installed or in this folder; name a FILE.py or install it")
        return Target(name, place, attribute, None)
    try:
        file = Path(place).expanduser().resolve(strict=True)
    except (OSError, RuntimeError):
        # nothing is there, or links that lead round
        raise SelectionError(f"no file {place!r} here, in {Path.cwd()}; expected FILE.py:NAME") from None
    if not file.is_file() or file.suffix != ".py":
        raise SelectionError(f"expected a file of Python, got {place!r}, which is {file}; name a FILE.py")
    names, status = [], file.stat()
    if status.st_size <= LARGEST_SOURCE:
        names = defined_in(file, status.st_mtime_ns)
    first = attribute.split(".")[0]
    if names and first not in names:
        near = get_close_matches(first, names[:MOST_COMPARED], n=2)
        rest = [name for name in names if name not in near]
        raise SelectionError(f"{place} defines no {first!r}; it has {', '.join(near + rest[:8])}")
    parts = [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if parts[-1] == "__init__":
        parts.pop()
    return Target(name, ".".join(parts) or file.stem, attribute, file)


def said_in(name: str) -> str:
    """`: say what in that file: mine.py:Mine`, where `name` is no more than a file of Python; otherwise nothing."""
    file = Path(name)
    if file.suffix != ".py" or not file.is_file():
        return ""
    tree = parsed(file)
    found = [each for each in (tree.body if tree else ()) if isinstance(each, ast.ClassDef | ast.FunctionDef)]
    names = [each.name for each in sorted(found, key=lambda each: isinstance(each, ast.FunctionDef))]
    return f": say what in that file: {', '.join(f'{name}:{each}' for each in names[:5] or ['NAME'])}"


@cache
def defined_in(file: Path, changed: int) -> list[str]:
    """The names that a file defines at its top level, classes first; empty where it cannot be read, or imports `*`."""
    tree = parsed(file)
    found: dict[str, int] = {}
    for node in tree.body if tree else ():
        # a class or a function stays one, whatever else has its name
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = isinstance(node, ast.FunctionDef)
            continue
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = [alias.asname or alias.name.split(".")[0] for alias in node.names]
        else:
            # an assignment, or a definition under a condition
            assigned = (each for each in ast.walk(node) if isinstance(each, ast.Name | ast.ClassDef | ast.FunctionDef))
            names = [each.id if isinstance(each, ast.Name) else each.name for each in assigned]
        for name in names:
            found.setdefault(name, 2)
    return [] if "*" in found else sorted(found, key=lambda name: found[name])


def parsed(file: Path) -> ast.Module | None:
    """The syntax tree of a source file; None where there is none."""
    try:
        if file.stat().st_size > LARGEST_SOURCE:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def module_source(module: str) -> Path | None:
    """The source file of a dotted module name; only its top-level package's finder is asked, so nothing is imported."""
    top, *rest = module.split(".")
    folders: list[str] = [str(Path.cwd() / top)]
    origin = next((str(each) for each in _candidates(Path.cwd() / top) if each.is_file()), None)
    if top in sys.modules and getattr(sys.modules[top], "__path__", None):
        folders = list(sys.modules[top].__path__)
        origin = getattr(sys.modules[top], "__file__", None)
    elif _has_module(top):
        found = importlib.util.find_spec(top)
        if found is not None:
            folders, origin = list(found.submodule_search_locations or ()), found.origin
    if not rest:
        return Path(origin) if origin else None
    bases = (Path(folder, *rest) for folder in folders)
    return next((each for base in bases for each in _candidates(base) if each.is_file()), None)


def _candidates(base: Path) -> Iterator[Path]:
    yield base.with_name(base.name + ".py")
    yield base / "__init__.py"


def _has_module(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _module_of(file: Path) -> ModuleType:
    """A file that is in no package, as a module; its name has a hash, so that it takes the place of no other."""
    name = f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
