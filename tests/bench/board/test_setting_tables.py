"""Accuracy by length and difficulty: which settings stand side by side, and what is said of them."""

import pytest
from boards import entry, facts, text

from attnbench.bench.board.board import Board
from attnbench.bench.board.task_board import board_for_task
from attnbench.bench.core.record import Measurement, Record
from attnbench.bench.score import settings
from attnbench.bench.score.key import board_keys
from attnbench.bench.score.settings import series_of
from attnbench.bench.store.table import table_of

# as recall is tested: more pairs at growing lengths, and 16 pairs over longer distances
RECALL = ((64, 4), (64, 16), (128, 32), (512, 16), (2048, 16))
SETTING = {"length": 128, "shortest": 16, "longest": 2048, "ranked": True}


def recalled(bench: object, by_variant: dict[str, list[list[float]]], places: object = RECALL) -> object:
    """Records of a task that is tested at `places`; by variant and seed, the accuracy at each of them."""
    b = bench(task="recall")
    for variant, seeds in by_variant.items():
        for seed, shares in enumerate(seeds):
            measured = [Measurement.of("accuracy", sum(shares) / len(shares), split="test", examples=50 * len(shares))]
            for (length, pairs), share in zip(places, shares, strict=True):
                where = {"split": "test", "length": length, "pairs": pairs}
                measured.append(Measurement.of("accuracy", share, **where, examples=50))
                measured.append(Measurement.of("weight_on_right_key", share / 2, **where))
            # the order of measurements after the ranked one is nobody's to rely on
            b.add(b.cell(variant, seed), [measured[0], *reversed(measured[1:])], setting=SETTING)
    return b


def board(b: object, **options: object) -> Board:
    table = table_of(b.records)
    return board_for_task(table, board_keys(table)[0], **options)


def part(found: Board, words: str) -> Board:
    (one,) = [each for each in found.parts if words in each.title]
    return one


THREE = {
    "softmax": [[1.0, 1.0, 1.0, 0.95, 0.80], [1.0, 1.0, 1.0, 0.99, 0.70], [1.0, 1.0, 1.0, 1.0, 0.90]],
    "entmax15": [[1.0, 1.0, 1.0, 1.0, 1.0]] * 3,
    "linear": [[0.9, 0.5, 0.2, 0.4, 0.1]] * 3,
}


def test_accuracy_by_length_holds_the_other_axes_fixed(bench) -> None:
    found = part(board(recalled(bench, THREE)), "Accuracy by length")
    assert found.title == "Accuracy by length (16 pairs, trained at 16 to 128)"
    assert [column.title for column in found.columns] == ["64", "512", "2,048"]
    cell = entry(found, "softmax", "length_2048")
    assert (cell.text, cell.value) == ("80.0", pytest.approx(80)) and (cell.low, cell.high) == (
        pytest.approx(70), pytest.approx(90),
    )  # fmt: skip
    assert entry(found, "softmax", "length_512").text == "98.0"


def test_accuracy_by_pairs_is_at_the_shortest_length_tested(bench) -> None:
    found = part(board(recalled(bench, THREE)), "by number of pairs")
    assert found.title == "Accuracy by number of pairs (each at the shortest length tested)"
    assert [column.title for column in found.columns] == ["4", "16", "32"]
    assert [entry(found, "linear", f"pairs_{n}").text for n in (4, 16, 32)] == ["90.0", "50.0", "20.0"]


def test_bits_by_position_say_where_training_ended(bench) -> None:
    b = bench(task="tinyshakespeare")
    for seed in range(3):
        of = {"split": "test", "examples": 50}
        measured = [Measurement.of("bits_per_character", 2.5, **of, context=128, stride=64)]
        measured += [
            Measurement.of("bits_per_character", value, **of, position=end)
            for end, value in ((16, 3.0), (128, 2.5), (256, 2.0 + seed))
        ]
        setting = {"length": 128, "stride": 64, "longest": 256, "ranked": True}
        b.add(b.cell("softmax", seed), measured, setting=setting)
    found = part(board(b), "by position")
    assert found.title == "Bits/character by position, up to the number above (trained at 128)"
    assert [column.title for column in found.columns] == ["16", "128", "256"]
    last = entry(found, "softmax", "position_256")
    assert (last.text, last.value, last.low, last.high) == ("3.000", 3.0, 2.0, 4.0)


def test_the_weight_on_the_right_key_has_a_table_over_lengths(bench) -> None:
    found = part(board(recalled(bench, THREE)), "right key")
    assert [entry(found, "entmax15", f"length_{n}").text for n in (64, 512, 2048)] == ["0.50"] * 3
    assert entry(found, "softmax", "length_2048").value == pytest.approx(0.4)


def test_rows_stand_in_the_order_of_the_board_and_baselines_last(bench) -> None:
    b = recalled(bench, THREE | {"no-attention": [[0.01] * 5] * 3})
    where = {"split": "test", "length": 64, "pairs": 4}
    measured = [
        Measurement.of("accuracy", 0.008, split="test", examples=250),
        Measurement.of("accuracy", 0.01, **where),
    ]
    b.add(b.cell("majority", lane="baseline"), measured, setting=SETTING)
    found = board(b)
    order = [row.name for row in found.ranked]
    by_length = part(found, "Accuracy by length")
    assert [row.name for row in by_length.unranked] == order
    assert [row.name for row in by_length.baselines] == ["no-attention", "majority"]


def test_how_far_it_holds_and_how_it_changes_are_columns(bench) -> None:
    found = board(recalled(bench, THREE))
    # 128 is in no setting of 16 pairs, so that 64 stands for training, and 16 × 128 is 2,048
    assert entry(found, "softmax", "longest_high").text == "512 (4×)"
    assert entry(found, "entmax15", "longest_high").text == "2,048+ (16×)"
    assert entry(found, "linear", "longest_high").text == "none"
    change = entry(found, "softmax", "extrapolation")
    assert change.value == pytest.approx(-20)
    # t with 2 degrees of freedom over -20, -30 and -10: 4.303 × 10 / √3
    assert change.high - change.value == pytest.approx(24.84, abs=0.01)
    assert entry(found, "entmax15", "extrapolation").value == 0
    assert facts(text(found, "change to 16×"), found) == ["64", "2,048"]


def test_one_seed_has_a_change_without_an_interval(bench) -> None:
    found = board(recalled(bench, {name: seeds[:1] for name, seeds in THREE.items()}))
    cell = entry(found, "softmax", "extrapolation")
    assert (cell.text, cell.value, cell.low) == ("−20.0", pytest.approx(-20), None)


def test_lengths_short_of_16_times_give_no_column_of_the_change(bench) -> None:
    found = board(recalled(bench, {name: [one[:4] for one in seeds] for name, seeds in THREE.items()}, RECALL[:4]))
    assert "extrapolation" not in [column.name for column in found.columns]
    assert entry(found, "softmax", "longest_high").text == "512+ (4×)"


def test_a_task_of_one_setting_has_no_such_tables(bench) -> None:
    b = bench()
    b.train("softmax", [0.6] * 3)
    b.train("rela", [0.7] * 3)
    found = board(b)
    assert found.parts == () and not {"longest_high", "extrapolation"} & {column.name for column in found.columns}


def test_any_axis_of_a_setting_gets_a_series() -> None:
    """With noise tested at one length only, that length is fixed by itself, and each axis has its own series."""
    places = [
        tuple(sorted({"length": n, "noise": share, "pairs": 8}.items()))
        for n, share in ((128, 0.2), (128, 0.4), (128, 0.8), (512, 0.2), (1024, 0.2))
    ]
    found = {one.axis: one for one in series_of(places)}
    assert list(found) == ["length", "noise"]
    assert [at for at, _ in found["length"].places] == [128, 512, 1024]
    assert found["length"].fixed == (("noise", 0.2), ("pairs", 8))
    assert [at for at, _ in found["noise"].places] == [0.2, 0.4, 0.8]
    # the order of the settings has no say
    assert series_of(places[::-1]) == series_of(places)


@pytest.mark.parametrize("count", [5, 50])
def test_a_setting_that_records_share_is_found_once_however_many_they_are(bench, monkeypatch, count) -> None:
    made = recalled(bench, {"softmax": [[1.0, 0.9, 0.8, 0.7, 0.6]] * count}).records
    table = table_of(Record.from_line(record.to_line()) for record in made)
    asked = []
    place_of = settings.place_of
    monkeypatch.setattr(settings, "place_of", lambda where: asked.append(where) or place_of(where))
    found = settings.by_seed(table, table.rows, "accuracy")
    assert [len(values) for values in found] == [len(RECALL)] * count
    # the mean over all settings, which names none, is a sixth
    assert len(asked) == len(RECALL) + 1
