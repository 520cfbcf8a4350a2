"""Estimates of time by counted work, calibrated by timings; and the back-test that they state their factor by."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.spec import Spec
from attnbench.bench.measure.devices import devices
from attnbench.bench.wings.choose.estimate import (
    CALL_SECONDS,
    AttentionCall,
    Guess,
    Timing,
    factors_of,
    guess,
    published_timings,
    quantile,
    target_of,
    trials,
)
from attnbench.bench.wings.choose.model_board import back_test
from attnbench.variants.contract import AttentionShape

RESULTS = Path(__file__).parents[4] / "results"
ONE = AttentionCall(
    device="h100", kind="card", variant="softmax", family="dense", mode="forward", length=1024, heads=8, head_dim=64,
    causal=True, input="iid", work=1e-3,
)  # fmt: skip


def timing(seconds: float, **changes: object) -> Timing:
    return Timing(target=replace(ONE, **changes), seconds=seconds)


def shape(**changes: object) -> AttentionShape:
    values = {"heads": 8, "head_dim": 64, "max_length": 1024, "causal": True, "dtype": "bfloat16"}
    return AttentionShape(**values | changes)


def test_the_work_is_products_and_bytes_over_the_peaks() -> None:
    card = devices()["h100"]
    target, kept = target_of(Spec("softmax"), shape(kv_heads=2), "forward", card, batch=3)
    flops = sum(4 * 8 * 64 * (row + 1) for row in range(1024))
    moved = 2 * 1024 * (8 + 2) * 64 * 2
    assert target.work == pytest.approx(3 * (flops / 989e12 + moved / 3350e9)) and target.heads == 24
    assert kept == 2 * 2 * 64 * 1024 * 2
    step, _ = target_of(Spec("softmax"), shape(kv_heads=2), "step", card, batch=3)
    assert step.work == pytest.approx(3.5 * target.work)
    # a token reads all keys and values of its sequences, and a window its own
    token, _ = target_of(Spec("softmax"), shape(), "decode", card)
    assert token.work == pytest.approx(4 * 8 * 64 * 1024 / 989e12 + 2 * 8 * 64 * 1024 * 2 / 3350e9)
    window, held = target_of(Spec.of("window", size=128), shape(), "decode", card)
    assert held == 2 * 8 * 64 * 128 * 2
    assert window.work == pytest.approx(4 * 8 * 64 * 128 / 989e12 + held / 3350e9, rel=1e-6)
    # the state of a recurrence does not grow
    states = {target_of(Spec("delta"), shape(max_length=n), "decode", card)[1] for n in (256, 4096)}
    assert states == {8 * 64**2 * 4}
    # blocks that are chosen are a part of a cache that is kept whole
    few, whole = target_of(Spec("moba"), shape(max_length=16384), "decode", card)
    assert whole == 2 * 8 * 64 * 16384 * 2 and few.work < 0.2 * (whole / 3350e9)


def test_a_latent_cache_is_a_vector_and_a_rotary_part() -> None:
    # 4,096 tokens of (512 + 64) numbers in bfloat16; decoding multiplies with all of them, and sums 512
    card = devices()["h100"]
    token, kept = target_of(Spec("mla"), shape(heads=16, head_dim=128, max_length=4096), "decode", card)
    assert kept == 4096 * 576 * 2
    assert token.work == pytest.approx(2 * 16 * 4096 * (576 + 512) / 989e12 + kept / 3350e9)
    prefill, _ = target_of(Spec("mla"), shape(heads=16, head_dim=128, max_length=64), "forward", card)
    pairs = 64 * 65 / 2
    assert prefill.work == pytest.approx(2 * 16 * pairs * (192 + 128) / 989e12 + 2 * 2 * 16 * 128 * 64 * 2 / 3350e9)


def test_what_cannot_be_called_has_no_target_and_no_variant_is_an_error() -> None:
    card = devices()["h100"]
    assert target_of(Spec("linformer"), shape(), "decode", card) is None
    with pytest.raises(SelectionError, match="no variant named 'soft'"):
        target_of(Spec("soft"), shape(), "forward", card)


def test_the_best_evidence_is_taken() -> None:
    here, far = timing(2e-3, length=512, work=5e-4), timing(9e-3, device="a100", length=512, work=5e-4)
    other = timing(3e-3, variant="rela", length=512, work=5e-4)
    assert guess(ONE, [timing(7e-3), here, far]) == Guess(seconds=7e-3, evidence="measured")
    calibrated = guess(ONE, [here, far, other])
    still = CALL_SECONDS["card"]
    assert calibrated.evidence == "calibrated" and calibrated.distance == 1
    assert calibrated.seconds == pytest.approx(2e-3 * (1e-3 + still) / (5e-4 + still))
    assert guess(ONE, [far, other]).evidence == "other device"
    assert guess(ONE, [other, timing(8e-3, variant="linear", family="linear")]).seconds == pytest.approx(6e-3, rel=0.01)
    assert guess(ONE, []) == Guess(seconds=1e-3 + still, evidence="counted")
    # neither another mode nor another kind of device says anything
    assert guess(ONE, [replace(here, target=replace(here.target, mode="decode"))]).seconds == 1e-3 + still


def test_what_does_not_grow_is_told_from_what_does() -> None:
    # 0.7 ms of launches and four times the counted work
    known = [
        timing(7e-4 + 4 * work, length=length, work=work) for length, work in ((64, 1e-6), (128, 4e-6), (256, 1e-4))
    ]
    assert guess(ONE, known).seconds == pytest.approx(7e-4 + 4e-3, rel=0.02)


def test_a_trial_never_sees_what_it_guesses() -> None:
    # every timing is of its own law: what sees itself would have no error
    known = [
        timing(seconds, length=length, work=length * 1e-6, variant=variant, device=device)
        for variant, device, seconds in (("softmax", "h100", 1e-3), ("softmax", "a100", 4e-3), ("rela", "h100", 2e-2))
        for length in (256, 1024, 4096)
    ]
    found = list(trials(known))
    assert {each.evidence for _, each, _ in found} == {"calibrated", "other device", "counted"}
    for target, one, error in found:
        own = one.seconds / math.exp(error)
        assert any(own == pytest.approx(each.seconds) for each in known if each.target == target)
        if one.evidence == "other device":
            assert target.variant == "softmax" and abs(error) == pytest.approx(math.log(4), rel=0.05)
        assert one.evidence != "calibrated" or one.distance >= 2


def test_the_factor_is_that_of_nine_in_ten_trials_and_grows_beyond_their_reach() -> None:
    assert quantile([math.log(each) for each in (1 / 2, 1.1, 1.2, 1 / 1.3, 3)], 0.8) == pytest.approx(2)
    near = Guess(seconds=1.0, evidence="calibrated", distance=1.0)
    far, counted = replace(near, distance=3.0), replace(near, evidence="counted")
    tried = [(ONE, one, math.log(error)) for one, error in ((near, 1.5), (far, 2.0), (counted, 5.0)) for _ in range(10)]
    factor = factors_of(tried)
    assert [factor("card", one) for one in (near, far, counted)] == pytest.approx([1.5, 2.0, 5.0])
    assert factor("card", replace(near, distance=8.0)) == pytest.approx(4.0)
    assert factor("card", replace(near, evidence="measured")) == 1.0
    # nothing was tried of this: the worst that is known
    assert factor("card", replace(near, evidence="other device")) == pytest.approx(5.0)


def test_published_times_are_those_of_the_sources() -> None:
    found = {(t.target.variant, t.target.device, t.target.mode, *t.target.shape[:3]): t for t in published_timings()}
    # FlashAttention-3's figure of cuDNN at 16k and width 128: 595 TFLOP/s by 4 n² d h
    cudnn = found["softmax[impl=cudnn]", "h100", "forward", 16384, 16, 128]
    assert 4 * 16384**2 * 128 * 16 / cudnn.seconds / 1e12 == pytest.approx(595)
    assert found["rela", "h100", "forward", 16384, 16, 64].seconds == pytest.approx(1.42e-3)
    # docs/gpu.md: 776 TFLOP/s at width 64, and 527 at 128
    wide = found["rela", "h100", "forward", 16384, 16, 128]
    assert 4 * 16384**2 * 128 * 16 / wide.seconds / 1e12 == pytest.approx(527, rel=0.002)
    # at a width that was timed its own figure counts, also at another length and mask
    asked, _ = target_of(Spec("rela"), shape(heads=32, head_dim=128, max_length=32768), "forward", devices()["h100"])
    rate = 4 * 32768**2 / 2 * 128 * 32 / guess(asked, found.values()).seconds / 1e12
    assert rate == pytest.approx(527, rel=0.02)
    # nothing runs above the peaks of its card
    assert all(each.seconds > 0.8 * each.target.work for each in found.values())


@pytest.mark.slow  # reads all committed Records
def test_the_back_test_of_the_committed_timings_is_as_the_guide_says() -> None:
    found = back_test(RESULTS)
    guide = Path(RESULTS.parent / "docs" / "choosing.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| (.*: .*) \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \|$", guide, re.MULTILINE)
    assert len(said) == 8
    for name, count, middle, most in said:
        errors = found.get(name) or found[f"every {name}"]
        # Records that come later move them a little
        assert len(errors) >= int(count), name
        assert quantile(errors, 0.5) < 1.1 * float(middle) and quantile(errors) < 1.3 * float(most), name
