"""DeltaProduct: the delta rule several times a token, so that a token may turn its state and not only mirror it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Range
from ..ops.projection import projected
from ..ops.recurrences import Terms
from .delta import Delta, unit
from .recurrent import Impl, by_head


class DeltaProduct(Delta):
    """DeltaProduct: `steps` delta steps a token, each along a key, with a value and at a rate of its own.

    The product of n mirrorings is a transition of rank n: two are a turn, which counts modulo 3, and one more key a
    step further tracks a group of permutations. The first key and value are the model's, the others W x of the token's
    hidden state x. As in `delta` keys go through SiLU and have length 1, `eigenvalues=signed` lets a rate reach 2, here
    by default as in the paper, and `decay=scalar`, once a token, is Gated DeltaProduct. Short convolutions and output
    gates are wrappers. Causal only.
    """

    equation: ClassVar = (
        "S_i = prod_j (I - b_ij k_ij^T k_ij) a_i S_(i-1) + what steps wrote; step j writes b_ij k_ij^T v_ij; "
        "o_i = RMSNorm(q_i S_i); b = 2 sigmoid(w x_i); a_i = 1"
    )
    paper: ClassVar = (
        "Siems, Carstensen, Zela, Hutter, Pontil & Grazzi 2025, DeltaProduct: Improving State-Tracking in Linear RNNs "
        "via Householder Products (arXiv 2502.10297), section 3"
    )

    def __init__(
        self,
        shape: AttentionShape,
        *,
        steps: Annotated[int, Range(1, 16)] = 2,
        decay: Literal["none", "scalar", "channel"] = "none",
        eigenvalues: Literal["positive", "signed"] = "signed",
        impl: Impl = "auto",
    ):
        super().__init__(shape, decay=decay, eigenvalues=eigenvalues, impl=impl)
        self.steps = steps
        self.rate = nn.Linear(shape.hidden_width, steps * shape.heads, bias=False)
        self.more = nn.Linear(shape.hidden_width, 2 * (steps - 1) * shape.width, bias=False)

    def terms(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Terms:
        # (batch, heads, length, steps - 1, 2, head_dim)
        more = torch.unflatten(by_head(projected(self.more, hidden), self.shape.heads), -1, (-1, 2, key.shape[-1]))
        keys = unit(torch.cat([key[:, :, :, None], more[..., 0, :]], 3).flatten(2, 3))
        values = torch.cat([value[:, :, :, None], more[..., 1, :]], 3).flatten(2, 3)
        rate = by_head(self.most * projected(self.rate, hidden).sigmoid(), self.shape.heads).flatten(2)[..., None]
        decay = self._log_decay(hidden)
        if decay is not None:
            # before the first step of a token
            late = (0, 0, 0, self.steps - 1) if decay.dim() == 4 else (0, self.steps - 1)
            decay = F.pad(decay.unsqueeze(3), late).flatten(2, 3)
        return Terms(unit(query), keys, rate * values, decay, rate * keys)

    def density(self, shape: AttentionShape) -> float:
        return min(1.0, self.steps * super().density(shape))
