"""A Record of a training until solved says how far it came: settled or not, and when 90 % were right."""

from __future__ import annotations

from pathlib import Path

from attnbench.bench.api.run import run


def test_a_training_until_solved_says_whether_it_was_settled(tmp_path: Path) -> None:
    preset = "smoke[schedule=until_solved,steps=24]"
    (record,) = run("softmax", "recall", preset=preset, seeds=1, lanes="train", results=tmp_path, device="cpu")
    # 24 steps stay at chance, so that nothing rises and 90 % are never right
    measured = {each.name: each.value for each in record.measurements}
    assert (measured["settled"], measured["steps"]) == (1.0, 24)
    assert "steps_to_90" not in measured and record.absent["steps_to_90"] == "validation never had 90 % right"
    (other,) = run("softmax", "recall", preset="smoke", seeds=1, lanes="train", results=tmp_path, device="cpu")
    assert "settled" not in {each.name for each in other.measurements} and "steps_to_90" not in other.absent
