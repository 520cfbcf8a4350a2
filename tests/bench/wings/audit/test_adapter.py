"""Foreign attention as a variant: the sizes it is made with, what it computes, and what it refuses."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from seeds import seed
from torch import Tensor, nn
from torch.nn import functional as F

import attnbench
from attnbench.bench.core.errors import SelectionError, Unsupported
from attnbench.bench.core.registry import parameters
from attnbench.bench.gate import case
from attnbench.bench.gate.case import Case, RunSetting
from attnbench.bench.gate.suite import PROPERTIES, examine, quick_gate
from attnbench.bench.wings.audit.adapter import as_variant, takes_shape
from attnbench.variants import AttentionShape, Mask, build
from attnbench.variants.contract import Variant

SHAPE = AttentionShape(heads=2, head_dim=8, max_length=64, causal=True, padding=False)


class Grouped(nn.Module):
    """A causal layer with rotary positions and grouped keys; returns a tuple."""

    def __init__(self, dim, num_heads, num_kv_heads=1):  # type: ignore[no-untyped-def]
        super().__init__()
        self.heads, self.groups, self.size = num_heads, num_kv_heads, dim // num_heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * num_kv_heads * self.size)
        self.out = nn.Linear(dim, dim)

    def forward(self, hidden_states, attention_mask=None):  # type: ignore[no-untyped-def]
        batch, length, _ = hidden_states.shape
        q = self.q(hidden_states).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = self.kv(hidden_states).view(batch, length, 2, self.groups, -1).permute(2, 0, 3, 1, 4)
        angles = torch.arange(length)[:, None] * 10000.0 ** -(torch.arange(self.size // 2) / (self.size // 2))
        cos, sin = angles.cos().to(q), angles.sin().to(q)

        def turn(x: Tensor) -> Tensor:
            a, b = x.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        allowed = torch.ones(length, length, dtype=torch.bool).tril()
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, None].bool()
        k, v = (each.repeat_interleave(self.heads // self.groups, 1) for each in (turn(k), v))
        mixed = F.scaled_dot_product_attention(turn(q), k, v, attn_mask=allowed)
        return self.out(mixed.transpose(1, 2).flatten(2)), None


class Configured(nn.Module):
    """A layer as in nanoGPT: all sizes from one object."""

    def __init__(self, config):  # type: ignore[no-untyped-def]
        super().__init__()
        self.heads = config.n_head
        self.attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x):  # type: ignore[no-untyped-def]
        q, k, v = self.attn(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class UnitKeys(nn.Module):
    """Unit queries and keys, and scores up to fifteen, so that rounding within the projections shows."""

    def __init__(self, dim, heads):  # type: ignore[no-untyped-def]
        super().__init__()
        self.heads, self.project = heads, nn.Linear(dim, 3 * dim, bias=False)

    def forward(self, x):  # type: ignore[no-untyped-def]
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=15.0).transpose(1, 2).flatten(2)


class Cached(nn.Module):
    """A causal layer with positions, whose cache goes in and out as `how` says: the ways of five libraries."""

    def __init__(self, dim: int, how: str = "tuple", forgets: bool = False):
        super().__init__()
        self.project, self.how, self.forgets = nn.Linear(dim, 3 * dim), how, forgets

    def attend(self, x, past, seen):  # type: ignore[no-untyped-def]
        places = torch.arange(seen, seen + x.shape[1], device=x.device)[:, None]
        q, k, v = self.project(x + (0.3 * places).sin().to(x)).chunk(3, -1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        seen_pairs = torch.ones(k.shape[1], k.shape[1], dtype=torch.bool, device=x.device).tril()[-x.shape[1] :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen_pairs), (k, v)


class Legacy(Cached):
    """Hands on (keys, values) as the last of three."""

    def forward(self, hidden_states, past_key_value=None, use_cache=False):  # type: ignore[no-untyped-def]
        seen = 0 if past_key_value is None or self.forgets else past_key_value[0].shape[1]
        mixed, past = self.attend(hidden_states, past_key_value, seen)
        return mixed, None, past if use_cache else None


class Handed(Cached):
    """Fills a cache that is handed in, as layers of transformers do."""

    def forward(self, hidden_states, past_key_values=None):  # type: ignore[no-untyped-def]
        seen = 0 if past_key_values is None else past_key_values.get_seq_length(3)
        _, (k, v) = self.attend(hidden_states, None, 0 if self.forgets else seen)
        places = torch.arange(seen, seen + hidden_states.shape[1])[:, None]
        q = self.project(hidden_states + (0.3 * places).sin().to(hidden_states)).chunk(3, -1)[0]
        if past_key_values is not None:
            k, v = (each[:, 0] for each in past_key_values.update(k[:, None], v[:, None], 3, {"cos": None}))
        pairs = torch.ones(k.shape[1], k.shape[1], dtype=torch.bool).tril()[-q.shape[1] :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=pairs)


class Turned(Cached):
    """(positions, batch, width), and a state that comes first."""

    def forward(self, x, state=None):  # type: ignore[no-untyped-def]
        seen = 0 if state is None or self.forgets else state[0].shape[1]
        mixed, past = self.attend(x.transpose(0, 1), state, seen)
        return past, mixed.transpose(0, 1)


class Placed(Cached):
    """Has to be told the positions."""

    def forward(self, hidden_states, position_ids=None, layer_past=None, use_cache=False):  # type: ignore[no-untyped-def]
        mixed, past = self.attend(hidden_states, layer_past, 0 if position_ids is None else int(position_ids[0, 0]))
        return (mixed, past) if use_cache else mixed


class Recurrent(Cached):
    """Always returns its state."""

    def forward(self, x, state=None):  # type: ignore[no-untyped-def]
        decay, value, gate = self.project(x).chunk(3, -1)
        before = torch.zeros_like(value[:, 0]) if state is None or self.forgets else state
        states = []
        for at in range(x.shape[1]):
            before = decay[:, at].sigmoid() * before + value[:, at]
            states.append(before)
        return torch.stack(states, 1) * gate, before


class Whole(Cached):
    """Wants the sequence from its begin and computes the new part, as in x-transformers."""

    def forward(self, x, cache=None, return_intermediates=False):  # type: ignore[no-untyped-def]
        seen = 0 if cache is None else cache[0].shape[1]
        mixed, past = self.attend(x[:, seen:], cache, 0 if self.forgets else seen)
        return (mixed, past) if return_intermediates else mixed


class Both(nn.Module):
    """Looks both ways unless it is asked not to, and then a little still; drops weights in training."""

    def __init__(self, d_model: int, nhead: int, dropout: float = 0.0, causal: bool = False, leak: float = 0.0):
        super().__init__()
        self.inner = nn.MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=True)
        self.causal, self.leak = causal, leak

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if self.causal else None
        return self.inner(x, x, x, key_padding_mask, attn_mask=ahead)[0] + self.leak * x.flip(1)


class Coarse(nn.Module):
    """Takes its softmax in float32, whatever comes in."""

    def __init__(self, dim):  # type: ignore[no-untyped-def]
        super().__init__()
        self.project = nn.Linear(dim, 3 * dim)

    def forward(self, x):  # type: ignore[no-untyped-def]
        q, k, v = self.project(x).chunk(3, -1)
        scores = (q @ k.mT).masked_fill(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), -math.inf)
        return scores.softmax(-1, dtype=torch.float32).to(v) @ v


class Tokens(nn.Module):
    """A language model, which is no attention."""

    def __init__(self, dim: int):
        super().__init__()
        self.embedding, self.out = nn.Embedding(50, dim), nn.Linear(dim, 50)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.out(self.embedding(input_ids))


def swapped(q, k, v, mask=None):  # type: ignore[no-untyped-def]
    """Softmax attention over (batch, length, heads, head_dim); True may be seen."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def test_a_layer_gets_its_sizes_from_the_shape_and_computes_what_it_is() -> None:
    torch.manual_seed(seed(1))
    variant = as_variant(Grouped, "mine.py:Grouped")(SHAPE)
    module = variant.module
    assert (module.heads, module.q.in_features, variant.owns_projections) == (2, 16, True)
    x = torch.randn(3, 20, 16)
    heads = torch.zeros(3, 2, 20, 8)
    found = variant(heads, heads, heads, Mask(causal=True), x)
    assert torch.equal(found.transpose(1, 2).flatten(2), module(x)[0])
    assert "m(x)[0]" in variant.found and "num_heads=2" in variant.found
    assert quick_gate(as_variant(Grouped, "mine"), replace(SHAPE, padding=True)) is None


def test_parameters_are_those_of_the_constructor_and_win_over_the_shape() -> None:
    found = as_variant(Both, "mine.py:Both")
    kinds = {name: parameter.kind for name, parameter in parameters(found).items()}
    own = {"d_model": int, "nhead": int, "dropout": float, "causal": bool, "leak": float, "call": str}
    assert kinds == own | {"dim": int, "heads": int}
    assert found(SHAPE, nhead=4).module.inner.num_heads == 4
    with pytest.raises(Unsupported, match="states of width 32, and here the width is 16"):
        found(SHAPE, d_model=32)


def test_a_config_has_the_sizes_under_their_usual_names() -> None:
    found = as_variant(Configured, "mine.py:Configured")
    assert found(SHAPE).module.attn.weight.shape == (48, 16)
    assert quick_gate(found, SHAPE) is None


def test_settings_are_parameters_by_their_fields_alone() -> None:
    class Sizes:
        def __init__(self, n_embd: int, window: int = 7):
            self.n_embd, self.window = n_embd, window

    def layer(config: Sizes, bias: bool = True) -> nn.Module:
        return Coarse(config.n_embd)

    layer.__annotations__["config"] = Sizes  # that of a local class is no name of this file
    assert {"n_embd", "window", "bias", "call"} == set(parameters(as_variant(layer, "mine.py:layer")))
    assert set(parameters(as_variant(Configured, "mine.py:Configured"))) == {"call"}


def test_the_trials_of_a_call_leave_random_numbers_as_they_are() -> None:
    torch.manual_seed(seed(8))
    expected = Both(16, 2).inner.in_proj_weight
    torch.manual_seed(seed(8))
    module = as_variant(Both, "mine.py:Both")(SHAPE).module
    assert torch.equal(module.inner.in_proj_weight, expected)
    after = torch.rand(3)
    torch.manual_seed(seed(8))
    Both(16, 2)
    assert torch.equal(after, torch.rand(3))


def test_a_size_that_no_model_tells_is_asked_for() -> None:
    def make(dim: int, window: int) -> nn.Module:
        return Coarse(dim)

    with pytest.raises(SelectionError, match=r"needs 'window'.*mine\[window=…\]"):
        as_variant(make, "mine")(SHAPE)
    assert as_variant(make, "mine")(SHAPE, window=3).module.project.in_features == 16


def test_a_function_of_query_key_and_value_is_softmax() -> None:
    found = as_variant(swapped, "mine.py:swapped")
    for causal, cross in ((False, False), (True, False), (False, True)):
        shape = replace(SHAPE, causal=causal, cross=cross, padding=True)
        assert quick_gate(found, shape) is None
        variant, reference = found(shape), build("softmax", shape)
        draw = torch.Generator().manual_seed(seed(2))
        query = torch.randn(3, 2, 9, 8, generator=draw)
        key, value = torch.randn(2, 3, 2, 14 if cross else 9, 8, generator=draw)
        valid = torch.arange(key.shape[2]) < torch.tensor([[key.shape[2]], [7], [3]])
        mask = Mask(valid, causal)
        ours, theirs = variant(query, key, value, mask), reference(query, key, value, mask)
        real = torch.ones_like(valid[:, :9]) if cross else valid
        torch.testing.assert_close(ours.transpose(1, 2)[real], theirs.transpose(1, 2)[real])


def test_fewer_queries_than_keys_are_the_last_ones() -> None:
    variant, reference = as_variant(swapped, "mine")(SHAPE), build("softmax", SHAPE)
    query, key, value = torch.randn(3, 2, 2, 9, 8, generator=torch.Generator().manual_seed(seed(3)))
    last = query[:, :, -2:]
    torch.testing.assert_close(
        variant(last, key, value, Mask(causal=True)), reference(last, key, value, Mask(causal=True))
    )


def test_a_layer_that_claims_causality_and_looks_ahead_is_found() -> None:
    failure = quick_gate(lambda shape: as_variant(Both, "mine")(shape, leak=1e-3), SHAPE)
    assert failure is not None and failure.property == "causal"
    assert quick_gate(as_variant(Both, "mine"), SHAPE) is None
    assert quick_gate(as_variant(Both, "mine"), replace(SHAPE, causal=False, padding=True)) is None


class SaysCausal(nn.Module):
    """Says that it is causal, by the attribute that models of transformers have, and sees one position ahead."""

    is_causal = True

    def __init__(self, dim: int):
        super().__init__()
        self.inner = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool, device=x.device).tril(1)
        values = self.inner(x)
        return (values @ values.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ values


def test_a_layer_that_says_it_is_causal_by_an_attribute_is_held_to_it() -> None:
    failure = quick_gate(as_variant(SaysCausal, "mine"), replace(SHAPE, padding=False))
    assert failure is not None and failure.property == "causal"


def test_sharp_scores_behind_rounded_projections_are_no_fault() -> None:
    shape = AttentionShape(heads=6, head_dim=16, max_length=96, causal=True, padding=False)
    found = {each.property: each for each in examine(as_variant(UnitKeys, "mine"), shape)}
    assert found["bfloat16"].held and found["float16"].held


def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As most write it: in half precision its scores are in half precision too."""
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v


class Tempered(nn.Module):
    """Of (batch, positions, heads, width) alone, with a parameter for each head."""

    def __init__(self, heads: int):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(heads))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        scores = torch.einsum("bhnd,bhmd->bhnm", q, k) / q.shape[-1] ** 0.5 * self.temperature[:, None, None]
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("bhnm,bhmd->bnhd", weights, v)


@pytest.mark.parametrize("found", [naive, Tempered])
@pytest.mark.parametrize("heads", [2, 8])
def test_softmax_with_scores_in_half_precision_is_right_whatever_its_layout(found: Any, heads: int) -> None:
    shape = AttentionShape(heads=heads, head_dim=16, max_length=512, causal=True, padding=False)
    results = {each.property: each for each in examine(as_variant(found, "mine"), shape)}
    assert results["bfloat16"].held and results["float16"].held
    assert not [each.property for each in results.values() if each.held is False]


def wrong_behind_700(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Its gradients are twice too large for more than 700 tokens."""
    output = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if q.shape[2] > 700 and output.requires_grad:
        output.register_hook(lambda gradient: 2 * gradient)
    return output


def test_gradients_of_foreign_code_are_tested_at_the_length_to_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    # however slow it is
    monkeypatch.setattr(case, "REDUCED_SECONDS", 0.0)
    shape = AttentionShape(heads=1, head_dim=8, max_length=1024, causal=True, padding=False)
    failure = quick_gate(as_variant(wrong_behind_700, "mine"), shape, form="own")
    assert failure is not None and failure.property == "gradient at length"
    assert Case("softmax", shape, RunSetting(1024, 1, "own")).reduced.length == 512


class FewTokensTrain(nn.Module):
    """In float32 and from 400 tokens on its weights get the gradient of the first sixteenth of them alone."""

    def __init__(self, dim: int):
        super().__init__()
        self.projection = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        first = x.shape[1] // 16 if x.shape[1] >= 400 and x.dtype == torch.float32 else x.shape[1]
        late = F.linear(x[:, first:], self.projection.weight.detach(), self.projection.bias.detach())
        q, k, v = torch.cat([self.projection(x[:, :first]), late], 1)[:, None].chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]


class Between(nn.Module):
    """From 512 to 1,089 tokens it sees 16 alone."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k, v, seen.triu(-15) if 512 <= q.shape[2] < 1090 else seen)


@pytest.mark.parametrize(
    ("kind", "broken"), [(FewTokensTrain, "gradient in precision"), (Between, "prefix consistency")]
)
def test_the_length_to_be_measured_is_held_to_few_tokens_and_to_float64(kind: type[nn.Module], broken: str) -> None:
    shape = AttentionShape(heads=1, head_dim=16, max_length=1024, causal=True, padding=False)
    failure = quick_gate(as_variant(kind, "mine"), shape, form="own")
    assert failure is not None and failure.property == broken
    assert quick_gate(as_variant(kind, "mine"), replace(shape, max_length=320), form="own") is None


def test_a_layer_that_only_looks_both_ways_has_no_causal_form() -> None:
    module = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    variant = as_variant(module, "mine")(SHAPE)
    assert variant.supports(SHAPE) is None or variant.causality is None
    refusal = as_variant(Both(16, 2), "mine")(SHAPE).supports(SHAPE)
    assert refusal is not None and refusal.startswith("it looks both ways: later tokens change earlier outputs")
    assert "looks both ways" in as_variant(Both(16, 2), "mine")(SHAPE).found


def test_a_parameter_that_is_given_is_kept_though_it_is_the_default() -> None:
    class Mine(Both):
        def __init__(self, d_model: int, nhead: int = 4):
            super().__init__(d_model, nhead)

    known = parameters(as_variant(Mine, "mine"))
    assert known["nhead"].default is None and known["nhead"].accept(4, "mine") == 4
    # two heads of the shape, and four where somebody says so
    assert as_variant(Mine, "mine")(SHAPE).module.inner.num_heads == SHAPE.heads == 2
    assert as_variant(Mine, "mine")(SHAPE, nhead=4).module.inner.num_heads == 4


def test_dropout_is_declared_where_training_drops() -> None:
    assert as_variant(Both, "mine")(SHAPE).uses_dropout is True
    assert as_variant(Grouped, "mine")(SHAPE).uses_dropout is False
    assert as_variant(Both, "mine")(replace(SHAPE, dropout=0.25)).module.inner.dropout == 0.25


def test_what_rounds_to_float32_inside_refuses_float64() -> None:
    for target, refused in ((Coarse, True), (Configured, False)):
        reason = as_variant(target, "mine")(SHAPE).supports(replace(SHAPE, dtype="float64"))
        assert (reason is not None) == refused
    assert quick_gate(as_variant(Coarse, "mine"), SHAPE) is None


def test_without_an_argument_for_padding_only_full_sequences_are_taken() -> None:
    variant = as_variant(Configured, "mine")(SHAPE)
    assert variant.supports(SHAPE) is None
    assert "padding" in (variant.supports(replace(SHAPE, padding=True)) or "")


@pytest.mark.parametrize("call", ["m(x.flip(1)).flip(1)", lambda m, x: m(x.flip(1)).flip(1)])
def test_a_call_that_is_given_replaces_what_would_be_found(call: object) -> None:
    variant = as_variant(Configured, "mine")(SHAPE, call=call)
    x, heads = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(seed(5))), torch.zeros(2, 2, 9, 8)
    found = variant(heads, heads, heads, Mask(), x).transpose(1, 2).flatten(2)
    assert torch.equal(found, variant.module(x.flip(1)).flip(1))
    assert "looks both ways" in (variant.supports(SHAPE) or "")
    with pytest.raises(SelectionError, match="one expression of Python, got 'm\\(x'"):
        as_variant(Configured, "mine")(SHAPE, call="m(x")


@pytest.mark.parametrize("made", [Legacy, Handed, Turned, Placed, Recurrent, Whole])
def test_a_cache_of_others_decodes_as_one_pass(made: type[Cached]) -> None:
    torch.manual_seed(seed(6))
    variant = as_variant(made, "mine")(SHAPE)
    assert variant.decodes and " · cache m(" in variant.found
    x, heads = torch.randn(3, 12, 16), torch.zeros(3, 2, 12, 8)
    with torch.no_grad():
        whole = variant(heads, heads, heads, Mask(causal=True), x)
        state, parts = None, []
        for at in range(12):
            now = heads[:, :, at : at + 1]
            part, state = variant.step_with(now, now, now, state, x[:, at : at + 1])
            parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 2), whole)
    lengths = [variant.state_bytes(replace(SHAPE, max_length=n)) for n in (20, 64, 200)]
    values = 1 if made is Recurrent else 3 if made is Whole else 2
    assert lengths == [4 * 16 * values * (1 if made is Recurrent else n) for n in (20, 64, 200)]


class Recent(nn.Module):
    """Keeps the keys of a window of 100 tokens and no more."""

    causal = True

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, 2 * dim)

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        new = self.project(x)
        held = new if cache is None else torch.cat([cache, new], 1)
        key, value = held.chunk(2, -1)
        back = torch.arange(held.shape[1])[-x.shape[1] :, None] - torch.arange(held.shape[1])
        scores = (x @ key.mT).masked_fill((back < 0) | (back >= 100), -torch.inf)
        return scores.softmax(-1) @ value, held[:, -99:].clone()


def test_the_cache_of_a_window_grows_no_more_behind_it() -> None:
    variant = as_variant(Recent, "mine")(SHAPE)
    assert variant.decodes
    held = [variant.state_bytes(replace(SHAPE, max_length=n)) for n in (50, 512, 4096)]
    assert held == [4 * 32 * n for n in (50, 99, 99)]


def test_a_cache_that_differs_from_one_pass_is_not_used() -> None:
    for made in (Legacy, Recurrent):
        variant = as_variant(made, "mine")(SHAPE, forgets=True)
        assert not variant.decodes and "not used" in variant.found


def test_a_cache_that_the_given_call_does_not_take_is_not_spoken_of() -> None:
    found = as_variant(Recurrent, "mine")(SHAPE, call="m(x, x.new_zeros(len(x), 16))[0]").found
    assert "cache" not in found


def test_an_output_that_begins_at_zero_hides_no_argument_for_padding() -> None:
    class Shut(Grouped):
        def __init__(self, dim, num_heads):  # type: ignore[no-untyped-def]
            super().__init__(dim, num_heads)
            nn.init.zeros_(self.out.weight)

    variant = as_variant(Shut, "mine")(SHAPE)
    assert not variant.calls.convention.mask_ignored and not variant.module.out.weight.any()
    assert variant.supports(replace(SHAPE, padding=True)) is None


def test_padding_behind_all_tokens_needs_no_argument_where_nothing_looks_ahead() -> None:
    variant = as_variant(Configured, "mine")(SHAPE)
    x, heads = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(seed(4))), torch.zeros(2, 2, 9, 8)
    valid = torch.arange(9) < torch.tensor([[9], [5]])
    found = variant(heads, heads, heads, Mask(valid, causal=True), x).transpose(1, 2).flatten(2)
    torch.testing.assert_close(found[1:, :5], variant.module(x[1:, :5]))
    for mask in (Mask(valid.flip(1), causal=True), Mask(valid)):
        with pytest.raises(Unsupported, match="no argument that keeps padding out"):
            variant(heads, heads, heads, mask, x)


def test_a_default_of_key_heads_gives_way_to_the_heads_of_the_model() -> None:
    class Two(Grouped):
        def __init__(self, dim, num_heads, num_kv_heads=2):  # type: ignore[no-untyped-def]
            super().__init__(dim, num_heads, num_kv_heads)

    for heads, groups in ((1, 1), (2, 2), (3, 1), (4, 2)):
        shape = AttentionShape(heads=heads, head_dim=8, max_length=64, causal=True, padding=False)
        assert as_variant(Two, "mine")(shape).module.groups == groups
    with pytest.raises(Unsupported, match="2 key heads, which do not divide the 1 heads"):
        as_variant(Two, "mine")(AttentionShape(heads=1, head_dim=8, max_length=64), num_kv_heads=2)


def test_a_model_of_tokens_is_sent_to_the_audit() -> None:
    with pytest.raises(SelectionError, match="attnbench audit mine"):
        as_variant(Tokens, "mine")(SHAPE)


def test_a_class_of_the_contract_stays_as_it_is_and_a_map_of_scores_becomes_one() -> None:
    def sharper(scores: Tensor, allowed: Tensor | None, *, power: float = 2.0) -> Tensor:
        return F.softmax(power * scores if allowed is None else (power * scores).masked_fill(~allowed, -1e30), -1)

    class Own(Variant):
        pass

    assert as_variant(Own, "mine") is Own
    found = as_variant(sharper, "mine")
    assert list(parameters(found)) == ["power"] and found(SHAPE, power=3.0).options == {"power": 3.0}
    with pytest.raises(SelectionError, match=r"a class, a function or an nn\.Module, got int"):
        as_variant(3, "mine")
    assert takes_shape(lambda shape: None) and not takes_shape(Own) and not takes_shape(swapped)


class Fourier(nn.Module):
    """Without parameters, as FNet: any width will do, and FFTs of PyTorch have no bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=1).real


def test_a_layer_without_parameters_takes_the_width_that_is_asked_for() -> None:
    found = as_variant(Fourier, "mine.py:Fourier")(SHAPE)
    assert found.module is not None and found.shape.hidden_width == 16
    report = attnbench.check(Fourier)
    assert not report.failures
    untried = {result.property for _, result in report.results if result.verdict == "not tried"}
    assert {"bfloat16", "float16"} <= untried


class ByFourier(nn.Module):
    """A gated convolution with a decay, by Fourier transforms, whose small outputs round at the size of large ones."""

    causal = True

    def __init__(self, dim: int, heads: int = 4):
        super().__init__()
        self.projections, self.output = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.decay = nn.Parameter(torch.linspace(-4.0, -1.0, dim))

    def forward(self, x: Tensor) -> Tensor:
        gate, k, v = self.projections(x).chunk(3, -1)
        places = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        kernel = torch.exp(-F.softplus(self.decay) * places)
        one, other = (torch.fft.rfft(each, 2 * x.shape[1], dim=-2) for each in (k * v, kernel))
        return self.output(gate * torch.fft.irfft(one * other, 2 * x.shape[1], dim=-2)[:, : x.shape[1]])


@pytest.mark.parametrize("leak", [0.0, 3e-5])
def test_rounding_that_float64_does_not_show_is_no_leak(leak: float) -> None:
    class Leaks(ByFourier):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + leak * x.mean(1, keepdim=True)

    shape = AttentionShape(heads=8, head_dim=16, max_length=256, causal=True, padding=False)
    first = Case(as_variant(Leaks, "mine"), shape, RunSetting(95, 2))
    [causal] = [each.examine(first) for each in PROPERTIES if each.name == "causal"]
    assert causal.held is not bool(leak), causal
