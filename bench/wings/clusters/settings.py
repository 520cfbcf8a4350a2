"""The options of Slurm and Ray, typed and bounded, and the values that each takes in words."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from ...core.registry import nearest

SBATCH = (
    "account", "begin", "clusters", "comment", "constraint", "deadline", "exclude", "gres", "hint", "licenses",
    "mail-type", "mail-user", "mem-per-cpu", "mem-per-gpu", "nice", "nodelist", "partition", "prefer", "priority",
    "qos", "reservation", "switches", "tmp",
)  # fmt: skip
"""Parameters of sbatch that may be passed on. Those that name files, commands or the environment are not among them."""


def _text(pattern: str, words: str, **more: Any) -> msgspec.Meta:
    return msgspec.Meta(pattern=pattern, description=words, **more)


# a value of a batch script: no blank, no quotation mark, no end of a line
WORD = r"^[A-Za-z0-9_.,:/@%+=*&|!()\[\]-]{1,200}\Z"
Word = Annotated[str, msgspec.Meta(pattern=WORD)]
Partition = Annotated[str, _text(WORD, "a name")]
Address = Annotated[str, _text(WORD, "an address such as auto or 10.0.0.1:6379")]
Duration = Annotated[
    str, _text(r"^(\d{1,3}d)?(\d{1,4}h)?(\d{1,5}m)?\Z", "a duration such as 30m, 2h or 1d12h", min_length=2)
]
Memory = Annotated[str, _text(r"^\d{1,5}(GB|GiB|G)\Z", "a size such as 32GB")]
GPUs = Annotated[int, msgspec.Meta(ge=0, le=1, description="0 or 1, since a job runs on one device")]
CPUs = Annotated[int, msgspec.Meta(ge=1, le=1024, description="a count from 1 to 1,024")]
Retries = Annotated[int, msgspec.Meta(ge=0, le=100, description="a count from 0 to 100")]
Cluster = Annotated[Literal["slurm", "local", "debug"], msgspec.Meta(description="slurm, local or debug")]
Table = Annotated[dict[str, Word], msgspec.Meta(description=f"a table of words without blanks: {', '.join(SBATCH)}")]


class SlurmOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of one Slurm job. `time`: what Slurm gives it at once; `cluster`: `local` and `debug` are submitit's."""

    partition: Partition | None = None
    gpus: GPUs | None = None
    cpus: CPUs = 4
    memory: Memory | None = None
    time: Duration = "4h"
    cluster: Cluster = "slurm"
    sbatch: Table = {}

    def __post_init__(self) -> None:
        """Raises ValueError, of which msgspec makes a ValidationError, for what the types cannot say."""
        for entry in self.sbatch:
            if entry not in SBATCH:
                raise ValueError(
                    f"passes no parameter {entry!r} to sbatch{nearest(entry, SBATCH)}; known: {', '.join(SBATCH)}; "
                    f"others go into the environment, as SBATCH_{entry[:40].upper()}=…"
                )
        if seconds_of(self.time) < 60:
            raise ValueError("expected time of a minute or more")

    @staticmethod
    def hint(option: str) -> str:
        """The words after an unknown option that is a parameter of sbatch."""
        return f"; write --executor-option sbatch.{option}=…" if option in SBATCH else ""


class RayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of one Ray task; `address` of a cluster, which is started on this machine where none is named."""

    address: Address | None = None
    gpus: GPUs | None = None
    cpus: CPUs | None = None
    memory: Memory | None = None
    retries: Retries = 3


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
