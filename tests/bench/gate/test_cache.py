"""The gate is asked once for a shape, and again whenever what it hangs on has changed."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.bench.core.errors import Unsupported
from attnbench.bench.core.spec import Spec
from attnbench.bench.gate import build as passed
from attnbench.bench.gate.build import Incorrect, build_checked_cached
from attnbench.variants.contract import AttentionShape

SHAPE = AttentionShape(heads=2, head_dim=16, max_length=512, padding=False)


@pytest.fixture
def examined(monkeypatch):
    """Shapes that the gate was asked about; `red`: what it answers."""
    found = []

    class Gate:
        red = None

        def __call__(self, spec, shape, *, batch, form):
            found.append((form, shape, batch))
            return self.red

    gate = Gate()
    monkeypatch.setattr("attnbench.bench.gate.build.quick_gate", gate)
    return found, gate


def build(tmp_path, spec="linear", shape=SHAPE, machine="box", batch=1):
    return build_checked_cached(tmp_path, machine, batch)(Spec.parse(spec))(shape)


def test_longer_shapes_are_asked_about_at_their_own_length_and_new_processes_not_at_all(tmp_path, examined):
    for length in (512, 1024, 4096, 512, 1024):
        assert build(tmp_path, shape=replace(SHAPE, max_length=length)).shape.max_length == length
    forms = [(form, shape.max_length) for form, shape, _ in examined[0]]
    assert forms == [("short", 512), ("own", 512), ("own", 1024), ("own", 4096)]


def test_a_larger_batch_is_examined_itself(tmp_path, examined):
    for batch in (4, 8, 4, 32):
        build(tmp_path, batch=batch)
    # the short form has at least eleven sequences anyway
    assert [(form, size) for form, _, size in examined[0]] == [
        ("short", 4), ("own", 4), ("own", 8), ("short", 32), ("own", 32)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"spec": "softmax"}, {"shape": replace(SHAPE, causal=True)}, {"shape": replace(SHAPE, head_dim=32)},
     {"machine": "other"}],
)  # fmt: skip
def test_anything_else_is_examined_itself(tmp_path, examined, change):
    build(tmp_path)
    build(tmp_path, **change)
    assert len(examined[0]) == 4


def test_a_file_that_changed_is_reason_to_ask_again(tmp_path, examined, monkeypatch):
    build(tmp_path)
    monkeypatch.setattr(passed, "_states", lambda folder: iter([("kernel.cpp", 1, 2)]))
    build(tmp_path)
    assert len(examined[0]) == 4


def test_a_red_gate_is_asked_every_time(tmp_path, examined):
    class Red:
        property, detail, measured, allowed = "finite", "it is not", 1.0, 0.0

    examined[1].red = Red
    for _ in range(2):
        with pytest.raises(Incorrect, match="finite: it is not"):
            build(tmp_path)
    assert len(examined[0]) == 2


def test_what_passed_must_still_support_the_shape(tmp_path, examined):
    build(tmp_path, "linformer")
    with pytest.raises(Unsupported):
        build(tmp_path, "linformer", replace(SHAPE, causal=True))


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, examined):
    (tmp_path / "passed").write_text("in the way")
    assert build(tmp_path).shape == SHAPE and build(tmp_path).shape == SHAPE
    assert len(examined[0]) == 4


def test_a_verdict_that_others_could_have_written_is_none(examined):
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder, "cache")
        build(cache)
        verdicts = list((cache / "passed").iterdir())
        # pytest's own folders are closed to others, so that nothing below them could be theirs
        for path, mode in ((Path(folder), 0o755), (cache, 0o755), (cache / "passed", 0o755)):
            path.chmod(mode)
        for verdict in verdicts:
            verdict.chmod(0o644)
        build(cache)
        assert len(examined[0]) == 2
        (cache / "passed").chmod(0o777)
        build(cache)
        assert len(examined[0]) == 4
