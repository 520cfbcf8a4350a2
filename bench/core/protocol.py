"""Numbers that measurements and boards agree on: minimal counts, and the versions of lanes."""

from __future__ import annotations

LEAST_SEEDS = 3
LEAST_ROUNDS = 3

# Raise a version when a change moves the numbers of every variant in that lane; Records of two versions are never
# averaged. `tests/golden` fails when the code has changed and the version has not. Objectives: see `Problem`.
LANE_VERSIONS = {"train": 1, "time": 1, "baseline": 1, "tune": 1}

VERSION_ZERO = "version 0"
"""Records made before versions were declared."""

RATE_SETTINGS = ("learning_rate", "learning_rates", "tuning_seeds", "rate_extensions")
"""The settings of a preset that only choose a learning rate."""
