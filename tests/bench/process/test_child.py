"""A child talks over a channel of its own, and takes everything that it started along when it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from attnbench.bench.core.spec import Spec
from attnbench.bench.process import child as children
from attnbench.bench.process.child import (
    PACKED,
    ChannelError,
    Child,
    decode_line,
    decode_order,
    encode_line,
    encode_order,
)
from attnbench.bench.process.servers import end_servers
from attnbench.bench.run.check import CheckVariant

LEAVE_A_PROCESS = """
import os, time
def leave_a_process():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            channel.write(b"%d\\n" % os.getpid())
            channel.flush()
            time.sleep(1000)
        os._exit(0)
    os.wait()
"""


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(LEAVE_A_PROCESS + textwrap.dedent(text), encoding="utf-8")
    return str(path)


def is_alive(pid: int) -> bool:
    """A zombie is dead, though nobody has collected it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_gone(pid: int) -> bool:
    ends = time.monotonic() + 10.0
    while is_alive(pid) and time.monotonic() < ends:
        time.sleep(0.01)
    return not is_alive(pid)


@pytest.mark.slow
def test_prints_and_what_reads_standard_input_do_not_touch_the_channel(tmp_path: Path) -> None:
    text = """
        import sys
        print("to nobody"); print("also", file=sys.stderr)
        try: input()
        except EOFError: pass
        for line in orders: channel.write(b"got " + line); channel.flush()
    """
    with Child(script(tmp_path, text)) as child:
        child.send(b"one\n")
        assert child.receive(30.0) == b"got one"
        child.send(b"two\n")
        assert child.receive(30.0) == b"got two"
        with pytest.raises(TimeoutError):
            child.receive(0.05)
        assert "to nobody" in child.last_errors and "also" in child.last_errors


def test_packed_lines_hold_any_bytes_between_lines_of_text(tmp_path: Path) -> None:
    """Bytes that are newlines, or the first byte of a packed line, and more than arrive at once."""
    text = """
        from attnbench.bench.process.child import decode_line, encode_line, read_lines
        for line in read_lines(orders):
            found = decode_line(line, bytes, packed=True)
            channel.write(b"next\\n" + encode_line(found[::-1], packed=True)); channel.flush()
    """
    with Child(script(tmp_path, text)) as child:
        for sent in (b"", b"\n\xff3\n", bytes(range(256)) * 4000):
            child.send(encode_line(sent, packed=True))
            assert child.receive(30.0) == b"next"
            line = child.receive(30.0)
            assert line is not None and decode_line(line, bytes, packed=True) == sent[::-1]


@pytest.mark.parametrize("size", [b"-1", b"1_0", b"9" * 9, b"9" * 5000, b"", b"x"])
def test_a_packed_line_of_a_wrong_size_is_a_broken_channel(tmp_path: Path, size: bytes) -> None:
    with (
        Child(
            script(tmp_path, f"channel.write(b'\\xff%b\\n' % {size!r}); channel.flush(); orders.readline()")
        ) as child,
        pytest.raises(ChannelError, match="size"),
    ):
        child.receive(30.0)


def test_text_that_is_no_unicode_travels_beside_bytes() -> None:
    question = CheckVariant(Spec("rela"), "cpu", "float32", by_design=("\udcff",))
    assert decode_order(received(encode_order(question, packed=True)), packed=True).by_design == ("\\udcff",)
    line = received(encode_line({"text": "\udcff", "bytes": b"\n\xff"}, packed=True))
    assert decode_line(line, dict, packed=True) == {"text": "\\udcff", "bytes": b"\n\xff"}


def received(line: bytes) -> bytes:
    """A packed line as it is behind its size."""
    return PACKED + line.split(b"\n", 1)[1]


def test_what_floods_its_channel_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    text = "leave_a_process()\nwhile True: channel.write(b'\\xff-1\\n')"
    with Child(script(tmp_path, text)) as child:
        line = child.receive(30.0)
        with pytest.raises(ChannelError):
            child.receive(30.0)
    assert line is not None and is_gone(int(line))


@pytest.mark.parametrize(
    ("end", "code"),
    [("import os; os._exit(7)", 7), ("import os; os.kill(os.getpid(), 11)", -11), ("raise SystemExit(3)", 3), ("", 0)],
)
def test_its_end_is_that_of_the_worker_and_what_it_left_is_gone(tmp_path: Path, end: str, code: int) -> None:
    with Child(script(tmp_path, f"leave_a_process()\n{end}\n")) as child:
        line = child.receive(30.0)
        assert line is not None
        assert child.receive(30.0) is None, "the channel closes though another process held it"
        assert child.exit_code == code
        assert is_gone(int(line))


def test_what_it_started_is_gone_when_it_is_ended(tmp_path: Path) -> None:
    with Child(script(tmp_path, "leave_a_process()\ntime.sleep(1000)")) as child:
        line = child.receive(30.0)
    assert line is not None and is_gone(int(line))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_it_started_is_gone_when_its_parent_is_killed(tmp_path: Path, number: int) -> None:
    target = script(tmp_path, "leave_a_process()\ntime.sleep(1000)")
    program = (
        "from attnbench.bench.process.child import Child; import time\n"
        f"child = Child({target!r}); print(child.receive(30.0).decode(), flush=True); time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        os.kill(parent.pid, number)
    assert is_gone(pid)


def test_a_line_without_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "MOST_LINE_BYTES", 2**20)
    with (
        Child(script(tmp_path, "while True: channel.write(b'x' * 2**16)")) as child,
        pytest.raises(ChannelError, match="more than 1 MiB on its channel"),
    ):
        child.receive(60.0)


def test_half_a_line_is_none(tmp_path: Path) -> None:
    with Child(script(tmp_path, "channel.write(b'whole\\nhalf'); channel.flush()")) as child:
        assert child.receive(30.0) == b"whole" and child.receive(30.0) is None


DAEMON = """
import os, signal, time
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(writing, b"here")
        channel.write(b"%d\\n" % os.getpid())
        channel.flush()
        time.sleep(100)
    os._exit(0)
os.read(reading, 4)
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(100)
"""


def test_a_daemon_that_outlives_its_supervisor_holds_nobody_up_and_ends_with_the_command(tmp_path: Path) -> None:
    script = tmp_path / "daemon.py"
    script.write_text(DAEMON, encoding="utf-8")
    with Child(str(script)) as child:
        daemon = child.receive(60.0)
        assert daemon is not None
        began = time.monotonic()
        assert child.receive(60.0) is None
        assert "SIGKILL" in child.death
        assert time.monotonic() - began < 20.0
    end_servers()
    with contextlib.suppress(psutil.NoSuchProcess):
        left = psutil.Process(int(daemon))
        assert not psutil.wait_procs([left], timeout=5)[1] or left.status() == psutil.STATUS_ZOMBIE
