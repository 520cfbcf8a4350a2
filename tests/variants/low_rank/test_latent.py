"""mla against its equation pair by pair in float64, against DeepSeek-V3's layer in transformers, and its state."""

from __future__ import annotations

import math

import pytest
import torch
from seeds import seed
from torch import Tensor

from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.low_rank.latent import LatentAttention

HEADS, WIDTH, RANK, ROTARY, LENGTH = 3, 4, 5, 6, 23


def made(causal: bool = True) -> LatentAttention:
    torch.manual_seed(seed(1))
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=LENGTH, causal=causal)
    variant = LatentAttention(shape, rank=RANK, rotary=ROTARY).double()
    variant.norm.data.uniform_(0.5, 2.0)
    return variant


def drawn() -> Tensor:
    return torch.randn(2, LENGTH, HEADS * WIDTH, generator=torch.Generator().manual_seed(seed(2)), dtype=torch.float64)


def run(variant: LatentAttention, x: Tensor, mask: Mask) -> Tensor:
    by_head = x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
    return variant(by_head, by_head, by_head, mask, x).transpose(1, 2).flatten(2)


def turned(x: Tensor, position: int) -> Tensor:
    """As complex numbers."""
    angle = position * 10_000.0 ** (-torch.arange(0, ROTARY, 2, dtype=torch.float64) / ROTARY)
    return torch.view_as_real(torch.view_as_complex(x.view(-1, 2)) * torch.polar(torch.ones_like(angle), angle)).view(
        -1
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [False, True])
def test_keys_and_values_come_from_one_vector_of_a_token(causal: bool, padded: bool) -> None:
    variant, x = made(causal), drawn()
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    if padded:
        valid[0, :4], valid[1, 9:13] = False, False
    expected = torch.zeros_like(x)
    with torch.no_grad():
        for b in range(2):
            latent = [variant.compress(token) for token in x[b]]
            for i in torch.nonzero(valid[b]).flatten().tolist():
                heads = []
                for h in range(HEADS):
                    query = variant.query(x[b, i]).view(HEADS, -1)[h]
                    scores, values = [], []
                    for j in range(i + 1 if causal else LENGTH):
                        if valid[b, j]:
                            kept = latent[j][:RANK]
                            kept = kept / (kept.square().mean() + 1e-6).sqrt() * variant.norm
                            score = query[:WIDTH] @ (variant.key_of[h] @ kept)
                            score = score + turned(query[WIDTH:], i) @ turned(latent[j][RANK:].clone(), j)
                            scores.append(score / math.sqrt(WIDTH + ROTARY))
                            values.append(variant.value_of[h] @ kept)
                    heads.append(torch.stack(scores).softmax(0) @ torch.stack(values))
                expected[b, i] = variant.output(torch.cat(heads))
    found = run(variant, x, Mask(valid if padded else None, causal))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_steps_keep_what_is_shared_and_nothing_else() -> None:
    variant, x = made(), drawn()
    expected, state = run(variant, x, Mask(causal=True)), None
    with torch.no_grad():
        for t in range(LENGTH):
            now = x[:, t : t + 1]
            by_head = now.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
            output, state = variant.step(by_head, by_head, by_head, state, now)
            found = output.transpose(1, 2).flatten(2)
            torch.testing.assert_close(found, expected[:, t : t + 1], rtol=1e-9, atol=1e-12)
    assert state.key.shape[1:] == (1, 64, RANK) and state.value.shape[1:] == (1, 64, ROTARY)
    half = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=100, dtype="bfloat16", causal=True)
    assert variant.state_bytes(half) == 100 * (RANK + ROTARY) * 2
    # as in DeepSeek-V2, where nothing is asked for: 4.5 head_dim a token
    shape = AttentionShape(heads=2, head_dim=16, max_length=8)
    assert LatentAttention(shape).state_bytes(shape) == 8 * (64 + 8) * 4


def test_it_is_the_layer_of_deepseek_v3() -> None:
    deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    sizes = {
        "hidden_size": HEADS * WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "q_lora_rank": None,
        "kv_lora_rank": RANK, "qk_rope_head_dim": ROTARY, "qk_nope_head_dim": WIDTH, "v_head_dim": WIDTH,
        "attn_implementation": "eager",
    }  # fmt: skip
    config = deepseek.DeepseekV3Config(**sizes)
    layer = deepseek.DeepseekV3Attention(config, 0).double().eval()
    variant, x = made(), drawn()
    with torch.no_grad():
        layer.q_proj.weight.copy_(variant.query.weight)
        layer.kv_a_proj_with_mqa.weight.copy_(variant.compress.weight)
        layer.kv_a_layernorm.weight.copy_(variant.norm)
        layer.kv_b_proj.weight.copy_(torch.cat([variant.key_of, variant.value_of], 1).flatten(0, 1))
        layer.o_proj.weight.copy_(variant.output.weight)
        angles = torch.arange(LENGTH)[:, None] * 10_000.0 ** (-torch.arange(0, ROTARY, 2, dtype=torch.float64) / ROTARY)
        places = tuple(torch.cat([part, part], -1)[None] for part in (angles.cos(), angles.sin()))
        future = torch.full((LENGTH, LENGTH), -math.inf, dtype=torch.float64).triu(1)[None, None]
        found, _ = layer(x, places, future)
        # its norm casts to float32
        torch.testing.assert_close(run(variant, x, Mask(causal=True)), found, rtol=1e-5, atol=1e-6)


def test_an_odd_number_of_rotary_dimensions_is_refused() -> None:
    shape = AttentionShape(heads=2, head_dim=4, max_length=8)
    assert "take an even number" in str(LatentAttention(shape, rotary=3).supports(shape))
