"""The preset of a run that names none: one that all of its tasks have, and no longer than a person waits."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from attnbench.bench.core.cell import Lane
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec
from attnbench.bench.measure.machine import describe
from attnbench.bench.plan.suite import Suite
from attnbench.bench.run import resources as module
from attnbench.bench.run.runner import Runner, RunRequest, default_preset


@pytest.mark.parametrize(
    ("device", "tasks", "preset"),
    [
        ("cuda", ["lra-text"], "pt-2x64"),
        ("cuda", ["tinyshakespeare"], "quick"),
        ("cuda", ["wmt14-en-de"], "quick"),
        ("cuda", ["lra-text", "tinyshakespeare"], "quick"),
        ("cpu", ["lra-text"], "quick"),
        ("cpu", ["tinyshakespeare", "wmt14-en-de"], "quick"),
    ],
)
def test_without_a_preset_one_is_taken_that_every_task_has(device: str, tasks: list[str], preset: str) -> None:
    specs = list(map(Spec, tasks))
    assert default_preset(specs, device) == preset
    assert all(TASKS.build(task).recipe(Spec(preset)).ranked for task in specs)


@pytest.mark.parametrize(("named", "used"), [(None, "quick"), ("smoke", "smoke")])
def test_a_run_of_language_modelling_on_a_gpu_needs_no_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None, used: str
) -> None:
    # a machine with a GPU, as far as the choice of a preset goes
    monkeypatch.setattr(module, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(module, "describe_in_child", lambda device, threads: [describe(torch.device("cpu"))])
    suite = Suite(
        name="",
        tasks=(Spec("tinyshakespeare"),),
        variants=(Spec("softmax"),),
        preset=Spec(named) if named else None,
    )
    made = Runner(
        request=RunRequest(suite=suite, results=tmp_path / "results", threads=torch.get_num_threads()),
        on_warning=lambda text: None,
        on_progress=lambda what, done, total: None,
    )
    assert made.preset == Spec(used) and made.seeds == (1 if used == "smoke" else 3)


@pytest.mark.parametrize(
    ("variant", "lanes", "interpreted", "refused"),
    [
        ("rela[impl=triton]", ("train", "time"), "1", True),
        ("rela[impl=triton]", ("train", "baseline"), "1", False),
        ("rela[impl=triton]", ("train", "time"), "0", False),
        ("rela", ("train", "time"), "1", False),
    ],
)
def test_what_triton_interprets_is_not_timed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    lanes: tuple[Lane, ...],
    interpreted: str,
    refused: bool,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interpreted)
    suite = Suite(name="", tasks=(Spec("lra-text"),), variants=(Spec.parse(variant),), preset=Spec("smoke"))
    request = RunRequest(
        suite=suite, results=tmp_path / "results", device="cpu", lanes=lanes, threads=torch.get_num_threads()
    )
    with pytest.raises(SelectionError, match="attnbench check") if refused else nullcontext():
        Runner(request=request, on_warning=lambda text: None, on_progress=lambda what, done, total: None)
