"""Every numeric parameter of built-in variants, tasks and presets, with values that nobody means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch
from tally import Extent, Tally

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.registry import TASKS, VARIANTS, Registry, parameters
from attnbench.bench.core.spec import Spec, Value
from attnbench.variants.contract import AttentionShape, Mask

WHOLE: tuple[Value, ...] = (0, -1, -(10**30), 10**12, 10**30)
REAL: tuple[Value, ...] = (0.0, -1.0, -1e300, 1e300, float("nan"), float("inf"))
LENGTH = 32


def cases(registry: Registry) -> Iterator[Spec]:
    for entry in registry.entries():
        if not entry.origin.startswith("attnbench "):
            continue
        for name, parameter in parameters(registry.load(entry.name)).items():
            words = parameter.kind_text().split()
            values = WHOLE if "int" in words else REAL if "float" in words else ()
            yield from (Spec.of(entry.name, **{name: value}) for value in values)


def problem_of_variant(spec: Spec) -> str | None:
    try:
        resolved = VARIANTS.resolve(spec)
        shape = AttentionShape(heads=2, head_dim=8, max_length=LENGTH)
        variant = VARIANTS.build(resolved, shape)
        causal = variant.supports(shape) is not None
        if causal:
            variant = VARIANTS.build(resolved, AttentionShape(heads=2, head_dim=8, max_length=LENGTH, causal=True))
    except SelectionError as error:
        return problem_of_message(error)
    hidden = {"hidden": torch.randn(1, LENGTH, 16)} if variant.takes_hidden else {}
    output = variant(*torch.randn(3, 1, 2, LENGTH, 8), Mask(causal=causal), **hidden)
    return None if output.isfinite().all() else "its output is not finite"


def problem_of_task(spec: Spec) -> str | None:
    try:
        task = TASKS.build(spec)
        for preset in task.presets():
            task.recipe(Spec(preset))
    except SelectionError as error:
        return problem_of_message(error)
    return None


def recipe_cases() -> Iterator[tuple[str, Spec]]:
    """Each number of the preset `quick`, of a task of each kind."""
    for task in ("lra-listops", "tinyshakespeare", "recall", "wmt14-en-de"):
        recipe = TASKS.build(Spec(task)).recipe(Spec("quick"))
        for field in fields(recipe):
            values = {int: WHOLE, float: REAL}.get(type(getattr(recipe, field.name)), ())
            yield from ((task, Spec.of("quick", **{field.name: value})) for value in values)


def problem_of_recipe(task: str, preset: Spec) -> str | None:
    try:
        TASKS.build(Spec(task)).recipe(preset)
    except SelectionError as error:
        return problem_of_message(error)
    return None


def problem_of_message(error: SelectionError) -> str | None:
    return None if "\n" not in str(error) and len(str(error)) < 300 else f"its message is long: {error}"


def test_parameters(extent: Extent, tally: Tally) -> None:
    """values of parameters: refused in one line, or taken; of a variant, with a finite output."""
    for registry, problem_of in ((VARIANTS, problem_of_variant), (TASKS, problem_of_task)):
        for spec in extent.of(list(cases(registry)), sample=30):
            tally.check(str(spec), without_traceback(problem_of, spec))
    for task, preset in extent.of(list(recipe_cases()), sample=30):
        tally.check(f"{task} {preset}", without_traceback(problem_of_recipe, task, preset))
    tally.verdict()


def without_traceback(problem_of: Callable[..., str | None], *case: Any) -> str | None:
    try:
        return problem_of(*case)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("topk[k=0]", "variant 'topk': expected k to be int from 1 to 1,048,576, got 0"),
        ("sinkhorn[temperature=0]", "expected temperature to be float from 0.001 to 1000, got 0.0"),
        ("local[flange=-1]", "expected flange to be int from 0 to 1,048,576 | none, got -1"),
    ],
)
def test_the_range_is_named(text: str, words: str) -> None:
    with pytest.raises(SelectionError) as refused:
        VARIANTS.resolve(Spec.parse(text))
    assert words in str(refused.value)
