"""Walks: which functions of attnbench a command crosses, in its own process and in those that it starts.

    python tests/support/walk.py FOLDER run --variants rela --task lra-text --preset smoke --lanes train --offline

FOLDER gets the results and one file of crossings. A tracer of calls is set in every process by a `sitecustomize` that
stands first in PYTHONPATH, and in a forked process by the fork. A function counts by its file and its qualified name,
lambdas and comprehensions as a part of the function around them. Functions that run while a module is imported do not
count, nor does anything after the function UNTIL has returned.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

TREE = Path(__file__).resolve().parents[2]
UNTIL = ("bench/api/run.py", "run")
"""Where the Records of a run are in the store: what follows are boards and the page."""

OURS = tuple(
    f"{TREE}{os.sep}{name}" for name in ("__init__.py", "__main__.py", "bench", "dashboards", "tasks", "variants")
)
"""How paths of the package begin: the environment may lie in the same folder."""

IS_FUNCTION = 1
"""The flag CO_OPTIMIZED of a code object: neither a module nor the body of a class has it."""


def record_here(crossings: str) -> None:
    """Writes each function to the file `crossings` when this process enters it for the first time."""
    seen: set[CodeType] = set()
    os.register_at_fork(after_in_child=seen.clear)
    root = f"{TREE}{os.sep}"

    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        file = code.co_filename
        if code in seen:
            return None
        counts = file.startswith(OURS) and code.co_flags & IS_FUNCTION and not code.co_name.startswith("<")
        if counts and _is_imported(frame):
            return None
        seen.add(code)
        if counts:
            # opened each time, since a child may close whatever it has inherited
            with open(crossings, "a", encoding="utf-8") as lines:  # noqa: PTH123
                lines.write(f"{os.getpid()} {file.removeprefix(root)} {code.co_qualname}\n")
        if (file.removeprefix(root), code.co_name) == UNTIL:
            frame.f_trace_lines = False
            return on_end
        return None

    def on_end(frame: FrameType, event: str, _: Any) -> Any:
        if event == "return":
            sys.settrace(None)
        return on_end

    # not `sys.setprofile`, which is told of each return and of each call of a built-in function as well
    threading.settrace(on_call)
    sys.settrace(on_call)


def _is_imported(frame: FrameType | None) -> bool:
    """Whether an import of one of our modules is on the stack."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(OURS):
            return frame.f_globals["__name__"] != "__main__"
        frame = frame.f_back
    return False


def walk(folder: Path, *command: str) -> set[tuple[str, str]]:
    """The functions that `attnbench COMMAND` crosses, as file below the tree and qualified name."""
    crossings, site = folder / "crossings", folder / "site"
    site.mkdir(parents=True)
    (site / "sitecustomize.py").write_text(f"import walk\nwalk.record_here({str(crossings)!r})\n", encoding="utf-8")
    paths = [str(site), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    # which the tests set and a person does not: the gate would go through Triton's interpreter as well
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-m", "attnbench", *command], env=environment, cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    lines = crossings.read_text(encoding="utf-8").split("\n")[:-1]
    return {(file, name) for _, file, name in (line.split(" ", 2) for line in lines)}


def files_of(crossed: set[tuple[str, str]]) -> Counter[str]:
    """How many functions of each file were crossed."""
    return Counter(file for file, _ in crossed)


if __name__ == "__main__":
    found = walk(Path(sys.argv[1]).resolve(), *sys.argv[2:])
    for name, count in sorted(files_of(found).items()):
        print(f"{count:4} {name}")
    print(f"{len(files_of(found))} files, {len(found)} functions")
