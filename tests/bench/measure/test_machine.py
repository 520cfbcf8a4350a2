"""The description of the machine that a Record carries."""

import pytest
import torch

import attnbench
from attnbench.bench.measure import machine


def test_the_version_is_that_of_the_code_that_runs_and_not_what_pip_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = machine.version
    monkeypatch.setattr(machine, "version", lambda name: "0.0.1" if name == "attnbench" else noted(name))
    versions = machine.describe(torch.device("cpu")).versions
    assert versions["attnbench"] == attnbench.__version__
    assert versions["torch"] == noted("torch")
