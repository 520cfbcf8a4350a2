"""What the page of negative results says of the committed boards is what they say."""

import re

import pytest

from attnbench.docs.generator.boards import tables
from attnbench.docs.generator.repository import ROOT

BOARDS = {table.title: table for table in tables() if not table.part}
PAGE = (ROOT / "docs" / "negative-results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("lra-image", "No variant differs measurably from softmax"),
        (
            "lra-listops",
            "No variant beats the rule root-and-literals (54.4). No variant differs measurably from softmax",
        ),
        ("lra-text", "No variant differs measurably from softmax"),
    ],
)
def test_no_variant_could_be_told_from_softmax(task, said):
    assert BOARDS[f"{task} (quick)"].headline.startswith(said)
    assert "no variant could be told from softmax" in " ".join(PAGE.split())


@pytest.mark.parametrize("task", ["lra-image", "lra-text"])
def test_no_gain_of_attention_is_shown(task):
    (row,) = [line for line in BOARDS[f"{task} (quick)"].lines if line.startswith("| baseline | no-attention |")]
    (interval,) = re.findall(r" \| [+−][\d.]+ \((\S+) to (\S+)\) \|", row)
    low, high = (float(bound.replace("−", "-")) for bound in interval)
    assert low < 0 < high


def test_a_rule_beats_every_variant_on_listops():
    rows = [re.split(r" \| ", line.strip("| ")) for line in BOARDS["lra-listops (quick)"].lines[2:]]
    best = {
        kind: max(float(row[2].split()[0]) for row in rows if (row[0] == "baseline") == kind) for kind in (True, False)
    }
    assert best[True] > best[False]
