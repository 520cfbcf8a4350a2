"""Attention on CPU, forward and backward, as multiples of scaled_dot_product_attention in the same rounds.

    OMP_NUM_THREADS=2 python tools/cpu_kernels.py [--seconds 120] [--only cpp,eager] [--dropout 0.1]

What a sweep does not vary: inputs are standard normal, and `spread` scales the queries, so that small ones make dense
weights. Every subject is first compared with the eager path in float64 on a small input. Ratios are medians over
interleaved rounds, with the smallest difference that so many rounds would find; `cpu` is the ratio of processor
time, which a busy machine disturbs less; the reference a second time shows the noise. `--dropout 0.1` times each
implementation with dropout of the weights as well, as in training, and so the reference, whose backend is then named.
"""

import argparse
import functools
import itertools
import statistics
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from attnbench.bench.core.errors import Unsupported
from attnbench.bench.measure.timer import interleave, smallest_difference
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask

REFERENCE = "scaled_dot_product_attention"
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
    parser.add_argument("--only", default="cpp,eager", help="implementations")
    parser.add_argument("--names", default=";".join(NAMES), help="variants, separated by semicolons")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0, help="a rate to time beside none")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    batch, heads, length, head_dim = map(int, chosen.shape.split(","))
    rates = sorted({0.0, chosen.dropout})
    usual = draw(batch, heads, length, head_dim, 1.0)
    whole = functools.partial(passes, F.scaled_dot_product_attention, *usual)
    subjects: dict[str, Callable[[], object]] = {REFERENCE: whole, "the reference again": whole}
    if chosen.dropout:
        leaves = [x.detach().requires_grad_() for x in usual[0]]
        backend = SDPBackend(torch._fused_sdp_choice(*leaves, dropout_p=chosen.dropout)).name.lower()
        dropping = functools.partial(F.scaled_dot_product_attention, dropout_p=chosen.dropout)
        subjects[f"{REFERENCE}, {backend}, dropout {chosen.dropout:g}"] = functools.partial(passes, dropping, *usual)
    shown: dict[str, str] = {}
    for (kind, spread), name in itertools.product(SPREADS.items(), chosen.names.split(";")):
        inputs, upstream = draw(batch, heads, length, head_dim, spread)
        for impl, rate in itertools.product(chosen.only.split(","), rates):
            # ReLA's cost does not depend on the spread, and one input is enough for what is slow
            if kind != "iid" and (name.startswith("rela") or impl == "eager"):
                continue
            try:
                attention = variant(name, impl, length, heads, head_dim, dropout=rate)
            except Unsupported as refusal:
                print(f"left out: {name}: {refusal}")
                continue
            worst = error(name, impl, spread, heads, head_dim, rate)
            if not worst < ALLOWED_ERROR:
                raise SystemExit(f"{name}[impl={impl}], {kind}: {worst:.1e} away from float64; not timed")
            label = f"{name} · {impl} · {kind}" + (f" · dropout {rate:g}" if rate else "")
            subjects[label] = functools.partial(passes, attention, inputs, upstream)
            shown[label] = f"{density(name, inputs):8.4f} {worst:8.1e}"
    timing = interleave(
        subjects, reference=REFERENCE, device=torch.device("cpu"), budget_seconds=chosen.seconds, resolution=0.015
    )
    base = timing.samples[REFERENCE]
    print(f"{chosen.shape} float32, {chosen.threads} threads, {timing.rounds} rounds, {torch.__version__}")
    print(f"{REFERENCE}: {1e3 * statistics.median(base.seconds):.0f} ms; what others used: {timing.system_load}")
    print(f"{'subject':44} {'ratio':>7} {'seen %':>6} {'cpu':>7} {'density':>8} {'error':>8}")
    for label, samples in timing.samples.items():
        ratio = statistics.median(a / b for a, b in zip(samples.seconds, base.seconds, strict=True))
        busy = statistics.median(a / b for a, b in zip(samples.cpu_seconds, base.cpu_seconds, strict=True))
        seen = 100 * smallest_difference(samples.seconds, base.seconds)
        print(f"{label:44} {ratio:7.3f} {seen:5.1f} {busy:7.3f} {shown.get(label, '')}")


if __name__ == "__main__":
    main()
