"""Linear attention: softmax replaced by a feature map, so that sums over keys come first."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, accumulator
from ..kernels.dispatch import choose_implementation, refusal
from ..ops.features import FeatureVariant, KeyFeatures


class Linear(FeatureVariant):
    """Linear attention with features elu(x) + 1; the causal form is a recurrence with a d x d state.

    The released code adds 1e-6 to the denominator; the paper and this do not. `impl`: auto takes the Triton kernels on
    a GPU that can run them, eager otherwise; eager is the definition. No dropout: there are no weights to drop.
    """

    simplex: ClassVar = True
    equation: ClassVar = "O_i = phi(q_i) S / phi(q_i) z; S = sum_j phi(k_j)^T v_j; z = sum_j phi(k_j); phi = elu + 1"
    paper: ClassVar = "Katharopoulos et al. 2020, Transformers are RNNs, sections 3.2-3.4"
    time: ClassVar = "O(N d^2)"
    memory: ClassVar = "O(N d + d^2)"

    def __init__(self, shape: AttentionShape, *, impl: Literal["auto", "eager", "triton"] = "auto"):
        super().__init__(shape)
        self.impl = impl

    def supports(self, shape: AttentionShape) -> str | None:
        return super().supports(shape) or refusal(self.impl, shape, drops=False)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.implementation = choose_implementation(self.impl, query, key, value)
        if self.implementation == "eager":
            return super().forward(query, key, value, mask)
        from ..kernels.gpu import linear_attention

        return linear_attention(query, key, value, mask.valid, mask.causal)

    def query_features(self, query: Tensor, first: int) -> Tensor:
        return _features(query)

    def key_features(self, key: Tensor, first: int) -> KeyFeatures:
        return KeyFeatures(_features(key))


def _features(x: Tensor) -> Tensor:
    # positive, so that the denominator of a row with a key is too
    return F.elu(x.to(accumulator(x.dtype))) + 1.0
