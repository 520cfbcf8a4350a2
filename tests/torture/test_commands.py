"""Wrong command lines: each ends in one line that says what is wrong, with a code other than 0, at once."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tally import Extent, Tally

SECONDS, WAITING_SECONDS = 10, 60
"""Of the processor, and on the clock, since other tests may run beside."""
LONGEST = 420
NAME, DIGITS = "n" * 300, "9" * 4_000
PLAN = "plan --variants rela --task sweep "

# one a line; {results}: a folder with Records, {file}, {fifo}, {deep} and so on: files of a wrong kind. Wrong values of
# parameters are made from their types in test_parameters.py; here is one of a variant, of a task and of a preset
LINES = f"""
rnu
runn --variants rela
--verson
'' --help
run
run --variants rela
run --task lra-text
run --variants rela --task lra-txt
run --variants rlea --task sweep
run --variants rela --task Sweep
run --variants 'rela softmax' --task sweep
run rela lra-text
run rela
run --variants --task sweep
run --variants rela --tsk sweep
run --variant rela --task sweep
run --variants rela --task sweep --preset
run --variants rela --task sweep --preset quik
run --variants rela --task sweep --preset base
run --variants rela --task sweep --timeout 0
run --variants rela --task sweep --timeout -5
run --variants rela --task sweep --timeout nan
run --variants rela --task sweep --timeout inf
run --variants rela --task sweep --timeout soon
run --variants rela --task sweep --timeout {DIGITS}
run --variants rela --task lra-retrieval --offline --preset smoke
run --variants rela --task enwik8 --offline --preset smoke
run --variants rela --task 'parallel[path=nowhere,source=de,target=en]' --offline
run --variants rela --task parallel --offline
run --variants rela --task sweep --data-dir nowhere
run --variants rela --task sweep --against nowhere
run --variants rela --task sweep --against {{file}}
run --variants rela --task sweep --against {{fifo}}
run --variants rela --task sweep --against {{results}} --results {{results}}
run --variants rela --task recall --preset smoke --lanes train --against {{results}}
run --variants rela --task sweep --fail-if 5
run --variants rela --task sweep --fail-if nan%
run --variants rela --task sweep --fail-if -5%
run --variants rela --text nowhere --preset smoke
run --variants rela --text {{empty}} --preset smoke
run --variants rela --text {{fifo}} --preset smoke
run --variants rela --pairs {{folder}} --preset smoke
plan --variants r\u0435la --task sweep
plan --variants rela --task sweep --call 'm(x)'
plan --variants 'rela:9999' --task sweep
plan
plan --suite
plan --suite ''
plan --suite lar
plan --suite {{file}}
plan --suite {{fifo}}
plan --suite {{deep}}
plan --suite {{empty}}
plan --suite {{binary}}
plan --suite {{huge}}
plan --suite {{folder}}.toml
plan --suite nowhere.toml
plan --suite {{unknown}}
plan --suite {{typed}}
plan --suite {{loop}}
plan --suite {{named}}
plan --variants rela --task 'sweep[length=1..1000000,heads=1..10000,head_dim=1..10000]'
plan --variants 'local[query_block=1..1000000,flange=1..1000000,max_relative=1..1000]' --task sweep
plan --variants rela --task 'sweep[length={DIGITS}]'
plan --variants rela --task 'sweep[length=16777216,batch=1024]'
plan --variants rela --task 'sweep[length=0]'
plan --variants rela --task 'sweep[length=1..1000000000000]'
plan --variants rela --task 'sweep[length=512..256]'
plan --variants rela --task 'sweep[length=256..]'
plan --variants rela --task 'sweep[length=..256]'
plan --variants rela --task 'sweep[lenght=512]'
plan --variants rela --task 'lra-pathfinder[size=48]'
plan --variants rela --task 'sweep[length=many]'
plan --variants rela --task 'sweep[length=]'
plan --variants rela --task 'sweep[=5]'
plan --variants rela --task 'sweep[5]'
plan --variants rela --task 'sweep[]'
plan --variants rela --task 'sweep['
plan --variants rela --task 'sweep]'
plan --variants rela --task 'sweep[[length=5]]'
plan --variants rela --task 'sweep[length=5][heads=2]'
plan --variants rela --task 'sweep[length=512,length=256]'
plan --variants rela --task 'sweep[batch=2,tokens=512]'
plan --variants rela --task 'sweep[mode=fly]'
plan --variants rela --task 'sweep[mode=decode,level=block]'
plan --variants rela --task 'sweep[level=model,causal=true]'
plan --variants rela --task 'sweep[causal=maybe]'
plan --variants rela --task 'sweep[dtype=int8]'
plan --variants rela --task 'sweep[input=noise]'
plan --variants rela --task 'lra-pathfinder[level=hardest]'
plan --variants rela --task 'lra-retrieval[head=two]'
plan --variants rela --task 'wmt14-en-de[where=everywhere]'
plan --variants rela --task lra-pathx --preset quick
plan --variants 'topk[k=0]' --task sweep
plan --variants 'topk[j=1]' --task sweep
plan --variants 'nystrom[kernel=2]' --task sweep
plan --variants 'bigbird[window_blocks=2]' --task sweep
plan --variants 'additive-lm[groups=7]' --task sweep
plan --variants 'topk[k=many]' --task sweep
plan --variants 'topk[k=none]' --task sweep
plan --variants 'performer[kernel=cosine]' --task sweep
plan --variants 'rela[impl=cuda]' --task sweep
plan --variants 'softmax[impl=flush]' --task sweep
plan --variants '' --task sweep
plan --variants , --task sweep
plan --variants ../rela --task sweep
plan --variants 'rela;softmax' --task sweep
plan --variants {NAME} --task sweep
plan --variants rela --task {NAME}
plan --variants 'rela[{NAME}=1]' --task sweep
plan --variants 'rela[gated={DIGITS}]' --task sweep
plan --variants rela --task ''
{PLAN}--seeds 0
{PLAN}--seeds -1
{PLAN}--seeds 1.5
{PLAN}--seeds three
{PLAN}--seeds 99999999999999999999999
{PLAN}--seeds {DIGITS}
{PLAN}--threads 1000000
{PLAN}--threads -1
{PLAN}--threads all
{PLAN}--threads {DIGITS}
{PLAN}--lanes ''
{PLAN}--lanes ,
{PLAN}--lanes tarin
{PLAN}--lanes train;time
{PLAN}--device cpu:5
{PLAN}--device gpu
{PLAN}--device tpu
{PLAN}--device ''
{PLAN}--device mps
{PLAN}--device {NAME}
{PLAN}--results ''
{PLAN}--results {{file}}
{PLAN}--results {"r" * 5_000}
{PLAN}--results {{file}}/below
{PLAN}--data-dir ''
{PLAN}--data-dir nowhere
{PLAN}--data-dir {{file}}
{PLAN}--data-dir {"d/" * 3_000}
{PLAN}--selection train
{PLAN}--selection ''
{PLAN}--memory-budget lots
{PLAN}--memory-budget 0GB
{PLAN}--memory-budget -1GB
{PLAN}--memory-budget {DIGITS}GB
{PLAN}--retry
{PLAN}--preset 'quick[timing_seconds=0]'
{PLAN}--preset 'quick[batch=4]'
{PLAN}--preset 'smoke,quick'
{PLAN}extra
plan --variants rela --task lra-listops --memory-budget 2GiB
plan --variants rela --task lra-listops --preset 'quick[dropout=2]'
plan --variants rela --task lra-listops --preset 'quick[stepps=5]'
plan --variants rela --task lra-listops --preset 'quick[steps=many]'
plan --variants rela --task lra-listops --preset 'quick[width=65,heads=2]'
plan --variants rela --task lra-listops --preset 'quick[schedule=stairs]'
plan --variants rela --task lra-listops --preset 'quick[length={DIGITS}]'
plan --variants rela --task lra-listops --preset 'quick[steps=1,2]'
plan --variants rela --task lra-listops --preset ''
leaderboard
leaderboard --results nowhere
leaderboard --results ''
leaderboard --results {{file}}
leaderboard --results {{folder}}
leaderboard --results {{results}} --out ''
leaderboard --results {{results}} --out {{file}}/board.md
leaderboard --results {{results}} --out {"o" * 5_000}
leaderboard --results {{results}} --margin inf
leaderboard --results {{results}} --margin nan
leaderboard --results {{results}} --margin -1
leaderboard --results {{results}} --margin one
leaderboard --results {{results}} --lengths --suite lra
leaderboard --results {{results}} --suite nothing
leaderboard --results {{results}} --mode sideways
leaderboard --results {{results}} --format word
leaderboard --results {{results}} --format csv --columns gap
leaderboard --results {{results}} --task nothing
leaderboard --results {{results}} --task ''
leaderboard --results {{results}} --preset nothing
leaderboard --results {{results}} --selection third
leaderboard --results {{results}} --fidelity fake
leaderboard --results {{results}} --machine nobody
leaderboard --results {{results}} --task {NAME}
leaderboard --result {{results}}
compare
compare rela rela --results {{results}}
compare rela --results nowhere
compare nothing --results {{results}}
compare '' --results {{results}}
compare rela,softmax entmax15 --results {{results}}
compare {NAME} --results {{results}}
compare 'rela[' --results {{results}}
compare rela softmax linear --results {{results}}
choose --length
choose --length 0 --results {{results}}
choose --length -1 --results {{results}}
choose --length long --results {{results}}
choose --length {DIGITS} --results {{results}}
choose --length 99999999999999999999 --results {{results}}
choose --length 16k --memory lots --results {{results}}
choose --length 16k --memory 0GB --results {{results}}
choose --length 16k --mode train --results {{results}}
choose --length 1234567 --results {{results}}
dashboard --results nowhere
dashboard --results {{results}} --out ''
dashboard --results {{results}} --out {{file}}
dashboard --results {{results}} --out /dev/null
dashboard --results {{results}} --out {{fifo}}
dashboard --results {{results}} --figures bmp
list varients
list variants tasks
show
show relaa
show ''
show rela softmax
show 'rela['
show 'topk[k=0]'
show 'quick[steps=0]'
show {NAME}
check
probe
probe relaa
probe rela linear
probe rela,linear
probe lra-text
probe delta:3//softmax
probe 'topk[k=0]'
probe rela --preset base
probe rela --preset 'quick[steps=0]'
probe rela --preset 'quick[nothing=1]'
probe rela --device nowhere
probe rela --timeout nan
probe rela --results {{file}}
probe rela --results /dev/null
probe rela --timeout -1
probe rela --threads 100000
probe 'na me.py:Mine'
probe {{file}}:Mine
audit
audit rela
audit 'na me.py:Mine'
audit nowhere.py:Mine
audit r\u0435la.py:Mine
audit {{named}}:Mine
audit nowhere.py:Mine --call 'm(x)|1'
convert nowhere
convert {{file}}
convert {{folder}}
convert {{folder}} --temperatures nan
convert /dev/null
check relaa
check rela --all
check 'topk[k=0]'
check rela --device nowhere
check rela --device cpu:7
check rela --dtype int8
check 'rela[impl=]'
new
new variant
new varient my-attention
new variant ''
new variant rela
new variant My_Attention
new variant ../escape
new variant class
new variant {NAME}
new variant my-attention --into {{file}}
merge
merge nowhere --results {{folder}}/target
validate nowhere
validate {{file}}
validate {{results}} --results {{folder}}
record
status
status --results nowhere
explain sphere
explain --variants routing
explain --variants nothing
explain --out {{file}}
sample
sample nothing --results nowhere
sample nothing --results {{results}}
sample nothing --count 0
sample nothing --temperature -1
sample nothing --temperature nan
sample nothing --prompt ''
inspect
inspect nothing --results {{results}}
inspect nothing --out {{file}}
doctor --noise --device nowhere
doctor --noise --noise-seconds 0
doctor --data-dir nowhere
data
data lst
data list nothing
data list --data-dir nowhere
data get
data get nothing
data get lra-text,nothing
data get 'lra-text[length=0]'
data get lra-retrieval --offline
data get lra-listops --preset nothing
data preview
data preview nothing
data preview lra
data preview sweep
data preview lra-listops --examples -1
data preview lra-retrieval --offline
data export
data export --tfds
data export --tfds {{file}} nothing
data verify nothing
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Files of wrong kinds, a folder with Records, and nothing of the machine's own."""
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
    results = Path(__file__).parent.parent.parent / "results"
    yield found | {"fifo": "fifo.toml", "loop": "loop.toml", "folder": "folder", "results": str(results)}


def cases(places: dict[str, str]) -> list[list[str]]:
    return [shlex.split(line.format(**places)) for line in LINES.split("\n") if line]


def ended(arguments: list[str]) -> tuple[int | str, str]:
    """The code of one command, run in this process, and what it wrote on standard error."""
    from attnbench.bench.cli import app

    def out_of_time(*_: Any) -> None:
        raise AssertionError(f"it ran for more than {WAITING_SECONDS} seconds")

    out, err, arguments_before = io.StringIO(), io.StringIO(), sys.argv
    was = signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(WAITING_SECONDS)
    sys.argv = ["attnbench", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return app.run_app(), err.getvalue()
    except BaseException as error:
        return f"{type(error).__name__}: {error}", err.getvalue()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, was)
        sys.argv = arguments_before


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


def test_commands(extent: Extent, tally: Tally, places: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """wrong command lines: one line, a code other than 0, at once."""
    # an import that is cut short at the end of a command's time leaves half a library to all that follow
    import torch  # noqa: F401

    from attnbench.bench.cli import app

    monkeypatch.setattr(app, "give_up", lambda stream: None)
    before = {path for path in Path().rglob("*") if path.parts[0] != "home"}
    for arguments in extent.of(cases(places), sample=20):
        began = time.process_time()
        problem = problem_of(*ended(arguments))
        if time.process_time() - began > SECONDS:
            problem = problem or f"it took {time.process_time() - began:.0f} s"
        tally.check(shlex.join(arguments)[:120], problem)
    left = {path for path in Path().rglob("*") if path.parts[0] != "home"} - before
    tally.check("files left behind", f"{sorted(map(str, left))[:5]}" if left else None)
    tally.verdict()


def test_commands_of_real_processes(extent: Extent, tally: Tally, places: dict[str, str]) -> None:
    """wrong command lines of real processes: as within one."""
    lines = [each for each in cases(places) if each[:1] in (["plan"], ["leaderboard"], ["show"], ["rnu"], ["choose"])]
    for arguments in extent.of(lines[::12], sample=1):
        done = subprocess.run(
            [sys.executable, "-m", "attnbench", *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        tally.check(shlex.join(arguments)[:120], problem_of(done.returncode, done.stderr))
    tally.verdict()
