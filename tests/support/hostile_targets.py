"""Files that somebody names as FILE.py:Mine: code that hangs, exits, floods or lies, at every moment when it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hostile_plugins import TASK_PARTS

LAYER = """
import os, sys, time
import torch
from torch import nn

{before}

class Mine(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.project = nn.Linear(dim, 3 * dim)
        {built}

    def forward(self, x):
        {run}
        q, k, v = self.project(x).chunk(3, -1)
        return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v

    {beside}

{after}
"""

FORK = "[os.fork() or (os.setsid(), time.sleep(1000)) for _ in range(3)]"
CODE = {
    "nothing": "pass",
    "hang": "time.sleep(1000)",
    "loop": "while True: pass",
    "exit": "os._exit(0)",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "forks": FORK,
    "a fork that goes on": "os.fork()",
    "threads": "import threading; [threading.Thread(target=time.sleep, args=(1000,)).start() for _ in range(20)]",
    "prints 30 MB": "print('x' * 30_000_000); print('y' * 30_000_000, file=sys.stderr)",
    "a long message": "raise ValueError('x' * 50_000_000)",
    "an odd message": "raise ValueError('\\ud800\\x1b[2J\\u202e\\n\\n' * 400)",
    "a base exception": "raise type('Odd', (BaseException,), {})('odd')",
    "an exception without text": "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})",
    "endless recursion": "f = lambda: f(); f()",
    "100 GB": "bytearray(100 * 2**30)",
    "memory little by little": "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))\n"
    "kept = []\nwhile True: kept.append(bytearray(2**28))",
    "closes all files": "os.closerange(0, 200)",
    "writes everywhere": "for n in range(3, 64):\n    try: os.write(n, b'\\n{}\\n[]' * 99)\n    except OSError: pass",
    "kills its parent": "os.kill(os.getppid(), 9)",
    "kills its group": "os.killpg(0, 9)",
    "ignores signals": "import signal; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; time.sleep(1000)",
    "removes modules": "sys.modules.clear()",
    "breaks msgspec": "import msgspec; msgspec.msgpack.encode = msgspec.json.encode = None",
    "breaks torch": "torch.equal = torch.allclose = lambda *_: True; torch.set_default_dtype(torch.float64)",
    "hangs at its end": "import atexit; atexit.register(time.sleep, 1000)",
    "a limit of memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**20, 2**20))",
}
"""What one moment of the module runs."""

BESIDE = {
    "a train that raises": "def train(self, mode=True): raise RuntimeError('no')",
    "a copy that hangs": "def __deepcopy__(self, memo): time.sleep(1000)",
    "a state that raises": "def state_dict(self, *a, **k): raise KeyError('x' * 5000)",
    "parameters without end": "def parameters(self, recurse=True):\n        while True: yield self.project.weight",
    "a name that raises": "def __repr__(self): raise ValueError('no name')",
    "attributes that raise": "def __getattribute__(self, name): raise OSError('no attribute')",
    "attributes of any name": "def __getattr__(self, name): return self",
    "another class": "__class__ = property(lambda self: 1 / 0)",
}

FORWARDS = {
    "nothing": "return None",
    "nan": "return x * float('nan')",
    "a meta tensor": "return x.to('meta')",
    "a tuple without end": "t = (); t = (t,) * 2; return [t] * 10**6",
    "a list in itself": "found = []; found.append(found); return found",
    "a dictionary of odd keys": "return {1: x, None: x, (2,): [x]}",
    "its own input, changed": "return x.zero_()",
    "a view of its weights": "return self.project.weight[:1, :64].expand(x.shape)",
    "another length": "return x[:, :-1]",
    "a result that raises in use": "return torch.sparse_coo_tensor([[0], [0], [0]], [1.0], x.shape)",
    "more each time": "self.n = getattr(self, 'n', 0) + 1; return x + self.n",
    "an error the second time": "self.n = getattr(self, 'n', 0) + 1\n        if self.n > 2: raise ValueError('x')\n"
                                "        return x",
}  # fmt: skip

FILES: dict[str, Callable[[Path], object]] = {
    "no UTF-8": lambda path: path.write_bytes(b"Mine = '\xff\xfe'\n"),
    "null bytes": lambda path: path.write_bytes(b"Mine = 1\0\n"),
    "no syntax": lambda path: path.write_text("class Mine(:\n"),
    "deep brackets": lambda path: path.write_text("(" * 100_000),
    "deep sums": lambda path: path.write_text("Mine = " + "+".join("1" * 100_000)),
    "a long line": lambda path: path.write_text("Mine = '" + "x" * 3_000_000 + "'"),
    "many names": lambda path: path.write_text("".join(f"a{n} = 1\n" for n in range(50_000))),
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a class of another kind": lambda path: path.write_text("class Mine:\n    def __new__(cls, **k): return 3"),
    "a metaclass": lambda path: path.write_text(
        "class M(type):\n    def __instancecheck__(s, o): raise OSError\n    def __call__(s, *a, **k): raise OSError\n"
        "    @property\n    def __signature__(s): raise OSError\nclass Mine(metaclass=M): pass"
    ),
    "a module that answers late": lambda path: path.write_text(
        "import time\ndef __getattr__(name): time.sleep(1000)\nfrom os.path import *"
    ),
    "a function that makes itself": lambda path: path.write_text("def Mine(dim): return Mine"),
    "arguments without end": lambda path: path.write_text(
        "def Mine(" + ", ".join(f"a{n}" for n in range(5000)) + "): return 1"
    ),
}  # fmt: skip


def hostile_targets() -> dict[str, Callable[[Path], object]]:
    """What writes each file, by its name."""
    found = dict(FILES)

    def add(name: str, **parts: str) -> None:
        text = LAYER
        for place in ("before", "built", "run", "beside", "after"):
            indent = {"before": "", "after": "", "beside": "    "}.get(place, "        ")
            text = text.replace(f"{{{place}}}", f"\n{indent}".join(parts.get(place, "").split("\n")))
        found[name] = lambda path: path.write_text(text, encoding="utf-8")

    for name, code in CODE.items():
        add(f"import: {name}", before=code)
        add(f"constructor: {name}", built=code)
        add(f"forward: {name}", run=code)
    for name, code in BESIDE.items():
        found_code = code
        add(f"with {name}", beside=found_code.replace("\n    ", "\n"))
    for name, code in FORWARDS.items():
        add(f"returns {name}", run=code.replace("\n        ", "\n"))
    return found


def _import(module: str) -> str:
    return f"__import__('{module}')"


HOSTILE_CALLS = {
    "an exit": f"m(x) if {_import('os')}._exit(0) else x",
    "an exit of Python": f"{_import('sys')}.exit(0)",
    "a kill of its parent": f"{_import('os')}.kill({_import('os')}.getppid(), 9)",
    "a kill of its group": f"{_import('os')}.killpg(0, 9)",
    "forks": f"[{_import('os')}.fork() for _ in range(3)] and m(x)",
    "a hang": f"{_import('time')}.sleep(1000)",
    "a list without end": "[1 for _ in iter(int, 1)]",
    "a large power": "9 ** 9 ** 9",
    "100 GB": "bytearray(100 * 2**30)",
    "output": "print('x' * 30_000_000) or m(x)",
    "a long message": "(_ for _ in ()).throw(ValueError('x' * 10_000_000))",
    "an odd message": "(_ for _ in ()).throw(ValueError(chr(27) + chr(0xd800) + chr(0x202e)))",
    "an input that it changes": "m(x.zero_())",
    "a layer that it changes": "m.project.weight.data.zero_().sum() + m(x)",
    "an output that grows": "setattr(m, 'n', getattr(m, 'n', 0) + 1) or m(x) + m.n",
    "another function": f"setattr({_import('torch')}, 'equal', lambda *_: True) or m(x)",
    "a setting": f"{_import('torch')}.set_default_dtype({_import('torch')}.float64) or m(x)",
    "no names": "globals().clear() or m(x)",
    "no modules": f"{_import('sys')}.modules.clear() or m(x)",
    "code": "exec('import os; os._exit(1)') or m(x)",
    "a segmentation fault": f"{_import('ctypes')}.string_at(0)",
    "descriptors closed": f"{_import('os')}.closerange(0, 200) or m(x)",
    "no end": "m(x",
    "a statement": "import os",
    "an assignment": "(y := m(x))",
    "a function": "lambda: m(x)",
    "a coroutine": "await m(x)",
    "no tensor": "'x'",
    "nothing": "()",
    "a name that nobody knows": "nothing(x)",
    "a NUL": "m(x)\0",
    "deep brackets": "(" * 400 + "m(x)" + ")" * 400,
    "a deep sum": "+".join(["m(x)"] * 150),
    "another length": "m(x)[:, :-1]",
    "another form": "m(x).flatten()",
    "a list in itself": "(lambda a: a.append(a) or a)([])",
}
"""Calls of a sound layer, as `--call` takes them."""


def hostile_tasks() -> dict[str, Callable[[Path], object]]:
    """What writes each file with a task, by its name."""
    found = dict(FILES)
    for part, template in TASK_PARTS.items():
        before = next(line for line in template.split("\n") if "{code}" in line).partition("{code}")[0]
        for name, code in CODE.items():
            text = template.replace("{code}", f"\n{before}".join(code.split("\n")))
            text = f"import os, sys, time\n{text}\nMine = Plugin\n"
            found[f"{part}: {name}"] = lambda path, text=text: path.write_text(text, encoding="utf-8")
    return found
