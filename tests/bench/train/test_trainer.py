"""Training: pairing by seed, schedules, whole evaluation, and a killed run that ends with the same bits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_batches import batches

from attnbench.bench.core.record import Provenance
from attnbench.bench.train import checkpoint as checkpoint_module
from attnbench.bench.train.checkpoint import Training, ValidationPoint, mark_of, read_parameters
from attnbench.bench.train.objectives.classification import ClassificationObjective
from attnbench.bench.train.trainer import Trainer, is_settled, is_solved, learning_rate, steps_until, train_step
from attnbench.tasks.contract import Classification, Dataset, Recipe, Split
from attnbench.variants import build

CPU = torch.device("cpu")
RECIPE = Recipe(length=10, width=16, heads=2, feed_forward=32, batch=8, steps=12, warmup=3, evaluate_every=4,
                evaluate_batch=7, learning_rate=1e-2)  # fmt: skip


class Killed(Exception):
    pass


def toy_data(examples: int = 60) -> Dataset:
    """Is the first token among the upper half of the alphabet?"""
    random = np.random.default_rng(0)
    lengths = random.integers(3, 10, examples)
    tokens = random.integers(1, 11, lengths.sum()).astype(np.uint16)
    starts = np.concatenate([[0], lengths.cumsum()])
    split = Split(tokens=tokens, starts=starts, labels=(tokens[starts[:-1]] > 5).astype(np.int64))
    parts = np.split(np.arange(examples), [examples // 2, examples * 3 // 4])
    return Dataset(
        train=split.subset(parts[0]),
        validation=split.subset(parts[1]),
        test=split.subset(parts[2]),
        provenance=Provenance(source="toy", fidelity="regenerated"),
    )


def trainer(variant: str = "softmax", seed: int = 0, recipe: Recipe = RECIPE, **options: object) -> Trainer:
    objective = ClassificationObjective(Classification(vocabulary=11, classes=2), recipe)
    model = objective.model(lambda shape: build(variant, shape), seed)
    return Trainer(objective, model, toy_data(), task="toy", seed=seed, device=CPU, **options)  # type: ignore[arg-type]


# rela draws a seed for its own dropout at each step, and routing moves its centroids
@pytest.mark.parametrize("variant", ["softmax[impl=eager]", "general", "rela[impl=eager]", "routing"])
def test_a_killed_run_resumes_to_the_same_bits(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.bench.train.trainer.CHECKPOINT_SECONDS", 0.0)
    whole = trainer(variant)
    expected = whole.run()

    def kill_at_seven(training: Training) -> None:
        if training.step == 7:
            raise Killed

    file = tmp_path / "cell.pt"
    with pytest.raises(Killed):
        trainer(variant, checkpoint=file, report=kill_at_seven).run()
    steps: list[int] = []
    resumed = trainer(variant, checkpoint=file, report=lambda training: steps.append(training.step))
    found = resumed.run()
    assert steps == [7, 8, 9, 10, 11, 12]
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    assert [(p.step, p.train_loss, p.validation_loss) for p in found.curve] == [
        (p.step, p.train_loss, p.validation_loss) for p in expected.curve
    ]
    assert (found.best_step, found.best) == (expected.best_step, expected.best)


def test_a_finished_run_makes_no_step_more(tmp_path: Path) -> None:
    file = tmp_path / "cell.pt"
    first = trainer(checkpoint=file).run()
    steps: list[int] = []
    again = trainer(checkpoint=file, report=lambda training: steps.append(training.step)).run()
    assert steps == []
    assert again.curve == first.curve


def test_a_checkpoint_of_another_account_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, notices = tmp_path / "run.pt", list[str]()
    ours, theirs = (mark_of(file, tmp_path / name) for name in ("ours", "theirs"))
    assert len(ours) == 64 and ours != theirs and mark_of(file, tmp_path / "ours") == ours
    assert mark_of(tmp_path / "other.pt", tmp_path / "ours") != ours
    trainer(checkpoint=file, mark=theirs).run()
    trainer(checkpoint=file, mark=theirs, notice=notices.append).run()
    assert not notices
    trainer(checkpoint=file, mark=ours, notice=notices.append).run()
    (notice,) = notices
    assert str(file) in notice and "this account did not make" in notice
    # a cache that others can write in keeps no secret
    monkeypatch.setattr(checkpoint_module, "is_trusted", lambda path: False)
    assert mark_of(file, tmp_path / "ours") == ""


def test_data_order_depends_on_the_seed_and_not_on_the_variant() -> None:
    ids = [next(batches(trainer(variant), 5))[0] for variant in ("softmax", "general")]
    assert torch.equal(*ids)
    assert not torch.equal(ids[0], next(batches(trainer(seed=1), 5))[0])


def test_it_learns_what_can_be_learnt() -> None:
    recipe = Recipe(**{name: getattr(RECIPE, name) for name in RECIPE.__dataclass_fields__} | {"steps": 150})
    state = trainer(recipe=recipe).run()
    assert state.curve[-1].train_loss < 0.2
    assert state.best[0] == max(point.validation for point in state.curve)


def test_evaluation_leaves_out_no_example() -> None:
    run = trainer()
    assert len(run.dataset.test) % RECIPE.evaluate_batch != 0
    found = run.objective.evaluate(run.model, run.dataset.test, CPU)
    ids, lengths, labels = run.dataset.test.batch(np.arange(len(run.dataset.test)), RECIPE.length)
    with torch.no_grad():
        logits = run.model.eval()(torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(lengths))
    assert np.array_equal(found.predicted, logits.argmax(-1).numpy())
    assert found.value == pytest.approx(float((logits.argmax(-1).numpy() == labels).mean()))
    expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels)).item()
    assert found.loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("schedule", "at", "expected"),
    [
        ("linear", 0, 0.25), ("linear", 3, 1.0), ("linear", 4, 1.0), ("linear", 9, 0.5), ("linear", 14, 0.0),
        ("cosine", 9, 0.5), ("constant", 13, 1.0), ("rsqrt", 15, 0.5),
    ],
)  # fmt: skip
def test_schedules_have_their_closed_forms(schedule: str, at: int, expected: float) -> None:
    recipe = Recipe(steps=14, warmup=4, learning_rate=1.0, schedule=schedule)  # type: ignore[arg-type]
    assert learning_rate(at, recipe) == pytest.approx(expected)


@pytest.mark.parametrize(("steps", "warmup"), [(200, 40), (50, 2), (50_000, 80)])
def test_one_cycle_is_that_of_torch(steps: int, warmup: int) -> None:
    recipe = Recipe(steps=steps, warmup=warmup, learning_rate=3e-4, schedule="one_cycle")
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=3e-4, total_steps=steps, pct_start=warmup / steps, anneal_strategy="linear"
    )
    for step in range(min(steps, 200)):
        assert learning_rate(step, recipe) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-9), step
        if step < steps - 1:
            optimiser.step()
            theirs.step()


def test_gradients_are_clipped_by_norm_by_entry_or_not_at_all() -> None:
    def step(**clipping: float) -> dict[str, torch.Tensor]:
        run = trainer(recipe=replace(RECIPE, dropout=0.0, attention_dropout=0.0, **clipping))
        train_step(run.model, run.optimiser, batches(run, 0), run.recipe, 1e-2)
        return {name: p.grad for name, p in run.model.named_parameters() if p.grad is not None}

    free = step(clip=0.0)
    by_norm, by_entry = step(clip=1e-3), step(clip=0.0, clip_value=1e-3)
    total = torch.cat([gradient.flatten() for gradient in free.values()]).norm()
    for name, gradient in free.items():
        torch.testing.assert_close(by_norm[name], gradient * 1e-3 / total, rtol=1e-3, atol=1e-9)
        torch.testing.assert_close(by_entry[name], gradient.clamp(-1e-3, 1e-3))


def test_two_accumulated_batches_make_the_step_of_both_together() -> None:
    """Batches of like sizes and lengths weigh the same, so their mean gradient is that of the whole."""
    plain = replace(RECIPE, dropout=0.0, attention_dropout=0.0, clip=0.5)
    halves, whole = (trainer(recipe=replace(plain, **sizes)) for sizes in ({"batch": 4, "accumulate": 2}, {"batch": 8}))
    parts = list(batches(halves, 3))
    ids = torch.cat([torch.nn.functional.pad(part[0], (0, 10 - part[0].shape[-1])) for part in parts])
    joined = (ids, *(torch.cat([part[at] for part in parts]) for at in (1, 2)))
    losses = [
        train_step(run.model, run.optimiser, given, plain, 1e-2) for run, given in ((halves, parts), (whole, [joined]))
    ]
    torch.testing.assert_close(losses[0], losses[1])
    for name, value in halves.model.state_dict().items():
        torch.testing.assert_close(value, whole.model.state_dict()[name], rtol=1e-4, atol=1e-6, msg=name)


def test_the_last_states_are_averaged_and_survive_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.bench.train.trainer.CHECKPOINT_SECONDS", 0.0)
    recipe = replace(RECIPE, averaged=2)
    seen: dict[int, dict[str, torch.Tensor]] = {}

    def keep(training: Training) -> None:
        seen[training.step] = {name: value.clone() for name, value in whole.model.state_dict().items()}

    def kill_at_nine(training: Training) -> None:
        if training.step == 9:
            raise Killed

    whole = trainer(recipe=recipe, report=keep)
    assert whole.run().best_step == 12
    file = tmp_path / "cell.pt"
    with pytest.raises(Killed):
        trainer(recipe=recipe, checkpoint=file, report=kill_at_nine).run()
    resumed = trainer(recipe=recipe, checkpoint=file)
    resumed.run()
    for name, value in resumed.model.state_dict().items():
        torch.testing.assert_close(value, (seen[8][name] + seen[12][name]) / 2, msg=name)
        assert torch.equal(value, whole.model.state_dict()[name]), name
    kept = read_parameters(file, CPU)
    assert all(torch.equal(kept[name], value) for name, value in resumed.model.state_dict().items())


def test_predictions_of_pairs_name_their_documents() -> None:
    single = toy_data()
    split = single.test.split
    pairs = replace(split, labels=split.labels[: len(split) // 2], towers=2).subset(np.arange(10))
    problem = Classification(vocabulary=11, classes=2, towers=2)
    for objective, subset in (
        (ClassificationObjective(problem, RECIPE), pairs),
        (ClassificationObjective(Classification(vocabulary=11, classes=2), RECIPE), single.test),
    ):
        model = objective.model(lambda shape: build("softmax", shape), 0)
        kept = objective.evaluate(model, subset, CPU).predictions()
        assert len(kept["correct"]) == len(kept["predicted"]) == len(subset)
        if subset is pairs:
            assert kept["documents"].shape == (10, 2)
        else:
            assert "documents" not in kept


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04" + b"x" * 500])
def test_a_damaged_checkpoint_is_set_aside_and_training_starts_over(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    file.write_bytes(content)
    notices: list[str] = []
    found = trainer(checkpoint=file, notice=notices.append).run()
    assert [point.train_loss for point in found.curve] == [point.train_loss for point in trainer().run().curve]
    assert len(notices) == 1 and "set aside as checkpoint.pt.damaged" in notices[0]
    assert (tmp_path / "checkpoint.pt.damaged").read_bytes() == content and file.stat().st_size > len(content)


@pytest.mark.parametrize(("changes", "why"), [({"steps": 4}, "longer run"), ({"learning_rate": 3e-4}, "learning rate")])
def test_a_checkpoint_of_another_run_is_set_aside_and_leaves_no_trained_parameter(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """Of a longer one, or at a rate that the trials of then chose: a Record would name a rate that was not used."""
    file, other = tmp_path / "cell.pt", replace(RECIPE, **changes)
    trainer(checkpoint=file).run()
    notices: list[str] = []
    again, fresh = trainer(recipe=other, checkpoint=file, notice=notices.append), trainer(recipe=other)
    assert [point.train_loss for point in again.run().curve] == [point.train_loss for point in fresh.run().curve]
    assert all(torch.equal(value, fresh.model.state_dict()[name]) for name, value in again.model.state_dict().items())
    assert len(notices) == 1 and why in notices[0] and file.with_name("cell.pt.damaged").exists()


UNTIL_SOLVED = replace(RECIPE, schedule="until_solved", steps=400, warmup=6)


def curve_of(values: list[float]) -> list[ValidationPoint]:
    return [
        ValidationPoint(step=10 * (at + 1), train_loss=0.0, validation_loss=0.0, validation=value, seconds=0.0)
        for at, value in enumerate(values)
    ]


def test_until_solved_is_constant_and_its_rates_depend_on_no_later_step() -> None:
    recipe = replace(UNTIL_SOLVED, steps=40, learning_rate=1.0)
    rates = [learning_rate(step, recipe) for step in range(40)]
    assert rates[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0])
    assert rates[6:34] == [1.0] * 28
    assert rates[34:] == pytest.approx([1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    early = [learning_rate(step, recipe, 26) for step in range(26)]
    assert early[:20] == rates[:20] and early[20:] == rates[34:]


def test_a_solved_training_ends_with_a_decay_after_three_evaluations() -> None:
    state = trainer(recipe=UNTIL_SOLVED).run()
    values = [point.validation for point in state.curve]
    solved = next(at for at in range(3, len(values) + 1) if min(values[at - 3 : at]) >= 0.995)
    assert 100 < state.end == state.step == state.curve[solved - 1].step + 6 < 400
    assert state.curve[-1].step == state.step
    # whoever solves it earlier trains for a quarter of the steps all the same
    longer = trainer(recipe=replace(UNTIL_SOLVED, steps=600)).run()
    assert longer.curve[solved - 1].step + 6 < longer.end == longer.step == 150
    again = trainer(recipe=replace(UNTIL_SOLVED, schedule="constant")).run()
    assert (again.end, again.step) == (0, 400)


def test_an_unsolved_training_makes_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.bench.train.trainer.SOLVED", 1.5)
    state = trainer(recipe=replace(UNTIL_SOLVED, steps=40)).run()
    assert (state.end, state.step) == (0, 40)


def test_a_metric_without_a_ceiling_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassificationObjective, "metric", "bits_per_character")
    state = trainer(recipe=replace(UNTIL_SOLVED, steps=200)).run()
    assert any(is_solved(state.curve[:at]) for at in range(len(state.curve)))
    assert (state.end, state.step) == (0, 200)


def test_an_early_end_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.bench.train.trainer.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("attnbench.bench.train.trainer.RUNNING", 1)
    monkeypatch.setattr("attnbench.bench.train.trainer.LEAST", 100)
    whole = trainer(recipe=UNTIL_SOLVED)
    expected = whole.run()

    # in the decay, whose end only the checkpoint knows
    def kill(training: Training) -> None:
        if training.step == expected.step - 2:
            raise Killed

    file = tmp_path / "cell.pt"
    with pytest.raises(Killed):
        trainer(recipe=UNTIL_SOLVED, checkpoint=file, report=kill).run()
    # the step at which it was killed was made and not yet saved
    for left in (3, 0):
        steps: list[Training] = []
        resumed = trainer(recipe=UNTIL_SOLVED, checkpoint=file, report=steps.append)
        found = resumed.run()
        assert len(steps) == left and found.step == expected.step
        for name, value in whole.model.state_dict().items():
            assert torch.equal(value, resumed.model.state_dict()[name]), name


@pytest.mark.parametrize(
    ("values", "solved"),
    [([1.0, 1.0], False), ([0.9, 0.995, 0.996, 1.0], True), ([1.0, 1.0, 1.0, 0.9], False), ([], False)],
)
def test_three_evaluations_in_a_row_are_solved(values: list[float], solved: bool) -> None:
    assert is_solved(curve_of(values)) is solved


@pytest.mark.parametrize(
    ("values", "settled"),
    [
        ([0.1 * at for at in range(12)], False),
        ([0.8] * 12, True),
        ([0.2] * 12, True),
        # less than a point from quarter to quarter
        ([0.8 + 0.001 * at for at in range(12)], True),
        # a rise within the noise of the evaluations
        ([0.5, 0.5, 0.6, 0.2, 0.7, 0.3, 0.65, 0.4], True),
        # a late start
        ([0.01] * 9 + [0.3, 0.5, 0.6], False),
        # a fall is no rise
        ([1.0 - 0.05 * at for at in range(12)], True),
        # too few evaluations tell nothing
        ([0.5] * 7, False),
    ],
)
def test_a_training_is_settled_where_validation_no_longer_rises(values: list[float], settled: bool) -> None:
    assert is_settled(curve_of(values)) is settled


def test_steps_are_counted_until_a_share_is_right() -> None:
    curve = curve_of([0.1, 0.91, 0.5, 1.0])
    assert (steps_until(curve, 0.9), steps_until(curve, 0.95), steps_until(curve[:1], 0.9)) == (20, 40, None)
