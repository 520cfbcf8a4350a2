"""Audit: every test on one module or function, with the parameters that begin at zero drawn anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from ...core.errors import SelectionError
from ...core.registry import nearest
from ...gate import lengths, modes, traces
from ...gate.result import Answers, NotJudged, Result, as_meant, error_text, worst
from ...run.link import Away
from . import decoding, future, numerics, packing, padding, precision
from .calls import Call
from .convention import recognise, says_causal, sees_future
from .like import compared_with, mixed_heads, parsed, weights
from .report import MUST_BE_DECIDED, AuditReport
from .search import Unclear, unused_arguments
from .softmax import normalised
from .subject import ForeignSubject
from .target import CHANGES, as_tested, redraw_constants

Test = Callable[[ForeignSubject], Answers]

TESTS: dict[str, Test] = {
    "future": future.future,
    "padding": padding.padding,
    "amount of padding": padding.amount,
    "mask and future": future.future_under_mask,
    "batch": padding.batch,
    "empty rows": padding.empty_rows,
    "packed rows": packing.packed,
    "window": packing.window,
    "grouped heads": numerics.grouped,
    "gradients": numerics.gradients,
    "second derivatives": numerics.second_derivatives,
    "parameters learn": numerics.learns,
    "softmax": normalised,
    "evaluation": numerics.evaluation,
    "half precision": precision.half,
    "large inputs": numerics.large,
    "any length": lengths.any_length,
    "prefix": lengths.prefixes,
    "long": lengths.late_future,
    "each token counts": lengths.tokens_count,
    "equal tokens": lengths.equal_tokens,
    "empty batch": lengths.empty_batch,
    "inputs stay": traces.inputs_stay,
    "nothing remembered": precision.remembered,
    "storage": traces.storage,
    "training": modes.training_is_evaluation,
    "dropout": modes.dropout,
    "weights": weights,
}
"""Tests by the name of their finding; those of decoding and of torch.compile come after these."""

SHOWN_BY = {"prefix": ("future", "evaluation"), "long": ("future", "evaluation"), "dropout": ("evaluation",)}
"""Tests that would say once more what another has found."""

MIXING = ("future", "prefix", "equal tokens")
"""Findings that may come from heads that are split or joined without a transposition."""

NAMES = (*TESTS, "decoding", "pieces", "compile")

ASIDE = ("softmax", "half precision", "compile")
"""Tests that a second child makes at the same time: PyTorch's compiler, which a mode of dispatch imports too, and half
precision take half of the time, and nothing else depends on them."""


def audit_module(
    module: Any,
    name: str = "",
    *,
    call: Call = "",
    causal: bool | None = None,
    compile: str = "aot_eager",
    by_design: Collection[str] = (),
    like: str = "",
    building: tuple[str, ...] = ("m = ...  # the module",),
    second: Away | None = None,
) -> AuditReport:
    """All findings about a module or function, which is left as it is.

    causal: whether it claims to be causal; None asks its attributes, arguments and name. compile: a backend, or "".
    by_design: names of findings that are no failures here, such as `future`. like: one of our variants that it is to
    be, such as `softmax|alibi`. second: the same module in another child, for the tests of `ASIDE`. Raises
    SelectionError for another name.
    """
    unknown = sorted(set(by_design) - {*NAMES})
    if unknown:
        near = nearest(unknown[0], NAMES)
        raise SelectionError(f"expected by design some of {', '.join(NAMES)}; got {unknown[0]!r}{near}")
    # to list them imports the compiler, which takes as long as all other tests
    if compile not in ("", "aot_eager") and compile not in torch.compiler.list_backends(exclude_tags=()):
        raise SelectionError(f"expected a backend of torch.compile, such as aot_eager or inductor, got {compile!r}")
    if like:
        parsed(like)
    start = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        if isinstance(module, Away):
            own, changes, pristine = module, module.facts.changes, module.link.pristine
            building = module.facts.lines
        else:
            own, changes, more = prepared(module)
            building, pristine = (*building, *changes, *more), deepcopy(own)
        try:
            subject = recognise(own, call=call, asks=False)
        except Unclear as question:
            return AuditReport(target=name, question=str(question), seconds=time.perf_counter() - start)
        claims = bool(subject.convention.causal) or says_causal(own) if causal is None else causal
        looks_back = claims or sees_future(own, subject.convention, subject.convention.plain) is False
        subject = replace(subject, claims=claims, looks_back=looks_back, pristine=pristine, asked=causal is None)
        tests = TESTS | decoding.tests(subject) | {"compile": partial(numerics.compiled, backend=compile)}
        tests |= {f"like {like}": partial(compared_with, text=like)} if like else {}
        findings = _findings(tests, subject, second)
        red = next((each for each in MIXING if findings[each].verdict == "fails"), "")
        if red and (cause := mixed_heads(subject)):
            findings[red] = replace(findings[red], detail=f"{findings[red].detail}; cause: {cause}")
        if (late := findings.get("long")) and late.verdict == "fails" and findings["future"].held:
            # it holds of few tokens alone, which beside that reads as a contradiction
            findings["future"] = Result.of("future", NotJudged("long fails"))
        # by which texts of a row are told apart
        if idle := [each for each in unused_arguments(subject) if each not in packing.PACKED]:
            text = f"nothing is known of {', '.join(idle)}; a call that names them: --call"
            findings["arguments"] = Result.of("arguments", NotJudged(text, verdict="not tried"))
    return AuditReport(
        target=name,
        convention=" · ".join((str(subject.convention), *(CHANGES[line] for line in changes))),
        findings=tuple(as_meant(findings.values(), {*by_design, *(["future"] if causal is False else ())})),
        building=building,
        seconds=time.perf_counter() - start,
    )


def _findings(tests: Mapping[str, Test], subject: ForeignSubject, second: Away | None) -> dict[str, Result]:
    """The findings of each test, in their order; `second` is the module in another child, if there is one."""
    if second is None:
        return _in_turn(tests, subject)
    other = replace(subject, module=second, pristine=second.link.pristine)
    there, here = ({name: tests[name] for name in tests if (name in ASIDE) is aside} for aside in (True, False))
    with ThreadPoolExecutor(1) as pool:
        aside = pool.submit(_in_turn, there, other)
        try:
            found = _in_turn(here, subject)
        except BaseException:
            # the thread hears of its end; nobody waits for its tests
            second.link.child.stop()
            raise
        found |= aside.result()
    return {name: found[name] for name in tests}


def _in_turn(tests: Mapping[str, Test], subject: ForeignSubject) -> dict[str, Result]:
    findings: dict[str, Result] = {}
    for name, test in tests.items():
        shown = [cause for cause in SHOWN_BY.get(name, ()) if findings[cause].verdict == "fails"]
        if shown:
            findings[name] = Result.of(name, NotJudged(f"{shown[0]} fails"))
        else:
            findings[name] = examined(name, test, subject)
    return findings


def prepared(module: Any, copy: bool = True) -> tuple[Any, tuple[str, ...], tuple[str, ...]]:
    """A copy, or the module itself, as it is tested; the changes that made it so, and the lines that draw its zeros."""
    own, changes = as_tested(deepcopy(module) if copy and isinstance(module, nn.Module) else module)
    return own, changes, redraw_constants(own.eval()) if isinstance(own, nn.Module) else ()


def examined(name: str, test: Test, subject: ForeignSubject) -> Result:
    """A subject that refuses the call of one test has failed no other; what holds needs no words."""
    try:
        found = Result.of(name, worst(test(subject)))
    except Exception as error:
        verdict: Literal["not tried", "note"] = "not tried" if name in MUST_BE_DECIDED else "note"
        return Result.of(name, NotJudged(f"not tested, raises {error_text(error, 80)}", verdict=verdict))
    return replace(found, detail="") if found.held else found
