"""The description of the machine that a Record carries."""

import pytest
import torch

import attnbench
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.measure import machine


def test_the_version_is_that_of_the_code_that_runs_and_not_what_pip_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = machine.version
    monkeypatch.setattr(machine, "version", lambda name: "0.0.1" if name == "attnbench" else noted(name))
    versions = machine.describe(torch.device("cpu")).versions
    assert versions["attnbench"] == attnbench.__version__
    assert versions["torch"] == noted("torch")


@pytest.mark.parametrize("wanted", ["gpu", "cpu:1", "mps"])
def test_a_word_that_is_no_device_is_a_wrong_choice_and_not_a_missing_device(wanted: str) -> None:
    with pytest.raises(SelectionError, match="expected a device such as cpu, cuda") as caught:
        machine.choose_device(wanted)
    assert caught.value.exit_code == 2
