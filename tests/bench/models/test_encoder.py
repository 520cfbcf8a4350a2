"""The shared model: same start for all variants, pooling over real tokens, towers, positions."""

import pytest
import torch

from attnbench.bench.models.encoder import Encoder
from attnbench.tasks.contract import Classification, Recipe
from attnbench.variants import build

PROBLEM = Classification(vocabulary=11, classes=3)


def encoder(variant: str = "softmax", seed: int = 0, problem: Classification = PROBLEM, **recipe: object) -> Encoder:
    settings = Recipe(**{"length": 12, "width": 16, "heads": 2, "feed_forward": 32, "dropout": 0.0} | recipe)
    return Encoder(problem, settings, lambda shape: build(variant, shape), seed).eval()


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(1, 11, shape, generator=torch.Generator().manual_seed(0))


def test_variants_of_one_seed_share_their_start() -> None:
    softmax = dict(encoder("softmax").named_parameters())
    general = dict(encoder("general").named_parameters())
    assert softmax.keys() < general.keys()
    for name, value in softmax.items():
        assert torch.equal(value, general[name]), name
    assert not torch.equal(softmax["embedding.weight"], dict(encoder(seed=1).named_parameters())["embedding.weight"])


@pytest.mark.parametrize("pooling", ["mean", "padded_mean", "cls"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
def test_padding_changes_no_logit(pooling: str, positions: str) -> None:
    model = encoder(pooling=pooling, positions=positions)
    tokens, lengths = ids(2, 1, 12), torch.tensor([[5], [12]])
    tokens[0, 0, 5:] = 0
    alone = model(tokens[:1, :, :5], lengths[:1])
    together = model(tokens, lengths)
    torch.testing.assert_close(together[:1], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_tokens_and_positions_start_with_the_same_size(positions: str) -> None:
    model = encoder(positions=positions, width=64, length=256)
    tokens = model.embedding(ids(1, 256)).detach() * model.scale
    assert model.positions is not None
    ratio = float(tokens.std() / model.positions.detach().std())
    assert 0.7 < ratio < 1.6
    # the row of padding stays empty
    assert not model.embedding.weight[0].any()


def test_padded_mean_divides_by_the_length_of_the_preset() -> None:
    tokens, lengths = ids(1, 1, 6), torch.tensor([[6]])
    valid = torch.ones(1, 6, dtype=torch.bool)
    states = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(0))
    mean, padded = (encoder(pooling=pooling)._pool(states, valid) for pooling in ("mean", "padded_mean"))
    torch.testing.assert_close(padded, mean * 6 / 12)
    assert encoder(pooling="padded_mean")(tokens, lengths).shape == (1, 3)


def test_without_positions_order_means_nothing_and_with_them_it_does() -> None:
    tokens, lengths = ids(1, 1, 12), torch.tensor([[12]])
    reversed_tokens = tokens.flip(-1)
    blind = encoder(positions="none")
    torch.testing.assert_close(blind(tokens, lengths), blind(reversed_tokens, lengths))
    for positions in ("learned", "sinusoidal"):
        seeing = encoder(positions=positions)
        assert (seeing(tokens, lengths) - seeing(reversed_tokens, lengths)).abs().max() > 1e-5


def test_sinusoidal_table_is_that_of_the_paper() -> None:
    table = encoder(positions="sinusoidal").positions
    position, pair = 7, 3
    angle = position / 10_000 ** (2 * pair / 16)
    assert table[position, 2 * pair].item() == pytest.approx(torch.tensor(angle).sin().item(), abs=1e-6)
    assert table[position, 2 * pair + 1].item() == pytest.approx(torch.tensor(angle).cos().item(), abs=1e-6)


def test_a_sublayer_that_a_variant_brings_moves_no_shared_number() -> None:
    plain = dict(encoder("softmax").named_parameters())
    brought = dict(encoder("additive-lm[kernel_size=3]", layers=3).named_parameters())
    more = dict(encoder("softmax", layers=3).named_parameters())
    assert any("before." in name for name in brought)
    assert torch.equal(plain["embedding.weight"], brought["embedding.weight"])
    for name, value in more.items():
        assert torch.equal(value, brought[name]), name
    whole, extra = encoder("additive-lm[kernel_size=3]", layers=3).parameter_counts()
    assert whole - extra == encoder("softmax", layers=3).parameter_counts()[0]
