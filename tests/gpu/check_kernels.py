"""Triton kernels on a CUDA device: right, then fast? `python tests/gpu/check_kernels.py [--right-only] …`.

Right: forward and backward of every variant with a kernel, through `name[impl=triton]`, against float64 eager, as a
multiple of the error of the eager path in the same dtype; in several processes, since compilation takes the time.
Fast: see `speed.py` beside this file. What is measured is printed as it comes, with the time left in mind.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context

VARIANTS = (
    "rela", "rela[norm=head]", "sparsemax", "entmax15", "entmax[alpha=1.25]", "entmax[alpha=learned]",
    "local[query_block=64]", "routing[form=strict]", "linear", "additive-lm", "additive", "relative",
)  # fmt: skip
# a kernel sums in another order than the eager path, and may be this much worse
LARGEST_MULTIPLE = 4.0
SMALLEST_ERROR = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`batch` beyond 32,767 with two heads is more than the second dimension of a grid of blocks holds."""

    queries: int
    keys: int
    head_dim: int
    causal: bool
    padding: bool
    batch: int = 2

    def __str__(self) -> str:
        size = f"{self.queries:4} x {self.keys:4} x {self.head_dim:3}{' causal' if self.causal else ''}"
        return size if self.batch == 2 else f"{size}, batch {self.batch}"


SHAPES = (
    Shape(queries=512, keys=512, head_dim=64, causal=False, padding=False),
    Shape(queries=333, keys=333, head_dim=128, causal=True, padding=True),
    Shape(queries=100, keys=411, head_dim=80, causal=True, padding=False),
)
MANY = Shape(queries=16, keys=16, head_dim=64, causal=True, padding=False, batch=33000)
TINY = (
    Shape(queries=40, keys=40, head_dim=16, causal=True, padding=True),
    Shape(queries=20, keys=40, head_dim=20, causal=False, padding=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    lines: tuple[str, ...]
    right: bool


def forced(selection, impl):
    return f"{selection[:-1]},impl={impl}]" if selection.endswith("]") else f"{selection}[impl={impl}]"


def check(selection, dtype, shapes, device):
    """An Answer for one variant in one dtype over the shapes."""
    lines, right = [], True
    for shape in shapes:
        text, good = _compare(selection, dtype, shape, device)
        lines.append(f"{selection:24} {dtype:9} {shape}: {text}{'' if good else '   WRONG'}")
        right &= good
    return Answer(lines=tuple(lines), right=right)


def _compare(selection, dtype, shape, device):
    import torch

    from attnbench.bench.core.errors import AttnbenchError
    from attnbench.variants import AttentionShape, Mask, build

    of = getattr(torch, dtype)
    # the queries of local are the last of one sequence
    cross = shape.queries != shape.keys and not selection.startswith("local")
    asked = AttentionShape(
        heads=2, head_dim=shape.head_dim, max_length=shape.keys, causal=shape.causal, cross=cross, dtype=dtype,
        device=device,
    )  # fmt: skip
    generator = torch.Generator(device).manual_seed(1)
    lengths = (shape.queries, shape.keys, shape.keys, shape.queries)
    # rounded first: the truth sees the same numbers
    *inputs, upstream = [
        torch.randn(shape.batch, 2, n, shape.head_dim, device=device, generator=generator).to(of) for n in lengths
    ]
    real = torch.full((shape.batch, 1), shape.keys, device=device)
    real[1] = shape.keys // 3
    keep = torch.arange(shape.keys, device=device) < real if shape.padding else None
    mask = Mask(keep=keep, causal=shape.causal)
    try:
        kernel, eager, truth = (
            build(forced(selection, impl), asked).to(device).eval() for impl in ("triton", "eager", "eager")
        )
        eager.load_state_dict(kernel.state_dict())
        truth.load_state_dict(kernel.state_dict())
        truth.double()
        ours, theirs = (_errors(module, truth, inputs, mask, upstream) for module in (kernel, eager))
        # a second run, bit for bit
        leaves = [x.clone().requires_grad_() for x in inputs]
        runs = [torch.autograd.grad(kernel(*leaves, mask), leaves, upstream, allow_unused=True) for _ in range(2)]
    except AttnbenchError as refusal:
        return f"not done: {refusal}", True
    except Exception as error:
        return f"raised {type(error).__name__}: {' '.join(str(error).split())[:300]}", False
    same = all(one is None or torch.equal(one, two) for one, two in zip(*runs, strict=True))
    multiple = max(our / max(their, SMALLEST_ERROR[dtype]) for our, their in zip(ours, theirs, strict=True))
    text = f"{multiple:6.2f} x the error of eager, worst {max(ours):.1e}, same bits: {same}, {kernel.implementation}"
    return text, multiple <= LARGEST_MULTIPLE and same


def _errors(variant, truth, inputs, mask, upstream):
    """Largest error of output and gradients, each over the largest entry of the truth; infinite where it is NaN."""
    import torch

    found = []
    for module, dtype in ((variant, upstream.dtype), (truth, torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        leaves += [p for p in module.parameters() if p.requires_grad]
        output = module(*leaves[:3], mask)
        gradients = torch.autograd.grad(output, leaves, upstream.to(dtype), allow_unused=True)
        found.append([output.detach(), *gradients])
    errors = []
    for ours, true in zip(*found, strict=True):
        if ours is not None and true is not None:
            error = float((ours.double() - true).abs().max() / true.abs().max().clamp(min=1e-12))
            errors.append(error if error == error else float("inf"))
    return errors


def right(variants, device, dtypes, shapes, jobs):
    """Prints an answer as it comes; True where all are right."""
    cases = [(name, dtype, shapes) for dtype in dtypes for name in variants]
    if device == "cuda":
        cases += [(name, "bfloat16", (MANY,)) for name in variants]
    good = True
    # a process for each: after an illegal access nothing else would be right in the same one
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        named = {pool.submit(check, *case, device): case for case in cases}
        for waiting in as_completed(named):
            try:
                answer = waiting.result()
            except BrokenProcessPool as error:
                answer = Answer(lines=(f"{named[waiting][0]} {named[waiting][1]}: {error}   WRONG",), right=False)
            good &= answer.right
            print(*answer.lines, sep="\n", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--right-only", action="store_true", help="do not time")
    parser.add_argument("--fast-only", action="store_true", help="time what was found right before")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no measurement that would end later")
    parser.add_argument("--variants", nargs="+", default=VARIANTS, help="which to prove; timed are always all")
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1), help="processes that compile")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16384, 32768, 8192])
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--inputs", nargs="+", default=["iid", "clustered", "local"])
    parser.add_argument("--tiles", nargs="+", default=[], metavar="ROWSxCOLUMNSxWARPS", help="tile sizes to compare")
    parser.add_argument("--json", metavar="PATH", help="add each measurement to this file, one object a line")
    parser.add_argument("--rehearse", action="store_true", help="all of it at tiny sizes, interpreted on this CPU")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    if arguments.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    if not arguments.rehearse and not torch.cuda.is_available():
        print("skipped: no CUDA device; without one `pytest tests/variants/kernels/triton` proves the kernels")
        return 0
    import triton

    device = "cpu" if arguments.rehearse else "cuda"
    name = "rehearsal, interpreted" if arguments.rehearse else torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, triton {triton.__version__}", flush=True)
    if not arguments.fast_only:
        dtypes = ("float32", "float16") if arguments.rehearse else ("bfloat16", "float16", "float32")
        shapes = TINY if arguments.rehearse else SHAPES
        if not right(arguments.variants, device, dtypes, shapes, arguments.jobs):
            return 1
    if arguments.right_only:
        return 0
    from speed import Plan, run

    run(
        Plan(
            device=device,
            dtype="float16" if arguments.rehearse else "bfloat16",
            lengths=(48,) if arguments.rehearse else tuple(arguments.lengths),
            head_dims=(16,) if arguments.rehearse else tuple(arguments.head_dims),
            inputs=tuple(arguments.inputs),
            tiles=tuple(arguments.tiles),
            width=32 if arguments.rehearse else 1024,
            tokens=48 if arguments.rehearse else 16384,
            end=end,
            jobs=arguments.jobs,
            path=arguments.json,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
