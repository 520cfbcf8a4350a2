"""Speed of ReLA and the entmax family by sizes of tiles: `python tools/gpu/speed.py`, within nine minutes.

Check them first, with `check_kernels.py`. Sampling takes the harness's own clock, which keeps the queue full. All other
speeds are those of the suites `kernels-gpu`.

On inputs whose tiles are all full (`iid`) and mostly empty (`clustered`, `local`), each beside the share of tiles that
it skipped, which no Record has: only the kernel knows its lists. The reference is the flash form of
`scaled_dot_product_attention`, by name, since what PyTorch chooses by itself may be cuDNN's. Shapes are those of
FlashAttention-3: 16k tokens, heads times width 2,048. What fails is named and left out, and all else goes on.
"""

import argparse
import functools
import json
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path

if "--rehearse" in sys.argv:
    # read where the kernels are imported
    os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbench.bench.measure.timer import interleave
from attnbench.tasks.sweep_inputs import draw_heads
from attnbench.variants.kernels.triton import entmax as triton_entmax
from attnbench.variants.kernels.triton import maps as triton_maps
from attnbench.variants.kernels.triton.tiles import Tiles
from attnbench.variants.ops.written import write

REFERENCE = "flash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`width`: heads times head_dim; `tokens`: sequences times length, where one sequence is not longer; `end`: of the
    monotonic clock; `path`: of the file for results, or None."""

    device: str
    dtype: str
    lengths: tuple[int, ...]
    head_dims: tuple[int, ...]
    inputs: tuple[str, ...]
    tiles: tuple[str, ...]
    width: int
    tokens: int
    end: float
    jobs: int
    path: str | None

    @property
    def left(self):
        return self.end - time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    kind: str
    length: int
    head_dim: int
    causal: bool


def run(plan):
    """Prints every measurement as it comes, and what there was no time for."""
    print(f"\nspeed of {REFERENCE} = 1.00, more is faster; {plan.dtype}, {plan.tokens} tokens or one sequence")
    if plan.device == "cuda":
        _compile(plan)
    # the plan's first length first, in both head_dims and all inputs; inputs are drawn once for causal and not
    cases = [
        Case(kind=kind, length=length, head_dim=head_dim, causal=causal)
        for length, head_dim, kind, causal in product(plan.lengths, plan.head_dims, plan.inputs, (True, False))
    ]
    for at, case in enumerate(cases):
        seconds = plan.left / (len(cases) - at)
        if seconds < 1.0 and plan.device == "cuda":
            print(f"no time for {len(cases) - at} cases, from {case} on", flush=True)
            break
        try:
            _measure(plan, case, seconds)
        except Exception as error:
            # one fault costs one line: a lent machine is not to be given back for it
            print(f"{case} is left out: {_brief(error)}", flush=True)


def _brief(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _functions(plan, causal):
    """Work by name, with the tiles that it goes by: flash, cuDNN's where it is, and ours with each size of tiles."""
    functions = {REFERENCE: (functools.partial(_sdpa, SDPBackend.FLASH_ATTENTION, causal=causal), None)}
    if plan.device == "cuda":
        functions["cudnn"] = (functools.partial(_sdpa, SDPBackend.CUDNN_ATTENTION, causal=causal), None)
    for text in plan.tiles or ("",):
        sizes = map(int, text.split("x")) if text else ()
        tiles = Tiles(**dict(zip(("rows", "columns", "warps"), sizes, strict=True))) if text else None
        entmax = functools.partial(triton_entmax.entmax_attention, causal=causal, tiles=tiles)
        rectified = {"written": write(torch.relu), "homogeneous": True}
        rela = functools.partial(triton_maps.map_attention, valid=None, causal=causal, tiles=tiles, **rectified)
        functions[f"rela {text}".strip()] = (rela, tiles)
        functions[f"sparsemax {text}".strip()] = (functools.partial(entmax, alpha=2.0), tiles)
        functions[f"entmax15 {text}".strip()] = (functools.partial(entmax, alpha=1.5), tiles)
    return functions


def _sdpa(backend, query, key, value, *, causal):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal)


def _compile(plan):
    """Compiles all that will be timed, in several processes; compiled kernels are found on disk afterwards."""
    started = time.monotonic()
    with ProcessPoolExecutor(plan.jobs, mp_context=get_context("spawn")) as pool:
        list(pool.map(_compile_one, *zip(*product([plan], plan.head_dims, (True, False), (0, 1, 2)), strict=True)))
    print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)


def _compile_one(plan, head_dim, causal, at):
    ours = [function for name, (function, _) in _functions(plan, causal).items() if name not in (REFERENCE, "cudnn")]
    leaves = [
        torch.randn(2, 2, 512, head_dim, device=plan.device, dtype=getattr(torch, plan.dtype), requires_grad=True)
        for _ in range(3)
    ]
    for function in ours[at::3]:
        # one that does not compile is named where it is measured
        with suppress(Exception):
            output = function(*leaves)
            torch.autograd.grad(output, leaves, torch.ones_like(output))
            with torch.no_grad():
                function(*(x.detach() for x in leaves))


@functools.lru_cache(maxsize=1)
def _leaves(plan, kind, length, head_dim):
    heads, batch = plan.width // head_dim, max(1, plan.tokens // length)
    drawn = draw_heads(kind, batch, heads, length, head_dim, seed=0)
    dtype = getattr(torch, plan.dtype)
    return [torch.from_numpy(x).to(plan.device, dtype).requires_grad_() for x in (drawn.query, drawn.key, drawn.value)]


def _measure(plan, case, seconds):
    leaves = _leaves(plan, case.kind, case.length, case.head_dim)
    functions, skipped = {}, {}
    for name, (function, tiles) in _functions(plan, case.causal).items():
        try:
            output = function(*leaves)
            torch.autograd.grad(output, leaves, torch.ones_like(output), retain_graph=True)
        except Exception as error:
            print(f"{name} is left out: {_brief(error)}", flush=True)
            continue
        functions[name] = function
        if name.startswith(("sparsemax", "entmax15")):
            sizes = tiles or triton_entmax.tiles_for(leaves[0].dtype, case.head_dim)
            skipped[name] = _skipped(output.grad_fn.saved_tensors[9], sizes, case.causal)
    _time(plan, case, functions, leaves, skipped, seconds)


def _time(plan, case, functions, leaves, skipped, seconds):
    upstreams = {name: torch.randn_like(function(*leaves)) for name, function in functions.items()}

    # detached: a kernel sees leaves that want gradients as training even under `no_grad`, and records for it
    detached = [x.detach() for x in leaves]

    def forward(name):
        with torch.no_grad():
            return functions[name](*detached)

    def both(name):
        return torch.autograd.grad(functions[name](*leaves), leaves, upstreams[name])

    found, rounds = {name: [] for name in functions}, []
    for work in (forward, both):
        timing = interleave(
            {name: functools.partial(work, name) for name in functions},
            reference=REFERENCE, device=torch.device(plan.device), budget_seconds=min(4.0, 0.35 * seconds),
            resolution=0.015,
        )  # fmt: skip
        reference = timing.samples[REFERENCE].seconds
        for name in functions:
            ours = timing.samples[name].seconds
            found[name].append(statistics.median(r / o for o, r in zip(ours, reference, strict=True)))
            found[name].append(statistics.median(ours) * 1e3)
        rounds.append(timing.rounds)
    # nominal FLOPs of a forward pass, and 3.5 times that with backward
    tera = 4e-12 * leaves[0].numel() * case.length * (0.5 if case.causal else 1.0)
    place = f"{case.kind:9} {case.length:6} {case.head_dim:4} {'causal' if case.causal else 'full':6}"
    for name, (fast, fast_ms, whole, whole_ms) in found.items():
        skip = f"{skipped[name]:6.1%}" if name in skipped else "     –"
        print(
            f"{place} {name:24} skipped {skip}   forward {fast:5.2f} x ({fast_ms:8.3f} ms, "
            f"{1e3 * tera / fast_ms:5.0f} TFLOP/s)   with backward {whole:5.2f} x ({whole_ms:8.3f} ms, "
            f"{3.5e3 * tera / whole_ms:5.0f} TFLOP/s)   {rounds[0]} and {rounds[1]} rounds",
            flush=True,
        )
        if plan.path:
            row = {
                "name": name, "kind": case.kind, "length": case.length, "head_dim": case.head_dim,
                "causal": case.causal, "skipped_tiles": skipped.get(name), "forward_ratio": fast,
                "forward_ms": fast_ms, "training_ratio": whole, "training_ms": whole_ms, "rounds": rounds,
            }  # fmt: skip
            with Path(plan.path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _skipped(used, tiles, causal):
    """Share of the tiles inside the mask that the map leaves out."""
    rows = torch.arange(used.shape[1], device=used.device)
    columns = torch.arange(used.shape[2], device=used.device)
    inside = columns[None] * tiles.columns < (rows[:, None] + 1) * tiles.rows if causal else columns[None] >= 0
    return 1.0 - float(used[:, inside.expand(used.shape[1:])].double().mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no measurement that would end later")
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1), help="processes that compile")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16384, 32768, 8192])
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--inputs", nargs="+", default=["iid", "clustered", "local"])
    parser.add_argument("--tiles", nargs="+", default=[], metavar="ROWSxCOLUMNSxWARPS", help="tile sizes to compare")
    parser.add_argument("--json", metavar="PATH", help="add each measurement to this file, one object a line")
    parser.add_argument("--rehearse", action="store_true", help="try it at tiny sizes on this CPU, interpreted")
    arguments = parser.parse_args()
    if not arguments.rehearse and not torch.cuda.is_available():
        print("skipped: no CUDA device")
        return 0
    print(
        f"{'rehearsal' if arguments.rehearse else torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True
    )
    run(
        Plan(
            device="cpu" if arguments.rehearse else "cuda",
            dtype="float16" if arguments.rehearse else "bfloat16",
            lengths=(48,) if arguments.rehearse else tuple(arguments.lengths),
            head_dims=(16,) if arguments.rehearse else tuple(arguments.head_dims),
            inputs=tuple(arguments.inputs),
            tiles=tuple(arguments.tiles),
            width=32 if arguments.rehearse else 2048,
            tokens=48 if arguments.rehearse else 16384,
            end=time.monotonic() + 60 * arguments.minutes,
            jobs=arguments.jobs,
            path=arguments.json,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
