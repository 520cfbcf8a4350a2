"""Texts of strangers on every route to a reader: they show as they stand, and nothing in them takes effect."""

from __future__ import annotations

import contextlib
import csv
import html.parser
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_lines import answer
from hostile_folders import sound_folder, sound_records
from markdown_it import MarkdownIt
from rich.cells import cell_len
from tally import Extent, Tally

import attnbench
from attnbench.bench.api import boards as api
from attnbench.bench.api import pages
from attnbench.bench.board.board import Board
from attnbench.bench.cli.live import Live
from attnbench.bench.cli.output import console
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.hashing import content_hash
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.record import Record
from attnbench.bench.core.spec import Spec

pytest.importorskip("altair", reason="the extra dashboard is not installed")

from attnbench.bench.wings.inspect import attention_maps
from attnbench.dashboards import csv_json, escape, latex, markdown, terminal
from attnbench.dashboards import html as page
from attnbench.dashboards.view import View

DETAILS = View(all_notes=True, columns="all")
HARMLESS = "word"
LONG = "w" * 400

TEXTS = {
    "escape sequences": "\x1b[31mred\x1b[0m\x1b[2J\x1b]0;title\x07\x1b]8;;http://x.test\x1b\\a\x1b]8;;\x1b\\\x9b1m\x08\x7f",
    "order of letters": "a\u202egnp.exe\u202c \u2066b\u2069\u200f \u061c",
    "hidden letters": "so\u200bft\u200dmax\u2060\ufeff\u00ad\U000e0041",
    "ends of lines": "a\nb\r\nc\rd\x0be\x0cf\u2028g\u2029h\x85i\tj",
    "ends of lines and Markdown": "a\n\n# b\n\n- c\n\n    d\n\n---\n\n| e | f |\n|---|---|\n| g | h |\n\n> i",
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)><!-- a --></td></table><b>&lt;&#60;b",
    "end of a script": "</script ><script>alert(1)</script></ScRiPt\t><!--<script>",
    "end of an attribute": "\" onload='alert(1)' x=\"'><svg/onload=alert(1)>",
    "templates": "{{style}} {{script}} ${7*7} {% raw %} {0} {text} %s %(a)s $text",
    "Markdown": "| a | `b` **c** __d__ ~~e~~ *f* _g_ \\| \\` \\\\ ![p](http://x.test/p.png) [l](javascript:a%281%29)",
    "links of Markdown": "<http://x.test> http://x.test www.x.test a@x.test mailto:a@x.test [r]: http://x.test [r]",
    "names of people and mathematics": "@octocat @org/team $x$ $$y$$ $`z`$ :smile: <!-- [ ] -->",
    "LaTeX": "\\input{/etc/passwd} \\write18{id} \\end{tabular} % gone & # _ ^ ~ $x$ {a} ^^5cinput \\\\ \\",
    "formula =": "=cmd|'/c calc'!A1",
    "formula @": "@SUM(1)",
    "formula after a blank": " \t=HYPERLINK(\"http://x.test\";\"a\")",
    "formula behind full width": "\uff1d1+1",
    "markup of rich": "[red]a[/red] [/] [link=http://x.test]b[/link] [@click=app.bell]c[/] [bold",
    "markup of rich, with a backslash": "\\[red]a[/red]\\ [blink]b\\",
    "a long word": LONG,
    "wide letters": "漢字" * 100,
    "marks without end": "a" + "\u0301" * 200,
    "surrogates": "a\ud800b\udfff",
}  # fmt: skip
"""Each is put wherever a Record has text that its maker chooses."""


class Outline(html.parser.HTMLParser):
    """The tags of a page with the names of their attributes, and the JSON that it holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[tuple[str, tuple[str, ...]]] = set()
        self.values: list[str] = []
        self._in_values = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add((tag, tuple(name for name, _ in attrs)))
        # the address of a board is an attribute
        self.values += [json.dumps(value) for name, value in attrs if name == "data-name"]
        self._in_values = ("type", "application/json") in attrs
        if self._in_values:
            self.values.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_values = False

    def handle_data(self, data: str) -> None:
        if self._in_values:
            self.values[-1] += data

    def handle_comment(self, data: str) -> None:
        self.tags.add(("comment", ()))


def in_spec(text: str) -> str:
    """`text` as the value of a parameter: short printable ASCII, without what only several values may hold."""
    shown = ascii(text)[1:-1][:900].replace(",", ";").replace("..", ". .").replace("|", "!").strip()
    try:
        Spec.parse(f"a[p={shown}]")
    except SelectionError:
        shown = shown.translate(dict.fromkeys(map(ord, "[](){}"), "!"))
    return shown


def hostile_records(text: str) -> Iterator[Record]:
    """The sound Records, with `text` in every place that holds any; and one that failed, for that reason."""
    failed = None
    for record in sound_records():
        values = json.loads(record.to_line())
        cell = values["cell"]
        for name in ("variant", "task", "preset"):
            if cell[name] != "softmax":
                cell[name] = str(Spec.parse(f"{cell[name].partition('[')[0]}[p={in_spec(text)}]"))
        values["data"] = values["data"] and values["data"] | {
            "source": text, "fidelity": text, "files": {text: text}, "notes": [text],
            "counts": values["data"]["counts"] | {text: 1},
        }  # fmt: skip
        values["machine"] |= {
            "system": text, "processor": text, "driver": text, "versions": {text: text}, "accelerators": [text]
        }  # fmt: skip
        values["setting"] |= {text: text, "list": [text], "schedule": text, "positions": text, "pooling": text}
        # a version that is no version would leave the Record out of every board
        version = values["digest"].partition("-")[0]
        values["digest"] = f"{version}-{text[:20]}-{text[:20]}"
        values["implementation"], values["block"] = text, values["block"] and text + values["block"]
        values["artifacts"] |= {text: text}
        tested = next((m["name"] for m in values["measurements"] if m["where"].get("split") == "test"), None)
        if tested:
            metric = METRICS[tested]
            values["metric"] = {
                "name": metric.name, "unit": metric.unit, "better": metric.better, "points": metric.points,
                "margin": metric.margin, "title": text, "question": text, "description": text,
            }  # fmt: skip
        for measurement in values["measurements"]:
            measurement["where"] |= {text: text, "note": text, "signature": text, "stopped": text, "token": text}
            measurement["where"] |= {name: text for name in ("set", "attention", "how") if name in measurement["where"]}
        yield _record(values)
        if cell["lane"] == "train" and failed is None:
            failed = values
            cell["variant"] = f"linear[p={in_spec(text)}]"
            values |= {"outcome": "crashed", "reason": text, "measurements": [], "artifacts": {}}
            yield _record(values)


def _record(values: dict[str, Any]) -> Record:
    values["cell"]["variant"] = str(Spec.parse(values["cell"]["variant"]))
    values["key"] = content_hash(values["cell"])
    return Record.from_line(json.dumps(values).encode())


def write_hostile(folder: Path, text: str) -> None:
    (folder / "records").mkdir(parents=True)
    (folder / "artifacts").mkdir()
    for record in hostile_records(text.replace("\ud800", "\\ud800").replace("\udfff", "\\udfff")):
        with (folder / "records" / f"{record.machine.id}.jsonl").open("ab") as file:
            file.write(record.to_line())
    for name, content in sound_folder()[1].items():
        (folder / "artifacts" / name).write_bytes(content)
    with contextlib.suppress(OSError, ValueError):
        (folder / "records" / f"{text[:60].replace('/', ':')}.jsonl").write_bytes(b"{}\n")


def test_texts(extent: Extent, tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hostile texts: on no route to a reader does anything in them take effect."""
    # megabytes without any text of a Record
    monkeypatch.setattr(page, "_bundle", str)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    harmless = tmp_path / "harmless"
    write_hostile(harmless, HARMLESS)
    outline = Outline(page.render(pages.reports(harmless, notice=_silent))).tags
    for at, name in enumerate(extent.of(list(TEXTS), sample=1)):
        folder = tmp_path / f"case{at}"
        write_hostile(folder, TEXTS[name])
        notices: list[str] = []
        boards = [*api.boards(folder, notice=notices.append), attnbench.choose(256, folder, notice=_silent)]
        reports = pages.reports(folder, notice=_silent)
        assert len(boards) > 3 and len(reports) > 2, f"{name}: its Records make no boards"
        problems = {
            **problems_of_boards(boards),
            "page": problem_of_page(page.render(reports), outline),
            "page of figures": problem_of_figures(TEXTS[name]),
            "live view": problem_of_live(folder),
        }
        for route, problem in problems.items():
            tally.check(f"{name}: {route}", problem)
        for words in commands(folder, tmp_path / f"ours{at}", extent.all_cases):
            tally.check(f"{name}: {' '.join(words[:2])}", problem_of_command(words))
    tally.verdict()


def problems_of_boards(boards: Sequence[Board]) -> dict[str, str | None]:
    """Each route that a board takes, with what went wrong there."""
    found = {
        f"terminal of {width} columns{', all notes' * notes}": problem_of_terminal(
            terminal.render(boards, width, DETAILS if notes else View()), width
        )
        for width in (80, 200)
        for notes in (False, True)
    }
    return found | {
        "colours": problem_of_colours(boards),
        "Markdown": problem_of_markdown(markdown.render(boards)),
        "LaTeX": problem_of_latex(latex.to_latex(boards)),
        "CSV": problem_of_csv(csv_json.to_csv(boards)),
        "JSON": problem_of_json(csv_json.to_json(boards)),
    }


def commands(folder: Path, ours: Path, every: bool) -> list[list[str]]:
    at = ["--results", str(folder)]
    few = [["compare", _variant(folder), *at], ["choose", "--length", "256", *at]]
    few += [["validate", str(folder)], ["merge", str(folder), "--results", str(ours)]]
    if not every:
        return few
    # the formats of a board are tried above
    key = next(record.key for record in api.records(folder, notice=_silent) if record.cell.lane == "train")
    more = [["leaderboard", *at, "--task", "nothing"], ["inspect", key, *at], ["sample", key, *at], ["doctor", *at]]
    return few + more


def _variant(folder: Path) -> str:
    return next(str(r.cell.variant) for r in api.records(folder, notice=_silent) if r.cell.variant.name == "rela")


def problem_of_text(text: str) -> str | None:
    """What is in `text` beside letters that show, and ends of lines."""
    hidden = {letter for letter in text if letter != "\n" and not letter.isprintable()}
    return f"it sends {sorted(hidden)!r}" if hidden else None


def problem_of_terminal(text: str, width: int) -> str | None:
    wide = [line for line in text.split("\n") if cell_len(line) > width]
    return problem_of_text(text) or (f"a line of {cell_len(wide[0])} columns: {wide[0][:200]!r}" if wide else None)


def problem_of_colours(boards: Sequence[Board]) -> str | None:
    """Colours are drawn, but none that a text asks for, and no link."""
    file = io.StringIO()
    terminal.show(boards, console(file=file, width=120, force_terminal=True, color_system="standard"), DETAILS)
    shown = re.sub(r"\x1b\[(?:0|1|2|32|31|33|1;2|2;1|1;33|1;32|1;31)m", "", file.getvalue())
    plain = terminal.render(boards, 120, DETAILS)
    if [line.rstrip() for line in shown.split("\n")] != plain.split("\n"):
        return "with colours it reads otherwise"
    return problem_of_text(shown)


def problem_of_markdown(text: str) -> str | None:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    kinds = {token.type for token in parser.parse(text)}
    inline = {child.type for token in parser.parse(text) for child in token.children or ()}
    ours = {"heading", "paragraph", "bullet_list", "list_item", "table", "thead", "tbody", "tr", "th", "td"}
    strange = kinds - {f"{name}_{end}" for name in ours for end in ("open", "close")} - {"inline"}
    strange |= inline - {"text", "text_special", "strong_open", "strong_close", "softbreak"}
    if strange:
        return f"it makes {sorted(strange)}"
    # GitHub makes links of these, wherever they stand
    links = re.findall(r"\S*(?:(?<!\\):/|\bwww\.|@\w)\S*", text)
    if links:
        return f"it links {links[:3]}"
    return problem_of_text(text.replace("\u200b", ""))


def problem_of_latex(text: str) -> str | None:
    words = set(re.findall(r"\\(?:[A-Za-z]+|.)", text.replace("\\\\\n", "\n")))
    ours = set(re.findall(r"\\(?:[A-Za-z]+|.)", "".join(escape._LATEX.values()))) | {
        r"\begin", r"\end", r"\centering", r"\caption", r"\toprule", r"\midrule", r"\addlinespace", r"\bottomrule",
        r"\footnotesize", r"\raggedright", r"\textbf",
    }  # fmt: skip
    if words - ours:
        return f"it commands {sorted(words - ours)}"
    if set(re.findall(r"\\(?:begin|end)\{[^}]*\}", text)) - {
        rf"\{end}{{{name}}}" for end in ("begin", "end") for name in ("table", "tabular")
    }:
        return "it begins or ends an environment"
    bare = re.sub(r"\\.", "", text.replace("\\\\\n", "\n"))
    if bare.count("{") != bare.count("}") or re.search(r"[%#_^~]", bare):
        return "it has braces without a partner, or signs that TeX reads"
    return problem_of_text(text)


def problem_of_csv(text: str) -> str | None:
    rows = list(csv.reader(io.StringIO(text)))
    if len({len(row) for row in rows}) != 1:
        return f"rows of {sorted({len(row) for row in rows})} cells"
    for cell in (cell for row in rows for cell in row):
        is_number = re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?|-inf", cell)
        if not is_number and re.match(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]", cell):
            return f"a formula: {cell[:80]!r}"
    return problem_of_text(text)


def problem_of_json(text: str) -> str | None:
    json.loads(text)
    return None if text.isascii() and problem_of_text(text) is None else "it is not plain ASCII"


def problem_of_page(text: str, outline: set[tuple[str, tuple[str, ...]]]) -> str | None:
    found = Outline(text)
    if found.tags != outline:
        return f"its tags differ by {sorted(found.tags ^ outline)[:5]}"
    for values in found.values:
        for shown in _texts(json.loads(values)):
            if problem := problem_of_text(shown):
                return f"{problem} in {shown[:80]!r}"
    return None


def problem_of_figures(text: str) -> str | None:
    def drawn(words: str) -> str:
        chart = attention_maps.chart(words, [words, "b"], ["c", words], [[[0.5, 0.5], [0.5, 0.5]]])
        return page.render_figures(words, [words], {words: chart})

    shown = drawn(text)
    body = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", shown, flags=re.DOTALL)
    return problem_of_page(shown, Outline(drawn(HARMLESS)).tags) or problem_of_text(body)


def problem_of_live(folder: Path) -> str | None:
    """The view of a run, of Records as its children send them."""
    from attnbench.bench.run.events import CellFinished, Warned

    file = io.StringIO()
    live = Live()
    live.console = console(file=file, width=100, force_terminal=True, color_system="standard")
    for record in api.records(folder, notice=_silent):
        live.on_event(CellFinished(record))
        live.on_event(Warned(record.reason or record.block))
    return problem_of_text(file.getvalue())


def problem_of_command(words: list[str]) -> str | None:
    found = answer(words)
    if found.code not in (0, 1, 2, 4):
        return f"it ended with {found.code}: {found.errors[-300:]!r}"
    longest = max(map(len, found.errors.split("\n")))
    if longest > 1100:
        return f"a notice of {longest} characters"
    return problem_of_text(found.output.replace("\u200b", "") + found.errors)


def _texts(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, dict):
        for name, each in values.items():
            yield name
            yield from _texts(each)
    elif isinstance(values, list):
        for each in values:
            yield from _texts(each)


def _silent(text: str) -> None:
    pass
