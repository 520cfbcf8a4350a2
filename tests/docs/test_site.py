"""The drawings are those of their script, and the site builds without a warning, whole and without network."""

import subprocess
import sys

import pytest

from attnbench.docs.generator import figures
from attnbench.docs.generator.links import check_site
from attnbench.docs.generator.repository import ROOT


@pytest.mark.parametrize("name", figures.DRAWINGS)
def test_a_committed_drawing_is_what_its_script_draws(name):
    drawn = figures.DRAWINGS[name]().svg()
    assert (figures.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == drawn
    assert "prefers-color-scheme: dark" in drawn and "<title>" in drawn
    # in the site the drawing brings no colours of its own
    assert "<style>" not in figures.inline(drawn, "words") and "<title>words</title>" in figures.inline(drawn, "words")


def test_shares_in_a_drawing_are_those_of_the_simulations():
    page = (ROOT / "docs" / "scoring_simulations.md").read_text(encoding="utf-8")
    rows = [[cell.strip(" %▲") for cell in line.split("|")[1:-1]] for line in page.split("\n") if line.startswith("| ")]
    for name, (_, seeds, before, now) in figures.SIMULATED.items():
        of_seeds = [row for row in rows if row[0] == name.partition(", five")[0] and str(seeds) in row[1:3]]
        of_six = next(row for row in of_seeds if row[1] in ("6", str(seeds)))
        found = of_six[2:4] if len(of_six) == 5 else of_six[5:7]
        assert [float(share) for share in found] == [before, now]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_every_link_and_anchor_of_it_holds(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    checked = check_site(tmp_path)
    assert checked.faults == [] and checked.pages > 100
    # drawings stand in the page, functions come from docstrings, and their examples are code
    guides = [page.read_text(encoding="utf-8") for page in tmp_path.glob("*.html")]
    assert sum(page.count('class="figure"') for page in guides) == len(figures.DRAWINGS)
    reference = (tmp_path / "reference" / "python.html").read_text(encoding="utf-8")
    assert 'id="attnbench.bench.api.run"' in reference and "doctest" not in reference
