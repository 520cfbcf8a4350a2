"""Requests to a public board: what does more than add Records and artifacts is refused, and honest ones pass."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tally import Extent, Tally

TEMPLATE = Path(__file__).parent.parent.parent / "docs" / "public-board"
RECORDS, ARTIFACTS = "results/records", "results/artifacts"
OURS, KEPT, NEW = f"{RECORDS}/abc.jsonl", f"{ARTIFACTS}/{'ab' * 12}.npz", f"{'0' * 24}"
LINES = b'{"a":1}\n{"b":2}\n{"c":3}\n'

Change = Callable[[Path], object]

# neither Records nor artifacts, or under a name that attnbench never gives
STRANGE = (
    *("README.md", "Makefile", "only_adds.sh", ".github/workflows/more.yml", ".gitattributes"),
    "results/.gitattributes",
    *(f"{RECORDS}/{name}" for name in (
        ".gitattributes", ".hidden.jsonl", "-a.jsonl", "a b.jsonl", "a\nb.jsonl", "\u00e9.jsonl", "a;b.jsonl",
        "sub/a.jsonl", "a.jsonl.torn", "a.JSONL", "CNAME", "index.html", "arrivals.txt.jsonl.sh", "a" * 130 + ".jsonl",
    )),
    *(f"{ARTIFACTS}/{name}" for name in (
        "a.npz", f"{'AB' * 12}.npz", f"{NEW}.exe", f"{NEW}.npz.sh", f"{NEW[1:]}.npz", f"sub/{NEW}.npz", f"{NEW}.html",
        f"{NEW} .npz", f"{NEW}\n{NEW}.npz",
    )),
    *("results/index.html", "results/boards/x.md", "records/abc.jsonl", "CNAME"),
)  # fmt: skip

PLAIN = (f"{RECORDS}/new.jsonl", f"{ARTIFACTS}/{NEW}.npz", f"{ARTIFACTS}/{NEW}.json", f"{ARTIFACTS}/{NEW}.py")

EDITS: dict[str, Callable[[bytes], bytes]] = {
    "a line at the top": lambda old: b'{"d":4}\n' + old,
    "a line in the middle": lambda old: old.replace(b'{"b"', b'{"d":4}\n{"b"'),
    "a line removed": lambda old: old.split(b"\n", 1)[1],
    "a digit changed": lambda old: old.replace(b"2", b"9"),
    "lines exchanged": lambda old: b'{"b":2}\n{"a":1}\n{"c":3}\n',
    "other line ends": lambda old: old.replace(b"\n", b"\r\n"),
    "a byte order mark": lambda old: b"\xef\xbb\xbf" + old,
    "no last line end": lambda old: old[:-1],
    "a line without its end": lambda old: old + b'{"d":4}',
    "nothing": lambda old: b"",
}


def written(path: str, content: bytes = LINES) -> Change:
    def change(clone: Path) -> None:
        place = clone / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_bytes(content)

    return change


def linked(path: str, target: str) -> Change:
    def change(clone: Path) -> None:
        written(path)(clone)
        (clone / path).unlink()
        (clone / path).symlink_to(target)

    return change


def executable(path: str) -> Change:
    def change(clone: Path) -> None:
        if not (clone / path).exists():
            written(path)(clone)
        (clone / path).chmod(0o755)

    return change


def submodule(path: str) -> Change:
    def change(clone: Path) -> None:
        (clone / path).unlink(missing_ok=True)
        # an empty folder, as an unpopulated submodule has
        (clone / path).mkdir(parents=True)
        git(clone, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},{path}")

    return change


def honest() -> Iterator[tuple[str, Change]]:
    yield from ((f"new {path}", written(path)) for path in PLAIN)
    yield "a line added", written(OURS, LINES + b'{"d":4}\n')
    yield "a log of arrivals", written(f"{RECORDS}/arrivals.txt", b"abc=3\n")


def hostile() -> Iterator[tuple[str, Change]]:
    for path in STRANGE:
        yield f"new {path!r}", written(path)
        yield f"link {path!r}", linked(path, "/etc/passwd")
    for path in (*PLAIN, OURS, KEPT):
        yield f"link {path}", linked(path, "../../Makefile")
        yield f"executable {path}", executable(path)
        yield f"submodule {path}", submodule(path)
    yield from ((f"{OURS}: {name}", written(OURS, edit(LINES))) for name, edit in EDITS.items())
    yield f"{KEPT} changed", written(KEPT, b"other")
    yield from ((f"{path} removed", lambda clone, path=path: (clone / path).unlink()) for path in (OURS, KEPT))
    yield "a long artifact", lambda clone: written(PLAIN[1], b"")(clone) or os.truncate(clone / PLAIN[1], 2**25 + 1)
    yield "a new file without its last end", written(PLAIN[0], LINES[:-1])


def git(clone: Path, *words: str) -> None:
    named = {f"GIT_{role}_{part}": "x@example.org" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    plain = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", *words], cwd=clone, env=os.environ | named | plain, check=True, capture_output=True)


def answered(clone: Path, *changes: Change) -> int:
    """The code of the check of a request with these changes; the clone is then as it was."""
    for change in changes:
        change(clone)
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "--allow-empty", "-m", "Send")
    done = subprocess.run(["sh", str(TEMPLATE / "only_adds.sh"), "main", "sent"], cwd=clone, capture_output=True)
    git(clone, "reset", "-q", "--hard", "main")
    git(clone, "clean", "-fdqx")
    return done.returncode


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    made = tmp_path / "board"
    shutil.copytree(TEMPLATE, made)
    for path, content in ((OURS, LINES), (KEPT, b"kept")):
        written(path, content)(made)
    git(made, "init", "-q", "-b", "main")
    git(made, "add", "-A")
    git(made, "commit", "-q", "-m", "Begin")
    git(made, "switch", "-q", "-c", "sent")
    return made


def test_requests(extent: Extent, tally: Tally, clone: Path) -> None:
    """requests to a public board: refused where they do more than add, also beside honest additions."""
    good = list(honest())
    for name, change in extent.of(good, sample=2):
        tally.check(name, None if answered(clone, change) == 0 else "an honest request is refused")
    for number, (name, change) in enumerate(extent.of(list(hostile()), sample=8)):
        # what is honest beside it comes first, so that the hostile change wins where both name one file
        beside = [good[number % len(good)][1]] if number % 2 else []
        tally.check(name, "it passes" if answered(clone, *beside, change) == 0 else None)
    tally.verdict()
