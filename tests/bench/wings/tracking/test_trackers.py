"""`run --log NAME`: what the trackers get, from their own libraries where these are installed, without a network."""

import json
import math
from pathlib import Path

import pytest

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.record import Measurement
from attnbench.bench.run.events import CellFinished, CellStarted, RunListener, TrainingProgress
from attnbench.bench.store.store import Store
from attnbench.bench.wings.tracking.listener import Tracker, config_of, values_of
from attnbench.bench.wings.tracking.trackers import MLflow, TensorBoard, Wandb

POINTS = [{"step": step, "train_loss": 3.0 / step, "validation_loss": 2.0 / step, "validation_accuracy": step / 10}
          for step in (2, 4, 6)]  # fmt: skip


class Heard(RunListener):
    def __init__(self) -> None:
        self.notices, self.events = [], []

    def notice(self, message: str) -> None:
        self.notices.append(message)

    def on_event(self, event: object) -> None:
        self.events.append(event)


class Kept(Tracker):
    name = "kept"

    def setup(self) -> None:
        self.lines = []

    def open(self, cell, config):
        self.lines.append(("open", str(cell), config["seed"]))
        return cell

    def add(self, run, values, step):
        self.lines.append((step, values))

    def close(self, run, config, values, failed):
        self.lines.append(("close", config["outcome"], values, failed))


class Plan:
    def __init__(self, *cells) -> None:
        self.left = [type("Step", (), {"cell": cell}) for cell in cells]


@pytest.fixture
def record(bench, tmp_path: Path):
    b = bench()
    name = Store(tmp_path).put_artifact(json.dumps(POINTS).encode(), ".json")
    more = [Measurement.of("accuracy", 0.6, split="test"), Measurement.of("sparsity", 0.5, layer=0, head=0)]
    return b.add(b.cell("linear"), more, artifacts={"curve": name}, setting={"width": 64, "dropout": None})


def validated(record, step: int, **changes: float) -> TrainingProgress:
    more = {"loss": 3.0 / step, "validation_loss": 2.0 / step, "value": step / 10} | changes
    return TrainingProgress(record.key, done=step + 1, of=6, metric="accuracy", validated=step, **more)


def followed(tracker: Tracker, record) -> None:
    tracker.begin(Plan(record.cell), "quick", record.machine)
    for event in (CellStarted(record.key), CellStarted(record.key), validated(record, 4), CellFinished(record)):
        tracker.on_event(event)


def test_a_tracker_gets_curve_settings_and_results_and_the_run_hears_all(record, tmp_path: Path) -> None:
    inner = Heard()
    tracker = Kept(inner, tmp_path)
    followed(tracker, record)
    assert len(inner.events) == 4 and not inner.notices
    first, *curve, last = tracker.lines
    assert first == ("open", str(record.cell), record.cell.seed)
    # the second was told while it trained, and the rest of the curve with the Record
    assert [step for step, _ in curve] == [4, 2, 6]
    assert curve[0][1] == {"train/loss": 0.75, "validation/loss": 0.5, "validation/accuracy": 0.4}
    assert last == ("close", "ok", {"accuracy/test": 0.6}, False)
    assert config_of(record)["width"] == 64 and "dropout" not in config_of(record)
    assert values_of(record) == {"accuracy/test": 0.6}


def test_each_validation_is_told_at_once_and_once(record, tmp_path: Path) -> None:
    tracker = Kept(Heard(), tmp_path)
    tracker.begin(Plan(record.cell), "quick", record.machine)
    before = TrainingProgress(record.key, done=1, of=6, metric="accuracy")
    for event in (before, validated(record, 2), validated(record, 2), validated(record, 4, loss=math.nan)):
        tracker.on_event(event)
    assert tracker.lines[1:] == [
        (2, {"train/loss": 1.5, "validation/loss": 1.0, "validation/accuracy": 0.2}),
        (4, {"validation/loss": 0.5, "validation/accuracy": 0.4}),
    ]


def test_an_error_of_a_tracker_ends_the_tracking_and_not_the_run(record, tmp_path: Path) -> None:
    class Broken(Kept):
        def add(self, run, values, step):
            raise ConnectionError("no route")

    inner = Heard()
    followed(Broken(inner, tmp_path), record)
    assert len(inner.events) == 4
    (said,) = inner.notices
    assert "no route" in said and said.endswith("nothing more is logged there, the run goes on")


def test_a_library_that_is_not_here_is_refused_before_anything_is_measured(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(SelectionError, match=r"--log wandb needs a library .* pip install 'attnbench\[wandb\]'"):
        Wandb(Heard(), tmp_path)


# their imports warn of what is none of ours
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_holds_the_curve_and_the_results(record, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    inner = Heard()
    followed(TensorBoard(inner, tmp_path), record)
    (folder,) = (tmp_path / "tensorboard").iterdir()
    found = EventAccumulator(str(folder))
    found.Reload()
    assert not inner.notices
    assert [(one.step, one.value) for one in found.Scalars("validation/loss")] == [
        (4, 0.5), (2, 1.0), (6, pytest.approx(1 / 3)),
    ]  # fmt: skip
    assert found.Scalars("accuracy/test")[0].value == pytest.approx(0.6)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_holds_them_in_a_file_of_the_results_folder(record, tmp_path: Path, monkeypatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    inner = Heard()
    tracker = MLflow(inner, tmp_path)
    followed(tracker, record)
    assert not inner.notices and (tmp_path / "mlflow" / "mlflow.db").is_file()
    (run,) = tracker.client.search_runs([tracker.experiment])
    assert run.info.run_name == str(record.cell) and run.info.status == "FINISHED"
    assert run.data.metrics["accuracy/test"] == 0.6 and run.data.params["width"] == "64"
    assert [one.step for one in tracker.client.get_metric_history(run.info.run_id, "train/loss")] == [4, 2, 6]
    mlflow.set_tracking_uri(None)


def records_of_wandb(path: Path):
    """The records of a .wandb file: after 7 bytes the log format of LevelDB, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    content, at, held = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        held, at = held + content[at + 7 : at + 7 + length], at + 7 + length
        # a whole record, or the last part of one
        if kind in (1, 4):
            found = wandb_internal_pb2.Record()
            found.ParseFromString(held)
            held = b""
            yield found


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_an_offline_run_in_the_results_folder(record, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    inner = Heard()
    tracker = Wandb(inner, tmp_path)
    followed(tracker, record)
    # its service writes on after the end of a run; as at the end of a program, it is waited for
    tracker.library.teardown()
    assert not inner.notices
    (path,) = (tmp_path / "wandb").rglob("*.wandb")
    kept, steps = {}, []
    for line in records_of_wandb(path):
        known = {"/".join(item.nested_key) or item.key: item.value_json for item in line.history.item}
        steps += [int(known["step"])] if "train/loss" in known else []
        kept |= {"/".join(item.nested_key) or item.key: item.value_json for item in line.summary.update}
        kept |= {item.key: item.value_json for item in (*line.config.update, *line.run.config.update)}
    assert steps == [4, 2, 6] and kept["accuracy/test"] == "0.6" and kept["width"] == "64"
