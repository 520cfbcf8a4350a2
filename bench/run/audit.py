"""The audit of a named target, in a child: the code is somebody's."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint

from ..audit.report import AuditReport
from ..audit.suite import audit_module
from ..audit.target import load_target
from ..core.registry import Registry
from ..core.spec import Spec
from ..process.ask import Reporter, Request

AUDIT_PATIENCE = 10.0
"""How often the time of an answer an audit may take: some layers loop over positions."""


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
    """All findings about what a Spec names. call, causal, compile: as of `audit_module`."""

    target: Spec
    call: str
    causal: bool | None
    compile: str

    def answer(self, reporter: Reporter) -> AuditReport:
        target = load_target(self.target)
        return audit_module(
            target.module, str(self.target), call=self.call, causal=self.causal, compile=self.compile,
            building=target.lines,
        )  # fmt: skip
