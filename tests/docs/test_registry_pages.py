"""Pages of variants and tasks follow the registry: what is registered is on them, without a change here."""

import numpy as np
import pytest

from attnbench.bench.core.registry import TASKS, VARIANTS, parameters
from attnbench.docs.generator import attention_map, board_excerpts, registry_pages


def test_the_page_of_a_variant_has_equation_paper_parameters_map_and_measurements():
    page, pictures = registry_pages.variant_page("rela")
    variant = VARIANTS.load("rela")
    assert page.startswith("# rela\n") and "\nP = ReLU(Q K^T / sqrt(d))\n" in page and "Zhang, Titov" in page
    for name in parameters(variant):
        assert f"`{name}`" in page
    assert "](../../variants/maps/rela.py)" in page and "| causality | strict |" in page
    assert set(pictures) == {"rela-full.png", "rela-causal.png"} and "maps/rela-causal.png" in page
    # the reference stands beside it, with the board that it was measured on
    assert "](../../results/boards/" in page and "| softmax |" in page


def test_the_page_of_a_task_has_data_presets_baselines_and_published_numbers():
    page = registry_pages.task_page("lra-text")
    assert page.startswith("# lra-text\n") and "| `quick` |" in page and "- `bag-of-bytes`:" in page
    assert "attnbench data get lra-text" in page and "Nyströmformer (2021)" in page
    # the page is the same wherever it is built
    assert "/tmp" not in page and "/home" not in page and "/root" not in page and "site-packages" not in page


def test_pages_have_results_by_length_below_a_board_and_no_ranks_there(monkeypatch):
    def board(name, title, rows, first):
        columns = [{"name": f"at_{at}", "title": f"{at}", "better": "", "importance": at} for at in (64, 2048)]
        cells = {
            word: {f"at_{at}": {"text": f"{level - at / 100:.1f}"} for at in (64, 2048)} for word, level in rows.items()
        }
        made = [{"name": word, "first": first, "last": first, "reason": "", "entries": cells[word]} for word in rows]
        return {"name": name, "title": title, "columns": columns, "ranked": made, "unranked": [], "baselines": []}

    rows = {"softmax": 100.0, "rela": 90.0, "linear": 50.0}
    whole = board("recall/quick", "recall, preset quick", rows, 1)
    whole["parts"] = [
        board("recall/quick/by/length", "Accuracy by length", rows, None),
        board("recall/quick/kinds", "Kinds", rows, None),
    ]  # fmt: skip
    found = (board_excerpts.StoredBoard(whole, "results/boards/suite-lra-quick-validation.md"),)
    monkeypatch.setattr(board_excerpts, "boards", lambda: found)
    page = registry_pages.task_page("recall")
    assert "**Accuracy by length** (" in page and "| linear | 49.4 | 29.5 |" in page and "Kinds" not in page
    assert "| rank | variant | 64 | 2048 |" in page and "| variant | 64 | 2048 |\n" in page
    page, _ = registry_pages.variant_page("rela")
    assert "| rela | 89.4 | 69.5 |\n| softmax | 99.4 | 79.5 |" in page and "linear | 49" not in page


def test_a_row_without_a_rank_says_why_beside_its_name_and_numbers_stay_on_one_line():
    columns = [{"name": "gap", "title": "vs softmax", "better": "higher", "importance": 0}]
    gap = {"text": "+8 (+6 to +9)", "value": 8}
    rows = [
        {"name": "rela", "first": 1, "last": 2, "reason": "", "entries": {"gap": gap}},
        {"name": "entmax", "first": None, "last": None, "reason": "max: not run", "entries": {"gap": {"text": "a b"}}},
    ]
    excerpt = board_excerpts.StoredBoard({"columns": columns}, "").excerpt(rows)
    assert "| 1–2 | rela | +8\u00a0(+6\u00a0to\u00a0+9) |\n| – | entmax: max: not run | a b |" in excerpt


def test_presets_and_margins_are_in_numbers_that_agree_with_their_words():
    page = registry_pages.task_page("recall")
    assert "1 layer of width 64 with 1 head, length 128" in page and "margin 1 point;" in page
    assert "margin 0.5 BLEU" in registry_pages.task_page("wmt14-en-de")


def test_a_task_that_needs_parameters_has_a_page_too():
    assert "parallel[path=FOLDER" in registry_pages.task_page("parallel")


@pytest.mark.parametrize("registry", [VARIANTS, TASKS], ids=lambda registry: registry.noun)
def test_the_list_has_every_registered_name_once(registry):
    page = registry_pages.index_page(registry, "All", "", {})
    own = [entry.name for entry in registry.entries() if registry.is_own(entry.name)]
    assert [page.count(f"[{name}]({name}.md)") for name in own] == [1] * len(own) and len(own) >= 20


def test_a_new_name_appears_without_a_change(monkeypatch):
    monkeypatch.setenv("ATTNBENCH_VARIANTS", "brand-new=attnbench.variants.maps.softmax:Softmax")
    fresh = type(VARIANTS)("attnbench.variants", "variant")
    monkeypatch.setattr(fresh, "is_own", lambda name: True)
    assert "[brand-new](brand-new.md)" in registry_pages.index_page(fresh, "All", "", {})


def test_a_map_tells_exact_zeros_from_small_weights():
    image = attention_map.png(np.array([[0.0, 1e-9], [1.0, 0.5]]))
    pillow = pytest.importorskip("PIL.Image")
    from io import BytesIO

    pixels = np.asarray(pillow.open(BytesIO(image)).convert("RGB"))
    assert tuple(pixels[0, 0]) == attention_map.NOTHING and tuple(pixels[0, 1]) == attention_map.LOW
    assert tuple(pixels[1, 0]) == attention_map.HIGH


def test_a_causal_map_shows_nothing_of_the_future():
    pillow = pytest.importorskip("PIL.Image")
    from io import BytesIO

    pixels = np.asarray(pillow.open(BytesIO(attention_map.attention_map("softmax", causal=True))).convert("RGB"))
    future = np.triu(np.ones(pixels.shape[:2], dtype=bool), 1)
    assert (pixels[future] == attention_map.NOTHING).all() and (pixels[~future] != attention_map.NOTHING).any(1).all()
    assert attention_map.attention_map("fastformer", causal=False) is None
