"""Pages of variants and tasks follow the registry: what is registered is on them, without a change here."""

from io import BytesIO

import numpy as np
import pytest

from attnbench.bench.core.registry import TASKS, VARIANTS, parameters
from attnbench.docs.generator import attention_map, boards, registry_pages


def test_the_page_of_a_variant_has_equation_paper_parameters_map_and_measurements():
    page, pictures = registry_pages.variant_page("rela")
    variant = VARIANTS.load("rela")
    assert page.startswith("# rela\n") and "\nP = ReLU(Q K^T / sqrt(d))\n" in page and "Zhang, Titov" in page
    for name in parameters(variant):
        assert f"`{name}`" in page
    assert "](../../variants/maps/rela.py)" in page and "| causality | strict |" in page
    assert set(pictures) == {"maps/rela-full.png", "maps/rela-causal.png"} and "](maps/rela-causal.png)" in page
    # the reference stands beside it, with the board that it was measured on
    assert "](../../results/boards/" in page and "| **rela** |" in page and "| **softmax** |" in page


def test_the_page_of_a_task_has_data_presets_baselines_and_published_numbers():
    page, _ = registry_pages.task_page("lra-text")
    assert page.startswith("# lra-text\n") and "| `quick` |" in page and "- `bag-of-bytes`:" in page
    assert "attnbench data get lra-text" in page and "Nyströmformer (2021)" in page
    # the page is the same wherever it is built
    assert "/tmp" not in page and "/home" not in page and "/root" not in page and "site-packages" not in page


BOARD = """\
## Which attention is right most often on recall (quick)?

**Worse than softmax: rela.**

| rank | variant | accuracy |
| --- | :--- | ---: |
| 1 | **softmax** | 100 |
| 2 | **rela\\[gated=false\\]** | 90 |
| 3 | **linear** | 50 |

### Accuracy by length

| variant | 64 | 2048 |
| :--- | ---: | ---: |
| rela\\[gated=false\\] | 89.4 | 69.5 |
| linear | 49.4 | 29.5 |
| softmax | 99.4 | 79.5 |

- **data**: regenerated
"""


def test_a_page_has_the_rows_of_its_variant_and_the_reference_from_each_table_of_a_board(tmp_path, monkeypatch):
    (tmp_path / "recall-quick.md").write_text(BOARD)
    monkeypatch.setattr(boards, "FOLDER", tmp_path)
    monkeypatch.setattr(registry_pages, "tables", boards.tables.__wrapped__)
    page, _ = registry_pages.variant_page("rela")
    assert "**recall (quick)** ([whole board](../../results/boards/recall-quick.md)): Worse than softmax: rela." in page
    assert "| 1 | **softmax** | 100 |\n| 2 | **rela\\[gated=false\\]** | 90 |\n\n*Accuracy by length*" in page
    assert "| rela\\[gated=false\\] | 89.4 | 69.5 |\n| softmax |" in page and "linear | 49" not in page
    assert "No committed board" in registry_pages.variant_page("topk")[0]
    assert "| linear | 49.4 | 29.5 |" in registry_pages.task_page("recall")[0]


def test_presets_and_margins_are_in_numbers_that_agree_with_their_words():
    page, _ = registry_pages.task_page("recall")
    assert "1 layer of width 64 with 1 head, length 128" in page and "margin 1 point;" in page
    assert "margin 0.5 BLEU" in registry_pages.task_page("wmt14-en-de")[0]


def test_a_task_that_needs_parameters_has_a_page_too():
    assert "--task 'parallel[path=FOLDER" in registry_pages.task_page("parallel")[0]


@pytest.mark.parametrize("registry", [VARIANTS, TASKS], ids=lambda registry: registry.noun)
def test_the_list_has_every_registered_name_once(registry):
    page = registry_pages.index_page(registry, "All", "", {})
    own = [entry.name for entry in registry.entries() if registry.is_own(entry.name)]
    assert [page.count(f"[{name}]({name}.md)") for name in own] == [1] * len(own) and len(own) >= 20


def test_a_map_tells_exact_zeros_from_small_weights_and_shows_nothing_of_the_future():
    pillow = pytest.importorskip("PIL.Image")

    def pixels(image):
        return np.asarray(pillow.open(BytesIO(image)).convert("RGB"))

    drawn = pixels(attention_map.png(np.array([[0.0, 1e-9], [1.0, 0.5]])))
    colours = (attention_map.NOTHING, attention_map.LOW, attention_map.HIGH)
    assert (tuple(drawn[0, 0]), tuple(drawn[0, 1]), tuple(drawn[1, 0])) == colours
    causal = pixels(attention_map.attention_map("softmax", causal=True))
    future = np.triu(np.ones(causal.shape[:2], dtype=bool), 1)
    assert (causal[future] == attention_map.NOTHING).all() and (causal[~future] != attention_map.NOTHING).any(1).all()
    assert attention_map.attention_map("fastformer", causal=False) is None
