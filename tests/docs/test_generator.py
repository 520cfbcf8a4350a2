"""The site: pages of variants and tasks follow the registry, lists and docstrings are read as on code hosts."""

import re
import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest

import attnbench
from attnbench.bench.core.registry import TASKS, VARIANTS, parameters
from attnbench.docs.generator import attention_map, boards, lists, registry_pages
from attnbench.docs.generator.repository import ROOT

ELSEWHERE = re.compile(
    r'<(?:script|img|iframe|link rel="(?:stylesheet|icon|preload)")[^>]*(?:src|href)="(?:https?:)?//'
)


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    """A warning is a link or an anchor that does not hold."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text("utf-8") for path in tmp_path.rglob("*.html")}
    assert [page for page, text in pages.items() if ELSEWHERE.search(text)] == []
    for folder, registry in (("variants", VARIANTS), ("tasks", TASKS)):
        assert {f"{folder}/{name}.html" for name in registry_pages.names(registry)} <= pages.keys()
    # drawings stand in the pages, and take their colours
    assert '<div class="figure"><svg' in pages["concepts.html"] and "<style>" not in pages["concepts.html"]
    reference = pages["reference/python.html"]
    names = [name for name in attnbench.__all__ if name != "AttnbenchError"]
    assert all(re.search(rf'id="attnbench\.bench\.api\.\w+\.{name}"', reference) for name in names)
    assert "doctest" not in reference


def test_examples_of_docstrings_become_code():
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    from attnbench.docs.generator import docstrings

    text = "Words.\n\n>>> f(1)  # doctest: +SKIP\n2\n\nMore."
    assert docstrings.fenced(text) == "Words.\n\n```pycon\n>>> f(1)\n2\n```\n\nMore."


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("Words\n- one\n- two\n", ["p", "ul", "li", "li"]),
        ("1. one\n\n       code\n       more\n2. two\n", ["ol", "li", "p", "pre", "li", "p"]),
        ("- one of\n  62. of them\n- two\n", ["ul", "li", "li"]),
        ("of\n1984. that is\n", ["p"]),
        ("```\n- no\n```\n", ["pre"]),
    ],
)
def test_lists_are_read_as_code_hosts_read_them(text, tags):
    markdown_of = pytest.importorskip("markdown", reason="the extra docs is not installed").markdown
    made = markdown_of(lists.for_python_markdown(text), extensions=["fenced_code"])
    assert re.findall(r"<(p|ul|ol|li|pre)\b", made) == tags


def test_the_page_of_a_variant_has_equation_paper_parameters_map_and_measurements():
    page, pictures = registry_pages.variant_page("rela")
    assert page.startswith("# rela\n") and "Zhang, Titov" in page
    assert all(f"`{name}`" in page for name in parameters(VARIANTS.load("rela")))
    assert "](../../variants/maps/rela.py)" in page and "| causality | strict |" in page
    assert set(pictures) == {"maps/rela-full.png", "maps/rela-causal.png"} and "](maps/rela-causal.png)" in page


def test_the_page_of_a_task_has_data_presets_baselines_and_published_numbers():
    page, _ = registry_pages.task_page("lra-text")
    assert all(words in page for words in ("# lra-text\n", "| `quick` |", "- `bag-of-bytes`:", "Nyströmformer (2021)"))
    # the page is the same wherever it is built
    assert "/tmp" not in page and "/home" not in page and "/root" not in page and "site-packages" not in page
    # a task that needs parameters has a page too
    assert "--task 'parallel[path=FOLDER" in registry_pages.task_page("parallel")[0]


BOARD = """\
## Which attention is right most often on recall (quick)?

**Worse than softmax: rela.**

| rank | variant | accuracy |
| --- | :--- | ---: |
| 1 | **softmax** | 100 |
| 2 | **rela\\[gated=false\\]** | 90 |
| 3 | **linear** | 50 |
"""


def test_a_page_has_the_rows_of_its_variant_and_the_reference_of_a_board(tmp_path, monkeypatch):
    (tmp_path / "recall-quick.md").write_text(BOARD)
    monkeypatch.setattr(boards, "FOLDER", tmp_path)
    monkeypatch.setattr(registry_pages, "tables", boards.tables.__wrapped__)
    page, _ = registry_pages.variant_page("rela")
    assert "**recall (quick)** ([whole board](../../results/boards/recall-quick.md)): Worse than softmax: rela." in page
    assert "| 1 | **softmax** | 100 |\n| 2 | **rela\\[gated=false\\]** | 90 |\n" in page and "linear | 50" not in page
    assert "No committed board" in registry_pages.variant_page("topk")[0]


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
