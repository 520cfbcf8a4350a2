"""A child that needs a server of its own forks it, and nothing of what the child has open or has started is in it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest

from attnbench.bench.process.child import Child

OUTER = """
import json, os, sys, threading
from attnbench.bench.process.child import Child
from attnbench.bench.process import servers
{before}
servers.start_server()
server = next(iter(servers._SERVERS.values())).process.pid
with Child({inner!r}) as child:
    found = json.loads(child.receive(60.0))
    child.end(5.0)
    found |= dict(server=server, line=open(f"/proc/{{server}}/cmdline").read())
    found |= dict(code=child.exit_code, said=child.last_errors)
    channel.write(json.dumps(found).encode() + b"\\n")
    channel.flush()
    if {waits}:
        orders.readline()
"""

INNER = """
import json, os, sys
from attnbench.bench.process import servers
servers.start_server()
own = next(iter(servers._SERVERS.values())).process.pid
numbers = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
open_files = [os.readlink(each) for each in numbers if os.path.exists(each)]
channel.write(json.dumps(dict(own=own, imported="torch" in sys.modules, files=open_files)).encode() + b"\\n")
channel.flush()
print("said by the inner")
sys.exit(3)
"""


def ran(folder: Path, *, before: str = "", waits: bool = False) -> tuple[dict[str, object], Child]:
    (folder / "inner.py").write_text(INNER, encoding="utf-8")
    script = folder / "outer.py"
    script.write_text(OUTER.format(before=before, inner=str(folder / "inner.py"), waits=waits), encoding="utf-8")
    child = Child(str(script))
    line = child.receive(60.0)
    assert line is not None, child.death
    return json.loads(line), child


def parent_in(line: object) -> int:
    """The process that a server was started by, as its command line says."""
    return int(str(line).split("\0")[-2])


def is_running(pid: object) -> bool:
    assert isinstance(pid, int)
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_child_forks_a_server_whose_children_are_as_others_are(tmp_path: Path) -> None:
    (tmp_path / "held").touch()
    found, child = ran(tmp_path, before=f"held = open({str(tmp_path / 'held')!r})")
    with child:
        assert (found["code"], found["imported"]) == (3, True) and "said by the inner" in str(found["said"])
        # its command line is that of the server of this process
        assert parent_in(found["line"]) == os.getpid()
        assert not any("held" in each for each in found["files"])  # type: ignore[attr-defined]
    assert not is_running(found["server"]) and not is_running(found["own"])


def test_a_forked_server_ends_with_the_child_that_forked_it(tmp_path: Path) -> None:
    found, child = ran(tmp_path, waits=True)
    with child:
        assert is_running(found["server"])
    assert not is_running(found["server"])


@pytest.mark.parametrize(
    "before",
    ["threading.Thread(target=threading.Event().wait, daemon=True).start()", "os.environ['OMP_NUM_THREADS'] = '3'"],
    ids=["threads", "other variables"],
)
def test_a_server_that_would_differ_from_a_new_one_is_started_anew(tmp_path: Path, before: str) -> None:
    found, child = ran(tmp_path, before=before)
    with child:
        assert parent_in(found["line"]) != os.getpid()
