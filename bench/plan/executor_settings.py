"""Settings of an executor: which one, how many jobs at once, and its options, from a command line or a suite's file.

A suite may come from a stranger. Options are therefore few, typed and bounded: none names a command to run, a file to
write or another computer to connect to, and no text can end the line of a batch script that it becomes part of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from ..core.errors import SelectionError
from ..core.registry import nearest

MOST_JOBS = 10_000

Word = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.,:/@%+=*&|!()\[\]-]{1,200}\Z")]
"""A value of a batch script: no blank, no quotation mark, no end of a line."""

Duration = Annotated[str, msgspec.Meta(pattern=r"^(\d{1,3}d)?(\d{1,4}h)?(\d{1,5}m)?\Z", min_length=2)]
Memory = Annotated[str, msgspec.Meta(pattern=r"^\d{1,5}(GB|GiB|G)\Z")]

SBATCH = (
    "account", "begin", "clusters", "comment", "constraint", "deadline", "exclude", "gres", "hint", "licenses",
    "mail-type", "mail-user", "mem-per-cpu", "mem-per-gpu", "nice", "nodelist", "partition", "prefer", "priority",
    "qos", "reservation", "switches", "tmp",
)  # fmt: skip
"""Parameters of sbatch that may be passed on. Those that name files, commands or the environment are not among them."""


class LocalOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """This machine has none: `--device`, `--threads` and CUDA_VISIBLE_DEVICES say it all."""


class SlurmOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one job. `time`: that Slurm gives it each time; `cluster`: `local` and `debug` are submitit's own."""

    partition: Word | None = None
    gpus: Annotated[int, msgspec.Meta(ge=0, le=1)] | None = None
    cpus: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 4
    memory: Memory | None = None
    time: Duration = "4h"
    cluster: Literal["slurm", "local", "debug"] = "slurm"
    sbatch: dict[str, Word] = {}


class RayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one job; `address` of a cluster, which is started on this machine where none is named."""

    address: Word | None = None
    gpus: Annotated[int, msgspec.Meta(ge=0, le=1)] | None = None
    cpus: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    memory: Memory | None = None
    retries: Annotated[int, msgspec.Meta(ge=0, le=100)] = 3


OPTIONS: Mapping[str, type[LocalOptions | SlurmOptions | RayOptions]] = {
    "local": LocalOptions,
    "slurm": SlurmOptions,
    "ray": RayOptions,
}

EXPECTED = {
    "partition": "a name",
    "gpus": "0 or 1, since a job runs on one device",
    "cpus": "a count from 1 to 1,024",
    "memory": "a size such as 32GB",
    "time": "a duration such as 30m, 2h or 1d12h",
    "cluster": "slurm, local or debug",
    "sbatch": f"a table of: {', '.join(SBATCH)}",
    "address": "an address such as auto or 10.0.0.1:6379",
    "retries": "a count from 0 to 100",
}
"""The options of all executors, with the values that they take in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """`jobs`: how many at once; None leaves it to the executor. `options`: of the executor `name`."""

    name: str = "local"
    jobs: int | None = None
    options: LocalOptions | SlurmOptions | RayOptions = field(default_factory=LocalOptions)

    @classmethod
    def of(
        cls, name: str = "local", jobs: int | None = None, options: Mapping[str, Any] | None = None
    ) -> ExecutorSettings:
        """Raises SelectionError for an executor, a count or an option that is none.

        Values may be text, as on a command line; `sbatch.NAME` stands for an entry of the table `sbatch`.

        >>> ExecutorSettings.of("slurm", 8, {"time": "2h", "gpus": "1"}).options.gpus
        1
        """
        if name not in OPTIONS:
            raise SelectionError(f"expected an executor among {', '.join(OPTIONS)}, got {name!r}")
        if jobs is not None and not (isinstance(jobs, int) and 1 <= jobs <= MOST_JOBS):
            raise SelectionError(f"expected from 1 to {MOST_JOBS:,} jobs at once, got {jobs!r}")
        return cls(name=name, jobs=jobs, options=_decoded(name, _nested(options or {})))

    def changed(self, name: str | None, jobs: int | None, options: Mapping[str, Any] | None) -> ExecutorSettings:
        """These settings, with what a command line says in their place; another executor starts anew."""
        if name not in (None, self.name):
            return self.of(str(name), jobs, options)
        kept = msgspec.structs.asdict(self.options)
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


def seconds_of(duration: str) -> int:
    """
    >>> seconds_of("30m"), seconds_of("1d12h")
    (1800, 129600)
    """
    units = {"d": 86_400, "h": 3600, "m": 60}
    return sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+)([dhm])", duration))


def gigabytes_of(memory: str) -> int:
    """
    >>> gigabytes_of("32GB")
    32
    """
    return int(memory.rstrip("GBi"))


def _nested(options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in options.items():
        table, dot, entry = name.partition(".")
        if not dot:
            found[name] = value
        elif isinstance(found.setdefault(table, {}), dict):
            found[table][entry] = value
    return found


def _decoded(name: str, options: dict[str, Any]) -> LocalOptions | SlurmOptions | RayOptions:
    kind = OPTIONS[name]
    known = list(kind.__struct_fields__)
    for option in options:
        if option not in known:
            listed = ", ".join(known) or "none"
            # the word may be known elsewhere: to another executor, or to sbatch
            others = [f"--executor {each}" for each in OPTIONS if option in OPTIONS[each].__struct_fields__]
            near = f"; add {' or '.join(others)}" if others else nearest(option, known)
            if "sbatch" in known and option in SBATCH:
                near = f"; write --executor-option sbatch.{option}=…"
            raise SelectionError(f"executor {name} has no option {option!r}{near}; known: {listed}")
    sbatch = options.get("sbatch")
    if isinstance(sbatch, dict):
        for entry in sbatch:
            if entry not in SBATCH:
                raise SelectionError(
                    f"executor {name} passes no parameter {entry!r} to sbatch{nearest(str(entry), SBATCH)}; known: "
                    f"{', '.join(SBATCH)}; others go into the environment, as SBATCH_{str(entry)[:40].upper()}=…"
                )
    try:
        found = msgspec.convert(options, kind, strict=False)
        if seconds_of(getattr(found, "time", "1h")) < 60:
            raise SelectionError(f"executor {name}: expected time of a minute or more")
    except msgspec.ValidationError as error:
        option = next((each for each in known if f"$.{each}" in str(error)), known[0])
        got, expected = repr(options.get(option))[:200], EXPECTED[option]
        if isinstance(sbatch, dict) and option == "sbatch":
            expected = "a table of words without blanks"
        raise SelectionError(f"executor {name}: expected {option} to be {expected}, got {got}") from None
    return found
