"""Settings of an executor: which one, how many jobs at once, and its options, from a command line or a suite's file.

A suite may come from a stranger. Options are therefore few, typed and bounded: none names a command to run, a file to
write or another computer to connect to, and no text can end the line of a batch script that it becomes part of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

import msgspec

from ..core.entry_points import load_point, read_group
from ..core.errors import SelectionError
from ..core.registry import nearest

MOST_JOBS = 10_000

GROUP = "attnbench.executors"
"""The entry points of executors beside `local`; `bench/run/executors/executor.py` says what each names."""


class LocalOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """This machine has none: `--device`, `--threads` and CUDA_VISIBLE_DEVICES say it all."""


def executor_names() -> list[str]:
    """The executors that `--executor` can name here."""
    return ["local", *read_group(GROUP).points]


def options_type(name: str) -> type[msgspec.Struct]:
    """The type of the options of an executor; raises SelectionError for an unknown one."""
    if name not in executor_names():
        raise SelectionError(f"expected an executor among {', '.join(executor_names())}, got {name!r}")
    kind: type[msgspec.Struct] = LocalOptions if name == "local" else load_point(GROUP, name).options
    return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """`jobs`: how many at once; None leaves it to the executor. `options`: of the executor `name`."""

    name: str = "local"
    jobs: int | None = None
    options: msgspec.Struct = field(default_factory=LocalOptions)

    @classmethod
    def of(
        cls, name: str = "local", jobs: int | None = None, options: Mapping[str, Any] | None = None
    ) -> ExecutorSettings:
        """Raises SelectionError for an executor, a count or an option that is none.

        Values may be text, as on a command line; `sbatch.NAME` stands for an entry of the table `sbatch`.

        >>> ExecutorSettings.of("slurm", 8, {"time": "2h", "gpus": "1"}).options.gpus
        1
        """
        kind = options_type(name)
        if jobs is not None and not (isinstance(jobs, int) and 1 <= jobs <= MOST_JOBS):
            raise SelectionError(f"expected from 1 to {MOST_JOBS:,} jobs at once, got {jobs!r}")
        return cls(name=name, jobs=jobs, options=_decoded(name, kind, _nested(options or {})))

    def changed(self, name: str | None, jobs: int | None, options: Mapping[str, Any] | None) -> ExecutorSettings:
        """These settings, with what a command line says in their place; another executor starts anew."""
        if name not in (None, self.name):
            return self.of(str(name), jobs, options)
        kept: dict[str, Any] = msgspec.structs.asdict(self.options)
        kept = {key: value for key, value in kept.items() if value is not None}
        given = _nested(options or {})
        if "sbatch" in given and isinstance(given["sbatch"], dict):
            given["sbatch"] = kept.get("sbatch", {}) | given["sbatch"]
        return self.of(self.name, self.jobs if jobs is None else jobs, kept | given)


def executor_of(table: Mapping[str, Any], where: str) -> ExecutorSettings:
    """The table `[executor]` of a suite's file. Raises SelectionError, which names the file."""
    values = dict(table)
    name, jobs = values.pop("name", "local"), values.pop("jobs", None)
    try:
        if not isinstance(name, str) or isinstance(jobs, bool):
            raise SelectionError("expected name to be text, and jobs a count")
        if "address" in values:
            raise SelectionError(
                "expected no address, since a suite may come from others; give it as --executor-option address=…"
            )
        return ExecutorSettings.of(name, jobs, values)
    except SelectionError as error:
        raise SelectionError(f"{where}, table [executor]: {error}") from None


def _nested(options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in options.items():
        table, dot, entry = name.partition(".")
        if not dot:
            found[name] = value
        elif isinstance(found.setdefault(table, {}), dict):
            found[table][entry] = value
    return found


def _decoded(name: str, kind: type[msgspec.Struct], options: dict[str, Any]) -> msgspec.Struct:
    known = list(kind.__struct_fields__)
    for option in options:
        if option not in known:
            listed = ", ".join(known) or "none"
            # the word may be known elsewhere: to another executor, or to what the executor passes it on to
            others = [
                f"--executor {each}" for each in executor_names() if option in options_type(each).__struct_fields__
            ]
            near = f"; add {' or '.join(others)}" if others else nearest(option, known)
            hint = getattr(kind, "hint", None)
            near = hint(option) if hint and hint(option) else near
            raise SelectionError(f"executor {name} has no option {option!r}{near}; known: {listed}")
    try:
        return msgspec.convert(options, kind, strict=False)
    except msgspec.ValidationError as error:
        option = next((each for each in known if f"$.{each}" in str(error)), "")
        if not option:
            # the type's own words, about several options together
            raise SelectionError(f"executor {name} {error}") from None
        got, expected = repr(options[option])[:200], _words(kind, option)
        raise SelectionError(f"executor {name}: expected {option} to be {expected}, got {got}") from None


def _words(kind: type[msgspec.Struct], option: str) -> str:
    """The values of an option in words: the description that its type carries."""
    hint = get_type_hints(kind, include_extras=True)[option]
    parts = [part for each in (hint, *get_args(hint)) for part in getattr(each, "__metadata__", ())]
    return next((part.description for part in parts if part.description), str(hint))
