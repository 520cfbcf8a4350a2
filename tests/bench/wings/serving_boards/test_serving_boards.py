"""Prefill and decoding over batch × length: tokens a second, state bytes, and who cannot serve."""

from __future__ import annotations

import pytest

from attnbench.bench.board.select import scored
from attnbench.bench.core.record import Measurement, Outcome
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.artifacts import StoredPredictions
from attnbench.bench.store.store import Store
from attnbench.bench.store.table import table_of
from attnbench.bench.wings.serving_boards.boards import board_for_serving, serving_sweeps

TIMES = [1.0, 1.02, 0.98, 1.01, 0.99]
POINTS = [(batch, length) for batch in (1, 8) for length in (256, 1024)]


def serving(
    bench: object, mode: str, costs: dict[str, float | None], *, state: bool = True, points=POINTS, drift: float = 0.0
) -> object:
    """Costs are factors of softmax's time; None for a variant that cannot decode."""
    b = bench()
    more = "mode=decode" if mode == "decode" else "causal=true,mode=forward"
    for batch, length in points:
        b.task = f"sweep[{f'batch={batch},' if batch > 1 else ''}{more},length={length}]"
        setting = {
            "setting": {"length": length, "batch": batch, "mode": mode, "level": "attention", "causal": True},
            "block": f"b{batch}-{length}",
        }
        for name, factor in {"softmax": 1.0, **costs}.items():
            cell = b.cell(name, lane="time")
            if factor is None:
                b.add(cell, outcome=Outcome.UNSUPPORTED, reason="it cannot decode", **setting)
                continue
            own = [factor * t * (1 + 0.01 * (-1) ** i) for i, t in enumerate(TIMES)]
            named = {f"{mode}_seconds": own, f"reference_{mode}_seconds": TIMES, f"null_{mode}_seconds": TIMES}
            numbers = [Measurement.of(metric, 1.0, tuple(samples)) for metric, samples in named.items()]
            numbers.append(Measurement.of("canary_seconds", 1.0 + batch * drift, (1.0,), drift=drift))
            numbers += [Measurement.of("tokens_per_second", batch * 1000 / factor), Measurement.of("peak_bytes", 1e6)]
            if state or name == "softmax":
                held = 4096.0 if name == "linear" else 512.0 * length
                numbers.append(Measurement.of("state_bytes", held, length=length))
            b.add(cell, numbers, **setting)
    return b


def boards(b: object) -> list[object]:
    table = table_of(b.records)
    return [board_for_serving(table, found) for found in serving_sweeps(table, board_keys(table))]


def entries(board: object, name: str) -> dict[str, object]:
    found = next(row for row in (*board.ranked, *board.unranked) if row.name == name)
    return {column.name: entry for column, entry in zip(board.columns, found.entries, strict=True)} | {"row": found}


def test_points_stand_side_by_side_with_tokens_a_second_and_ratios(bench) -> None:
    (found,) = boards(serving(bench, "decode", {"linear": 0.5, "rela": 2.0}))
    names = [column.name for column in found.columns]
    assert names == ["at_1_256", "at_1_1024", "at_8_256", "at_8_1024", "mean"]
    assert [column.title for column in found.columns][2] == "8 × 256"
    linear = entries(found, "linear")
    assert linear["at_8_1024"].value == 16_000 and linear["at_8_1024"].bare == "16k"
    assert linear["at_8_1024"].text.startswith("16k, 2.0") and "faster" in linear["at_8_1024"].text
    assert linear["mean"].value == pytest.approx(0.5, rel=0.02)
    assert [row.name for row in found.ranked] == ["linear", "softmax", "rela"]
    assert "decoding over batch × cache length" in found.title


def test_the_state_of_a_sequence_stands_below_by_length(bench) -> None:
    (found,) = boards(serving(bench, "decode", {"linear": 0.5}))
    (states,) = found.parts
    assert entries(states, "softmax")["state_1024"].value == 512 * 1024
    assert entries(states, "linear")["state_1024"].text == "4 KiB, 128× less"
    assert entries(states, "softmax")["state_of_batch"].text == "4 MiB"


def test_a_variant_that_cannot_decode_is_unranked_with_the_reason(bench) -> None:
    (found,) = boards(serving(bench, "decode", {"linear": 0.5, "nystrom": None}))
    assert entries(found, "nystrom")["row"].reason == "unsupported at 1 × 256: it cannot decode"
    (found,) = boards(serving(bench, "forward", {"nystrom": 0.5}, state=False))
    assert entries(found, "nystrom")["row"].reason == "it cannot decode, so that it keeps no state to be filled"
    assert "prefill over batch × prompt length" in found.title


def test_a_point_that_was_not_measured_costs_the_rank(bench) -> None:
    b = serving(bench, "decode", {"linear": 0.5, "rela": 0.4})
    b.records = [r for r in b.records if r.cell.variant.name != "rela" or r.cell.task.get("length") != 1024]
    (found,) = boards(b)
    assert entries(found, "rela")["row"].reason == "not measured at 1 × 1,024, 8 × 1,024"


def test_one_batch_makes_a_board_over_lengths_and_two_make_this_one_alone(bench, tmp_path) -> None:
    kept = StoredPredictions(Store(tmp_path))
    one, two = (table_of(serving(bench, "decode", {"linear": 0.5}, points=p).records) for p in (POINTS[:2], POINTS))
    assert [board.title.split(": ")[1] for board in scored(one, kept, board_keys(one), None)] == [
        "a decoding step over lengths"
    ]
    assert [board.title.split(": ")[1] for board in scored(two, kept, board_keys(two), None)] == [
        "decoding over batch × cache length"
    ]
    assert len(scored(two, kept, board_keys(two), None, lengths=True)) == 2
    assert [board.title.split(": ")[1] for board in scored(two, kept, board_keys(two), None, mode="forward")] == []


def test_a_machine_that_changed_is_told_by_point(bench) -> None:
    (found,) = boards(serving(bench, "decode", {"linear": 0.5}, drift=0.3))
    (note, *_) = [each.text for each in found.notes if each.topic == "machine speed"]
    assert note.startswith("at point 1 × 256, 1 × 1,024, 8 × 256") and "+30 %" in note
