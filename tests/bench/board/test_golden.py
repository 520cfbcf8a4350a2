"""Six boards with everything on them, value for value. Run with ATTNBENCH_GOLDEN=write to accept a change."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import plain

import attnbench
from attnbench.bench.board.board import MOST_COLUMNS, MOST_NOTES, Board
from attnbench.bench.board.compare import compare
from attnbench.bench.board.length_board import board_for_lengths, sweeps
from attnbench.bench.board.suite_board import board_for_suite
from attnbench.bench.board.task_board import board_for_task
from attnbench.bench.core.record import Measurement, Outcome
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.table import table_of

GOLDEN = Path(__file__).parent / "golden"

LEVELS = {"softmax": 0.60, "rela": 0.604, "entmax15": 0.75, "linear": 0.56, "mine": 0.62}
FACTORS = {"softmax": 1.0, "rela": 0.99, "entmax15": 1.5, "linear": 0.4}
STEPS = (1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.0)


def answers(level: float, seed: int) -> np.ndarray:
    """Of 2,000 examples, by a draw of its own."""
    return (np.random.default_rng(seed).random(2000) < level).astype(np.uint8)


def times(b: Any, mode: str, name: str, factor: float, **changes: Any) -> None:
    noise = 1 + 0.01 * np.random.default_rng(len(name)).normal(size=(2, len(STEPS)))
    named = {
        f"{mode}_seconds": factor * noise[0] * STEPS, f"reference_{mode}_seconds": np.array(STEPS),
        f"null_{mode}_seconds": noise[1] * STEPS,
    }  # fmt: skip
    measured = [Measurement.of(key, float(np.median(found)), tuple(found.tolist())) for key, found in named.items()]
    measured += [Measurement.of("peak_bytes", 1e6 * factor), Measurement.of("canary_seconds", 1.0, drift=0.02)]
    more = [Measurement.of(key, value) for key, value in changes.pop("numbers", {}).items()]
    b.add(b.cell(name, lane="time"), [*measured, *more], implementation="eager", **changes)


def trained(bench: Callable[..., Any]) -> Any:
    b = bench(fidelity="surrogate")
    for task in ("lra-text", "lra-image"):
        b.task = task
        for at, (name, level) in enumerate(LEVELS.items()):
            shares = [answers(level + 0.005 * seed, 10 * at + seed) for seed in range(2 if name == "mine" else 3)]
            b.train(name, [], correct=shares, more=[Measurement.of("sparsity", 0.1 * at)])
        b.train("local", [], correct=[answers(share, 7) for share in (0.5, 0.62, 0.62)])
        b.train("no-attention", [], correct=[answers(0.55, seed) for seed in range(3)])
        b.add(b.cell("topk"), outcome=Outcome.INCORRECT, reason="causality: future leaks")
        for name, share in (("majority", 0.5), ("bag-of-bytes", 0.58)):
            tested = Measurement.of("accuracy", share, split="test", examples=2000)
            b.add(b.cell(name, lane="baseline"), [tested])
    b.task = "lra-text"
    for name, factor in FACTORS.items():
        times(b, "step", name, factor, numbers={"state_bytes": 4096.0 * factor, "declared_density": 0.5})
    b.add(b.cell("local", lane="time"), outcome=Outcome.OUT_OF_MEMORY, reason="tried 99 GiB")
    again = b.records[0]
    b.add(again.cell, again.measurements, machine=replace(again.machine, id="box-2"))
    return b


def task(bench: Callable[..., Any]) -> Board:
    b = trained(bench)
    table = table_of(b.records)
    key = next(key for key in board_keys(table) if key.task == "lra-text" and key.machine)
    return board_for_task(table, key, predictions=b.predictions)


def suite(bench: Callable[..., Any]) -> Board:
    b = trained(bench)
    table = table_of(b.records)
    keys = sorted({replace(key, machine="") for key in board_keys(table)})
    return board_for_suite(table, "lra", keys, predictions=b.predictions, wanted=("lra-text", "lra-image"))


def lengths(bench: Callable[..., Any]) -> Board:
    b = bench()
    for length in (256, 512, 1024):
        b.task = f"sweep[length={length}]"
        for name, factor in FACTORS.items():
            of_length = factor * (256 / length if name == "linear" else 1.0)
            numbers = {"sparsity": 0.2, "flops": 1e9, "peak_share": 0.3}
            times(b, "step", name, of_length, setting={"length": length}, block=f"b{length}", numbers=numbers)
    b.add(b.cell("local", lane="time"), outcome=Outcome.OUT_OF_MEMORY, setting={"length": 1024}, block="b1024")
    table = table_of(b.records)
    (found,) = sweeps(table, board_keys(table))
    return board_for_lengths(table, found)


def serving(bench: Callable[..., Any]) -> Board:
    b = bench()
    for batch, length in ((1, 256), (8, 256), (8, 1024)):
        b.task = f"sweep[{f'batch={batch},' if batch > 1 else ''}length={length},mode=decode]"
        setting = {"length": length, "batch": batch, "mode": "decode", "level": "attention"}
        for name, factor in FACTORS.items():
            held = {} if name == "rela" else {"state_bytes": 4096.0 if name == "linear" else 512.0 * length}
            numbers = {"tokens_per_second": batch * 1000 / factor, **held}
            times(b, "decode", name, factor, setting=setting, block=f"b{batch}-{length}", numbers=numbers)
    from attnbench.bench.wings.serving_boards.boards import board_for_serving, serving_sweeps

    table = table_of(b.records)
    (found,) = serving_sweeps(table, board_keys(table))
    return board_for_serving(table, found)


def choice(bench: Callable[..., Any]) -> Board:
    from attnbench.bench.wings.choose.choose import Requirements, board_for_choice

    b = trained(bench)
    table = table_of(b.records)
    wanted = Requirements(length=512, memory_bytes=1.2e6, margin=5.0)
    return board_for_choice(table, board_keys(table), wanted, b.predictions)


def published(bench: Callable[..., Any]) -> Board:
    from attnbench.bench.wings.published.boards import published_board

    found = published_board(task(bench), "lra-text")
    assert found is not None
    return found


WINGS = Path(attnbench.__file__).parent / "bench" / "wings"
OF_WINGS = {"serving_boards": serving, "choose": choice, "published": published}
BOARDS = {made.__name__: made for made in (task, suite, lengths)}
BOARDS |= {made.__name__: made for wing, made in OF_WINGS.items() if (WINGS / wing).is_dir()}
"""The boards by name; those of a wing come off with it."""


def agree(name: str, found: object) -> None:
    path = GOLDEN / f"{name}.json"
    if os.environ.get("ATTNBENCH_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert near(json.loads(json.dumps(found))) == json.loads(path.read_text(encoding="utf-8"))


def near(values: object) -> object:
    """The same, with every fraction equal to what is within a billionth of it: processors differ in the last bits."""
    if isinstance(values, dict):
        return {name: near(value) for name, value in values.items()}
    if isinstance(values, list):
        return [near(value) for value in values]
    return pytest.approx(values, rel=1e-9, abs=1e-12) if isinstance(values, float) else values


COMMITTED = Path(__file__).parents[3] / "results" / "boards"


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*.md")), ids=lambda path: path.stem)
def test_a_committed_board_shows_six_notes_and_eight_columns_at_most(path: Path) -> None:
    sections = path.read_text(encoding="utf-8").split("\n\n")
    notes = [text for before, text in pairwise(sections) if before != "Unranked:"]
    assert max(text.count("\n- ") + text.startswith("- ") for text in notes) <= MOST_NOTES
    # rank and variant stand in front
    headings = [text.partition("\n")[0] for text in sections if text.startswith("| ")]
    assert max(heading.count(" | ") - 1 for heading in headings) <= MOST_COLUMNS


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_as_it_was(bench, name: str) -> None:
    found = BOARDS[name](bench)
    agree(name, plain(found))
    assert len(found.shown_notes) <= MOST_NOTES and len(found.shown_columns) <= MOST_COLUMNS


def test_a_comparison_is_as_it_was(bench) -> None:
    b = trained(bench)
    table = table_of(b.records)
    key = next(key for key in board_keys(table) if key.machine)
    found = asdict(compare(table, key, "rela", "softmax", b.predictions))
    agree("comparison", {name: value for name, value in found.items() if name != "sentences"})
