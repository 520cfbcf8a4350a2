"""The table of architectures: six by each door of the bridge, all of the page in the soak, and what would be seen."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

import attnbench

pytest.importorskip("transformers", reason="needs the extra attnbench[transformers]")

import architectures as table

from attnbench.variants.integrations import own_attention
from attnbench.variants.integrations import transformers as bridge

ROOT = Path(attnbench.__file__).parent
PAGE = ROOT / "docs" / "huggingface-models.md"

SIX = {
    # causal; encoder; encoder and decoder; without input_ids; own attention; a part with its own
    "llama": ("equal", "equal", "equal"),
    "albert": ("equal", "equal", "equal"),
    "bart": ("equal", "equal", "equal"),
    "vit": ("refused: ViTModel takes pixel_values", "equal", "equal"),
    "gptj": ("refused: GPTJ", "refused: GPTJ", "refused: GPTJ"),
    "siglip_vision_model": ("refused: SiglipVisionModel", "equal, but warned: Multi", "equal, but warned: Multi"),
}


def committed() -> dict[str, list[str]]:
    """The outcome by each door, by model."""
    outcomes = PAGE.read_text(encoding="utf-8").split("## Outcomes")[1].split("## Reasons")[0]
    items = re.findall(r"^- \*\*(.*?)\*\* \(\d+\): ((?:.+\n)+?)(?=- |\n)", outcomes, re.MULTILINE)
    return {model: words.split(" · ") for words, models in items for model in re.split(r",\s+", models.strip())}


@pytest.mark.parametrize("name", SIX)
def test_each_door_gives_the_same_or_refuses(name: str) -> None:
    row = table.examine(name)
    for door, expected in zip(table.DOORS, SIX[name], strict=True):
        assert row[door].startswith(expected), (door, row[door])
        assert expected != "equal" or row[door] == "equal"


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(committed().keys() - SIX.keys()) if PAGE.exists() else [])
def test_each_architecture_of_the_page_is_as_it_says(name: str) -> None:
    row = table.examined(name)
    assert [row[door].partition(": ")[0] for door in table.DOORS] == committed()[name]


def test_the_page_knows_no_model_that_is_silently_different() -> None:
    outcomes = {outcome for row in committed().values() for outcome in row}
    assert len(committed()) == 404 and outcomes == {"equal", "equal, but warned", "refused"}


def test_a_name_that_changes_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_attention, "check_interface", lambda model: None)
    assert table.examine("gptj")["set_attn_implementation"] == "SILENT: entmax15 changes nothing"


def test_a_softmax_that_is_not_that_of_the_model_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    read = bridge.read_mask
    monkeypatch.setattr(
        bridge, "read_mask", lambda allowed, causal: read(allowed.new_ones(allowed.shape), causal=causal)
    )
    row = table.examine("albert")
    assert all(row[door].startswith("SILENT: softmax differs") for door in table.DOORS)


def test_a_layer_that_stays_as_it_is_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_attention, "own_attention", lambda model: [])
    row = table.examine("siglip_vision_model")
    assert row["set_attn_implementation"].startswith("SILENT: 1 softmax of attention stay as they are")


def test_a_model_that_dies_or_hangs_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "examine", lambda name: os._exit(3))
    assert table.examined("bert") == {"model": "bert", "skipped": "its process died"}
    monkeypatch.setattr(table, "SECONDS", 0.01)
    monkeypatch.setattr(table, "examine", lambda name: time.sleep(60))
    assert table.examined("bert")["skipped"].startswith("took more than")
