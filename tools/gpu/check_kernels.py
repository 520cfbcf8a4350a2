"""Triton kernels on a CUDA device: are they right? `python tools/gpu/check_kernels.py`, within nine minutes.

First a run of the harness itself, then each kernel through `name[impl=triton]` against float64 eager, forward and
backward, as a multiple of the error of the eager path in the same dtype: on clustered inputs, whose lists of tiles are
shortened, as strided slices of a joined projection, beyond 512 positions, without gradients, repeated bit for bit, and
replayed as a CUDA graph. A process for each case, since after an illegal access nothing else would be right in the same
one, and a time limit for each. Last comes a short table, and beside it a JSON file. Suites time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

VARIANTS = (
    "rela", "entmax15", "sparsemax", "entmax[alpha=1.25]", "entmax[alpha=learned]", "rela[norm=head]", "linear",
    "local[query_block=64]", "routing[form=strict]", "additive-lm", "relative", "additive",
)  # fmt: skip
# a kernel sums in another order than the eager path, and may be this much worse
LARGEST_MULTIPLE = 4.0
SMALLEST_ERROR = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
# the float64 eager form of additive holds queries * keys * hidden numbers
LONGEST = {"additive": 512}
# lists of tiles are shortened in place, of which a race would show now and then
SHORTENING = ("sparsemax", "entmax")
# kernels that drop attention weights inside
DROPPING = ("rela", "sparsemax", "entmax", "local", "routing", "relative")
MASK_SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One process. `strided`: slices of a joined projection. `graph`: capture forward and backward, and replay them.

    `repeats`: runs that must give the same bits. `dropout`: of the weights, in training, by one mask in all forms.
    """

    name: str
    variant: str
    dtype: str
    queries: int
    keys: int
    head_dim: int
    batch: int = 2
    inputs: str = "iid"
    causal: bool = True
    padding: bool = False
    strided: bool = False
    graph: bool = False
    repeats: int = 3
    dropout: float = 0.0

    def __str__(self):
        return f"{self.variant:22} {self.name:10} {self.dtype:8} {self.queries:5} x {self.keys:5} x {self.head_dim:3}"


def cases(variants, *, rehearse, everything):
    """Every case, the most telling of all variants first."""
    if rehearse:
        tiny = Case(name="tiny", variant="", dtype="float16", queries=40, keys=40, head_dim=16, inputs="clustered")
        kinds = [
            replace(tiny, strided=True),
            replace(tiny, name="padded", causal=False, padding=True),
            replace(tiny, name="dropout", dropout=0.3),
        ]
    else:
        half = Case(name="clustered", variant="", dtype="bfloat16", queries=2048, keys=2048, head_dim=64)
        kinds = [
            replace(half, inputs="clustered", strided=True),
            replace(half, name="graph", queries=1024, keys=1024, inputs="local", graph=True),
            replace(half, name="padded", queries=777, keys=777, head_dim=128, causal=False, padding=True),
            replace(half, name="dropout", queries=1024, keys=1024, inputs="local", dropout=0.1),
            replace(half, name="decoding", dtype="float16", queries=100, keys=411, head_dim=80),
        ]
        if everything:
            kinds += [
                replace(half, name="single", dtype="float32", queries=1024, keys=1024, inputs="clustered"),
                # more than the second dimension of a grid of blocks holds
                replace(half, name="many", queries=16, keys=16, batch=33_000),
            ]
    found = []
    for kind in kinds:
        for variant in variants:
            if kind.dropout and not variant.startswith(DROPPING):
                continue
            longest = LONGEST.get(variant.split("[")[0], kind.keys)
            case = replace(kind, variant=variant, queries=min(kind.queries, longest), keys=min(kind.keys, longest))
            if kind.name == "clustered" and variant.startswith(SHORTENING):
                case = replace(case, repeats=200)
            found.append(case)
    return found


def forced(selection, impl):
    return f"{selection[:-1]},impl={impl}]" if selection.endswith("]") else f"{selection}[impl={impl}]"


def answer(case, device):
    """In a process of its own: what came of one case, as a dictionary."""
    import torch

    from attnbench.bench.core.errors import Unsupported
    from attnbench.variants import AttentionShape, Mask, build

    # the queries of local are the last of one sequence
    cross = case.queries != case.keys and not case.variant.startswith("local")
    asked = AttentionShape(
        heads=2, head_dim=case.head_dim, max_length=case.keys, causal=case.causal, cross=cross, padding=case.padding,
        dtype=case.dtype, device=device, dropout=case.dropout,
    )  # fmt: skip
    inputs, upstream = _drawn(case, device)
    real = torch.full((case.batch, 1), case.keys, device=device)
    real[1] = case.keys // 3
    valid = torch.arange(case.keys, device=device) < real if case.padding else None
    mask = Mask(valid=valid, causal=case.causal)
    try:
        kernel, eager, truth = (
            build(forced(case.variant, impl), asked).to(device).train(case.dropout > 0.0)
            for impl in ("triton", "eager", "eager")
        )
        eager.load_state_dict(kernel.state_dict())
        truth.load_state_dict(kernel.state_dict())
        truth.double()
        true = _pass(truth, [x.double() for x in inputs], mask, upstream.double())
        ours, theirs = (_errors(_pass(module, inputs, mask, upstream), true) for module in (kernel, eager))
        with torch.no_grad():
            # the path without gradients records nothing, and is compiled apart
            torch.manual_seed(MASK_SEED)
            inference = _errors([kernel(*(x.detach() for x in inputs), mask)], true[:1])
        first = _pass(kernel, inputs, mask, upstream)
        same = all(_equal(first, _pass(kernel, inputs, mask, upstream)) for _ in range(case.repeats))
        replayed = not case.graph or _equal(first, _replayed(kernel, inputs, mask, upstream))
    except Unsupported as refusal:
        return {"outcome": "refused", "detail": str(refusal)}
    multiple = max(
        our[0] / max(their[0], SMALLEST_ERROR[case.dtype])
        for our, their in zip([*ours, *inference], [*theirs, *theirs[:1]], strict=True)
    )
    right = multiple <= LARGEST_MULTIPLE and same and replayed
    worst = max(ours)
    return {
        "outcome": "right" if right else "WRONG", "multiple": round(multiple, 2), "worst": worst[0], "at": worst[1],
        "same_bits": same, "graph": replayed, "ran": kernel.implementation,
        "detail": "" if right else f"largest error {worst[0]:.1e} at {worst[1]}, same bits {same}, graph {replayed}",
    }  # fmt: skip


def _drawn(case, device):
    """Query, key and value in the dtype of the case, as it wants them to lie, and the gradient of the output."""
    import torch

    from attnbench.tasks.sweep_inputs import draw_heads

    of = getattr(torch, case.dtype)
    drawn = draw_heads(case.inputs, case.batch, 2, case.keys, case.head_dim, seed=1)
    query, key, value = (torch.from_numpy(x).to(device, of) for x in (drawn.query, drawn.key, drawn.value))
    if case.strided:
        # (batch, length, 3, heads, head_dim), as one projection gives them
        joined = torch.stack([query, key, value], 2).permute(0, 3, 2, 1, 4).contiguous()
        query, key, value = joined.permute(2, 0, 3, 1, 4).unbind(0)
    query = query[:, :, case.keys - case.queries :]
    generator = torch.Generator(device).manual_seed(2)
    upstream = torch.randn(case.batch, 2, case.queries, case.head_dim, device=device, generator=generator).to(of)
    return [query, key, value], upstream


def _pass(module, inputs, mask, upstream):
    """Output, and the gradients of the inputs and of the parameters that have one."""
    import torch

    # of which each form draws the seed of its mask, where weights are dropped
    torch.manual_seed(MASK_SEED)
    leaves = [x.detach().requires_grad_() for x in inputs] + [p for p in module.parameters() if p.requires_grad]
    output = module(*leaves[:3], mask)
    return [output.detach(), *torch.autograd.grad(output, leaves, upstream, allow_unused=True)]


def _replayed(module, inputs, mask, upstream):
    """The same pass from a CUDA graph that was captured on other numbers."""
    import torch

    given = [x.detach().clone() for x in inputs]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            _pass(module, given, mask, upstream)
    torch.cuda.current_stream().wait_stream(stream)
    for x in given:
        x.mul_(0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = _pass(module, given, mask, upstream)
    for x, wanted in zip(given, inputs, strict=True):
        x.copy_(wanted)
    graph.replay()
    torch.cuda.synchronize()
    return found


def _equal(one, other):
    import torch

    return all(a is None or torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _errors(found, true):
    """The largest error of output and gradients over the largest entry of the truth, inf for NaN, and its place."""
    import torch

    errors = []
    for ours, exact in zip(found, true, strict=True):
        if ours is not None and exact is not None:
            gap = (ours.double() - exact).abs() / exact.abs().max().clamp(min=1e-12)
            gap = gap.nan_to_num(nan=float("inf"))
            at = int(gap.argmax())
            place = [int(i) for i in torch.unravel_index(torch.tensor(at), gap.shape)]
            errors.append((float(gap.flatten()[at]), place))
    return errors


def in_process(case, device, seconds):
    """The answer of a process for `case`, or why there is none."""
    command = [sys.executable, __file__, "--case", json.dumps(asdict(case)), "--device", device]
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"outcome": "TIMEOUT", "detail": f"over {seconds:.0f} s", "seconds": seconds}
    lines = done.stdout.strip().split("\n")
    try:
        found = json.loads(lines[-1])
    except json.JSONDecodeError:
        found = {"outcome": "CRASHED", "detail": f"exit code {done.returncode}: {' '.join(done.stderr.split())[-400:]}"}
    return found | {"seconds": round(time.monotonic() - started, 1)}


def harness(device, seconds):
    """One small run of the harness on this device, from the command to Records."""
    with tempfile.TemporaryDirectory() as folder:
        words = "run --variants rela,entmax15 --task lra-listops --preset smoke --seeds 1"
        command = [sys.executable, "-m", "attnbench", *words.split(), "--device", device, "--results", folder]
        started = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
            said, code = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired as late:
            said, code = f"over {seconds:.0f} s: {late.stdout or b''}", -1
        failed = [line for line in said.split("\n") if "crashed" in line or "incorrect" in line or "Error" in line]
        outcome = "right" if code == 0 and not failed else "WRONG"
        detail = " | ".join(failed or said.strip().split("\n")[-3:])[-400:] if outcome == "WRONG" else ""
        return {"outcome": outcome, "detail": detail, "seconds": round(time.monotonic() - started, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no case that could end later")
    parser.add_argument("--seconds", type=float, default=150.0, help="limit of one case, compilation included")
    parser.add_argument("--variants", nargs="+", default=VARIANTS, help="which to check")
    parser.add_argument("--all", action="store_true", help="float32, and more sequences than a grid's dimension holds")
    parser.add_argument("--no-harness", action="store_true", help="leave the run of the harness out")
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1), help="processes at once")
    parser.add_argument("--json", metavar="PATH", default="check_kernels.json", help="file of all answers")
    parser.add_argument("--rehearse", action="store_true", help="try the script at tiny sizes, interpreted on this CPU")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(answer(Case(**json.loads(arguments.case)), arguments.device)))
        return 0
    end = time.monotonic() + 60 * arguments.minutes
    if arguments.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"
    import torch
    import triton

    if not arguments.rehearse and not torch.cuda.is_available():
        print("skipped: no CUDA device; without one `pytest tests/variants/kernels/triton` proves the kernels")
        return 0
    device = "cpu" if arguments.rehearse else "cuda"
    machine = "rehearsal, interpreted" if arguments.rehearse else torch.cuda.get_device_name()
    title = f"{machine}, torch {torch.__version__}, triton {triton.__version__}"
    print(title, flush=True)
    answers = []

    def note(name, found):
        answers.append({"name": str(name)} | found)
        detail = found.get("detail") or f"{found.get('multiple', '')} x the error of eager"
        print(f"{found['seconds']:6.1f} s  {found['outcome']:8} {name}  {detail}", flush=True)
        # after each, so that an interruption loses nothing
        Path(arguments.json).write_text(json.dumps({"on": title, "answers": answers}, indent=1), encoding="utf-8")

    if not (arguments.no_harness or arguments.rehearse):
        # its gate compiles one kernel after the other
        note("the harness", harness(device, min(2 * arguments.seconds, end - time.monotonic())))

    def one(case):
        left = end - time.monotonic()
        if left < 10.0:
            return case, {"outcome": "no time", "detail": "", "seconds": 0.0}
        return case, in_process(case, device, min(arguments.seconds, left))

    asked = cases(arguments.variants, rehearse=arguments.rehearse, everything=arguments.all)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for case, found in pool.map(one, asked):
            note(case, found | {"case": asdict(case)})
    print(f"\n{title}: {len(answers)} cases")
    outcomes = [one["outcome"] for one in answers]
    for outcome in ("right", "refused", "no time", "WRONG", "CRASHED", "TIMEOUT"):
        if outcome in outcomes:
            named = "" if outcome == "right" else ": " + ", ".join(
                " ".join(one["name"].split()[:2]) for one in answers if one["outcome"] == outcome
            )  # fmt: skip
            print(f"{outcomes.count(outcome):4} {outcome}{named}")
    return 1 if {"WRONG", "CRASHED", "TIMEOUT"} & set(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
