"""The harness by its hash: what moves it, and which hashes are known."""

import shutil
from pathlib import Path

import torch

from attnbench.bench.core.harness import FOLDERS, harness_hash, is_edited, published_hashes
from attnbench.bench.core.paths import PACKAGE
from attnbench.bench.measure.machine import describe


def test_every_edit_of_what_measures_moves_the_hash(tmp_path: Path) -> None:
    for number, folder in enumerate(FOLDERS):
        copy = tmp_path / str(number)
        for each in FOLDERS:
            shutil.copytree(PACKAGE / each, copy / each, ignore=shutil.ignore_patterns("__pycache__"))
        assert harness_hash(copy) == harness_hash()
        # the cache holds one answer for a folder
        edited = tmp_path / f"{number}-edited"
        copy.rename(edited)
        file = sorted((edited / folder).rglob("*.py"))[-1]
        file.write_bytes(file.read_bytes() + b"\n")
        assert harness_hash(edited) != harness_hash()


def test_a_record_states_it_and_another_is_edited() -> None:
    versions = describe(torch.device("cpu")).versions
    assert versions["harness"] == harness_hash() and len(harness_hash()) == 16
    assert not is_edited(versions) and not is_edited({"torch": "2.13.0"})
    assert is_edited({"harness": "0" * 16})
    assert all(len(each) == 16 and set(each) <= set("0123456789abcdef") for each in published_hashes())
