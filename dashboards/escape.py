"""Escape: text that came from a Record, made harmless before it is shown."""

from __future__ import annotations

import re
import unicodedata

LONGEST_WORD = 160
"""Characters without a blank that are shown in full; a path may have 4,096, and a name of others any number."""


def visible(text: str, longest: int | None = None) -> str:
    r"""`text` on one line, with every control character, and every one that reorders or hides text, as its code.

    >>> visible("a\x1b[31mb\nc"), visible("abcdef", longest=4)
    ('a\\x1b[31mb c', 'abcd… (2 more characters)')
    """
    if longest is not None and len(text) > longest:
        text, rest = text[:longest], len(text) - longest
        return visible(text) + f"… ({rest:,} more characters)"
    if text.isprintable():
        return text
    return "".join(_shown(letter) for letter in text.replace("\r\n", "\n").replace("\n", " ").replace("\t", " "))


def shortened(text: str, longest: int = LONGEST_WORD) -> str:
    """`text`, in which each run without a blank that is longer than that loses its middle.

    >>> shortened("expected a number, got 123456789012345678901234567890.", longest=20)
    'expected a number, got 1234567890…(11 more)…234567890.'
    """
    return re.sub(rf"\S{{{longest + 1},}}", lambda word: _ends(word[0], longest), text)


def _ends(word: str, longest: int) -> str:
    half = longest // 2
    return f"{word[:half]}…({len(word) - 2 * half:,} more)…{word[-half:]}"


def _shown(letter: str) -> str:
    # Cc controls, Cf formats (bidirectional overrides, zero-width joiners), Cs lone surrogates, Zl and Zp line ends
    if unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
