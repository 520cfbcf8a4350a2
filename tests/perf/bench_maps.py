"""Cost of the sparse maps as multiples of torch.softmax: `python tests/perf/bench_maps.py [batch]`.

Each round times every map once, in alternating order, so that what else the machine does hits all alike; printed is the
median over rounds of the ratio to softmax in the same round, in processor time, forward and forward plus backward.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from attnbench.variants.ops.entmax import entmax, entmax15, sparsemax

ROUNDS = 7
MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "softmax again": lambda x: x.softmax(-1),
    "relu": torch.relu,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "entmax 1.25": lambda x: entmax(x, 1.25),
    "entmax 2.5": lambda x: entmax(x, 2.5),
}
try:
    import entmax as package

    MAPS |= {"sparsemax of `entmax`": package.sparsemax, "entmax15 of `entmax`": package.entmax15}
except ImportError:
    pass


def seconds(function: Callable[[Tensor], Tensor], x: Tensor, upstream: Tensor) -> tuple[float, float]:
    x = x.detach().requires_grad_()
    start = time.process_time()
    p = function(x)
    middle = time.process_time()
    p.backward(upstream)
    return middle - start, time.process_time() - start


def main() -> None:
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    x, upstream = torch.randn(2, batch, 2, 512, 512)
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in MAPS}
    for round_number in range(ROUNDS + 1):
        order = list(MAPS) if round_number % 2 else list(reversed(MAPS))
        cost = {name: seconds(MAPS[name], x, upstream) for name in order}
        if round_number:
            for name, (forward, both) in cost.items():
                ratios[name].append((forward / cost["softmax"][0], both / cost["softmax"][1]))
    print(f"{tuple(x.shape)} float32, {torch.get_num_threads()} threads: multiples of softmax, forward | with backward")
    for name, pairs in ratios.items():
        forward, both = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(f"{name:24} {forward:6.2f} | {both:6.2f}")


if __name__ == "__main__":
    main()
