"""The site builds without a warning, and so every link and anchor of it holds; it is whole and needs no network."""

import re
import subprocess
import sys

import pytest

import attnbench
from attnbench.bench.core.registry import TASKS, VARIANTS
from attnbench.docs.generator.repository import ROOT

ELSEWHERE = re.compile(
    r'<(?:script|img|iframe|link rel="(?:stylesheet|icon|preload)")[^>]*(?:src|href)="(?:https?:)?//'
)


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = {
        page.relative_to(tmp_path).as_posix(): page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")
    }
    assert [page for page, text in pages.items() if ELSEWHERE.search(text)] == []
    for folder, registry in (("variants", VARIANTS), ("tasks", TASKS)):
        own = {f"{folder}/{entry.name}.html" for entry in registry.entries() if registry.is_own(entry.name)}
        assert own <= pages.keys()
    # drawings stand in the pages, and take their colours
    own = [page for name, page in pages.items() if "/" not in name]
    drawings = [text.split("</svg>")[0] for page in own for text in page.split('<div class="figure">')[1:]]
    assert len(drawings) == len(set(re.findall(r"figures/([\w-]+\.svg)", "".join(guides())))) and len(drawings) > 5
    assert not any("<style>" in drawing for drawing in drawings)
    # functions come from docstrings, whose examples are code
    reference = pages["reference/python.html"]
    assert all(
        f'id="attnbench.bench.api.{name}"' in reference for name in attnbench.__all__ if name != "AttnbenchError"
    )
    assert "doctest" not in reference


def guides():
    return [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]


def test_a_drawing_has_a_title_and_colours_for_a_dark_page():
    for path in (ROOT / "docs" / "figures").glob("*.svg"):
        drawn = path.read_text(encoding="utf-8")
        assert path.name in "".join(guides()) + (ROOT / "README.md").read_text(encoding="utf-8")
        if "<title>" in drawn:
            assert "prefers-color-scheme: dark" in drawn


def test_shares_in_a_drawing_are_those_of_the_simulations():
    drawn = (ROOT / "docs" / "figures" / "moderation.svg").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "scoring_simulations.md").read_text(encoding="utf-8")
    simulated = {float(share) for share in re.findall(r"\| (\d+(?:\.\d+)?)(?: %| ▲)? ?(?=\|)", page)}
    shares = [float(share) for share in re.findall(r">([\d.]+) %<", drawn)]
    assert len(shares) > 6 and set(shares) <= simulated | {5.0}
