"""reformer and sinkhorn against explicit matrices in float64, and against released code."""

from __future__ import annotations

import importlib
import itertools
import warnings
from types import ModuleType

import pytest
import torch
from torch import Tensor

from attnbench.bench.core.errors import Unsupported
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.ops.chunks import cut, paired_density, with_previous
from attnbench.variants.sparse.reformer import Reformer
from attnbench.variants.sparse.sinkhorn import Sinkhorn, sinkhorn

HEADS, WIDTH, LONGEST = 2, 8, 48


def shape(causal: bool = False) -> AttentionShape:
    return AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=LONGEST, causal=causal)


def draw(*lengths: int, batch: int = 2, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randn(batch, HEADS, n, WIDTH, generator=generator, dtype=dtype) for n in lengths]


def keep_of(*real: int, length: int) -> Tensor:
    return torch.arange(length)[None, :] < torch.tensor(real)[:, None]


def reformer(*, causal: bool = False, bucket: int = 4, hashes: int = 3) -> Reformer:
    return Reformer(shape(causal), bucket=bucket, hashes=hashes).double()


def sinkhorn_of(*, causal: bool = False, block: int = 5, **more: float) -> Sinkhorn:
    torch.manual_seed(3)
    variant = Sinkhorn(shape(causal), block=block, **more).double()
    with torch.no_grad():  # so that the sorting is far from uniform
        variant.sorter.w2.mul_(6)
    return variant


def released(package: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(package, reason=f"the package {package} is not installed")
        return importlib.import_module(f"{package}.{package}")


either = pytest.mark.parametrize("name", ["reformer", "sinkhorn"])


def build(name: str, causal: bool) -> Reformer | Sinkhorn:
    return reformer(causal=causal) if name == "reformer" else sinkhorn_of(causal=causal)


@either
@pytest.mark.parametrize("causal", [False, True])
def test_padding_however_long_and_the_rest_of_the_batch_change_nothing(name: str, causal: bool) -> None:
    variant = build(name, causal)
    query, key, value = draw(48, 48, 48, batch=3)
    for real in (1, 4, 5, 9, 26, 48):
        keep = keep_of(48, real, 23, length=48)
        output = variant(query, key, value, Mask(keep, causal))
        assert output.isfinite().all()
        alone = variant(*(x[1:2, :, :real] for x in (query, key, value)), Mask(causal=causal))
        torch.testing.assert_close(output[1:2, :, :real], alone, rtol=1e-9, atol=1e-10)
        wild = [torch.where(keep[:, None, :, None], x, 1e6) for x in (query, key, value)]
        assert torch.equal(variant(*wild, Mask(keep, causal))[1, :, :real], output[1, :, :real])
        louder = [torch.cat([9 * x[:1], x[1:2], -5 * x[2:]]) for x in (query, key, value)]
        assert torch.equal(variant(*louder, Mask(keep, causal))[1, :, :real], output[1, :, :real])


@either
@pytest.mark.parametrize("causal", [False, True])
def test_a_sequence_without_a_real_key_gives_zeros_and_no_gradient(name: str, causal: bool) -> None:
    variant = build(name, causal)
    inputs = [x.requires_grad_() for x in draw(13, 13, 13)]
    output = variant(*inputs, Mask(keep_of(13, 0, length=13), causal))
    assert (output[1] == 0).all()
    assert (output[0] != 0).any()
    for gradient in torch.autograd.grad(1e3 * output.sum(), inputs, allow_unused=True):
        assert gradient is None or (gradient.isfinite().all() and (gradient[1] == 0).all())


@either
def test_half_precision_accumulates_in_single(name: str) -> None:
    variant = build(name, causal=False)
    inputs = [x.bfloat16() for x in draw(45, 45, 45)]
    output = variant(*inputs, Mask())
    assert output.dtype == torch.bfloat16
    exact = variant(*(x.double() for x in inputs), Mask())
    assert (output.double() - exact).abs().le(exact.abs() * 2**-8 + 1e-5).all()


@either
def test_weights_are_dropped_in_training_and_the_mean_is_kept(name: str) -> None:
    dropped = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=LONGEST, dropout=0.4)
    torch.manual_seed(1)
    variant = (Reformer(dropped, bucket=4) if name == "reformer" else Sinkhorn(dropped, block=5)).double()
    inputs = draw(20, 20, 20)
    with torch.no_grad():
        exact = variant.eval()(*inputs, Mask())
        variant.train()
        runs = torch.stack([variant(*inputs, Mask()) for _ in range(400)])
    assert (runs[0] - runs[1]).abs().max() > 0.1
    error = (runs.mean(0) - exact) / (runs.std(0) / 400**0.5)
    assert float(error.square().mean()) == pytest.approx(1.0, abs=0.5)


@either
def test_longer_sequences_than_it_was_built_for_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="at most 48 positions, got 49"):
        build(name, causal=False)(*draw(49, 49, 49), Mask())


# reformer


def explicit_chunks(variant: Reformer, query: Tensor) -> list[list[int]]:
    """Chunk of each token of one sequence and head (n, d), per round, by sorting (hash, position) pairs."""
    n = len(query)
    buckets = 2 * -(-n // (2 * variant.bucket))
    rounds = []
    for rotation in variant.rotations:
        turned = query @ rotation[:, : buckets // 2]
        hashes = torch.cat([turned, -turned], -1).argmax(-1).tolist()
        order = sorted(range(n), key=lambda i: (hashes[i], i))
        rounds.append([order.index(i) // variant.bucket for i in range(n)])
    return rounds


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("hashes", [1, 3])
@pytest.mark.parametrize("length", [1, 3, 9, 31, 48])
def test_reformer_is_softmax_over_the_union_of_its_rounds(length: int, hashes: int, causal: bool) -> None:
    variant = reformer(causal=causal, hashes=hashes)
    query, key, value = draw(length, length, length)
    mask = Mask(causal=causal)
    output, weights = variant(query, key, value, mask), variant.weights(query, key, mask)
    for b, h in itertools.product(range(2), range(HEADS)):
        rounds = explicit_chunks(variant, query[b, h])
        unit = query[b, h] / query[b, h].norm(dim=-1, keepdim=True)
        for i in range(length):
            union = {j for at in rounds for j in range(length) if at[i] - at[j] in (0, 1)}
            union = {j for j in union if not causal or j <= i}
            # itself only where there is nothing else
            seen = sorted(union - {i}) or [i]
            expected = torch.zeros(length, dtype=torch.float64)
            expected[seen] = (unit[seen] @ query[b, h, i] / WIDTH**0.5).softmax(-1)
            torch.testing.assert_close(weights[b, h, i], expected, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(output[b, h, i], expected @ value[b, h], rtol=1e-9, atol=1e-12)
    rows = slice(length // 2, length)
    part = variant.weights(query, key, mask, rows)
    torch.testing.assert_close(part, weights[:, :, rows], rtol=1e-12, atol=1e-14)


def test_reformer_with_one_chunk_is_softmax_over_all_others() -> None:
    variant = reformer(bucket=16)
    query, key, value = draw(15, 15, 15)
    scores = query @ torch.nn.functional.normalize(query, dim=-1).mT / WIDTH**0.5
    weights = scores.masked_fill(torch.eye(15, dtype=torch.bool), -torch.inf).softmax(-1)
    torch.testing.assert_close(variant(query, key, value, Mask()), weights @ value, rtol=1e-9, atol=1e-12)


def test_reformer_values_never_come_from_the_future_but_the_choice_of_the_past_may() -> None:
    variant = reformer(causal=True)
    query, key, value = draw(48, 48, 48)
    mask = Mask(causal=True)
    before = variant(query, key, value, mask)
    later_values = torch.cat([value[:, :, :20], 1e3 * value[:, :, 20:]], 2)
    assert torch.equal(variant(query, key, later_values, mask)[:, :, :20], before[:, :, :20])
    assert (variant.weights(query, key, mask).triu(1) == 0).all()
    later_queries = torch.cat([query[:, :, :20], query[:, :, 20:].cumsum(2)], 2)
    assert not torch.equal(variant(later_queries, key, value, mask)[:, :, :20], before[:, :, :20])


def test_reformer_puts_near_vectors_into_one_chunk_more_often_than_chance() -> None:
    variant = Reformer(AttentionShape(heads=1, head_dim=WIDTH, max_length=512), bucket=16, hashes=2).double()
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(1, 1, 256, 1, WIDTH, generator=generator, dtype=torch.float64)
    noise = 0.05 * torch.randn(1, 1, 256, 2, WIDTH, generator=generator, dtype=torch.float64)
    query = (base + noise).flatten(2, 3)
    seen = variant.weights(query, query, Mask())[0, 0] > 0
    assert float(seen.double().mean()) < 2 * 2 * 16 / 512
    assert float(seen[1::2, ::2].diagonal().double().mean()) > 0.9


def test_reformer_uses_queries_as_keys_and_the_same_rotations_in_each_pass() -> None:
    variant = reformer()
    inputs = [x.requires_grad_() for x in draw(30, 30, 30)]
    query, key, value = inputs
    output = variant(query, key, value, Mask())
    assert torch.equal(output, variant(query, 7 - key, value, Mask()))
    gradients = torch.autograd.grad(output.sum(), inputs, allow_unused=True)
    assert {n for n, g in zip(("query", "key", "value"), gradients, strict=True) if g is None} == variant.ignores
    assert torch.equal(variant.rotations, reformer().rotations)
    assert not torch.equal(variant.rotations, Reformer(shape(), bucket=4, hashes=3, seed=1).rotations)
    assert "rotations" in variant.state_dict()
    assert variant.state_bytes(shape(causal=True)) is None
    with pytest.raises(Unsupported, match="sorts all tokens anew"):
        variant.step(query, key, value)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("hashes", [1, 3])
def test_reformer_equals_reformer_pytorch_outside_each_first_chunk(hashes: int, causal: bool) -> None:
    """Theirs lets the first chunk of a round look back at the last one of the round before; the paper does not."""
    theirs = released("reformer_pytorch")
    variant = reformer(causal=causal, hashes=hashes)
    query, key, value = draw(48, 48, 48)
    order = variant.order(query, None)
    attention = theirs.LSHAttention(bucket_size=4, n_hashes=hashes, causal=causal, allow_duplicate_attention=False)

    def same_hashes(count: int, vectors: Tensor, **_: object) -> Tensor:
        rotated = torch.einsum("btd,rdk->brtk", vectors, variant.rotations[..., : count // 2])
        buckets = torch.cat([rotated, -rotated], -1).argmax(-1) + count * torch.arange(hashes)[:, None]
        return buckets.flatten(1)

    attention.hash_vectors = same_hashes
    expected = attention(query.flatten(0, 1), value.flatten(0, 1))[0].unflatten(0, (2, HEADS))
    compared = (order.rank >= 4).all(2)
    assert int(compared.sum()) > 80
    ours = variant(query, key, value, Mask(causal=causal))
    torch.testing.assert_close(ours[compared], expected[compared], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(ours[~compared], expected[~compared], atol=1e-3)


# sinkhorn


def explicit_sinkhorn(variant: Sinkhorn, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """One sequence, (heads, n, d), block by block and row by row."""
    n, size = key.shape[1], variant.block
    blocks = [list(range(s, min(s + size, n))) for s in range(0, n, size)]
    pooled = torch.stack([key[:, : b[0] + 1].mean(1) if causal else key[:, b].mean(1) for b in blocks], 1)
    net = variant.sorter
    logits = ((pooled @ net.w1 + net.b1).relu() @ net.w2 + net.b2)[..., : len(blocks)] / variant.temperature
    sorting = logits.exp()
    if causal:
        sorting = sorting.tril(-1)
    for _ in range(variant.iterations):
        rows = sorting.sum(-1, keepdim=True)
        sorting = sorting / rows.where(rows > 0, 1)
        columns = sorting.cumsum(-2) if causal else sorting.sum(-2, keepdim=True)
        sorting = sorting / columns.where(columns > 0, 1)
    output = torch.zeros_like(query)
    for u, h in itertools.product(range(len(blocks)), range(query.shape[0])):
        moved_keys, moved_values = [], []
        for offset in range(size):
            sources = [w for w, b in enumerate(blocks) if offset < len(b) and (w < u or not causal)]
            if sources:
                at = [blocks[w][offset] for w in sources]
                moved_keys.append(sorting[h, u, sources] @ key[h, at])
                moved_values.append(sorting[h, u, sources] @ value[h, at])
        for i in blocks[u]:
            local = [j for j in blocks[u] if j <= i or not causal]
            keys, values = (torch.stack([*m, *x[h, local]]) for m, x in ((moved_keys, key), (moved_values, value)))
            output[h, i] = (keys @ query[h, i] / WIDTH**0.5).softmax(-1) @ values
    return output


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 5, 13, 30, 48])
def test_sinkhorn_equals_the_explicit_blocks(length: int, causal: bool) -> None:
    variant = sinkhorn_of(causal=causal)
    query, key, value = draw(length, length, length)
    output = variant(query, key, value, Mask(causal=causal))
    for b in range(2):
        expected = explicit_sinkhorn(variant, query[b], key[b], value[b], causal)
        torch.testing.assert_close(output[b], expected, rtol=1e-8, atol=1e-10)


def test_sinkhorn_sorting_has_rows_and_columns_that_sum_to_one_over_what_may_move() -> None:
    logits = 2 * torch.randn(2, HEADS, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    movable = torch.ones(2, 6, 6, dtype=torch.bool)
    movable[1, 4:] = False
    movable[1, :, 4:] = False
    sorting = sinkhorn(logits, movable, 200, causal=False)
    for dim in (-1, -2):
        torch.testing.assert_close(sorting[0].sum(dim), torch.ones(HEADS, 6).double(), rtol=1e-6, atol=0)
        torch.testing.assert_close(sorting[1, :, :4, :4].sum(dim), torch.ones(HEADS, 4).double(), rtol=1e-6, atol=0)
    assert (sorting[1].masked_select(~movable[1]) == 0).all()


def test_sinkhorn_normalisation_equals_sinkhorn_transformer() -> None:
    theirs = released("sinkhorn_transformer")
    logits = torch.randn(3, HEADS, 7, 7, dtype=torch.float64)
    ours = sinkhorn(logits, torch.ones(3, 7, 7, dtype=torch.bool), 5, causal=False)
    expected = theirs.sinkhorn_sorting_operator(logits.flatten(0, 1), n_iters=5).unflatten(0, (3, HEADS))
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_sinkhorn_equals_sinkhorn_transformer_where_keys_are_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given its sorting logits, a relevance of mean queries to mean keys; it uses the sorted keys as sorted values."""
    theirs = released("sinkhorn_transformer")
    monkeypatch.setattr(theirs, "sample_gumbel", lambda shape, *_: torch.zeros(shape))
    attention = theirs.SinkhornAttention(
        6, HEADS * WIDTH, WIDTH, HEADS, LONGEST, temperature=0.75, non_permutative=False, sinkhorn_iter=7
    )
    query, key, value = draw(48, 48, 48)

    def relevance(blocks: Tensor, live: Tensor, causal: bool) -> Tensor:
        means = cut(query, 6, 2).mean(3) @ blocks.mean(3).mT / WIDTH**0.5
        return (means.relu() + 1e-6).log() / 0.75

    variant = sinkhorn_of(block=6)
    monkeypatch.setattr(variant, "sort_logits", relevance)
    expected = attention(query, key, key)
    torch.testing.assert_close(variant(query, key, key, Mask()), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(variant(query, key, value, Mask()), attention(query, key, value), atol=1e-2)


def test_causal_sinkhorn_is_strict_even_by_rounding_and_decodes() -> None:
    variant = sinkhorn_of(causal=True)
    inputs = draw(43, 43, 43)
    mask = Mask(causal=True)
    before = variant(*inputs, mask)
    for at in (0, 4, 5, 17, 41):
        changed = [torch.cat([x[:, :, : at + 1], 50 * x[:, :, at + 1 :].flip(2)], 2) for x in inputs]
        assert torch.equal(variant(*changed, mask)[:, :, : at + 1], before[:, :, : at + 1])
        prefix = variant(*(x[:, :, : at + 1] for x in inputs), mask)
        torch.testing.assert_close(prefix, before[:, :, : at + 1], rtol=1e-9, atol=1e-12)
    state, outputs = None, []
    for t in range(43):
        output, state = variant.step(*(x[:, :, t : t + 1] for x in inputs), state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 2), before, rtol=1e-9, atol=1e-12)
    last = variant(inputs[0][:, :, -11:], inputs[1], inputs[2], mask)
    torch.testing.assert_close(last, before[:, :, -11:], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_sinkhorn_gradients_agree_with_finite_differences(causal: bool) -> None:
    variant = sinkhorn_of(causal=causal, block=3)
    inputs = [x.requires_grad_() for x in draw(8, 8, 8, batch=1)]
    assert torch.autograd.gradcheck(lambda *x: variant(*x, Mask(causal=causal)), inputs, fast_mode=True)
    variant(*inputs, Mask(causal=causal)).square().sum().backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in variant.sorter.parameters())


def test_sinkhorn_adds_gumbel_noise_only_in_training_and_only_when_asked() -> None:
    inputs = draw(20, 20, 20)
    for gumbel, training in itertools.product((False, True), (False, True)):
        variant = sinkhorn_of(gumbel=gumbel).train(training)
        repeats = torch.equal(variant(*inputs, Mask()), variant(*inputs, Mask()))
        assert repeats == (not (gumbel and training))


# buckets


def test_cut_fills_the_last_bucket_and_with_previous_has_nothing_before_the_first() -> None:
    blocks = cut(torch.arange(1, 8)[None], 3, 1)
    assert blocks.tolist() == [[[1, 2, 3], [4, 5, 6], [7, 0, 0]]]
    assert with_previous(blocks, 1).tolist() == [[[0, 0, 0, 1, 2, 3], [1, 2, 3, 4, 5, 6], [4, 5, 6, 7, 0, 0]]]
    assert cut(torch.ones(1, 4, 2, dtype=torch.bool), 3, 1).tolist()[0][1] == [[True] * 2, [False] * 2, [False] * 2]


def test_density_counts_pairs_of_buckets_against_allowed_scores() -> None:
    long = AttentionShape(heads=2, head_dim=32, max_length=4096)
    causal = AttentionShape(heads=2, head_dim=32, max_length=4096, causal=True)
    assert Reformer(long).density(long) == 2 * 2 * 64 / 4096
    assert Sinkhorn(long).density(long) == 2 * 64 / 4096
    assert paired_density(causal, 64) == pytest.approx(4 * 64 / 4097)
    assert paired_density(shape(), 64) == 1.0
