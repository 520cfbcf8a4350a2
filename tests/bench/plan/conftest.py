"""A folder of results, and plans for it on the machine `here` with two threads."""

import pytest

from attnbench.bench.core.record import Site
from attnbench.bench.core.spec import Spec, parse_selection
from attnbench.bench.plan.planner import plan
from attnbench.bench.store.store import Store


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
        given = {
            "variants": parse_selection(variants), "tasks": parse_selection(tasks), "preset": Spec.parse(preset),
            "seeds": seeds, "selection": "validation", "store": store, "digest_of": digest_of,
            "site": Site(machine_id="here", threads=2),
        }  # fmt: skip
        return plan(**given | changes)

    return make
