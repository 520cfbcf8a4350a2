"""The correctness checks of a variant, from Python."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.errors import AttnbenchError, PluginError
from ..core.registry import VARIANTS
from ..core.spec import Spec
from ..process.ask import asking

if TYPE_CHECKING:
    from ..gate.report import CheckReport
    from ..gate.variant import VariantSource


def check(
    variant: VariantSource | Callable[..., Any],
    *,
    device: str = "cpu",
    dtype: str = "float32",
    causal: bool | None = None,
    by_design: Collection[str] = (),
    **arguments: Any,
) -> CheckReport:
    """Test what a variant promises: causality, padding, gradients, precision, decoding.

    variant: a name, such as `rela` or `mine.py:MyAttention[heads=4]`, a Spec, a class of the contract, or a function
    from an AttentionShape to a variant; or anybody's module, its class with `arguments`, or a function of query, key
    and value: these run in this process. device: `cpu` or `cuda`. dtype: `float32`, `bfloat16` or `float16`. causal:
    whether a module of anybody claims to be; None asks it. by_design: properties that it breaks on purpose, such as
    `["gradient"]` of a straight-through estimator. Returns a report that is true where no property fails; its `problem`
    says why a variant does not build, and its `note` how foreign code is called. Raises SelectionError for text that
    names none and for another dtype, DeviceError for a device that this machine lacks.

    >>> report = attnbench.check("rela")                                                           # doctest: +SKIP
    >>> assert report, report.failures                                                             # doctest: +SKIP
    """
    from ..gate.report import CheckReport
    from ..plan.facts import resolve
    from ..run.check import check_together, processes_for

    # what a child is told is plain
    given: dict[str, Any] = {"device": str(device), "dtype": str(dtype).removeprefix("torch.")}
    given |= {"causal": None if causal is None else bool(causal), "by_design": tuple(by_design)}
    if not isinstance(variant, str | Spec):
        return _checked_here(variant, arguments, given)
    spec = Spec.parse(variant) if isinstance(variant, str) else variant
    with asking():
        try:
            spec = resolve(VARIANTS, spec)
        except PluginError as error:
            return CheckReport(name=str(spec), results=(), seconds=0.0, problem=error.reason)
        # what this process may import is checked in it
        jobs = processes_for(given["device"]) if VARIANTS.is_foreign(spec.name) else 1
        ((_, found),) = check_together([spec], jobs=jobs, **given)
    if isinstance(found, AttnbenchError):
        raise found
    return found


def _checked_here(found: Any, arguments: dict[str, Any], more: dict[str, Any]) -> CheckReport:
    """The report of a live object, in this process: a class of the contract, or anybody's module or function."""
    from ..gate.report import check_variant

    name = getattr(found, "__name__", type(found).__name__)
    source = VARIANTS.adapted(found, name)
    if sizes := getattr(source, "sizes", None):
        more |= {"sizes": sizes(arguments), "note": "it ran in this process"}
    return check_variant(partial(source, **arguments) if arguments else source, name, **more)
