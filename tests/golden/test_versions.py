"""Versions are raised when numbers change: fingerprints of losses, of first batches and of the code behind them.

Where a test fails because you changed code, either raise the version that it names, so that Records are measured anew,
or state why the numbers are the same, in a new entry of `history`; the failure prints the entry. New names are added by
`python tests/golden/write.py`, which changes no entry that is there.
"""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnbench.bench.core.cell import LANE_VERSIONS, REFERENCE
from attnbench.bench.core.files import PACKAGE
from attnbench.bench.core.hashing import content_hash
from attnbench.bench.core.registry import TASKS, VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.fingerprint import closure, token_hash
from attnbench.bench.train.objectives.registry import objective_for
from attnbench.bench.train.trainer import Trainer
from attnbench.tasks.contract import Classification, DataPlace, Dataset, Problem, Provenance, Recipe, Split
from attnbench.tasks.problems.language_modeling import Language, LanguageRecipe, Windows
from attnbench.tasks.problems.token_prediction import (
    TokenBatch,
    TokenExamples,
    TokenPrediction,
    TokenRecipe,
    TokenStream,
)
from attnbench.variants.contract import AttentionShape, Variant

GOLDEN = Path(__file__).parent
VERSIONS = tomllib.loads((GOLDEN / "versions.toml").read_text(encoding="utf-8"))
BENCH = PACKAGE / "bench"
CPU = torch.device("cpu")


LENGTH = 80
"""No multiple of any window or bucket, and longer than each, so that patterns differ from softmax."""


def datasets() -> dict[str, tuple[Problem, Recipe, Dataset]]:
    """A problem, a recipe and random data for each objective."""
    draw = np.random.default_rng(0)
    shape = {"width": 16, "heads": 2, "feed_forward": 32, "layers": 1, "steps": 3, "evaluate_every": 3, "batch": 4}
    starts = np.arange(0, 17 * LENGTH, LENGTH)
    split = Split(
        tokens=draw.integers(1, 9, 16 * LENGTH).astype(np.uint16), starts=starts, labels=draw.integers(0, 2, 16)
    )
    text = Split(
        tokens=draw.integers(1, 257, 40 * LENGTH).astype(np.uint16), starts=np.array([0, 40 * LENGTH]),
        labels=np.zeros(1, dtype=np.int64),
    )  # fmt: skip
    pairs = Split(
        tokens=draw.integers(4, 30, 32 * 9).astype(np.uint16), starts=np.arange(0, 33 * 9, 9),
        labels=np.zeros(16, dtype=np.int64), towers=2,
    )  # fmt: skip
    provenance = Provenance(source="random", fidelity="synthetic")

    def dataset(subset: object) -> Dataset:
        return Dataset(train=subset, validation=subset, test=subset, provenance=provenance)  # type: ignore[arg-type]

    language = LanguageRecipe(length=LENGTH, stride=LENGTH // 2, **shape)
    windows = Windows.over(text, LENGTH, LENGTH // 2)
    # with positions: scores of equal tokens would tie, and rounding alone choose among them where few keys are taken
    tokens = TokenRecipe(length=LENGTH, longest=LENGTH, positions="sinusoidal", **shape)

    def repeated(random: np.random.Generator, examples: int) -> TokenBatch:
        # the token before, at two places
        ids, asked = random.integers(1, 9, (examples, LENGTH)), np.tile([LENGTH // 2, LENGTH - 1], (examples, 1))
        return TokenBatch.of(ids, asked, np.take_along_axis(ids, asked - 1, axis=1))

    examples = TokenExamples.joined([repeated(draw, 16)])
    found = {
        "classification": (
            Classification(vocabulary=9, classes=2), Recipe(length=LENGTH, **shape), dataset(split.all()),
        ),
        "language_modeling": (Language(vocabulary=257), language, dataset(windows)),
        "token_prediction": (
            TokenPrediction(vocabulary=9), tokens,
            Dataset(
                train=TokenStream.of(repeated), validation=examples, test=examples, provenance=provenance,
            ),
        ),
    }  # fmt: skip
    if find_spec("attnbench.tasks.translation"):
        from attnbench.tasks.translation.problem import SentencePairs, Translation, TranslationRecipe

        subset = SentencePairs(split=pairs, indices=np.arange(16))
        recipe = TranslationRecipe(length=LENGTH, **shape)
        found["translation"] = (Translation(vocabulary=30), recipe, dataset(subset))
    return found


PROBLEMS = datasets()


def files_of_lane(lane: str) -> list[Path]:
    """The code that a lane's numbers come from, beside objectives, tasks and variants."""
    lanes, own = BENCH / "run" / "lanes", {
        "train": ["models", "train", "measure/attention"],
        "time": ["models", "measure", "run/workloads"],
        "baseline": [],
    }  # fmt: skip
    # trials of learning rates are trainings
    lane = {"tune": "train"}.get(lane, lane)
    others = {"time": ["timing_record.py", "max_length.py"]}.get(lane, [])
    found = [path for folder in own[lane] for path in (BENCH / folder).glob("*.py")]
    return [*found, lanes / f"{lane}.py", *(lanes / name for name in others)]


def tokens_now(kind: str, name: str) -> tuple[int, str]:
    """Declared version and token hash of a lane, an objective or a task of ours."""
    if kind == "lane":
        return LANE_VERSIONS[name], token_hash(files_of_lane(name))
    if kind == "objective":
        problem, recipe, _ = PROBLEMS[name]
        own = Path(inspect.getfile(type(objective_for(problem, recipe))))
        return problem.objective_version, token_hash([own, BENCH / "train" / "objectives" / "objective.py"])
    path = TASKS.source(name)
    assert path is not None
    return TASKS.load(name).version, token_hash(closure(path, PACKAGE / "tasks") - {PACKAGE / "tasks" / "contract.py"})


OWN_TASKS = [
    entry.name
    for entry in TASKS.entries()
    if entry.origin.startswith("attnbench ") and TASKS.source(entry.name) is not None
]
NAMED = [
    (kind, name)
    for kind, names in (("lane", LANE_VERSIONS), ("objective", PROBLEMS), ("task", OWN_TASKS))
    for name in names
]


@pytest.mark.parametrize(("kind", "name"), NAMED)
def test_changed_code_has_a_raised_version_or_a_reason_why_its_numbers_are_the_same(kind: str, name: str) -> None:
    history = VERSIONS[kind][name]["history"]
    for before, after in pairwise(history):
        assert after["version"] > before["version"] or after.get("same_numbers_because"), after
    version, tokens = tokens_now(kind, name)
    last = history[-1]
    assert (last["version"], last["tokens"]) == (version, tokens), (
        f"the code of {kind} {name} has changed: raise its version, or add to tests/golden/versions.toml "
        f'{{ version = {version}, tokens = "{tokens}", same_numbers_because = "…" }}'
    )


def test_nothing_is_fingerprinted_that_is_not_there() -> None:
    assert {(kind, name) for kind in ("lane", "objective", "task") for name in VERSIONS[kind]} == set(NAMED)


# ---------------------------------------------------------------- first batches

OWN = {"parallel": "parallel[path=mine,source=en,target=de]", "text": "text[file=own.txt]"}
TASKS_BY_NAME = {name: Spec.parse(OWN.get(name, name)) for kind, name in NAMED if kind == "task"}
SUBWORDS = {"wikitext2": Spec.parse("wikitext2[subwords=512]"), "wikitext103": Spec.parse("wikitext103[subwords=512]")}
"""Vocabularies that the small originals have room for."""

PRESETS = {
    "classification": "smoke", "language_modeling": "smoke", "translation": "smoke[vocabulary=120]",
    "token_prediction": "smoke",
}  # fmt: skip


def first_batch(spec: Spec, place: DataPlace) -> str:
    """Hash of the first training batch of seed 0 and of the first test examples."""
    task = TASKS.build(spec)
    recipe = task.recipe(Spec.parse(PRESETS[task.problem().objective]))
    dataset = task.load(place, recipe, 0, "validation")
    objective = objective_for(task.problem(), recipe)
    train = objective.feed(dataset.train, str(spec), 0)(0, CPU)
    test = objective.batch(dataset.test, np.arange(min(2, len(dataset.test))), CPU)
    return content_hash([[part.tolist() for part in batch] for batch in (train, test)], 12)


@pytest.mark.parametrize(
    "name",
    # images of 128 × 128 are drawn in seconds each, by the code of lra-pathfinder
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "lra-pathx")) for name in TASKS_BY_NAME],
)
def test_the_first_batch_of_a_task_is_that_of_its_version(name: str, originals: DataPlace) -> None:
    if TASKS.build(TASKS_BY_NAME[name]).problem().objective == "translation" or name in SUBWORDS:
        pytest.importorskip("sentencepiece", reason="the extra translation is not installed")
    entry = VERSIONS["task"][name]
    assert first_batch(SUBWORDS.get(name, TASKS_BY_NAME[name]), originals) == entry["first_batch"], (
        f"raise the version of {name}"
    )


# ---------------------------------------------------------------- losses

VARIANT_NAMES = [entry.name for entry in VARIANTS.entries() if entry.origin.startswith("attnbench ")]


def losses(objective_name: str, variant: str) -> list[float] | str:
    """Training and validation losses of three steps in float64, or the reason why the variant cannot do the problem.

    The model is in float64; its loss is summed in float32, as in every run. Processors and numbers of threads then
    differ by rounding of 1e-7, which three steps do not blow up.
    """
    problem, recipe, dataset = PROBLEMS[objective_name]
    refusals: list[str] = []

    def build(shape: AttentionShape) -> Variant:
        made: Variant = VARIANTS.build(Spec(variant), replace(shape, dtype="float64"))
        refusals.extend(filter(None, [made.supports(made.shape)]))
        return made

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        objective = objective_for(problem, recipe)
        model = objective.model(build, 0).double()
        if refusals:
            return refusals[0]
        curve = Trainer(objective, model, dataset, task=objective_name, seed=0, device=CPU).run().curve
    finally:
        torch.set_default_dtype(before)
    return [value for point in curve for value in (point.train_loss, point.validation_loss)]


FEW = {"softmax", "entmax15", "relative", "linear", "delta", "additive-lm", "nystrom", "reformer", "local"}
"""One of each family: fast tests run these with every objective, and every other variant with one."""


def cases() -> list[Any]:
    every = [(objective, variant) for objective in PROBLEMS for variant in VARIANT_NAMES]
    refuses_causal = {name for name, at in VERSIONS["losses"]["language_modeling"].items() if isinstance(at, str)}
    of_each = {(("classification" if name in refuses_causal else "language_modeling"), name) for name in VARIANT_NAMES}
    quick = of_each | {case for case in every if case[1] in FEW}
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.slow) for case in every]


@pytest.mark.parametrize(("objective", "variant"), cases())
def test_a_few_steps_have_the_losses_of_their_version(objective: str, variant: str) -> None:
    expected = VERSIONS["losses"][objective][variant]
    found = losses(objective, variant)
    assert found == (expected if isinstance(expected, str) else pytest.approx(expected, rel=1e-5)), (
        f"the losses of {variant} have changed: raise `objective_version` of the problem ({objective}) or "
        "LANE_VERSIONS['train'] in bench/core/cell.py, unless only the variant itself was changed, whose source is "
        "part of every digest"
    )


def test_the_losses_tell_variants_apart() -> None:
    found = [tuple(values) for values in VERSIONS["losses"]["classification"].values() if not isinstance(values, str)]
    assert len(found) > 25 and len(set(found)) >= len(found) - 1 and REFERENCE in VERSIONS["losses"]["classification"]
