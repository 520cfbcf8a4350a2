"""Build: the C++ kernels for CPU, compiled on first use where a compiler is present, and kept on disk.

The folder is named by a hash of the sources, the flags and the version of PyTorch, below ATTNBENCH_CACHE or the user's
cache folder, so that a change of any is built anew and nothing old is ever loaded. Nothing is built at install time.

A library runs as whoever loads it. It is therefore loaded from a folder alone that nobody else can write in.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import torch
from filelock import FileLock

from ....bench.core.files import is_trusted, make_private

NAME = "attnbench_cpu"
LIBRARY = f"{NAME}.so"

_HERE = Path(__file__).resolve().parent
# a new kernel joins by lying in this folder; sorted, since the folder of the build is named by a hash of them in order
SOURCES = sorted(_HERE.glob("*.cpp"))
HEADERS = sorted(_HERE.glob("*.h"))
# no -ffast-math: NaN and infinity have to pass through, and sums to keep their order
_COMMON_FLAGS = ("-O3", "-fopenmp", "-fno-math-errno")
# by what torch.backends.cpu.get_cpu_capability() says, which ATEN_CPU_CAPABILITY may lower
_CAPABILITY_FLAGS = {
    "AVX2": ("-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2", "-mavx2", "-mfma", "-mf16c"),
    "AVX512": (
        *("-DCPU_CAPABILITY=AVX512", "-DCPU_CAPABILITY_AVX512", "-mavx512f", "-mavx512bw", "-mavx512vl"),
        *("-mavx512dq", "-mavx2", "-mfma", "-mf16c"),
    ),
}
# any other processor: ATen's vectors are then plain arrays, right and slow
_PLAIN_FLAGS = ("-DCPU_CAPABILITY=DEFAULT", "-DCPU_CAPABILITY_DEFAULT")

_BUILD = """
import json, sys
from torch.utils import cpp_extension
try:
    cpp_extension.load(**json.loads(sys.argv[1]))
except Exception as error:
    sys.exit(str(error))
"""


@cache
def failure() -> str | None:
    """None where the kernels are loaded, as torch.ops.attnbench_cpu; else why they cannot be. Builds at first call."""
    try:
        library = built()
        try:
            _load(library)
        except OSError:
            # one that the system loads no longer would otherwise stand in the way of a new one for ever
            _set_aside(library)
            _load(built())
    except Exception as error:
        # whatever a toolchain may raise: the caller has other paths, and needs the reason alone
        return _reason(str(error)) or type(error).__name__
    return None


def _load(library: Path) -> None:
    torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]


def flags() -> tuple[str, ...]:
    """The compiler's flags for this processor; part of what names the build."""
    return *_COMMON_FLAGS, *_CAPABILITY_FLAGS.get(torch.backends.cpu.get_cpu_capability(), _PLAIN_FLAGS)


def folders(unit: str = "") -> list[Path]:
    """Folders for the library of this source, these flags and this PyTorch; the first that can be trusted counts.

    unit: the source, where it is not that of the kernels here.
    ATTNBENCH_CACHE may name a folder that several users share; the user's own follows it.
    """
    given = hashlib.sha256(unit.encode())
    for path in (*(() if unit else SOURCES), *HEADERS):
        given.update(path.read_bytes())
    # another PyTorch has another binary interface
    given.update("\n".join((*flags(), torch.__version__, *compiler())).encode())
    named, base = os.environ.get("ATTNBENCH_CACHE"), os.environ.get("XDG_CACHE_HOME")
    own = (Path(base) if base else Path.home() / ".cache") / "attnbench"
    roots = [Path(named).expanduser(), own] if named else [own]
    return [root / "kernels" / given.hexdigest()[:16] for root in roots]


def compiler() -> tuple[str, ...]:
    """The C++ compiler that PyTorch would call, as words of a command: its path, then what CXX puts behind it.

    Two words where CXX is "ccache g++"; none where there is no such program.
    """
    try:
        program, *more = shlex.split(os.environ.get("CXX") or "c++")
    except ValueError:
        # a quotation mark without its other half, or blanks alone
        return ()
    found = shutil.which(program)
    return (found, *more) if found else ()


def built(unit: str = "") -> Path:
    """The library of the kernels, or of the C++ source `unit`, which may include their headers; compiled at first.

    Raises RuntimeError where it cannot be.
    """
    found = next((each / LIBRARY for each in folders(unit) if _is_usable(each / LIBRARY)), None)
    if found is not None:
        return found
    if not compiler():
        raise RuntimeError("no C++ compiler found; install g++, or name one in CXX")
    if shutil.which("ninja") is None:
        raise RuntimeError("no ninja found; pip install ninja")
    home = _claimed(unit)
    library = home / LIBRARY
    # several workers may start at once: one builds, the others wait and load
    with FileLock(home / "lock"):
        # another process may have built it meanwhile
        if not _is_usable(library):
            _set_aside(library)
            _build(home, library, unit)
    return library


def _is_usable(library: Path) -> bool:
    """True if nobody else could have made it and it is still as it was built: a damaged one may end the process."""
    note = _checksum_note(library)
    try:
        return is_trusted(library) and is_trusted(note) and note.read_text(encoding="ascii") == _checksum(library)
    except (OSError, UnicodeDecodeError):
        return False


def _checksum_note(library: Path) -> Path:
    return library.with_name(f"{library.name}.sha256")


def _checksum(library: Path) -> str:
    with library.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _keep(built: Path, library: Path) -> None:
    """Moves it there with its checksum beside it; whole or not at all, whenever the process may die."""
    _checksum_note(library).write_text(_checksum(built), encoding="ascii")
    built.replace(library)


def _set_aside(library: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        library.replace(library.with_name(f"{library.name}.damaged"))


def _claimed(unit: str) -> Path:
    """The first folder that this user alone can write in, made where it is missing."""
    for home in folders(unit):
        try:
            make_private(home)
            if is_trusted(home.parent) and not is_trusted(home) and home.stat().st_uid == os.getuid():
                # a mask that lets a group write made it for more than this user
                home.chmod(0o700)
                (home / LIBRARY).unlink(missing_ok=True)
        except OSError:
            continue
        if is_trusted(home):
            return home
    raise RuntimeError(
        f"expected a folder that nobody else can write in, got {folders(unit)[0]}; name another in ATTNBENCH_CACHE"
    )


def _build(home: Path, library: Path, unit: str) -> None:
    what, long = ("a map of scores", "some seconds") if unit else ("the C++ attention kernels", "about half a minute")
    print(
        f"attnbench: building {what} ({torch.backends.cpu.get_cpu_capability()}), once; {long}, kept in {home}",
        file=sys.stderr,
        flush=True,
    )
    started = time.monotonic()
    # a folder of its own: a build that was killed left a lock in its folder, which PyTorch would wait for
    with tempfile.TemporaryDirectory(dir=home, prefix="build-") as folder:
        work = Path(folder)
        if unit:
            (work / "unit.cpp").write_text(unit, encoding="utf-8")
        arguments = {
            "name": NAME,
            "sources": [str(path) for path in ([work / "unit.cpp"] if unit else SOURCES)],
            "extra_include_paths": [str(_HERE)],
            "extra_cflags": flags(),
            "extra_ldflags": ["-fopenmp"],
            "build_directory": folder,
            # the library registers operators as it is loaded; there is nothing to import
            "is_python_module": False,
        }
        # A child, for two reasons: PyTorch names the second build of a process NAME_v1 and loads each into the process,
        # and another CXX concerns the child alone. -P: no module from the current folder.
        command = [sys.executable, "-P", "-W", "ignore", "-c", _BUILD, json.dumps(arguments)]
        done = subprocess.run(command, env=os.environ | _one_program(work), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(_reason(done.stderr.strip() or f"the build ended with code {done.returncode}"))
        _keep(work / LIBRARY, library)
    print(f"attnbench: built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _one_program(work: Path) -> dict[str, str]:
    """The variable CXX for the build: a script in the folder `work` where the command has several words."""
    words = compiler()
    if len(words) < 2:
        return {"CXX": words[0]}
    # PyTorch quotes CXX as one word, so that "ccache g++" would be looked for as a program of that name
    program = work / "c++"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return {"CXX": str(program)}


def _reason(message: str) -> str:
    """The first line of a compiler that says what is wrong, or the first of the message."""
    lines = [line.strip() for line in message.split("\n") if line.strip()]
    wrong = [line for line in lines if "error:" in line]
    return (wrong or lines or [""])[0][:300]
