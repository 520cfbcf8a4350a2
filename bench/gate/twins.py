"""Twins: the same function in another implementation, with keys that heads share, or with keys repeated for each.

Sees any difference between a fused path and the eager one, or between an exact variant and its definition, and a
variant that pairs heads of a group wrongly, forward, backward or in decoding. Cannot see an error that both sides
share: only comparisons with independent code, in the tests of each variant, can. Of shared heads it cannot see a kernel
that takes no float64: every other property meets them where the shape has them, as `sweep[kv_heads=8]` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...variants.contract import AttentionShape
from ..core.errors import Unsupported
from .case import PARTS, Case, Inputs, RunSetting, gap
from .masks import decoded
from .numerics import SoftmaxReference
from .result import Answers, Measured, NotJudged
from .variant import EAGER, VariantFactory, VariantSource, build, resized, with_heads

FACTOR = 4
NUDGES = 8
"""Draws of a rounding of the inputs: a score at a kink falls on either side in one of them."""
HEAD_DIMS = {"cpu": ((67, 2), (5, 8)), "cuda": ((5, 8),)}
"""Other widths of a head, and how many: more than a kernel may take at once. On a GPU only where it is thorough: each
width compiles up to eight kernels more, of a second each, that no measurement of another one launches, and a large one
takes longest: one odd width shows what happens beside the last number of a row. A processor compiles none for it."""
TOO_LARGE = "float64 has no room for more than 2,048 tokens, or for scores of more than 2 GiB"
SLOW = {"flex", "triton"}
"""Built or interpreted anew for every shape, which takes seconds."""
ON_DEMAND = {"cpu": {"flex", "triton"}, "cuda": {"flex"}}
"""Implementations that run on such a device only where a selection names them."""
SWITCHES: dict[str, tuple[Callable[[], bool], Callable[[bool], None]]] = {
    "cudnn": (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    "flash": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "efficient": (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
}
"""PyTorch's attention kernels on a CUDA device, by the names that softmax has for them: whether each may run, and its
switch. `math` is always there."""
GROUPED = (6, 2)
"""Heads, and keys that they share: groups of more than two, and more than one of them."""
DECODED = 8
"""Tokens that are decoded one by one."""
TOLERANCE = 1e-9
"""The difference that is allowed in float64, far above its rounding."""


def equals_twin(case: Case) -> Answers:
    """an `exact` variant equals its eager twin in float64, also at other widths of a head, within four times the
    rounding error of softmax"""
    if case.module.kind != "exact":
        yield Measured(1.0, 0.0, f"kind is {case.module.kind!r}, expected exact, approximate or different")
        return
    if EAGER not in case.factory.implementations and not case.module.twin:
        yield Measured(1.0, 0.0, "kind is `exact`, but neither `twin` nor `impl=eager` says what it equals")
        return
    for sized in _sizes(case):
        yield from _comparisons(sized, sized, "its twin")


def implementations_agree(case: Case) -> Answers:
    """every `impl` that runs here, or the forced one, equals eager in float64, also at other widths of a head, within
    four times the larger error of softmax and eager"""
    for name in examined(case.factory, case.shape.device, case.thorough):
        # compiled and interpreted anew for each size, which takes seconds
        for sized in _sizes(case) if name not in SLOW else [case] if case.reduced is case else []:
            # as it is built, and as it runs: what a kernel takes it may say only then
            try:
                yield from _comparisons(sized, sized.rebuilt(impl=name), f"impl={name}")
            except Unsupported as refusal:
                yield NotJudged(f"impl={name}: {refusal}")


def grouped_heads(case: Case) -> Answers:
    """heads that share keys and values equal heads with keys and values repeated"""
    heads, shared = case.shape.heads, case.shape.kv_heads
    if shared == heads:
        # the largest number that divides the heads, so that groups are small and several
        shared = next(number for number in range(heads // 2, 0, -1) if heads % number == 0)
    yield from _grouped(case, heads, shared)
    # the heads of the shape may be prime or all share one key, where no order is wrong
    many = resized(case.shape, heads=GROUPED[0], kv_heads=GROUPED[0])
    try:
        more = Case(case.factory, many, seed=case.seed)
    except Unsupported as refusal:
        yield NotJudged(str(refusal))
        return
    yield from _grouped(more, *GROUPED)


def _grouped(case: Case, heads: int, shared: int) -> Answers:
    # float64, where nothing but a wrong pair of heads makes a difference
    shapes = [replace(case.shape, dtype="float64", kv_heads=number) for number in (shared, heads)]
    try:
        built = [(shape, build(case.factory, shape, case.seed)) for shape in shapes]
    except Unsupported as refusal:
        yield NotJudged(str(refusal))
        return
    grouped, single = (
        Case(case.factory, shape, case.setting, case.seed, module=module, base=case.base) for shape, module in built
    )
    drawn, place = case.inputs(), f"{heads} heads on {shared}, float64"
    parts = (drawn.query, drawn.key[:, :shared], drawn.value[:, :shared])
    query, key, value = leaves = [x.detach().double().requires_grad_() for x in parts]
    hidden = None if drawn.hidden is None else drawn.hidden.double()
    # by number and not by `repeat_heads`, which variants call themselves: a wrong order would be wrong on both sides
    of_group = torch.arange(heads, device=query.device) // (heads // shared)
    inputs = Inputs(query, key, value, hidden)
    output = grouped.forward(inputs)
    expected = single.forward(Inputs(query, key[:, of_group], value[:, of_group], hidden))
    yield Measured(gap(output, expected), TOLERANCE, f"output, {place}")
    # a layer without parameters makes all from its hidden state
    if expected.requires_grad:
        found = [torch.autograd.grad(each.sum(), leaves, allow_unused=True) for each in (output, expected)]
        for name, ours, theirs in zip(("query", "key", "value"), *found, strict=True):
            if ours is not None and theirs is not None and theirs.any():
                yield Measured(gap(ours, theirs), TOLERANCE, f"gradient of {name}, {place}")
    shape, module = single.shape, single.module
    if shape.causal and not shape.cross and module.decodes and module.state_bytes(module.shape) is not None:
        few = inputs.part(0, DECODED)
        steps = decoded(grouped, [few])[0][0]
        yield Measured(gap(steps, grouped.run(few)), TOLERANCE, f"decoding, {place}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One `impl` of a variant on one shape. `refusal`: why the gate does not examine it; empty where it does."""

    name: str
    refusal: str = ""


def paths(variant: VariantSource | VariantFactory, shape: AttentionShape) -> list[Path]:
    """The paths of `variant`, or the forced one alone; none where it has no parameter `impl`. `auto` takes one of them.

    Raises SelectionError for an unknown name.
    """
    factory, found = VariantFactory.of(variant), []
    for name in examined(factory, shape.device):
        refusal = ""
        try:
            build(factory, replace(shape, dropout=0.0), 0, impl=name)
        except Unsupported as reason:
            refusal = str(reason)
        found.append(Path(name=name, refusal=refusal))
    return [path for path in found if path.name != "auto"]


def left_out() -> list[str]:
    """PyTorch's attention kernels that may not run in this process, since the gate found them wrong, or by request."""
    return [name for name, (may_run, _) in SWITCHES.items() if not may_run()]


def examined(factory: VariantFactory, device: str, thorough: bool = True) -> tuple[str, ...]:
    """The implementations to compare with eager: the forced one, or all, but for those that are left out, and for rare
    ones where it is to be quick."""
    if factory.forced:
        return (factory.forced,)
    rare = set(left_out()) | (set() if thorough else ON_DEMAND.get(torch.device(device).type, set()))
    return tuple(name for name in factory.implementations if name not in rare)


def _sizes(case: Case) -> list[Case]:
    """The settings in the precision to be measured, then those at `HEAD_DIMS`."""
    if case.own:
        return [case.reduced]
    if "sizes" not in case.memo:
        found = [each for each in case.cases if each.dtype == case.dtype]
        device = torch.device(case.shape.device).type
        spared = case.interpreted or (device == "cuda" and not case.thorough)
        for head_dim, heads in () if spared else HEAD_DIMS.get(device, HEAD_DIMS["cpu"]):
            shape = resized(case.shape, head_dim=head_dim)
            every = shape.kv_heads == shape.heads and heads > shape.heads
            shape = resized(shape, heads=heads, kv_heads=heads) if every else with_heads(shape, heads)
            setting = RunSetting(min(shape.max_length, 47))
            with suppress(Unsupported):
                found.append(Case(case.factory, shape, setting, case.seed, thorough=case.thorough))
        case.memo["sizes"] = found
    sizes: list[Case] = case.memo["sizes"]
    return sizes


def _comparisons(case: Case, found: Case, name: str) -> Answers:
    if case.own and not case.fits_float64:
        yield NotJudged(TOO_LARGE)
        return
    masks = [False]
    if case.shape.padding:
        # Kernels take another path with a mask, so both are run, where it costs little.
        both = case.kind in ("usual", "many") and name.removeprefix("impl=") not in SLOW
        masks = [False, True] if both else [True]
    for masked in masks:
        inputs = case.inputs()
        valid = inputs.padded_from(max(1, inputs.key.shape[2] // 2)) if masked else None
        if ("twin", masked) not in case.memo:
            case.memo["twin", masked] = _reference(case, inputs, valid)
        twin, expected, allowed = case.memo["twin", masked]
        place = f"{name}, {case.shape.head_dim} wide, {case.place}{' with padding' if masked else ''}"
        yield from differences(twin, inputs, valid, found.passes(inputs, valid), expected, allowed, place)


def _reference(case: Case, inputs: Inputs, valid: Tensor | None) -> tuple[Case, list[Tensor], list[float]]:
    """The twin in float64, its output and gradients, and what each may differ by."""
    eager = EAGER in case.factory.implementations
    if "twin" not in case.memo:
        if eager:
            case.memo["twin"] = case.rebuilt(dtype="float64", impl=EAGER)
        else:
            shape = replace(case.shape, dtype="float64")
            module = build(case.factory.twin(case.module.twin), shape, case.seed)
            case.memo["twin"] = case.with_module(module, "float64")
    twin, double = case.memo["twin"], Inputs(*(x.double() for x in inputs))
    softmax = case.with_module(SoftmaxReference(case.shape).eval())
    exact = softmax.with_module(softmax.module, "float64").passes(double, valid)
    errors = [gap(a, b) for a, b in zip(softmax.passes(inputs, valid), exact, strict=False)]
    expected = twin.passes(double, valid)
    if eager and case.module.kind != "exact":
        # Where scores are large the definition itself may err more than softmax does in this precision.
        rounded = case.rebuilt(impl=EAGER).passes(inputs, valid)
        errors = [max(error, gap(a, b)) for error, a, b in zip(errors, rounded, expected, strict=True)]
    # An error of softmax that happens to be zero must not forbid a last bit to others.
    # 24: of 48 sound trials of scalable-softmax, whose scores are several times as large, one went beyond 16.
    floor = (24 if case.dtype.itemsize > 2 else 2) * torch.finfo(case.dtype).eps
    return twin, expected, [FACTOR * error + floor for error in errors]


def differences(
    twin: Case,
    inputs: Inputs,
    valid: Tensor | None,
    found: list[Tensor],
    expected: list[Tensor],
    allowed: list[float],
    place: str,
) -> Answers:
    """The difference of each of `Case.passes` from that of the `twin` in float64.

    A row may differ further by four times what it moves by in float64 itself where each entry of the inputs moves by a
    rounding: a score that is nearly zero may fall on the other side of a kink, or be divided by.
    """
    errors = [gap(a, b) for a, b in zip(found, expected, strict=True)]
    if any(limit < error < math.inf for error, limit in zip(errors, allowed, strict=True)):
        # only here, since nearly all need none: it costs passes in float64
        generator = torch.Generator().manual_seed(twin.seed)
        epsilon = torch.finfo(inputs.query.dtype).eps
        # the most that each row moves by, (..., 1), over several draws
        moved = [torch.zeros_like(x[..., :1]) for x in expected]
        for _ in range(NUDGES):
            noise = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device) for x in inputs]
            nudged = Inputs(*(x.double() * (1 + epsilon * y) for x, y in zip(inputs, noise, strict=True)))
            passes = twin.passes(nudged, valid)
            rows = [(a - b).abs().amax(-1, keepdim=True) for a, b in zip(passes, expected, strict=True)]
            moved = [torch.maximum(a, b) for a, b in zip(moved, rows, strict=True)]
        for at, (a, b) in enumerate(zip(found, expected, strict=True)):
            if allowed[at] < errors[at] < math.inf:
                beyond = ((a.double() - b).abs() - FACTOR * moved[at]).max() / b.abs().max()
                errors[at] = max(0.0, float(beyond))
    for part, error, limit in zip(PARTS, errors, allowed, strict=False):
        yield Measured(error, limit, f"{part} of {place}")
