"""The words that a person is told: the one family of errors that they can cause or cure, and the log of Python.

Messages may quote what strangers wrote.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

Notice = Callable[[str], None]
"""Gets a sentence for the person who asked."""

LOG = logging.getLogger("attnbench")


class AttnbenchError(Exception):
    """A mistake or a missing part; the message says what was expected, what was found and what to do.

    The command line prints the message alone and exits with `exit_code`.
    """

    exit_code = 2


class SelectionError(AttnbenchError):
    """A name, parameter or value that nothing answers to."""


class PluginError(SelectionError):
    """A plugin that raised, ended its process, hung, did not load, or replaced what examines it.

    `reason` is what stands in the Records of its Cells, `outcome` theirs: `crashed`, `timeout` or `incorrect`.
    """

    def __init__(self, plugin: str, reason: str, outcome: str = "crashed"):
        super().__init__(f"{plugin} cannot be used: {reason}")
        self.plugin, self.reason, self.outcome = plugin, reason, outcome


class DataError(AttnbenchError):
    """Data that is missing, incomplete or not what it claims to be."""

    exit_code = 3


class StoreError(AttnbenchError):
    """A results folder that cannot be read or written."""

    exit_code = 4


class DeviceError(AttnbenchError):
    """A device that this machine does not have."""

    exit_code = 5


class Unsupported(AttnbenchError):
    """A variant that declares it cannot do what is asked; the reason is the message."""

    exit_code = 6


def crash_text(error: BaseException) -> str:
    """Describe what ended code of others: the exception and its innermost frame, on one line.

    The frame is enough to find it; a whole traceback does not fit on a board. An exception may fail to give its text.
    """
    try:
        text = " ".join(str(error).split())[:500]
    except Exception:
        text = "its text cannot be had"
    # frames of Python's importer say nothing, and a SyntaxError names its own place
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<frozen ")]
    # an assertion of others often has no text but its line
    text = text or (frames[-1].line or "" if frames else "")
    place = f" ({frames[-1].name}, line {frames[-1].lineno})" if frames and not isinstance(error, SyntaxError) else ""
    return f"{type(error).__name__}: {text}{place}"


def _show(record: logging.LogRecord) -> bool:
    """Whatever takes effect on a terminal, or hides or reorders text, becomes its code."""
    letters = (each if each.isprintable() else each.encode("unicode_escape").decode() for each in record.getMessage())
    record.msg, record.args = "".join(letters), ()
    return True


LOG.addFilter(_show)
