"""What a plan takes over from Records: a failure at a shorter length, and the trials of a rate."""

from __future__ import annotations

import pytest

from attnbench.bench.core.cell import Cell
from attnbench.bench.core.record import Machine, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.facts import recipe_facts
from attnbench.bench.plan.skip import failed_shorter
from attnbench.bench.store.store import Site

MACHINE = Machine(id="here", system="Linux", processor="p", cores=2, threads=2, memory_bytes=1)
SITE = Site(machine_id="here", threads=2)


def sweep(length: int, variant: str = "rela") -> Cell:
    return Cell(variant=Spec(variant), task=Spec("sweep", (("length", length),)), preset=Spec("quick"), lane="time")


def length_of(task: Spec) -> int:
    return int(task.get("length"))


@pytest.mark.parametrize(
    ("digest", "variant", "is_skipped"), [("now", "rela", True), ("before", "rela", False), ("now", "linear", False)]
)
def test_only_a_failure_of_the_same_code_skips_a_longer_cell(digest: str, variant: str, is_skipped: bool) -> None:
    failed = Record(
        cell=sweep(512, variant), outcome=Outcome.OUT_OF_MEMORY, machine=MACHINE, digest=digest, reason="too long"
    )
    found = failed_shorter(sweep(1024), "now", SITE, [failed], length_of)
    assert (found is failed) == is_skipped
    assert failed_shorter(sweep(512), "now", SITE, [failed], length_of) is None


def test_a_choice_waits_for_every_tuning_seed_of_every_rate() -> None:
    preset = Spec.parse("smoke[learning_rates=2e-3|8e-3,tuning_seeds=2]")
    cell = Cell(variant=Spec("rela"), task=Spec("lra-text"), preset=preset, lane="train")
    rates = recipe_facts(cell.task, preset).rates
    assert rates is not None
    trials = [one for cells in rates.trials(cell).values() for one in cells]
    failed = {
        (one.key, "now"): Record(cell=one, outcome=Outcome.TIMEOUT, machine=MACHINE, digest="now", reason="slow")
        for one in trials
    }
    assert len(trials) == 4 and rates.search(cell, failed, lambda one: "now")[1] is not None
    for one in trials:
        rest = {key: record for key, record in failed.items() if key[0] != one.key}
        assert rates.search(cell, rest, lambda each: "now")[1] is None
