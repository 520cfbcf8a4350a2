"""The command line; `main` is the console script. Only what `--help` needs is imported before a command runs."""

from __future__ import annotations

import contextlib
import sys

from .signals import Interrupted, signals_raise

RESUMABLE = ("run", "data")
"""Commands whose finished work is kept, and that go on where they were interrupted."""

__all__ = ["main"]


def main() -> int:
    """Runs the command line; a signal ends it, and all processes that it started, with one line on the error stream."""
    try:
        with signals_raise():
            # inside: an interrupt while libraries are imported is told like any other
            from .app import run_app

            return run_app()
    except Interrupted as end:
        is_resumable = bool(sys.argv[1:]) and sys.argv[1] in RESUMABLE
        advice = "; finished results are kept, and the same command resumes" if is_resumable else ""
        from .output import warn

        # a terminal that was closed takes no message
        with contextlib.suppress(OSError, ValueError):
            warn(f"attnbench: interrupted by {end.name}{advice}")
        return end.exit_code
