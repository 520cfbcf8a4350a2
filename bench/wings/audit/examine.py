"""Audit a named target in a child, or a live object in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from ...core.errors import PluginError, SelectionError
from ...core.registry import Registry
from ...core.spec import Spec, with_call
from ...process.ask import Reporter, Request, ask, asking
from .report import AuditReport

AUDIT_PATIENCE = 10.0
"""Factor on the time that an answer may take: some layers loop over positions."""


class Targets(Registry):
    """Names that say themselves where their code lies; each file or module has a child of its own."""

    def _point(self, name: str) -> EntryPoint:
        return EntryPoint(name, name, self.group)

    def package(self, name: str) -> str:
        return name.rpartition(":")[0]

    def plugin(self, name: str) -> str:
        return f"the target {name!r}"


TARGETS = Targets("attnbench.audit", "target")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTarget(Request[AuditReport]):
    """All findings about what a Spec names. causal, compile, by_design: as of `audit_module`."""

    target: Spec
    causal: bool | None
    compile: str
    by_design: tuple[str, ...]

    def answer(self, reporter: Reporter) -> AuditReport:
        from ...run.global_state import changes_since_noted, note_functions
        from .suite import audit_module
        from .target import load_target

        note_functions()
        target = load_target(self.target)
        report = audit_module(
            target.module, str(self.target), call=target.call, causal=self.causal, compile=self.compile,
            by_design=self.by_design, building=target.lines,
        )  # fmt: skip
        # code that replaces what examines it has no verdict
        if changes := changes_since_noted():
            raise PluginError(TARGETS.plugin(self.target.name), changes)
        return report


def audit(
    target: Any,
    *,
    call: str | Callable[..., Any] = "",
    causal: bool | None = None,
    compile: str = "aot_eager",
    by_design: Collection[str] = (),
) -> AuditReport:
    """Test a layer, an attention function or a model of anybody: leaks, padding, caches, gradients, precision.

    target: `mine.py:MyAttention[dim=64]`, `package.module:NAME` or `transformers:DogeForCausalLM`, each in a child;
    or a live module or function, which runs in this process. call: how it is called, where that is not found: text
    such as `"m(x, mask=valid)[0]"`, or a function of the module, the inputs and `valid`, which is True at tokens,
    (batch, positions). causal: whether it claims to be; None asks the module. compile: backend of torch.compile, or "".
    by_design: names of findings that are no failures of this target, such as `["future"]` of a context that is seen
    both ways. Returns a report that is true where nothing else fails. Raises SelectionError for text that names
    nothing, PluginError for code that dies.

    >>> print(attnbench.audit(module, call=lambda m, x, valid: m(x, attention_mask=valid)[0]))     # doctest: +SKIP
    """
    from .suite import audit_module

    if not isinstance(target, str | Spec):
        name = getattr(target, "__name__", type(target).__name__)
        return audit_module(target, name, call=call, causal=causal, compile=compile, by_design=by_design)
    if not isinstance(call, str):
        raise SelectionError("expected the call of a named target as text: its code runs in a child")
    [spec] = with_call([str(Spec.parse(target) if isinstance(target, str) else target)], call)
    with asking():
        request = AuditTarget(target=spec, causal=causal, compile=compile, by_design=tuple(by_design))
        return ask(TARGETS, spec.name, request, patience=AUDIT_PATIENCE)
