"""The name of the harness: a version, a commit or an edited checkout; and which Records boards count as edited."""

import subprocess
from pathlib import Path

import torch

from attnbench import __version__
from attnbench.bench.core.harness import harness_name, is_edited, published_hashes
from attnbench.bench.measure.machine import describe


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, check=True, text=True).stdout.strip()


def named(folder: Path) -> str:
    harness_name.cache_clear()
    return harness_name(folder)


def test_a_checkout_is_named_by_its_commit_until_what_measures_is_edited(tmp_path: Path) -> None:
    code, page = tmp_path / "bench" / "core" / "cell.py", tmp_path / "README.md"
    code.parent.mkdir(parents=True)
    code.write_text("x = 1\n")
    assert named(tmp_path) == __version__
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    name = f"{__version__}+{git(tmp_path, 'rev-parse', 'HEAD')[:8]}"
    assert named(tmp_path) == name
    page.write_text("a page measures nothing\n")
    assert named(tmp_path) == name
    code.write_text("x = 2\n")
    assert named(tmp_path) == f"{__version__}+edited"
    git(tmp_path, "checkout", "bench")
    (code.parent / "new.py").touch()
    assert named(tmp_path) == f"{__version__}+edited"
    (tmp_path / ".git" / "HEAD").unlink()
    assert named(tmp_path) == f"{__version__}+edited"


def test_a_record_names_its_harness_and_a_board_counts_the_edited_ones_of_others() -> None:
    harness_name.cache_clear()
    versions = describe(torch.device("cpu")).versions
    assert versions["harness"] == harness_name() and versions["harness"].startswith(__version__)
    assert not is_edited(versions) and not is_edited({"torch": "2.13.0"})
    assert is_edited({"harness": "0" * 16}) and is_edited({"harness": "0.1.0+edited"})
    assert not is_edited({"harness": "0.1.0"}) and not is_edited({"harness": "0.1.0+1a2b3c4d"})
    assert published_hashes() and not any(is_edited({"harness": each}) for each in published_hashes())
