"""Children compile in caches alone in which nobody else could have written, and a damaged kernel is compiled anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from implementations import NO_TRITON

from attnbench.bench.process import servers
from attnbench.bench.process.child import Child

NAMES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
SAY = f"import json, os\nchannel.write(json.dumps([os.environ.get(name) for name in {NAMES}]).encode() + b'\\n')"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    servers._compiler_caches.cache_clear()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


def caches_of_a_child(folder: Path) -> list[str]:
    (folder / "say.py").write_text(SAY, encoding="utf-8")
    with Child(str(folder / "say.py")) as child:
        line = child.receive(60.0)
    assert line is not None, child.last_errors
    return list(json.loads(line))


def own(home: Path) -> list[str]:
    return [str(home / ".cache" / "attnbench" / name) for name in ("triton", "torchinductor")]


def test_a_cache_of_this_account_is_used_and_made_private(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine" / "triton"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(mine))
    assert caches_of_a_child(tmp_path) == [str(mine), own(home)[1]]
    assert all(Path(folder).stat().st_mode & 0o777 == 0o700 for folder in (mine, own(home)[1]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared", "link", "file", "under a file"])
def test_a_cache_that_others_could_have_filled_is_not_used(
    kind: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    # others can reach what lies above as well: pytest's own folder is private
    monkeypatch.setattr(servers, "is_trusted", lambda path: not path.resolve().stat().st_mode & 0o002)
    shared, named = tmp_path / "shared", tmp_path / "named"
    shared.mkdir()
    shared.chmod(0o777)
    if kind == "link":
        named.symlink_to(shared)
    elif kind != "shared":
        named.write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str({"shared": shared, "under a file": named / "x"}.get(kind, named)))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(shared))
    assert caches_of_a_child(tmp_path) == own(home)
    assert not list(shared.iterdir())


def test_a_kernel_with_an_empty_file_is_off_its_list_and_nothing_else_is_touched(tmp_path: Path) -> None:
    files = {
        **{f"whole/{name}": "x" for name in ("__grp__a.json", "a.json", "a.cubin")},
        **{f"damaged/{name}": "x" for name in ("__grp__a.json", "a.json")} | {"damaged/a.cubin": ""},
        **{"launcher/b.so": "", "project/__init__.py": "", "project/sub/__grp__c.json": ""},
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    servers._forget_damaged(tmp_path)
    left = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()}
    assert files.keys() - left == {"damaged/__grp__a.json", "launcher/b.so"}


@pytest.mark.slow  # the files that Triton makes; what is deleted is tested above
@pytest.mark.skipif(NO_TRITON, reason="no Triton")
def test_triton_compiles_a_kernel_with_an_empty_file_anew(tmp_path: Path) -> None:
    compile_two = """
import importlib
from attnbench.variants.kernels.triton import launch
cases = importlib.import_module("attnbench.variants.kernels.triton.norm").COMPILE_CASES
with launch.compiling() as compiled:
    cases[0].run()
print(len(compiled))
"""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)

    def compiled() -> str:
        command = [sys.executable, "-c", compile_two]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300).stdout.strip()

    assert compiled() == "2"
    lists, kernels = sorted(tmp_path.glob("*/__grp__*.json")), sorted(tmp_path.glob("*/*.cubin"))
    assert len(lists) == len(kernels) == 2
    kernels[0].write_bytes(b"")
    servers._forget_damaged(tmp_path)
    assert [each.exists() for each in lists] == [each.parent != kernels[0].parent for each in lists]
    assert compiled() == "2" and kernels[0].stat().st_size
