"""A Record says how far a training until solved came, and which factor on queries and keys was chosen for it."""

from __future__ import annotations

from pathlib import Path

from attnbench.bench.api.run import run
from attnbench.bench.core.spec import Spec
from attnbench.bench.store.store import Store


def test_a_training_until_solved_says_whether_it_was_settled(tmp_path: Path) -> None:
    preset = "smoke[schedule=until_solved,steps=24]"
    (record,) = run("softmax", "recall", preset=preset, seeds=1, lanes="train", results=tmp_path, device="cpu")
    # 24 steps stay at chance, so that nothing rises and 90 % are never right
    measured = {each.name: each.value for each in record.measurements}
    assert (measured["settled"], measured["steps"]) == (1.0, 24)
    assert "steps_to_90" not in measured and record.absent["steps_to_90"] == "validation never had 90 % right"
    (other,) = run("softmax", "recall", preset="smoke", seeds=1, lanes="train", results=tmp_path, device="cpu")
    assert "settled" not in {each.name for each in other.measurements} and "steps_to_90" not in other.absent


def test_a_training_starts_with_the_factor_that_its_trials_chose(tmp_path: Path) -> None:
    preset = "smoke[learning_rates=4e-3|8e-3,query_key_scales=0.3|1.0]"
    run("softmax", "recall", preset=preset, seeds=1, lanes="tune,train", results=tmp_path, device="cpu")
    stored = list(Store(tmp_path).records())
    trials = {each.cell.preset: each for each in stored if each.cell.lane == "tune"}
    (record,) = [each for each in stored if each.cell.lane == "train"]
    factors = [preset.get("query_key_scale") for preset in trials]
    assert sorted(map(str, factors)) == ["1.0", "None", "None"]
    chosen = {each.name: each.value for each in record.measurements}
    assert chosen["query_key_scale"] in (0.3, 1.0) and chosen["learning_rate"] in (4e-3, 8e-3)
    # of one seed and setting a training is its trial again
    factor = {} if chosen["query_key_scale"] == 0.3 else {"query_key_scale": 1.0}
    alone = Spec.of("smoke", learning_rate=chosen["learning_rate"], **factor)
    (again,) = run("softmax", "recall", preset=alone, seeds=1, lanes="train", results=tmp_path, device="cpu")
    losses = [each.first("loss", split="validation").value for each in (record, again)]
    assert losses[0] == losses[1]
    assert alone in trials
