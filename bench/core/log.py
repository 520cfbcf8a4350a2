"""The log of the Python interface, whose messages may quote what strangers wrote."""

from __future__ import annotations

import logging
from collections.abc import Callable

Notice = Callable[[str], None]
"""Gets a sentence for the person who asked."""

LOG = logging.getLogger("attnbench")


def _show(record: logging.LogRecord) -> bool:
    """Whatever takes effect on a terminal, or hides or reorders text, becomes its code."""
    letters = (each if each.isprintable() else each.encode("unicode_escape").decode() for each in record.getMessage())
    record.msg, record.args = "".join(letters), ()
    return True


LOG.addFilter(_show)
