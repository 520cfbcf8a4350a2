"""Routing attention against the package `routing-transformer`, where the two are one function."""

import pytest
import torch
from sparse_cases import routing, tensors

from attnbench.variants.contract import Mask


def theirs_with_our_centroids(variant, **settings):
    library = pytest.importorskip("routing_transformer", reason="the package routing-transformer is the oracle")
    theirs = library.KmeansAttention(
        variant.clusters, variant.window, num_heads=2, head_dim=4, num_mem_kv=0, **settings
    ).double()
    theirs.kmeans.means.copy_(variant.centroids.mean)
    theirs.kmeans.initted.fill_(True)
    return theirs.eval()


def test_agrees_with_routing_transformer_on_normalised_inputs_of_their_scale():
    """Theirs scales by head_dim^-0.5 and does not normalise what is not shared; so it gets normalised inputs."""
    variant = routing(form="paper", clusters=3, window=9, relative=False, scale=4**-0.5)
    theirs = theirs_with_our_centroids(variant)
    query, key, value = tensors(40)
    query, key = (torch.nn.functional.layer_norm(x, (4,), eps=1e-6) for x in (query, key))
    expected, _ = theirs(query, key, value)
    # theirs divides by the count + 1e-5, and a second layer norm moves ours by 1e-6
    torch.testing.assert_close(variant(query, key, value, Mask()), expected, atol=3e-5, rtol=0)


def test_agrees_with_causal_routing_transformer_of_shared_keys_of_unit_norm_that_suppress_themselves():
    """Theirs normalises shared keys to norm 1, ours to norm sqrt(d), so the scale is 1/d; both suppress self."""
    variant = routing(
        form="paper", causal=True, clusters=3, window=9, relative=False, scale=0.25, share_qk=True, suppress_self=True
    )
    theirs = theirs_with_our_centroids(variant, causal=True, shared_qk=True)
    query, _, value = tensors(40)
    query = torch.nn.functional.layer_norm(query, (4,), eps=1e-6)
    expected, _ = theirs(query, query, value)
    torch.testing.assert_close(variant(query, query, value, Mask(causal=True)), expected, atol=3e-5, rtol=0)
