"""The gate: no number for a wrong variant."""

from .property import Finding, Property
from .suite import PROPERTIES, examine, quick_gate

__all__ = ["PROPERTIES", "Finding", "Property", "examine", "quick_gate"]
