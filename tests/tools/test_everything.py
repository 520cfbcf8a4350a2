"""The one command for a GPU names variants, tasks and presets that exist; wheels are for the Python of the image."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import install
from torch import Tensor
from typer.testing import CliRunner

from attnbench.bench.cli.app import app
from attnbench.bench.core.registry import TASKS, VARIANTS
from attnbench.bench.core.spec import Spec, parse_selection
from attnbench.bench.plan.options import load_suite
from attnbench.variants.contract import AttentionShape, Mask

TOOLS = Path(__file__).parents[2] / "tools"


def script(name: str, folder: Path = TOOLS / "gpu") -> ModuleType:
    described = importlib.util.spec_from_file_location(f"gpu_{name}", folder / f"{name}.py")
    assert described is not None and described.loader is not None
    module = importlib.util.module_from_spec(described)
    sys.modules[described.name] = module
    described.loader.exec_module(module)
    return module


everything, wheels = script("everything"), script("gather_wheels")
adasplash = script("attnbench_adasplash_package", TOOLS / "adasplash_package")


@pytest.mark.parametrize("rehearse", [False, True])
def test_every_step_names_what_there_is(rehearse: bool) -> None:
    for step in (*everything.steps(rehearse=rehearse), *everything.lent_steps(8.0, rehearse=rehearse)):
        if step.script:
            assert (TOOLS / "gpu" / step.script).is_file()
        elif step.verb == "run":
            given = dict(zip(step.words[::2], step.words[1::2], strict=True))
            suite = load_suite(given["--suite"]) if "--suite" in given else None
            preset = Spec.parse(given["--preset"]) if "--preset" in given else suite.preset
            for task in parse_selection(given["--task"]) if "--task" in given else suite.tasks:
                assert TASKS.build(TASKS.resolve(task)).recipe(preset)
            for variant in parse_selection(given["--variants"]) if "--variants" in given else suite.variants:
                VARIANTS.resolve(variant)


def test_a_lent_gpu_gets_what_is_worth_most_first_and_nothing_beside_what_is_timed() -> None:
    beside = ("adasplash", "fla-gla")
    found = everything.lent_steps(8.0, rehearse=False, beside=beside)
    assert tuple(step.name for step in found) == everything.LENT
    assert [step.name for step in found if step.alone] == ["kernels-gpu-short", "mission-times"]
    together = max(step.minutes for step in found if not step.alone)
    assert together + sum(step.minutes for step in found if step.alone) == pytest.approx(8.0)
    whole = {step.name: step.words for step in everything.steps(rehearse=False, beside=beside)}
    assert all("adasplash,fla-gla" in " ".join(whole[name]) for name in ("kernels-gpu-short", "sweep"))
    assert next(step.words for step in found if step.name == "kernels-gpu-short") == whole["kernels-gpu-short"]
    # each step of hours comes after all of minutes
    assert [step.minutes for step in everything.steps(rehearse=False)][-1] > 500


OK: dict[str, object] = {"seconds": 1, "exit_code": 0, "outcome": ""}


def replace_runs(monkeypatch: pytest.MonkeyPatch, out: Path, *words: str, **outcomes: dict[str, object]) -> list[Any]:
    """The steps that the script would run with `words`, as they are by the time each begins; `outcomes` by name."""
    taken: list[Any] = []

    def done(step: Any, out: Path, device: str) -> dict[str, object]:
        taken.append(replace(step))
        return dict.fromkeys(("step", "about", "found", "log", "last_line"), "") | outcomes.get(step.name, OK)

    monkeypatch.setattr(everything, "done", done)
    monkeypatch.setattr(sys, "argv", ["everything.py", "--out", str(out), *words])
    return taken


@pytest.mark.parametrize(("words", "count"), [([], 2), (["--all"], 6), (["--steps", "serving", "lra"], 2)])
def test_the_bundle_of_a_gpu_is_two_steps_and_all_of_them_are_six(
    words: list[str], count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch)
    taken = replace_runs(monkeypatch, tmp_path, *words)
    assert everything.main() == 0 and len(taken) == count
    ours = [command for command in (step.command(tmp_path, "cuda") for step in taken) if "attnbench" in command]
    results = ["--device", "cuda", "--results", str(tmp_path / "results")]
    assert ours and all(command[-4:] == results for command in ours)
    assert f"merge {tmp_path}/results" in capsys.readouterr().out


def test_steps_of_a_lent_gpu_share_the_time_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late = {"seconds": 1, "exit_code": None, "outcome": "TIME LIMIT"}
    taken = replace_runs(monkeypatch, tmp_path, "--minutes", "10", "--rehearse", gates=late)
    # the fault of one step is the exit code, and ends no other
    assert everything.main() == 1
    *_, kernels, times = taken
    # the first ended at once: all of their time is for those that run alone, by their shares, then all for the last
    assert kernels.name == "kernels-gpu-short" and kernels.minutes == pytest.approx(7.0, abs=0.2)
    assert times.name == "mission-times" and times.minutes == pytest.approx(10.0, abs=0.2)
    assert "TIME LIMIT" in capsys.readouterr().out


def test_a_step_at_its_limit_is_interrupted_before_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('kept'))); time.sleep(60)"
    monkeypatch.setattr(everything.Step, "command", lambda *_: [sys.executable, "-c", code])
    found = everything.done(everything.Step(name="one", about="", words=(), minutes=0.05), tmp_path, "cpu")
    assert found["outcome"] == "TIME LIMIT" and found["last_line"] == "kept" and found["log"] == "one.log"


@pytest.mark.soak  # trains nothing, but compiles a kernel for the interpreter and runs six processes: a minute
def test_a_rehearsed_bundle_is_merged_by_the_one_who_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["everything.py", "--out", str(tmp_path / "gpu"), "--rehearse"])
    assert everything.main() == 0
    sent = tmp_path / "gpu"
    assert {"summary.json", "boards.md", "check.json", "check.log"} <= {path.name for path in sent.iterdir()}
    merged = CliRunner().invoke(app, ["merge", str(sent / "results"), "--results", str(tmp_path / "ours")])
    assert merged.exit_code == 0 and " added, 0 known already, 0 left out" in merged.output
    assert "0 errors" in CliRunner().invoke(app, ["validate", str(tmp_path / "ours")]).output


def test_the_table_says_what_each_step_found_and_the_last_words_of_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = everything.Step(name="check", about="kernels", words=(), minutes=1, script="x.py", writes="check.json")
    sweep = everything.Step(name="sweep", about="lengths", words=(), minutes=1)
    records = tmp_path / "results" / "records"
    records.mkdir(parents=True)
    (records / "a.jsonl").write_text('{"outcome": "ok"}\n')
    writes = {
        "check": "open('check.json', 'w').write('{\"answers\": [{\"outcome\": \"right\"}]}')",
        "sweep": 'open(\'results/records/b.jsonl\', \'w\').write(\'{"outcome": "ok"}\\n{"outcome": "timeout"}\\n\');'
        "raise SystemExit('one was too slow')",
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(everything.Step, "command", lambda step, *_: [sys.executable, "-c", writes[step.name]])
    found = [everything.done(step, tmp_path, "cpu") for step in (check, sweep)]
    assert [one["found"] for one in found] == ["1 right", "1 ok, 1 timeout"]
    monkeypatch.setattr(everything.Step, "command", lambda *_: [sys.executable, "-c", ""])
    assert everything.done(sweep, tmp_path, "cpu")["found"] == "nothing new: measured before"
    (tmp_path / "check.json").write_text("{")
    assert everything.done(check, tmp_path, "cpu")["found"] == "no check.json, or half of it"
    lines = everything.table(found)
    assert [line.split()[0] for line in lines] == ["step", "check", "sweep", "one"]
    assert "exit code 1" in lines[2] and lines[-1].strip() == "one was too slow"


def test_wheels_are_gathered_for_the_python_of_the_image_and_not_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def downloaded(command: list[str], check: bool) -> SimpleNamespace:
        asked.append(command)
        (tmp_path / f"numpy-2.4.6-{len(asked)}.whl").write_bytes(b"")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(wheels.subprocess, "run", downloaded)
    monkeypatch.setattr(sys, "argv", ["gather_wheels.py", "--out", str(tmp_path), "adasplash"])
    assert wheels.main() == 0
    first, second = asked
    assert first[first.index("--python-version") + 1] == "3.12" and "--only-binary=:all:" in first
    names = {wheels._name(word) for word in first}
    assert {"msgspec", "psutil", "nvidia-ml-py", "typer"} <= names and not names & {"torch", "numpy", "triton"}
    # a package that needs torch brings none
    assert second[-2:] == ["--no-deps", "adasplash"]
    # the image has its own, which others were built against
    assert list(tmp_path.iterdir()) == []


def test_a_worker_alone_needs_neither_statistics_nor_a_terminal() -> None:
    names = {wheels._name(requirement) for requirement in wheels.wanted(workers_alone=True)}
    assert {"msgspec", "psutil"} <= names and not names & {"scipy", "pandas", "typer", "rich"}


SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=16, max_length=128, causal=True, padding=False)


def test_adasplash_says_why_it_does_not_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(**changes: object) -> str | None:
        shape = replace(SHAPE, **changes)
        found: str | None = adasplash.AdaSplash(shape).supports(shape)
        return found

    # also of a shape that it would refuse anywhere, as the first one of `check`
    assert refusal() == refusal(causal=False) == "AdaSplash-2 needs a CUDA device, and this is cpu"
    monkeypatch.setattr(adasplash, "find_spec", lambda name: None)
    assert "pip install adasplash" in (refusal(device="cuda") or "")
    monkeypatch.setattr(adasplash, "find_spec", lambda name: name)
    assert refusal(device="cuda:0", dtype="bfloat16") is None
    assert refusal(device="cuda", causal=False) == "AdaSplash-2 is causal"
    assert "not 48" in (refusal(device="cuda", head_dim=48) or "") and refusal(device="cuda", dtype="float64")


@pytest.mark.parametrize(("queries", "keys"), [(128, 128), (100, 100), (3, 100), (5, 20)])
def test_adasplash_gets_the_lengths_that_it_takes(queries: int, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels need a GPU: in their place stands the eager form of the same function, with their conditions."""
    ours = VARIANTS.build(Spec.parse("entmax15[impl=eager]"), SHAPE)

    def kernels(query: Tensor, key: Tensor, value: Tensor, varlen: Tensor | None = None) -> Tensor:
        length = query.shape[2]
        assert length == key.shape[2] >= 64 and query.is_contiguous() and key.is_contiguous() and value.is_contiguous()
        assert varlen.tolist() == [keys] * len(query) if varlen is not None else length & (length - 1) == 0
        found: Tensor = ours(query, key, value, Mask(causal=True))
        return found

    monkeypatch.setitem(sys.modules, "adasplash", SimpleNamespace(adasplash_v2=kernels))
    query, key, value = (torch.randn(2, heads, n, 16) for heads, n in ((4, queries), (2, keys), (2, keys)))
    found = adasplash.AdaSplash(SHAPE)(query, key, value, Mask(causal=True))
    assert torch.allclose(found, ours(query, key, value, Mask(causal=True)), atol=1e-6)
