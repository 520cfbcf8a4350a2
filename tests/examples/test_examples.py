"""The examples run as their docstrings say, at small sizes."""

import ast
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import attnbench

ROOT = Path(attnbench.__file__).parent
EXAMPLES = ROOT / "examples"


def run(name, *arguments, folder, code=0):
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


def test_every_example_is_tested_here():
    tested = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'run("{path.name}"' in tested, path.name


def notebook():
    cells = json.loads((EXAMPLES / "ten_cells.ipynb").read_text(encoding="utf-8"))["cells"]
    return cells, ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_has_ten_cells_without_output():
    cells, codes = notebook()
    assert len(cells) == 10 and len({cell["id"] for cell in cells}) == 10
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells if "outputs" in cell)
    for code in codes:
        ast.parse(code)


@pytest.mark.slow  # trains three models
def test_the_cells_of_the_notebook_run_in_order(tmp_path):
    program = "if __name__ == '__main__':\n    shown = {}\n"
    program += "".join(f"    exec({code!r}, shown)\n" for code in notebook()[1])
    program += """
    assert shown["report"] and not shown["found"].failures
    assert {"mine.py:cooled", "softmax", "entmax15"} <= {*shown["board"].to_pandas()["variant"]}
    assert shown["charts"]["curves"].to_dict()["datasets"]
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_variant_trains_in_a_model_of_ones_own(tmp_path):
    variant = "local[flange=8,query_block=8]"
    (line,) = run("use_a_variant.py", "--variant", variant, "--steps", "40", folder=tmp_path).split("\n")[:-1]
    words = line.removeprefix(f"{variant}: loss ").split()
    assert float(words[0]) > 2.0 and float(words[5]) < 1.5, line


@pytest.mark.slow
def test_a_variant_of_ones_own_is_checked_timed_and_shown(tmp_path):
    small = ["--tasks", "sweep[length=32,heads=1]", "--preset", "smoke[timing_seconds=0.2]", "--results", "r"]
    shown = run("benchmark_a_variant.py", *small, folder=tmp_path)
    summary, *boards = shown.split("\n")
    assert summary.startswith("floored: fails: nothing")
    assert any("floored" in line for line in boards) and any("softmax" in line for line in boards)
    assert len(list((tmp_path / "r" / "records").glob("*.jsonl"))) == 1


@pytest.mark.slow
def test_records_become_a_table_and_a_plot(tmp_path):
    shown = run("read_records.py", str(ROOT / "results"), "--plot", "accuracy.html", folder=tmp_path)
    header, *rows = shown.split("\n")
    assert header.split() == ["task", "preset", "variant", "mean", "std", "count"]
    listops = {words[2]: float(words[3]) for words in map(str.split, rows) if words[:2] == ["lra-listops", "quick"]}
    assert 20 < listops["softmax"] < 60
    if find_spec("altair"):
        assert "vega" in (tmp_path / "accuracy.html").read_text()
    else:
        assert "no plot" in shown and not (tmp_path / "accuracy.html").exists()


@pytest.mark.slow  # trains a model, and what it shows other tests assert of smaller ones
@pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra attnbench[transformers]")
def test_a_hugging_face_model_gets_another_attention(tmp_path):
    lines = run("huggingface.py", folder=tmp_path).split("\n")[:-1]
    found = {line[:40].strip(): float(line.split()[-1]) for line in lines}
    trained, tuned = found["softmax, as trained"], found["entmax15, after 100 steps"]
    # bytes at random would be 256, and the letters of the text alone about 17
    assert len(found) == 4 and trained < 2.0 and tuned < found["entmax15, zero-shot, temperature 1.0"]


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra attnbench[transformers]")
def test_bonds_and_maps_of_a_reaction_are_read(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import atom_maps
    import numpy as np

    read = atom_maps.Reaction("C1OC1C.[NH2-]>>CC(Br)C[13CH3]")
    assert " ".join(read.tokens[1:-1]) == "C 1 O C 1 C . [NH2-] >> C C ( Br ) C [13CH3]"
    assert list(read.elements) == ["C", "O", "C", "C", "N", "C", "C", "Br", "C", "C"]
    bonds = {(int(a), int(b)) for a, b in np.argwhere(np.triu(read.bonds))}
    assert bonds == {(0, 1), (1, 2), (0, 2), (2, 3), (5, 6), (6, 7), (6, 8), (8, 9)}
    # each product atom looks at one atom of its element; an oxygen that nothing was stays unmapped
    read = atom_maps.Reaction("CO.N>>NCO")
    weights = np.zeros((len(read.tokens),) * 2)
    for product, reactant in ((6, 4), (7, 1)):
        weights[product, reactant] = 0.5
    assert atom_maps.atom_map(read, weights) == ([2, 0, -1], 1.0)
    weights[2, 8] = 0.25
    assert atom_maps.atom_map(read, weights)[0] == [2, 0, 1]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra attnbench[transformers]")
def test_atom_maps_by_softmax_are_those_of_the_model(tmp_path, monkeypatch):
    """Of a random model in the place of the pretrained one."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import atom_maps
    import torch
    from transformers import AlbertConfig, AlbertModel

    place = tmp_path / atom_maps.MODEL
    place.mkdir(parents=True)
    tokens = sorted({token for smiles in atom_maps.REACTIONS.values() for token in atom_maps.TOKEN.findall(smiles)})
    (place / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *tokens]) + "\n")
    sizes = {"embedding_size": 8, "hidden_size": 48, "intermediate_size": 16, "num_attention_heads": 6}
    sizes["vocab_size"] = 64
    torch.manual_seed(0)
    weights = AlbertModel(AlbertConfig(**sizes)).state_dict()
    torch.save({f"albert.{name}": value for name, value in weights.items()}, place / "pytorch_model.bin")
    (place / "config.json").write_text(json.dumps(sizes | {"output_past": True}))
    lines = run("atom_maps.py", str(tmp_path), folder=tmp_path).split("\n")[2:-1]
    rows = [line.strip("| ").split(" | ") for line in lines]
    assert [row[0] for row in rows] == [name for name, _ in atom_maps.CANDIDATES]
    assert rows[0][1:4] == ["1", "100.0%", "100.0%"] and float(rows[0][-1]) < 1e-5


@pytest.mark.slow
def test_one_file_trains_a_variant_and_finds_the_leak_of_another(tmp_path):
    trained = run("one_file.py", "--variant", "linear", "--steps", "4", folder=tmp_path).split("\n")[:-1]
    assert len(trained) == 4 and trained[3] == "linear: no leak found"
    assert "leaking: LEAKS" in run("one_file.py", "--variant", "leaking", "--steps", "1", folder=tmp_path, code=1)
    assert (EXAMPLES / "one_file.py").read_text(encoding="utf-8").count("\n") <= 300


def test_the_audit_of_the_broken_layer_is_that_of_the_readme(tmp_path):
    found = run("broken.py", folder=tmp_path)
    (shown,) = re.findall(
        r"\$ attnbench audit examples/broken.py:MyAttention\n((?:    .*\n)+)", (ROOT / "README.md").read_text()
    )
    # digits of sizes may depend on the processor
    plain, lines = (
        re.sub(r"[\d.]+", "#", found),
        [re.sub(r"[\d.]+", "#", line.strip()) for line in shown.split("\n")[:-1]],
    )
    assert len(lines) == 3 and all(line in plain.split("\n") for line in lines), found
