"""Layers of the committed audit that numbers alone do not build: models around layers, and functions with gates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def x_decoder(**options: Any) -> nn.Module:
    """A language model of x-transformers, whose layers take the options."""
    from x_transformers import Decoder, TransformerWrapper

    return TransformerWrapper(num_tokens=99, max_seq_len=128, attn_layers=Decoder(dim=64, depth=2, heads=4, **options))


def x_encoder(**options: Any) -> nn.Module:
    """A model of x-transformers that looks both ways."""
    from x_transformers import Encoder, TransformerWrapper

    return TransformerWrapper(num_tokens=99, max_seq_len=128, attn_layers=Encoder(dim=64, depth=2, heads=4, **options))


class WhisperDecoder(nn.Module):
    """The decoder of Whisper, ids (B, N) to logits, over one fixed recording."""

    def __init__(self) -> None:
        super().__init__()
        from whisper.model import TextDecoder

        self.decoder = TextDecoder(n_vocab=99, n_ctx=128, n_state=64, n_head=4, n_layer=2)
        nn.init.normal_(self.decoder.positional_embedding)
        self.register_buffer("recording", torch.randn(1, 20, 64))

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.decoder(ids, self.recording.expand(len(ids), -1, -1))
        return output


class CuratedLlama(nn.Module):
    """The Llama of curated-transformers, whose masks and outputs are objects of its own: here they are tensors."""

    def __init__(self, kv_heads: int = 4) -> None:
        super().__init__()
        from curated_transformers.models import LlamaCausalLM, LlamaConfig

        self.model = LlamaCausalLM(
            LlamaConfig(
                n_pieces=99, hidden_width=64, intermediate_width=96, n_hidden_layers=2, n_query_heads=4,
                n_key_value_heads=kv_heads, rotary_embedding_fraction=1.0, dtype=torch.float32,
            )
        )  # fmt: skip

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, cache: Any = None) -> Any:
        from curated_transformers.layers import AttentionMask

        before = cache[0].key.shape[2] if cache else 0
        if attention_mask is None:
            attention_mask = torch.ones(len(ids), before + ids.shape[1], dtype=torch.bool)
        output = self.model(ids, AttentionMask(attention_mask.bool()), cache=cache, store_cache=True)
        return output.logits, output.cache


def mamba_py() -> nn.Module:
    """Two layers of Mamba by mambapy."""
    from mambapy.mamba import Mamba, MambaConfig

    return Mamba(MambaConfig(d_model=32, n_layers=2))


def flex_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    """FlexAttention of torch, eager."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length = q.shape[2]
    later = (
        create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cpu") if is_causal else None
    )
    output: Tensor = flex_attention(q, k, v, block_mask=later)
    return output


def _over_scores(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, map_of: Any) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    output: Tensor = map_of(scores, dim=-1) @ v
    return output


def sparsemax_attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """Sparsemax of entmax over masked scores."""
    from entmax import sparsemax

    return _over_scores(q, k, v, attn_mask, sparsemax)


def entmax15_attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """1.5-entmax of entmax over masked scores."""
    from entmax import entmax15

    return _over_scores(q, k, v, attn_mask, entmax15)


def entmax_bisect_attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """Entmax by bisection, of alpha 1.5, over masked scores."""
    from entmax import entmax_bisect

    return _over_scores(q, k, v, attn_mask, entmax_bisect)


def fla_gla(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Gated linear attention by fla's naive form, with a decay made of the keys."""
    from fla.ops.gla.naive import naive_recurrent_gla

    return naive_recurrent_gla(q, k, v, F.logsigmoid(k))


def fla_simple_gla(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Scalar decay by fla's naive form."""
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    return naive_recurrent_simple_gla(q, k, v, F.logsigmoid(k[..., 0]))


def fla_gated_delta_rule(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Gated DeltaNet by fla's naive form."""
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule

    return naive_recurrent_gated_delta_rule(q, F.normalize(k, dim=-1), v, k[..., 0].sigmoid(), F.logsigmoid(k[..., 1]))


def fla_kda(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Kimi delta attention by fla's naive form."""
    from fla.ops.kda.naive import naive_recurrent_kda

    return naive_recurrent_kda(q, F.normalize(k, dim=-1), v, F.logsigmoid(k), k[..., 0].sigmoid())


def fla_delta_rule(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """The delta rule by fla's naive form."""
    from fla.ops.delta_rule.naive import delta_rule_recurrence

    return delta_rule_recurrence(q, F.normalize(k, dim=-1), v, k[..., 0].sigmoid())


def fla_forgetting(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Forgetting attention by fla's naive form."""
    from fla.ops.forgetting_attn.naive import naive_forgetting_attn

    return naive_forgetting_attn(q, k, v, F.logsigmoid(k[..., 0]))
