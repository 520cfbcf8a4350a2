"""Command lines of attnbench, run in this process."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from unittest import mock

from attnbench.bench.cli import app


@dataclass(frozen=True, slots=True)
class Answer:
    """The exit code of a command, and the text of its two streams."""

    code: int
    output: str
    errors: str


def answer(words: str | Sequence[str]) -> Answer:
    """Run `attnbench` with `words`, or with those of a line of the shell; a fault of the command is raised."""
    words = shlex.split(words) if isinstance(words, str) else words
    output, errors = io.StringIO(), io.StringIO()
    with (
        # closing a stream of this process would end all tests after it
        mock.patch.object(app, "give_up"),
        mock.patch.object(sys, "argv", ["attnbench", *words]),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        code = app.run_app()
    return Answer(code, output.getvalue(), errors.getvalue())
