"""Calibration: what a large product and the known dense kernels reach on this GPU, in the process of what is timed.

At the shapes of FlashAttention-3's figures, so that published numbers stand beside those of this machine: 16k tokens,
heads × width 2,048, widths 64 and 128, float16 and bfloat16, causal and not, the forward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core.record import Measurement
from .timer import Work, interleave, stopwatch

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
FLASH_3 = "flash_attn_interface"
"""The module that FlashAttention-3 installs."""

GAP_SECONDS = 5e-3
"""Before each sample of a cooled figure: without it clocks fall by up to 15 % within a hundred passes."""

SUSTAINED_SECONDS = 0.15
ROUNDS = 5

HEAD_DIMS = (64, 128)
DTYPES = ("float16", "bfloat16")

Known = tuple[dict[str, Any], float, Work]
"""Its description, as its measurement says it; its nominal FLOPs; and the work."""


def calibration(
    device: torch.device, *, side: int = 8192, tokens: int = 16384, width: int = 2048
) -> Iterator[Measurement]:
    """FLOPs per second of each kernel that runs here: after pauses (`cooled`), some of them back to back (`sustained`).

    Nominal FLOPs: 2 · side³ of the product; 4 · tokens² · width of attention, heads × width of a head in all, half of
    them where it is causal.
    """
    known: list[Known] = []
    for one in (one for dtype in DTYPES for one in _known(device, dtype, side, tokens, width)):
        # a kernel that is not there, or not for this card, is left out
        with suppress(RuntimeError):
            one[2]()
            known.append(one)
    names, clock = list(map(str, range(len(known)))), stopwatch(device)
    timing = interleave(
        {name: work for name, (_, _, work) in zip(names, known, strict=True)},
        reference=names[0], device=device, budget_seconds=0.0, least_rounds=ROUNDS,
        prepare=dict.fromkeys(names, partial(time.sleep, GAP_SECONDS)),
    )  # fmt: skip
    for name, (what, flops, work) in zip(names, known, strict=True):
        rates = tuple(flops / seconds for seconds in timing.samples[name].seconds)
        yield Measurement.of("kernel_flops_per_second", median(rates), rates, pace="cooled", **what)
        if what["dtype"] == DTYPES[-1] and what["head_dim"] in (0, HEAD_DIMS[-1]) and not what["causal"]:
            times = max(2, round(SUSTAINED_SECONDS * median(rates) / flops))
            burst = partial(_repeat, work, times)
            # the first burst heats it up, the second one is timed
            clock.warm_up(burst)
            rate = times * flops / clock.measure(burst, 1)[0]
            yield Measurement.of("kernel_flops_per_second", rate, pace="sustained", **what)


def _known(device: torch.device, dtype: str, side: int, tokens: int, width: int) -> Iterator[Known]:
    drawn = partial(torch.randn, device=device, dtype=getattr(torch, dtype))
    none = {"dtype": dtype, "head_dim": 0, "length": 0, "causal": False}
    yield none | {"kernel": "product"}, 2.0 * side**3, partial(torch.mm, drawn(side, side), drawn(side, side))
    inputs = [drawn(tokens * width) for _ in range(3)]
    for head_dim, causal, (kernel, attention) in product(HEAD_DIMS, (False, True), _kernels(device).items()):
        # heads before tokens for PyTorch and after them for FlashAttention-3, as each wants it
        ahead = (tokens, width // head_dim) if kernel == "flash-3" else (width // head_dim, tokens)
        work = partial(attention, *(x.view(1, *ahead, head_dim) for x in inputs), causal)
        what = none | {"kernel": kernel, "head_dim": head_dim, "length": tokens, "causal": causal}
        yield what, 4.0 * width * tokens**2 * (0.5 if causal else 1.0), work


def _kernels(device: torch.device) -> Mapping[str, Callable[..., object]]:
    # a processor has neither, and rehearses with what it has
    if device.type != "cuda":
        return {"sdpa": partial(_sdpa, None)}
    flash_3 = {"flash-3": _flash_3} if find_spec(FLASH_3) is not None else {}
    return {name: partial(_sdpa, backend) for name, backend in BACKENDS.items()} | flash_3


@torch.no_grad()
def _sdpa(backend: SDPBackend | None, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    with sdpa_kernel(backend) if backend else nullcontext():
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal)


@torch.no_grad()
def _flash_3(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> object:
    return import_module(FLASH_3).flash_attn_func(query, key, value, causal=causal)


def _repeat(work: Work, times: int) -> None:
    for _ in range(times):
        work()
