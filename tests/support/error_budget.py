"""Error budgets: how far a kernel may be from a definition in float64, by the error of the definition itself.

A constant fits the processor on which it was found; vector widths and numbers of threads change the order of sums.
The definition is therefore run in the dtype of the kernel too, and a kernel may err `FACTOR` times as much as it does,
plus a floor of some units of rounding, below which errors are chance. The gate judges implementations by this rule.

A sum of few terms or a single number may come out right by luck, and a score at the edge of a support may fall on
either side of it. In float32 the definition is therefore also run on inputs of which each number is moved to one of
its neighbours, and its largest error counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

FACTOR = 4.0
NUDGES = 2

Tensors = Sequence[Tensor]


def relative_error(found: Tensor, exact: Tensor) -> float:
    """The largest difference, relative to the largest entry of `exact`; infinite where an entry is not finite."""
    assert found.shape == exact.shape, f"expected shape {tuple(exact.shape)}, got {tuple(found.shape)}"
    found, exact = found.detach().double().cpu(), exact.detach().double().cpu()
    if not (found.isfinite().all() and exact.isfinite().all()):
        return math.inf
    difference, scale = (found - exact).abs().max().item(), exact.abs().max().item()
    return difference / scale if scale else (0.0 if difference == 0 else math.inf)


def runs(definition: Callable[[list[Tensor]], Tensors], inputs: Tensors) -> list[Tensors]:
    """What `definition` gives for `inputs`, and in float32 for inputs next to them, to go into `assert_within_budget`.

    definition: takes the inputs, detached, and returns the tensors to compare, output and gradients.
    """
    inputs = [x.detach() for x in inputs]
    found = [definition(inputs)]
    if inputs[0].dtype == torch.float32:
        for at in range(NUDGES):
            generator = torch.Generator().manual_seed(at)
            signs = [torch.randint(0, 2, x.shape, generator=generator).mul(2).sub(1).to(x) for x in inputs]
            found.append(definition([x + x * sign * 2**-23 for x, sign in zip(inputs, signs, strict=True)]))
    return found


def error_budget(definitions: Tensors, exact: Tensor, dtype: torch.dtype, factor: float = FACTOR) -> float:
    """The relative error that is allowed where the definition gives `exact` in float64 and `definitions` in `dtype`."""
    own = max(relative_error(definition, exact) for definition in definitions)
    return factor * own + (16 if dtype.itemsize > 2 else 2) * torch.finfo(dtype).eps


def over_budget(
    found: Tensors, definitions: Sequence[Tensors], exact: Tensors, names: Sequence[str] = (), factor: float = FACTOR
) -> list[str]:
    """A line for each tensor of `found` that is further from `exact`, in float64, than its budget.

    definitions: the `runs` in the dtype of `found`.
    """
    # gradients of parameters in float32 are as coarse as the inputs that they were computed from
    dtype = max((x.dtype for x in definitions[0]), key=lambda kind: torch.finfo(kind).eps)
    over = []
    for at, (tensor, true, *own) in enumerate(zip(found, exact, *definitions, strict=True)):
        error, budget = relative_error(tensor, true), error_budget(own, true, dtype, factor)
        if not error <= budget:
            over.append(f"{names[at] if names else f'tensor {at}'}: error {error:.1e}, allowed {budget:.1e}")
    assert len(found) > 0, "nothing was compared"
    return over
