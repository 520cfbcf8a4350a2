"""Leaks between cells: whatever one variant leaves behind, the others train to the same numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands_under_test import run_command
from hostile_plugins import HostilePlugin, write
from tally import Extent, Tally

RUN = ("--task", "recall", "--preset", "smoke[steps=4,evaluate_every=2]", "--lanes", "train", "--seeds", "1",
       "--threads", "1", "--offline", "--device", "cpu", "--results", "results")  # fmt: skip

CODE = {
    "seeds": "import random, numpy, torch; random.seed(7); numpy.random.seed(7); torch.manual_seed(7)",
    "a type": "import torch; torch.set_default_dtype(torch.float64)",
    "a device": "import torch; torch.set_default_device('meta')",
    "threads": "import torch; torch.set_num_threads(2)",
    "denormal numbers": "import torch; torch.set_flush_denormal(True)",
    "no gradients": "import torch; torch.set_grad_enabled(False)",
    "autocast": "import torch; torch.autocast('cpu', torch.bfloat16).__enter__()",
    "a rougher product": "import torch; torch.set_float32_matmul_precision('medium')",
    "a hook": "import torch; torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 0)",
    "another start": "import torch; torch.nn.Linear.reset_parameters = lambda self: None",
    "another optimiser": "import torch; torch.optim.AdamW.step = lambda self, closure=None: None",
    "another loss": "import torch; torch.nn.functional.cross_entropy = lambda *a, **k: a[0].sum() * 0",
    "the environment": "import os; os.environ.update(OMP_NUM_THREADS='7', ATEN_CPU_CAPABILITY='default', TZ='Nowhere')",
    "another folder": "import os; os.chdir('/')",
    "a mask of files": "import os; os.umask(0o777)",
    "few files": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))",
    "little memory": "import resource; resource.setrlimit(resource.RLIMIT_DATA, (2**31, 2**31))",
    "signals": "import signal; [signal.signal(n, signal.SIG_IGN) for n in (2, 15, 17)]",
    "a language": "import locale; locale.setlocale(locale.LC_ALL, '')",
    "recursion": "import sys; sys.setrecursionlimit(60)",
    "a path": "import sys; sys.path.insert(0, '/nonexistent'); sys.modules['attnbench.tasks.synthetic'] = None",
    "no modules": "import sys; sys.modules.clear()",
    "a thread": "import threading, time; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
    "a busy process": "import os\nif os.fork() == 0:\n    while True: pass",
    "forged Records": "from pathlib import Path; Path('results/records').mkdir(parents=True, exist_ok=True); "
                      "Path('results/records/forged.jsonl').write_text('{}\\n')",
}  # fmt: skip


ONCE = ("a thread", "a busy process")
"""Leaks of an import alone: a forward pass is called hundreds of times."""


def leaks() -> list[HostilePlugin]:
    return [
        HostilePlugin(f"{part}-{name.replace(' ', '-')}", part, code)
        for name, code in CODE.items()
        for part in ("import", "forward")
        if part == "import" or name not in ONCE
    ]


def numbers(folder: Path, plugins: Sequence[HostilePlugin]) -> tuple[dict[str, list[float]], str | None]:
    """The measured values of softmax and of the innocent plugin, trained behind those `plugins`; what went wrong."""
    known = write(folder / "site", plugins)
    path = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])
    names = ",".join([*(plugin.name for plugin in plugins), "softmax", "innocent"])
    # compiled kernels are shared by all runs
    variables = known | {"PYTHONPATH": path, "ATTNBENCH_CACHE": str(folder.parent / "cache")}
    ended = run_command("run", "--variants", names, *RUN, folder=folder, variables=variables, seconds=600.0)
    found = {}
    for file in (folder / "results" / "records").glob("*.jsonl"):
        for record in map(json.loads, filter(None, file.read_text(encoding="utf-8").split("\n"))):
            if record.get("outcome") == "ok" and record["cell"]["variant"] in ("softmax", "innocent"):
                kept = [m["value"] for m in record["measurements"] if m["name"] in ("accuracy", "loss", "best_step")]
                found[record["cell"]["variant"]] = kept
    return found, ended.problem(0, 1)


# the quick cases are in tests/bench/run/test_global_state.py
@pytest.mark.parametrize("extent", [pytest.param("all", marks=pytest.mark.soak)], indirect=True)
def test_leaks(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """leaks between cells: the others train to the same numbers."""
    (tmp_path / "alone").mkdir()
    expected, problem = numbers(tmp_path / "alone", ())
    assert problem is None and len(expected) == 2 and all(expected.values())
    for plugin in extent.of(leaks(), sample=1):
        folder = tmp_path / plugin.name
        folder.mkdir()
        found, problem = numbers(folder, [plugin])
        tally.check(plugin.name, problem or (None if found == expected else f"other numbers: {found}"))
    tally.verdict()
