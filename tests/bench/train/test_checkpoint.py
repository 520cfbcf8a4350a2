"""Checkpoints that are damaged, or made by somebody else."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attnbench.bench.core.errors import StoreError
from attnbench.bench.train import checkpoint
from attnbench.bench.train.checkpoint import (
    Training,
    ValidationPoint,
    read_checkpoint,
    read_parameters,
    set_aside,
    write_checkpoint,
)

CPU = torch.device("cpu")


def test_what_holds_code_is_refused_without_torchs_advice_to_run_it(tmp_path: Path) -> None:
    path = tmp_path / "cell.pt"
    torch.save({"training": {"best_state": Harmful()}}, path)
    with pytest.raises(StoreError, match="never loaded") as refused:
        read_parameters(path, CPU)
    assert "weights_only" not in str(refused.value)


def made(width: int = 4) -> tuple[torch.nn.Module, torch.optim.Optimizer, Training]:
    model = torch.nn.Linear(width, 2)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, width)).sum().backward()
    optimiser.step()
    best = {name: value.detach().clone() for name, value in model.state_dict().items()}
    point = ValidationPoint(step=3, train_loss=1.0, validation_loss=1.0, validation=0.5, seconds=1.0)
    return model, optimiser, Training(learning_rate=1e-3, step=3, best=(0.5, -1.0), best_state=best, curve=[point])


def changed(change: Callable[[dict[str, object]], object]) -> Callable[[bytes], bytes]:
    """The checkpoint with another content."""

    def apply(content: bytes) -> bytes:
        values = torch.load(io.BytesIO(content), weights_only=True)
        found = change(values)
        file = io.BytesIO()
        torch.save(values if found is None else found, file)
        return file.getvalue()

    return apply


def bomb(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("zeros", "w") as zeros:
        for _ in range(80):
            zeros.write(bytes(2**20))
    return file.getvalue()


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path("executed").touch, ())


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "torn": lambda content: content[: len(content) // 2],
    "flipped": lambda content: content[:200] + bytes(len(content) - 400) + content[-200:],
    "text": lambda content: b"not a checkpoint",
    "pickle": lambda content: pickle.dumps(Harmful()),
    "bomb": bomb,
    "list": changed(lambda values: [1, 2, 3]),
    "no training": changed(lambda values: {"model": values["model"]}),
    "text as step": changed(lambda values: values["training"].update(step="3")),  # type: ignore[attr-defined]
    "negative step": changed(lambda values: values["training"].update(step=-3)),  # type: ignore[attr-defined]
    "unknown field": changed(lambda values: values["training"].update(more=1)),  # type: ignore[attr-defined]
    "no random state": changed(lambda values: values.update(random=torch.zeros(3))),
    "other best": changed(lambda values: values["training"].update(best_state={"a": torch.ones(1)})),  # type: ignore[attr-defined]
    "other moments": changed(
        lambda values: values["optimiser"]["state"][0].update(exp_avg=torch.ones(7))  # type: ignore[index]
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "checkpoint.pt"
    write_checkpoint(path, *made())
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    model, optimiser, _ = made()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    with pytest.raises(StoreError, match="cannot read the checkpoint"):
        read_checkpoint(path, model, optimiser, CPU, 3, 1e-3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn) and not Path("executed").exists()
    optimiser.step()


@pytest.mark.parametrize("damage", ["empty", "torn", "text", "pickle", "list", "no training"])
def test_parameters_of_a_damaged_checkpoint_are_refused_in_one_line(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    write_checkpoint(path, *made())
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with pytest.raises(StoreError, match="cannot read the checkpoint") as refused:
        read_parameters(path, CPU)
    assert "\n" not in str(refused.value)


def test_the_checkpoint_of_a_large_model_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # several times the size of its parameters, of which the constant share allows a part
    monkeypatch.setattr(checkpoint, "SLACK", 2**14)
    model, optimiser, state = made(width=4000)
    write_checkpoint(tmp_path / "checkpoint.pt", model, optimiser, state)
    assert read_checkpoint(tmp_path / "checkpoint.pt", model, optimiser, CPU, 3, 1e-3).step == 3


def test_a_folder_in_its_place_is_set_aside_too(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.mkdir()
    model, optimiser, state = made()
    with pytest.raises(StoreError, match="a folder"):
        read_checkpoint(path, model, optimiser, CPU, 3, 1e-3)
    assert set_aside(path).is_dir()
    write_checkpoint(path, model, optimiser, state)
    assert read_checkpoint(path, model, optimiser, CPU, 3, 1e-3).step == 3


def test_a_write_that_fails_leaves_the_old_checkpoint_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.pt"
    write_checkpoint(path, *made())
    content = path.read_bytes()

    def full(values: object, file: io.BufferedWriter) -> None:
        file.write(b"begun")
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(StoreError, match="cannot write the checkpoint"):
        write_checkpoint(path, *made())
    assert path.read_bytes() == content and [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "checkpoint.pt"
    victim.write_bytes(b"precious")
    for suffix in (f".{os.getpid()}.unfinished", ".unfinished", ".pt"):
        path.with_suffix(suffix).symlink_to(victim)
    write_checkpoint(path, *made())
    assert victim.read_bytes() == b"precious" and not path.is_symlink()
