"""A cache changes nothing but the time: same boards, never older than the JSON lines, and no trouble of its own."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest

from attnbench.bench.board.build_report import exhibit_of_task
from attnbench.bench.core.record import Measurement, Outcome
from attnbench.bench.score.key import board_keys
from attnbench.bench.store import cache
from attnbench.bench.store.cache import table_of_store
from attnbench.bench.store.store import Store
from attnbench.bench.store.table import InMemoryMeasurements, ResultTable, table_of

pytest.importorskip("pyarrow", reason="the cache needs pyarrow")

TIMES = [1.0, 1.02, 0.98, 1.01, 0.99]


@pytest.fixture
def root(bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "WORTH", 0)
    b = bench()
    heads = [Measurement.of("sparsity", 0.1 * (1 + at), layer=0, head=at) for at in range(2)]
    heads.append(Measurement.of("entropy", 0.5, (0.25, 0.75), attention="cross", layer=1))
    b.train("rela", [0.9], digest="p0-t1-v1")
    b.train("softmax", [0.6, 0.61, 0.62], more=heads)
    b.train("rela", [0.64, 0.66, float("inf")], more=[*heads, Measurement.of("block_sparsity", 0.2, block=64)])
    b.add(b.cell("local[window=64]"), outcome=Outcome.CRASHED, reason="line one\nline two", data=None)
    for name in ("softmax", "rela"):
        b.time(name, TIMES, TIMES)
    write(tmp_path, [record.to_json() for record in b.records])
    return tmp_path


def write(root: Path, values: list[dict[str, object]], rest: str = "") -> None:
    path = root / "records" / "box-1.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(v) + "\n" for v in values) + rest)
    os.utime(path, (1e9, 1e9))


def read(root: Path) -> tuple[ResultTable, list[str]]:
    told: list[str] = []
    return table_of_store(Store(root, notice=told.append)), told


def plain(root: Path) -> ResultTable:
    return table_of(Store(root, notice=lambda text: None).records())


def exhibits(table: ResultTable) -> list[object]:
    return [exhibit_of_task(table, q, lambda name: None, lambda name: None) for q in board_keys(table)]


def is_from_cache(table: ResultTable) -> bool:
    return not isinstance(table.numbers, InMemoryMeasurements)


def test_boards_are_the_same_with_and_without(root: Path) -> None:
    first, second, bare = read(root)[0], read(root)[0], plain(root)
    assert not is_from_cache(first) and is_from_cache(second)
    assert exhibits(first) == exhibits(second) == exhibits(bare)
    assert second.replaced == bare.replaced and sum(bare.replaced.values()) == 1
    left, right = (f.current.reset_index(drop=True) for f in (second, bare))
    pd.testing.assert_frame_equal(left, right, check_dtype=False)


def test_a_new_record_counts_at_once(root: Path, bench) -> None:
    read(root), read(root)
    b = bench()
    b.train("entmax15", [0.7])
    Store(root).append(b.records[0])
    found = read(root)[0]
    assert not is_from_cache(found) and "entmax15" in set(found.current["variant"])


def test_an_edit_of_the_same_size_and_time_is_seen(root: Path) -> None:
    read(root)
    path = root / "records" / "box-1.jsonl"
    path.write_text(path.read_text().replace('"reason": "line one', '"reason": "LINE one'))
    os.utime(path, (1e9, 1e9))
    assert any(reason.startswith("LINE") for reason in read(root)[0].current["reason"])


def test_what_changed_a_moment_ago_is_not_kept(root: Path) -> None:
    os.utime(root / "records" / "box-1.jsonl")
    read(root)
    assert not (root / "cache").exists()


def test_a_damaged_cache_is_made_again(root: Path) -> None:
    read(root)
    path = root / "cache" / "frame.parquet"
    whole = path.read_bytes()
    for broken in (b"", b"PAR1", whole[: len(whole) // 2], whole[:200] + bytes([whole[200] ^ 255]) + whole[201:]):
        path.write_bytes(broken)
        assert exhibits(read(root)[0]) == exhibits(plain(root))
        assert is_from_cache(read(root)[0])


def test_other_code_reads_the_lines_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(root)
    monkeypatch.setattr(cache, "_code", lambda: "newer")
    assert not is_from_cache(read(root)[0])


def test_what_was_said_of_bad_lines_is_said_again(root: Path) -> None:
    path = root / "records" / "box-1.jsonl"
    path.write_text("{}\n" + path.read_text())
    os.utime(path, (1e9, 1e9))
    told = [read(root)[1] for _ in range(2)]
    assert told[0] == told[1] and "line 1 was skipped" in told[0][0]


def test_where_it_cannot_be_written_the_board_stands(root: Path) -> None:
    (root / "cache").write_text("a file where the folder should be")
    assert exhibits(read(root)[0]) == exhibits(plain(root))


def test_without_pyarrow_nothing_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "find_spec", lambda name: None)
    assert not is_from_cache(read(root)[0]) and not (root / "cache").exists()
