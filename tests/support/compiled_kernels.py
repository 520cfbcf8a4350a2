"""Compiles cases of Triton kernels: `compiled_kernels.py own|wide CAPABILITY MODULE[/CASE] …`, a line of JSON for each.

A process of its own, since kernels that were imported to be interpreted cannot be compiled; the first Triton of its
path counts. `own`: `COMPILE_CASES` of the modules. `wide`: each dtype with each width that a preset uses, and padding,
dropout, shared keys, sinks and learned numbers in turn, so that each meets each dtype.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import torch
import triton

from attnbench.variants.kernels.triton import launch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDTHS = (16, 32, 64, 128)


def wide(name: str, module: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    for at, (dtype, width) in enumerate(product(DTYPES, WIDTHS)):
        # no flag goes along with a dtype or a width
        odd, rate, turn = (at + at // 4) % 2 == 1, 0.1 * ((at // 2 + at // 4) % 2), at % 3
        shown = f"{str(dtype).removeprefix('torch.')} {width}{' odd' * odd} {rate} {turn}"
        of_kv = 2 if turn == 0 else 4
        calls: dict[str, Callable[[], None]] = {
            "maps": lambda d=dtype, w=width, o=odd, r=rate, t=turn, kv=of_kv: module._pass(
                d, w, not o, o, kv, r, (None, module._with_sink, module._learning)[t]
            ),
            "entmax": lambda d=dtype, w=width, o=odd, r=rate, t=turn, kv=of_kv: module._pass(
                d, w, not o, o, (1.5, 2.0, module._learned())[t], kv, r
            ),
            # 31 columns come with padding
            "interval": lambda d=dtype, w=width, o=odd, r=rate: module._pass(w, 31 if o else 0, d, r),
            "linear": lambda d=dtype, w=width, o=odd: module._pass(w, d, o),
        }
        if name in calls:
            yield shown, calls[name]


def main(kind: str, capability: int, names: list[str]) -> None:
    for name, _, only in (name.partition("/") for name in names):
        module = importlib.import_module(f"attnbench.variants.kernels.triton.{name}")
        cases = wide(name, module) if kind == "wide" else ((case.name, case.run) for case in module.COMPILE_CASES)
        for shown, run in cases:
            if only not in ("", shown):
                continue
            try:
                with launch.recording(capability) as noted:
                    run()
                with ThreadPoolExecutor(2) as pool:
                    begun = [(each, pool.submit(launch.compiled, each)) for each in noted.values()]
                # Python 3.11 mixes up the trees of two sources that are parsed at once
                ended = [launch.compiled(each) if future.exception() else future.result() for each, future in begun]
                found: Any = [[one.kernel, one.registers, one.stack_bytes, one.shared_bytes] for one in ended]
            except Exception as error:
                found = f"{type(error).__name__}: {error} {error.__cause__ or ''}"
            print(json.dumps([triton.__version__, capability, name, shown, found]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
