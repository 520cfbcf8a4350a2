"""The gate: no number for a wrong variant."""

from .paths import Path, paths
from .property import GateResult, Property
from .suite import PROPERTIES, examine, quick_gate

__all__ = ["PROPERTIES", "GateResult", "Path", "Property", "examine", "paths", "quick_gate"]
