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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...ops.inputs import check_inputs
from .interpreter import ENABLE, failure, interpreted, prepared_once

LOWEST_ALPHA = 1.01
"""The smallest alpha of alpha-entmax that the kernels solve for: nearer 1 their Newton method leaves float32."""

SIZES = (
    "queries", "keys", "heads", "least", "plane", "members", "padded",
    "length", "count", "chunks", "skipped", "states", "shift", "own_count", "own_shift", "other_count", "other_shift",
    "bounds_stride", "edges_stride", "offset", "back", "ahead",
    "valid_ptr", "valid", "kept", "seed_ptr",
)  # fmt: skip
"""Arguments that no kernel is compiled anew for if they are 1 or a multiple of 16: no address of a row needs them.

By itself Triton compiles one for each of these cases, and a gate tries many lengths; `least` is the threshold of
dropout, `plane` how far numbers of one query lie apart, the last four addresses of masks and seeds. Strides, widths and
all other addresses stay, since wide loads need to know them.
"""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Specialisation:
    """A kernel with all that Triton compiles it by: types, constants, promised multiples of 16, and options."""

    source: Any
    options: Any
    target: Any

    @property
    def key(self) -> str:
        """Equal where the machine code is."""
        return f"{self.source.hash()} {self.options}"

    def compile(self) -> Any:
        """Compiles it, which takes seconds, into Triton's cache on the disk, where a launch of any process finds it.

        Needs no GPU and touches none, so a process that was forked after one was in use can do it.
        """
        import triton

        return triton.compile(self.source, target=self.target, options=self.options.__dict__)


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
        return failure()
    # compiled ahead of time: there is no device to ask
    if device == "meta" and _noted is not None:
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

    Inside `recording` it is noted instead. An empty grid has nothing to do.
    """
    if 0 in grid:
        return
    # products and sums become one instruction, as Triton did by default up to 3.9
    options = {**constants, "num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    if not interpreted():
        kernel = _specialised(kernel, arguments)
    if _noted is not None:
        one = _specialisation(kernel, arguments, options)
        _noted.setdefault(one.key, one)
        return
    device = next(argument.device for argument in arguments if isinstance(argument, Tensor))
    # the interpreter runs on tensors of a CPU; whatever else gets there has a GPU
    with torch.cuda.device(device) if device.type == "cuda" else prepared_once():
        kernel[grid](*arguments, **options)


def _far(x: Tensor) -> bool:
    """True if rows of a head begin 2^31 numbers apart, as those of a joined projection of 3,072 columns do at 699,051.

    Kernels count the numbers to a row in int32: in int64 it takes them up to 224 bytes of stack more, for lengths that
    hardly anybody has.
    """
    return x.shape[2] * x.stride(2) >= 2**31


def capability() -> int:
    """Ten times the compute capability that kernels are compiled for, such as 90; that of Hopper without a GPU."""
    return _capability if _noted is not None or not torch.cuda.is_available() else _of_this_gpu()


def _of_this_gpu() -> int:
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


@contextmanager
def recording(capability: int | None = None) -> Iterator[dict[str, Specialisation]]:
    """Note launches in place of running them, each specialisation once, for that compute capability or this GPU.

    A dry pass, the same each time: results hold numbers of no meaning, and no two alike, so that whatever compares them
    looks further. Needs Triton, and a GPU only to ask it for its capability. Not for interpreted kernels: leave
    TRITON_INTERPRET out of the environment.
    """
    global _noted, _capability
    before, (_noted, _capability) = (_noted, _capability), ({}, capability or _of_this_gpu())
    try:
        with _Numbered():
            yield _noted
    finally:
        _noted, _capability = before


def compile_all(noted: Iterable[Specialisation], threads: int) -> None:
    """Compiles what `recording` noted, side by side; what fails is left to the launch that asks for it, and raises."""

    def one(noted: Specialisation) -> None:
        with suppress(Exception):
            # `run` builds what launches it as well, which takes gcc a third of a second; it needs the GPU
            assert noted.compile().run

    # Triton holds Python's lock for a hundredth of the time
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, noted))


@contextmanager
def compiling(capability: int = 90) -> Iterator[list[Compiled]]:
    """Lists what is launched inside, compiled for that compute capability at the end; see `recording`."""
    found: list[Compiled] = []
    with recording(capability) as noted:
        yield found
    found += map(compiled, noted.values())


_noted: dict[str, Specialisation] | None = None
_capability = 90


class _Numbered(TorchDispatchMode):
    """Memory that nobody has filled holds a number of its own, so that no two results are taken for the same."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = cycle(range(1, 62))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if "empty" in func.overloadpacket.__name__:
            # lists of tiles are integers, and name the first
            found.fill_(next(self.numbers) if found.is_floating_point() else 0)
        return found


def _specialised(kernel: Any, arguments: tuple[Any, ...]) -> Any:
    """`kernel`, or where an address, a stride or a width is no multiple of 16, the same with no promise of any.

    By itself Triton compiles one for each set of those that are. A tile needs all of its own for wide loads.
    """
    given = zip(kernel.arg_names, arguments, strict=False)
    at = (x.data_ptr() if isinstance(x, Tensor) else x for name, x in given if name not in SIZES)
    return kernel if all(x % 16 == 0 for x in at if isinstance(x, int)) else _without_promises(kernel)


@cache
def _without_promises(kernel: Any) -> Any:
    import triton

    return triton.jit(kernel.fn, do_not_specialize=[one.name for one in kernel.params if not one.is_constexpr])


def _specialisation(kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Specialisation:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    # what a launch of Triton does before it compiles, but for a device that need not be there
    target = GPUTarget("cuda", _capability, 32)
    backend = make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    parsed, signature, constants, attributes = kernel._pack_args(backend, options, *bind(*arguments, **options))
    source = ASTSource(kernel, signature, constants, attributes)
    return Specialisation(source=source, options=parsed, target=target)


def compiled(one: Specialisation) -> Compiled:
    """Compiles it, and says what it takes."""
    binary, names = one.compile(), one.source.fn.arg_names
    registers, stack = _usage(binary.asm["cubin"])
    return Compiled(
        kernel=one.source.fn.__name__,
        warps=one.options.num_warps,
        registers=registers,
        stack_bytes=stack,
        shared_bytes=binary.metadata.shared,
        tensor_core_instructions=len(re.findall(r"\b(?:wgmma\.mma_async|mma\.sync)", binary.asm["ptx"])),
        constants={names[at]: value for (at,), value in one.source.constants.items()},
        cubin=binary.asm["cubin"],
    )


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
