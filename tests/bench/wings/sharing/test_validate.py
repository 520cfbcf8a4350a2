"""What must not pass, passes not; what others made sound, is taken in once."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from command_lines import answer
from sent_folders import STEPS, curve, invoke, of_release, predictions, trained

from attnbench.bench.core.errors import SelectionError, StoreError
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.record import Measurement, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.store.store import Store
from attnbench.bench.wings.sharing import validate as validate_module
from attnbench.bench.wings.sharing.agreement import Copies
from attnbench.bench.wings.sharing.command import merge, validate
from attnbench.bench.wings.sharing.validate import validate_records


def timed(bench: Callable[..., object], variant: str, reference: float = 1.0) -> Record:
    made = bench().time(variant, [1.0] * 3, [reference] * 3)
    return replace(made, digest=of_release("a1-b2", made.cell), seconds=20.0)


def test_a_folder_without_records_names_that_of_local_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("results/local").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"name results/local$"):
        validate_records(Path("results"))


@pytest.fixture
def folder(bench: Callable[..., object], tmp_path: Path) -> Path:
    """Two sound train Records with predictions and one of times."""
    store = Store(tmp_path / "theirs")
    for variant, right in (("softmax", 12), ("rela", 15)):
        trained(bench, store, variant, right)
    store.append(timed(bench, "softmax"))
    return tmp_path / "theirs"


def edit(folder: Path, number: int, change: Callable[[dict], object]) -> None:
    path = folder / "records" / "box-1.jsonl"
    lines = path.read_text().split("\n")
    values = json.loads(lines[number])
    change(values)
    lines[number] = json.dumps(values)
    path.write_text("\n".join(lines))


def test_a_sound_folder_passes(folder: Path) -> None:
    assert validate_records(folder).findings == () and len(validate_records(folder).sound) == 3
    said = f"{folder}: 3 Records: 0 errors, 0 warnings\n"
    assert invoke(validate, folder) == (0, said) == invoke(validate, "--results", folder)


def test_a_layer_with_fewer_parameters_than_what_it_replaces_is_no_error(folder: Path) -> None:
    edit(folder, 0, lambda v: v["measurements"].append({"name": "extra_parameters", "value": -4, "unit": "count"}))
    assert validate_records(folder).errors == 0 and len(validate_records(folder).sound) == 3


def measured(wanted: str, **changes: object) -> Callable[[dict], object]:
    """A change of the first measurement of that name."""
    return lambda values: next(m for m in values["measurements"] if m["name"] == wanted).update(changes)


IMPOSSIBLE: dict[str, Callable[[dict], object]] = {
    "match its cell": lambda v: v["cell"].update(seed=7),
    "got 99": lambda v: v.update(schema=99),
    "range from 0 to 1": measured("accuracy", value=1.2),
    "'speed'": measured("accuracy", name="speed"),
    "got 'bytes'": measured("parameters", unit="bytes"),
    "negative": measured("parameters", value=-4),
    "not finite": measured("parameters", value="nan"),
    "number of examples": lambda v: v["measurements"][0]["where"].pop("examples"),
    "no test result": lambda v: v["measurements"].pop(0),
    "no reason": lambda v: v.update(outcome="crashed"),
    "got 'yesterday'": lambda v: v.update(started="yesterday"),
    "future": lambda v: v.update(started="2999-01-01T00:00:00+00:00"),
    "expected a digest": lambda v: v.update(digest="new"),
    "expected a fidelity": lambda v: v["data"].update(fidelity="perfect"),
    "does not name its data": lambda v: v.update(data=None),
    "got one of box-2": lambda v: v["machine"].update(id="box-2"),
    "not the name of an artifact": lambda v: v["artifacts"].update(predictions="../../secret"),
    "is missing": lambda v: v["artifacts"].update(curve="0" * 24 + ".json"),
}
CONTRADICTIONS: dict[str, Callable[[dict], object]] = {
    "is 0.6100, but its predictions give 0.6000": measured("accuracy", value=0.61),
    "needs the artifact predictions": lambda v: v["artifacts"].pop("predictions"),
    "needs the artifact curve": lambda v: v["artifacts"].pop("curve"),
    "100 steps, but its curve ends at 200": measured("steps", value=100),
    "200 steps, but its preset has 400": lambda v: v["setting"].update(steps=400),
    "150, is not on its curve": measured("best_step", value=150),
    "is 0.6000, but its curve has 0.5000": measured("best_step", value=100),
    "1 s of training, but its curve ends at 4 s": measured("train_seconds", value=1.0),
    "19 test examples, but its predictions": lambda v: v["measurements"][0]["where"].update(examples=19),
    "20 test examples, but its data has 19": lambda v: v["data"]["counts"].update(test=19),
}


def test_what_is_impossible_or_contradicts_itself_is_an_error_of_its_record(folder: Path) -> None:
    path = folder / "records" / "box-1.jsonl"
    before = path.read_bytes()
    for text, change in (IMPOSSIBLE | CONTRADICTIONS).items():
        edit(folder, 0, change)
        found = validate_records(folder)
        errors = [issue for issue in found.findings if issue.severity == "error"]
        assert any(text in issue.text for issue in errors), (text, errors)
        assert {issue.place for issue in errors} == {"box-1.jsonl:1"} and len(found.sound) == 2, text
        path.write_bytes(before)


def test_a_training_that_may_end_early_makes_no_more_steps_than_its_preset(folder: Path) -> None:
    for steps, errors in ((400, 0), (100, 1)):
        edit(folder, 0, lambda v, steps=steps: v["setting"].update(steps=steps, schedule="until_solved"))
        found = [issue for issue in validate_records(folder).findings if issue.severity == "error"]
        assert len(found) == errors, found


def test_artifacts_must_be_what_their_names_say(folder: Path) -> None:
    for path in (folder / "artifacts").iterdir():
        path.write_bytes(b"other")
    errors = [issue for issue in validate_records(folder).findings if issue.severity == "error"]
    assert [issue.place for issue in errors] == ["box-1.jsonl:1"] * 2 + ["box-1.jsonl:2"] * 2
    assert all("hash in its name" in issue.text for issue in errors)


def exchange(folder: Path, number: int, name: str, content: bytes) -> None:
    """Puts another artifact in the place of one, under its proper name."""
    stored = Store(folder).put_artifact(content, {"curve": ".json", "predictions": ".npz"}[name])
    edit(folder, number, lambda v: v["artifacts"].update({name: stored}))


def test_an_artifact_that_contradicts_its_record_is_an_error(folder: Path) -> None:
    drawn = curve(0.6)
    contents = [
        ("curve", b"[]", "do not increase"),
        ("curve", drawn.replace(b'"step": 100', b'"step": 300'), "do not increase"),
        ("curve", drawn.replace(b'"seconds": 2.0', b'"seconds": 9.0'), "seconds of its curve decrease"),
        ("curve", b"{}", "curve is damaged"),
        ("curve", b"[" * 100_000, "curve is damaged"),
        ("curve", drawn.replace(b"100", b'"x"'), "curve is damaged"),
        ("curve", b'[{"step": 1, "deep": [[1]]}]', "curve is damaged"),
        ("predictions", b"no zip", "predictions is damaged"),
        ("predictions", predictions(np.full(20, 2)), "predictions is damaged"),
    ]
    path = folder / "records" / "box-1.jsonl"
    before = path.read_bytes()
    for name, content, text in contents:
        exchange(folder, 0, name, content)
        found = validate_records(folder)
        assert any(text in f.text for f in found.findings) and len(found.sound) == 2, (content[:60], found.findings)
        path.write_bytes(before)


def test_times_must_be_those_of_their_samples_and_have_their_reference(folder: Path) -> None:
    path = folder / "records" / "box-1.jsonl"
    before = path.read_bytes()
    changes: dict[str, Callable[[dict], object]] = {
        "lack those of the reference": measured("reference_step_seconds", samples=[1.0]),
        "0 seconds or less": measured("step_seconds", samples=[1.0, 0.0, 1.0]),
        "is 0.5, but the median of its samples is 1": measured("step_seconds", value=0.5),
        "7 rounds, but has 3 samples": measured("step_seconds", where={"rounds": 7}),
        "9 s together, but it took 2 s": lambda v: v.update(seconds=2.0),
    }
    for text, change in changes.items():
        edit(folder, 2, change)
        assert any(text in issue.text for issue in validate_records(folder).findings), text
        path.write_bytes(before)


def warnings_of(folder: Path) -> list[str]:
    found = validate_records(folder)
    assert not found.errors, found.findings
    return [str(f) for f in found.findings if "no result of seed" not in f.text]


def test_predictions_and_curves_copied_to_another_seed_or_variant_are_named(
    folder: Path, bench: Callable[..., object]
) -> None:
    store = Store(folder)
    trained(bench, store, "entmax15", 15)
    (curves, shared) = warnings_of(folder)
    assert "box-1.jsonl:4: its predictions are the very file of box-1.jsonl:2 (rela on lra-text" in shared
    assert "its curve is the very file of box-1.jsonl:2" in curves


@pytest.mark.parametrize(("differing", "warned"), [(1, False), (2, True)])
def test_a_rule_that_a_third_model_learned_too_is_no_copy(
    tmp_path: Path, bench: Callable[..., object], differing: int, warned: bool
) -> None:
    """On ListOps two variants made one file of three answers, which a third one missed by 4 of 2,000 examples."""
    store = Store(tmp_path)
    for variant, right in (("softmax", 120), ("rela", 120), ("linear", 120 - differing)):
        trained(bench, store, variant, right, examples=200)
    assert bool([text for text in warnings_of(tmp_path) if "predictions are the very file" in text]) == warned


@pytest.mark.parametrize(("best", "warned"), [(0.6, False), (0.59, True)])
def test_a_rule_no_better_than_a_trivial_one_is_no_copy(
    tmp_path: Path, bench: Callable[..., object], best: float, warned: bool
) -> None:
    """On ListOps softmax and ReLA, each honestly trained, learned one rule of the root operator."""
    store, b = Store(tmp_path), bench()
    for variant in ("softmax", "rela"):
        trained(bench, store, variant, 120, examples=200)
    rule = [Measurement.of("accuracy", best, split="test", examples=200)]
    cell = b.cell("root-operator", 0, lane="baseline")
    store.append(b.add(cell, rule, digest=of_release("a1-b2", cell)))
    assert bool([text for text in warnings_of(tmp_path) if "predictions are the very file" in text]) == warned


def test_nothing_is_said_of_two_implementations_or_of_models_that_say_one_thing(
    folder: Path, bench: Callable[..., object]
) -> None:
    store = Store(folder)
    trained(bench, store, "rela[impl=eager]", 15)
    # two that learned all, at two seeds
    trained(bench, store, "topk", 20, seed=0)
    trained(bench, store, "topk", 20, seed=1)
    assert warnings_of(folder) == []


def test_right_predictions_that_differ_are_named(folder: Path) -> None:
    correct = np.arange(20) < 15
    exchange(folder, 1, "predictions", predictions(correct, np.where(correct, 7, 0)))
    assert (
        "box-1.jsonl:2: its right predictions are not those of box-1.jsonl:1, of the same data, on 12 examples"
        in (warnings_of(folder)[0])
    )


def test_records_of_one_block_share_the_times_of_the_reference(folder: Path, bench: Callable[..., object]) -> None:
    store = Store(folder)
    for reference in (1.0, 2.0):
        store.append(timed(bench, "rela", reference))
    assert ["box-1.jsonl:5: it shares the rounds of box-1.jsonl:3" in text for text in warnings_of(folder)] == [True]


def test_merge_names_what_looks_copied_and_takes_it(folder: Path, bench: Callable[..., object], tmp_path: Path) -> None:
    trained(bench, Store(folder), "entmax15", 15)
    code, shown = invoke(merge, folder, "--results", tmp_path / "ours")
    assert code == 0 and "4 added" in shown
    assert "taken, with a warning: box-1.jsonl:4: its predictions are the very file" in shown.replace("\n", " ")


def test_merge_names_what_was_copied_from_the_target(
    folder: Path, bench: Callable[..., object], tmp_path: Path
) -> None:
    trained(bench, Store(tmp_path / "forged"), "mine", 15)
    code, shown = invoke(merge, tmp_path / "forged", "--results", folder)
    assert code == 0 and f"very file of {folder}: box-1.jsonl:2" in shown.replace("\n", " ")


def test_committed_results_are_sound() -> None:
    found = validate_records(Path(__file__).parents[4] / "results")
    assert found.count > 300 and found.findings == ()


def test_missing_seeds_are_a_warning(folder: Path, bench: Callable[..., object]) -> None:
    trained(bench, Store(folder), "softmax", 11, seed=1)
    assert [str(f) for f in validate_records(folder).findings] == [
        "warning: lra-text, quick, validation, official: no result of seed 1, which softmax has: rela"
    ]


def test_a_torn_line_is_an_error_and_nothing_is_changed(folder: Path) -> None:
    path = folder / "records" / "box-1.jsonl"
    path.write_bytes(path.read_bytes() + b'{"key": "torn')
    before = path.read_bytes()
    assert validate_records(folder).errors == 1 and path.read_bytes() == before


def test_no_folder_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected a folder"):
        validate_records(tmp_path)


def test_merge_takes_in_each_record_once_with_its_artifacts(folder: Path, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    assert invoke(merge, folder, "--results", ours) == (0, f"{folder}: 3 added, 0 known already, 0 left out\n")
    assert invoke(merge, folder, folder, "--results", ours)[1].endswith("0 added, 3 known already, 0 left out\n")
    assert len(list(Store(ours).records())) == 3 and validate_records(ours).findings == ()


def test_merge_leaves_out_what_is_unsound(folder: Path, tmp_path: Path) -> None:
    edit(folder, 0, lambda v: v["measurements"][0].update(value=7.0))
    code, shown = invoke(merge, folder, "--results", tmp_path / "ours")
    assert code == 1 and "left out: box-1.jsonl:1: accuracy lies outside the range from 0 to 1" in shown
    assert [r.cell.variant.name for r in Store(tmp_path / "ours").records()] == ["rela", "softmax"]


def test_a_failure_with_a_reason_is_sound(folder: Path, bench: Callable[..., object]) -> None:
    b = bench()
    cell = b.cell("topk")
    record: Record = b.add(
        cell, [Measurement.of("loss", float("nan"), split="test")], outcome=Outcome.CRASHED, reason="boom",
        digest=of_release("a1-b2", cell), data=None,
    )  # fmt: skip
    Store(folder).append(record)
    assert validate_records(folder).errors == 0


def test_one_folder_at_a_time(folder: Path) -> None:
    with pytest.raises(SelectionError, match="expected one folder"):
        invoke(validate, folder, "--results", folder.parent)


def test_statistics_must_bear_out_their_score(bench: Callable[..., object], tmp_path: Path) -> None:
    store, statistics = Store(tmp_path), np.array([[10.0, 10.0], [20.0, 10.0]])
    drawn = store.put_artifact(curve(0.5), ".json")
    file = io.BytesIO()
    np.savez(file, statistics=statistics)
    name = store.put_artifact(file.getvalue(), ".npz")
    for value in (1.5, 1.4):
        b = bench(task="lm")
        digest = of_release("a1-b2", b.cell("softmax"))
        b.score(
            "softmax", "bits_per_character", [value], digest=digest, artifacts={"predictions": name, "curve": drawn}
        )
        store.append(b.records[0])
    (finding,) = validate_records(tmp_path).findings
    assert (
        finding.text == "its bits per character is 1.4000, but its predictions give 1.5000"
        and finding.place == "box-1.jsonl:2"
    )
    file = io.BytesIO()
    np.savez(file, statistics=np.ones((2, 5)))
    b.score("rela", "bits_per_character", [1.0], digest=of_release("a1-b2", b.cell("rela")),
            artifacts={"predictions": store.put_artifact(file.getvalue(), ".npz"), "curve": drawn})  # fmt: skip
    store.append(b.records[-1])
    assert any(
        "its predictions hold no statistics of bits_per_character" in f.text
        for f in validate_records(tmp_path).findings
    )


def test_weights_that_are_not_normalised_may_be_above_one(folder: Path) -> None:
    def give(value: float) -> None:
        added = {"name": "positional_attention", "value": value, "unit": "fraction", "samples": [], "where": {}}
        edit(folder, 0, lambda v: v["measurements"].append(added))

    give(4.1)
    assert validate_records(folder).findings == ()
    give(-0.1)
    assert any("positional_attention lies outside" in str(finding) for finding in validate_records(folder).findings)


def under_a_grid(
    bench: Callable[..., object], root: Path, used: float, validation: dict[float, float], test: float = 0.6,
    **preset: object,
) -> list[str]:  # fmt: skip
    """The findings on a training at rate `used`, beside a trial of each rate with that validation accuracy."""
    original = trained(bench, Store(root / "other"), "softmax", 12)
    kept = {name: Store(root).put_artifact(Store(root / "other").artifact(file), file[24:])
            for name, file in original.artifacts.items()}  # fmt: skip
    others = [m for m in original.measurements if m.where.get("split") != "validation"]
    rates = Measurement.of("learning_rate", used)
    setting = original.setting | {"learning_rates": list(validation), "tuning_seeds": 1} | preset
    measured = (*original.measurements, rates)
    Store(root).append(replace(original, setting=setting, measurements=measured, artifacts=kept))
    for rate, accuracy in validation.items():
        cell = replace(original.cell, lane="tune", seed=100, preset=Spec.of("quick", learning_rate=rate))
        of_split = {"split": "validation", "examples": 500}
        measured = (
            Measurement.of("accuracy", test, split="test", examples=20),
            Measurement.of("accuracy", accuracy, **of_split), Measurement.of("loss", 0.5, **of_split),
            *(m for m in others if m.name != "accuracy"),
        )  # fmt: skip
        drawn = Store(root).put_artifact(curve(accuracy), ".json")
        setting = original.setting | {"learning_rate": rate, "learning_rates": []}
        Store(root).append(
            replace(original, cell=cell, measurements=measured, setting=setting, artifacts={"curve": drawn})
        )
    return [str(issue) for issue in validate_records(root).findings if "learning" in str(issue)]


@pytest.mark.parametrize(
    ("used", "validation", "said"),
    [
        (8e-3, {2e-3: 0.6, 8e-3: 0.9}, []),
        (2e-3, {2e-3: 0.6, 8e-3: 0.9}, ["trained at learning rate 0.002, but validation of the trials chooses 0.008"]),
        (1e-3, {2e-3: 0.6, 8e-3: 0.9}, ["expected its learning_rate to be one of 0.002, 0.008"]),
    ],
)
def test_a_learning_rate_is_compared_with_what_the_trials_choose(
    bench: Callable[..., object], tmp_path: Path, used: float, validation: dict[float, float], said: list[str]
) -> None:
    found = under_a_grid(bench, tmp_path, used, validation)
    assert len(found) == len(said)
    assert all(text in issue for text, issue in zip(said, found, strict=True))


@pytest.mark.parametrize(
    ("used", "validation", "said"),
    [
        (0.012, {1e-3: 0.6, 4e-3: 0.7, 0.012: 0.9, 0.036: 0.5}, []),
        (4e-3, {1e-3: 0.6, 4e-3: 0.7, 0.012: 0.9, 0.036: 0.5}, ["0.004, but validation of the trials chooses 0.012"]),
        # the trials end at the best rate, so that one is missing
        (4e-3, {1e-3: 0.6, 4e-3: 0.7}, []),
        # at most twice beyond
        (0.036, {1e-3: 0.6, 4e-3: 0.7, 0.012: 0.8, 0.036: 0.9}, []),
        (0.108, {1e-3: 0.6, 4e-3: 0.7}, ["to be one of 0.000111, 0.000333, 0.001, 0.004, 0.012, 0.036, as"]),
    ],
)
def test_a_learning_rate_beyond_the_grid_is_one_that_the_search_reaches(
    bench: Callable[..., object], tmp_path: Path, used: float, validation: dict[float, float], said: list[str]
) -> None:
    found = under_a_grid(bench, tmp_path, used, validation, learning_rates=[1e-3, 4e-3], rate_extensions=2)
    assert len(found) == len(said)
    assert all(text in issue for text, issue in zip(said, found, strict=True))


def test_a_choice_without_its_trials_is_not_judged(bench: Callable[..., object], tmp_path: Path) -> None:
    assert under_a_grid(bench, tmp_path, 2e-3, {2e-3: 0.6, 8e-3: 0.9}) != []
    file = next((tmp_path / "records").iterdir())
    lines = [line for line in file.read_text().split("\n") if '"seed":100' not in line or "0.002" in line]
    file.write_text("\n".join(lines))
    assert not [issue for issue in validate_records(tmp_path).findings if "learning" in str(issue)]


def in_settings(
    store: Store, bench: Callable[..., object], shares: np.ndarray, stated: list[float], seed: int = 0
) -> None:
    """Appends a Record of two settings, ten examples each, whose results are `shares`."""
    file = io.BytesIO()
    np.savez(file, correct=shares, setting=np.repeat(np.arange(2, dtype=np.uint8), 10))
    measured = [Measurement.of("accuracy", float(shares.mean()), split="test", examples=20)]
    for length, value in zip((64, 256), stated, strict=True):
        where = {"split": "test", "length": length, "examples": 10}
        measured.append(Measurement.of("accuracy", value, **where))
    measured.append(Measurement.of("accuracy", float(shares.mean()), split="validation", examples=500))
    measured += [
        Measurement.of("steps", STEPS), Measurement.of("best_step", STEPS), Measurement.of("train_seconds", 5.0)
    ]  # fmt: skip
    b = bench()
    kept = {
        "predictions": store.put_artifact(file.getvalue(), ".npz"),
        "curve": store.put_artifact(curve(float(shares.mean()), seed), ".json"),
    }
    cell = b.cell("softmax", seed)
    store.append(b.add(cell, measured, digest=of_release("a1-b2", cell), artifacts=kept, seconds=9.0))


def test_the_score_of_each_setting_must_be_that_of_its_predictions(
    bench: Callable[..., object], tmp_path: Path
) -> None:
    shares = np.concatenate([np.linspace(0.5, 1, 10), np.linspace(0, 0.5, 10)])
    in_settings(Store(tmp_path / "sound"), bench, shares, [0.75, 0.25])
    assert validate_records(tmp_path / "sound").errors == 0
    in_settings(Store(tmp_path / "raised"), bench, shares, [0.75, 0.35])
    assert any(
        "its accuracy at length=256 is 0.3500, but its predictions give 0.2500" in f.text
        for f in validate_records(tmp_path / "raised").findings
    )
    in_settings(Store(tmp_path / "one"), bench, shares, [0.75, 0.25])
    edit(tmp_path / "one", 0, lambda v: v["measurements"].pop(2))
    assert any("states scores of 1 settings, but its predictions are of 2" in f.text
               for f in validate_records(tmp_path / "one").findings)  # fmt: skip


def test_models_that_are_right_or_wrong_everywhere_are_not_copies(bench: Callable[..., object], tmp_path: Path) -> None:
    store = Store(tmp_path)
    # the two last are wrong on one and the same example, and only partly
    hardest = np.array([1.0] * 19 + [0.75])
    for seed, shares in enumerate((np.ones(20), np.ones(20), np.zeros(20), np.zeros(20), hardest, hardest)):
        in_settings(store, bench, shares, [shares[:10].mean(), shares[10:].mean()], seed)
    assert not [text for text in warnings_of(tmp_path) if "predictions are the very file" in text]


@pytest.mark.parametrize(
    ("chance", "warned"), [(0.125, False), (0.01, True), (None, True), (2.0, True), (-1e308, True)]
)
def test_models_that_always_give_one_answer_are_not_copies(
    bench: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chance: float | None, warned: bool
) -> None:
    """Of eight answers one is right for 3 of 20 examples here; for a hundred, that would be no guess."""
    # as of a plugin's task, which is not asked
    monkeypatch.setattr(validate_module, "installed_metric", lambda task: None)
    store = Store(tmp_path)
    stated = msgspec.to_builtins(METRICS["accuracy"].with_chance(chance))
    for seed in range(2):
        in_settings(store, bench, np.array([1.0] * 3 + [0.0] * 17), [0.3, 0.0], seed)
        edit(tmp_path, seed, lambda v: v.update(metric=stated))
    assert bool([text for text in warnings_of(tmp_path) if "predictions are the very file" in text]) == warned


def test_labels_are_gathered_from_all_right_predictions() -> None:
    copies = Copies()

    def said(place: str, predicted: list[int], correct: list[bool]) -> list[str]:
        return list(copies._labels(place, ("recall",), np.array(predicted), np.array(correct)))

    # each of the first two knows a label that the other does not
    assert said("a", [1, 9], [True, False]) == [] == said("b", [9, 2], [False, True])
    assert said("c", [1, 2], [True, True]) == []
    (found,) = said("d", [1, 3], [True, True])
    assert "not those of a, of the same data, on 1 examples" in found


def test_the_only_line_of_a_file_counts_as_missing_from_the_log(bench: Callable[..., object], tmp_path: Path) -> None:
    trained(bench, Store(tmp_path), "softmax", 12)
    store = Store(tmp_path)
    store.log_arrival()
    (file,) = (tmp_path / "records").glob("*.jsonl")
    (tmp_path / "records" / "other.jsonl").write_text(file.read_text().partition("\n")[0] + "\n")
    assert any("1 files have lines that are in no arrival" in str(each) for each in validate_records(tmp_path).findings)


def test_a_checkpoint_lies_beside_the_records_under_key_and_digest(
    bench: Callable[..., object], tmp_path: Path
) -> None:
    cell = trained(bench, Store(tmp_path), "softmax", 12).cell
    assert Store(tmp_path).checkpoint(cell, "a-b-c") == tmp_path / "checkpoints" / f"{cell.key}-a-b-c.pt"


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("validate r/records", "name r"),
        ("merge r --results a.txt", "expected a folder, got the file 'a.txt'"),
        ("record softmax,rela", "expected one variant for an entry, got softmax,rela"),
        ("results pack nowhere", "no Records in nowhere"),
    ],
)
def test_a_mistake_is_answered_with_the_right_words(
    line: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").touch()
    (tmp_path / "r" / "records").mkdir(parents=True)
    (tmp_path / "r" / "records" / "box.jsonl").touch()
    found = answer(line)
    assert found.code in (2, 4) and advice in found.errors and found.errors.count("\n") == 1
