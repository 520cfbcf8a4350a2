"""Triton kernels on a CUDA device: right, then fast? `python tests/gpu/check_kernels.py [--right-only] …`.

Right: forward and backward of every variant with a kernel, through `name[impl=triton]`, against float64 eager, as a
multiple of the error of the eager path in the same dtype. Fast: ReLA and the entmax family beside
`scaled_dot_product_attention`, interleaved, on inputs whose tiles are all full (`iid`) and mostly empty (`clustered`,
`local`), with the share of tiles that each kernel skipped.
"""

import argparse
import functools
import statistics
import sys

import torch
from torch import Tensor
from torch.nn import functional as F

from attnbench.bench.clock import interleave
from attnbench.bench.errors import AttnbenchError
from attnbench.tasks.score_inputs import draw_heads
from attnbench.variants import AttentionShape, Mask, build
from attnbench.variants.contract import Variant

VARIANTS = (
    "rela", "rela[norm=head]", "sparsemax", "entmax15", "entmax[alpha=1.25]", "entmax[alpha=learned]",
    "local[query_block=64]", "routing[form=strict]", "linear", "additive-lm", "additive", "relative",
)  # fmt: skip
# (queries, keys, head_dim, causal, padding)
SHAPES = ((512, 512, 64, False, False), (333, 333, 128, True, True), (100, 411, 80, True, False))
# a kernel sums in another order than the eager path, and may be this much worse
LARGEST_MULTIPLE = 4.0
SMALLEST_ERROR = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def errors(variant: Variant, truth: Variant, inputs: list[Tensor], mask: Mask, upstream: Tensor) -> list[float]:
    """Largest error of output and gradients, each over the largest entry of the truth."""
    found = []
    for module, dtype in ((variant, upstream.dtype), (truth, torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        leaves += [p for p in module.parameters() if p.requires_grad]
        torch.manual_seed(0)
        output = module(*leaves[:3], mask)
        gradients = torch.autograd.grad(output, leaves, upstream.to(dtype), allow_unused=True)
        found.append([output, *gradients])
    pairs = [(ours, true) for ours, true in zip(*found, strict=True) if ours is not None and true is not None]
    pairs = [(ours.detach().double(), true.detach()) for ours, true in pairs]
    return [float((ours - true).abs().max() / true.abs().max().clamp(min=1e-12)) for ours, true in pairs]


def forced(selection: str, impl: str) -> str:
    return f"{selection[:-1]},impl={impl}]" if selection.endswith("]") else f"{selection}[impl={impl}]"


def check(selection: str, dtype: torch.dtype) -> bool:
    """Prints the worst multiple over the shapes; False where a kernel is wrong."""
    right = True
    for queries, keys, head_dim, causal, padding in SHAPES:
        name = str(dtype).removeprefix("torch.")
        label = f"{selection:24} {name:9} {queries:4} x {keys:4} x {head_dim:3}{' causal' if causal else ''}"
        shape = AttentionShape(
            heads=2, head_dim=head_dim, max_length=keys, causal=causal, cross=queries != keys, dtype=name, device="cuda"
        )
        generator = torch.Generator("cuda").manual_seed(1)
        inputs = [torch.randn(2, 2, n, head_dim, device="cuda", generator=generator) for n in (queries, keys, keys)]
        # rounded first: the truth sees the same numbers
        inputs = [x.to(dtype) for x in inputs]
        keep = torch.arange(keys, device="cuda") < torch.tensor([[keys], [keys // 3]], device="cuda")
        mask = Mask(keep=keep if padding else None, causal=causal)
        upstream = torch.randn(inputs[0].shape, device="cuda", generator=generator).to(dtype)
        try:
            kernel = build(forced(selection, "triton"), shape).cuda().eval()
            eager = build(forced(selection, "eager"), shape).cuda().eval()
            eager.load_state_dict(kernel.state_dict())
            truth = build(forced(selection, "eager"), shape).cuda().eval()
            truth.load_state_dict(kernel.state_dict())
            truth.double()
            ours, theirs = (errors(x, truth, inputs, mask, upstream) for x in (kernel, eager))
        except AttnbenchError as error:
            print(f"{label}: not done: {error}")
            continue
        multiple = max(our / max(their, SMALLEST_ERROR[dtype]) for our, their in zip(ours, theirs, strict=True))
        # a second run, bit for bit
        leaves = [x.clone().requires_grad_() for x in inputs]
        runs = [torch.autograd.grad(kernel(*leaves, mask), leaves, upstream, allow_unused=True) for _ in range(2)]
        same = all(one is None or torch.equal(one, two) for one, two in zip(*runs, strict=True))
        good = multiple <= LARGEST_MULTIPLE and same
        right &= good
        worst = f"{multiple:6.2f} x the error of eager, worst {max(ours):.1e}, same bits: {same}"
        print(f"{label}: {worst}{'' if good else '   WRONG'}", flush=True)
    return right


def skipped(used: Tensor, tiles, length: int, causal: bool) -> float:
    """Share of the tiles inside the mask that the map leaves out."""
    rows = torch.arange(used.shape[1], device=used.device)
    columns = torch.arange(used.shape[2], device=used.device)
    inside = columns[None] * tiles.columns < (rows[:, None] + 1) * tiles.rows if causal else columns[None] >= 0
    inside = inside.expand(used.shape[1:])
    return 1.0 - float(used[:, inside].double().mean())


def measure(kind: str, length: int, head_dim: int, causal: bool, chosen: list[str]) -> None:
    from attnbench.variants.kernels import triton_entmax, triton_rela
    from attnbench.variants.kernels.triton_tiles import Tiles

    heads = 1024 // head_dim
    batch = max(1, 16384 // length)
    drawn = draw_heads(kind, batch, heads, length, head_dim, seed=0)
    leaves = [
        torch.from_numpy(x).to("cuda", torch.bfloat16).requires_grad_() for x in (drawn.query, drawn.key, drawn.value)
    ]
    sizes = [
        Tiles(**dict(zip(("rows", "columns", "warps"), map(int, text.split("x")), strict=True))) for text in chosen
    ]
    functions = {"sdpa": functools.partial(F.scaled_dot_product_attention, is_causal=causal)}
    shapes = {}
    for tiles in sizes or [None]:
        suffix = f" {tiles.rows}x{tiles.columns}x{tiles.warps}" if tiles else ""
        own = {
            "rela": functools.partial(triton_rela.rela_attention, causal=causal, tiles=tiles),
            "sparsemax": functools.partial(triton_entmax.entmax_attention, alpha=2.0, causal=causal, tiles=tiles),
            "entmax15": functools.partial(triton_entmax.entmax_attention, alpha=1.5, causal=causal, tiles=tiles),
        }
        for name, function in own.items():
            functions[name + suffix] = function
            module = triton_rela if name == "rela" else triton_entmax
            shapes[name + suffix] = tiles or module.tiles_for(torch.bfloat16, head_dim)
    upstreams = {name: torch.randn_like(function(*leaves)) for name, function in functions.items()}
    used = {}
    for name in list(shapes):
        saved = functions[name](*leaves).grad_fn.saved_tensors
        used[name] = skipped(saved[4] if name.startswith("rela") else saved[9], shapes[name], length, causal)

    def forward(name: str) -> object:
        with torch.no_grad():
            return functions[name](*leaves)

    def both(name: str) -> object:
        return torch.autograd.grad(functions[name](*leaves), leaves, upstreams[name])

    ratios: dict[str, list[float]] = {name: [] for name in functions}
    for work in (forward, both):
        timing = interleave(
            {name: functools.partial(work, name) for name in functions},
            reference="sdpa", device=torch.device("cuda"), budget_seconds=4.0, half_width=0.01,
        )  # fmt: skip
        reference = timing.samples["sdpa"].seconds
        for name in functions:
            ours = timing.samples[name].seconds
            ratios[name].append(statistics.median(r / o for o, r in zip(ours, reference, strict=True)))
            ratios[name].append(statistics.median(ours) * 1e3)
    for name in functions:
        fast, fast_ms, whole, whole_ms = ratios[name]
        skip = f"{used[name]:6.1%}" if name in used else "     –"
        print(
            f"{kind:9} {length:6} {head_dim:4} {'causal' if causal else 'full':6} {name:22} skipped {skip}   "
            f"forward {fast:5.2f} x ({fast_ms:8.3f} ms)   with backward {whole:5.2f} x ({whole_ms:8.3f} ms)",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--right-only", action="store_true", help="do not time")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--inputs", nargs="+", default=["iid", "clustered", "local"])
    parser.add_argument("--tiles", nargs="+", default=[], metavar="ROWSxCOLUMNSxWARPS", help="tile sizes to compare")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: no CUDA device; without one, kernels are proved by `pytest tests/variants/test_triton_*.py`")
        return 0
    import triton

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    results = [check(name, dtype) for name in VARIANTS for dtype in (torch.float32, torch.float16, torch.bfloat16)]
    if not all(results):
        return 1
    if arguments.right_only:
        return 0
    print("\nspeed of scaled_dot_product_attention = 1.00, more is faster; bfloat16, 16384 tokens or one sequence")
    for head_dim in arguments.head_dims:
        for causal in (True, False):
            for length in arguments.lengths:
                for kind in arguments.inputs:
                    measure(kind, length, head_dim, causal, arguments.tiles)
    return 0


if __name__ == "__main__":
    sys.exit(main())
