"""Plans: which cells, in which order, which are done, and what the rest will cost."""

from dataclasses import replace

import pytest

from attnbench.bench.core.cell import PROTOCOL, Cell
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.record import Machine, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.store.store import Site

MACHINE = Machine(id="here", system="Linux", processor="p", cores=2, threads=2, memory_bytes=1)
BASELINES = ("majority", "bag-of-bytes")


@pytest.fixture
def make(make_plan):
    return lambda variants="softmax,dot", tasks="lra-text", preset="smoke", seeds=1, **changes: make_plan(
        variants, tasks, preset, seeds, **changes
    )


@pytest.fixture
def done(store, digest_of):
    """Records that a cell was run, by the present code unless told otherwise."""

    def keep(cell, outcome=Outcome.OK, seconds=1.0, digest=None, machine="here", block="", threads=2, **more):
        record = Record(
            cell=cell,
            outcome=outcome,
            machine=replace(MACHINE, id=machine, threads=threads),
            digest=digest or digest_of(cell),
            block=block or cell.key,
            seconds=seconds,
            **more,
        )
        store.append(record)

    return keep


def short(cells):
    return [f"{cell.lane} {cell.variant} {cell.seed}" for cell in cells]


def test_baselines_come_first_then_training_seed_by_seed_then_one_job_of_timings(make):
    made = make(seeds=2)
    assert [(job.lane, short(job.cells)) for job in made.jobs] == [
        *[("baseline", [f"baseline {name} 0"]) for name in BASELINES],
        ("train", ["train softmax 0"]),
        ("train", ["train dot 0"]),
        ("train", ["train softmax 1"]),
        ("train", ["train dot 1"]),
        ("time", ["time softmax 0", "time dot 0"]),
    ]
    assert short(step.cell for step in made.steps) == [cell for job in made.jobs for cell in short(job.cells)]
    assert {step.state for step in made.steps} == {"todo"}
    assert len({job.id for job in made.jobs}) == len(made.jobs)


def test_every_task_has_its_own_timings_and_a_seed_is_finished_on_all_tasks_before_the_next(make):
    made = make("softmax", "lra-text,lra-text[length=64]", seeds=2)
    rows = [(b.lane, [(str(c.task), c.seed) for c in b.cells]) for b in made.jobs if b.lane != "baseline"]
    assert rows == [
        ("train", [("lra-text", 0)]),
        ("train", [("lra-text[length=64]", 0)]),
        ("train", [("lra-text", 1)]),
        ("train", [("lra-text[length=64]", 1)]),
        ("time", [("lra-text", 0)]),
        ("time", [("lra-text[length=64]", 0)]),
    ]


def test_the_reference_is_added_with_a_notice(make):
    made = make("dot")
    assert short(made.jobs[-1].cells) == ["time softmax 0", "time dot 0"]
    assert len(made.notices) == 1 and "softmax" in made.notices[0]
    assert make("softmax,dot").notices == ()


def test_an_other_form_of_the_reference_does_not_replace_it(make):
    assert short(make("softmax[impl=eager]").jobs[-1].cells) == ["time softmax 0", "time softmax[impl=eager] 0"]


def test_cells_are_canonical_whatever_was_typed(make):
    plain = make("softmax,dot", preset="smoke")
    typed = make("softmax[impl=sdpa],dot,dot", preset="smoke[steps=6,learning_rate=0.001]")
    assert [step.cell for step in typed.steps] == [step.cell for step in plain.steps]
    changed = make(preset="smoke[steps=7,learning_rate=1]")
    assert {str(step.cell.preset) for step in changed.steps} == {"smoke[learning_rate=1.0,steps=7]"}
    assert {step.cell.protocol for step in plain.steps} == {PROTOCOL}


def test_cells_of_the_selection_on_the_test_split_are_others(make):
    keys = {step.cell.key for step in make().steps}
    assert keys.isdisjoint(step.cell.key for step in make(selection="test").steps)


def test_a_finished_selection_leaves_nothing_to_do(make, done):
    for step in make(seeds=2).steps:
        done(step.cell)
    again = make(seeds=2)
    assert again.jobs == () and again.left == ()
    assert {step.state for step in again.steps} == {"done"}
    assert all(step.record.cell == step.cell for step in again.steps)


def test_more_seeds_add_only_the_new_ones(make, done):
    for step in make(seeds=1).steps:
        done(step.cell)
    assert [short(job.cells) for job in make(seeds=2).jobs] == [["train softmax 1"], ["train dot 1"]]


def test_a_variant_that_is_added_is_timed_with_the_reference_again_and_without_the_others(make, done):
    first = make()
    for step in first.steps:
        done(step.cell)
    made = make("softmax,dot,location")
    assert [short(job.cells) for job in made.jobs] == [
        ["train location 0"],
        ["time softmax 0", "time location 0"],
    ]
    assert made.jobs[-1].id != first.jobs[-1].id
    states = {str(step.cell.variant): step.state for step in made.steps if step.cell.lane == "time"}
    assert states == {"softmax": "again", "dot": "done", "location": "todo"}


@pytest.mark.parametrize("change", [{"digest": "old-code-x"}, {"machine": "elsewhere"}])
def test_other_code_or_another_machine_counts_for_nothing(make, done, change):
    for step in make().steps:
        done(step.cell, **change)
    assert {step.state for step in make().steps} == {"todo"}


def test_failures_are_final_unless_they_are_to_be_retried(make, done):
    for step in make().steps:
        done(step.cell, Outcome.CRASHED if str(step.cell.variant) == "dot" else Outcome.OK)
    assert make().jobs == ()
    assert [short(job.cells) for job in make(retry=True).jobs] == [
        ["train dot 0"],
        ["time softmax 0", "time dot 0"],
    ]


def test_code_that_was_restored_is_measured_once_more_so_that_it_counts_again(make, done):
    for step in make(seeds=3).steps:
        done(step.cell)
    changed = [step.cell for step in make(seeds=3).steps if str(step.cell.variant) == "dot"]
    for cell in changed:
        done(cell, Outcome.CRASHED, digest="lane1-now-broken")
    made = make(seeds=3)
    assert [short(job.cells) for job in made.jobs] == [["train dot 0"], ["time softmax 0", "time dot 0"]]
    assert "dot: other code of it was measured here last" in " ".join(made.notices)
    for step in made.left:
        done(step.cell)
    again = make(seeds=3)
    assert again.jobs == () and not any("dot" in notice for notice in again.notices)


def test_the_reference_is_not_measured_again_for_code_that_was_restored(make, done):
    # the reference is the package's own, whose versions count
    for step in make(seeds=3).steps:
        done(step.cell)
    for step in make(seeds=3).steps:
        if str(step.cell.variant) == "softmax":
            done(step.cell, Outcome.CRASHED, digest="lane1-now-broken")
    assert make(seeds=3).jobs == ()


def test_records_of_other_data_or_of_another_machine_ask_for_nothing(make, done):
    for step in make().steps:
        done(step.cell)
    for step in make().steps:
        done(step.cell, digest="lane1-other-code")
        done(step.cell, digest="lane1-now-code", machine="elsewhere")
    assert make().jobs == ()


def test_the_same_work_has_the_same_job_id_and_other_code_another(make):
    assert [job.id for job in make().jobs] == [job.id for job in make().jobs]
    other = make(digest_of=lambda cell: "new-code-x")
    assert {job.id for job in make().jobs}.isdisjoint(job.id for job in other.jobs)


def cost(made, lane, variant, seed=0):
    (found,) = [
        s.seconds for s in made.steps if (s.cell.lane, str(s.cell.variant), s.cell.seed) == (lane, variant, seed)
    ]
    return found


def test_costs_are_unknown_on_a_machine_that_has_run_nothing(make, done):
    for step in make().steps:
        done(step.cell, machine="elsewhere")
    made = make()
    # trivial baselines take seconds at most
    assert made.unknown == len(made.left) - len(BASELINES) == len(made.steps) - len(BASELINES) and made.seconds == 0


def test_costs_come_from_the_same_variant_else_from_the_median_of_the_others(make, done):
    trained = {str(s.cell.variant): s.cell for s in make("softmax,dot,general").steps if s.cell.lane == "train"}
    for name, seconds in (("softmax", 10.0), ("dot", 20.0), ("general", 90.0)):
        done(trained[name], seconds=seconds)
    made = make("softmax,dot,general,location", seeds=2)
    assert [cost(made, "train", name, 1) for name in ("softmax", "dot", "general", "location")] == [10, 20, 90, 20]
    assert cost(made, "time", "dot") is None
    assert made.seconds == 10 + 20 + 90 + 20 + 20
    assert made.unknown == 4


def test_jobs_side_by_side_share_the_time_and_a_timing_on_a_processor_does_not(make, done):
    for step in make().steps:
        done(step.cell, seconds=60.0, block=step.cell.lane)
    made = make(digest_of=lambda cell: "new-code-x")
    of_lane = {lane: [s for s in made.steps if s.cell.lane == lane] for lane in ("baseline", "train", "time")}
    trained, timed = (sum(s.seconds for s in of_lane[lane]) for lane in ("train", "time"))
    others = trained + sum(s.seconds for s in of_lane["baseline"])
    assert trained > 0 and timed > 0
    assert made.seconds == made.seconds_of(made.steps) == others + timed
    assert replace(made, at_once=2).seconds == others / 2 + timed
    assert replace(made, at_once=2, timings_alone=False).seconds == (others + timed) / 2


def test_failures_count_for_the_variant_that_failed_but_not_for_others(make, done):
    trained = {str(s.cell.variant): s.cell for s in make().steps if s.cell.lane == "train"}
    done(trained["dot"], Outcome.UNSUPPORTED, seconds=0.1)
    done(trained["softmax"], seconds=30.0)
    made = make("softmax,dot,location", seeds=2)
    assert [cost(made, "train", name, 1) for name in ("dot", "location")] == [0.1, 30.0]


def test_the_time_of_a_job_is_shared_by_its_cells(make, done):
    for step in make().steps:
        if step.cell.lane == "time":
            done(step.cell, seconds=60.0, block="one")
    made = make("softmax,dot,location")
    assert [cost(made, "time", name) for name in ("softmax", "location")] == [30.0, 30.0]


def test_costs_of_another_preset_or_task_do_not_count(make, done):
    done(Cell(variant=Spec("dot"), task=Spec("lra-text"), preset=Spec("quick")), seconds=500.0)
    done(Cell(variant=Spec("dot"), task=Spec.of("lra-text", length=64), preset=Spec("smoke")), seconds=500.0)
    assert cost(make(), "train", "dot") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": "sofmax"}, r"no variant named 'sofmax' \(did you mean 'softmax'"),
        ({"variants": "softmax[imp=eager]"}, r"no parameter 'imp' \(did you mean 'impl'"),
        ({"tasks": "lra-txt"}, r"no task named 'lra-txt' \(did you mean 'lra-text'"),
        ({"tasks": "lra-text[length=long]"}, "expected length to be int"),
        ({"preset": "smok"}, "no preset 'smok'"),
        ({"preset": "smoke[step=3]"}, "no parameter 'step'"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(make, changes, message):
    with pytest.raises(SelectionError, match=message):
        make(**changes)


@pytest.mark.parametrize(("lane", "counts"), [("train", True), ("baseline", True), ("time", False)])
def test_training_counts_at_any_number_of_threads_and_a_timing_at_its_own(make, done, lane, counts):
    for step in make().steps:
        done(step.cell, threads=1)
    assert {step.state for step in make().steps if step.cell.lane == lane} == ({"done"} if counts else {"todo"})


def test_a_timing_job_at_other_threads_has_another_name_and_a_training_job_the_same(make):
    one, two = (make(site=Site(machine_id="here", threads=threads)).jobs for threads in (1, 2))
    same = {job.lane for job in one} & {job.lane for job in one if job.id in {other.id for other in two}}
    assert same == {"baseline", "train"}


@pytest.mark.parametrize(
    ("lane", "outcome", "more", "counts"),
    [
        ("train", Outcome.OK, {"executor": "slurm"}, True),
        ("train", Outcome.OUT_OF_MEMORY, {"executor": "slurm"}, True),
        ("train", Outcome.OK, {"executor": "local"}, True),
        ("train", Outcome.OUT_OF_MEMORY, {"executor": "local"}, False),
        ("time", Outcome.OK, {"executor": "slurm"}, True),
        ("time", Outcome.OK, {"executor": "local"}, False),
        ("time", Outcome.OK, {"executor": "slurm", "threads": 7}, False),
    ],
)
def test_on_a_cluster_what_any_of_its_nodes_measured_counts(make, done, lane, outcome, more, counts):
    cluster = Site(machine_id="", executor="slurm", threads=2)
    for at, step in enumerate(make(site=cluster).steps):
        done(step.cell, outcome, machine=f"node-{at % 2}", **more)
    assert {step.state for step in make(site=cluster).steps if step.cell.lane == lane} == {"done" if counts else "todo"}
    # Records of its processors say nothing of its GPUs
    assert {step.state for step in make(site=replace(cluster, on_gpu=True)).steps} == {"todo"}
