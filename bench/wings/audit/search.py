"""Search for the plain call of a foreign attention: trials of kinds, sizes, arguments and axes, the likeliest first."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import SelectionError, crash_text
from ...run.link import Away
from .calls import COUNTS, NAMES, Call, Convention, Inputs, Kind
from .subject import STILL, ForeignSubject, draw, first_tensor, run_raw

IDS = ("input_ids", "ids", "idx", "tokens", "token_ids", "input_tokens")
MASKS = (
    "attention_mask", "key_padding_mask", "padding_mask", "src_key_padding_mask", "key_mask", "mask", "input_mask",
    "valid", "keep", "attn_mask",
)  # fmt: skip
"""Names of an argument that may hold padding, the surest first."""

LIKE_LENGTHS = re.compile(r"^(?!cu_).*(lens|lengths)$")
LIKE_MASKS = re.compile(rf"mask|pad|valid|keep|{LIKE_LENGTHS.pattern}")
LIKE_CACHES = re.compile(r"cache|past|state|kv|prev|memory|carry")
"""Parts of names that other authors give to such an argument, and to one that takes a cache."""

SWITCHES = ("is_causal", "causal")
CACHES = (
    "past_key_values", "past_key_value", "layer_past", "past", "cache_params", "kv_cache", "cache", "state", "states",
    "initial_state", "prev_state", "prev_hidden", "hx", "h0",
)  # fmt: skip
POSITIONS = ("positions", "position_ids", "position", "pos", "pos_ids", "input_pos", "cache_position")
TABLES = {
    **dict.fromkeys(("position_embeddings", "rotary_pos_emb", "rope", "cos_sin"), "rotary({size})"),
    "freqs_cis": "torch.complex(*rotary({size}))[0, :, : {size} // 2]",
    "cos": "rotary({size})[0]",
    "sin": "rotary({size})[1]",
}
"""Arguments that hold a table of rotary positions, and the table of heads of a size."""

MEMORIES = ("memory", "context", "encoder_hidden_states", "key_value_states", "source")
"""Arguments of cross attention, which get the states themselves."""
WIDTHS = ("dim", "d_model", "embed_dim", "hidden_size", "n_embd", "hidden_dim", "width", "features", "dim_head")
HEAD_SIZES = ("head_dim", "dim_head", "d_head", "head_size", "d_k", "dim_per_head")
HEAD_COUNTS = ("num_heads", "n_heads", "heads", "n_head", "nhead", "num_attention_heads")
LENGTHS = (64, 128, 32, 16, 256, 512)
"""Positions of the trials: the first that the module takes. Layers of blocks refuse what is no multiple of a block."""

HEADS, HEAD_DIM = 4, 16
SWAP = ".transpose(1, 2)"
"""Between (B, H, N, d) and (B, N, H, d)."""


class Unclear(SelectionError):
    """A question: what could not be found out, and the choices."""


def parameters_of(target: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a call by name; empty where a built-in tells none."""
    if isinstance(target, Away):
        return {each.name: each.parameter for each in target.facts.arguments}
    if target is F.scaled_dot_product_attention:
        target = _sdpa
    # what torch.compile returns has a signature of its own
    target = getattr(target, "_orig_mod", target)
    try:
        return dict(inspect.signature(target.forward if isinstance(target, nn.Module) else target).parameters)
    except (TypeError, ValueError):
        return {}


def named_like(target: Any, known: tuple[str, ...], like: re.Pattern[str]) -> list[str]:
    """The arguments of a call that are named so, the known ones first, then those whose name only looks so."""
    found = parameters_of(target)
    # of those that a call has to give, the numbers of tokens alone leave no doubt
    asked = {name for name, each in found.items() if each.default is each.empty and not LIKE_LENGTHS.search(name)}
    free = [name for name in found if name not in asked and like.search(name.lower())]
    others = {*MASKS, *CACHES, *SWITCHES, *POSITIONS, *TABLES}
    return [name for name in known if name in found] + [name for name in free if name not in others]


def _sdpa(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, is_causal: bool = False) -> None:
    """The arguments of torch's attention, which is built in and tells no signature."""


def plain_call(target: Any, call: Call, heads: int = HEADS) -> Convention:
    """The call without padding: the first trial that runs; `heads`: of q, k and v. Raises Unclear where none does."""
    if isinstance(target, Away):
        facts = target.facts
        if facts.question:
            raise Unclear(facts.question)
        found = Convention(kind=facts.kind, shape=facts.shape, length=facts.length, plain=facts.plain)
        return _given(facts.plain, facts.kind, facts.shape, facts.length) if call else found
    failures = []
    for kind, shape, arguments, turn in _candidates(target, call, heads):
        for length in LENGTHS:
            trial = (
                _given(call, kind, shape, length)
                if call
                else Convention(kind=kind, shape=shape, length=length, plain=f"m({arguments})")
            )
            size = f"{length} tokens" if kind == "model" else f"{length} positions of {' × '.join(map(str, shape))}"
            try:
                taken = _tried(target, trial, turn, call)
            except Unclear:
                raise
            except Exception as error:
                # a module of others may raise anything
                failures.append(f"{trial.plain} on {size} raised {crash_text(error)[:200]}")
                continue
            if isinstance(taken, Convention):
                if turn or call or not _is_of_channels(target, trial):
                    return taken
                taken = "no output at another length: positions lie along the axis of channels"
            failures.append(f"{trial.plain} on {size} gave {taken}")
    raise Unclear(_question(target, failures, given=bool(call)))


def _is_of_channels(target: Any, trial: Convention) -> bool:
    """True if as many positions as a convolution has channels are the only ones that it takes."""
    modules = target.modules() if isinstance(target, nn.Module) else ()
    if trial.kind != "layer" or all(getattr(each, "in_channels", None) != trial.length for each in modules):
        return False
    for length in LENGTHS:
        if length != trial.length:
            with suppress(Exception):
                inputs = draw("layer", trial.shape, 2, length, 1)
                if first_tensor(run_raw(trial.plain, target, "layer", inputs, None, False)).shape == inputs[0].shape:
                    return False
    return True


def _tried(target: Any, trial: Convention, turn: str, call: Call) -> Convention | str:
    """The convention of a call that gives one output for each position; else what it gave."""
    kind = trial.kind
    inputs = draw(kind, trial.shape, 2, trial.length, 1)
    output = run_raw(trial.plain, target, kind, inputs, None, False)
    swapped = inputs[0].transpose(1, 2) if turn else inputs[0]
    pick = picked(output, swapped.shape, kind)
    if pick is None:
        return str(tuple(output.shape)) if isinstance(output, Tensor) else f"a {type(output).__name__}"
    if isinstance(call, str) and call and pick:
        is_call = isinstance(ast.parse(call, mode="eval").body, ast.Call)
        call = f"{call}{pick}" if is_call else f"({call}){pick}"
    if call:
        return _given(call, kind, trial.shape, trial.length)
    trial = replace(trial, plain=f"{trial.plain}{pick}{turn}")
    return trial if turn == ".mT" else _arranged(target, trial)


def picked(output: Any, shape: torch.Size, kind: Kind) -> str | None:
    """The text that takes the tensor out of an output, such as `[0]`; None where no tensor has positions as `shape`."""
    axes = 3 if kind == "qkv" else 2

    def fits(each: Any) -> bool:
        long = isinstance(each, Tensor) and each.is_floating_point() and each.ndim > axes
        return long and each.shape[:axes] == shape[:axes]

    if isinstance(output, Tensor):
        return "" if fits(output) else None
    for name in ("logits", "last_hidden_state"):
        if fits(getattr(output, name, None)):
            return f".{name}"
    keys = output.keys() if isinstance(output, dict) else range(len(output)) if isinstance(output, list | tuple) else ()
    return next((f"[{key!r}]" for key in keys if fits(output[key])), None)


def _question(target: Any, failures: list[str], given: bool) -> str:
    """The question when no call worked. It quotes the likeliest call, whose failure says most."""
    likely = failures[0] if failures else "no argument that could be q, k, v, a hidden state or tokens"
    usable = "A call may name m, x (or q, k and v, or ids), valid, seen, pairs, bias, positions and rotary(16)"
    if given:
        return f"{likely}. {usable}"
    names = _required(target)
    three = [name[:1] for name in names[:3]] == ["q", "k", "v"]
    said = ", ".join(["q, k, v" if three else "x", *(f"{name}=…" for name in names[3 if three else 1 :])])
    text = (
        f"how is it called? Nothing that was tried gave one output for each position ({likely}). Say it by `--call`, "
        f"such as 'm({said})'. {usable}; or name a module of your file that needs no more"
    )
    without = sorted(name for name, each in _tensors(target) if each.is_meta)
    return f"{text}. On the device meta, without values: {', '.join(without[:3])}" if without else text


def _tensors(target: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(target, nn.Module):
        yield from target.named_parameters()
        yield from target.named_buffers()


def _given(call: Call, kind: Kind, shape: tuple[int, ...], length: int) -> Convention:
    """The convention of a call that a person gave, which is one expression with and without padding."""
    names = set(_names_of(call))
    masks, switches = names & {"valid", "pairs", "bias"}, names & {"seen", "pairs", "bias", "causal"}
    if not isinstance(call, str) and len(names) > 1 + len(NAMES[kind]):
        masks = names
    return Convention(
        kind=kind, shape=shape, length=length, plain=call, padded=call if masks else "",
        causal=call if switches else "", padded_causal=call if switches and masks else "",
    )  # fmt: skip


def _names_of(call: Call) -> tuple[str, ...]:
    """The names that a call uses."""
    if isinstance(call, str):
        try:
            return compile(call, "--call", "eval").co_names
        except SyntaxError as error:
            raise SelectionError(f"expected --call as one expression of Python, got {call!r}: {error.msg}") from None
    return tuple(inspect.signature(call).parameters)


def _required(target: Any) -> list[str]:
    """The arguments that a call has to give."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = parameters_of(target).items()
    return [name for name, each in found if each.default is each.empty and each.kind not in several]


def _candidates(target: Any, call: Call, heads: int) -> Iterator[tuple[Kind, tuple[int, ...], str, str]]:
    """Kinds, shapes, arguments and turns of the output to try, the likeliest first."""
    parameters = parameters_of(target)
    names = [name.lower() for name in parameters]
    wanted = {"q", "k", "v", "x", "ids"} & set(_names_of(call)) if call else set()
    widths = list(_widths(target))
    modules = target.modules() if isinstance(target, nn.Module) else ()
    sizes = [each.num_embeddings for each in modules if isinstance(each, nn.Embedding)]
    layers = []
    for more in _beside(target, widths):
        if wanted >= {"q", "k", "v"} or (not wanted and [name[:1] for name in names[:3]] == ["q", "k", "v"]):
            three = _said(parameters, "q", "k", "v") + more
            shapes = [(count, width) for count in dict.fromkeys((HEADS, heads)) for width in (HEAD_DIM, *widths)]
            yield from (("qkv", shape, three, "") for shape in shapes)
            if not wanted:
                # some take (B, N, H, d) alone, such as one with a parameter for each head
                yield from (("qkv", shape, _with_inputs(three, SWAP), SWAP) for shape in shapes)
                three = _said(parameters, "x", "x", "x") + more
                yield from (("layer", (width,), three, "") for width in widths)
            continue
        takes_ids = "ids" in wanted or (not wanted and names[:1] and names[0] in IDS)
        if sizes and (takes_ids or not wanted):
            caches = ", use_cache=False" if {"use_cache", "kwargs"} & set(names) and "input_ids" in names else ""
            yield "model", (sizes[0],), f"{'input_ids=' if 'input_ids' in names else ''}ids{more}{caches}", ""
        # without a table of embeddings, tokens are hidden states
        if not takes_ids or not sizes:
            layers += [("layer", (width,), _said(parameters, "x") + more) for width in widths]
            yield from ((*each, "") for each in layers[-len(widths) :])
    if set(names) == {"kwargs"} and not wanted:
        for name in ("hidden_states", "x", "inputs"):
            yield from (("layer", (width,), f"{name}=x", "") for width in widths)
        yield from (("qkv", (HEADS, width), "query=q, key=k, value=v", "") for width in (HEAD_DIM, *widths))
    if not wanted:
        # channels first, as convolutions have them
        yield from (("layer", shape, re.sub(r"\bx\b(?!=)", "x.mT", text), ".mT") for _, shape, text in layers)


def _said(parameters: dict[str, inspect.Parameter], *inputs: str) -> str:
    """The inputs as the first arguments, by name where these are keyword-only."""
    named = [each for each in parameters.values() if each.kind is each.KEYWORD_ONLY]
    if not named or any(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters.values()):
        return ", ".join(inputs)
    return ", ".join(f"{parameter.name}={name}" for parameter, name in zip(named, inputs, strict=False))


def _beside(target: Any, widths: list[int]) -> Iterator[str]:
    """Texts of the arguments that a call has to give beside the inputs, the likeliest first."""
    asked = _required(target)
    size, heads = next(_attributes(target, HEAD_SIZES), 0), next(_attributes(target, HEAD_COUNTS), HEADS)
    size = size or (widths[0] // heads if widths else HEAD_DIM)
    values = {
        **dict.fromkeys(SWITCHES, ("False",)),
        **dict.fromkeys(MASKS, ("None", "valid", "~valid", "bias")),
        **dict.fromkeys(filter(LIKE_LENGTHS.search, asked), (COUNTS,)),
        **dict.fromkeys(CACHES, ("None",)),
        **dict.fromkeys(MEMORIES, ("x",)),
        **dict.fromkeys(POSITIONS, ("positions", "positions[0]")),
        **{name: (text.format(size=size),) for name, text in TABLES.items()},
    }
    # some that have a default are needed all the same
    more = [name for name in parameters_of(target) if name not in asked and name in {*POSITIONS, *TABLES}]
    for known in ((), more) if more else ((),):
        named = [name for name in (*asked, *known) if name in values]
        for chosen in product(*(values[name] for name in named)):
            yield "".join(f", {name}={value}" for name, value in zip(named, chosen, strict=True))


def _attributes(target: Any, names: tuple[str, ...]) -> Iterator[int]:
    """Whole numbers that a module has under one of the names, its own first."""
    for module in target.modules() if isinstance(target, nn.Module) else ():
        found = (getattr(module, name, None) for name in names)
        yield from (each for each in found if isinstance(each, int) and not isinstance(each, bool) and each > 0)


def _widths(target: Any) -> Iterator[int]:
    """Sizes that the last axis of an input may have, the likeliest first."""
    seen = set()
    found = [getattr(target, name, None) for name in WIDTHS]
    if isinstance(target, nn.Module):
        for module in target.modules():
            found += [getattr(module, name, None) for name in ("in_features", "embed_dim", "num_features")]
            found += list(getattr(module, "normalized_shape", ()))[-1:]
        found += [getattr(each, "in_channels", None) for each in target.modules()]
        found += [each.shape[-1] for each in target.parameters() if each.ndim]
    for width in (*found, 64):
        if isinstance(width, int) and not isinstance(width, bool) and 1 < width <= 8192 and width not in seen:
            seen.add(width)
            yield width


def _arranged(target: Any, trial: Convention) -> Convention:
    """The same with the axes in their order: positions are the axis along which a change spreads."""
    if trial.kind == "model":
        return trial
    # three sequences, so that the middle one has neighbours on both sides
    inputs = draw(trial.kind, trial.shape, 3, trial.length, 1)
    subject = ForeignSubject(target, trial)
    text = str(trial.plain)
    if trial.kind == "layer" and trial.length == trial.shape[0]:
        turned = replace(trial, plain=f"{_with_inputs(text, '.mT')}.mT")
        if _refuses(target, trial, inputs) and not _refuses(target, turned, inputs):
            return turned
    # copies, since some change what they are given
    base = subject(tuple(each.clone() for each in inputs))
    where = torch.zeros(inputs[0].shape[:-1], dtype=torch.bool)
    where[(1, trial.shape[0] // 2, 3) if trial.kind == "qkv" else (1, 3)] = True
    other = tuple(torch.where(where[..., None], 3 * each + 1, each) for each in inputs)
    moved = (subject(other) - base).flatten(where.ndim).abs().amax(-1) > STILL * float(base.std())
    # without the changed place itself, which axes hold a moved one
    places = (moved & ~where).nonzero()
    home = where.nonzero()[0]
    along = {axis for axis in range(moved.ndim) if bool((places[:, axis] != home[axis]).any())}
    if trial.kind == "layer" and along == {0}:
        return replace(trial, plain=f"{_with_inputs(text, '.transpose(0, 1)')}.transpose(0, 1)")
    if trial.kind == "qkv" and 1 in along:
        if 2 in along:
            raise Unclear(
                "which axis holds the positions? A change of one key moves outputs along both; say it by `--call`: "
                "'m(q, k, v)' for (B, H, N, d), "
                "'m(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)' for (B, N, H, d)"
            )
        return replace(trial, plain=f"{_with_inputs(text, SWAP)}{SWAP}")
    return trial


def _with_inputs(call: str, turn: str) -> str:
    """The call with each input turned.

    >>> _with_inputs("m(x, x=x, max=3)[0]", ".mT")
    'm(x.mT, x=x.mT, max=3)[0]'
    """
    return re.sub(r"\b([xqkv])\b(?!=)", rf"\1{turn}", call)


def _refuses(target: Any, trial: Convention, inputs: Inputs) -> bool:
    """True if a call refuses half of the positions, as it does where it takes them for channels."""
    try:
        output = ForeignSubject(target, trial)(tuple(each[:, : trial.length // 2] for each in inputs))
    except Exception:
        return True
    return output.shape[:2] != (len(inputs[0]), trial.length // 2)


def unused_arguments(subject: ForeignSubject) -> list[str]:
    """Arguments that may hold a tensor, and that no call of the convention names; options have other defaults."""
    convention = subject.convention
    called = f"{convention.plain} {convention.padded} {convention.causal}"
    tried = {*named_like(subject.module, CACHES, LIKE_CACHES), *MASKS, *SWITCHES, *POSITIONS, *TABLES}
    found = parameters_of(subject.module).items()
    return [
        name for name, each in found
        if each.default is None and name not in tried and not re.search(rf"\b{name}\b", called)
    ]  # fmt: skip
