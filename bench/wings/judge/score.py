"""The judgement of one variant: its accuracy at each setting of a few tasks, and its cost.

A pure function of Records. One seed at one learning rate describes a variant; it ranks none.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from ...core.decode import Text, Texts
from ...core.metrics import ACCURACY
from ...core.record import Outcome, Record
from ...score.settings import LENGTH, Values, longest_at, series_of, setting_values
from ...stats.format import counted
from ...store.rows import ResultRow
from ...store.table import ResultTable, table_of

CAUSAL_TASKS = ("recall", "selective-copy", "max")
"""The tasks that separate mechanisms most within minutes: how much, how far, how sharp (tasks/synthetic/README.md)."""

POOLED_TASKS = ("max-pooled",)
"""The tasks of a variant without a causal form."""

SWEPT_LENGTHS = (256, 1_024, 4_096)

MOVED_BY_SEED = {"recall": 0.06, "selective-copy": 0.02, "max": 0.18}
"""The most by which an accuracy at the training length exceeds that of another seed of the same variant, in 19 of 20
pairs: of the committed trainings, twelve seeds each of eleven variants, where it is 0.04 in recall; after the 300 steps
of a short judgement 31 of 32 pairs of six variants were within 0.06. Other tasks take the largest."""

HELD = 0.9
"""The accuracy from which a task counts as done at a setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The findings of an audit of a module as it is. `question`: why there are none. `failures`: with their details.

    `names`: of what fails, as the gate has them. `flags`: findings that another flag of the command would decide.
    `asks`: what must be decided first.
    """

    question: str = ""
    failures: Texts = ()
    names: Texts = ()
    flags: Texts = ()
    asks: Text = ""
    verdict: Text = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The findings of the gate. `problem`: why the variant does not build or run here; empty where it was examined.

    `failures`: each failed property with its detail. `holding`: the names of those that hold. `causal`: whether it has
    a causal form; `only_causal`: whether it has no other; `sees_order`: whether the order of the keys matters to it, as
    under rotary positions, which the reference then has too; `projects`: whether it is a layer with projections of its
    own. `no_padding`: why it takes no sequences of several lengths.
    """

    holding: Texts = ()
    failures: Texts = ()
    not_applicable: int = 0
    seconds: float = 0.0
    problem: str = ""
    unsupported: bool = False
    causal: bool = True
    only_causal: bool = False
    sees_order: bool = False
    projects: bool = False
    no_padding: Text = ""

    @property
    def looks_ahead(self) -> bool:
        """It claims to be causal, and later tokens move it so much that it has no causal form."""
        return not self.causal and any(each.startswith("causal:") for each in self.failures)


@dataclass(frozen=True, slots=True)
class JudgedTask:
    """One training of one variant on one task, by the seed and the rate that a judgement uses.

    `accuracies`: by setting, shares from 0 to 1; one without axes where the task tests a single one. `trained`: the
    longest length of training. `model`: its sizes in words. `examples`: of the test in all. `ranked`: whether its
    preset is one for results, not for trials. `outcome`, `reason`: why there are no accuracies, or what the gate finds
    wrong in what was measured.
    """

    task: str
    variant: str
    accuracies: Values
    outcome: str = Outcome.OK
    reason: str = ""
    trained: int = 0
    model: str = ""
    steps: int = 0
    learning_rate: float = 0.0
    seed: int = 0
    examples: int = 0
    ranked: bool = True
    seconds: float = 0.0

    @property
    def at_most_pairs(self) -> tuple[int, float] | None:
        """The most pairs that were tested, with the accuracy there; None for a task without pairs."""
        found = {int(dict(place)["pairs"]): value for place, value in self.accuracies.items() if "pairs" in dict(place)}
        return (max(found), found[max(found)]) if found else None

    @property
    def at_training_length(self) -> float | None:
        """The accuracy at the longest tested length within training, at no more difficulty than other lengths have.

        The mean where a task is tested at one length; None where no test is that short.
        """
        by_length = self.by_length
        if not by_length:
            return fmean(self.accuracies.values()) if self.accuracies else None
        within = [length for length in by_length if length <= self.trained]
        return by_length[max(within)] if within else None

    @property
    def by_length(self) -> dict[float, float]:
        along = [series for series in series_of(list(self.accuracies)) if series.axis == LENGTH]
        return along[0].along(self.accuracies) if along else {}

    @property
    def holds_to(self) -> float | None:
        """The longest length, in training lengths, to which 90 % are right; None where that is not so in training.

        At least 1: a length just below that of training stands for it where the next one tested is beyond.
        """
        found = longest_at(self.by_length, HELD)
        at = self.at_training_length
        if found is None or at is None or at < HELD or not self.trained:
            return None
        return max(found / self.trained, 1.0)


def judged_task(record: Record) -> JudgedTask:
    """The result of a task, read from the Record of its training."""
    table = table_of([record])
    row = table.rows[0]
    sizes = {name: int(row.setting.get(name) or 0) for name in ("layers", "heads", "width")}
    rate, whole = record.first("learning_rate"), record.first(ACCURACY.name, split="test")
    return JudgedTask(
        task=row.task,
        variant=row.variant,
        accuracies=_accuracies(table, row),
        outcome=row.outcome,
        reason=row.reason,
        trained=int(row.setting.get("length") or 0),
        model=f"{counted(sizes['layers'], 'layer')} of {counted(sizes['heads'], 'head')} and width {sizes['width']}",
        steps=int(row.setting.get("steps") or 0),
        learning_rate=rate.value if rate else float(row.setting.get("learning_rate") or 0),
        seed=row.seed,
        examples=int(whole.where.get("examples") or 0) if whole else 0,
        ranked=bool(row.setting.get("ranked", True)),
        seconds=row.seconds,
    )


def _accuracies(table: ResultTable, row: ResultRow) -> Values:
    """Test accuracy by setting; of a task that tests one setting, under a place without axes."""
    found = setting_values(table, row.at, ACCURACY.name)
    whole = table.number(ACCURACY.name, row.at, split="test")
    return found or ({(): whole.value} if whole is not None else {})
