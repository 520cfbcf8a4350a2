"""Every property of the gate, and the two ways to examine a variant: in full, and before each measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal

import torch

from ...variants.contract import AttentionShape
from ..core.errors import Unsupported
from . import gradients, maps, masks, modes, numerics, twins
from .case import BASE_LENGTH, WIDEST_BATCH, Case, RunSetting
from .property import Property
from .result import Result
from .variant import VariantFactory, VariantSource, with_heads

LONG_LENGTH = 384
SHORT_HEADS = 5
"""Heads at few positions: more than four, since a kernel may take heads by fours."""
SHORT_GROUPS = 2
"""Heads that share a key: with one group alone no order of the groups is wrong."""
CHECKED_BATCH = 10
_LOOKS_BACK = ("causality", "self-attention")
_IN_HALF = "scores, a sum or a rotation in half precision; keep it in float32"

Form = Literal["short", "own", "both"]

# Cheap ones first: the quick gate stops at the first failure.
PROPERTIES: tuple[Property, ...] = (
    # before any other pass could leave its traces
    Property("no side effects", numerics.no_side_effects),
    Property("shape and dtype", numerics.shape_and_dtype),
    Property("finite", numerics.finite, "measured", own="check"),
    Property("deterministic", numerics.deterministic, own="check",
             cause="a draw in the forward pass; draw in the constructor"),
    Property("layout", numerics.layout),
    Property("no state", numerics.no_state, "measured"),
    Property("any length", numerics.any_length),
    Property("empty batch", numerics.empty_batch),
    Property("queries differ from keys", numerics.crosses, needs=("cross-attention",)),
    Property("causal", masks.future_changes_nothing, "all", ("causality",), own="always",
             cause="a mask that is missing or shifted, or a mean or a norm over all positions"),
    Property("causal values", masks.future_values_change_nothing, "all", ("causality", "causality by selection"),
             own="always"),
    Property("prefix consistency", masks.prefix_stands_alone, "all", ("causality", "strict causality"), own="always"),
    Property("aligned at the last key", masks.aligned_at_last_key, "all", ("causality", "strict causality"),
             own="always", cause="a causal mask that begins at the first key"),
    Property("padding content", masks.padding_content, "all", ("padding",), own="check",
             cause="a sum, a mean or a maximum over padded keys; `mask.allowed` says which are"),
    Property("padding length", masks.padding_length, "all", ("padding",), own="always",
             cause="a mask taken from the first sequence, or a size that counts padded keys"),
    Property("padding without numbers", masks.padding_without_numbers, "measured", ("padding",),
             cause="0 times NaN is NaN; set padded values to 0 before the product"),
    Property("batch independence", masks.batch_independence, "all", own="always", whole=True,
             cause="a statistic over the batch"),
    Property("masked rows", masks.masked_rows, "all", ("padding",),
             cause="a softmax over no key; set the output there to 0"),
    Property("bounds", masks.bounds_are_kept, needs=("bounds", "padding"),
             cause="bounds ignored, off by one, or taken from the first sequence"),
    Property("packed sequences", masks.packed_sequences, needs=("self-attention",), own="check",
             cause="one mask for the whole row"),
    Property("grouped heads", twins.grouped_heads, needs=("several heads",),
             cause="keys repeated in turn; heads of a group stand side by side"),
    Property("gradient reaches", gradients.gradient_reaches),
    # at few positions some parameters have nothing to decide, such as those that choose between blocks
    Property("parameters learn", gradients.parameters_learn, quick=False, own="check", longest=True),
    Property("gradient", gradients.gradient_is_derivative),
    Property("gradient at length", gradients.gradient_at_length, "reduced", own="always"),
    Property("gradient in precision", gradients.gradient_in_precision, "reduced", ("no eager path",), own="always"),
    Property("twin", twins.equals_twin, needs=("exactness",), own="always"),
    Property("implementations", twins.implementations_agree, needs=("an eager path",), own="always"),
    Property("bfloat16", partial(numerics.half, "bfloat16"), "measured", ("bfloat16",), own="always", cause=_IN_HALF),
    Property("float16", partial(numerics.half, "float16"), "measured", ("float16",), own="always", cause=_IN_HALF),
    Property("compiled", numerics.compiled, needs=("padding", "causal use where it has one"), quick=False),
    Property("weights within mask", maps.weights_within_mask),
    Property("weights by rows", maps.weights_by_rows),
    Property("weights make output", maps.weights_make_output, needs=("weights of the output",), own="always"),
    Property("simplex", maps.simplex, needs=("a declared `simplex`",)),
    Property("rows sum", maps.rows_sum_whatever_the_scores, needs=("a simplex", "compiled kernels")),
    Property("closed cases", maps.closed_cases, needs=("a score map", "a simplex")),
    Property("decode", masks.steps_equal_forward, "all", (*_LOOKS_BACK, "decoding", "strict causality"), own="check"),
    Property("decode state", masks.state_as_declared, needs=(*_LOOKS_BACK, "decoding"), own="check"),
    Property("density", maps.density_as_declared, quick=False, own="check"),
    Property("dropout in training only", maps.dropout_in_training_only, dropout=True),
    # one or two tokens are the same in all ways of use
    Property("dropout share", modes.dropout_share, needs=("causal use where it has one",), quick=False, dropout=True,
             cause="another rate, weights that are not divided by 1 - rate, or whole heads that are dropped"),
    Property("dropout in backward", maps.dropout_in_backward, dropout=True),
    Property("dropout mean", maps.dropout_keeps_mean, quick=False, dropout=True,
             cause="dropped weights that are not divided by 1 - rate"),
    Property("dropout sums", maps.dropout_never_renormalises, quick=False, dropout=True),
)  # fmt: skip

QUICK = tuple(item for item in PROPERTIES if item.quick)
LONGEST = {item.name for item in PROPERTIES if item.longest}


def examine(
    variant: VariantSource | VariantFactory,
    shape: AttentionShape,
    seed: int = 0,
    *,
    batch: int = CHECKED_BATCH,
    thorough: bool = True,
) -> list[Result]:
    """Every property of `variant` on `shape`: at few positions, and where it takes few passes at its own length too.

    `batch`: of the pass at the own length. `thorough`: with the implementations that run only where they are named;
    they may take minutes to compile.

    `variant`: a Spec, its text, a class, or a function from a shape to an instance. `shape.dtype` and `shape.device`
    say where it is examined. Raises SelectionError for an unknown name; where the shape is refused, no
    finding applies.
    """
    found: dict[str, Result] = {}
    for length in (min(BASE_LENGTH, shape.max_length), None):
        properties = tuple(p for p in PROPERTIES if length is not None or p.own != "never")
        for result in _findings(variant, shape, length, properties, seed=seed, batch=batch, thorough=thorough):
            known = found.get(result.property)
            longest = result.property in LONGEST and result.held is not None
            if known is None or longest or result.severity > known.severity:
                found[result.property] = result
    return list(found.values())


def pass_through(variant: VariantSource | VariantFactory, shape: AttentionShape, seed: int = 0) -> None:
    """A pass at few positions and one at all of `shape`, forward and backward, of which nothing is judged."""
    few = with_heads(replace(shape, max_length=min(BASE_LENGTH, shape.max_length)), SHORT_HEADS, SHORT_GROUPS)
    for sized, setting in ((few, None), (shape, RunSetting(shape.max_length, 1, "own"))):
        # another process examines this setting, and says what it raises
        with suppress(Exception), torch.random.fork_rng([]):
            case = Case(variant, sized, setting, seed)
            case.passes(case.inputs())


def quick_gate(
    variant: VariantSource | VariantFactory,
    shape: AttentionShape,
    seed: int = 0,
    *,
    batch: int = 1,
    form: Form = "both",
) -> Result | None:
    """The first property that fails on `shape`, or None: seconds, before any measurement of `batch` sequences on it.

    `form`: "short" for all but the length, which is 96; a variant that refuses so few positions is examined at 384, and
    failing that at its own length. "own" for the length and the batch to be measured, by few passes; float64 takes part
    up to 2,048 tokens and 2 GiB. Of several implementations, those are examined that may run here.
    """
    if form != "own":
        failure = next((each for each in _quick_short(variant, shape, seed, batch, QUICK) if each.held is False), None)
        if failure is not None or form == "short":
            return failure
    # few positions are a length to be measured too, and all of it has been examined
    if form == "both" and shape.max_length <= BASE_LENGTH and batch <= WIDEST_BATCH:
        return None
    own = tuple(p for p in QUICK if p.own == "always")
    findings = _findings(variant, shape, None, own, seed=seed, batch=batch, thorough=False)
    return next((each for each in findings if each.held is False), None)


def run_short(variant: VariantSource, shape: AttentionShape, *, batch: int = 1, seed: int = 0) -> None:
    """All properties of the short form before a measurement, whatever they find: for a note of the kernels they ask."""
    for _ in _quick_short(variant, shape, seed, batch, QUICK):
        pass


def _quick_short(
    variant: VariantSource | VariantFactory,
    shape: AttentionShape,
    seed: int,
    batch: int,
    properties: tuple[Property, ...],
) -> Iterator[Result]:
    if torch.device(shape.device).type == "cuda" and not shape.dropout:
        # A GPU compiles four kernels more for dropout, of a second each, which a run without it never launches. A
        # processor compiles nothing for it, so there a variant is examined for what it may be given later too.
        properties = tuple(p for p in properties if not p.dropout)
    # Longer ones only where no property applied, as for a variant that refuses less than one block.
    for length in sorted({min(n, shape.max_length) for n in (BASE_LENGTH, LONG_LENGTH, shape.max_length)}):
        applied = False
        for finding in _findings(variant, shape, length, properties, seed=seed, batch=batch, thorough=False):
            applied |= finding.held is not None
            yield finding
        if applied:
            return


def _findings(
    variant: VariantSource | VariantFactory,
    shape: AttentionShape,
    length: int | None,
    properties: tuple[Property, ...],
    *,
    seed: int,
    batch: int,
    thorough: bool,
) -> Iterator[Result]:
    """Results at `length` positions and few heads, or at the length to be measured where that is None."""
    # Dropout is set by the properties themselves.
    shape = replace(shape, dropout=0.0)
    own = RunSetting(shape.max_length, 1, "own") if length is None else None
    shape = shape if length is None else replace(shape, max_length=length)
    # all heads where the variant refuses few, or breaks with them
    shapes = [shape] if own else list(dict.fromkeys((with_heads(shape, SHORT_HEADS, SHORT_GROUPS), shape)))
    # The examination draws random numbers of its own; a run that is gated must go on with those it would have had, and
    # with its settings, whatever the variant did to them.
    cuda = [shape.device] if torch.device(shape.device).type == "cuda" else []
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    with torch.random.fork_rng(cuda), torch.inference_mode(False), torch.enable_grad():
        # One thread for few positions: small tensors gain nothing from more, and on a busy machine threads that wait
        # for each other cost a factor of 30.
        torch.set_num_threads(threads if own else 1)
        try:
            for sized in shapes:
                try:
                    first = Case(variant, sized, own, seed, thorough=thorough, measured=batch)
                    break
                except Exception:
                    if sized is shapes[-1]:
                        raise
            if not (first.own and first.interpreted):
                for item in properties:
                    yield item.examine(first)
        except Unsupported as refusal:
            yield from (Result(property=p.name, verdict="n.a.", detail=str(refusal)) for p in properties)
        finally:
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
