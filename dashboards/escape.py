"""Escape: text that came from a Record, made harmless before it is shown; one function for each route to a reader."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

LONGEST_WORD = 160
"""Characters without a blank that are shown in full; a path may have 4,096, and a name of others any number."""

MOST_MARKS = 4
"""Combining marks after one letter that are shown; more of them cover other lines."""

# joiners, fillers and variation selectors, which show nothing though they count as letters and marks
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_MARKUP = re.compile(r"([\\`*_\[\]|~$]|:(?=//)|(?<=www)\.)", re.IGNORECASE)
_MENTION = re.compile(r"@(?=\w)")
# also behind a semicolon, which separates cells where a comma is the decimal point, whatever the quotes
_FORMULA = re.compile(r"(^|;)(?=[\s\"]*[=+\-@\uff1d\uff0b\uff0d\uff20])")

# LaTeX joins these to a dash or to quotes of another kind; `visible` leaves no space of no width in the text itself
_LIGATURE = re.compile(r"([-',])(?=\1)")
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "×": r"$\times$", "−": "$-$", "±": r"$\pm$", "≈": r"$\approx$", "–": "--", "†": r"\dag{}",
    "α": r"$\alpha$", "µ": r"$\mu$", "…": r"\dots{}", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "·": r"$\cdot$",
    "≤": r"$\leq$", "●": r"$\bullet$", "`": r"\textasciigrave{}", "\u200b": "{}",
}  # fmt: skip


def visible(text: str, longest: int | None = None) -> str:
    r"""`text` on one line, with every control character, and every one that reorders or hides text, as its code.

    >>> visible("a\x1b[31mb\nc"), visible("abcdef", longest=4)
    ('a\\x1b[31mb c', 'abcd… (2 more characters)')
    """
    if longest is not None and len(text) > longest:
        text, rest = text[:longest], len(text) - longest
        return visible(text) + f"… ({rest:,} more characters)"
    # what Python prints has none of the categories that hide; nearly all texts end here
    if text.isprintable() and (text.isascii() or not (_BLANK.search(text) or any(map(unicodedata.combining, text)))):
        return text
    shown: list[str] = []
    marks = 0
    for letter in text.replace("\r\n", "\n").replace("\n", " ").replace("\t", " "):
        marks = marks + 1 if unicodedata.combining(letter) else 0
        shown.append(_code(letter) if marks > MOST_MARKS or _is_hidden(letter) else letter)
    return "".join(shown)


def in_markdown(text: str, longest: int | None = None) -> str:
    """`text` so that GitHub shows it as it stands: no markup, HTML, link or mention in it takes effect.

    >>> in_markdown("a|b <i> www.x.test"), in_markdown("http://x.test")
    ('a\\\\|b &lt;i&gt; www\\\\.x.test', 'http\\\\://x.test')
    """
    text = _MARKUP.sub(r"\\\1", visible(text, longest))
    for letter, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(letter, entity)
    # a zero-width space, since GitHub tells people of a mention even where the sign is an entity
    return _MENTION.sub("@\u200b", text)


def in_latex(text: str, longest: int | None = None) -> str:
    r"""`text` without commands.

    >>> in_latex("\\input 5%"), in_latex("--notes")
    ('\\textbackslash{}input 5\\%', '-{}-notes')
    """
    return "".join(_LATEX.get(letter, letter) for letter in _LIGATURE.sub("\\1\u200b", visible(text, longest)))


def in_csv(text: str) -> str:
    """`text` that no spreadsheet takes for a formula.

    >>> in_csv("=1+1"), in_csv("local"), in_csv("a;=1+1")
    ("'=1+1", 'local', "a;'=1+1")
    """
    return _FORMULA.sub(r"\1'", visible(text))


def in_html(value: Any) -> Any:
    """A value as a template shows it: text is `visible`, and the template escapes it; markup of ours stays."""
    return value if hasattr(value, "__html__") else visible(str(value))


def in_script(values: Any) -> str:
    """JSON that no HTML parser can leave early, and that JavaScript reads as JSON; all text in it is `visible`.

    >>> in_script({"a": "</script>"})
    '{"a":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(_visible_values(values), separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _visible_values(values: Any) -> Any:
    if isinstance(values, str):
        return visible(values)
    if isinstance(values, dict):
        return {visible(name): _visible_values(each) for name, each in values.items()}
    if isinstance(values, list | tuple):
        return [_visible_values(each) for each in values]
    return values


def shortened(text: str, longest: int = LONGEST_WORD) -> str:
    """`text`, in which each run without a blank that is longer than that loses its middle.

    >>> shortened("expected a number, got 123456789012345678901234567890.", longest=20)
    'expected a number, got 1234567890…(11 more)…234567890.'
    """
    return re.sub(rf"\S{{{longest + 1},}}", lambda word: _ends(word[0], longest), text)


def _ends(word: str, longest: int) -> str:
    half = longest // 2
    return f"{word[:half]}…({len(word) - 2 * half:,} more)…{word[-half:]}"


def _is_hidden(letter: str) -> bool:
    # Cc controls, Cf formats (bidirectional overrides, zero-width joiners), Cs lone surrogates, Zl and Zp line ends
    return unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") or _BLANK.match(letter) is not None


def _code(letter: str) -> str:
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
