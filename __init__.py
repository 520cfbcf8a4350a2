"""attnbench: which attention should I use, and is this new one really better?"""
__version__ = "0.3.0"
__all__ = ["AttnbenchError", "audit", "boards", "check", "choose", "compare", "plan", "probe", "records", "register",
           "run", "status"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .bench.api import (
        AttnbenchError,
        audit,
        boards,
        check,
        choose,
        compare,
        plan,
        probe,
        records,
        register,
        run,
        status,
    )

def __getattr__(name: str) -> object:
    """Imports the Python interface when one of its names is first used, so that the package itself imports nothing."""
    if name in __all__:
        from .bench import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
