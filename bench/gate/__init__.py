"""The gate: no number for a wrong variant."""

from .suite import PROPERTIES, GateResult, Property, examine, quick_gate
from .twins import Path, paths

__all__ = ["PROPERTIES", "GateResult", "Path", "Property", "examine", "paths", "quick_gate"]
