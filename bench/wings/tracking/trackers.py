"""The trackers: `--log wandb`, `tensorboard` or `mlflow`. What else they are told comes from their own environment."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import Any

from ...core.cell import Cell
from ...core.files import made_folder
from .listener import Tracker

PROJECT = "attnbench"


class Wandb(Tracker):
    """A run of the project `attnbench`, or WANDB_PROJECT; WANDB_MODE=offline keeps it in the results folder."""

    name = "wandb"

    def setup(self) -> None:
        self.library: Any = import_module("wandb")
        with made_folder(self.folder):
            pass

    def open(self, cell: Cell, config: dict[str, Any]) -> Any:
        # trainings run side by side: each is a run of its own, and none the global one
        run = self.library.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=str(cell), config=config,
            group=str(cell.task), job_type=cell.lane, dir=str(self.folder), reinit="create_new",
            # nothing of the terminal is captured: the boards that are printed need its width
            settings=self.library.Settings(console="off", quiet=True),
        )  # fmt: skip
        # wandb's own steps must rise, and a resumed training tells what was before at its end
        run.define_metric("*", step_metric="step")
        return run

    def add(self, run: Any, values: dict[str, float], step: int) -> None:
        run.log(values | {"step": step})

    def close(self, run: Any, config: dict[str, Any], values: dict[str, float], failed: bool) -> None:
        run.config.update(config, allow_val_change=True)
        run.summary.update(values)
        run.finish(exit_code=int(failed))


class TensorBoard(Tracker):
    """Event files below `tensorboard` in the results folder, one folder a Cell: `tensorboard --logdir RESULTS`."""

    name = "tensorboard"

    def setup(self) -> None:
        self.library: Any = import_module("torch.utils.tensorboard")

    def open(self, cell: Cell, config: dict[str, Any]) -> Any:
        plain = re.sub(r"[^\w.=,+-]+", "_", str(cell))[:120]
        return self.library.SummaryWriter(str(self.folder / f"{plain}-{cell.key[:8]}"))

    def add(self, run: Any, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            run.add_scalar(name, value, step)

    def close(self, run: Any, config: dict[str, Any], values: dict[str, float], failed: bool) -> None:
        known = {name: value if isinstance(value, bool | int | float) else str(value) for name, value in config.items()}
        # the run's own folder, not one below it that is named by the time
        run.add_hparams(known, values, run_name=".")
        run.close()


class MLflow(Tracker):
    """A run of the experiment `attnbench`, in `mlflow/mlflow.db` of the results folder without MLFLOW_TRACKING_URI."""

    name = "mlflow"

    def setup(self) -> None:
        library: Any = import_module("mlflow")
        with made_folder(self.folder):
            pass
        if not library.is_tracking_uri_set():
            library.set_tracking_uri(f"sqlite:///{(self.folder / 'mlflow.db').resolve()}")
        self.client = library.MlflowClient()
        self.experiment = ""

    def open(self, cell: Cell, config: dict[str, Any]) -> Any:
        if not self.experiment:
            found = self.client.get_experiment_by_name(PROJECT)
            self.experiment = found.experiment_id if found else self.client.create_experiment(PROJECT)
        run = self.client.create_run(self.experiment, run_name=str(cell)[:200]).info.run_id
        for name, value in config.items():
            self.client.log_param(run, name, value)
        return run

    def add(self, run: Any, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.client.log_metric(run, name, value, step=step)

    def close(self, run: Any, config: dict[str, Any], values: dict[str, float], failed: bool) -> None:
        for name, value in config.items():
            self.client.log_param(run, name, str(value)[:500])
        self.add(run, values, 0)
        self.client.set_terminated(run, "FAILED" if failed else "FINISHED")
