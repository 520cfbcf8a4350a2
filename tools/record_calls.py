"""Record which functions of the tree each test calls: a plugin of pytest (`-p record_calls`), also in its children.

It writes lines `test<TAB>file<TAB>function` to the file that MUTATE_CALLS names, one for each pair, and after each test
`test<TAB>outcome<TAB>seconds of processor time`. Children load it by their `sitecustomize`, and know their test by
PYTEST_CURRENT_TEST. `mutate.py map` sets all this up.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

TREE = os.environ["MUTATE_TREE"] + "/"
FOLDERS = tuple(TREE + folder + "/" for folder in ("variants", "bench", "tasks", "dashboards"))
out = os.open(os.environ["MUTATE_CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
seen: set[CodeType] = set()
failed: list[str] = []


def current_test() -> str:
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


def trace(frame: FrameType, event: str, argument: Any) -> None:
    code = frame.f_code
    if code in seen:
        return
    seen.add(code)
    if code.co_filename.startswith(FOLDERS):
        # a function inside a function is written under the outer name, by which places are known
        name = code.co_qualname.partition(".<locals>")[0]
        os.write(out, f"{current_test()}\t{code.co_filename.removeprefix(TREE)}\t{name}\n".encode())


def processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    seen.clear()
    failed.clear()
    os.environ["PYTEST_CURRENT_TEST"] = f"{item.nodeid} (setup)"
    # some tests set a trace function of their own
    sys.settrace(trace)
    began = processor_seconds()
    result = yield
    outcome = "failed" if failed else "passed"
    os.write(out, f"{item.nodeid}\t{outcome}\t{processor_seconds() - began:.3f}\n".encode())
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        failed.append(report.nodeid)


sys.settrace(trace)
threading.settrace(trace)
# while the interpreter ends, the names of this file are no more
atexit.register(sys.settrace, None)
