"""The learned indexer against that of DeepSeek-V3.2 in transformers, and its loss against PyTorch's divergence."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from seeds import seed
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import AttentionShape, Mask, SelectionError, Unsupported
from attnbench.variants.ops.nearest_first import highest
from attnbench.variants.sparse.indexer import Indexer

HEADS, WIDTH, HIDDEN, LENGTH = 4, 8, 12, 23


def made(k: int = 5, causal: bool = True, kv_heads: int = 2, **parameters: float) -> Indexer:
    torch.manual_seed(seed(11))
    sizes = {"heads": HEADS, "head_dim": WIDTH, "kv_heads": kv_heads, "hidden_width": HIDDEN}
    shape = AttentionShape(**sizes, max_length=64, causal=causal)
    variant = Indexer(shape, k=k, index_heads=3, index_dim=6, **parameters).double()  # type: ignore[arg-type]
    with torch.no_grad():
        variant.index_norm.weight.uniform_(0.5, 2.0)
        variant.index_norm.bias.normal_()
    return variant


def drawn(kv_heads: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed(12))
    sizes = [(2, HEADS, LENGTH, WIDTH), *2 * [(2, kv_heads, LENGTH, WIDTH)], (2, LENGTH, HIDDEN)]
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


@pytest.mark.parametrize("k", [1, 5, 40])
def test_the_chosen_keys_are_those_of_deepseek(k: int) -> None:
    deepseek = pytest.importorskip("transformers.models.deepseek_v32.modeling_deepseek_v32")
    variant, (query, key, value, hidden) = made(k), drawn()
    config = SimpleNamespace(
        hidden_size=HIDDEN, index_n_heads=3, index_head_dim=6, qk_rope_head_dim=0, index_topk=k, q_lora_rank=HIDDEN
    )
    released = deepseek.DeepseekV32Indexer(config, 0).double()
    own = {"wq_b": variant.index_query, "wk": variant.index_key, "weights_proj": variant.index_weight}
    for name, linear in own.items():
        getattr(released, name).load_state_dict(linear.state_dict())
    released.k_norm.load_state_dict(variant.index_norm.state_dict())
    causal = torch.ones(LENGTH, LENGTH).tril().bool()
    nothing = torch.zeros(2, LENGTH, 0, dtype=torch.float64)
    chosen = released(hidden, hidden, (nothing, nothing), causal, None)
    kept = torch.zeros(2, LENGTH, LENGTH, dtype=torch.bool).scatter(-1, chosen.long(), True) & causal
    scores = query @ key.repeat_interleave(2, 1).transpose(-2, -1) / WIDTH**0.5
    expected = scores.masked_fill(~kept[:, None], -torch.inf).softmax(-1)
    # where all of a key's products are negative its score is 0, and the released code may choose any of several
    ranked = variant._scores(hidden, variant._index_keys(hidden)).masked_fill(~causal, -torch.inf).sort(-1).values
    edge = ranked[..., -min(k, LENGTH), None]
    clear = ((ranked == edge).sum(-1) == 1) | (edge[..., 0] == -torch.inf)
    assert clear.double().mean() > 0.5
    found = variant.weights(query, key, Mask(causal=True), hidden=hidden)
    torch.testing.assert_close(found.transpose(1, 2)[clear], expected.transpose(1, 2)[clear])
    output = variant(query, key, value, Mask(causal=True), hidden)
    torch.testing.assert_close(output, found @ value.repeat_interleave(2, 1))


@pytest.mark.parametrize("causal", [False, True])
def test_padded_keys_are_not_chosen_and_padded_queries_have_no_loss(causal: bool) -> None:
    variant, (query, key, value, hidden) = made(causal=causal), drawn()
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    valid[0, 17:] = False
    weights = variant.weights(query, key, Mask(valid, causal), hidden=hidden)
    assert (weights[0, ..., 17:] == 0).all() and ((weights != 0).sum(-1) <= 5).all()
    variant(query, key, value, Mask(valid, causal), hidden)
    padded = variant.auxiliary_loss()
    changed = hidden.masked_fill(~valid[..., None], 3.0)
    variant(query, key, value, Mask(valid, causal), changed)
    torch.testing.assert_close(variant.auxiliary_loss(), padded)


@pytest.mark.parametrize("loss", [1.0, 0.3])
def test_the_loss_is_the_divergence_from_the_attention_summed_over_heads(loss: float) -> None:
    variant, (query, key, value, hidden) = made(loss=loss), drawn()
    variant(query, key, value, Mask(causal=True), hidden)
    weights = variant.weights(query, key, Mask(causal=True), hidden=hidden).detach()
    kept = (weights != 0).any(1)
    index = variant._scores(hidden, variant._index_keys(hidden)).masked_fill(~kept, -torch.inf)
    target = F.normalize(weights.sum(1), p=1.0, dim=-1)
    rows = [F.kl_div(i[s].log_softmax(-1), t[s], reduction="sum") for i, t, s in
            zip(index.flatten(0, 1), target.flatten(0, 1), kept.flatten(0, 1), strict=True)]  # fmt: skip
    torch.testing.assert_close(variant.auxiliary_loss(), loss * torch.stack(rows).mean())
    variant.after_step()
    assert variant.auxiliary_loss() is None and copy.deepcopy(variant).auxiliary_loss() is None


def test_the_model_learns_nothing_from_the_indexer_and_the_indexer_nothing_from_the_output() -> None:
    variant, inputs = made(), [x.requires_grad_() for x in drawn()]
    query, key, value, hidden = inputs
    output = variant(query, key, value, Mask(causal=True), hidden)
    indexer = list(variant.parameters())
    found = torch.autograd.grad(output.sum(), [hidden, *indexer], retain_graph=True, allow_unused=True)
    assert found == (None,) * (1 + len(indexer))
    loss = variant.auxiliary_loss()
    assert loss is not None
    assert torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True) == (None,) * 4
    assert all(gradient.any() for gradient in torch.autograd.grad(loss, indexer))


def test_decoding_equals_the_whole_where_most_scores_tie_too() -> None:
    for scale in (1.0, 0.0):
        variant, (query, key, value, hidden) = made(), drawn()
        with torch.no_grad():
            # all index scores are zero, and positions alone decide
            variant.index_weight.weight.mul_(scale)
        whole, state = variant(query, key, value, Mask(causal=True), hidden), None
        for t in range(LENGTH):
            at = slice(t, t + 1)
            output, state = variant.step(query[:, :, at], key[:, :, at], value[:, :, at], state, hidden[:, at])
            torch.testing.assert_close(output, whole[:, :, at])
        # float32: keys and values of 2 heads of 8, and an index key of 6
        assert variant.state_bytes(variant.shape) == 64 * 4 * (2 * 2 * 8 + 6)


def test_of_equal_scores_the_last_are_taken() -> None:
    scores = torch.tensor([[0.0, 3, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0], [2, 1, 2, 1, 2, 1]])
    allowed = torch.tensor([[1, 1, 1, 1, 1, 0]] * 2 + [[1] * 6]).bool()
    kept = highest(scores, allowed, 3)
    assert [row.nonzero().flatten().tolist() for row in kept] == [[1, 3, 4], [2, 3, 4], [0, 2, 4]]
    assert highest(scores, None, 4)[2].nonzero().flatten().tolist() == [0, 2, 4, 5]
    assert torch.equal(highest(scores, allowed, 9), allowed)
    assert not highest(scores, torch.zeros(6, dtype=torch.bool), 3).any()


def test_other_sequences_and_no_hidden_state_are_refused() -> None:
    variant, (query, key, value, hidden) = made(), drawn()
    with pytest.raises(Unsupported, match="one sequence"):
        variant(query[:, :, 5:], key, value, Mask(causal=True), hidden[:, 5:])
    with pytest.raises(SelectionError, match="expected hidden"):
        variant.step(query[:, :, :1], key[:, :, :1], value[:, :, :1])
