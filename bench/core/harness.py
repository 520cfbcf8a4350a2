"""The harness by its hash: whether the code that made a Record is one that was published.

The hash is provenance. It stands beside the versions of a Record's machine, and in no digest: most edits of the harness
move no number. `harness.toml` lists the hashes of published versions; `python -m attnbench.bench.core.harness` prints
the line that a new version adds.
"""

from __future__ import annotations

import hashlib
import tomllib
from functools import cache
from pathlib import Path

from .paths import PACKAGE

FOLDERS = ("bench/core", "bench/gate", "bench/measure", "bench/models", "bench/plan", "bench/process", "bench/run",
           "bench/train", "tasks")  # fmt: skip
"""What measures: all code that a number may depend on, but for the variants, which have hashes of their own."""

NAME = "harness"
"""Its place among the versions of a machine."""


@cache
def harness_hash(package: Path = PACKAGE) -> str:
    """The hash of the code in FOLDERS as it lies there, 16 hexadecimal digits."""
    files = sorted(path for folder in FOLDERS for path in (package / folder).rglob("*.py"))
    contents = [f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes() for path in files]
    return hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in contents)).hexdigest()[:16]


@cache
def published_hashes() -> frozenset[str]:
    """The hashes of all versions that were published."""
    return frozenset(tomllib.loads(Path(__file__).with_name("harness.toml").read_text(encoding="utf-8")).values())


def is_edited(versions: dict[str, str]) -> bool:
    """Whether a harness that is neither published nor the running one made a Record; not where it states no hash."""
    made_by = versions.get(NAME, "")
    return bool(made_by) and made_by != harness_hash() and made_by not in published_hashes()


if __name__ == "__main__":
    from ... import __version__

    print(f'"{__version__}" = "{harness_hash()}"')
