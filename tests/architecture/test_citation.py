"""CITATION.cff states this version, and the fields that a reference needs."""

from pathlib import Path

import pytest

import attnbench

CITATION = (Path(attnbench.__file__).parent / "CITATION.cff").read_text(encoding="utf-8")


def test_the_citation_states_the_version_of_the_package_and_what_the_format_asks_for():
    yaml = pytest.importorskip("yaml", reason="pyyaml comes with the extras dev and docs")
    citation = yaml.safe_load(CITATION)
    assert citation["version"] == attnbench.__version__
    # the format's required keys, and the words that it allows for the kind of work
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0" and citation["type"] in ("software", "dataset")
    assert citation["license"] == "Apache-2.0" and all("name" in author for author in citation["authors"])
