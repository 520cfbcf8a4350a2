"""Recognise how a foreign attention is called: by its signature and by trial; a question where these do not decide."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...run.link import Away
from .calls import COUNTS, Call, Convention, Inputs
from .search import (
    HEADS,
    LIKE_LENGTHS,
    LIKE_MASKS,
    MASKS,
    SWITCHES,
    Unclear,
    named_like,
    parameters_of,
    plain_call,
)
from .subject import STILL, ForeignSubject, behind, by_position, changed, draw, run

CAUSAL_MASKS = ("attn_mask", "src_mask", "attention_mask", "mask")

FORMS = (
    "valid", "~valid", "valid.long()", "valid[:, None, None]", "~valid[:, None, None]", "pairs", "~pairs", "bias",
    "pairs[:, 0]", "~pairs[:, 0]",
)  # fmt: skip
"""Values that a mask argument may be given for padding; trials find which of them it means."""

CAUSAL_FORMS = ("~seen", "seen", "pairs", "~pairs", "bias")

CLEARLY, NAMED_CLEARLY = 10.0, 1.0
"""The factor by which a mask must keep out more than its opposite does, where neither keeps out all; and where its name
says that it is of padding."""


def recognise(target: Any, *, call: Call = "", asks: bool = True, heads: int = HEADS) -> ForeignSubject:
    """The convention of a module or function. Raises Unclear, with a question, where trials do not decide.

    call: an expression, or a function of the module, the inputs and, if it takes one more, `valid`; then nothing is
    searched but shapes. asks: whether a mask that stays unclear raises; else the convention holds the question, and no
    call with a mask. heads: of q, k and v, where these are inputs.
    """
    training = [(each, each.training) for each in target.modules()] if isinstance(target, nn.Module) else []
    try:
        if training:
            target.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            convention = plain_call(target, call, heads)
            found = ForeignSubject(target, convention if call else _with_masks(target, convention))
    finally:
        for each, was in training:
            each.training = was
    if asks and found.convention.question:
        raise Unclear(found.convention.question)
    return found


def _with_masks(target: Any, plain: Convention) -> Convention:
    """The convention with what its arguments do for padding and causality, each found by trial."""
    names = list(parameters_of(target))
    documented = _documented(target, names)
    padded, ignored, question, questions = "", False, "", []
    for name in named_like(target, MASKS, LIKE_MASKS):
        known = (COUNTS,) if LIKE_LENGTHS.search(name) else documented
        tried = {form: _Trial.of(target, plain, with_argument(plain.plain, name, form)) for form in known or FORMS}
        trials = {form: trial for form, trial in tried.items() if trial is not None}
        # a name may leave no doubt that it is a padding mask, and then what leaks is a fault
        clearly = NAMED_CLEARLY if "pad" in name else CLEARLY
        form = known[0] if known and trials else _decided(trials, clearly)
        if form:
            padded = with_argument(plain.plain, name, form)
            break
        # at tokens it does nothing, for all readings or for that which takes effect at padded queries
        idle = [form for form, each in trials.items() if each.effect == 0 and each.padding > 0]
        at_queries = [form for form in idle if trials[form].at_padding > 0]
        if trials and (at_queries or len(idle) == len(trials)):
            padded, ignored = with_argument(plain.plain, name, (at_queries or idle)[0]), True
        elif trials:
            questions.append(name)
    if questions and (not padded or ignored):
        choices = " or ".join(repr(with_argument(plain.plain, questions[0], form)) for form in FORMS[:2])
        padded, ignored = "", False
        question = (
            f"what does {questions[0]} mean? Padding changes the output whether True keeps or drops a token, so either "
            f"padding leaks, or it is no padding mask. Say it by `--call`: {choices}"
        )
    return _with_switch(target, replace(plain, padded=padded, mask_ignored=ignored, question=question), names)


def _documented(target: Any, names: list[str]) -> tuple[str, ...]:
    """The one form that a library documents for all its models."""
    is_model = "attention_mask" in names and "input_ids" in names
    return ("valid.long()",) if is_model and _is_of_transformers(target) else ()


def _is_of_transformers(target: Any) -> bool:
    if isinstance(target, Away):
        return bool(target.facts.of_transformers)
    return type(target).__module__.startswith("transformers.")


def with_argument(call: Call, name: str, value: str) -> str:
    """The call with one argument more, or another value for it.

    >>> with_argument("m(x, mask=None)[0]", "mask", "~valid"), with_argument("m(x)", "is_causal", "True")
    ('m(x, mask=~valid)[0]', 'm(x, is_causal=True)')
    >>> with_argument("m(x, state=m.first(len(x)), mask=valid)", "state", "cache")
    'm(x, state=cache, mask=valid)'
    """
    text = str(call)
    at = closing(text)
    given = re.search(rf", {name}=", text[:at])
    if not given:
        return f"{text[:at]}, {name}={value}{text[at:]}"
    end, depth = given.end(), 0
    while depth or text[end] not in ",)":
        depth += (text[end] in "([{") - (text[end] in ")]}")
        end += 1
    return f"{text[: given.end()]}{value}{text[end:]}"


def closing(call: str) -> int:
    """The place where the first parenthesis of a call is closed. Raises ValueError for text without one.

    >>> closing("m(x.transpose(0, 1))[0].transpose(0, 1)")
    19
    """
    depth = 0
    for at, character in enumerate(call):
        depth += (character == "(") - (character == ")")
        if character == ")" and not depth:
            return at
    raise ValueError(f"expected a call, got {call!r}")


@dataclass(frozen=True, slots=True)
class _Trial:
    """Movements of outputs at tokens: by other content of padding, by another token, and by the mask itself.

    at_padding: by the mask, of outputs at padding.
    """

    padding: float
    token: float
    effect: float
    at_padding: float

    @classmethod
    def of(cls, target: Any, plain: Convention, call: Call) -> _Trial | None:
        """None where the call raises, or gives no numbers."""
        kind, vocabulary = plain.kind, plain.shape[0]
        inputs = draw(kind, plain.shape, 2, plain.length, 2)
        valid = torch.ones(2, plain.length, dtype=torch.bool)
        valid[0, :3], valid[1, :5], valid[0, 8] = False, False, False
        valid = behind(valid) if COUNTS in str(call) else valid
        one = torch.zeros_like(valid)
        one[:, 9] = True

        def out(given: Inputs) -> Tensor:
            return by_position(run(call, target, kind, given, valid, False), kind)

        try:
            base = out(inputs)
            padding = (out(changed(kind, inputs, ~valid, vocabulary)) - base)[valid]
            token = (out(changed(kind, inputs, one, vocabulary)) - base)[valid & ~one]
            effect = by_position(run(plain.plain, target, kind, inputs, None, False), kind) - base
        except Exception:
            return None
        movements = (padding, token, effect[valid], effect[~valid].nan_to_num())
        moved = [float(each.abs().max()) / max(float(base[valid].std()), 1e-30) for each in movements]
        if not all(map(torch.isfinite, map(torch.tensor, moved))):
            return None
        return cls(*(0.0 if each <= STILL else each for each in moved))


def _decided(trials: dict[str, _Trial], clearly: float) -> str:
    """The form under which padding is inert and tokens are not; where none is, the one that is `clearly` nearest."""
    for form, trial in trials.items():
        if trial.padding == 0 and trial.token > 0 and trial.effect > 0:
            return form
    for form, trial in trials.items():
        opposite = trials.get(form[1:] if form.startswith("~") else f"~{form}")
        if opposite and trial.token > 0 and trial.effect > 0:
            # the wrong way round, tokens are what is masked
            ours, theirs = trial.padding / trial.token, opposite.padding / max(opposite.token, STILL)
            if clearly * ours < theirs:
                return form
    return ""


def _with_switch(target: Any, found: Convention, names: list[str]) -> Convention:
    """The convention with what makes the subject causal, where it looks both ways without."""
    # layers of transformers say so too, and leave the mask to their model
    by_itself = says_causal(target) and not (found.kind == "layer" and _is_of_transformers(target))
    if by_itself or sees_future(target, found, found.plain) is not True:
        return found
    options: list[tuple[tuple[str, str], ...]] = [((name, "True"),) for name in SWITCHES if name in names]
    masks = [(name, form) for name in CAUSAL_MASKS if name in names for form in CAUSAL_FORMS]
    options += [(mask,) for mask in masks]
    options += [(("is_causal", "True"), mask) for mask in masks if "is_causal" in names]
    for option in options:
        call, padded = str(found.plain), str(found.padded)
        for name, value in option:
            call = with_argument(call, name, value)
            if padded and f"{name}=" not in padded:
                padded = with_argument(padded, name, value)
        # a mask that is read as another kind may hide nearly all
        if sees_future(target, found, call) is False and sees_future(target, found, call, past=True):
            return replace(found, causal=call, padded_causal=_both(target, found, padded))
    return found


def _both(target: Any, found: Convention, padded: str) -> str:
    """A call with padding and causality at once: by two arguments, or by pairs where these exclude each other."""
    if not padded:
        return ""
    form = next(
        (form for form in ("valid[:, None, None]", "valid.long()", "valid") if form in str(found.padded)), "pairs"
    )
    for call in (padded, str(found.padded).replace(form, "pairs")):
        if _Trial.of(target, found, call) and sees_future(target, found, call) is False:
            return call
    return ""


def says_causal(target: Any) -> bool:
    """True if a module says that it is causal by itself: by an attribute, its configuration or its name."""
    if isinstance(target, Away):
        return bool(target.facts.says_causal)
    if not isinstance(target, nn.Module):
        return False
    told = {getattr(each, "causal", None) for each in target.modules()}
    is_decoder = getattr(getattr(target, "config", None), "is_decoder", False) is True
    named = is_decoder or "ForCausalLM" in type(target).__name__
    return named or getattr(target, "is_causal", None) is True or (True in told and False not in told)


def sees_future(target: Any, found: Convention, call: Call, *, past: bool = False) -> bool | None:
    """True if other content of the last positions moves earlier outputs; None where it raises or gives no numbers.

    past: if other content of the positions before the middle moves later outputs.
    """
    kind, vocabulary = found.kind, found.shape[0]
    inputs = draw(kind, found.shape, 2, found.length, 3)
    at, middle = torch.arange(found.length).expand(2, -1), found.length // 2
    late = at > middle
    where = ~late & (at >= middle // 2) if past else late
    try:
        base = by_position(run(call, target, kind, inputs, None, True), kind)
        other = by_position(run(call, target, kind, changed(kind, inputs, where, vocabulary), None, True), kind)
    except Exception:
        return None
    if base.shape[:2] != at.shape or not bool(base.isfinite().all() & other.isfinite().all()):
        # a mask of another shape spreads the output; one the wrong way round leaves the last query nothing
        return None
    return bool((other - base)[late if past else ~late].abs().max() > STILL * base.std())
