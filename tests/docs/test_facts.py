"""The committed Records of results/facts: what the papers prove or claim, and the figures of the README."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path

from attnbench.bench.core.record import Record
from attnbench.bench.store.store import Store
from attnbench.docs.generator.repository import ROOT

FACTS = ROOT / "results" / "facts"


@cache
def records(folder: Path) -> list[Record]:
    return list(Store(folder).records())


@cache
def accuracies() -> dict[tuple[str, str], dict[int, list[float]]]:
    """By task and variant, then by length, of each seed."""
    found: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records(FACTS):
        for one in record.measurements:
            if one.name == "accuracy" and one.where.get("split") == "test" and "length" in one.where:
                found[str(record.cell.task), str(record.cell.variant)][int(one.where["length"])].append(one.value)
    return found


def test_parity_is_solved_by_negative_eigenvalues_alone() -> None:
    """Grazzi et al. 2024: in finite precision positive ones cannot, and DeltaNet with both can."""
    for length in (40, 64, 128, 256):
        assert len(solved := accuracies()["parity", "delta[eigenvalues=signed]"][length]) == 3
        # at the longest one seed has 0.959
        assert min(solved) > (0.95 if length == 256 else 0.99)
        for variant in ("delta", "gated-linear", "softmax"):
            assert len(failed := accuracies()["parity", variant][length]) == 3 and max(failed) < 0.53


def test_softmax_disperses_as_the_number_of_items_grows() -> None:
    """Velickovic et al. 2024; a temperature that follows the number of items keeps the largest apart."""
    softmax, scalable = (accuracies()["max", name] for name in ("softmax", "scalable-softmax"))
    assert len(softmax[16]) == len(scalable[16]) == 3
    means = [sum(softmax[length]) / 3 for length in (256, 1_024, 4_096, 16_384)]
    assert means == sorted(means, reverse=True) and means[0] > 0.9 and means[-1] < 0.25
    assert min(scalable[16_384]) > max(softmax[16_384]) + 0.5


def test_each_command_is_named_beside_what_it_measured() -> None:
    text = (FACTS / "README.md").read_text(encoding="utf-8")
    suites = ("state-tracking", "dispersion", "recall-state", "learning-rates", "language-positions")
    assert all(f"--suite {name}`" in text for name in suites)


def test_recall_does_not_follow_the_bytes_of_state_from_family_to_family() -> None:
    """Of 64 pairs a window and softmax (136 KiB) keep all at each seed, the delta rule and softmax (144 KiB) do not."""
    found: dict[str, list[float]] = defaultdict(list)
    for record in records(FACTS):
        if str(record.cell.task) == "recall" and record.cell.preset.get("layers") == 2:
            found[str(record.cell.variant)] += [
                one.value for one in record.measurements if one.name == "accuracy" and one.where.get("pairs") == 64
            ]
    window, delta = found["window[size=16]//softmax"], found["delta//softmax"]
    assert len(window) == len(delta) == 3 and min(window) > 0.99 and max(delta) < 0.7


def test_the_added_parameters_are_those_that_the_records_state() -> None:
    found = {
        str(record.cell.variant): {one.value for one in record.measurements if one.name == "parameters"}
        for record in records(ROOT / "results")
        if str(record.cell.task) == "selective-copy" and record.cell.lane == "train"
    }
    text = (FACTS / "README.md").read_text(encoding="utf-8")
    [softmax] = found["softmax"]
    for name in ("indexer[k=16]", "delta[decay=channel]", "gate+softmax"):
        [own] = found[name]
        assert f"| `{name}` | +{100 * (own / softmax - 1):.1f} |" in text


def test_softmax_translates_captions_at_28_bleu_or_more_at_each_seed() -> None:
    found = defaultdict(list)
    for record in records(ROOT / "results"):
        if str(record.cell.task) == "multi30k-en-de" and record.cell.lane == "train":
            found[str(record.cell.variant)] += [
                one.value
                for one in record.measurements
                if one.name == "bleu" and "2016" in str(one.where["set"]) and one.where["split"] == "test"
            ]
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(
        ("softmax", "entmax15", "rela", "sparsemax"), 3
    )
    assert min(found["softmax"]) > 28
