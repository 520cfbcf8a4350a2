"""Advice: the right words after a mistake in the order or number of words, which the parser alone cannot know."""

from __future__ import annotations

RUN = "--variants rela,entmax15 --task lra-text"

EXAMPLES = {
    "run": f"attnbench run {RUN}",
    "plan": f"attnbench plan {RUN}",
    "status": "attnbench status --results results/lra",
    "leaderboard": "attnbench leaderboard --task lra-text",
    "dashboard": "attnbench dashboard --task lra-text",
    "choose": "attnbench choose --length 512",
    "compare": "attnbench compare rela linear",
    "new": "attnbench new variant my-attention",
    "check": "attnbench check rela linear",
    "probe": "attnbench probe entmax15",
    "list": "attnbench list variants",
    "show": "attnbench show rela",
    "sample": "attnbench sample 3f2a",
    "inspect": "attnbench inspect 3f2a --example 0",
    "explain": "attnbench explain --variants softmax,sparsemax",
    "convert": "attnbench convert ./my-model --to entmax15 --text text.txt",
    "merge": "attnbench merge FOLDER --results results",
    "validate": "attnbench validate FOLDER",
    "doctor": "attnbench doctor --noise",
    "results pack": "attnbench results pack FOLDER",
    "data list": "attnbench data list lra-text",
    "data get": "attnbench data get lra-text",
    "data verify": "attnbench data verify lra-text",
    "data preview": "attnbench data preview lra-text",
    "data export": "attnbench data export --tfds FOLDER",
}
"""A right use of each command: the last line of its help, and the answer to words in a wrong order or number."""

ORDER = "Got unexpected extra argument", "Missing argument", "Missing option", "is not one of 'variant', 'task'"
"""Words of the parser for such a mistake."""


def advice_for(message: str, path: str) -> str:
    """The right use, where a problem is of words in a wrong place, else where to read; `path`: the command's words.

    >>> advice_for("No such option: --tsk", "attnbench run")
    'see `attnbench run --help`'
    >>> advice_for("Missing option '--length'", "attnbench choose")
    'write `attnbench choose --length 512`, or see `attnbench choose --help`'
    """
    name = path.removeprefix("attnbench").strip()
    if not name and message.startswith("No such option"):
        return f"options follow the command, as in `{EXAMPLES['run']}`; see `attnbench --help`"
    if message.startswith("No such option: --json"):
        return f"write `{path} --format json`, or see `{path} --help`"
    if name in EXAMPLES and any(words in message for words in ORDER):
        return f"write `{EXAMPLES[name]}`, or see `{path} --help`"
    return f"see `{path} --help`"


def example_of(name: str) -> str:
    """The last line of a command's help; `name`: its words after `attnbench`."""
    return f"Example: {EXAMPLES[name]}"
