"""Retention (RetNet) and lightning attention: linear attention whose state decays by a constant of each head."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape
from ..ops.projection import projected
from ..ops.recurrences import Terms
from .recurrent import Impl, RecurrentVariant, by_head


class Retention(RecurrentVariant):
    """Retention: sums of k^T v that decay by a fixed factor a of each head, and an output gate.

    `decays=retnet` has a = 1 - 2^(-5-h) for head h from 0, so that heads reach back 32, 64, 128, … tokens;
    `decays=lightning` has a = exp(-2^(-8h / heads)) for h from 1, the slopes of ALiBi, as in lightning attention, whose
    layers above the first also shrink them. Nothing of it is learned. Each head's output is normalised (RMS, as in
    released codes; group normalisation in the paper) and, with `output_gate`, multiplied by swish(W x) of the hidden
    state x. Rotations by position are those of the model (`positions=rope`), as lightning attention has them; the
    paper's values are twice as wide. Causal only.
    """

    equation: ClassVar = "S_i = a_h S_(i-1) + k_i^T v_i; o_i = RMSNorm(q_i S_i) * swish(W x_i); a_h = 1 - 2^(-5-h)"
    paper: ClassVar = (
        "Sun et al. 2023, Retentive Network: A Successor to Transformer for Large Language Models (arXiv 2307.08621), "
        "section 2; decays=lightning: Qin et al. 2024, Lightning Attention-2 (arXiv 2401.04658)"
    )

    log_decay: Tensor

    def __init__(
        self,
        shape: AttentionShape,
        *,
        decays: Literal["retnet", "lightning"] = "retnet",
        output_gate: bool = True,
        impl: Impl = "auto",
    ):
        super().__init__(shape, impl=impl)
        if decays == "retnet":
            logs = [math.log1p(-(2.0 ** (-5 - h))) for h in range(shape.heads)]
        else:
            logs = [-(2.0 ** (-8 * (h + 1) / shape.heads)) for h in range(shape.heads)]
        # float64, so that a model in float64 has the factor and not its rounding
        self.register_buffer("log_decay", torch.tensor(logs, dtype=torch.float64), persistent=False)
        self.output_gate = nn.Linear(shape.hidden_width, shape.width, bias=False) if output_gate else None
        self.takes_hidden = output_gate

    def terms(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Terms:
        decay = self.log_decay.to(key.dtype)[:, None].expand(key.shape[:3])
        return Terms(query / math.sqrt(query.shape[-1]), key, value, decay)

    def finish(self, output: Tensor, hidden: Tensor | None) -> Tensor:
        output = F.rms_norm(output, output.shape[-1:], self.norm.to(output.dtype), eps=1e-5)
        if self.output_gate is None or hidden is None:
            return output
        return output * F.silu(by_head(projected(self.output_gate, hidden), self.shape.heads))
