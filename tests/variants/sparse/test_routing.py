"""Routing attention against slow loops over its definition."""

from collections import defaultdict

import pytest
import torch
from sparse_cases import layer_norm, padded_mask, routing, shape, tensors

from attnbench.bench.core.errors import SelectionError, Unsupported
from attnbench.variants.contract import Mask
from attnbench.variants.sparse.routing import Routing

FORMS = ["paper", "strict"]


def softmax_over(variant, query, keys, ranks):
    """Weights of one query over its keys, whose ranks differ from its own by `ranks`."""
    scores = []
    for key, rank in zip(keys, ranks, strict=True):
        vector = key if variant.positions is None else key + variant.positions.key_table[variant.positions.reach + rank]
        scores.append(variant.scale * (query @ vector))
    return torch.stack(scores).softmax(0)


def value_of(variant, value, rank):
    return value if variant.positions is None else value + variant.positions.value_table[variant.positions.reach + rank]


def slow_paper(variant, query, key, value, valid, causal):
    """Output and weights, cluster by cluster and token by token."""
    batch, heads, length, width = query.shape
    key = query if variant.share_qk else key
    output = torch.zeros(batch, heads, length, width, dtype=torch.float64)
    weights = torch.zeros(batch, heads, length, length, dtype=torch.float64)
    for b in range(batch):
        real = [i for i in range(length) if valid is None or valid[b, i]]
        for h in range(heads):
            q, k = ({i: layer_norm(x[b, h, i]) for i in real} for x in (query, key))
            times = defaultdict(int)
            for mean in variant.centroids.mean[h]:
                chosen = []
                for side in (q, k):
                    near = sorted(real, key=lambda i, side=side: -float(side[i] @ mean))
                    chosen.append(sorted(near[: variant.window]))
                for query_rank, i in enumerate(chosen[0]):
                    seen = [(r, j) for r, j in enumerate(chosen[1]) if j <= i or not causal]
                    if variant.suppress_self and any(j != i for _, j in seen):
                        seen = [(r, j) for r, j in seen if j != i]
                    if not seen:
                        continue
                    times[i] += 1
                    ranks = [r - query_rank for r, _ in seen]
                    p = softmax_over(variant, q[i], [k[j] for _, j in seen], ranks)
                    for weight, rank, (_, j) in zip(p, ranks, seen, strict=True):
                        weights[b, h, i, j] += weight
                        output[b, h, i] += weight * value_of(variant, value[b, h, j], rank)
            for i, count in times.items():
                output[b, h, i] /= count
                weights[b, h, i] /= count
    return output, weights


def slow_strict(variant, query, key, value, valid, causal):
    """The last `window` tokens of the query's cluster, itself included; also the next ones where not causal."""
    batch, heads, length, width = query.shape
    key = query if variant.share_qk else key
    output = torch.zeros(batch, heads, length, width, dtype=torch.float64)
    weights = torch.zeros(batch, heads, length, length, dtype=torch.float64)
    for b in range(batch):
        real = [i for i in range(length) if valid is None or valid[b, i]]
        for h in range(heads):
            cluster = {i: int((variant.centroids.mean[h] @ layer_norm(query[b, h, i])).argmax()) for i in real}
            for i in real:
                past = [j for j in real if j <= i and cluster[j] == cluster[i]][-variant.window :]
                future = [j for j in real if j > i and cluster[j] == cluster[i]][: variant.window - 1]
                seen = past if causal else past + future
                ranks = [r - len(past) + 1 for r in range(len(seen))]
                if variant.suppress_self and len(seen) > 1:
                    seen, ranks = zip(*((j, r) for j, r in zip(seen, ranks, strict=True) if j != i), strict=True)
                q = layer_norm(query[b, h, i])
                p = softmax_over(variant, q, [layer_norm(key[b, h, j]) for j in seen], ranks)
                for weight, rank, j in zip(p, ranks, seen, strict=True):
                    weights[b, h, i, j] = weight
                    output[b, h, i] += weight * value_of(variant, value[b, h, j], rank)
    return output, weights


SLOW = {"paper": slow_paper, "strict": slow_strict}


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, {"share_qk": True, "suppress_self": True, "scale": 0.5}])
def test_equals_the_definition_in_loops(form, causal, relative, options):
    variant = routing(form=form, causal=causal, clusters=3, window=5, relative=relative, **options)
    for length in (1, 2, 6, 17):
        query, key, value = tensors(length)
        for mask in (Mask(None, causal), padded_mask(length, causal)):
            output, weights = SLOW[form](variant, query, key, value, mask.valid, causal)
            real = torch.ones(3, length, dtype=torch.bool) if mask.valid is None else mask.valid
            real = real[:, None, :, None].expand_as(output)
            torch.testing.assert_close(variant(query, key, value, mask)[real], output[real], atol=1e-11, rtol=0)
            torch.testing.assert_close(variant.weights(query, key, mask), weights, atol=1e-11, rtol=0)
            if length > 6:
                rows = slice(3, 6)
                torch.testing.assert_close(variant.weights(query, key, mask, rows), weights[:, :, rows])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
def test_density_bounds_the_share_of_pairs_that_get_weight(form, causal):
    """At most, since clusters overlap or are small; reached where they do not (one cluster)."""
    for clusters, window in ((1, 7), (4, 6)):
        variant = routing(form=form, clusters=clusters, window=window)
        query, key, _ = tensors(40)
        share_qk = key if clusters > 1 else query
        nonzero = (variant.weights(query, share_qk, Mask(None, causal)) > 0).sum((-1, -2)).double()
        share = nonzero / (40 * 41 / 2 if causal else 40 * 40)
        density = variant.density(shape(causal=causal))
        assert (share <= density + 1e-12).all()
        if clusters == 1:
            torch.testing.assert_close(share, torch.full_like(share, density))


@pytest.mark.parametrize("form", FORMS)
def test_defaults_follow_from_the_length_and_work_from_length_one(form):
    assert [(v.clusters, v.window) for v in (Routing(shape(n), form=form) for n in (4096, 1000, 2, 1))] == [
        (64, 64),
        (31, 32),
        (2, 1),
        (1, 1),
    ]
    assert Routing(shape(8192), clusters=16).window == 512
    query, key, value = tensors(1, dtype=torch.float32)
    variant = Routing(shape(1), form=form, relative=False)
    torch.testing.assert_close(variant(query, key, value, Mask(causal=True)), value)


def test_what_cannot_be_is_refused_with_the_reason():
    with pytest.raises(SelectionError, match=r"max_relative of at least 8 \(the cluster window of 8\), got 7"):
        Routing(shape(), window=8, max_relative=7)
    with pytest.raises(SelectionError, match="decay in"):
        Routing(shape(), decay=1.0)
    with pytest.raises(SelectionError, match="expected clusters of at least 1"):
        Routing(shape(), clusters=0)
    query, key, value = tensors(6)
    with pytest.raises(Unsupported, match="one sequence: expected 6 queries, got 2"):
        routing()(query[:, :, :2], key, value, Mask())
    with pytest.raises(Unsupported, match="cannot decode"):
        routing(causal=True).step(query[:, :, :1], key[:, :, :1], value[:, :, :1])
    assert Routing(shape(), share_qk=True).ignores == {"key"}


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
