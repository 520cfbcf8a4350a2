"""The command line; `main` is the console script. Only what `--help` needs is imported before a command runs."""

from .app import main

__all__ = ["main"]
