"""Speed of 32 query and 8 key-value heads beside the same by repetition and beside 32 of both, in one interleaved run.

    OMP_NUM_THREADS=1 python tools/grouped_heads.py --seconds 100

Processor time of this process, medians of ratios within rounds, and their quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from attnbench.variants import AttentionShape, Mask, build
from attnbench.variants.contract import repeat_heads

HEADS, SHARED, HEAD_DIM = 32, 8, 64


def works(name: str, mode: str, length: int) -> dict[str, object]:
    """Three ways of one piece of work, by name."""
    queries = 1 if mode == "decode" else length
    draw = torch.Generator().manual_seed(0)
    query, *few = (
        torch.randn(1, heads, size, HEAD_DIM, generator=draw)
        for heads, size in ((HEADS, queries), (SHARED, length), (SHARED, length))
    )
    many = [repeat_heads(x, HEADS).contiguous() for x in few]
    mask = Mask(causal=True)
    shape = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": length, "causal": True}
    grouped, single = (build(name, AttentionShape(kv_heads=each, **shape)) for each in (SHARED, HEADS))

    def run(variant, keys, repeated):
        def once():
            if mode != "step":
                with torch.no_grad():
                    variant(query, *(repeat_heads(x, HEADS) for x in keys) if repeated else keys, mask)
                return
            leaves = [x.detach().requires_grad_() for x in (query, *keys)]
            inputs = [leaves[0], *(repeat_heads(x, HEADS) if repeated else x for x in leaves[1:])]
            torch.autograd.grad(variant(*inputs, mask).sum(), leaves)

        return once

    return {"8": run(grouped, few, False), "repeated": run(single, few, True), "32": run(single, many, False)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", nargs="+", default=["softmax", "rela", "entmax15", "sparsemax", "sigmoid", "local"])
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=100.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    made = {
        (name, mode): works(name, mode, options.length * (4 if mode == "decode" else 1))
        for name in options.names
        for mode in ("forward", "step", "decode")
    }
    for ways in made.values():
        for once in ways.values():
            once()
    ratios = {key: {"repeated": [], "32": []} for key in made}
    ends, rounds = time.monotonic() + options.seconds, 0
    while time.monotonic() < ends:
        for key, ways in made.items():
            seconds = {}
            for way in list(ways) if rounds % 2 else list(ways)[::-1]:
                times = 20 if key[1] == "decode" else 1
                begun = time.process_time()
                for _ in range(times):
                    ways[way]()
                seconds[way] = time.process_time() - begun
            for other in ("repeated", "32"):
                ratios[key][other].append(seconds["8"] / seconds[other])
        rounds += 1
    print(f"{rounds} rounds, length {options.length} (decode {4 * options.length}), torch {torch.__version__}")
    print("| variant | mode | to repetition | to 32 and 32 |\n|---|---|---|---|")
    for (name, mode), of in ratios.items():
        cells = []
        for other in ("repeated", "32"):
            low, middle, high = statistics.quantiles(of[other], n=4) if rounds > 1 else of[other] * 3
            cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
        print(f"| {name} | {mode} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
