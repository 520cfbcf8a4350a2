"""Ends a Ray cluster whose driver has gone: `python -m attnbench.bench.wings.clusters.ray_watch FOLDER`.

FOLDER is that of the cluster's session. Standard input is a pipe from the driver, which ends with it, however it ends:
Ray's own processes notice a killed driver late or never.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress

import psutil

CLEANING_SECONDS = 20.0


def main() -> None:
    folder = sys.argv[1]
    sys.stdin.buffer.read()
    ends = time.monotonic() + CLEANING_SECONDS
    while (found := _processes(folder)) and time.monotonic() < ends:
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def _processes(folder: str) -> set[psutil.Process]:
    """The processes whose words name the folder or that write there, and what they have started."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):
            places = [*(process.info["cmdline"] or ()), *(file.path for file in process.open_files())]
            if process.pid != os.getpid() and any(folder in place for place in places):
                found |= {process, *process.children(recursive=True)}
    return {process for process in found if process.pid != os.getpid()}


if __name__ == "__main__":
    main()
