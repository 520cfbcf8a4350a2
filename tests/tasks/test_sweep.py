"""Points of a sweep: what their parameters mean, and inputs of known structure."""

from pathlib import Path

import numpy as np
import pytest

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec, parse_selection
from attnbench.tasks.contract import DataPlace
from attnbench.tasks.sweep import Sweep
from attnbench.tasks.sweep_inputs import RUN, draw_heads, draw_states

PLACE = DataPlace(root=Path(), cache=Path())
LENGTH, WIDTH = 1024, 64


def scores(kind, seed=0):
    drawn = draw_heads(kind, 2, 3, LENGTH, WIDTH, seed)
    return drawn.query @ drawn.key.transpose(0, 1, 3, 2) / np.sqrt(WIDTH)


def test_a_range_makes_a_point_each_and_several_axes_their_product():
    specs = parse_selection("sweep[length=256..1024,mode=forward,step,input=iid,local]")
    built = [TASKS.build(TASKS.resolve(spec)).point for spec in specs]
    assert len({(p.length, p.mode, p.input) for p in built}) == len(specs) == 12
    assert {p.length for p in built} == {256, 512, 1024}


def test_the_default_sweep_is_canonical_without_its_defaults():
    assert TASKS.resolve(Spec.parse("sweep[length=1024,mode=step,batch=none]")) == Spec("sweep")


def test_tokens_fix_the_batch_by_length():
    assert [Sweep(length=n, tokens=4096).point.batch for n in (256, 4096, 8192)] == [16, 1, 1]


def test_decoding_is_causal():
    assert Sweep(mode="decode").point.causal and not Sweep().point.causal


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"length": 0}, "length to be int from 1 to 16,777,216, got 0"),
        ({"batch": 0}, "batch to be int from 1"),
        ({"length": 2**24, "batch": 8}, "at most 67,108,864 tokens"),
        ({"length": 2**24, "heads": 64, "head_dim": 64}, "at most .* values"),
        ({"padding": 1.0}, r"padding to be float from 0 to 0\.999"),
        ({"batch": 2, "tokens": 512}, "got both"),
        ({"mode": "decode", "level": "block"}, "level=attention"),
        ({"level": "model", "causal": True}, "not causal"),
        ({"level": "block", "dtype": "float16"}, "float32 or bfloat16"),
        ({"mode": "decode", "graph": True}, "graph=true"),
    ],
)
def test_points_that_make_no_sense_are_refused(parameters, message):
    with pytest.raises(SelectionError, match=message):
        TASKS.build(Spec.of("sweep", **parameters))


def test_a_preset_decides_how_long_is_measured_and_no_more():
    task = Sweep(length=512)
    assert task.recipe(Spec.parse("quick[timing_seconds=3]")).timing_seconds == 3.0
    assert (task.recipe(Spec("smoke")).ranked, task.recipe(Spec("smoke")).length) == (False, 512)
    with pytest.raises(SelectionError, match="only timing_seconds and resolution"):
        task.recipe(Spec.parse("quick[length=64]"))


def test_inputs_come_from_the_seed_and_the_shape_alone():
    one, same = (draw_heads("clustered", 1, 2, 256, 16, seed=0) for _ in range(2))
    assert np.array_equal(one.query, same.query) and np.array_equal(one.value, same.value)
    assert not np.array_equal(one.query, draw_heads("clustered", 1, 2, 256, 16, seed=1).query)


@pytest.mark.parametrize("kind", ["iid", "clustered", "local"])
def test_entries_have_mean_zero_and_variance_one(kind):
    drawn = draw_heads(kind, 4, 8, LENGTH, WIDTH, 0)
    for array in (drawn.query, drawn.key, drawn.value, draw_states(kind, 16, LENGTH, WIDTH, 0)):
        assert abs(array.mean()) < 0.05 and abs(array.var() - 1) < 0.1
        assert array.dtype == np.float32


def test_iid_scores_have_standard_deviation_one_and_no_structure():
    found = scores("iid")
    assert found.std() == pytest.approx(1.0, abs=0.02)
    assert abs(np.diagonal(found, axis1=2, axis2=3).mean()) < 0.1


def test_clustered_scores_are_half_the_root_of_the_width_higher_inside_a_run():
    found = scores("clustered")
    runs = found.reshape(2, 3, LENGTH // RUN, RUN, LENGTH // RUN, RUN).mean((3, 5))
    inside = np.diagonal(runs, axis1=2, axis2=3).mean()
    assert inside == pytest.approx(np.sqrt(WIDTH) / 2, rel=0.1)
    # two runs of one topic in 16 score alike, all others about zero
    assert np.median(runs) == pytest.approx(0.0, abs=0.3)


def test_local_scores_fall_to_zero_at_the_distance_of_a_run():
    found = scores("local")
    at = [np.diagonal(found, offset, 2, 3).mean() for offset in (0, RUN // 2, RUN, 3 * RUN)]
    top = np.sqrt(WIDTH) / 2
    assert at == pytest.approx([top, top / 2, 0.0, 0.0], abs=0.35)


def test_padding_shortens_every_sequence_of_ids():
    task = Sweep(length=100, batch=3, padding=0.25, level="model")
    ids, lengths, _ = task.load(PLACE, task.point, 0, "validation").train.batch(np.arange(3), 100)
    assert lengths.tolist() == [[75]] * 3 and (ids[:, 0, :75] > 0).all() and (ids[:, 0, 75:] == 0).all()


def test_groups_of_query_heads_share_keys_and_values():
    task = Sweep(heads=6, kv_heads=2, length=8, head_dim=4)
    drawn = task.heads(task.point)
    assert drawn.query.shape == (1, 6, 8, 4) and drawn.key.shape == drawn.value.shape == (1, 2, 8, 4)
    assert Sweep(heads=4, kv_heads=4).point == Sweep(heads=4).point
    for wrong in ({"heads": 6, "kv_heads": 4}, {"heads": 4, "kv_heads": 2, "level": "block"}):
        with pytest.raises(SelectionError, match=r"kv_heads|as many heads"):
            Sweep(**wrong)
