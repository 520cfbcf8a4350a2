"""One point of a sweep in each mode and at each level, against the same work written out."""

import math

import pytest
import torch
from torch.nn import functional as F

from attnbench.bench.core.errors import SelectionError, Unsupported
from attnbench.bench.core.spec import Spec
from attnbench.bench.gate.build import build_checked
from attnbench.bench.measure.memory import peak_bytes
from attnbench.bench.run.lanes.timing_record import memory
from attnbench.bench.run.workloads.sweep_point import DECODED, decoded, point_of

CPU = torch.device("cpu")
SMALL = "length=192,heads=2,head_dim=16"


@pytest.fixture(autouse=True)
def ungated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate has tests of its own, and takes seconds."""
    monkeypatch.setattr("attnbench.bench.gate.build.quick_gate", lambda spec, shape, **_: None)


def subject(task: str, variant: str = "softmax"):
    setup = point_of(task, CPU)
    return setup, setup.workload(Spec.parse(variant))


def test_a_forward_pass_is_attention_of_the_drawn_heads() -> None:
    setup, one = subject(f"sweep[{SMALL},mode=forward,causal=true]")
    assert torch.allclose(one.work(), F.scaled_dot_product_attention(*setup.heads, is_causal=True), atol=1e-6)


def test_a_step_gives_the_gradients_of_heads_and_parameters() -> None:
    setup, one = subject(f"sweep[{SMALL}]", "general")
    found = one.work()
    leaves = [x.detach().clone().requires_grad_() for x in setup.heads]
    (one.variants[0](*leaves, setup.mask) * setup.grad_output).sum().backward()
    assert len(found) == 3 + len(list(one.variants[0].parameters()))
    for gradient, leaf in zip(found[:3], leaves, strict=True):
        assert torch.allclose(gradient, leaf.grad, atol=1e-5)


def test_padded_keys_are_hidden() -> None:
    setup, one = subject(f"sweep[{SMALL},mode=forward,padding=0.25]")
    query, key, value = setup.heads
    expected = F.scaled_dot_product_attention(query, key[:, :, :144], value[:, :, :144])
    assert torch.allclose(one.work()[:, :, :144], expected[:, :, :144], atol=1e-6)
    assert (setup.real, setup.padded) == (144, 192)


def test_decoding_makes_the_last_tokens_again_and_again_from_the_same_state() -> None:
    setup, one = subject(f"sweep[{SMALL},mode=decode]")
    for _ in range(2):
        one.once()
        cache = one.state[0]
        assert cache.length == 192
        assert torch.equal(cache.key[:, :, :192], setup.heads[1])
    assert setup.units == DECODED
    (held,) = one.attention()
    # keys and values in buffers that double: 256 places for 192 tokens
    assert (held.name, held.value) == ("state_bytes", 2 * 2 * 16 * 4 * 256)


def test_the_state_of_linear_attention_does_not_grow() -> None:
    sizes = [next(subject(f"sweep[length={n},heads=2,head_dim=16,mode=decode]", "linear")[1].attention()).value
             for n in (64, 256)]  # fmt: skip
    assert sizes[0] == sizes[1] < 2 * 2 * 16 * 4 * 64


def test_a_state_of_keys_and_values_alone_is_filled_without_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    _, one = subject(f"sweep[{SMALL},mode=decode]")
    one.prepare()
    stepped = decoded(one.variants[0], one.inputs, None, range(192 - DECODED))
    assert [(x.key.shape, x.length) for x in one.state] == [(stepped.key.shape, stepped.length)]
    assert all(
        torch.equal(x[:, :, : stepped.length], y[:, :, : stepped.length])
        for x, y in zip((one.state[0].key, one.state[0].value), (stepped.key, stepped.value), strict=True)
    )
    monkeypatch.setattr(type(one.variants[0]), "forward", lambda *_: pytest.fail("it attends"))
    subject(f"sweep[{SMALL},mode=decode]")


def test_what_cannot_decode_is_unsupported() -> None:
    with pytest.raises(Unsupported):
        subject(f"sweep[{SMALL},mode=decode]", "linformer")


@pytest.mark.parametrize("level", ["block", "model"])
@pytest.mark.parametrize("mode", ["forward", "step"])
def test_blocks_and_models_run_and_keep_their_parameters(level: str, mode: str) -> None:
    _, one = subject(f"sweep[{SMALL},level={level},mode={mode}]", "additive")
    before = [p.detach().clone() for p in one.owners[0].parameters()]
    one.work()
    assert all(torch.equal(a, b) for a, b in zip(before, one.owners[0].parameters(), strict=True))
    whole, own = one.parameters
    assert whole > own > 0


def test_a_layer_is_attention_between_projections_with_positions_where_asked() -> None:
    for positions in ("learned", "rope"):
        setup, one = subject(f"sweep[{SMALL},level=layer,causal=true,mode=forward,positions={positions}]")
        (layer,), states = one.owners[:1], setup.states
        query, key, value = layer.project_in(states).view(1, 192, 3, 2, 16).permute(2, 0, 3, 1, 4)
        if positions == "rope":
            # pairs of dimensions as complex numbers, turned by an angle of the position
            angles = torch.arange(192)[:, None] * 10_000 ** -(torch.arange(8) / 8)
            turn = torch.polar(torch.ones_like(angles), angles)
            query, key = (_turned(x, turn) for x in (query, key))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        expected = layer.project_out(attended.transpose(1, 2).flatten(2))
        assert torch.allclose(one.work(), expected, atol=1e-5)
        assert one.parameters == (4 * 32 * 33, 0)


def _turned(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    even, odd = torch.view_as_real(torch.complex(x[..., ::2], x[..., 1::2]) * turn).unbind(-1)
    return torch.stack((even, odd), -1).flatten(-2)


def test_a_layer_of_others_is_timed_in_the_place_of_the_projections(tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nclass Mine(torch.nn.Module):\n    def __init__(self, dim):\n        super().__init__()\n"
        "        self.inside = torch.nn.Linear(dim, dim)\n    def forward(self, x):\n        return self.inside(x)\n"
    )
    setup, one = subject(f"sweep[{SMALL},level=layer,causal=true,mode=forward]", f"{tmp_path / 'mine.py'}:Mine")
    inside = one.variants[0].module.inside
    assert torch.allclose(one.work(), inside(setup.states), atol=1e-6)
    assert one.parameters == (32 * 33, -3 * 32 * 33)


def test_a_layer_that_looks_back_alone_is_not_timed_beside_softmax_that_looks_both_ways(tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch.nn.functional import scaled_dot_product_attention as attention\n"
        "def mine(q, k, v):\n    return attention(q, k, v, is_causal=True)\n"
    )
    name = f"{tmp_path / 'mine.py'}:mine"
    with pytest.raises(Unsupported, match=r"it looks back alone, .*sweep\[causal=true\]"):
        subject(f"sweep[{SMALL},mode=forward]", name)
    assert subject(f"sweep[{SMALL},causal=true,mode=forward]", name)[1].work() is not None


def test_rotary_positions_need_projections() -> None:
    with pytest.raises(SelectionError, match="level=layer"):
        point_of("sweep[positions=rope]", CPU)


def test_two_variants_share_all_that_is_shared() -> None:
    setup = point_of(f"sweep[{SMALL},level=block]", CPU)
    one, other = (setup.workload(Spec(name)).owners[0] for name in ("softmax", "additive"))
    assert torch.equal(one.attention.project_in.weight, other.attention.project_in.weight)


def test_bfloat16_reaches_the_variant() -> None:
    for level in ("attention", "block"):
        _, one = subject(f"sweep[{SMALL},level={level},mode=forward,dtype=bfloat16]")
        seen: list[torch.dtype] = []
        one.variants[0].register_forward_hook(lambda module, given, output, seen=seen: seen.append(given[0].dtype))
        one.work()
        assert seen == [torch.bfloat16]


def test_naive_attention_at_2048_accounts_for_its_scores_within_two_percent() -> None:
    setup, one = subject("sweep[length=2048,heads=1,head_dim=32]", "softmax[impl=eager]")
    scores = 2048 * 2048 * 4
    # in the softmax's backward pass the weights, their gradient and that of the scores are alive
    assert 3 * scores <= peak_bytes(one.work, CPU) <= 1.02 * 3 * scores
    inputs = 3 * 2048 * 32 * 4
    held = next(m for m in memory(setup, one) if m.name == "peak_bytes").where["held"]
    assert held == inputs


def test_planted_memory_is_found_within_two_percent() -> None:
    setup, one = subject(f"sweep[{SMALL},mode=forward]")
    plain = next(memory(setup, one)).value
    planted, work = 64 * 2**20, one.work

    def greedy() -> object:
        block = torch.empty(planted, dtype=torch.uint8)
        found = work()
        del block
        return found

    one.work = greedy
    assert next(memory(setup, one)).value - plain == pytest.approx(planted, rel=0.02)


def weights(task: str, variant: str) -> dict[object, float]:
    _, one = subject(task, variant)
    return {m.where.get("block", m.name): m.value for m in one.attention() if "head" not in m.where}


def test_what_is_fed_in_decides_which_blocks_are_empty() -> None:
    iid, clustered = (weights(f"sweep[length=1024,heads=2,input={kind}]", "entmax15[impl=eager]")
                      for kind in ("iid", "clustered"))  # fmt: skip
    assert iid["sparsity"] > 0.9 and iid[64] < 0.01
    assert clustered["sparsity"] > 0.9 and clustered[64] > 0.5
    assert clustered[16] >= clustered[64] >= clustered[128]


def test_a_pattern_realises_the_density_that_it_declares() -> None:
    _, one = subject("sweep[length=1024,heads=2]", "local[query_block=64,flange=64]")
    found = {m.name: m.value for m in one.attention() if "head" not in m.where and "block" not in m.where}
    variant = one.variants[0]
    assert 1 - found["sparsity"] == pytest.approx(variant.density(variant.shape), rel=1e-6)


def test_softmax_leaves_nothing_empty() -> None:
    found = weights(f"sweep[{SMALL},causal=true]", "softmax")
    assert found["sparsity"] == 0 and found[16] == 0 and found["null_rate"] == 0
    assert math.isclose(found["entropy"], 1, abs_tol=0.2)


def test_what_is_no_sweep_is_refused() -> None:
    with pytest.raises(SelectionError, match="expected a sweep"):
        point_of("lra-text", CPU)


def test_the_gate_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    asked: list[object] = []
    monkeypatch.setattr("attnbench.bench.gate.build.quick_gate", lambda spec, shape, **_: asked.append(shape))
    setup = point_of(f"sweep[{SMALL},causal=true]", CPU)
    build_checked(Spec("softmax"))
    setup.workload(Spec("softmax"))
    assert [(shape.max_length, shape.causal, shape.head_dim) for shape in asked] == [(192, True, 16)]
