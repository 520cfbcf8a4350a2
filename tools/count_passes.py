"""Passes and tiles of the thresholds in `variants/kernels/triton/support.py`, counted on a CPU by the same steps.

    python tools/count_passes.py [--lengths 4096,16384] [--inputs iid,clustered,local] [--maps 1.5,2] [--steps 4]

Scores are float32 products of bfloat16 queries and keys, one head of `tasks/sweep_inputs`, causal. For each start of
Newton's method: products of queries and keys in all passes, as a multiple of one dense pass; Newton passes of a tile of
rows, in the mean; and the share of tiles that its first, its second and the last list names, the last of which the
output and the backward pass visit. `maximum` starts at the maximum less 1 and lists in the dense pass the tiles near
the running maximum, as the kernels did; `columns` starts from the threshold of the column maxima that a tile of
registers holds, and its first Newton pass makes the list.
"""

import argparse
import itertools
import math

import torch

from attnbench.tasks.sweep_inputs import draw_heads

ROWS, COLUMNS, HEAD_DIM = 128, 64, 64
# those of `support.py`, in bfloat16
MOST_PASSES, TOLERANCE = 16, 2e-5


def rise(z, threshold, alpha):
    """The step of Newton's method of each row, and the weights' factors; z: scores times alpha - 1 less the maximum."""
    above = (z - threshold[:, None]).clamp(min=0)
    if alpha == 2.0:
        factors = (above > 0).float()
        return (above.sum(1) - 1.0) / factors.sum(1), factors
    norm = above.square().sum(1).sqrt()
    return (norm - 1.0) * norm / above.sum(1), above


def threshold_of_columns(z, alpha, steps):
    """The threshold of the column maxima, a lower bound of the row's since these are some of its keys."""
    largest = torch.nn.functional.pad(z, (0, -z.shape[1] % COLUMNS), value=-math.inf)
    largest = largest.unflatten(1, (-1, COLUMNS)).amax(1)
    threshold = torch.full(z.shape[:1], -1.0)
    for _ in range(steps):
        threshold = threshold + rise(largest, threshold, alpha)[0]
    return threshold


def count(kind, length, alpha, start, steps, tolerance):
    """Sums over the row tiles: products, Newton passes, tiles of three lists, and tiles that touch the mask."""
    drawn = draw_heads(kind, 1, 1, length, HEAD_DIM, seed=0)
    query, key = (torch.from_numpy(x[0, 0]).bfloat16().float() for x in (drawn.query, drawn.key))
    products = passes = first_list = second_list = last_list = tiles = 0
    for first in range(0, length, ROWS):
        seen = first + ROWS
        scores = query[first:seen] @ key[:seen].T * (HEAD_DIM**-0.5 * (alpha - 1.0))
        rows = torch.arange(first, seen)[:, None]
        scores.masked_fill_(torch.arange(seen)[None] > rows, -math.inf)
        z = scores - scores.amax(1, keepdim=True)
        dense = seen // COLUMNS
        listed = torch.ones(dense, dtype=torch.bool)
        if start == "columns":
            threshold = threshold_of_columns(z, alpha, steps)
        else:
            threshold = torch.full((ROWS,), -1.0)
            of_tile = scores.unflatten(1, (dense, COLUMNS)).amax(2)
            listed = (of_tile - of_tile.cummax(1).values > -1.0).any(0)
        lengths = []
        for _ in range(MOST_PASSES):
            lengths.append(int(listed.sum()))
            step, factors = rise(z, threshold, alpha)
            listed = listed & (factors.unflatten(1, (dense, COLUMNS)).sum(2) > 0).any(0)
            threshold = threshold + step
            if float(step.max()) <= tolerance:
                break
        lengths.append(int(listed.sum()))
        tiles += dense
        products += dense + sum(lengths[:-1])
        passes += len(lengths) - 1
        first_list, second_list, last_list = first_list + lengths[0], second_list + lengths[1], last_list + lengths[-1]
    mean = passes / (length // ROWS)
    return products / tiles, mean, first_list / tiles, second_list / tiles, last_list / tiles


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="4096,16384")
    parser.add_argument("--inputs", default="iid,clustered,local")
    parser.add_argument("--maps", default="1.5,2", help="values of alpha, 1.5 or 2")
    parser.add_argument("--starts", default="maximum,columns")
    parser.add_argument("--steps", default="4", help="of Newton's method in registers, one row of the table for each")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    chosen = parser.parse_args()
    print(f"tiles of {ROWS} × {COLUMNS}, tolerance {chosen.tolerance:g}\n")
    print("| input | length | alpha | start | products | Newton passes | first list | second | last |")
    print("|---" * 9 + "|")
    of_columns = [("columns", int(steps)) for steps in chosen.steps.split(",")]
    starts = [
        one for start in chosen.starts.split(",") for one in ([("maximum", 0)] if start == "maximum" else of_columns)
    ]
    cases = itertools.product(chosen.inputs.split(","), chosen.lengths.split(","), chosen.maps.split(","), starts)
    for kind, length, alpha, (start, steps) in cases:
        products, passes, *lists = count(kind, int(length), float(alpha), start, steps, chosen.tolerance)
        shares = " | ".join(f"{share:.0%}" for share in lists)
        name = f"{start}, {steps} steps" if steps else start
        print(f"| {kind} | {length} | {alpha} | {name} | {products:.2f} | {passes:.1f} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
