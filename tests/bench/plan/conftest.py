"""A folder of results, and plans for it on the machine `here` with two threads."""

import pytest

from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.core.spec import Spec, parse_selection
from attnbench.bench.plan.facts import recipe_facts, resolve, task_facts
from attnbench.bench.plan.planner import Planner
from attnbench.bench.store.store import Site, Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def present_digest(cell):
    return f"lane1-now-{cell.variant.name}"


@pytest.fixture
def digest_of():
    return present_digest


@pytest.fixture
def make_plan(store, digest_of):
    def make(variants, tasks, preset, seeds, **changes):
        facts = [task_facts(task) for task in parse_selection(tasks)]
        given = {
            "variants": [resolve(VARIANTS, variant) for variant in parse_selection(variants)],
            "questions": [(task, recipe_facts(task.task, Spec.parse(preset))) for task in facts],
            "seeds": seeds, "selection": "validation", "store": store, "digest_of": digest_of,
            "site": Site(machine_id="here", threads=2),
        }  # fmt: skip
        return Planner(**given | changes).plan()

    return make
