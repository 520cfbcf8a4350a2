"""Add fingerprints of new names to versions.toml, which changes no entry: `python tests/golden/write.py`.

With a sentence, such as `python tests/golden/write.py "files were joined"`, every changed hash of code gets an entry
that gives this reason why its numbers are the same. Run the tests of losses and first batches first: they show it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from attnbench.tasks.contract import DataPlace

HERE = Path(__file__).parent
FILE = HERE / "versions.toml"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def main(reason: str = "") -> None:
    there = tomllib.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    FILE.touch()
    golden, layout = module("test_versions"), module("conftest")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        place = DataPlace(
            root=Path(folder, "root"), cache=Path(folder, "cache"), offline=True, notice=lambda text: None
        )
        place.root.mkdir()
        layout.lay_out(place.root, patch)
        lines = []
        for kind, name in golden.NAMED:
            version, tokens = golden.tokens_now(kind, name)
            entry = there.get(kind, {}).get(name)
            history = entry["history"] if entry else [{"version": version, "tokens": tokens}]
            if reason and (history[-1]["version"], history[-1]["tokens"]) != (version, tokens):
                history.append({"version": version, "tokens": tokens, "same_numbers_because": reason})
            lines += [f"[{kind}.{name}]", "history = ["]
            lines += [f"  {{ {', '.join(f'{k} = {json.dumps(v)}' for k, v in each.items())} }}," for each in history]
            lines.append("]")
            if kind == "task":
                spec = golden.SUBWORDS.get(name, golden.TASKS_BY_NAME[name])
                batch = entry["first_batch"] if entry else golden.first_batch(spec, place)
                lines.append(f"first_batch = {json.dumps(batch)}")
            lines.append("")
        for objective in golden.PROBLEMS:
            lines.append(f"[losses.{objective}]")
            for variant in golden.VARIANT_NAMES:
                known = there.get("losses", {}).get(objective, {}).get(variant)
                lines.append(f"{variant} = {json.dumps(known or golden.losses(objective, variant))}")
            lines.append("")
    FILE.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
