"""Where the package lies on disk."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent.parent

RESULTS = Path("results/local")
"""The results folder where none is named, below the current folder."""
