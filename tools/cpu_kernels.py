"""Attention on CPU, forward and backward, as multiples of scaled_dot_product_attention in the same rounds.

    OMP_NUM_THREADS=2 python tools/cpu_kernels.py [--seconds 120] [--json PATH] [--only cpp,eager]

Inputs are standard normal, [batch, heads, length, head_dim]; `spread` scales the queries, so that small ones make dense
weights. Every subject is first compared with the eager path in float64 on a small input. Ratios are medians over
interleaved rounds, with the smallest difference that so many rounds would find; `cpu` is the ratio of processor
time, which a busy machine disturbs less; the reference a second time shows the noise. `--dropout 0.1` times each
implementation with dropout of the weights as well, as in training, and so the reference, whose backend is then named.
"""

import argparse
import functools
import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from attnbench.bench.core.errors import Unsupported
from attnbench.bench.measure.memory import peak_bytes
from attnbench.bench.measure.timer import interleave, smallest_difference
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask

REFERENCE = "scaled_dot_product_attention"
IMPLS = ("cpp", "eager")
BARE = " without its norm"
NAMES = ("rela", f"rela{BARE}", "sparsemax", "entmax15", "entmax[alpha=1.25]", "entmax[alpha=learned]")
# queries of that size make nearly all weights of entmax15 positive, and a fifth of those of sparsemax
SPREADS = {"iid": 1.0, "wider": 0.3, "dense": 0.02}
ALLOWED_ERROR = 5e-5

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def variant(
    name: str, impl: str, length: int, heads: int, head_dim: int, dtype: str = "float32", dropout: float = 0.0
) -> Attention:
    plain = name.removesuffix(BARE)
    selection = f"{plain[:-1]},impl={impl}]" if plain.endswith("]") else f"{plain}[impl={impl}]"
    torch.manual_seed(0)
    shape = AttentionShape(heads=heads, head_dim=head_dim, max_length=length, dtype=dtype, dropout=dropout)
    module = build(selection, shape)
    if module.supports(shape):
        raise Unsupported(module.supports(shape))
    module = (module.double() if dtype == "float64" else module).train()
    run = module if plain == name else module.sums
    return lambda query, key, value: run(query, key, value, Mask())


def of_the_package(name: str) -> Attention | None:
    """The same attention with the `entmax` package on dense scores."""
    try:
        import entmax
    except ImportError:
        return None
    maps = {"sparsemax": entmax.sparsemax, "entmax15": entmax.entmax15}
    if name not in maps:
        return None
    return lambda q, k, v: maps[name](q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, dim=-1) @ v


def passes(attention: Attention, inputs: tuple[Tensor, ...], upstream: Tensor) -> list[Tensor]:
    """Output and gradients."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    # the same draws for whoever is compared
    torch.manual_seed(0)
    output = attention(*leaves)
    return [output, *torch.autograd.grad(output, leaves, upstream)]


def draw(batch: int, heads: int, length: int, head_dim: int, spread: float) -> tuple[tuple[Tensor, ...], Tensor]:
    generator = torch.Generator().manual_seed(0)
    query, key, value, upstream = torch.randn(4, batch, heads, length, head_dim, generator=generator)
    return (spread * query, key, value), upstream


def density(name: str, inputs: tuple[Tensor, ...]) -> float:
    shape = AttentionShape(heads=inputs[0].shape[1], head_dim=inputs[0].shape[3], max_length=inputs[0].shape[2])
    torch.manual_seed(0)
    weights = build(name.removesuffix(BARE), shape).weights(inputs[0][:1], inputs[1][:1], Mask(), slice(0, 128))
    return (weights > 0).float().mean().item()


def error(name: str, impl: str, spread: float, heads: int, head_dim: int, dropout: float) -> float:
    """Largest difference from float64, relative to the largest entry, of the output and of each gradient."""
    inputs, upstream = draw(1, heads, 192, head_dim, spread)
    found = passes(variant(name, impl, 192, heads, head_dim, dropout=dropout), inputs, upstream)
    double = variant(name, "eager", 192, heads, head_dim, "float64", dropout)
    expected = passes(double, tuple(x.double() for x in inputs), upstream.double())
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(found, expected, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--shape", default="8,8,1024,64", help="batch,heads,length,head_dim")
    parser.add_argument("--only", default=",".join(IMPLS), help="implementations, and `package`")
    parser.add_argument("--names", default=";".join(NAMES), help="variants, separated by semicolons")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0, help="a rate to time beside none")
    parser.add_argument("--memory", action="store_true", help="peak bytes of one pass at two lengths as well")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    batch, heads, length, head_dim = map(int, chosen.shape.split(","))
    subjects: dict[str, Callable[[], object]] = {}
    rows: dict[str, dict[str, float | str]] = {}
    for at, (kind, spread) in enumerate(SPREADS.items()):
        inputs, upstream = draw(batch, heads, length, head_dim, spread)
        if not at:
            subjects[REFERENCE] = lambda i=inputs, u=upstream: passes(F.scaled_dot_product_attention, i, u)
            subjects["the reference again"] = lambda i=inputs, u=upstream: passes(F.scaled_dot_product_attention, i, u)
            if chosen.dropout:
                leaves = [x.detach().requires_grad_() for x in inputs]
                backend = SDPBackend(torch._fused_sdp_choice(*leaves, dropout_p=chosen.dropout)).name.lower()
                dropping = functools.partial(F.scaled_dot_product_attention, dropout_p=chosen.dropout)
                label = f"{REFERENCE}, {backend}, dropout {chosen.dropout:g}"
                subjects[label] = lambda i=inputs, u=upstream, a=dropping: passes(a, i, u)
        for name in chosen.names.split(";"):
            for impl, rate in itertools.product(chosen.only.split(","), sorted({0.0, chosen.dropout})):
                # ReLA's cost does not depend on the spread, and one input is enough for what is slow
                if at and (name.startswith("rela") or impl in ("eager", "package")):
                    continue
                if impl == "package" and rate:
                    continue
                if impl == "package":
                    attention = of_the_package(name)
                    worst = float("nan")
                else:
                    try:
                        attention = variant(name, impl, length, heads, head_dim, dropout=rate)
                    except Unsupported as refusal:
                        print(f"left out: {name}: {refusal}")
                        continue
                    worst = error(name, impl, spread, heads, head_dim, rate)
                    if not worst < ALLOWED_ERROR:
                        raise SystemExit(f"{name}[impl={impl}], {kind}: {worst:.1e} away from float64; not timed")
                if attention is None:
                    continue
                label = f"{name} · {impl} · {kind}" + (f" · dropout {rate:g}" if rate else "")
                subjects[label] = lambda a=attention, i=inputs, u=upstream: passes(a, i, u)
                rows[label] = {"error": worst, "density": density(name, inputs), "input": kind}
    timing = interleave(
        subjects, reference=REFERENCE, device=torch.device("cpu"), budget_seconds=chosen.seconds, resolution=0.015
    )
    reference = timing.samples[REFERENCE].seconds
    print(f"{chosen.shape} float32, {chosen.threads} threads, {timing.rounds} rounds, {torch.__version__}")
    print(f"{REFERENCE}: {1e3 * statistics.median(reference):.0f} ms; what others used: {timing.system_load}")
    print(f"{'subject':44} {'ratio':>7} {'seen %':>6} {'cpu':>7} {'density':>8} {'error':>8}")
    for label, samples in timing.samples.items():
        row = rows.setdefault(label, {})
        row["ratio"] = statistics.median(a / b for a, b in zip(samples.seconds, reference, strict=True))
        busy = timing.samples[REFERENCE].cpu_seconds
        row["cpu_ratio"] = statistics.median(a / b for a, b in zip(samples.cpu_seconds, busy, strict=True))
        row["smallest_difference"] = smallest_difference(samples.seconds, reference)
        row["seconds"] = statistics.median(samples.seconds)
        shown = f"{row['density']:8.4f} {row['error']:8.1e}" if "density" in row else ""
        print(f"{label:44} {row['ratio']:7.3f} {100 * row['smallest_difference']:5.1f} {row['cpu_ratio']:7.3f} {shown}")
    if chosen.memory:
        for label, peaks in memory(chosen.names.split(";"), chosen.only.split(","), heads, head_dim).items():
            rows.setdefault(label, {}).update(peaks)
    if chosen.json:
        found = {"shape": chosen.shape, "threads": chosen.threads, "rounds": timing.rounds, "subjects": rows}
        chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def memory(names: list[str], impls: list[str], heads: int, head_dim: int) -> dict[str, dict[str, float]]:
    """Peak bytes of one pass, forward and backward, of one sequence at 2048 and 4096 positions."""
    found: dict[str, dict[str, float]] = {}
    for name in names:
        for impl in impls:
            if impl == "package":
                continue
            peaks = []
            for length in (2048, 4096):
                inputs, upstream = draw(1, heads, length, head_dim, 1.0)
                attention = variant(name, impl, length, heads, head_dim)
                passes(attention, inputs, upstream)
                peaks.append(peak_bytes(lambda a=attention, i=inputs, u=upstream: passes(a, i, u), torch.device("cpu")))
            found[f"{name} · {impl} · iid"] = {"peak_2048": peaks[0], "peak_4096": peaks[1]}
            print(f"{name} · {impl}: {peaks[0] / 2**20:.0f} MiB at 2048, {peaks[1] / 2**20:.0f} at 4096")
    return found


if __name__ == "__main__":
    main()
