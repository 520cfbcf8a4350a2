"""All runs that need a GPU: `python tools/gpu/everything.py --out FOLDER`, about twenty minutes.

`--minutes 8` is for a GPU that is lent: the gate of all variants, the kernels and the mission's command side by side,
then calibrated speeds alone, each with its share of the time. Where it ends, all that was measured stays.

Are the kernels right, and how fast are they: a folder to send back, whose Records `attnbench merge` takes. `--all` adds
hours: what they cost inside a compiled block, how they decode, and what is learned with them. A process for each step,
with a time limit of its own; what is measured already is not measured again, so that the command goes on where it was
stopped. The answers of the boards come after the steps, and last a short table; beside them are `summary.json`,
`boards.json` and `boards.md`. `--rehearse` tries it at tiny sizes on a CPU.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO

HERE = Path(__file__).parent

OURS = "rela,sparsemax,entmax15"
KERNELS = f"softmax[impl=flash,cudnn],{OURS},linear,local"
BESIDE = ("adasplash", "fla-")
"""How the names of others' kernels begin, which are measured where their packages in `tools` are installed."""

LEARNING = "rela,entmax15"
BUNDLE = ("check", "kernels-gpu-short")
"""The steps of twenty minutes."""

MISSION = "pt-2x64[length=1024,steps=10000,timing_seconds=6,warmup=4000]"
"""Half of the steps, on texts of a quarter: what eight minutes have room for."""

LENT = ("gates", "check", "mission", "kernels-gpu-short", "mission-times")
"""The steps of a GPU that is lent, what is worth most first."""

SHARE_ALONE = 0.36
"""Of the time of a lent GPU, for speeds: nothing may run beside them."""

PATIENCE = 8.0
"""Seconds that a step at its limit may take to end by itself."""

TOLD = 6
"""Last lines of each log that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`script`: a file beside this one, or empty for attnbench itself; `writes`: its file of results. `minutes`: the
    limit of its process."""

    name: str
    about: str
    words: tuple[str, ...]
    minutes: float
    script: str = ""
    writes: str = ""
    verb: str = "run"
    alone: bool = True

    def command(self, out: Path, device: str) -> list[str]:
        """The command of its process; attnbench writes Records into one folder for all steps."""
        if self.script:
            return [sys.executable, str(HERE / self.script), *self.words, "--json", str(out / self.writes)]
        ours = [sys.executable, "-m", "attnbench", self.verb, *self.words, "--device", device]
        return [*ours, "--results", str(out / "results")] if self.verb == "run" else ours


def steps(*, rehearse: bool, beside: tuple[str, ...] = ()) -> list[Step]:
    """Every step, those first that decide whether the others are worth anything. `beside`: variants to compare with."""
    others = "".join(f",{name}" for name in beside)
    if rehearse:
        tiny = "quick[timing_seconds=0.2]"
        return [
            Step(name="check", about="kernels are right", script="check_kernels.py", writes="check.json", minutes=10,
                 words=("--rehearse", "--variants", "linear")),
            _timed("kernels-gpu-short", "beside the best dense kernel", f"rela{others}", tiny, 10,
                   "sweep[length=64,128,mode=forward,step,causal=true,heads=2,head_dim=16,input=iid,local]"),
            _timed("sweep", "lengths", f"rela{others}", tiny, 10,
                   "sweep[length=64,128,mode=forward,causal=true,heads=2,head_dim=16]"),
            _timed("compiled", "a block under torch.compile", "linear", tiny, 30,
                   "sweep[length=64,mode=forward,heads=2,head_dim=16,level=block,compile=true]"),
            _timed("serving", "prefill and decoding", "linear", tiny, 10,
                   "sweep[batch=1,2,length=32,64,mode=decode,heads=2,head_dim=16]"),
            Step(name="lra", about="what is learned", minutes=15, words=(
                "--variants", "rela", "--task", "lra-listops", "--preset", "smoke", "--seeds", "1")),
        ]  # fmt: skip
    # widths of a model of 1,024, as many tokens at each length as fit the longest
    long = "tokens=65536,heads=16,head_dim=64,dtype=bfloat16,causal=true"
    return [
        Step(name="check", about="kernels are right", script="check_kernels.py", writes="check.json", words=(),
             minutes=11),
        Step(name="kernels-gpu-short", about="beside the best dense kernel", minutes=15, words=(
            "--suite", "kernels-gpu-short", "--variants", f"{KERNELS}{others}")),
        _timed("sweep", "lengths to 65,536", f"{KERNELS}{others}", "quick[timing_seconds=4]", 60,
               f"sweep[length=1024..65536,mode=forward,step,{long}]"),
        Step(name="serving", about="prefill and decoding", words=("--suite", "serving-gpu"), minutes=60),
        _timed("compiled", "a block under torch.compile", f"{OURS},local,linear", "quick", 90,
               "sweep[length=2048,8192,level=block,compile=false,true,heads=16,head_dim=64,tokens=16384,dtype=bfloat16]"),
        Step(name="lra", about="what is learned: three seeds", minutes=24 * 60, words=(
            "--variants", LEARNING, "--task", "lra-listops", "--preset", "pt-2x64", "--seeds", "3")),
    ]  # fmt: skip


def lent_steps(minutes: float, *, rehearse: bool, beside: tuple[str, ...] = ()) -> list[Step]:
    """The steps of `minutes` on a lent GPU: those that need no quiet share the first part, speeds have the second."""
    together, alone = minutes * (1 - SHARE_ALONE), minutes * SHARE_ALONE
    preset, cores = "smoke" if rehearse else MISSION, len(os.sched_getaffinity(0))
    learned = ("--variants", LEARNING, "--task", "lra-text", "--seeds", "1", "--preset", preset, "--lanes")
    some, few = str(max(1, cores * 3 // 4)), str(max(1, cores // 4))
    checked = ("no-attention",) if rehearse else ("--all", "--dtype", "bfloat16")
    kernels = ("--rehearse", "--variants", "linear") if rehearse else ("--minutes", f"{together - 0.3:.2f}")
    speeds = ("--suite", "kernels-gpu-short", "--variants", ",".join((KERNELS, *beside)))
    if rehearse:
        sweep = "sweep[length=64,mode=forward,step,causal=true,heads=2,head_dim=16,dtype=bfloat16,input=local]"
        speeds = ("--variants", "rela", "--task", sweep, "--preset", "quick[timing_seconds=0.2]")
    return [
        Step(name="gates", about="variants keep their promises", verb="check", alone=False, minutes=together,
             words=(*checked, "--jobs", some)),
        Step(name="check", about="kernels are right", script="check_kernels.py", writes="check.json", alone=False,
             minutes=together, words=("--no-harness", *kernels, "--jobs", few)),
        Step(name="mission", about="what is learned", alone=False, minutes=together, words=(*learned, "train")),
        Step(name="kernels-gpu-short", about="beside the best dense kernel", minutes=0.7 * alone, words=speeds),
        Step(name="mission-times", about="cost of a step there", minutes=0.3 * alone, words=(*learned, "time")),
    ]  # fmt: skip


def _timed(name: str, about: str, variants: str, preset: str, minutes: float, task: str) -> Step:
    words = ("--variants", variants, "--task", task, "--preset", preset)
    return Step(name=name, about=about, words=words, minutes=minutes)


def done(step: Step, out: Path, device: str) -> dict[str, object]:
    """The end of one step; its output is in a file of its own, whose last lines are shown."""
    command, log = step.command(out, device), out / f"{step.name}.log"
    before = _outcomes(out)
    print(f"{step.name}: {shlex.join(command[1:])}", flush=True)
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        try:
            code: int | None = _ended(command, file, 60 * step.minutes)
        except subprocess.TimeoutExpired:
            code = None
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
    told = [f"  {line[:200]}" for line in lines[-TOLD:]]
    print(f"{step.name} ended after {time.monotonic() - started:.0f} s:", *told, sep="\n", flush=True)
    return {
        "step": step.name, "about": step.about, "found": _found(step, out, before),
        "command": shlex.join(command), "exit_code": code,
        "outcome": "done" if code == 0 else "TIME LIMIT" if code is None else f"exit code {code}",
        "seconds": round(time.monotonic() - started, 1), "log": log.name, "last_line": lines[-1] if lines else "",
    }  # fmt: skip


def _ended(command: list[str], file: IO[str], seconds: float) -> int:
    """The exit code of `command`; at its limit it is interrupted first, so that it keeps what it has."""
    # bytecode is kept although an image may forbid it: dozens of processes would else compile all of torch anew
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            raise
        finally:
            process.kill()


def _found(step: Step, out: Path, before: Counter[str]) -> str:
    """The results of one step in brief; `before`: outcomes of the Records that there were."""
    if not step.script:
        new = _outcomes(out) - before
        return _counts(new) or ("nothing new: measured before" if before else "no Record")
    try:
        answers = json.loads((out / step.writes).read_bytes())["answers"]
        return _counts(Counter(answer["outcome"] for answer in answers))
    except (OSError, ValueError):
        return f"no {step.writes}, or half of it"


def _outcomes(out: Path) -> Counter[str]:
    """The number of Records with each outcome."""
    files = (out / "results" / "records").glob("*.jsonl")
    return Counter(str(found["outcome"]) for file in files for found in _objects(file))


def _objects(file: Path) -> list[dict[str, object]]:
    """The lines of a file of JSON lines; one that a process left half written is passed over."""
    found = []
    for line in file.read_text(encoding="utf-8").split("\n"):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _counts(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())


def show_boards(out: Path) -> list[str]:
    """Writes the boards of all Records as Markdown and JSON; their questions and answers, a line each."""
    command = [sys.executable, "-m", "attnbench", "leaderboard", "--results", str(out / "results"), "--format"]
    for name, form in (("boards.md", "markdown"), ("boards.json", "json")):
        made = subprocess.run([*command, form], capture_output=True, check=False)
        if made.returncode != 0:
            return [f"no boards: {made.stderr.decode(errors='replace').strip()}"]
        (out / name).write_bytes(made.stdout)
    boards = json.loads((out / "boards.json").read_text(encoding="utf-8"))["boards"]
    return [line for board in boards for line in (board["question"], f"  {board['headline']}")]


def table(found: list[dict[str, object]]) -> list[str]:
    """One line for each step; of one that failed also the last line of its log."""
    lines = [f"{'step':18} {'outcome':12} {'time':>8}  {'about':28} {'found':32} log"]
    for one in found:
        time_of = f"{one['seconds']:,.0f} s"
        lines.append(
            f"{one['step']:18} {one['outcome']:12} {time_of:>8}  {one['about']:28} {one['found']:32} {one['log']}"
        )
        if one["exit_code"] != 0 and one["last_line"]:
            lines.append(f"{'':18} {one['last_line']}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="folder of logs, Records, boards and the summary")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--steps", nargs="+", metavar="NAME", default=BUNDLE, help="these, in the order of all")
    chosen.add_argument("--all", action="store_true", help="every step, which takes hours")
    chosen.add_argument("--minutes", type=float, help="what is worth most on a GPU that is lent for so long, such as 8")
    parser.add_argument("--device", default="cuda", help="device, as attnbench takes it")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on a CPU")
    arguments = parser.parse_args()
    if not arguments.rehearse:
        import torch

        if not torch.cuda.is_available():
            print("skipped: no CUDA device; `--rehearse` tries the steps on a CPU")
            return 0
    named = sorted(entry.name for entry in entry_points(group="attnbench.variants"))
    beside = tuple(name for name in named if name.startswith(BESIDE))
    print(f"kernels of others: {', '.join(beside) or 'none; pip install tools/adasplash_package tools/fla_package'}")
    if arguments.minutes:
        arguments.steps = LENT
        wanted = lent_steps(arguments.minutes, rehearse=arguments.rehearse, beside=beside)
    else:
        wanted = steps(rehearse=arguments.rehearse, beside=beside)
    known = [step.name for step in wanted]
    if unknown := set(arguments.steps) - set(known):
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = "cpu" if arguments.rehearse else arguments.device
    found: list[dict[str, object]] = []
    begun = time.monotonic()

    def keep(one: dict[str, object]) -> None:
        found.append(one)
        # after each, so that an interruption loses nothing
        (arguments.out / "summary.json").write_text(json.dumps(found, indent=1), encoding="utf-8")

    asked = [step for step in wanted if arguments.all or step.name in arguments.steps]
    if together := [step for step in asked if not step.alone]:
        with ThreadPoolExecutor(len(together)) as pool:
            for one in pool.map(lambda step: done(step, arguments.out, device), together):
                keep(one)
    alone = [step for step in asked if step.alone]
    for at, step in enumerate(alone):
        if arguments.minutes:
            # what the steps before left over is for those that come
            left = arguments.minutes - (time.monotonic() - begun) / 60
            step = replace(step, minutes=left * step.minutes / sum(each.minutes for each in alone[at:]))
        keep(done(step, arguments.out, device))
    print()
    if (arguments.out / "results").is_dir():
        print(*show_boards(arguments.out), "", sep="\n")
    print(*table(found), sep="\n")
    print(f"\nin {arguments.out}: summary.json, boards.md, boards.json, a log and results of each step")
    print(f"Send that folder back; there `attnbench merge {arguments.out}/results --results results` adds its Records.")
    return 0 if all(one["exit_code"] == 0 for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
