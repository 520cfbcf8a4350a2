"""The gate: no number for a wrong variant."""

from .property import Property
from .result import Result
from .suite import PROPERTIES, examine, quick_gate
from .twins import Path, paths

__all__ = ["PROPERTIES", "Path", "Property", "Result", "examine", "paths", "quick_gate"]
