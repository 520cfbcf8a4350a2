"""The child that answers requests to the plugins of one distribution, one after another."""

from __future__ import annotations

import sys
import traceback
from typing import IO

from ..core.decode import brief
from ..core.errors import AttnbenchError, PluginError
from ..core.registry import import_foreign_plugins_here
from .ask import Answered, Noticed, Progressed, Raised, Refused, Reply, Reporter, encode_value
from .wire import MOST_CHARACTERS, decode_order, encode_line


def main(orders: IO[bytes], channel: IO[bytes]) -> int:
    import_foreign_plugins_here()

    def send(reply: Reply) -> None:
        channel.write(encode_line(reply))
        channel.flush()

    reporter = Reporter(
        notice=lambda message: send(Noticed(brief(message, MOST_CHARACTERS))),
        progress=lambda what, done, total: send(Progressed(brief(what), done, total)),
    )
    for line in orders:
        request = decode_order(line)
        try:
            reply: Reply = Answered(encode_value(request.answer(reporter)))
        except PluginError as error:
            reply = Refused(PluginError.__name__, brief(error.reason, MOST_CHARACTERS))
        except AttnbenchError as error:
            reply = Refused(type(error).__name__, brief(error, MOST_CHARACTERS))
        except BaseException as error:
            # the reason names the exception and its place; the whole traceback is for the error stream
            traceback.print_exc(file=sys.stderr)
            reply = Raised(_one_line(error))
        send(reply)
    return 0


def _one_line(error: BaseException) -> str:
    """As in the Record of a Cell that crashed: the exception and its innermost frame."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {text} ({where.name}, line {where.lineno})"
