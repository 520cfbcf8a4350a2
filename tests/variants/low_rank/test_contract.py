"""Gradients and memory of every low-rank variant."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from low_rank_cases import WIDTH, built, draw, shape, valid_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnbench.bench.core.errors import Unsupported
from attnbench.variants.contract import Mask, Variant
from attnbench.variants.linear.cosformer import Cosformer
from attnbench.variants.linear.linear import Linear
from attnbench.variants.linear.performer import Performer
from attnbench.variants.low_rank.linformer import Linformer
from attnbench.variants.low_rank.nystrom import Nystrom
from attnbench.variants.low_rank.skyformer import Skyformer
from attnbench.variants.sparse.reformer import Reformer
from attnbench.variants.sparse.sinkhorn import Sinkhorn


@pytest.mark.parametrize(
    "variant",
    [
        built(Nystrom, landmarks=6, kernel=5),
        built(Nystrom, landmarks=6, kernel=0, iterations=2),
        built(Skyformer, landmarks=6),
        built(Skyformer, landmarks=8, ridge=2.0, iterations=2),
    ],
    ids=["nystrom", "nystrom-2-iterations", "skyformer", "skyformer-2-iterations"],
)
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_gradient_is_the_derivative_of_the_output_with_fewer_landmarks_than_tokens(
    variant: Variant, scale: float
) -> None:
    """With a landmark for each token nothing is inverted, and after few iterations the inverse has not converged."""
    query, key, value = draw(17, 17, 17, batch=1)
    inputs = [x.requires_grad_() for x in (scale * query, scale * key, value)]
    valid = valid_of(15, length=17)
    mask = Mask(valid)
    assert torch.autograd.gradcheck(
        lambda *heads: variant(*heads, mask)[:, :, valid[0]], inputs, atol=1e-6, rtol=1e-4, fast_mode=True
    )


class LargestTensor(TorchDispatchMode):
    """Entries of the largest tensor that any operation makes."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for x in made if isinstance(made, tuple) else (made,):
            if isinstance(x, Tensor):
                self.entries = max(self.entries, x.numel())
        return made


@pytest.mark.parametrize(
    ("kind", "causal"),
    [
        *((kind, False) for kind in (Linear, Performer, Cosformer, Linformer, Nystrom, Skyformer, Reformer, Sinkhorn)),
        *((kind, True) for kind in (Linear, Performer, Cosformer, Reformer, Sinkhorn)),
    ],
)
def test_no_pass_makes_anything_like_a_score_matrix_forward_or_backward(kind: type[Variant], causal: bool) -> None:
    long = shape(causal, heads=1, max_length=4096)
    variant = kind(long)
    inputs = [torch.randn(1, 1, 4096, WIDTH, requires_grad=True) for _ in range(3)]
    with LargestTensor() as largest:
        variant(*inputs, Mask(causal=causal)).sum().backward()
    assert 4096 < largest.entries <= 4096**2 / 16


def test_nystrom_products_count_their_three_matrices_as_density() -> None:
    long = shape(max_length=4096)
    for variant in (Nystrom(long), Skyformer(long)):
        assert variant.density(long) == (2 * 4096 * 128 + 128**2) / 4096**2
    assert Nystrom(shape()).density(shape()) == 1.0
    assert Linformer(long).density(long) == 128 / 4096
    with pytest.raises(Unsupported, match="queries and keys must be its tokens"):
        Nystrom(long)(*draw(5, 6, 6), Mask())
