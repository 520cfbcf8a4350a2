"""A Board and Reports with everything on them, text that nobody wishes to run, and a browser to look at both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pages import CHROMIUM, HOSTILE, untroubled

from attnbench.bench.board.board import Board, Column, Note, Row, TableCell
from attnbench.bench.board.report import Report, SettingCurves

REASON = "crashed: \x1b[31mred\x1b[0m | \u202etxt.exe [bold]loud[/bold] `code` @octocat & " + "x" * 10_000


@pytest.fixture(scope="session")
def board() -> Board:
    columns = (
        Column(name="accuracy", title="accuracy", unit="%", better="higher", importance=0),
        Column(name="gap", title="vs softmax", unit="points", better="higher", importance=1),
        Column(name="verdict", title="verdict", importance=2),
        Column(name="step_time", title="step time", unit="× reference", better="lower", importance=1),
        Column(name="sparsity", title="zeros", unit="fraction", importance=2),
        Column(name="parameters", title="parameters", unit="count", better="lower", importance=7),
        Column(name="empty", title="never filled", importance=0),
    )
    blank = TableCell()

    def accuracy(value: float) -> TableCell:
        return TableCell(text=f"{value:.1f} ± 1.2", value=value, low=value - 1.2, high=value + 1.2)

    gap = TableCell(text="+8.0 (+6.9 to +9.1)", brief="+8.0 ± 1.1", value=8.0, low=6.9, high=9.1)
    small = TableCell(text="−0.1 (−0.5 to +0.3)", brief="−0.1 ± 0.4", value=-0.1, low=-0.5, high=0.3)
    slower = TableCell(text="3.10× slower (2.98–3.22)", brief="3.10× slower", value=3.1, low=2.98, high=3.22)
    even = TableCell(text="1.01× slower (0.99–1.03)", brief="1.01× slower", value=1.01, low=0.99, high=1.03, note="≈")
    zeros, size, heavy = (
        TableCell(text="88 %", value=0.88),
        TableCell(text="100k", value=1e5),
        TableCell(text="120k", value=1.2e5, note="†"),
    )
    return Board(
        name="lra-text/quick",
        title="lra-text, preset quick",
        question="Which attention is right most often on lra-text (quick)?",
        headline="Better than softmax: entmax15. At most 1 point worse: local[window=64].",
        columns=columns,
        ranked=(
            Row(name="entmax15", entries=(accuracy(70.0), gap, TableCell(text="better"), slower, zeros, size, blank),
                first=1, last=1, group=1, records=("k1", "k2")),
            Row(name="local[window=64]", first=2, last=3, group=2,
                entries=(accuracy(61.9), small, TableCell(text="within 1 point"), even, blank, heavy, blank)),
            Row(name="softmax", entries=(accuracy(62.0), TableCell(text="reference", value=0.0), blank,
                TableCell(text="41 ms a step", value=1.0), blank, size, blank), first=2, last=3, group=2),
        ),
        unranked=(Row(name=HOSTILE, entries=(blank,) * 7, reason=REASON),),
        baselines=(Row(name="majority", entries=(accuracy(50.0), *(blank,) * 6)),),
        notes=(
            Note(topic="speed", text="95 % intervals; 5_000 rounds & more", priority=2, kind="method"),
            Note(topic="data", text="surrogate: other data of the same kind", kind="warning"),
            Note(topic="null control", text="softmax again: 1.003× (0.991–1.015), so the noise floor is 1.5 %",
                 priority=1),
        ),
    )  # fmt: skip


@pytest.fixture(scope="session")
def part() -> Board:
    """What may stand below it: a set of its own, with a column of sentences."""
    columns = (
        Column(name="bleu", title="BLEU", unit="BLEU", better="higher", importance=0),
        Column(name="vs_copy", title="vs copying", unit="BLEU", better="higher", importance=1),
        Column(name="verdict", title="verdict", importance=4),
    )
    ahead = TableCell(text="+3.10 (+2.80 to +3.40)", brief="+3.10 ± 0.30", value=3.1, low=2.8, high=3.4)
    words = "better than copying and an untrained model; undecided against softmax"
    return Board(
        name="lra-text/quick/pictures", title="pictures <b>", question="", columns=columns, ranked=(),
        unranked=(Row(name=HOSTILE, entries=(TableCell(text="5.10", value=5.1), ahead, TableCell(text=words))),),
        baselines=(Row(name="copy", entries=(TableCell(text="2.00", value=2.0), TableCell(), TableCell())),),
    )  # fmt: skip


@pytest.fixture(scope="session")
def report(board: Board, part: Board) -> Report:
    """A task of which much was measured."""
    spots = tuple(
        {
            "variant": n,
            "quality": q,
            "quality_low": q - 1,
            "quality_high": q + 1,
            "cost": c,
            "cost_low": c * 0.9,
            "cost_high": c * 1.1,
            "on_frontier": f,
            "name": n if f else "",
        }
        for n, q, c, f in (("softmax", 62, 1, True), ("entmax15", 70, 3.1, True), (HOSTILE, 50, 2, False))
    )
    heads = tuple(
        {"variant": "entmax15", "quantity": name, "layer": str(at), "head": head, "value": 0.21 * at + 0.1 * head}
        for name in ("sparsity", "attention_distance") for at in range(5) for head in range(2)
    )  # fmt: skip
    curves = tuple(
        {"variant": "softmax", "quantity": name, "step": s, "value": 50.0 + s, "low": 49.0 + s, "high": 51.0 + s}
        for name in ("quality", "loss") for s in range(4)
    )  # fmt: skip
    source = {
        "key": "0123456789abcdef", "variant": HOSTILE, "lane": "train", "seed": 0, "outcome": "crashed",
        "reason": "</script><script>alert(2)//", "machine": "box-1", "started": "2026-01-01T00:00:00+00:00",
        "seconds": 1.5, "digest": "a-b-c", "numbers": ("accuracy test 0.5",), "implementation": "",
    }  # fmt: skip
    return Report(
        name=f"lra-text/quick/{HOSTILE}", board=replace(board, parts=(part,)), pareto=spots, heads=heads,
        curves=curves, alphas=({"variant": "entmax", "layer": "0", "head": 0, "seed": 0, "value": 1.4},),
        nulls=({"block": "block 1", "ratio": 1.001, "low": 0.99, "high": 1.012},), records=(source,),
        commands={HOSTILE: f"attnbench run --variants '{HOSTILE}'"}, machines={"box-1": "Abacus 9"},
    )  # fmt: skip


@pytest.fixture(scope="session")
def lengths(board: Board) -> Report:
    """Costs over lengths, without training."""
    spots = tuple(
        {"variant": v, "length": n, "seconds": n / 1e4, "ratio": r, "low": 0.9 * r, "high": 1.1 * r, "pays": r < 1}
        for v, n, r in (("linear", 256, 2.0), ("linear", 512, 0.5), ("softmax", 256, 1.0), ("softmax", 512, 1.0))
    )
    return Report(name="sweep", board=board, lengths=spots, commands={}, machines={})


@pytest.fixture(scope="session")
def by_setting(board: Board) -> Report:
    """Results by length and difficulty, and by task."""

    def curves(axis: str, title: str, quantity: str, values: tuple[float, ...], top: float) -> SettingCurves:
        points = [
            {"variant": v, "at": at, "value": top * share, "low": top * share / 2, "high": top, "rate": rate,
             "chosen": own}
            for v, share, rate, own in (
                ("entmax15", 0.9, "0.001", True), (HOSTILE, 0.5, "0.004", True), ("entmax15", 0.2, "0.004", False),
            )
            for at in values
        ]  # fmt: skip
        return SettingCurves(axis=axis, title=title, quantity=quantity, points=tuple(points))

    return Report(
        name="recall", board=board, commands={}, machines={}, trained=({"length": 64},),
        settings=(
            curves("length", "Accuracy by length (16 pairs)", "quality", (64.0, 1024.0), 100),
            curves("pairs", "Accuracy by number of pairs", "quality", (4.0, 8.0), 100),
            curves("length", "Attention weight on the right key by length", "weight", (64.0, 1024.0), 1),
        ),
        # squares from the darkest to the lightest
        suite_scores=tuple(
            {"variant": f"v{at}", "task": "recall", "value": 5.0 * at, "text": f"{5.0 * at:.1f}"} for at in range(21)
        ),
    )  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    sync = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}")
    with sync.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser: object, file: Path) -> Iterator[object]:
    """The page that the test file writes."""
    yield from untroubled(browser, file, width=1440)
