"""Advice: the right words after a mistake in the order or number of words, which the parser alone cannot know."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

RUN = "attnbench run --variants rela,entmax15 --task lra-text"
"""A right use of the first command that anybody tries."""

ORDER = "Got unexpected extra argument", "Missing argument", "Missing option", "is not one of 'variant', 'task'"
"""Words of the parser for such a mistake."""


def advice_for(message: str, path: str, words: Sequence[str] = (), example: str = "") -> str:
    """The right use, where a problem is of words in a wrong place, else where to read; `path`: the command's words.

    `words`: all that stood on the command line; `example`: a right use of that command.

    >>> advice_for("No such option: --tsk", "attnbench run")
    'see `attnbench run --help`'
    >>> advice_for("Missing option '--length'", "attnbench choose", [], "attnbench choose --length 512")
    'write `attnbench choose --length 512`, or see `attnbench choose --help`'
    >>> advice_for("No such option: -p", "attnbench plan", ["attnbench", "plan", "-preset", "smoke"])
    'options have two dashes: write `--preset`, or see `attnbench plan --help`'
    """
    name = path.removeprefix("attnbench").strip()
    for word, following in pairwise([*words, ""]):
        if message.startswith("No such option") and re.fullmatch("-[a-z][a-z-]+", word):
            return f"options have two dashes: write `-{word}`, or see `{path} --help`"
        if message.startswith("Got unexpected extra argument") and word.endswith(",") and following:
            return f"write no space after a comma: `{word}{following}`, or see `{path} --help`"
    if "--" in words and any(word.startswith("-") for word in words[words.index("--") + 1 :]):
        return f"leave out `--`: no option is read behind it; or see `{path} --help`"
    if "'--seeds'" in message and any(re.fullmatch(r"(--seeds=)?[0-9]+(,[0-9]+)+", word) for word in words):
        return "write how many, as in `--seeds 3` for the seeds 0, 1 and 2"
    if not name and message.startswith("No such option"):
        return f"options follow the command, as in `{RUN}`; see `attnbench --help`"
    if message.startswith("No such option: --json"):
        return f"write `{path} --format json`, or see `{path} --help`"
    if example and any(words in message for words in ORDER):
        return f"write `{example}`, or see `{path} --help`"
    return f"see `{path} --help`"
