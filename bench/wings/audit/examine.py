"""Audit a named target in a child, or a live object in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from msgspec.structs import replace

from ...core.errors import SelectionError
from ...core.registry import Registry
from ...core.spec import Spec, with_call
from ...process.ask import Reporter, Request, asking
from ...run.link import keep, linked, make_subjects_by
from .away import Argument, ForeignFacts, is_module, opened
from .report import AuditReport


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
class OpenTarget(Request[ForeignFacts]):
    """Import and build what a Spec names, and find its plain call; then functions of `@at_the_code` can use it."""

    target: Spec

    def answer(self, reporter: Reporter) -> ForeignFacts:
        from ...run.global_state import note_functions
        from .suite import prepared
        from .target import load_target

        note_functions()
        built = load_target(self.target)
        # nobody else has it, and a copy may be right where the module is not
        own, changes, more = prepared(built.module, copy=False)
        return facts_of(own, (*built.lines, *changes, *more), changes, built.call)


def facts_of(own: Any, lines: tuple[str, ...], changes: tuple[str, ...], call: str) -> ForeignFacts:
    """In the child: the facts about a module that tests will use from another process; it is kept from now on."""
    import torch

    from .convention import says_causal
    from .search import Unclear, parameters_of, plain_call
    from .subject import ForeignSubject

    make_subjects_by(ForeignSubject.of_about)
    facts = ForeignFacts(
        number=keep(own), pristine=keep(deepcopy(own)), is_module=is_module(own), says_causal=says_causal(own),
        of_transformers=type(own).__module__.startswith("transformers."),
        arguments=tuple(Argument.of(name, each) for name, each in parameters_of(own).items()),
        lines=lines, changes=changes, call=call,
    )  # fmt: skip
    try:
        with torch.no_grad():
            found = plain_call(own, call)
    except Unclear as question:
        return replace(facts, question=str(question))
    return replace(facts, kind=found.kind, shape=found.shape, length=found.length, plain=str(found.plain))


def audit(
    target: Any,
    *,
    call: str | Callable[..., Any] = "",
    causal: bool | None = None,
    compile: str = "aot_eager",
    by_design: Collection[str] = (),
    like: str = "",
) -> AuditReport:
    """Test a layer, an attention function or a model of anybody: leaks, padding, caches, gradients, precision.

    target: `mine.py:MyAttention[dim=64]`, `package.module:NAME` or `transformers:DogeForCausalLM`, each in a child;
    or a live module or function, which runs in this process. call: how it is called, where that is not found: text
    such as `"m(x, mask=valid)[0]"`, or a function of the module, the inputs and `valid`, which is True at tokens,
    (batch, positions). causal: whether it claims to be; None asks the module. compile: backend of torch.compile, or "".
    by_design: names of findings that are no failures of this target, such as `["future"]` of a context that is seen
    both ways. like: one of our variants that it is to be, such as `"softmax|alibi"`. Returns a report that is true
    where nothing else fails. Raises SelectionError for text that names nothing, PluginError for code that dies.

    >>> print(attnbench.audit(module, call=lambda m, x, valid: m(x, attention_mask=valid)[0]))     # doctest: +SKIP
    """
    from .suite import audit_module

    if not isinstance(target, str | Spec):
        name = getattr(target, "__name__", type(target).__name__)
        return audit_module(target, name, call=call, causal=causal, compile=compile, by_design=by_design, like=like)
    if not isinstance(call, str):
        raise SelectionError("expected the call of a named target as text: its code runs in a child")
    [spec] = with_call([str(Spec.parse(target) if isinstance(target, str) else target)], call)
    options: dict[str, Any] = {"causal": causal, "compile": compile, "by_design": by_design, "like": like}
    opening = OpenTarget(target=spec)
    with asking(), linked(TARGETS, spec.name, opening) as link, linked(TARGETS, spec.name, opening) as other:
        one, second = opened(link, link.facts), opened(other, other.facts)
        return audit_module(one, str(spec), call=link.facts.call, second=second, **options)
