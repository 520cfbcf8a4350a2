"""Numbers that every measurement and every board agree on."""

from __future__ import annotations

LEAST_SEEDS = 3
LEAST_ROUNDS = 3
