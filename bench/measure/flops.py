"""FLOPs: multiplications and additions of matrix products, and the bytes that operators read and write, by counting.

Only matrix products are counted, as everywhere in the literature: exponentials, sorts and elementwise work are not. A
kernel that PyTorch cannot see into counts nothing; what it declares stands in for it, and the Record says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ...variants.contract import AttentionShape

VISIBLE = ("eager", "sdpa", "flash", "cudnn", "efficient", "math")
"""Implementations whose operators PyTorch sees, so that their count is whole."""

BACKWARD = 2.0
"""A backward pass makes two products for each one of the forward pass."""

_OWN_NAMESPACES = ("aten", "prim", "prims", "profiler", "attnbench_cpu", "attnbench")
"""Of PyTorch's elementary operators, of its marks for profilers, and of kernels that declare their FLOPs."""

_PRODUCTS: dict[str, Callable[[Any], float]] = {
    "mv": lambda given: given[0].numel(),
    "addmv": lambda given: given[1].numel(),
    "dot": lambda given: given[0].numel(),
    "vdot": lambda given: given[0].numel(),
    "addr": lambda given: given[1].numel() * given[2].numel(),
    "addbmm": lambda given: given[1].numel() * given[2].shape[-1],
}
"""Multiply-adds of products that PyTorch's table lacks, by the operator."""

_UNCOUNTED = re.compile(
    r"_?(fft_[cr]2[cr]|cdist_\w+|euclidean_dist|trilinear|linalg_(?!vector_norm|check)\w+|\w*solve\w*)"
)
"""Operators with products that nobody counts."""

RECOMPUTED = 2.5
"""Products in a fused backward pass for each one of the forward pass: it makes the scores once more."""


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is entered. `traffic_bytes`: as if every operator read its inputs and wrote its outputs once.

    `unknown`: operators of other libraries, whose products nobody can count.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0
        self.traffic_bytes = 0.0
        self.unknown: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func._overloadpacket
        # Views of what a composite operator does are only visible one level down.
        if packet not in flop_registry and not is_fused(func) and func is not torch.ops.prim.device.default:
            # what reaches here whole, such as a linear layer without gradients, is counted by its parts
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        output = func(*args, **kwargs)
        if is_fused(func):
            self.flops += fused_flops(func, args, kwargs)
        elif packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=output)
        elif product := _PRODUCTS.get(name := packet.__name__.rstrip("_")):
            self.flops += 2.0 * product(args)
        elif func.namespace not in _OWN_NAMESPACES or "mkldnn" in func.name() or _UNCOUNTED.fullmatch(name):
            self.unknown.add(func.name())
        # A view moves no bytes.
        if not func.is_view:
            self.traffic_bytes += sum(_bytes(leaf) for leaf in tree_leaves((args, kwargs, output)))
        return output


def _bytes(leaf: object) -> int:
    return leaf.numel() * leaf.element_size() if isinstance(leaf, Tensor) else 0


def is_fused(func: Any) -> bool:
    """True if an operator is scaled dot-product attention as a whole, or its backward pass.

    PyTorch's own table lacks those of the CPU, which would silently count nothing, and counts causal ones in full.
    """
    return "_scaled_dot_product_" in func.name()


def fused_flops(func: Any, args: Any, kwargs: Any) -> float:
    """FLOPs of a fused attention operator, from its arguments by name."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    query, key, value = given["query"], given["key"], given["value"]
    batch, heads, queries, head_dim = query.shape
    pairs = pairs_of(queries, key.shape[2], bool(given.get("is_causal", False)))
    forward: float = 2.0 * batch * heads * pairs * (head_dim + value.shape[3])
    return forward * (RECOMPUTED if "backward" in func.name() else 1.0)


def pairs_of(queries: int, keys: int, causal: bool) -> int:
    """Pairs of a query and a key that it may see, causal queries ending where the keys end.

    >>> pairs_of(4, 4, True), pairs_of(1, 100, True), pairs_of(3, 5, False)
    (10, 100, 15)
    """
    return queries * keys - queries * (queries - 1) // 2 if causal else queries * keys


def dense_flops(shapes: Iterable[AttentionShape], sequences: int, mode: str, density: float = 1.0) -> float:
    """FLOPs of the two products of attention over all pairs that may be seen, times `density`, in all layers.

    Forward 4 d for each pair and head; a training step three times that; decoding one token sees all keys.

    >>> dense_flops([AttentionShape(heads=2, head_dim=8, max_length=4)], sequences=3, mode="step")
    9216.0
    """
    total = 0.0
    for shape in shapes:
        queries = 1 if mode == "decode" else shape.max_length
        # 2 for a multiplication and an addition, in each of the products with the keys and with the values.
        total += 4.0 * shape.heads * shape.head_dim * pairs_of(queries, shape.max_length, shape.causal)
    return total * sequences * density * (1 + BACKWARD if mode == "step" else 1)
