"""The model of language: causal with every variant, tied, and the same token by token as all at once."""

import numpy as np
import pytest
import torch

from attnbench.bench.models.decoder import Decoder
from attnbench.tasks.problems.language_modeling import Language, LanguageRecipe
from attnbench.variants import build

SHAPE = {"layers": 3, "width": 16, "heads": 2, "feed_forward": 32, "length": 24, "stride": 12}
STEPWISE = [
    "softmax", "rela", "entmax15", "additive-lm", "additive-lm[kernel_size=3]", "additive-lm[window=2]",
    "local[query_block=4,flange=4]", "local[query_block=4,flange=4,relative=true]", "linear", "relative",
    "gated-linear", "delta[decay=scalar]", "gate+rela", "delta:2//gate[by=head]+softmax",
    "path[forget=true]//softmax", "mla//softmax", "retention//softmax", "hgrn2//softmax", "delta-product//softmax",
    "gated-delta-2//softmax", "log-linear//softmax", "log-linear[of=delta]//softmax", "rwkv7//softmax",
    "mamba3//softmax", "ttt[batch=8]//softmax",
]  # fmt: skip


def decoder(variant: str = "softmax", seed: int = 0, vocabulary: int = 257, **recipe: object) -> Decoder:
    torch.manual_seed(7)
    settings = LanguageRecipe(**SHAPE | recipe)  # type: ignore[arg-type]
    model = Decoder(Language(vocabulary=vocabulary), settings, lambda shape: build(variant, shape), seed)
    # larger than at the start, so that a leak would show
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(1, 257, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("variant", STEPWISE)
def test_token_by_token_gives_what_the_whole_sequence_gives(variant: str) -> None:
    model, tokens = decoder(variant).double(), ids(2, 24)
    state, found = model.begin(), []
    with torch.no_grad():
        for column in tokens.unbind(1):
            logits, state = model.step(column, state)
            found.append(logits)
        torch.testing.assert_close(torch.stack(found, dim=1), model(tokens), rtol=1e-10, atol=1e-10)
    assert state.seen == 24


def test_the_output_is_the_embedding_and_padding_is_no_answer() -> None:
    model, tokens = decoder(), ids(1, 5)
    seen: list[torch.Tensor] = []
    model.norm.register_forward_hook(lambda module, arguments, output: seen.append(output))
    logits = model(tokens)
    torch.testing.assert_close(logits, seen[0] @ model.embedding.weight[1:].T)
    assert logits.shape == (1, 5, 256)
    names = {name for name, _ in model.named_parameters() if not name.startswith("blocks.")}
    assert names == {"embedding.weight", "positions", "norm.weight", "norm.bias"}


def test_the_loss_is_that_of_the_counted_targets_and_smoothed_in_training_alone() -> None:
    model, tokens = decoder(label_smoothing=0.1, vocabulary=9), ids(2, 1, 6) % 8 + 1
    targets = ids(2, 6) % 8 + 1
    targets[0, :4] = 0
    logits = model(tokens[:, 0]).double()
    chances = logits.softmax(-1).log()
    rows, places = np.nonzero(targets.numpy())
    plain = torch.stack([-chances[r, p, targets[r, p] - 1] for r, p in zip(rows, places, strict=True)])
    even = torch.stack([-chances[r, p].mean() for r, p in zip(rows, places, strict=True)])
    batch = (tokens, torch.full((2, 1), 6), targets)
    assert model.loss(batch).item() == pytest.approx(plain.mean().item(), rel=1e-5)
    model.train()
    assert model.loss(batch).item() == pytest.approx((0.9 * plain + 0.1 * even).mean().item(), rel=1e-5)


OWN_POSITIONS = ["relative", "local[query_block=24,relative=true]", "local-routing[query_block=24]", "path", "mla"]


@pytest.mark.parametrize("variant", OWN_POSITIONS)
def test_a_variant_with_positions_of_its_own_gets_no_table_and_still_tells_them(variant: str) -> None:
    model = decoder(variant, layers=1)
    assert model.positions is None
    tokens = ids(1, 24)
    swapped = tokens.clone()
    swapped[:, [5, 9]] = tokens[:, [9, 5]]
    with torch.no_grad():
        gap = (model(tokens) - model(swapped))[0, -1].abs().max()
    assert gap > 1e-4


@pytest.mark.parametrize(
    "variant", ["routing[relative=true]", "local[query_block=24]", "local-routing[relative=false]"]
)
def test_a_variant_that_cannot_tell_distances_keeps_the_table(variant: str) -> None:
    table = decoder(variant).positions
    assert table is not None and table.shape == (24, 16)


def test_the_table_that_is_not_used_moves_no_other_number() -> None:
    settings = LanguageRecipe(**SHAPE)  # type: ignore[arg-type]
    softmax, relative = (
        Decoder(Language(), settings, lambda shape, name=name: build(name, shape), 0)
        for name in ("softmax", "relative")
    )
    own = dict(relative.named_parameters())
    shared = {name: value for name, value in softmax.named_parameters() if name != "positions"}
    assert shared.keys() < own.keys() and "positions" not in own
    for name, value in shared.items():
        assert torch.equal(value, own[name]), name
