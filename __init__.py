"""attnbench: which attention should I use, and is this new one really better?"""

__version__ = "0.3.0"
__all__ = ["AttnbenchError", "boards", "check", "compare", "plan", "records", "register", "run", "status"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .bench.api.boards import boards, records
    from .bench.api.check import check
    from .bench.api.pages import compare
    from .bench.api.run import plan, register, run, status
    from .bench.core.errors import AttnbenchError

_MODULES = {"api.boards": ("boards", "records"), "api.check": ("check",), "api.pages": ("compare",),
            "api.run": ("plan", "register", "run", "status"), "core.errors": ("AttnbenchError",)}  # fmt: skip


def __getattr__(name: str) -> "Any":
    """Imports what holds a name when it is first used, so that the package itself imports nothing.

    Names beside those of the core, such as `audit`, are entry points of `attnbench.functions`.
    """
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f".bench.{module}", __name__), name)
    if not name.startswith("_"):
        from .bench.core.entry_points import loaded, read_group

        if point := read_group("attnbench.functions").points.get(name):
            return loaded(point)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
