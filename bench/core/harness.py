"""The harness by its version: whether the code that made a Record is one that others can get.

An installed version has its number, a checkout the number with its commit, or with `edited` where what measures was
changed since. The name is provenance. It stands beside the versions of a Record's machine, and in no digest: most edits
of the harness move no number. Records of 0.3.0 that were made before there were names state a hash of the files; those
that were published stand in `harness.toml`.
"""

from __future__ import annotations

import subprocess
import tomllib
from functools import cache
from pathlib import Path

from .files import PACKAGE

FOLDERS = ("bench", "tasks", "variants")
"""The code that a number may depend on."""

NAME = "harness"
"""Its place among the versions of a machine."""

EDITED = "+edited"


@cache
def harness_name(package: Path = PACKAGE) -> str:
    """The name of the code that runs: `0.3.0`, `0.3.0+1a2b3c4d` of a commit, or `0.3.0+edited`."""
    from ... import __version__

    if not (package / ".git").exists():
        return __version__
    # a hook of git sets variables that name another repository; reading takes no lock
    git = ["git", "--no-optional-locks", "--git-dir", str(package / ".git"), "--work-tree", str(package)]
    try:
        said = subprocess.run(
            [*git, "status", "--porcelain=v2", "--branch", "--", *FOLDERS],
            cwd=package, capture_output=True, check=True, text=True, timeout=60,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return __version__ + EDITED
    commit, *others = said.split("\n")
    if any(line and not line.startswith("#") for line in others):
        return __version__ + EDITED
    return f"{__version__}+{commit.rpartition(' ')[2][:8]}"


@cache
def published_hashes() -> frozenset[str]:
    """The hashes that Records of published code state in place of a name."""
    return frozenset(tomllib.loads(Path(__file__).with_name("harness.toml").read_text(encoding="utf-8")).values())


def is_edited(versions: dict[str, str]) -> bool:
    """True if a harness made a Record that nobody else can get, other than the running one; not where it names none."""
    made_by = versions.get(NAME, "")
    if made_by.endswith(EDITED):
        return made_by != harness_name()
    is_version = not made_by or "." in made_by
    return not is_version and made_by not in published_hashes()
