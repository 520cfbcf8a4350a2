"""Statements of the pages about committed Records and boards."""

import math
import re
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from statistics import fmean, stdev

import pytest

from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.options import load_suite
from attnbench.bench.score.contrasts import COMPARISON_SETS, Contrasts
from attnbench.bench.stats.intervals import NoiseSource, seeds_needed
from attnbench.bench.store.store import Store
from attnbench.docs.generator.boards import tables
from attnbench.docs.generator.repository import ROOT, markdown_files

SUITE = load_suite("synthetic")


FIRST = {
    "softmax": "softmax", "1.5-entmax": "entmax15", "ReLA": "rela", "DeltaNet": "delta",
    "window of 64, learned sink": "window[sink=learned,size=64]", "gated linear": "gated-linear",
}  # fmt: skip
"""The rows of the README's table, by the variants that they show."""


def test_the_table_of_the_readme_is_that_of_the_committed_board():
    (page,) = (ROOT / "results/facts/boards").glob("tinyshakespeare-quick-longest=1024-positions=rope-*.md")
    found = {}
    for part in page.read_text("utf-8").replace("\\", "").split("###")[:2]:
        titles, _, *lines = [line.strip("|").split("|") for line in part.split("\n") if line.startswith("|")]
        for line in lines:
            row = dict(zip((title.strip(" ↓↑") for title in titles), (cell.strip(" *") for cell in line), strict=True))
            found.setdefault(row["variant"], {}).update(row)
    readme = (ROOT / "README.md").read_text("utf-8")
    assert page.name in readme and found["softmax"]["vs softmax"] == "reference"
    table = re.search(r"<!-- board:text -->\n(.*?)<!-- /board -->", readme, re.DOTALL).group(1).strip().split("\n")
    for (name, variant), line in zip(FIRST.items(), table[2:], strict=True):
        bits = [
            str(Decimal(found[variant][at]).quantize(Decimal("0.01"), ROUND_HALF_UP)) for at in ("128", "256", "1,024")
        ]
        step = re.sub(r" \(.*| a step", "", found[variant]["step time"])
        assert line == f"| {name} | {' | '.join(bits)} | {step} |"
        assert found[variant]["verdict"] in ("", "undecided")
    parameters = {
        str(record.cell.variant): record.first("parameters").value
        for (_, task, variant), records in trained().items()
        if task == "tinyshakespeare" and variant in FIRST.values()
        for record in records
        if record.cell.preset == Spec.parse("quick[longest=1024,positions=rope]")
    }
    *shares, most = sorted(abs(parameters[variant] / parameters["softmax"] - 1) for variant in FIRST.values())
    assert 0.0025 < shares[-1] < 0.003 and round(100 * most, 1) == 9.7
    assert "gaps below 0.176 to 0.240 bits would be missed" in page.read_text("utf-8")


def test_no_page_installs_from_an_index_before_there_is_a_release():
    """The name on an index could be anybody's; only the README may name the extras of a checkout."""
    pages = {path: (ROOT / path).read_text("utf-8") for path in markdown_files()}
    assert [path for path, text in pages.items() if re.search(r"pip install '?attnbench\[", text)] == ["README.md"]


@pytest.mark.parametrize("task", ["lra-image", "lra-listops", "lra-text"])
def test_no_variant_could_be_told_from_softmax_at_quick(task):
    """The statements of docs/negative-results.md and docs/lra.md."""
    (board,) = [table for table in tables() if table.title == f"{task} (quick)" and not table.part]
    assert "No variant differs measurably from softmax" in board.headline
    assert task != "lra-listops" or "No variant beats the rule root-and-literals (54.4)" in board.headline
    (row,) = [line for line in board.lines if line.startswith("| baseline | no-attention |")]
    # three seeds below halfway may all have failed, so that their means prove nothing
    assert "undecided" in row
    said = re.search(rf"\n- `{task}`: .*?(?=\n- |\n\n)", (ROOT / "docs/lra.md").read_text("utf-8"), re.DOTALL)[0]
    gap = row.split(" | ")[board.lines[0].split(" | ").index("vs softmax ↑")]
    assert len(re.findall(r"\d+\.\d", gap)) == 3 and all(number in said for number in re.findall(r"\d+\.\d", gap))


@cache
def trained():
    """Records of training by task and variant, of each cell the first of the newest code, as on the boards."""
    by_cell = {}
    for folder in ("results", "results/facts"):
        for record in sorted(Store(ROOT / folder).records(), key=lambda record: record.started):
            if record.cell.lane == "train" and (folder == "results/facts" or record.cell.preset == SUITE.preset):
                by_cell.setdefault((folder, record.key), []).append(record)
    chosen = {}
    for (folder, _), records in by_cell.items():
        first = next(record for record in records if record.digest == records[-1].digest)
        chosen.setdefault((folder, str(first.cell.task), str(first.cell.variant)), []).append(first)
    return chosen


@pytest.mark.parametrize(
    ("folder", "task", "variant", "where", "seeds", "low", "high"),
    [
        # Grazzi et al. 2024: only negative eigenvalues solve parity
        ("results/facts", "parity", "delta[eigenvalues=signed]", {"length": 256}, 3, 0.95, 1),
        ("results/facts", "parity", "delta", {"length": 40}, 3, 0, 0.53),
        ("results/facts", "parity", "softmax", {"length": 40}, 3, 0, 0.53),
        # Velickovic et al. 2024 and Nakanishi 2025: softmax disperses, a temperature by the length does not
        ("results/facts", "max", "softmax", {"length": 16_384}, 3, 0, 0.25),
        ("results/facts", "max", "scalable-softmax", {"length": 16_384}, 3, 0.9, 1),
        # recall does not follow the bytes of state from family to family
        ("results/facts", "recall", "window[size=16]//softmax", {"pairs": 64}, 3, 0.99, 1),
        ("results/facts", "recall", "delta//softmax", {"pairs": 64}, 3, 0.5, 0.7),
        # Arora et al. 2023 and 2024: attention recalls all, a state of fixed size so many pairs
        ("results", "recall", "softmax", {"length": 256, "pairs": 64}, 12, 0.99, 1),
        ("results", "recall", "linear", {"length": 64, "pairs": 4}, 12, 0.95, 1),
        ("results", "recall", "linear", {"length": 256, "pairs": 64}, 12, 0.5, 0.7),
        ("results", "recall", "window[sink=learned,size=16]", {"length": 512, "pairs": 16}, 12, 0, 0.05),
        # Vasylenko et al. 2025: maps with exact zeros hold at sixteen times the training length
        ("results", "selective-copy", "entmax15", {"length": 1024}, 12, 0.97, 1),
        ("results", "selective-copy", "rela", {"length": 1024}, 12, 0.97, 1),
        ("results", "selective-copy", "softmax", {"length": 1024}, 12, 0.45, 0.8),
        ("results", "selective-copy", "delta//softmax", {"length": 1024}, 12, 0.99, 1),
        ("results", "max", "no-attention", {"length": 1024}, 12, 0, 0.2),
    ],
)
def test_the_committed_records_agree_with_published_facts(folder, task, variant, where, seeds, low, high):
    by_seed = {}
    for record in trained()[folder, task, variant]:
        for one in record.measurements:
            if one.name == "accuracy" and one.where.get("split") == "test" and where.items() <= one.where.items():
                by_seed.setdefault(record.cell.seed, []).append(one.value)
    means = [fmean(values) for values in by_seed.values()]
    assert len(means) == seeds and low <= fmean(means) <= high


def test_the_page_of_records_states_the_noise_of_softmax_and_the_seeds_of_a_claim():
    bits = [
        record.first("bits_per_character", split="test").value
        for record in trained()["results/facts", "tinyshakespeare", "softmax"]
        if record.cell.preset.name == "record"
    ]
    _, page = (ROOT / "docs" / "records.md").read_text("utf-8").split("How many seeds")
    text, deviation = " ".join(page.split()), stdev(bits)
    assert len(bits) == 10
    assert f"at ten seeds {fmean(bits):.3f} bits, standard deviation {deviation:.3f}." in text
    contrasts, stated = Contrasts({}, COMPARISON_SETS["bits_per_character"]), round(deviation, 3)
    pairs = contrasts.pairs("softmax", "relative"), contrasts.pairs("softmax", "mine")
    assert pairs == (6, 28) and "six pairs of the four declared variants" in text and "28 pairs" in text

    # as if the seeds were not paired, which they are: a pair can need fewer
    def noise_of(seeds: int) -> list[NoiseSource]:
        return [NoiseSource(stated * math.sqrt(2 / seeds), 2 * (seeds - 1))]

    for gain in (0.1, 0.05, 0.02, 0.01):
        declared, other = (seeds_needed(gain, noise_of, 1 - 0.05 / each, least=3) for each in pairs)
        words = f"{declared}(?: seeds of each)? \\({other}\\b" if declared else "more than 100"
        assert re.search(rf"{gain}\b[^.]*? with {words}", text), (gain, declared, other)
