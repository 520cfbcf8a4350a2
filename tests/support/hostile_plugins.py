"""Plugins that hang, exit, crash, flood or meddle, at every moment when their code runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

GOOD = '''
from attnbench.variants.contract import AttentionShape, ScoredVariant

class Plugin(ScoredVariant):
    """Softmax by another name."""
'''

PARTS = {
    "import": "{code}\n" + GOOD,
    "constructor": GOOD
    + """
    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        {code}
""",
    "forward": GOOD
    + """
    def forward(self, query, key, value, mask):
        {code}
        return super().forward(query, key, value, mask)
""",
    "sample": GOOD
    + """
    def forward(self, query, key, value, mask):
        # long after the gate, among the timed samples
        import sys
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_name != "interleave":
            frame = frame.f_back
        if frame is not None:
            {code}
        return super().forward(query, key, value, mask)
""",
}

FORK = (
    "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(1000)\n    os._exit(0)\n"
)
"""A grandchild in a session of its own, which holds every pipe."""

THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()"

WRITE_EVERYWHERE = (
    "import os\nfor descriptor in range(3, 64):\n    try: os.write(descriptor, {text})\n    except OSError: pass\n"
)


@dataclass(frozen=True, slots=True)
class HostilePlugin:
    """`code` runs at the moment `part`. `outcomes`: those that its Cells may have."""

    name: str
    part: str
    code: str
    outcomes: tuple[str, ...] = ("crashed",)

    @property
    def module(self) -> str:
        return "hostile_" + self.name.replace("-", "_")

    def source(self) -> str:
        template = (PARTS | TASK_PARTS)[self.part]
        indent = next(line for line in template.split("\n") if "{code}" in line).partition("{code}")[0]
        return template.replace("{code}", f"\n{indent}".join(self.code.strip("\n").split("\n")))


PLUGINS = (
    HostilePlugin("import-hang", "import", "import time; time.sleep(1000)", ("timeout",)),
    HostilePlugin("import-exit-0", "import", "import os; os._exit(0)"),
    HostilePlugin("import-system-exit", "import", "import sys; sys.exit(0)"),
    HostilePlugin("import-raise", "import", "raise RuntimeError('no such kernel')"),
    HostilePlugin("import-syntax", "import", "def ("),
    HostilePlugin("import-interrupt", "import", "raise KeyboardInterrupt"),
    HostilePlugin("import-kill", "import", "import os; os.kill(os.getpid(), 9)"),
    HostilePlugin("import-kill-parent", "import", "import os, time; os.kill(os.getppid(), 15); time.sleep(1000)"),
    HostilePlugin("import-kill-group", "import", "import os; os.killpg(0, 9)"),
    HostilePlugin("import-fork", "import", FORK, ("incorrect",)),
    HostilePlugin(
        "import-flood-output", "import",
        "import sys\nfor _ in range(300): print('x' * 100_000); print('y' * 100_000, end='', file=sys.stderr)", ("ok",),
    ),
    HostilePlugin(
        "import-flood-channel", "import", "while True:\n    " + "\n    ".join(
            WRITE_EVERYWHERE.format(text="b'z' * 2**20").strip().split("\n")
        ),
    ),
    HostilePlugin("import-close-all", "import", "import os; os.closerange(0, 64)"),
    HostilePlugin(
        "import-environment", "import",
        "import os; os.environ.update(ATEN_CPU_CAPABILITY='default', OMP_NUM_THREADS='1', CUDA_VISIBLE_DEVICES='')",
        ("ok",),
    ),
    HostilePlugin("import-stdin", "import", "input()"),
    HostilePlugin("constructor-hang", "constructor", "import time; time.sleep(1000)", ("timeout",)),
    HostilePlugin("constructor-exit", "constructor", "import os; os._exit(7)"),
    HostilePlugin("constructor-memory", "constructor", "self.x = bytearray(2**60)", ("crashed", "out_of_memory")),
    HostilePlugin("forward-exit", "forward", "import os; os._exit(0)"),
    HostilePlugin("forward-raise", "forward", "raise ValueError('no')", ("crashed", "incorrect")),
    HostilePlugin("forward-long-reason", "forward", "raise ValueError('x' * 150_000)", ("crashed", "incorrect")),
    HostilePlugin("forward-segfault", "forward", "import ctypes; ctypes.string_at(0)"),
    HostilePlugin("forward-hang", "forward", "import time; time.sleep(1000)", ("timeout",)),
    HostilePlugin("forward-garbage", "forward", WRITE_EVERYWHERE.format(text=r"b'{\"event\": 1}\n\xff\n'")),
    HostilePlugin("forward-thread", "forward", THREAD, ("incorrect",)),
    HostilePlugin("forward-dtype", "forward", "import torch; torch.set_default_dtype(torch.float64)", ("incorrect",)),
    HostilePlugin("forward-denormals", "forward", "import torch; torch.set_flush_denormal(True)", ("incorrect",)),
    HostilePlugin(
        "forward-patch", "forward",
        "import torch, time; torch.nn.functional.scaled_dot_product_attention = lambda *a, **k: time.sleep(0.01)",
        ("incorrect",),
    ),
    HostilePlugin(
        "sample-precision", "sample", "import torch; torch.set_float32_matmul_precision('medium')", ("incorrect",),
    ),
    HostilePlugin("sample-exit", "sample", "import os; os._exit(0)"),
    HostilePlugin("exit-hang", "import", "import atexit, time; atexit.register(time.sleep, 1000)", ("ok",)),
    HostilePlugin("exit-raise", "import", "import atexit; atexit.register(lambda: 1 / 0)", ("ok",)),
)  # fmt: skip


GOOD_TASK = '''
from attnbench.tasks.sweep import Sweep

class Plugin(Sweep):
    """A sweep by another name."""
'''

TASK_PARTS = {
    "task": "{code}\n" + GOOD_TASK,
    "problem": GOOD_TASK
    + """
    def problem(self):
        {code}
        return super().problem()
""",
    "recipe": GOOD_TASK
    + """
    def recipe(self, preset):
        {code}
        return super().recipe(preset)
""",
    "load": GOOD_TASK
    + """
    def load(self, place, recipe, seed, selection):
        {code}
        return super().load(place, recipe, seed, selection)
""",
}

HANG, LEAVE = "import time; time.sleep(1000)", "import os; os._exit(0)"

HOSTILE_TASKS = (
    HostilePlugin("task-raise", "task", "raise RuntimeError('no such data')", ("absent",)),
    HostilePlugin("task-hang", "task", HANG, ("absent",)),
    HostilePlugin("task-exit", "task", LEAVE, ("absent",)),
    HostilePlugin("problem-exit", "problem", LEAVE, ("absent",)),
    HostilePlugin("recipe-exit", "recipe", LEAVE, ("absent",)),
    HostilePlugin("load-raise", "load", "raise ValueError('no')"),
    HostilePlugin("load-hang", "load", HANG, ("timeout",)),
    HostilePlugin("load-exit", "load", LEAVE),
    HostilePlugin("load-fork", "load", FORK, ("incorrect",)),
)


def write(folder: Path, plugins: Sequence[HostilePlugin]) -> dict[str, str]:
    """Writes the modules, with an `innocent` one, into `folder`; the variables by which commands know them."""
    folder.mkdir(exist_ok=True)
    (folder / "innocent_plugin.py").write_text(GOOD, encoding="utf-8")
    for plugin in plugins:
        (folder / f"{plugin.module}.py").write_text(plugin.source(), encoding="utf-8")
    targets = {plugin: f"{plugin.name}={plugin.module}:Plugin" for plugin in plugins}
    variants = [target for plugin, target in targets.items() if plugin.part not in TASK_PARTS]
    tasks = [target for plugin, target in targets.items() if plugin.part in TASK_PARTS]
    return {
        "ATTNBENCH_VARIANTS": ";".join(["innocent=innocent_plugin:Plugin", *variants]),
        "ATTNBENCH_TASKS": ";".join(tasks),
    }
