"""Centroids of routing attention: moving averages and the pull of tokens to them, token by token."""

import copy

import pytest
import torch
from sparse_cases import layer_norm, padded_mask, shape, tensors

from attnbench.variants.contract import Mask
from attnbench.variants.sparse.routing import Routing


def test_centroids_follow_the_moving_averages_of_real_tokens_and_no_gradient():
    torch.manual_seed(0)
    variant = Routing(shape(), clusters=3, window=5, decay=0.9).double().train()
    assert not any(p.shape[-2:] == (3, 4) for p in variant.parameters())
    mean = variant.centroids.mean.clone()
    count, total = torch.ones(2, 3, dtype=torch.float64), mean.clone()
    mask = padded_mask(17, False)
    for seed in range(3):
        query, key, value = tensors(17, seed=seed)
        before = variant.centroids.mean.clone()
        variant(query, key, value, mask)
        assert torch.equal(variant.centroids.mean, before)
        variant.after_step()
        seen, sums = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 3, 4, dtype=torch.float64)
        for b, h, i in torch.cartesian_prod(torch.arange(3), torch.arange(2), torch.arange(17)).tolist():
            for x in (query, key):
                if mask.valid[b, i]:
                    token = layer_norm(x[b, h, i])
                    nearest = (mean[h] @ token).argmax()
                    seen[h, nearest] += 1
                    sums[h, nearest] += token
        count, total = 0.9 * count + 0.1 * seen, 0.9 * total + 0.1 * sums
        everything = count.sum(1, keepdim=True)
        mean = total / ((count + 1e-5) / (everything + 3e-5) * everything)[..., None]
        torch.testing.assert_close(variant.centroids.mean, mean)


def test_centroids_stay_in_evaluation_and_through_a_checkpoint():
    torch.manual_seed(0)
    variant = Routing(shape(), clusters=3, window=5).train()
    inputs = tensors(17, dtype=torch.float32)
    variant(*inputs, Mask())
    variant.after_step()
    state = variant.state_dict()
    variant.eval()(*inputs, Mask())
    variant.after_step()
    assert variant.auxiliary_loss() is None
    other = Routing(shape(), clusters=3, window=5)
    other.load_state_dict(state)
    assert torch.equal(other.centroids.mean, variant.centroids.mean)
    assert torch.equal(other.centroids.count, variant.centroids.count)
    variant.train()(*inputs, Mask())
    assert copy.deepcopy(variant).auxiliary_loss() is None


@pytest.mark.parametrize("share_qk", [False, True])
def test_auxiliary_loss_is_the_distance_of_real_tokens_to_their_centroids(share_qk):
    torch.manual_seed(0)
    variant = Routing(shape(), clusters=3, window=5, beta=0.5, share_qk=share_qk).double().train()
    query, key, value = (x.requires_grad_() for x in tensors(11))
    mask = padded_mask(11, False)
    variant(query, key, value, mask)
    expected = 0.0
    for x in (query,) if share_qk else (query, key):
        away = []
        for b, h, i in torch.cartesian_prod(torch.arange(3), torch.arange(2), torch.arange(11)).tolist():
            if mask.valid[b, i]:
                token = layer_norm(x[b, h, i])
                away.append((token - variant.centroids.mean[h][(variant.centroids.mean[h] @ token).argmax()]) ** 2)
        expected = expected + 0.5 * torch.stack(away).mean()
    loss = variant.auxiliary_loss()
    torch.testing.assert_close(loss, expected)
    assert torch.autograd.grad(loss, query)[0].abs().sum() > 0
