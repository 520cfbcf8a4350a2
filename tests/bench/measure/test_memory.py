"""Exact bytes: checked against tensors of known size."""

import torch

from attnbench.bench.measure.memory import held_bytes, peak_bytes

CPU = torch.device("cpu")
MIB = 2**20


def test_naive_attention_at_2048_peaks_at_three_score_tensors() -> None:
    query, key, value = (torch.randn(1, 2, 2048, 64, requires_grad=True) for _ in range(3))
    scores = 2 * 2048 * 2048 * 4

    def work() -> None:
        weights = (query @ key.transpose(-1, -2) / 8).softmax(-1)
        (weights @ value).sum().backward()

    # in the softmax's backward pass the weights, their gradient and that of the scores are alive
    assert 3 * scores <= peak_bytes(work, CPU) <= 1.02 * 3 * scores


def test_planted_allocations_are_seen_to_the_byte_and_freed_ones_do_not_add_up() -> None:
    def work() -> None:
        for _ in range(3):
            block = torch.empty(5 * MIB, dtype=torch.uint8)
            del block
        both = torch.empty(3 * MIB, dtype=torch.uint8), torch.empty(4 * MIB, dtype=torch.uint8)
        del both

    assert peak_bytes(work, CPU) == 7 * MIB


def test_what_is_held_between_steps_is_counted_once() -> None:
    layer = torch.nn.Linear(100, 50, bias=False)
    twin = torch.nn.Linear(100, 50, bias=False)
    twin.weight = layer.weight
    both = torch.nn.ModuleList([layer, twin])
    assert held_bytes(both) == 100 * 50 * 4
    optimiser = torch.optim.AdamW(both.parameters())
    layer(torch.ones(1, 100)).sum().backward()
    optimiser.step()
    weight = 100 * 50 * 4
    assert 4 * weight <= held_bytes(both, optimiser) <= 4 * weight + 64
