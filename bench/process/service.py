"""The child that answers questions about the plugins of one distribution, one after another."""

from __future__ import annotations

import sys
import traceback
from typing import IO

from ..core.decode import brief
from ..core.errors import AttnbenchError, PluginError
from ..core.registry import import_foreign_plugins_here
from .ask import (
    Answered,
    Asked,
    Noticed,
    Progressed,
    Raised,
    Refused,
    Said,
    Told,
    decode_line,
    decode_question,
    encode_line,
    encode_value,
)

MOST_CHARACTERS = 2_000
"""Of a message for a person: what compilers and plugins say may have millions."""


def main(orders: IO[bytes], channel: IO[bytes]) -> int:
    import_foreign_plugins_here()

    def say(said: Said) -> None:
        channel.write(encode_line(said))
        channel.flush()

    told = Told(
        notice=lambda message: say(Noticed(brief(message, MOST_CHARACTERS))),
        progress=lambda what, done, total: say(Progressed(brief(what), done, total)),
    )
    for line in orders:
        question = decode_question(decode_line(line.rstrip(b"\n"), Asked))
        try:
            said: Said = Answered(encode_value(question.answer(told)))
        except PluginError as error:
            said = Refused(PluginError.__name__, brief(error.reason, MOST_CHARACTERS))
        except AttnbenchError as error:
            said = Refused(type(error).__name__, brief(error, MOST_CHARACTERS))
        except BaseException as error:
            # the reason names the exception and its place; the whole traceback is for the error stream
            traceback.print_exc(file=sys.stderr)
            said = Raised(_one_line(error))
        say(said)
    return 0


def _one_line(error: BaseException) -> str:
    """As in the Record of a Cell that crashed: the exception and its innermost frame."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {text} ({where.name}, line {where.lineno})"
