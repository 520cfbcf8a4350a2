"""Launch of Triton kernels: whether one can run here, its launch, and its compilation without a GPU.

A kernel module imports Triton at its top, so ask `reason` before importing one; this module needs no Triton.

Conventions of all kernels: tensors are (batch, heads, length, head_dim), of any strides but 1 in the last dimension;
`valid` is (batch, keys), True = a real key, or None; causal is aligned at the last key. Block sizes are explicit,
nothing is tuned at run time, and what is launched never depends on values, so that a CUDA graph can hold it. With
TRITON_INTERPRET=1 in the environment before Triton is imported, kernels run on CPU tensors, slowly. bfloat16 does not:
the interpreter multiplies it wrongly without a word.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...ops.inputs import check_inputs
from .interpreter import ENABLE, interpreted, prepared_once

LOWEST_ALPHA = 1.01
"""The smallest alpha of alpha-entmax that the kernels solve for: nearer 1 their Newton method leaves float32."""

SIZES = ("queries", "keys", "heads", "least", "plane")
"""Arguments for which no kernel is compiled anew where they are 1 or a multiple of 16: rows do not lie by them.

By itself Triton compiles one for each of these cases, and a gate tries many lengths; `least` is the threshold of
dropout, `plane` how far numbers of one query lie apart. Strides stay as they are, since wide loads need to know them.
"""

_POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCase:
    """A forward and backward pass on meta tensors, whose launches are compiled for a GPU that need not be there.

    A kernel module lists its own in `COMPILE_CASES`. `run` calls the public function, and backward, as a user would.
    """

    name: str
    run: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One kernel as compiled: what a block of threads takes of its multiprocessor.

    `constants`: its constexprs by name. `cubin`: its machine code.
    """

    kernel: str
    warps: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    tensor_core_instructions: int
    constants: dict[str, Any]
    cubin: bytes = field(repr=False)


def reason(device: str, dtype: torch.dtype, head_dim: int, *, largest_head_dim: int = 256) -> str | None:
    """None, or why Triton kernels cannot work on such tensors here. `device` is a type: "cuda", "cpu"."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; install attnbench[triton]"
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"Triton kernels take float32, float16 and bfloat16, not {str(dtype).removeprefix('torch.')}"
    if not 1 <= head_dim <= largest_head_dim:
        return f"Triton kernels take head_dim 1 to {largest_head_dim}, not {head_dim}"
    if interpreted():
        if dtype == torch.bfloat16:
            return "Triton's interpreter multiplies bfloat16 wrongly; use float32 or float16, or a GPU"
        return None
    # compiled ahead of time: there is no device to ask
    if device == "meta" and _compiled is not None:
        return None
    if device != "cuda":
        return f"Triton kernels need a CUDA device, or {ENABLE} in the environment: slow, to prove them on a CPU"
    if torch.cuda.get_device_capability() < (8, 0):
        return "Triton kernels need compute capability 8.0 or more"
    return None


def prepared(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    valid: Tensor | None,
    *,
    one_width: bool = True,
    whole: bool = False,
    grouped: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Inputs as kernels take them: the last dimension, or where `whole` all, side by side.

    Called before the autograd function and not in it, so that what that saves is part of the graph. A mask for all
    sequences is repeated for each. `grouped`: keys and values may have fewer heads. Raises SelectionError for shapes
    that do not fit, which a kernel would read past.
    """
    check_inputs(query, key, value, valid, one_width=one_width, grouped=grouped)
    query, key, value = (x.contiguous() if whole or x.stride(-1) != 1 or _far(x) else x for x in (query, key, value))
    return query, key, value, None if valid is None else valid.expand(query.shape[0], -1).contiguous()


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Any, warps: int = 4, stages: int = 2, **constants: Any
) -> None:
    """Runs `kernel` on `grid`: tensors, ints and floats in the order of its signature, then its constexprs by name.

    Inside `compiling` it is compiled instead. An empty grid has nothing to do.
    """
    if 0 in grid:
        return
    if _compiled is not None:
        # every launch of the pass, forward and backward, without a tensor that holds numbers
        _compile(kernel, arguments, constants, warps, stages)
        return
    device = next(argument.device for argument in arguments if isinstance(argument, Tensor))
    # the interpreter runs on tensors of a CPU; whatever else gets there has a GPU
    with torch.cuda.device(device) if device.type == "cuda" else prepared_once():
        kernel[grid](*arguments, num_warps=warps, num_stages=stages, **constants)


def _far(x: Tensor) -> bool:
    """Whether rows of a head begin 2^31 numbers apart, as those of a joined projection of 3,072 columns do at 699,051.

    Kernels count the numbers to a row in int32: in int64 it takes them up to 224 bytes of stack more, for lengths that
    hardly anybody has.
    """
    return x.shape[2] * x.stride(2) >= 2**31


@contextmanager
def compiling(capability: int = 90) -> Iterator[list[Compiled]]:
    """Compiles what is launched inside for that compute capability, and lists it; needs Triton, not a GPU.

    Not for interpreted kernels: leave TRITON_INTERPRET out of the environment.
    """
    global _compiled, _capability
    _compiled, _capability, before = [], capability, (_compiled, _capability)
    try:
        yield _compiled
    finally:
        _compiled, _capability = before


_compiled: list[Compiled] | None = None
_capability = 90


def _compile(kernel: Any, arguments: tuple[Any, ...], constants: dict[str, Any], warps: int, stages: int) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature, values, attributes = {}, dict(constants), {}
    for at, (name, argument) in enumerate(zip(names, arguments, strict=False)):
        # what Triton itself does at a launch: None and 1 become constants, multiples of 16 are said to be so
        special = isinstance(argument, int) and name not in (kernel.do_not_specialize or ())
        if argument is None or (special and argument == 1):
            values[name] = argument
        else:
            signature[name] = _type_of(argument)
            if isinstance(argument, Tensor) or (special and argument % 16 == 0):
                # aligned pointers and strides allow wide loads, and change what a thread keeps in registers
                attributes[(at,)] = [["tt.divisibility", 16]]
    missing = [name for name in names if name not in values and name not in signature]
    if missing:
        raise TypeError(f"{kernel.__name__}: expected a value for {', '.join(missing)}")
    signature = {name: signature.get(name, "constexpr") for name in names}
    source = ASTSource(kernel, signature, constexprs=values, attrs=attributes)
    target = GPUTarget("cuda", _capability, 32)
    binary = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    assert _compiled is not None
    registers, stack = _usage(binary.asm["cubin"])
    _compiled.append(
        Compiled(
            kernel=kernel.__name__,
            warps=warps,
            registers=registers,
            stack_bytes=stack,
            shared_bytes=binary.metadata.shared,
            tensor_core_instructions=len(re.findall(r"\b(?:wgmma\.mma_async|mma\.sync)", binary.asm["ptx"])),
            constants=constants,
            cubin=binary.asm["cubin"],
        )
    )


def _type_of(argument: Any) -> str:
    if isinstance(argument, Tensor):
        return _POINTERS[argument.dtype]
    if isinstance(argument, float):
        return "fp32"
    # as Triton types an int argument: by its value
    return "i32" if -(2**31) <= argument < 2**31 else "i64"


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack: what did not fit into registers lies there."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if found is None:
        raise RuntimeError(f"expected REG and STACK in what cuobjdump prints, got {text!r}")
    return int(found[1]), int(found[2])
