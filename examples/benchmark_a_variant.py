"""Write a variant and benchmark it from Python: check it, train and time it beside softmax, print the boards.

    python examples/benchmark_a_variant.py --tasks 'lra-listops,sweep[length=128,256]' --preset smoke

Workers import this file again, so everything that runs stands in `main`.
"""

from __future__ import annotations

import argparse
import logging
import sys

from torch import Tensor

import attnbench
from attnbench.variants.contract import masked_softmax, score_map


@score_map(equation="P' = relu(softmax(S) - floor / keys); P = P' / sum P'; O = P V", paper="not published")
def floored(scores: Tensor, allowed: Tensor | None, *, floor: float = 0.5) -> Tensor:
    """Softmax attention whose smallest weights are exactly zero.

    scores: (batch, heads, queries, keys); allowed: Boolean, broadcastable to them, or None where every key is visible.
    """
    keys = scores.shape[-1] if allowed is None else allowed.sum(-1, keepdim=True, dtype=scores.dtype).clamp(min=1)
    kept = (masked_softmax(scores, allowed) - floor / keys).relu()
    return kept / kept.sum(-1, keepdim=True).clamp(min=1e-9)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="lra-listops,sweep[length=128,256]")
    parser.add_argument("--preset", default="smoke")
    parser.add_argument("--results", default="results/example")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    attnbench.register("floored", floored)
    report = attnbench.check("floored")
    print(report)
    if not report:
        return 1
    found = attnbench.run("floored", arguments.tasks, preset=arguments.preset, results=arguments.results)
    for record in found.failures:
        print(f"{record.cell}: {record.outcome}: {record.reason}")
    for board in attnbench.boards(found):
        print(f"\n{board.title}\n{board.to_pandas().to_string()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
