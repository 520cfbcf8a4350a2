"""A causal layer with two common mistakes; `attnbench audit examples/broken.py:MyAttention` names both."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MyAttention(nn.Module):
    """Causal multi-head attention, (batch, length, dim) to the same."""

    def __init__(self, dim: int, num_heads: int = 4, causal: bool = True):
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """key_padding_mask: (batch, length), True at padding."""
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        # wrong: the diagonal above is seen too; it should be tril()
        seen = torch.ones(length, length, dtype=torch.bool, device=x.device).tril(1)
        # wrong: key_padding_mask is never used
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        output: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, dim))
        return output


if __name__ == "__main__":
    import attnbench

    print(str(attnbench.audit(MyAttention(64))).replace(" · ", "\n"))
