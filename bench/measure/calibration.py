"""Calibration: what a large product and the known dense kernels reach on this GPU, in the process of what is timed.

At the shapes of FlashAttention-3's figures, so that published numbers stand beside those of this machine: 16k tokens,
heads × width 2,048, widths 64 and 128, float16 and bfloat16, causal and not, the forward pass.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSizes:
    """`side`: of the square product; `tokens`: of the one sequence; `width`: heads times head_dim."""

    side: int = 8192
    tokens: int = 16384
    width: int = 2048
    head_dims: tuple[int, ...] = (64, 128)
    dtypes: tuple[str, ...] = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """One piece of work; `head_dim`, `length` and `causal` are of attention, and 0 of the product."""

    kernel: str
    dtype: str
    head_dim: int = 0
    length: int = 0
    causal: bool = False


def calibration(device: torch.device, sizes: CalibrationSizes | None = None) -> Iterator[Measurement]:
    """FLOPs per second of each kernel that runs here, from pauses (`cooled`), and of the last widths back to back.

    Nominal FLOPs: 4 · heads · tokens² · width of a head, half of them where it is causal; 2 · side³ of the product.
    """
    sizes, flops, works = sizes or CalibrationSizes(), dict[Calibrated, float](), dict[Calibrated, Work]()
    for dtype in sizes.dtypes:
        for what, count, work in _works(device, getattr(torch, dtype), dtype, sizes):
            try:
                # a kernel that is not there, or not for this card, is left out
                work()
            except RuntimeError:
                continue
            flops[what], works[what] = count, work
    clock = stopwatch(device)
    timing = interleave(
        {str(what): work for what, work in works.items()},
        reference=str(next(iter(works))), device=device, budget_seconds=0.0, least_rounds=ROUNDS,
        prepare=dict.fromkeys(map(str, works), partial(time.sleep, GAP_SECONDS)),
    )  # fmt: skip
    for what, work in works.items():
        seconds = timing.samples[str(what)].seconds
        yield _measured(what, flops[what], seconds, "cooled")
        if what.dtype == sizes.dtypes[-1] and not what.causal and what.head_dim in (0, sizes.head_dims[-1]):
            times = max(2, round(SUSTAINED_SECONDS / statistics.median(seconds)))
            burst = partial(_repeat, work, times)
            # the first burst heats it up, the second one is timed
            clock.warm_up(burst)
            yield _measured(what, flops[what], [clock.measure(burst, 1)[0] / times], "sustained")


def _measured(what: Calibrated, flops: float, seconds: list[float], pace: str) -> Measurement:
    rates = tuple(flops / each for each in seconds)
    return Measurement.of("kernel_flops_per_second", statistics.median(rates), rates, pace=pace, **asdict(what))


def _works(
    device: torch.device, dtype: torch.dtype, name: str, sizes: CalibrationSizes
) -> Iterator[tuple[Calibrated, float, Work]]:
    left, right = (torch.randn(sizes.side, sizes.side, device=device, dtype=dtype) for _ in range(2))
    yield Calibrated(kernel="product", dtype=name), 2.0 * sizes.side**3, partial(torch.mm, left, right)
    inputs = [torch.randn(sizes.tokens * sizes.width, device=device, dtype=dtype) for _ in range(3)]
    for head_dim, causal in product(sizes.head_dims, (False, True)):
        flops = 4.0 * sizes.width * sizes.tokens**2 * (0.5 if causal else 1.0)
        for kernel, attention in _kernels(device).items():
            # heads before tokens for PyTorch and after them for FlashAttention-3, as each wants it
            ahead = (sizes.width // head_dim, sizes.tokens)
            shape = (1, *(ahead[::-1] if kernel == "flash-3" else ahead), head_dim)
            what = Calibrated(kernel=kernel, dtype=name, head_dim=head_dim, length=sizes.tokens, causal=causal)
            yield what, flops, partial(attention, *(x.view(shape) for x in inputs), causal)


def _kernels(device: torch.device) -> Mapping[str, Callable[..., object]]:
    # a processor has neither, and rehearses with what it has
    if device.type != "cuda":
        return {"sdpa": partial(_sdpa, None)}
    found: dict[str, Callable[..., object]] = {name: partial(_sdpa, backend) for name, backend in BACKENDS.items()}
    if find_spec(FLASH_3) is not None:
        found["flash-3"] = _flash_3
    return found


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
