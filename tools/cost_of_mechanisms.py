"""What a mechanism costs on a CPU: forward and backward of attention as multiples of softmax, for one variant or all.

    OMP_NUM_THREADS=2 python tools/cost_of_mechanisms.py [--only "sigmoid;window"] [--forward] [--bfloat16] [--eager]

A row is a variant, a column one of twelve settings: 8 × 8 heads of 256 and of 1,024 tokens, 1 × 8 of 4,096, 64 wide,
all keys and causal, dropout of weights 0 and 0.1. Each setting is one interleaved run of
`scaled_dot_product_attention` without dropout, the same a second time (the null control), and the variants by the code
that `impl=auto` takes; `--eager` times each variant's definition beside it, `--forward` the forward pass alone,
`--bfloat16` all in bfloat16, softmax too. Before it is timed, each is compared with its definition in float64 on a
small input.

A setting is appended to a file when it is measured, and not measured again: the same command goes on where it stopped,
and ends with the table of all that is there. `--minutes` bounds one call; a setting that would not fit is left for the
next. All variants take about three calls of ten minutes, one variant takes one.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from attnbench import register
from attnbench.bench.measure.timer import interleave
from attnbench.variants import AttentionShape, Mask, build, elementwise_map
from attnbench.variants.contract import Variant

REFERENCE, AGAIN = "softmax", "softmax again"


@elementwise_map(normaliser="sum", learned={"width": 1.5})
def cauchy(scores: Tensor, width: Tensor) -> Tensor:
    """The map of docs/own-variant.md, as a stranger would write one."""
    return 1.0 / (1.0 + (scores / width).square())


# by how much of the scores each computes: those that see all keys, then patterns
NAMES = (
    "rela", "sigmoid", "relu-squared", "softpick", "softmax1", "cauchy", "sparsemax", "entmax15", "entmax[alpha=1.25]",
    "scalable-softmax", "differential", "topk", "relative", "window", "window[sink=learned]", "local", "longformer",
    "bigbird", "sparse",
)  # fmt: skip
SHAPES = ((8, 8, 256), (8, 8, 1024), (1, 8, 4096))
SETTINGS = tuple(itertools.product(SHAPES, (False, True), (0.0, 0.1)))
HEAD_DIM = 64
# of the largest entry, beside float64; ReLA's norm multiplies rounding on rows that are nearly null
ALLOWED_ERRORS = {torch.float32: 5e-5, torch.bfloat16: 5e-2}

Pass = Callable[[], list[Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One variant at one setting: `run` makes a pass, `ran` says by which code, `density` what share of scores."""

    run: Pass
    ran: str
    density: float


def passes(attention: Callable[..., Tensor], inputs: list[Tensor], upstream: Tensor | None) -> list[Tensor]:
    """Output and gradients; the output alone, as inference computes it, without `upstream`."""
    if upstream is None:
        with torch.no_grad():
            return [attention(*inputs)]
    leaves = [x.detach().requires_grad_() for x in inputs]
    torch.manual_seed(0)
    output = attention(*leaves)
    # the synthesizer reads no key
    gradients = torch.autograd.grad(output, leaves, upstream, materialize_grads=True)
    return [output.detach(), *gradients]


def drawn(
    batch: int, heads: int, length: int, dtype: torch.dtype, with_hidden: bool = False
) -> tuple[list[Tensor], Tensor]:
    """Queries, keys and values, the hidden state behind them where it is taken, and the gradient of the output."""
    given = torch.randn(5, batch, heads, length, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    query, key, value, upstream, hidden = given.to(dtype)
    return [query, key, value, *([hidden.transpose(1, 2).flatten(2)] if with_hidden else [])], upstream


def subject(
    name: str, impl: str, shape: tuple[int, int, int], causal: bool, rate: float, forward: bool, dtype: torch.dtype
) -> Subject | str:
    """The variant, compared with its definition; or the reason why there is none."""
    batch, heads, length = shape
    selection = (
        name if impl == "auto" else f"{name[:-1]},impl={impl}]" if name.endswith("]") else f"{name}[impl={impl}]"
    )

    def made(tokens: int, dropout: float, of: str = selection) -> Variant:
        torch.manual_seed(0)
        variant = build(
            of, AttentionShape(heads=heads, head_dim=HEAD_DIM, max_length=tokens, causal=causal, dropout=dropout)
        )
        return variant.to(dtype).train(not forward)

    def called(variant: Variant) -> Callable[..., Tensor]:
        return lambda query, key, value, *hidden: variant(query, key, value, Mask(causal=causal), *hidden)

    try:
        variant = made(length, rate)
        small, upstream = drawn(1, heads, 192, dtype, variant.takes_hidden)
        found = passes(called(made(192, 0.0)), small, upstream)
        right = passes(called(made(192, 0.0).double()), [x.double() for x in small], upstream.double())
    except Exception as error:
        return str(error)
    # a gradient is 0 where an input is not read
    worst = max(float((x - y).abs().max() / y.abs().max().clamp(min=1e-9)) for x, y in zip(found, right, strict=True))
    if not worst < ALLOWED_ERRORS[dtype]:
        return f"{worst:.1e} away from float64; not timed"
    inputs, given = drawn(batch, heads, length, dtype, variant.takes_hidden)
    attention, gradient = called(variant), None if forward else given
    run = lambda: passes(attention, inputs, gradient)  # noqa: E731
    run()
    return Subject(run=run, ran=variant.implementation, density=variant.density(variant.shape))


def measured(
    names: list[str], setting: tuple, eager: bool, forward: bool, dtype: torch.dtype, seconds: float
) -> dict[str, object]:
    """One line of the file: ratios of processor time and of time, their quartiles, the code that ran."""
    (batch, heads, length), causal, rate = setting
    inputs, given = drawn(batch, heads, length, dtype)
    upstream = None if forward else given
    whole = lambda *x: F.scaled_dot_product_attention(*x, is_causal=causal)  # noqa: E731
    work: dict[str, Pass] = dict.fromkeys((REFERENCE, AGAIN), lambda: passes(whole, inputs, upstream))
    rows: dict[str, dict[str, object]] = {REFERENCE: {"ran": "SDPA"}, AGAIN: {"ran": "SDPA"}}
    for name, impl in itertools.product(names, ("auto", "eager") if eager else ("auto",)):
        label = name if impl == "auto" else f"{name} · eager"
        found = subject(name, impl, (batch, heads, length), causal, rate, forward, dtype)
        if isinstance(found, str):
            rows[label] = {"left out": found}
        elif impl == "auto" or found.ran != rows[name].get("ran"):
            work[label], rows[label] = found.run, {"ran": found.ran, "density": found.density}
    timing = interleave(
        work, reference=REFERENCE, device=torch.device("cpu"), budget_seconds=seconds, resolution=0.02, least_rounds=3
    )
    base = timing.samples[REFERENCE]
    for label, samples in timing.samples.items():
        ratios = [a / b for a, b in zip(samples.seconds, base.seconds, strict=True)]
        of_processor = [a / b for a, b in zip(samples.cpu_seconds, base.cpu_seconds, strict=True)]
        rows[label] |= {"ratio": statistics.median(ratios), "cpu_ratio": statistics.median(of_processor)}
        rows[label] |= {"quartiles": statistics.quantiles(ratios, n=4)[::2]}
    return {
        **{"shape": [batch, heads, length], "causal": causal, "dropout": rate},
        **{"forward": forward, "dtype": str(dtype)},
        **{"rounds": timing.rounds, "rows": rows, "threads": torch.get_num_threads()},
        **{"softmax_ms": 1e3 * statistics.median(base.seconds), "others": str(timing.system_load)},
        **{"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability()},
    }


def key_of(line: dict) -> str:
    return json.dumps([line["shape"], line["causal"], line["dropout"]])


def table(lines: list[dict]) -> str:
    """Markdown: a row for each subject, a column for each setting; processor time, then wall time in brackets."""
    keys = list(dict.fromkeys(map(key_of, lines)))
    labels = list(dict.fromkeys(label for line in lines for label in line["rows"]))
    head = [f"[{b}, {h}, {n}]{' causal' if causal else ''}{f', dropout {rate:g}' if rate else ''}"
            for (b, h, n), causal, rate in map(json.loads, keys)]  # fmt: skip
    out = ["| | ran as | computes | " + " | ".join(head) + " |", "|---|---|---" + "|---" * len(keys) + "|"]
    for label in labels:
        cells, ran, computes = {}, "", ""
        for line in lines:
            row = line["rows"].get(label, {})
            if "cpu_ratio" in row:
                cells[key_of(line)] = f"{row['cpu_ratio']:.2f} ({row['ratio']:.2f})"
                ran = row["ran"] if row["ran"] in ran else ", ".join(filter(None, (ran, row["ran"])))
                computes = f"{row['density']:.2f}" if "density" in row else ""
            elif row:
                cells[key_of(line)] = row["left out"][:40]
        out.append(f"| {label} | {ran} | {computes} | " + " | ".join(cells.get(key, "") for key in keys) + " |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=";".join(NAMES), help="variants, separated by semicolons")
    parser.add_argument("--shapes", default="", help="of the settings, such as 8,8,1024;1,8,4096; all without it")
    parser.add_argument("--eager", action="store_true", help="time the definitions beside")
    parser.add_argument("--forward", action="store_true", help="time the forward pass alone, in evaluation")
    parser.add_argument("--bfloat16", action="store_true", help="time all in bfloat16")
    parser.add_argument("--minutes", type=float, default=9.5, help="of one call")
    parser.add_argument("--seconds", type=float, default=35.0, help="of one setting, after its warm-up")
    parser.add_argument("--json", type=Path, default=Path("cost_of_mechanisms.jsonl"), help="one line for each setting")
    chosen = parser.parse_args()
    register("cauchy", cauchy)
    names = chosen.only.split(";")
    shapes = {tuple(map(int, each.split(","))) for each in chosen.shapes.split(";") if each} or set(SHAPES)
    text = chosen.json.read_text(encoding="utf-8") if chosen.json.is_file() else ""
    dtype = torch.bfloat16 if chosen.bfloat16 else torch.float32
    kept = map(json.loads, filter(None, text.split("\n")))
    lines = [line for line in kept if (line["forward"], line["dtype"]) == (chosen.forward, str(dtype))]
    started, longest = time.monotonic(), 0.0
    for setting in SETTINGS:
        known = {
            name
            for line in lines
            if key_of(line) == json.dumps([list(setting[0]), *setting[1:]])
            for name in line["rows"]
        }
        missing = [name for name in names if name not in known]
        # dropout is of training alone
        if setting[0] not in shapes or not missing or (chosen.forward and setting[2]):
            continue
        began = time.monotonic()
        if began - started + longest > 60 * chosen.minutes:
            print("The same command measures the other settings.")
            break
        line = measured(missing, setting, chosen.eager, chosen.forward, dtype, chosen.seconds)
        lines.append(line)
        with chosen.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        longest = max(longest, time.monotonic() - began)
        print(f"{setting}: {line['rounds']} rounds, {time.monotonic() - began:.0f} s", flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
