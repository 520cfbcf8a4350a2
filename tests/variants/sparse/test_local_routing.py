"""Local and routing heads side by side are what each of them is alone."""

import pytest
import torch
from sparse_cases import padded_mask, shape, tensors

from attnbench.bench.core.errors import SelectionError
from attnbench.variants.contract import Mask
from attnbench.variants.sparse.local import Local
from attnbench.variants.sparse.local_routing import LocalRouting
from attnbench.variants.sparse.routing import Routing

FORMS = ["paper", "strict"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
def test_local_routing_is_local_on_one_half_of_the_heads_and_routing_on_the_other(form, causal):
    torch.manual_seed(0)
    variant = LocalRouting(shape(heads=5, causal=causal), form=form, query_block=4, flange=8, clusters=3, window=5)
    variant = variant.double().eval()
    query, key, value = tensors(23, heads=5)
    mask = padded_mask(23, causal)
    near = variant.local(query[:, :3], key[:, :3], value[:, :3], mask)
    far = variant.routing(query[:, 3:], key[:, 3:], value[:, 3:], mask)
    assert isinstance(variant.local, Local) and isinstance(variant.routing, Routing)
    torch.testing.assert_close(variant(query, key, value, mask), torch.cat([near, far], 1))
    weights = variant.weights(query, key, mask, slice(2, 9))
    torch.testing.assert_close(weights[:, :3], variant.local.weights(query[:, :3], key[:, :3], mask, slice(2, 9)))
    torch.testing.assert_close(weights[:, 3:], variant.routing.weights(query[:, 3:], key[:, 3:], mask, slice(2, 9)))
    assert variant.causality == ("selection" if form == "paper" else "strict")
    whole = shape(heads=5, causal=causal)
    assert variant.density(whole) == pytest.approx(
        (3 * variant.local.density(whole) + 2 * variant.routing.density(whole)) / 5
    )


def test_local_routing_decodes_in_its_strict_form():
    torch.manual_seed(0)
    variant = LocalRouting(shape(causal=True), form="strict", query_block=4, flange=3, clusters=3, window=5).double()
    query, key, value = tensors(19)
    parallel, state = variant(query, key, value, Mask(causal=True)), None
    for at in range(19):
        one = slice(at, at + 1)
        output, state = variant.step(query[:, :, one], key[:, :, one], value[:, :, one], state)
        torch.testing.assert_close(output, parallel[:, :, one], atol=1e-12, rtol=0)
    assert variant.decodes and variant.state_bytes(shape(19, causal=True)) == 2 * 4 * 7 * 4 + 19 * (2 * 4 * 4 + 8)


def test_layers_below_skip_first_are_all_local():
    first, second = (LocalRouting(shape(layer=layer), skip_first=1) for layer in (0, 1))
    assert first.routing is None and first.split == 2 and first.causality == "strict" and first.decodes
    assert second.routing is not None and second.causality == "selection" and not second.decodes
    assert first.auxiliary_loss() is None
    first.after_step()
    query, key, value = tensors(9, dtype=torch.float32)
    assert torch.equal(first(query, key, value, Mask()), first.local(query, key, value, Mask()))
    second.train()(query, key, value, Mask())
    assert second.auxiliary_loss() > 0
    mean = second.routing.centroids.mean.clone()
    second.after_step()
    assert not torch.equal(second.routing.centroids.mean, mean)


def test_local_routing_refuses_one_head_and_a_short_max_relative():
    assert LocalRouting(shape(heads=1)).supports(shape(heads=1)).startswith("it needs at least two heads")
    with pytest.raises(SelectionError, match="at least 12"):
        LocalRouting(shape(), query_block=8, flange=4, window=4, max_relative=11)
    with pytest.raises(SelectionError, match="at least 16"):
        LocalRouting(shape(), query_block=8, flange=4, window=16, max_relative=15)
