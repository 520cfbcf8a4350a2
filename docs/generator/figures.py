"""The drawings of the concepts, as SVG that is readable on a light and on a dark page.

    python -m attnbench.docs.generator.figures    # writes docs/figures; a test compares

As a file each brings colours for both; in the site the drawing stands in the page and takes its colours (`site.css`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from .repository import ROOT

FOLDER = ROOT / "docs" / "figures"

LINE = 18
"""Height of a line of text in pixels."""

STYLE = """\
text { font: 14px system-ui, sans-serif; fill: #1f2328; }
.small { font-size: 12px; fill: #57606a; }
.strong { font-weight: 600; }
.box { fill: #f3f5fb; stroke: #5c6bc0; }
.good { fill: #eaf6ec; stroke: #3f8f4f; }
.bad { fill: #fbeceb; stroke: #c0504d; }
.plain { fill: none; stroke: #8c959f; stroke-dasharray: 5 4; }
.arrow { fill: none; stroke: #57606a; stroke-width: 1.6; }
.head { fill: #57606a; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .small { fill: #a5aeb8; }
  .box { fill: #232a45; stroke: #8c9eff; }
  .good { fill: #16301c; stroke: #63b873; }
  .bad { fill: #3a1d1c; stroke: #e08a87; }
  .arrow { stroke: #a5aeb8; }
  .head { fill: #a5aeb8; }
}
"""


@dataclass(slots=True)
class Drawing:
    """Boxes, words and arrows on a canvas of `width` by `height` pixels. `title`: what it shows, in words."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, width: int, height: int, lines: str = "", kind: str = "box") -> None:
        """A rectangle with lines of text in its middle; the first is strong."""
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>')
        texts = lines.split("\n") if lines else []
        first = y + height / 2 - (len(texts) - 1) * LINE / 2 + 5
        for at, text in enumerate(texts):
            self.text(x + width / 2, first + at * LINE, text, "strong" if not at else "small", "middle")

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def line(self, points: Sequence[tuple[float, float]], kind: str = "arrow") -> None:
        """Straight lines from point to point."""
        self.parts.append(f'<path class="{kind}" d="M{"L".join(f"{x:g} {y:g}" for x, y in points)}"/>')

    def dot(self, x: float, y: float) -> None:
        self.parts.append(f'<circle class="head" cx="{x:g}" cy="{y:g}" r="5"/>')

    def interval(self, x: float, low: float, value: float, high: float) -> None:
        """A value with its interval, upright; `low` and `high` in pixels."""
        self.line([(x, low), (x, high)])
        for end in (low, high):
            self.line([(x - 8, end), (x + 8, end)])
        self.dot(x, value)

    def arrow(self, x: int, y: int, to_x: int, to_y: int, label: str = "") -> None:
        """A horizontal or vertical arrow."""
        self.parts.append(f'<path class="arrow" d="M{x} {y}L{to_x} {to_y}"/>')
        across = 1 if to_x > x else -1 if to_x < x else 0
        down = 0 if across else 1 if to_y > y else -1
        left, right = (
            (to_x - 8 * across - 5 * down, to_y - 8 * down - 5 * across),
            (
                to_x - 8 * across + 5 * down,
                to_y - 8 * down + 5 * across,
            ),
        )
        self.parts.append(f'<path class="head" d="M{to_x} {to_y}L{left[0]} {left[1]}L{right[0]} {right[1]}Z"/>')
        if label:
            self.text((x + to_x) / 2, (y + to_y) / 2 - 7, label, "small", "middle")

    def svg(self) -> str:
        """The whole file."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img"'
        body = "\n".join(self.parts)
        title = f"<title>{escape(self.title)}</title>"
        return f'{head} width="{self.width}">\n{title}\n<style>\n{STYLE}</style>\n{body}\n</svg>\n'


def flow() -> Drawing:
    """Four values, and what turns one into the next."""
    drawn = Drawing(
        880, 250, "A Suite is planned into Cells, each Cell is run to a Record, Records are scored to a Board"
    )
    boxes = (
        ("Suite", "what to compare:\nvariants, tasks,\npreset, seeds"),
        ("Cell", "one variant, task,\npreset, seed, lane"),
        ("Record", "what one Cell\nyielded, or why\nit yielded nothing"),
        ("Board", "the answer to\none question"),
        ("page, table", "terminal, Markdown,\nHTML, LaTeX, JSON"),
    )
    for at, (name, lines) in enumerate(boxes):
        drawn.box(10 + at * 178, 50, 138, 100, f"{name}\n{lines}")
        if at:
            drawn.arrow(148 + (at - 1) * 178, 100, 186 + (at - 1) * 178, 100)
            drawn.text(167 + (at - 1) * 178, 38, ("plan", "run", "score", "render")[at - 1], "strong", "middle")
    drawn.box(188, 178, 316, 56, "needs torch\nin child processes, on the machine measured", "plain")
    drawn.box(544, 178, 316, 56, "needs no torch\nanywhere, again and again", "plain")
    return drawn


def comparison() -> Drawing:
    """Which rows stand on one board."""
    drawn = Drawing(820, 330, "Rows of the same task, preset, data and version share a board; all others do not")
    drawn.text(10, 22, "One board", "strong")
    drawn.box(10, 34, 350, 284, "", "plain")
    for at, seed in enumerate(("seed 0", "seed 1", "seed 2")):
        drawn.text(170 + at * 70, 62, seed, "small", "middle")
    for row, (name, kind) in enumerate((("softmax", "box"), ("entmax15", "box"), ("rela", "box"))):
        drawn.text(26, 98 + row * 52, name)
        for at in range(3):
            drawn.box(142 + at * 70, 76 + row * 52, 56, 34, "", kind)
    for at in range(3):
        drawn.arrow(170 + at * 70, 128, 170 + at * 70, 110)
    drawn.text(185, 246, "differences are taken in columns:", "", "middle")
    drawn.text(185, 266, "same seed, same data order,", "small", "middle")
    drawn.text(185, 284, "same test examples, same start", "small", "middle")
    drawn.text(400, 22, "Never on one board", "strong")
    for row, (left, right) in enumerate(
        (
            ("preset quick", "preset pt-2x64"),
            ("official data", "a surrogate"),
            ("version 1", "version 2"),
            ("chosen on validation", "chosen on test"),
            ("time on this machine", "time on that one"),
        )
    ):
        drawn.box(400, 34 + row * 58, 180, 44, left, "good")
        drawn.box(625, 34 + row * 58, 180, 44, right, "bad")
        drawn.text(602, 61 + row * 58, "≠", "strong", "middle")
    return drawn


def lanes() -> Drawing:
    """The three lanes of a task, and the Blocks that run them."""
    drawn = Drawing(
        880, 330, "Lanes: baseline, train with tune before it, and time, which runs all variants in one Block"
    )
    for row, (name, what, block) in enumerate(
        (
            ("lane baseline", "a trivial predictor,\nno network", "one Cell a Block"),
            ("lane train", "one variant, one seed; before it\nlane tune, where rates are chosen", "one Cell a Block"),
            ("lane time", "one variant, no training:\nsteps, memory, FLOPs", "all variants of a task in one Block"),
        )
    ):
        y = 14 + row * 84
        drawn.box(10, y, 210, 68, f"{name}\n{what}")
        drawn.arrow(220, y + 34, 270, y + 34)
        drawn.text(280, y + 39, block)
    drawn.text(540, 26, "A timing Block, one round after another", "strong")
    order = ("softmax", "rela", "null", "rela", "softmax", "null")
    for at in range(3):
        names = order[at:] + order[:at]
        for cell_at, name in enumerate(names[:3] if at != 1 else ("null", "softmax", "rela")):
            kind = {"softmax": "good", "rela": "box", "null": "plain"}[name]
            drawn.box(540 + cell_at * 104, 40 + at * 46, 96, 36, name, kind)
    drawn.text(540, 196, "Each time is divided by softmax's of its round.", "small")
    drawn.text(540, 214, "null is softmax under a second name:", "small")
    drawn.text(540, 232, "its ratio shows what this machine cannot tell.", "small")
    drawn.box(
        10,
        270,
        860,
        48,
        "A Block runs in one process on one machine\na crash or a hang costs the Cell at work",
        "plain",
    )
    return drawn


def gate() -> Drawing:
    """What happens before a number is written."""
    drawn = Drawing(920, 300, "A variant passes the gate before it is measured; every end is a Record with an outcome")
    drawn.box(10, 60, 150, 70, "a Cell\nvariant, shape, batch")
    drawn.arrow(160, 95, 190, 95)
    questions = (
        "the gate",
        "causal? padding without effect?",
        "same result twice, alone or in a batch?",
        "gradients as finite differences?",
        "fused code as the definition?",
    )
    drawn.box(190, 20, 280, 150, "\n".join(questions))
    drawn.arrow(470, 95, 540, 95, "holds")
    drawn.box(540, 60, 140, 70, "measure\ntrain or time", "good")
    drawn.arrow(680, 95, 740, 95)
    drawn.box(740, 60, 170, 70, "ok\nnumbers with samples", "good")
    drawn.arrow(315, 170, 315, 222)
    drawn.text(323, 200, "a property fails", "small")
    drawn.box(230, 222, 170, 60, "incorrect\nno speed, no rank", "bad")
    drawn.arrow(610, 130, 610, 222)
    drawn.text(618, 180, "it ends otherwise", "small")
    others = "out of memory · timeout · crashed · unsupported"
    drawn.box(440, 222, 470, 60, f"{others}\na row with the reason, never left out", "bad")
    return drawn


def digest() -> Drawing:
    """The parts of a digest, and what a change of each does."""
    drawn = Drawing(
        880, 300, "A digest names versions, data and the variant's source; a change of one makes a new Record"
    )
    columns = (
        ("lane1.objective1.task1", "versions, raised by hand\nwhen numbers change"),
        ("9f2c…", "hash of the data\nthat were read"),
        ("41ab…", "hash of the variant's source,\nits operations and kernels"),
    )
    for at, (word, what) in enumerate(columns):
        drawn.box(10 + at * 295, 20, 270, 90, f"{word}\n{what}")
        if at:
            drawn.text(292 + (at - 1) * 295, 70, "-", "strong", "middle")
        drawn.arrow(145 + at * 295, 110, 145 + at * 295, 150)
    for at, lines in enumerate(
        (
            "another version\na board ranks the newest that is\ncomplete, and names the rest",
            "other data\na board of its own",
            "changed mechanism or kernel\nonly this variant is measured again",
        )
    ):
        drawn.box(10 + at * 295, 150, 270, 76, lines, "plain")
    drawn.text(10, 262, "No part: comments, docstrings, file names, and all other code of attnbench.", "small")
    drawn.text(10, 282, "A tidier harness makes no Record stale; tests/golden fails where its numbers move.", "small")
    return drawn


def lengths() -> Drawing:
    """What a test beyond the training length shows of three kinds of attention."""
    drawn = Drawing(
        880, 300, "Three variants are right at the training length; beyond it one holds, one decays, one fails"
    )
    drawn.box(60, 40, 54, 190, "", "good")
    drawn.text(87, 30, "trained here", "small", "middle")
    drawn.text(410, 30, "only tested here", "small", "middle")
    drawn.line([(60, 40), (60, 230), (640, 230)])
    for at in range(6):
        drawn.text(100 + at * 105, 250, f"{64 * 2**at:,}", "small", "middle")
    drawn.text(350, 276, "length of the sequence, tokens: each step doubles it", "small", "middle")
    for y, share in ((55, "100 %"), (105, "90 %"), (222, "chance")):
        drawn.text(52, y + 4, share, "small", "end")
    drawn.line([(60, 105), (640, 105)], "plain")
    at = [100 + 105 * step for step in range(6)]
    ends = (
        ((57, 58, 57, 60, 59, 62), "holds", "90 % up to 2,048+ (32×)"),
        ((57, 58, 76, 110, 142, 165), "decays: the weight spreads", "90 % up to 256 (4×)"),
        ((57, 126, 180, 208, 216, 220), "fails: the key is out of reach", "90 % up to 64 (1×)"),
    )
    for heights, name, words in ends:
        drawn.line(list(zip(at, heights, strict=True)))
        for x, y in zip(at, heights, strict=True):
            drawn.dot(x, y)
        drawn.text(652, heights[-1], name, "strong")
        drawn.text(652, heights[-1] + 17, words, "small")
    return drawn


def pairs() -> Drawing:
    """Why differences are taken seed by seed, with numbers that can be checked by hand."""
    scores = {"A": (60.0, 63.0, 66.0), "B": (61.2, 64.1, 67.3)}
    drawn = Drawing(
        880, 320, "Intervals of two accuracies overlap, and their difference, taken seed by seed, leaves out zero"
    )
    drawn.text(10, 24, "Each accuracy by itself", "strong")
    drawn.text(400, 24, "Their difference, seed by seed", "strong")

    def height(score: float) -> float:
        return 300 - 13 * (score - 53)

    for at, (name, own) in enumerate(scores.items()):
        x = 70 + at * 150
        mean, half = sum(own) / 3, _half_width(own)
        for seed, score in enumerate(own):
            drawn.dot(x, height(score))
            drawn.text(x + 12, height(score) + 5, f"seed {seed}: {score:.1f}", "small")
        drawn.interval(x - 24, height(mean - half), height(mean), height(mean + half))
        drawn.text(x, 312, f"{name}: {mean:.1f} ± {half:.1f}", "", "middle")
    gaps = tuple(b - a for a, b in zip(*scores.values(), strict=True))
    mean, half = sum(gaps) / 3, _half_width(gaps)

    def across(gap: float) -> float:
        return 440 + 210 * gap

    drawn.line([(across(0), 60), (across(0), 200)], "plain")
    drawn.text(across(0), 222, "no difference", "small", "middle")
    for seed, gap in enumerate(gaps):
        drawn.dot(across(gap), 80 + 26 * seed)
        drawn.text(across(gap) + 14, 85 + 26 * seed, f"seed {seed}: +{gap:.1f}", "small")
    drawn.line([(across(mean - half), 180), (across(mean + half), 180)])
    for end in (mean - half, mean + half):
        drawn.line([(across(end), 172), (across(end), 188)])
    drawn.dot(across(mean), 180)
    drawn.text(across(mean), 222, f"B - A: +{mean:.1f} ± {half:.2f}", "", "middle")
    drawn.text(400, 262, "Seed 2 was easy for both, seed 0 hard for both. In the difference that cancels.", "small")
    drawn.text(400, 282, "Three seeds, 95 %, one pair alone; test examples are left out here.", "small")
    return drawn


def _half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of the mean of three values, by Student's t with two degrees of freedom."""
    mean = sum(values) / 3
    return 4.303 * math.sqrt(sum((value - mean) ** 2 for value in values) / 2 / 3)


SIMULATED = {
    "1 point, 20,000 examples, seeds 0.2 and the luck of lra-text": ("told apart", 3, 4, 57),
    "equal": ("all seeds scatter alike", 3, 4.6, 3.2),
    "one × 10": ("one scatters 10 ×", 3, 4.1, 8.7),
    "one × 10, five seeds": ("the same with 5 seeds", 5, 3.9, 2.0),
}
"""A row of docs/scoring_simulations.md → words, seeds, and the shares in % of both rules, which a test compares."""


def moderation() -> Drawing:
    """What shrinking the spread of seeds buys, and what it costs."""
    drawn = Drawing(
        880, 300, "Moderated spreads tell 57 % of pairs apart instead of 4 %, at a price where spreads differ"
    )
    told, *false = SIMULATED.values()
    drawn.text(10, 24, "Pairs that differ by 1 point and are told apart", "strong")
    for row, (name, share) in enumerate((("each by itself", told[2]), ("moderated", told[3]))):
        drawn.text(150, 58 + row * 30, name, "small", "end")
        drawn.box(160, 42 + row * 30, max(round(6 * share), 2), 22, "", "good" if row else "plain")
        drawn.text(170 + 6 * share, 58 + row * 30, f"{share:g} %")
    drawn.text(10, 130, "Boards with any false statement (at most 5 % are meant to be)", "strong")
    drawn.line([(160 + 250, 142), (160 + 250, 290)], "plain")
    drawn.text(160 + 256, 152, "5 %", "small")
    for row, (words, _, before, now) in enumerate(false):
        drawn.text(150, 178 + row * 44, words, "small", "end")
        for at, (share, kind) in enumerate(((before, "plain"), (now, "good" if now <= 5 else "bad"))):
            drawn.box(160, 158 + row * 44 + at * 17, round(50 * share), 14, "", kind)
            # none across the line of 5 %
            x = 170 + 50 * share if not 3.4 < share < 5 else 418
            drawn.text(x, 170 + row * 44 + at * 17, f"{share:g} %", "small")
    drawn.text(640, 178, "upper bar: each by itself", "small")
    drawn.text(640, 196, "lower bar: moderated", "small")
    drawn.text(640, 214, "boards of 6 variants, 3 seeds", "small")
    return drawn


DRAWINGS = {
    "flow": flow, "comparison": comparison, "lanes": lanes, "gate": gate, "digest": digest, "lengths": lengths,
    "pairs": pairs, "moderation": moderation,
}  # fmt: skip


def inline(svg: str, description: str) -> str:
    """A drawing to stand in a page of the site, without the colours that it has as a file."""
    bare = re.sub(r"<style>.*?</style>\n", "", svg, flags=re.DOTALL)
    title = f"<title>{description}</title>" if description else r"\g<0>"
    return f'<div class="figure">{re.sub("<title>.*?</title>", title, bare)}</div>'


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
