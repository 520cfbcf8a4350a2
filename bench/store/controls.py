"""Positive controls: results that are published or provable, which each variant must reproduce here.

They are data beside the variants, in a file `controls.toml` of their folder, which no hash of a variant's source sees.
The Records of controls lie in a folder of their own in the results folder, so that no board ranks them. Whether one
passed is a pure function of these Records.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from ..core.cell import Cell
from ..core.errors import SelectionError
from ..core.files import PACKAGE, RESULTS, read_regular
from ..core.record import Outcome, Record
from ..core.registry import VARIANTS
from ..core.spec import Spec
from .store import Store

FILE = "controls.toml"
FOLDER = "controls"
"""The folder of the Records of controls, in a results folder."""

_LARGEST_FILE = 1_000_000

_State = Literal["passed", "failed", "never run"]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of a file; its name is the variant."""

    claim: str
    source: str
    task: str
    published: str = "provable"
    preset: str = "control"
    train: str = ""
    where: dict[str, float] = {}
    at_least: float | None = None
    at_most: float | None = None
    equals: str = ""
    within: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One claim on `name`: that `variant`, trained on `task` by `preset`, reaches a test accuracy or equals another.

    `where`: the setting of the test, such as (("pairs", 8),); all of it where empty. `at_least`, `at_most`: of the
    accuracy there. `equals`: the variant whose validation loss it must have too, up to `within` nats.
    """

    name: Spec
    claim: str
    source: str
    published: str
    variant: Spec
    task: Spec
    preset: Spec
    where: tuple[tuple[str, float], ...]
    at_least: float | None
    at_most: float | None
    equals: Spec | None
    within: float

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The trainings that decide it: of the variant, and of what it must equal."""
        found = [self.variant, *([self.equals] if self.equals else [])]
        return tuple(Cell(variant=each, task=self.task, preset=self.preset) for each in found)

    @property
    def asks(self) -> str:
        """The test in words."""
        limit = f"at least {self.at_least:.1%}" if self.at_least is not None else f"at most {self.at_most:.1%}"
        places = ", ".join(f"{name} {value:g}" for name, value in self.where)
        right = f"{limit} right" + (f" at {places}" if places else "")
        return right if self.equals is None else f"the loss of {self.equals} within {self.within:g} nats, and {right}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlResult:
    """The state of a control by its Records.

    `ours`: the share right, or the difference of losses, as `of` says; `reason`: of a training that failed.
    """

    control: Control
    state: _State
    ours: float | None = None
    of: Literal["%", "nats apart"] = "%"
    reason: str = ""

    @property
    def shown(self) -> str:
        """Our result as text, or why there is none."""
        if self.ours is None:
            return self.reason
        return f"{self.ours:.2g} nats apart" if self.of == "nats apart" else f"{100 * self.ours:.1f} %"


@cache
def controls_in(folder: Path) -> tuple[Control, ...]:
    """The controls of a folder of variants; none where it has no file. Raises SelectionError for a file that is wrong.

    >>> [str(each.variant) for each in controls_in(PACKAGE / "variants" / "maps") if str(each.name) == "entmax"]
    ['entmax[alpha=1.001]']
    """
    path = folder / FILE
    try:
        found = msgspec.convert(tomllib.loads(read_regular(path, _LARGEST_FILE).decode()), dict[str, _Entry])
        return tuple(_control(name, entry) for name, entry in found.items())
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, msgspec.ValidationError, SelectionError) as error:
        raise SelectionError(f"{path}: {error}; compare it with the file of {PACKAGE / 'variants' / 'maps'}") from None


def _control(name: str, entry: _Entry) -> Control:
    if (entry.at_least is None) == (entry.at_most is None):
        raise SelectionError(f"[{name}]: expected one of at_least and at_most")
    return Control(
        name=Spec.parse(name),
        claim=entry.claim,
        source=entry.source,
        published=entry.published,
        variant=Spec.parse(entry.train or name),
        task=Spec.parse(entry.task),
        preset=Spec.parse(entry.preset),
        where=tuple(sorted(entry.where.items())),
        at_least=entry.at_least,
        at_most=entry.at_most,
        equals=Spec.parse(entry.equals) if entry.equals else None,
        within=entry.within,
    )


def controls_of(variant: Spec) -> tuple[Control, ...]:
    """The controls of a variant: those of each mechanism in it whose parameters it has, the most particular alone.

    Wrappers have none, so `gate+softmax` is as established as softmax, and `delta//softmax` where both are. Raises
    SelectionError for an unknown name, and a file that is wrong.

    >>> [str(each.name) for each in controls_of(Spec.parse("delta[decay=channel]//softmax"))]
    ['delta[decay=channel]', 'softmax']
    """
    found = []
    for part in variant.variants:
        source = VARIANTS.source(part.name)
        mine = [each for each in controls_in(source.parent) if _covers(each.name, part)] if source else []
        if mine:
            found.append(max(mine, key=lambda each: len(each.name.parameters)))
    return tuple(dict.fromkeys(found))


def _covers(name: Spec, variant: Spec) -> bool:
    return name.name == variant.name and set(name.parameters) <= set(variant.parameters)


def all_controls() -> tuple[Control, ...]:
    """The controls of all registered variants, by family."""
    sources = [VARIANTS.source(entry.name) for entry in VARIANTS.entries()]
    folders = sorted({source.parent for source in sources if source is not None})
    return tuple(control for folder in folders for control in controls_in(folder))


def judged(control: Control, records: Iterable[Record]) -> ControlResult:
    """The state of a control by the last Records of its trainings, in the order of arrival."""
    keys = [cell.key for cell in control.cells]
    last = {record.key: record for record in records if record.key in keys}
    if len(last) < len(keys):
        return ControlResult(control=control, state="never run")
    for record in last.values():
        if record.outcome is not Outcome.OK:
            return ControlResult(control=control, state="failed", reason=f"{record.outcome}: {record.reason}")
    measured = last[keys[0]].first("accuracy", split="test", **dict(control.where))
    ours = float("nan") if measured is None else measured.value
    passed = ours >= control.at_least if control.at_least is not None else ours <= (control.at_most or 0.0)
    # two that have learned nothing are alike, whatever they are
    if control.equals is not None and passed:
        losses = [record.first("loss", split="validation") for record in last.values()]
        mine, other = (float("nan") if each is None else each.value for each in losses)
        ours, passed = abs(mine - other), abs(mine - other) <= control.within
        return ControlResult(control=control, state="passed" if passed else "failed", ours=ours, of="nats apart")
    return ControlResult(control=control, state="passed" if passed else "failed", ours=ours)


def control_records(results: Path = RESULTS) -> list[Record]:
    """The Records of controls that come with attnbench, then those of a results folder, which count before them."""
    folders = dict.fromkeys(each.resolve() for each in (PACKAGE / "results" / FOLDER, results / FOLDER))
    return [record for folder in folders if folder.is_dir() for record in Store(folder).records()]


def unestablished(variants: Iterable[str], records: Sequence[Record]) -> dict[str, str]:
    """Why each of these variants is not established, by name; without those whose controls passed, or that have none.

    Where no control was ever run nothing is known, and nobody is named.
    """
    found = {}
    for name in variants if records else ():
        try:
            results = [judged(control, records) for control in controls_of(Spec.parse(name))]
        except SelectionError:
            # it is not installed here
            continue
        for result in results:
            if result.state == "never run":
                found[name] = "its positive control was never run"
            elif result.state == "failed":
                found[name] = f"its positive control failed: {result.shown}, asked {result.control.asks}"
    return found
