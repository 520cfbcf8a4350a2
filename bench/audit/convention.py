"""Recognise how a foreign attention is called: by its signature and by trial; a question where these do not decide."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import AttnbenchError, SelectionError
from .subject import (
    NAMES,
    STILL,
    Call,
    Convention,
    Inputs,
    Kind,
    Subject,
    by_position,
    changed,
    draw,
    first_tensor,
    run,
    run_raw,
)

IDS = ("input_ids", "ids", "idx", "tokens", "token_ids", "input_tokens")
MASKS = (
    "attention_mask", "key_padding_mask", "padding_mask", "src_key_padding_mask", "key_mask", "mask", "input_mask",
    "valid", "keep", "attn_mask",
)  # fmt: skip
"""Names of an argument that may hold padding, the surest first."""

SWITCHES = ("is_causal", "causal")
CAUSAL_MASKS = ("attn_mask", "src_mask", "attention_mask", "mask")
WIDTHS = ("dim", "d_model", "embed_dim", "hidden_size", "n_embd", "hidden_dim", "width", "features", "dim_head")
LENGTHS = (64, 128, 32, 16, 256, 512)
"""Positions of the trials: the first that the module takes. Layers of blocks refuse what is no multiple of a block."""

HEADS, HEAD_DIM = 4, 16

FORMS = (
    "valid", "~valid", "valid.long()", "valid[:, None, None]", "~valid[:, None, None]", "pairs", "~pairs", "bias"
)  # fmt: skip
"""What a mask argument may be given for padding; which of them it means is found by trial."""

CAUSAL_FORMS = ("~seen", "seen", "pairs", "~pairs", "bias")

CLEARLY = 10.0
"""How much more a mask must keep out than its opposite does, where neither keeps out all."""

REFUSALS: tuple[type[Exception], ...] = (
    AssertionError, AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, StopIteration, TypeError,
    ValueError, AttnbenchError,
)  # fmt: skip
"""What a call may raise that the subject does not take."""


class Unclear(SelectionError):
    """A question: what could not be found out, and the choices."""


def recognise(target: Any, *, call: Call = "", asks: bool = True) -> Subject:
    """The convention of a module or function. Raises Unclear, with a question, where trials do not decide.

    call: an expression, or a function of the module, the inputs and, if it takes one more, `valid`; then nothing is
    searched but shapes. asks: whether a mask that stays unclear raises; else the convention holds the question, and no
    call with a mask.
    """
    training = [(each, each.training) for each in target.modules()] if isinstance(target, nn.Module) else []
    try:
        if training:
            target.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            convention = _plain(target, call)
            found = Subject(target, convention if call else _with_masks(target, convention))
    finally:
        for each, was in training:
            each.training = was
    if asks and found.convention.question:
        raise Unclear(found.convention.question)
    return found


def parameters_of(target: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a call by name; empty where a built-in tells none."""
    if target is F.scaled_dot_product_attention:
        target = _sdpa
    try:
        return dict(inspect.signature(target.forward if isinstance(target, nn.Module) else target).parameters)
    except (TypeError, ValueError):
        return {}


def _sdpa(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, is_causal: bool = False) -> None:
    """The arguments of torch's attention, which is built in and tells no signature."""


def _plain(target: Any, call: Call) -> Convention:
    """The call without padding: the first trial that runs."""
    failures = []
    for kind, shape, arguments in _candidates(target, call):
        for length in LENGTHS:
            trial = _given(call, kind, shape, length)
            trial = trial or Convention(kind=kind, shape=shape, length=length, plain=f"m({arguments})")
            inputs = draw(kind, shape, 2, length, 1)
            size = f"{length} tokens" if kind == "model" else f"{length} positions of {' × '.join(map(str, shape))}"
            try:
                output = Subject(target, trial)(inputs)
            except REFUSALS as error:
                failures.append(f"{trial.plain} on {size}: {' '.join(str(error).split())[:160]}")
                continue
            if output.is_floating_point() and output.shape[:-1] == inputs[0].shape[: output.ndim - 1]:
                return trial if call else _arranged(target, trial)
            failures.append(f"{trial.plain} on {size}: gave {tuple(output.shape)}")
    # the likeliest is tried first, and what it lacks says most
    likely = failures[0] if failures else "no argument that could be q, k, v, a hidden state or tokens"
    raise Unclear(
        f"how is it called? Nothing that was tried gave one output for each position ({likely}). "
        "Say it by `--call`: 'm(x)', 'm(x, x, x)', 'm(q, k, v)' or 'm(ids)', with what it needs beside"
    )


def _given(call: Call, kind: Kind, shape: tuple[int, ...], length: int) -> Convention | None:
    """The convention of a call that a person gave, which is one expression with and without padding."""
    if not call:
        return None
    names = set(_names_of(call))
    masks, switches = names & {"valid", "pairs", "bias"}, names & {"seen", "pairs", "bias", "causal"}
    if not isinstance(call, str) and len(names) > 1 + len(NAMES[kind]):
        masks = names
    return Convention(
        kind=kind, shape=shape, length=length, plain=call, padded=call if masks else "",
        causal=call if switches else "", padded_causal=call if switches and masks else "",
    )  # fmt: skip


def _candidates(target: Any, call: Call) -> Iterator[tuple[Kind, tuple[int, ...], str]]:
    """Kinds, shapes and arguments to try, the likeliest first."""
    parameters = parameters_of(target)
    names = [name.lower() for name in parameters]
    wanted = {"q", "k", "v", "x", "ids"} & set(_names_of(call)) if call else set()
    asked = [name for name, each in parameters.items() if each.default is each.empty]
    switches = "".join(f", {name}=False" for name in SWITCHES if name in asked)
    masks = [name for name in MASKS if name in asked]
    needed = [switches + "".join(f", {name}={value}" for name in masks) for value in (None, "valid", "~valid", "bias")]
    needed = needed if masks else [switches]
    widths = list(_widths(target))
    modules = target.modules() if isinstance(target, nn.Module) else ()
    sizes = [each.num_embeddings for each in modules if isinstance(each, nn.Embedding)]
    for more in needed:
        if wanted >= {"q", "k", "v"} or (not wanted and [name[:1] for name in names[:3]] == ["q", "k", "v"]):
            yield from (("qkv", (HEADS, width), f"q, k, v{more}") for width in (HEAD_DIM, *widths))
            if not wanted:
                yield from (("layer", (width,), f"x, x, x{more}") for width in widths)
            continue
        takes_ids = "ids" in wanted or (not wanted and names[:1] and names[0] in IDS)
        if sizes and (takes_ids or not wanted):
            caches = ", use_cache=False" if {"use_cache", "kwargs"} & set(names) and "input_ids" in names else ""
            yield "model", (sizes[0],), f"{'input_ids=' if 'input_ids' in names else ''}ids{more}{caches}"
        if not takes_ids:
            yield from (("layer", (width,), f"x{more}") for width in widths)


def _names_of(call: Call) -> tuple[str, ...]:
    """The names that a call uses."""
    if isinstance(call, str):
        try:
            return compile(call, "--call", "eval").co_names
        except SyntaxError as error:
            raise SelectionError(f"expected --call as one expression of Python, got {call!r}: {error.msg}") from None
    return tuple(inspect.signature(call).parameters)


def _widths(target: Any) -> Iterator[int]:
    """Sizes that the last axis of an input may have, the likeliest first."""
    seen = set()
    found = [getattr(target, name, None) for name in WIDTHS]
    if isinstance(target, nn.Module):
        for module in target.modules():
            found += [getattr(module, name, None) for name in ("in_features", "embed_dim", "num_features")]
            found += list(getattr(module, "normalized_shape", ()))[-1:]
        found += [each.shape[-1] for each in target.parameters() if each.ndim]
    for width in (*found, 64):
        if isinstance(width, int) and not isinstance(width, bool) and 1 < width <= 8192 and width not in seen:
            seen.add(width)
            yield width


def _arranged(target: Any, trial: Convention) -> Convention:
    """The same with the axes in their order: positions are the axis along which a change spreads."""
    inputs = draw(trial.kind, trial.shape, 2, trial.length, 1)
    subject = Subject(target, trial)
    base = subject(inputs)
    if trial.kind == "model":
        return replace(trial, plain=str(trial.plain) + _pick(target, trial))
    where = torch.zeros(inputs[0].shape[:-1], dtype=torch.bool)
    where[(1, 2, 3) if trial.kind == "qkv" else (1, 3)] = True
    other = tuple(torch.where(where[..., None], 3 * each + 1, each) for each in inputs)
    moved = (subject(other) - base).abs().amax(-1) > STILL * float(base.std())
    # without the changed place itself, which axes hold a moved one
    places = (moved & ~where).nonzero()
    home = where.nonzero()[0]
    along = {axis for axis in range(moved.ndim) if bool((places[:, axis] != home[axis]).any())}
    text = str(trial.plain)
    if trial.kind == "layer" and along == {0}:
        inner = text.removeprefix("m(").removesuffix(")").replace("x", "x.transpose(0, 1)")
        return replace(trial, plain=f"m({inner}){_pick(target, trial)}.transpose(0, 1)")
    if trial.kind == "qkv" and 1 in along:
        if 2 in along:
            raise Unclear(
                "which axis holds the positions? A change of one key moves outputs along both; say it by `--call`: "
                "'m(q, k, v)' for (B, H, N, d), "
                "'m(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)' for (B, N, H, d)"
            )
        inner = text.removeprefix("m(q, k, v")
        turned = ", ".join(f"{name}.transpose(1, 2)" for name in "qkv")
        return replace(trial, plain=f"m({turned}{inner}{_pick(target, trial)}.transpose(1, 2)")
    return replace(trial, plain=text + _pick(target, trial))


def _pick(target: Any, trial: Convention) -> str:
    """What takes the tensor out of the output: nothing, `.logits`, `[0]`."""
    inputs = draw(trial.kind, trial.shape, 2, trial.length, 1)
    output = run_raw(trial.plain, target, trial.kind, inputs, None, False)
    if isinstance(output, Tensor):
        return ""
    chosen = first_tensor(output)
    for name in ("logits", "last_hidden_state"):
        if getattr(output, name, None) is chosen:
            return f".{name}"
    keys = output.keys() if isinstance(output, dict) else range(len(output))
    return next(f"[{key!r}]" for key in keys if output[key] is chosen)


def _with_masks(target: Any, plain: Convention) -> Convention:
    """The convention with what its arguments do for padding and causality, each found by trial."""
    names = list(parameters_of(target))
    known = _documented(target, names)
    padded, ignored, question, questions = "", False, "", []
    for name in (name for name in MASKS if name in names):
        tried = {form: _Trial.of(target, plain, with_argument(plain.plain, name, form)) for form in known or FORMS}
        trials = {form: trial for form, trial in tried.items() if trial is not None}
        form = known[0] if known and trials else _decided(trials)
        if form:
            padded = with_argument(plain.plain, name, form)
            break
        if trials and all(trial.effect == 0 for trial in trials.values()):
            padded, ignored = with_argument(plain.plain, name, next(iter(trials))), True
        elif trials:
            questions.append(name)
    if questions and (not padded or ignored):
        choices = " or ".join(repr(with_argument(plain.plain, questions[0], form)) for form in FORMS[:2])
        padded, ignored = "", False
        question = (
            f"what does {questions[0]} mean? Masked content moves the output whether True keeps or drops. "
            f"Say it by `--call`: {choices}"
        )
    return _with_switch(target, replace(plain, padded=padded, mask_ignored=ignored, question=question), names)


def _documented(target: Any, names: list[str]) -> tuple[str, ...]:
    """The one form that a library documents for all its models."""
    is_model = "attention_mask" in names and "input_ids" in names
    return ("valid.long()",) if is_model and type(target).__module__.startswith("transformers.") else ()


def with_argument(call: Call, name: str, value: str) -> str:
    """The call with one argument more, or another value for it.

    >>> with_argument("m(x, mask=None)[0]", "mask", "~valid"), with_argument("m(x)", "is_causal", "True")
    ('m(x, mask=~valid)[0]', 'm(x, is_causal=True)')
    """
    text = str(call)
    given = re.search(rf", {name}=[^=]*?(?=, \w+=|\))", text)
    if given:
        return f"{text[: given.start()]}, {name}={value}{text[given.end() :]}"
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == ")" and not depth:
            return f"{text[:at]}, {name}={value}{text[at:]}"
    raise ValueError(f"expected a call, got {text!r}")


@dataclass(frozen=True, slots=True)
class _Trial:
    """How far outputs at tokens move: by other content of padding, by another token, and by the mask itself."""

    padding: float
    token: float
    effect: float

    @classmethod
    def of(cls, target: Any, plain: Convention, call: Call) -> _Trial | None:
        """None where the call raises, or gives no numbers."""
        kind, vocabulary = plain.kind, plain.shape[0]
        inputs = draw(kind, plain.shape, 2, plain.length, 2)
        valid = torch.ones(2, plain.length, dtype=torch.bool)
        valid[0, :3], valid[1, :5], valid[0, 8] = False, False, False
        one = torch.zeros_like(valid)
        one[:, 9] = True

        def out(given: Inputs) -> Tensor:
            return by_position(run(call, target, kind, given, valid, False), kind)

        try:
            base = out(inputs)
            padding = (out(changed(kind, inputs, ~valid, vocabulary)) - base)[valid]
            token = (out(changed(kind, inputs, one, vocabulary)) - base)[valid & ~one]
            effect = (by_position(run(plain.plain, target, kind, inputs, None, False), kind) - base)[valid]
        except REFUSALS:
            return None
        moved = [float(each.abs().max()) / max(float(base[valid].std()), 1e-30) for each in (padding, token, effect)]
        if not all(map(torch.isfinite, map(torch.tensor, moved))):
            return None
        return cls(*(0.0 if each <= STILL else each for each in moved))


def _decided(trials: dict[str, _Trial]) -> str:
    """The form under which padding is inert and tokens are not; where none is, the one that is clearly nearest."""
    for form, trial in trials.items():
        if trial.padding == 0 and trial.token > 0 and trial.effect > 0:
            return form
    for form, trial in trials.items():
        opposite = trials.get(form[1:] if form.startswith("~") else f"~{form}")
        if opposite and trial.token > 0 and trial.effect > 0:
            # the wrong way round, tokens are what is masked
            ours, theirs = trial.padding / trial.token, opposite.padding / max(opposite.token, STILL)
            if CLEARLY * ours < theirs:
                return form
    return ""


def _with_switch(target: Any, found: Convention, names: list[str]) -> Convention:
    """The convention with what makes the subject causal, where it looks both ways without."""
    if says_causal(target) or sees_future(target, found, found.plain) is not True:
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
        if sees_future(target, found, call) is False:
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
    """Whether a module says that it is causal by itself: by an attribute, its configuration or its name."""
    if not isinstance(target, nn.Module):
        return False
    told = {getattr(each, "causal", None) for each in target.modules()}
    is_decoder = getattr(getattr(target, "config", None), "is_decoder", False) is True
    named = is_decoder or "ForCausalLM" in type(target).__name__
    return named or getattr(target, "is_causal", None) is True or (True in told and False not in told)


def sees_future(target: Any, found: Convention, call: Call) -> bool | None:
    """Whether another content of the last positions moves earlier outputs; None where it raises or gives no numbers."""
    kind, vocabulary = found.kind, found.shape[0]
    inputs = draw(kind, found.shape, 2, found.length, 3)
    late = torch.zeros(2, found.length, dtype=torch.bool)
    late[:, found.length // 2 + 1 :] = True
    try:
        base = by_position(run(call, target, kind, inputs, None, True), kind)
        other = by_position(run(call, target, kind, changed(kind, inputs, late, vocabulary), None, True), kind)
    except REFUSALS:
        return None
    if not bool(base.isfinite().all() & other.isfinite().all()):
        # a mask the wrong way round leaves the last query nothing
        return None
    return bool((other - base)[~late].abs().max() > STILL * base.std())
