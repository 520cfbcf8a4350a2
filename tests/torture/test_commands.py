"""Wrong command lines: each ends in one line that says what is wrong, with a code other than 0, at once."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_lines import answer
from limits import limited
from tally import Extent, Tally

LONGEST = 420
NAME, DIGITS = "n" * 300, "9" * 4_000
PLAN, TRAINED = "plan --variants rela --task sweep", "plan --variants rela --task lra-listops"
SWEEP = "plan --variants rela --task"
RESULTS = Path(__file__).parent.parent.parent / "results"
BOARD = f"leaderboard --results {RESULTS}"

# one rule of the parser or of a reader of files a line; {file}, {fifo}, {deep} and so on: files of a wrong kind. Wrong
# values of parameters are in test_parameters.py, wrong selections in tests/bench/core/test_spec.py
LINES = f"""
rnu
--verson
'' --help
run
run --variants rela --tsk sweep
run --variants rela --task sweep --preset
run --variants rela --task lra-txt
run --variants rela --task sweep --timeout nan
run --variants rela --task sweep --timeout {DIGITS}
run --variants rela --task sweep --fail-if nan%
run --variants rela --task enwik8 --offline --preset smoke
run --variants rela --task 'parallel[path=nowhere,source=de,target=en]' --offline
run --variants rela --task sweep --against {{fifo}}
run --variants rela --task sweep --against {RESULTS} --results {RESULTS}
run --variants rela --task recall --preset smoke --lanes train --against {RESULTS}
run --variants rela --text {{empty}} --preset smoke
run --variants rela --text {{fifo}} --preset smoke
run --variants rela --pairs {{folder}} --preset smoke
{PLAN} --call 'm(x)'
plan --suite ''
plan --suite {{fifo}}
plan --suite {{deep}}
plan --suite {{binary}}
plan --suite {{huge}}
plan --suite {{folder}}.toml
plan --suite {{unknown}}
plan --suite {{typed}}
plan --suite {{loop}}
plan --suite {{named}}
{SWEEP} 'sweep[length=1..1000000,heads=1..10000,head_dim=1..10000]'
{SWEEP} 'sweep[length={DIGITS}]'
{SWEEP} 'sweep[length=16777216,batch=1024]'
{SWEEP} 'sweep[mode=decode,level=block]'
{SWEEP} {NAME}
{SWEEP} ''
plan --variants ../rela --task sweep
plan --variants 'rela[{NAME}=1]' --task sweep
plan --variants 'rela[gated={DIGITS}]' --task sweep
plan --variants 'rela[impl=cuda]' --task sweep
plan --variants 'additive-lm[groups=7]' --task sweep
{PLAN} --seeds {DIGITS}
{PLAN} --threads 1000000
{PLAN} --threads all
{PLAN} --lanes ,
{PLAN} --device cpu:5
{PLAN} --device {NAME}
{PLAN} --results ''
{PLAN} --results {"r" * 5_000}
{PLAN} --results {{file}}/below
{PLAN} --data-dir {{file}}
{PLAN} --data-dir {"d/" * 3_000}
{PLAN} --selection train
{PLAN} --memory-budget {DIGITS}GB
{PLAN} --preset 'quick[timing_seconds=0]'
{PLAN} --preset 'smoke,quick'
{TRAINED} --preset 'quick[width=65,heads=2]'
{TRAINED} --preset 'quick[length={DIGITS}]'
{TRAINED} --preset ''
leaderboard --results nowhere
leaderboard --results {{file}}
leaderboard --results {{folder}}
{BOARD} --out {{file}}/board.md
{BOARD} --out {"o" * 5_000}
{BOARD} --margin nan
{BOARD} --lengths --suite lra
{BOARD} --mode sideways
{BOARD} --format csv --columns gap
{BOARD} --task {NAME}
compare '' --results {RESULTS}
compare rela softmax linear --results {RESULTS}
choose --length {DIGITS} --results {RESULTS}
choose --length 16k --memory 0GB --results {RESULTS}
dashboard --results {RESULTS} --out {{fifo}}
dashboard --results {RESULTS} --figures bmp
list varients
show 'rela['
show 'quick[steps=0]'
judge rela --device nowhere
judge rela --results /dev/null
controls {NAME} --results {RESULTS}
controls rela --jobs 0
referee {NAME} --results {RESULTS}
referee rela --seeds 2
audit nowhere.py:Mine --call 'm(x)|1'
audit {{named}}:Mine
convert {{file}}
convert {{folder}} --temperatures nan
check rela --all
check rela --dtype int8
new variant ../escape
new variant my-attention --into {{file}}
merge nowhere --results {{folder}}/target
validate {{file}}
record
status
explain --variants routing
sample nothing --temperature nan
inspect nothing --out {{file}}
doctor --noise --noise-seconds 0
data get lra-retrieval --offline
data preview sweep
data preview lra-listops --examples -1
data export --tfds {{file}} nothing
data verify nothing
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Files of wrong kinds in the current folder, and nothing of the machine's own."""
    for name in ("ATTNBENCH_DATA", "ATTNBENCH_CACHE", "XDG_CACHE_HOME", "TFDS_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    contents = {
        "file": b"x",
        "empty": b"",
        "deep": b"tasks=" + b"[" * 5_000 + b"]" * 5_000,
        "binary": bytes(range(256)) * 10,
        "huge": b"# " + b"x" * 2_000_000,
        "unknown": b"taks = ['sweep']\nvariants = ['rela']\n",
        "named": b"tasks = ['sweep']\nvariants = ['os:system[call=m(x)]']\n",
        "typed": b"tasks = 5\nvariants = ['rela']\n",
    }
    found = {name: f"{name}.toml" for name in contents}
    for name, content in contents.items():
        (tmp_path / found[name]).write_bytes(content)
    os.mkfifo("fifo.toml")
    Path("folder.toml").mkdir()
    Path("folder").mkdir()
    Path("loop.toml").symlink_to("loop.toml")
    yield found | {"fifo": "fifo.toml", "loop": "loop.toml", "folder": "folder"}


def ended(arguments: list[str]) -> tuple[int | str, str]:
    """The code of one command and its standard error; of one that raises or hangs, its fault in place of a code."""
    try:
        with limited():
            found = answer(arguments)
        return found.code, found.errors
    except BaseException as error:
        return f"{type(error).__name__}: {error}", ""


def problem_of(code: int | str, shown: str) -> str | None:
    """None where the command ended as it should."""
    lines = [line for line in shown.split("\n") if line]
    # the help of a command that has got no argument at all is printed instead of an error
    if code in (0, 70) or not isinstance(code, int):
        return f"it ended with {code}: {shown[-300:]!r}"
    # notes below an error are indented: why each source of data has none
    if len([line for line in lines if not line.startswith("  ")]) > 1:
        return f"{len(lines)} lines: {shown[:400]!r}"
    if any(len(line) > LONGEST for line in lines if not line.startswith("  ")):
        return f"a line of {max(map(len, lines))} characters: {shown[:300]!r}"
    return None if shown.isascii() or all(map(str.isprintable, lines)) else "it prints control characters"


def test_commands(extent: Extent, tally: Tally, places: dict[str, str]) -> None:
    """wrong command lines: one line, a code other than 0, at once."""
    # an import that is cut short at the end of a command's time leaves half a library to all that follow
    import torch  # noqa: F401

    before = {path for path in Path().rglob("*") if path.parts[0] != "home"}
    cases = [shlex.split(line.format(**places)) for line in LINES.split("\n") if line]
    for arguments in extent.of(cases, sample=20):
        tally.check(shlex.join(arguments)[:120], problem_of(*ended(arguments)))
    left = {path for path in Path().rglob("*") if path.parts[0] != "home"} - before
    tally.check("files left behind", f"{sorted(map(str, left))[:5]}" if left else None)
    tally.verdict()
