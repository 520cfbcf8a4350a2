"""The mask of dropped weights: its numbers against published ones, its definition pair by pair, and its statistics."""

import math

import pytest
import torch

from attnbench.variants.ops.bands import Band
from attnbench.variants.ops.dropout import (
    WeightDropout,
    draw_seed,
    drop_by_seed,
    keep_mask,
    keep_rows,
    kept_pairs,
    kept_scale,
    philox,
    threshold,
)

CPU = torch.device("cpu")


def one(text: str) -> list[torch.Tensor]:
    return [torch.tensor(int(word, 16)) for word in text.split()]


@pytest.mark.parametrize(
    ("rounds", "counter", "key", "words"),
    [
        # kat_vectors of Random123, the authors' library
        (7, "0 0 0 0", "0 0", "5f6fb709 0d893f64 4f121f81 4f730a48"),
        (7, "ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "5207ddc2 45165e59 4d8ee751 8c52f662"),
        (7, "243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "4dfccaba 190a87f0 c47362ba b6b5242a"),
        (10, "0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (10, "ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (10, "243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_published_words(rounds: int, counter: str, key: str, words: str) -> None:
    low, high = one(key)
    c0, c1, c2, c3 = one(counter)
    # int64 holds the 64 bits of a seed whatever its sign
    assert list(philox(low | high << 32, (c0, c1, c2, c3), rounds)) == one(words)


def test_the_mask_is_that_of_its_definition_pair_by_pair() -> None:
    seed = torch.tensor(0x1234_5678_9ABC_DEF0)
    at = torch.meshgrid(*(torch.arange(n) for n in (2, 3, 5, 21)), indexing="ij")
    assert torch.equal(kept_pairs(seed, 0.3, *at), keep_mask(seed, 0.3, 2, 3, 5, 21))
    # by plain integers for one pair: batch 1, head 2, query 4, key 13, the high half of its third word
    words = philox(seed, tuple(torch.tensor(n) for n in (1, 4, 2, 1)))  # type: ignore[arg-type]
    kept = int(words[2]) >> 16 >= 19_661
    assert bool(keep_mask(seed, 0.3, 2, 3, 5, 21)[1, 2, 4, 13]) == kept


def test_the_mask_depends_on_no_size() -> None:
    seed = torch.tensor(7)
    assert torch.equal(keep_mask(seed, 0.5, 3, 4, 9, 40)[:2, :3, :5, :11], keep_mask(seed, 0.5, 2, 3, 5, 11))


def test_rows_from_any_key_on_have_their_part_of_the_mask() -> None:
    seed, queries = torch.tensor(19), torch.arange(12)
    whole = keep_mask(seed, 0.4, 1, 1, 12, 60)[0, 0]
    first = 3 * queries
    rows = keep_rows(seed, 0.4, torch.tensor(0), torch.tensor(0), queries, 21, first)
    assert torch.equal(rows, torch.stack([whole[at, 3 * at : 3 * at + 21] for at in range(12)]))


@pytest.mark.parametrize(
    ("length", "block", "before", "after", "missing"),
    [(64, 16, 16, 0, 0), (50, 9, 5, 7, 0), (50, 12, 7, 0, 20), (33, 5, 0, 0, 3), (40, 8, 30, 11, 0), (7, 9, 3, 3, 0)],
)
def test_the_mask_of_a_band_is_that_of_the_whole_sequence(
    length: int, block: int, before: int, after: int, missing: int
) -> None:
    drop = WeightDropout(0.5, torch.tensor(23))
    band = Band.fit(length, block, before, after)
    found = band.kept(drop, 2, 3, missing)
    assert found is not None
    assert found.scale == kept_scale(0.5)
    whole = keep_mask(drop.seed, 0.5, 2, 3, length - missing, length)
    query_at, key_at = (x.expand(band.blocks, band.block, band.span) for x in band.at(CPU))
    inside = (query_at >= missing) & (query_at < length) & (key_at >= 0) & (key_at < length)
    assert inside.sum() > length - missing
    expected = whole[:, :, query_at[inside] - missing, key_at[inside]]
    assert torch.equal(found.mask[:, :, inside], expected)


def test_a_band_without_dropout_has_no_mask() -> None:
    assert Band.fit(20, 8, 8, 0).kept(None, 2, 3) is None


def test_a_rate_below_all_thresholds_drops_nothing() -> None:
    assert threshold(2**-18) == 0
    assert keep_mask(torch.tensor(5), 2**-18, 2, 2, 40, 40).all()


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.5, 0.9])
def test_the_share_of_dropped_weights_is_the_rate(rate: float) -> None:
    dropped = ~keep_mask(torch.tensor(11), rate, 4, 4, 64, 1024)
    count = dropped.numel()
    given = threshold(rate) / 2**16
    assert abs(given - rate) <= 2**-17
    assert abs(dropped.sum().item() - count * given) < 5 * math.sqrt(count * given * (1 - given))
    # of each piece of the eight that share a block alike
    by_piece = dropped.reshape(-1, 8).sum(0).double()
    assert (by_piece - count / 8 * given).abs().max().item() < 5 * math.sqrt(count / 8 * given * (1 - given))


def test_masks_of_seeds_sequences_heads_queries_and_keys_are_independent() -> None:
    mask = keep_mask(torch.tensor(3), 0.5, 4, 4, 64, 256)
    pairs = {
        "seeds one apart": (mask, keep_mask(torch.tensor(4), 0.5, 4, 4, 64, 256)),
        "seeds 2^32 apart": (mask, keep_mask(torch.tensor(3 + 2**32), 0.5, 4, 4, 64, 256)),
        "sequences": (mask[1:], mask[:-1]),
        "heads": (mask[:, 1:], mask[:, :-1]),
        "queries": (mask[:, :, 1:], mask[:, :, :-1]),
        "neighbouring keys": (mask[..., 1:], mask[..., :-1]),
        "keys of neighbouring blocks": (mask[..., 8:], mask[..., :-8]),
        "query and head changed over": (mask[:, :, :4], mask[:, :, :4].transpose(1, 2)),
    }
    for name, (one, other) in pairs.items():
        # of pairs at the same place in both only one counts
        apart = torch.ones_like(one)
        if name == "query and head changed over":
            apart = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)[:, :, None].expand_as(one)
        agreeing = (one == other)[apart]
        count = agreeing.numel()
        assert abs(agreeing.sum().item() - count / 2) < 5 * math.sqrt(count) / 2, name


def test_the_seed_follows_torchs_generator() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, second = draw_seed(CPU), draw_seed(CPU)
    assert first.dtype == torch.int64
    assert first != second
    torch.set_rng_state(state)
    assert draw_seed(CPU) == first


def test_dropped_weights_keep_their_mean_and_rate_0_draws_nothing() -> None:
    weights = torch.rand(2, 3, 4, 5, dtype=torch.float64)
    before = torch.get_rng_state()
    assert WeightDropout.drawn(0.0, CPU) is None
    assert torch.equal(torch.get_rng_state(), before)
    drawn = WeightDropout.drawn(0.25, CPU)
    assert drawn is not None
    torch.set_rng_state(before)
    assert torch.equal(drawn.apply(weights), drop_by_seed(weights, 0.25, draw_seed(CPU)))
    masks = keep_mask(torch.tensor(1), 0.25, 2, 3, 4, 5)
    assert torch.equal(drop_by_seed(weights, 0.25, torch.tensor(1)), weights * masks * (4 / 3))
    assert kept_scale(0.1) * (1 - threshold(0.1) / 2**16) == pytest.approx(1.0, abs=1e-15)


def test_rate_1_drops_all_and_what_is_no_number_stays_so() -> None:
    weights = torch.full((1, 1, 2, 9), math.nan)
    assert not drop_by_seed(torch.ones_like(weights), 1.0, torch.tensor(0)).any()
    assert drop_by_seed(weights, 0.5, torch.tensor(0)).isnan().all()
