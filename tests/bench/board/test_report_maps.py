"""Attention maps for the page: scaled one by one, within the room there is, and absent where they cannot be trusted."""

import base64
import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from attnbench.bench.board.build_report import attention_maps
from attnbench.bench.store.artifacts import StoredMaps, StoredPredictions
from attnbench.bench.store.store import Store

MAPS = np.array([[0.5, 0.25], [0.0, 1.0], [0.0, 0.0], [0.125, 0.0]], dtype=np.float16).reshape(1, 2, 2, 1, 2)


def runs(**maps: str) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(variant=name, seed=0, artifacts={"maps": file} if file else {}) for name, file in maps.items()
    ]


def test_each_map_is_scaled_by_its_own_maximum() -> None:
    (panel,), left_out = attention_maps(runs(rela="a", none=""), {"a": MAPS}.get, room=1000)
    assert left_out == 0 and panel["tops"] == (0.5, 1.0, 0.0, 0.125)
    assert list(base64.b64decode(panel["shades"])) == [255, 128, 0, 255, 0, 0, 255, 0]
    assert (panel["variant"], panel["layers"], panel["heads"], panel["rows"], panel["keys"]) == ("rela", 2, 2, 1, 2)


def test_what_finds_no_room_is_counted() -> None:
    panels, left_out = attention_maps(runs(one="a", two="a", three="a"), {"a": MAPS}.get, room=25)
    assert [panel["variant"] for panel in panels] == ["one", "three"] and left_out == 1


@pytest.mark.parametrize(
    "maps",
    [
        MAPS.astype(np.float64),
        MAPS[0],
        -MAPS,
        np.full_like(MAPS, np.inf),
        np.ones((1, 1, 1, 65, 1), np.float16),
        MAPS[:0],
    ],
)
def test_what_is_no_stack_of_weights_is_absent(maps: np.ndarray) -> None:
    assert attention_maps(runs(rela="a"), {"a": maps}.get, room=1000) == ((), 0)


def test_hostile_files_are_absent(tmp_path: Path) -> None:
    store = Store(tmp_path)
    pickled, whole = io.BytesIO(), io.BytesIO()
    np.savez(pickled, maps=np.array([{"an": "object"}], dtype=object))
    np.savez_compressed(whole, maps=MAPS)
    huge = io.BytesIO()
    np.savez_compressed(huge, maps=np.zeros(40_000_000, dtype=np.float16))
    read = StoredMaps(store)
    for content in (pickled.getvalue(), whole.getvalue()[:50], b"", b"no archive", huge.getvalue()):
        assert read(store.put_artifact(content, ".npz")) is None
    assert read("../../etc/passwd") is None
    found = read(store.put_artifact(whole.getvalue(), ".npz"))
    assert found is not None and (found == MAPS).all()


def test_no_flipped_byte_breaks_a_page(tmp_path: Path) -> None:
    store, whole = Store(tmp_path), io.BytesIO()
    np.savez_compressed(whole, maps=MAPS, correct=np.ones(8, np.uint8))
    content = whole.getvalue()
    for at in range(0, len(content), 7):
        name = store.put_artifact(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :], ".npz")
        maps, results = StoredMaps(store)(name), StoredPredictions(store)(name)
        assert maps is None or maps.size == 8
        assert results is None or results.values.size == 8
