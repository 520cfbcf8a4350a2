"""Exact bytes: checked against tensors of known size."""

import json
import subprocess
import sys

import pytest
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


IN_A_HEAP_WITH_ROOMS = r"""
import json, random, re
import torch
from attnbench.bench.measure.memory import mapped_alone

def step():
    # at most two blocks of 4 MiB at a time, of another size at each call
    draw, held = random.Random(0), None
    for _ in range(64):
        held = torch.ones(draw.randrange(2**18, 2**20))

def read(name):
    with open(f"/proc/self/{name}") as file:
        return file.read()

def touched():
    for what in "15":
        with open("/proc/self/clear_refs", "w") as file:
            file.write(what)
    before = int(re.search(r"VmRSS:\s+(\d+)", read("status"))[1])
    step()
    status = dict(re.findall(r"(Vm\w+):\s+(\d+)", read("status")))
    pages = re.findall(r"^\w+-\w+ .w(?s:.*?)^Referenced: +(\d+)", read("smaps"), re.MULTILINE)
    return (sum(map(int, pages)) + max(0, int(status["VmHWM"]) - max(before, int(status["VmRSS"])))) / 1024

torch.empty(2**23 - 4).fill_(1)  # freed: from now on the heap takes blocks of up to 32 MiB
rooms = [torch.ones(2**19) for _ in range(200)]
walls = rooms[::2]
del rooms
step()
usual = touched()
with mapped_alone():
    step()
    alone = touched()
step()
print(json.dumps([usual, alone, touched()]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's count of pages")
def test_pages_that_a_step_touches_are_the_memory_that_it_needs_whatever_rooms_the_heap_has() -> None:
    ran = subprocess.run([sys.executable, "-c", IN_A_HEAP_WITH_ROOMS], capture_output=True, text=True, check=True)
    usual, alone, after = json.loads(ran.stdout)
    assert alone <= 12 < min(usual, after)
