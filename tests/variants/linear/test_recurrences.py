"""gated-linear and delta against their recurrences token by token, in float64, as the papers write them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from seeds import seed
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import AttentionShape, Mask, SelectionError, Unsupported
from attnbench.variants.linear.delta import Delta
from attnbench.variants.linear.gated_linear import GatedLinear
from attnbench.variants.linear.recurrent import RecurrentVariant
from attnbench.variants.linear.state_space_dual import StateSpaceDual

HEADS, WIDTH, HIDDEN = 2, 8, 12
SELECTIONS: dict[str, tuple[type[RecurrentVariant], dict[str, Any]]] = {
    "gated-linear": (GatedLinear, {"rank": 4}),
    "gated-linear, no output gate": (GatedLinear, {"rank": 4, "output_gate": False, "temperature": 2.0}),
    "ssd": (StateSpaceDual, {}),
    "delta": (Delta, {}),
    "delta, gated": (Delta, {"decay": "scalar"}),
    "delta, signed": (Delta, {"eigenvalues": "signed"}),
    "delta, by channel": (Delta, {"decay": "channel"}),
    "delta, by channel, signed": (Delta, {"decay": "channel", "eigenvalues": "signed"}),
}
every = pytest.mark.parametrize("name", SELECTIONS)


def build(name: str, length: int = 200, dtype: torch.dtype = torch.float64) -> RecurrentVariant:
    kind, parameters = SELECTIONS[name]
    torch.manual_seed(seed(7))
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, hidden_width=HIDDEN, max_length=length, causal=True)
    variant = kind(shape, **parameters).to(dtype)
    with torch.no_grad():
        # not where it starts: a scale that is forgotten would not be seen at one
        variant.norm.uniform_(0.5, 2.0)
    return variant


def draw(length: int, count: int = 3, batch: int = 2, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed(length))
    return [torch.randn(batch, HEADS, length, WIDTH, generator=generator, dtype=dtype) for _ in range(count)]


def draw_hidden(length: int, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed(length + 1))
    return torch.randn(batch, length, HIDDEN, generator=generator, dtype=torch.float64)


def token_by_token(
    name: str, variant: RecurrentVariant, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, valid: Tensor
) -> Tensor:
    """One head of one sequence at a time, one token after the other."""
    output = torch.zeros_like(value)
    for b in range(len(query)):
        for h in range(HEADS):
            own = slice(h * WIDTH, (h + 1) * WIDTH)
            state = torch.zeros(WIDTH, WIDTH, dtype=query.dtype)
            for t in torch.nonzero(valid[b]).flatten().tolist():
                q, k, v, x = query[b, h, t], key[b, h, t], value[b, h, t], hidden[b, t]
                if isinstance(variant, GatedLinear):
                    logits = variant.decay_up(variant.decay_down(x))[own]
                    gate = torch.sigmoid(logits) ** (1 / variant.temperature)
                    state = gate[:, None] * state + torch.outer(k, v)
                elif isinstance(variant, StateSpaceDual):
                    step = torch.log1p(variant.step_size(x)[h].exp())
                    state = torch.exp(-variant.log_slope[h].exp() * step) * state + step * torch.outer(k, v)
                else:
                    assert isinstance(variant, Delta)
                    q, k = (y * torch.sigmoid(y) for y in (q, k))
                    q, k = (y / (y.square().sum() + 1e-6).sqrt() for y in (q, k))
                    rate = torch.sigmoid(variant.rate(x)[h])
                    if SELECTIONS[name][1].get("eigenvalues") == "signed":
                        rate = 2 * rate
                    if variant.decay_down is not None:
                        steps = torch.log1p(variant.decay(variant.decay_down(x))[own].exp())
                        state = torch.diag(torch.exp(-variant.log_slope[h].exp() * steps)) @ state
                    elif variant.decay is not None:
                        steps = torch.log1p(variant.decay(x)[h].exp())
                        state = torch.exp(-variant.log_slope[h].exp() * steps) * state
                    # S (I - b k k^T) + b v k^T of the papers, whose states are transposed
                    state = (torch.eye(WIDTH, dtype=q.dtype) - rate * torch.outer(k, k)) @ state
                    state = state + rate * torch.outer(k, v)
                read = q @ state
                if isinstance(variant, StateSpaceDual):
                    output[b, h, t] = read
                    continue
                read = read / (read.square().mean() + 1e-5).sqrt() * variant.norm
                if isinstance(variant, GatedLinear) and variant.output_gate is not None:
                    gate = variant.output_gate(x)[own]
                    read = read * gate * torch.sigmoid(gate)
                output[b, h, t] = read
    if isinstance(variant, StateSpaceDual):
        # all heads of a token together
        output = output / (output.square().mean((1, 3), keepdim=True) + 1e-5).sqrt() * variant.norm
    return output


@every
@pytest.mark.parametrize("length", [1, 5, 32, 33, 100])
def test_chunks_equal_the_recurrence_token_by_token(name: str, length: int) -> None:
    variant, inputs, hidden = build(name), draw(length), draw_hidden(length)
    valid = torch.rand(2, length, generator=torch.Generator().manual_seed(length)) > 0.3
    for mask in (Mask(causal=True), Mask(valid, True)):
        real = mask.real(inputs[1])
        expected = token_by_token(name, variant, *inputs, hidden, real)
        found = variant(*inputs, mask, hidden)
        torch.testing.assert_close(found.where(real[:, None, :, None], 0.0), expected, rtol=1e-9, atol=1e-10)


@every
def test_gradients_equal_those_of_the_recurrence(name: str) -> None:
    variant = build(name)
    inputs = [x.requires_grad_() for x in draw(40, batch=1)]
    hidden = draw_hidden(40, batch=1).requires_grad_()
    leaves = [*inputs, hidden, *variant.parameters()]
    upstream = draw(40, batch=1)[0]
    valid = torch.ones(1, 40, dtype=torch.bool)
    ours = torch.autograd.grad(variant(*inputs, Mask(causal=True), hidden), leaves, upstream)
    theirs = torch.autograd.grad(token_by_token(name, variant, *inputs, hidden, valid), leaves, upstream)
    for mine, oracle in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-8, atol=1e-9)


@every
def test_both_sides_other_queries_than_keys_and_no_hidden_state_are_refused(name: str) -> None:
    variant, (query, key, value), hidden = build(name), draw(9), draw_hidden(9)
    assert "past" in str(variant.supports(AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=9)))
    for keys, causal in ((9, False), (5, True)):
        with pytest.raises(Unsupported, match="expected a causal mask"):
            variant(query, key[:, :, :keys], value[:, :, :keys], Mask(causal=causal), hidden)
    for wrong in (None, hidden[..., 1:], hidden[:, 1:]):
        with pytest.raises(SelectionError, match=r"expected hidden \(2, 9, 12\)"):
            variant(query, key, value, Mask(causal=True), wrong)


@pytest.mark.parametrize("decay", ["scalar", "channel"])
def test_delta_is_what_released_models_run(decay: str) -> None:
    """Qwen3-Next's and Kimi Linear's own recurrences in transformers, float32, over keys and gates of this class."""
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    kimi = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    variant = build("delta, gated" if decay == "scalar" else "delta, by channel", dtype=torch.float32)
    query, key, value = draw(75, dtype=torch.float32)
    hidden = draw_hidden(75).float()
    recurrence = kimi.recurrent_kimi_delta_attention
    logits = variant.decay(hidden if variant.decay_down is None else variant.decay_down(hidden))
    steps = F.softplus(logits.unflatten(-1, (HEADS, -1)))
    log_decay = -variant.log_slope.exp()[:, None] * steps
    if decay == "scalar":
        recurrence, log_decay = qwen.torch_recurrent_gated_delta_rule, log_decay[..., 0]
    found, _ = recurrence(
        *(x.transpose(1, 2) for x in (F.silu(query), F.silu(key), value)),
        g=log_decay,
        beta=variant.rate(hidden).sigmoid(),
        initial_state=None,
        output_final_state=False,
        use_qk_l2norm_in_kernel=True,
    )
    # they divide queries by sqrt(head_dim), which the norm takes out again, but for its epsilon
    expected = F.rms_norm(found * WIDTH**0.5, (WIDTH,), variant.norm, eps=1e-5).transpose(1, 2)
    torch.testing.assert_close(variant(query, key, value, Mask(causal=True), hidden), expected, rtol=2e-4, atol=2e-5)


def test_ssd_is_the_scan_of_mamba_2() -> None:
    """The chunked scan that Mamba-2 runs in transformers without kernels, with keys as B, queries as C, values as x."""
    mamba = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    variant = build("ssd", dtype=torch.float32)
    query, key, value = draw(75, dtype=torch.float32)
    hidden = draw_hidden(75).float()
    found = mamba.mamba2_chunk_scan(
        value.transpose(1, 2),
        F.linear(hidden, variant.step_size.weight),
        -variant.log_slope.exp(),
        key.transpose(1, 2),
        query.transpose(1, 2),
        chunk_size=16,
        dt_bias=variant.step_size.bias,
        dt_softplus=True,
    )
    norm = mamba.MambaRMSNormGated(HEADS * WIDTH, HEADS * WIDTH, eps=1e-5)
    norm.weight.data.copy_(variant.norm.flatten())
    expected = norm(found.flatten(2)).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
    torch.testing.assert_close(variant(query, key, value, Mask(causal=True), hidden), expected, rtol=2e-4, atol=2e-5)


def test_decays_start_where_their_descriptions_say() -> None:
    torch.manual_seed(seed(7))
    shape = AttentionShape(heads=64, head_dim=2, max_length=8, causal=True)
    delta, by_channel = Delta(shape, decay="scalar"), Delta(shape, decay="channel")
    for bias in (delta.decay.bias, by_channel.decay.bias, StateSpaceDual(shape).step_size.bias):
        steps = F.softplus(bias)
        assert 0.00099 < steps.min() < 0.01 < steps.max() < 0.101
