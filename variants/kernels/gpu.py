"""The kernels for GPUs: files of the folder `triton`, which an installation may lack.

A variant imports them from here by name, `from ..kernels.gpu import map_attention`: the file is found that is called so
or defines it. No module outside the folder imports one inside it, so that the folder can be left out. Importing this
module imports neither PyTorch nor Triton.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...bench.core.errors import Unsupported

if TYPE_CHECKING:
    import torch

    # for type checkers alone: what is named nowhere here is found as well
    from .triton import entmax as entmax
    from .triton import norm as norm
    from .triton import prefix as prefix
    from .triton.additive import additive_attention as additive_attention
    from .triton.flex import flex_interval_attention as flex_interval_attention
    from .triton.interval import Intervals as Intervals
    from .triton.interval import interval_attention as interval_attention
    from .triton.launch import LOWEST_ALPHA as LOWEST_ALPHA
    from .triton.launch import compile_all as compile_all
    from .triton.launch import recording as recording
    from .triton.linear import linear_attention as linear_attention
    from .triton.maps import map_attention as map_attention
    from .triton.ranks import rank_attention as rank_attention
    from .triton.written import functions as functions

FOLDER = Path(__file__).with_name("triton")

MISSING = "this installation has no Triton kernels"


@cache
def file_of(name: str) -> Path | None:
    """The file of the folder that is called `name`, or defines it; None if there is none."""
    called = FOLDER / f"{name}.py"
    if called.is_file():
        return called
    definition = re.compile(rf"^(?:(?:def|class) {name}\b|{name} = )", re.MULTILINE)
    files = sorted(FOLDER.glob("*.py"))
    return next((file for file in files if definition.search(file.read_text(encoding="utf-8"))), None)


def installed() -> bool:
    """True if the kernels are here, and Triton."""
    return file_of("launch") is not None and find_spec("triton") is not None


def reason(device: str, dtype: torch.dtype, head_dim: int) -> str | None:
    """None, or why Triton kernels cannot work on such tensors here. `device` is a type: "cuda", "cpu"."""
    found: str | None = MISSING if file_of("launch") is None else _module("launch").reason(device, dtype, head_dim)
    return found


def __getattr__(name: str) -> Any:
    file = file_of(name)
    if file is not None:
        module = _module(file.stem)
        return module if file.stem == name else getattr(module, name)
    if name == "LOWEST_ALPHA":
        # asked when a variant is imported, and of no use without kernels
        return 1.0
    if name.startswith("__") or file_of("launch") is not None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise Unsupported(f"{MISSING}: {name} is one of them")


def _module(name: str) -> Any:
    return import_module(f"{__package__}.triton.{name}")
