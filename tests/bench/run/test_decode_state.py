"""A Record of a training holds the bytes that decoding keeps, at the longest sequence of the test."""

from __future__ import annotations

from small_run import SmallRun

from attnbench.bench.store.store import Store


def test_a_training_says_how_many_bytes_its_attention_keeps(small_run: SmallRun) -> None:
    """Width 32, one layer and head, float32: softmax keeps keys and values of 64 tokens, linear sums of 32 features."""
    found = {
        str(record.cell.variant): (measured.value, dict(measured.where))
        for record in Store(small_run.results).records()
        for measured in record.measurements
        if record.cell.lane == "train" and measured.name == "state_bytes"
    }
    at = {"length": 64}
    assert found["softmax"] == (2 * 32 * 64 * 4, at) and found["linear"] == (32 * (32 + 1) * 4, at)
