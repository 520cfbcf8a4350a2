"""Targets: what a file or a module names, found without an import, imported once, and told from our own code."""

import os
import sys

import pytest

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.registry import TASKS, VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.bench.core.targets import defined_in, target_of
from attnbench.bench.plan.fingerprint import closure

CODE = '''
"""Mine."""
import beside
from attnbench.variants.contract import masked_softmax, score_map
LOADED = beside.COUNT
@score_map()
def sharp(scores, allowed, *, power: float = 2.0):
    """Sharpens."""
    return masked_softmax(power * scores, allowed)
class Wrong:
    pass
if LOADED:
    other = sharp
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "beside.py").write_text("COUNT = 3\n", encoding="utf-8")
    package = tmp_path / "kit" / "layers"
    package.mkdir(parents=True)
    (tmp_path / "kit" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("from ..two import sharp\n", encoding="utf-8")
    (tmp_path / "kit" / "two.py").write_text(CODE.replace("import beside", "").replace("beside.COUNT", "1"), "utf-8")
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0].startswith(("kit", "beside", "mine_"))]:
        del sys.modules[name]


def test_naming_imports_nothing_and_is_foreign(folder):
    before = set(sys.modules)
    for name in ("mine.py:sharp", "./mine.py:other", "kit/layers/one.py:sharp", "kit.two:sharp"):
        assert VARIANTS.is_foreign(name) and not VARIANTS.is_own(name)
        assert VARIANTS.source(name).is_file()
    assert VARIANTS.describe("mine.py:sharp") == "Sharpens."
    assert not [each for each in set(sys.modules) - before if each.startswith(("mine", "kit", "beside"))]


@pytest.mark.parametrize("name", ["mine.py:sharp", "mine.py:other", "kit/layers/one.py:sharp", "kit.layers.one:sharp"])
def test_it_is_loaded_with_what_it_imports_from_its_own_folder(folder, name):
    assert VARIANTS.load(name).__name__ == "sharp"
    assert VARIANTS.resolve(Spec.parse(f"{name}[power=3]")) == Spec.of(name, power=3.0)
    assert VARIANTS.resolve(Spec.parse(f"gate+{name}[power=2]")) == Spec.parse(f"gate+{name}")


def test_what_is_named_by_its_place_is_never_ours(folder):
    (folder / "attnbench.py").write_text(CODE, encoding="utf-8")
    for name in ("attnbench.py:sharp", "attnbench.variants.maps.softmax:Softmax"):
        assert not VARIANTS.is_own(name) and VARIANTS.is_foreign(name) and TASKS.is_foreign(name)
    assert VARIANTS.is_own("softmax") and TASKS.is_own("recall")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.py:Mine", "no file 'absent.py' here, in "),
        ("mine.py:sharpen", "defines no 'sharpen'; it has sharp, Wrong"),
        ("no_such_kit.layers:Mine", "no module 'no_such_kit.layers'"),
        ("mine.py", "say what in that file: mine.py:Wrong, mine.py:sharp"),
        ("mines.py", "FILE.py:NAME"),
        ("link.py:Mine", "expected a file of Python, got 'link.py', which is .*/other"),
        ("pipe.py:Mine", "expected a file of Python, got 'pipe.py'"),
    ],
)
def test_what_is_not_there_is_told_before_anything_runs(folder, name, message):
    (folder / "other").write_text(CODE, encoding="utf-8")
    (folder / "link.py").symlink_to("other")
    os.mkfifo(folder / "pipe.py")
    with pytest.raises(SelectionError, match=message):
        VARIANTS.package(name)


def test_a_class_of_another_kind_is_refused_as_a_task(folder):
    with pytest.raises(SelectionError, match=r"subclass of attnbench.tasks.contract.Task, got the class mine.py:Wrong"):
        TASKS.load("mine.py:Wrong")


def test_files_beside_a_named_file_count_in_its_hash(folder):
    file = target_of("mine.py:sharp").file
    assert closure(file, folder, beside=True) == {file, folder.resolve() / "beside.py"} | closure(file, folder)
    assert folder / "beside.py" not in closure(file, folder)
    assert VARIANTS.named_files("gate+mine.py:sharp//softmax") == [file]


def test_names_that_a_star_may_bring_are_not_denied(folder):
    (folder / "star.py").write_text("from beside import *\n", encoding="utf-8")
    assert defined_in(folder / "star.py", 0) == []
    assert target_of("star.py:Anything").attr == "Anything"
