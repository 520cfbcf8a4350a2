"""The board of a suite: accuracy task by task first, then the average that these cells give, and who covers all."""

from __future__ import annotations

from collections.abc import Mapping

from . import wording
from .board import Board, Column, Entry, Footnote, Row, in_order
from .cell import REFERENCE
from .errors import SelectionError
from .footnotes import PERCENT
from .frame import Frame
from .intervals import Estimate
from .lengthboard import mean_of
from .question import Question
from .ranks import standings
from .trials import Predictions, Trials, trials_of_all


def board_for_suite(
    frame: Frame,
    name: str,
    questions: list[Question],
    *,
    predictions: Predictions = lambda name: None,
    wanted: tuple[str, ...] = (),
) -> Board:
    """Ranks by mean points against the reference over all tasks; a variant that lacks one has no average and no rank.

    `questions`: one a task, equal in all but task and fidelity. `wanted`: the tasks of the suite, also those without
    Records. Raises SelectionError for questions that must not be mixed.
    """
    if not questions:
        raise SelectionError(f"no Records of any task of the suite {name}")
    by_task = {question.task: question for question in questions}
    apart = [
        axis
        for axis in ("preset", "selection", "protocol")
        if len({getattr(question, axis) for question in questions}) > 1
    ]
    if len(by_task) < len(questions) or apart:
        axes = ", ".join(apart) or "fidelity or machine"
        raise SelectionError(f"the suite {name} needs one question a task, but these differ in {axes}; choose one")
    found = {task: trials_of_all(frame, question, predictions) for task, question in by_task.items()}
    tasks = sorted({*by_task, *wanted})
    variants = sorted({variant for trials in found.values() for variant in trials})
    lacks = {variant: _lack(variant, tasks, found) for variant in variants}
    able = [variant for variant in variants if not lacks[variant]]

    def gap(one: str, other: str) -> Estimate:
        return mean_of([found[task][one].gap(found[task][other]) for task in tasks])

    columns = (
        *(
            Column(name=task, title=task, unit="%", better="higher", importance=1, description="test accuracy")
            for task in tasks
        ),
        Column(name="average", title="average", unit="%", better="higher", importance=0,
               description="mean of the accuracies before it"),
        Column(name="gap", title=f"vs {REFERENCE}", unit="points", better="higher", importance=0,
               description="mean over tasks of the differences to the reference, with its 95 % interval"),
        Column(name="coverage", title="tasks", importance=2, description="tasks that count for this variant"),
    )  # fmt: skip
    rows = {
        variant: Row(
            name=variant,
            entries=_entries(variant, tasks, found, not lacks[variant]),
            reason=lacks[variant] or "nothing to be ranked against",
        )
        for variant in variants
    }
    order = standings(able, gap) if len(able) > 1 else []
    return Board(
        name=f"suite {name}/{questions[0].preset}/{questions[0].selection}",
        title=f"suite {name}, preset {questions[0].preset}",
        question=f"Which attention is right most often over the {len(tasks)} tasks of {name}?",
        columns=columns,
        ranked=in_order(order, rows),
        unranked=tuple(row for name, row in rows.items() if name not in {s.name for s in order}),
        footnotes=tuple(_footnotes(questions)),
    )  # fmt: skip


def _lack(variant: str, tasks: list[str], found: Mapping[str, Mapping[str, Trials]]) -> str:
    problems = []
    for task in tasks:
        trials = found.get(task, {}).get(variant)
        if trials is None:
            problems.append(f"{task}: not run")
        elif trials.lack:
            problems.append(f"{task}: {trials.lack}")
    return "; ".join(problems)


def _entries(
    variant: str, tasks: list[str], found: Mapping[str, Mapping[str, Trials]], able: bool
) -> tuple[Entry, ...]:  # fmt: skip
    entries, values = [], []
    for task in tasks:
        trials = found.get(task, {}).get(variant)
        if trials is None or not trials.seeds:
            entries.append(Entry())
            continue
        share = trials.accuracy()
        values.append(share.value)
        entries.append(
            Entry(text=wording.points(share), brief=f"{100 * share.value:.1f}", value=100 * share.value,
                  low=100 * share.low, high=100 * share.high)
        )  # fmt: skip
    covered = sum(variant in found.get(task, {}) and not found[task][variant].lack for task in tasks)
    average, gap = Entry(), Entry()
    if able:
        mean = sum(values) / len(values)
        average = Entry(text=f"{100 * mean:.1f}", value=100 * mean)
        if variant == REFERENCE:
            gap = Entry(text="reference", value=0.0)
        else:
            ends = mean_of([found[task][variant].gap(found[task][REFERENCE]) for task in tasks]).interval()
            gap = Entry(text=wording.signed_points(ends), value=100 * ends.value, low=100 * ends.low,
                        high=100 * ends.high)  # fmt: skip
    return (*entries, average, gap, Entry(text=f"{covered} of {len(tasks)}", value=covered))


def _footnotes(questions: list[Question]) -> list[Footnote]:
    fidelities = ", ".join(f"{question.task} {question.fidelity}" for question in questions)
    notes = [
        Footnote(topic="data", text=fidelities, warning=any(q.fidelity == "surrogate" for q in questions)),
        Footnote(
            topic="average",
            text=f"recomputed from the cells beside it; brackets: {PERCENT} intervals over seeds and test examples, on "
            "these tasks and not on others like them",
        ),
        Footnote(topic="rank", text="only with every task; equal places are ties, in alphabetical order"),
    ]
    if questions[0].selection == "test":
        notes.insert(1, Footnote(topic="selection", text="checkpoints were chosen on the test splits", warning=True))
    return notes
