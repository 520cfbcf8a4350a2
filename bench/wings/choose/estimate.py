"""Estimates of the time of attention alone, at a shape that nobody timed: counted work, calibrated by timings.

The work is FLOPs and bytes, over the peaks of the device. Timings of the same variant say by how much longer it takes,
and which part of that does not grow. `trials` tests the same rule on timings that are left out.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, median
from typing import Literal

from ....variants.contract import AttentionShape, Variant
from ...core.cell import REFERENCE
from ...core.errors import PluginError, SelectionError, Unsupported
from ...core.files import PACKAGE
from ...core.registry import VARIANTS
from ...core.spec import Spec
from ...measure.devices import Device, devices
from ...measure.flops import RECOMPUTED, pairs_of
from ...process.ask import Reporter, Request, ask
from ...run.estimate import LAUNCH_SECONDS, machines
from ...score.cost import Mode
from ...store.table import ResultTable
from .models import LATENT, ModelShape

Evidence = Literal["measured", "calibrated", "other device", "counted"]
"""Timed at this shape; timed at others on this device; timed on another; not timed, and like others of its family."""

CALL_SECONDS = {"card": LAUNCH_SECONDS, "processor": 5e-5}
"""The least time of a call, by kind of device."""

NEAR, REACH = 2.0, 4.0
"""Doublings of length, heads and width up to which a timing is near, and up to which the back-test reaches."""

LEVEL = 0.9
"""The share of back-tests whose error is at most the factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One call of a variant. `work`: its seconds at the peaks of its device; `heads`: over all sequences."""

    device: str
    kind: str
    variant: str
    family: str
    mode: Mode
    length: int
    heads: int
    head_dim: int
    causal: bool
    input: str
    work: float

    @property
    def shape(self) -> tuple[object, ...]:
        return self.length, self.heads, self.head_dim, self.causal, self.input

    def distance(self, other: AttentionCall) -> float:
        """Doublings from one shape to the other; another mask, or inputs of another structure, count half a one."""
        sizes = zip((self.length, self.heads, self.head_dim), (other.length, other.heads, other.head_dim), strict=True)
        differs = (self.causal != other.causal) + (self.input != other.input)
        return sum(abs(math.log2(one / two)) for one, two in sizes) + 0.5 * differs


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    target: AttentionCall
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """`distance`: doublings to the nearest timing that it is calibrated by."""

    seconds: float
    evidence: Evidence
    distance: float = 0.0


Trial = tuple[AttentionCall, Guess, float]
"""A timing that was left out, the guess of it, and the logarithm of the guess over the timing."""


@dataclass(frozen=True, slots=True)
class Describe(Request[tuple[float, float, int] | None]):
    """The share of the scores that a variant computes, that of the last row alone, and the bytes of its state.

    None where it has no causal form or cannot decode, if the shape is causal.
    """

    variant: Spec
    shape: AttentionShape

    def answer(self, reporter: Reporter) -> tuple[float, float, int] | None:
        shape, before = self.shape, replace(self.shape, max_length=self.shape.max_length - 1)
        variant: Variant = VARIANTS.build(self.variant, shape)
        kept = variant.state_bytes(shape)
        if shape.causal and kept is None:
            return None
        here, shorter = (variant.density(each) * pairs_of(each.max_length, each.max_length, True)
                         for each in (shape, before))  # fmt: skip
        return variant.density(shape), (here - shorter) / shape.max_length, kept or 0


@cache
def described(spec: Spec, shape: AttentionShape) -> tuple[float, float, int] | None:
    """The answer of `Describe`; None also for a variant that does not support the shape.

    Raises SelectionError for a name that is none, or a parameter that the variant refuses.
    """
    try:
        return ask(VARIANTS, spec.name, Describe(spec, shape))
    except (Unsupported, PluginError):
        return None


@cache
def family_of(spec: Spec) -> str:
    """The folder of a variant's module: `linear`, `sparse` …; maps and scores are dense, and one family."""
    target = next((each.target for each in VARIANTS.entries() if each.name == spec.variants[0].name), "")
    folder = target.rpartition(".")[0].rpartition(".")[2]
    return "dense" if folder in ("maps", "scores") or spec == LATENT else folder


def target_of(
    spec: Spec, shape: AttentionShape, mode: Mode, device: Device, *, batch: int = 1, input: str = "iid",
    model: ModelShape | None = None,
) -> tuple[AttentionCall, int] | None:  # fmt: skip
    """The call with its counted work, and the bytes of its state; None where the variant has no such call.

    model: whose ranks `mla` takes, DeepSeek-V3's if None.
    """
    length, pairs = shape.max_length, pairs_of(shape.max_length, shape.max_length, shape.causal)
    if spec == LATENT:
        rank, rope, nope = model.latent if model else (512, 64, 128)
        kept = full = (rank + rope) * length * shape.bytes_per_value
        # decoding multiplies with the latent vectors themselves, prefill with the keys and values made of them
        widths = 2 * rank + rope if mode == "decode" else nope + rope + shape.head_dim
        share, last = widths / (2 * shape.head_dim), 1.0
    else:
        found = described(spec, shape)
        if found is None:
            return None
        share, last, kept = found
        full = 2 * shape.kv_width * length * shape.bytes_per_value
    scores = length * last if mode == "decode" and spec != LATENT else share * (length if mode == "decode" else pairs)
    read = kept if kept < full else full * last
    moved = read if mode == "decode" else 2 * (shape.width + shape.kv_width) * length * shape.bytes_per_value
    passes = 1 + RECOMPUTED if mode == "step" else 1
    peak = device.bfloat16 if shape.bytes_per_value == 2 else device.float32
    flops = 4.0 * shape.width * scores
    work = batch * passes * (flops / peak + moved / device.bytes_per_second)
    target = AttentionCall(
        device=device.name, kind=device.kind, variant=str(spec), family=family_of(spec), mode=mode, length=length,
        heads=batch * shape.heads, head_dim=shape.head_dim, causal=shape.causal, input=input, work=work,
    )  # fmt: skip
    return target, kept


def guess(target: AttentionCall, timings: Iterable[Timing]) -> Guess:
    """The time of a call by the timings of the same mode and kind of device, the best evidence that there is."""
    alike = [each for each in timings if each.target.mode == target.mode and each.target.kind == target.kind]
    same = [each for each in alike if each.target.variant == target.variant]
    here = [each for each in same if each.target.device == target.device]
    if exact := [each.seconds for each in here if each.target.shape == target.shape]:
        return Guess(seconds=median(exact), evidence="measured")
    for known, evidence in ((here, "calibrated"), (same, "other device")):
        if known:
            nearest = min(target.distance(each.target) for each in known)
            return Guess(seconds=_calibrated(target, known), evidence=evidence, distance=nearest)  # type: ignore[arg-type]
    others = [each for each in alike if each.target.family == target.family] or alike
    others = [each for each in others if each.target.device == target.device] or others
    by_variant: dict[str, list[Timing]] = {}
    for each in others:
        by_variant.setdefault(each.target.variant, []).append(each)
    found = [_calibrated(target, each) for each in by_variant.values()]
    return Guess(seconds=median(found) if found else target.work + CALL_SECONDS[target.kind], evidence="counted")


def _calibrated(target: AttentionCall, known: Sequence[Timing]) -> float:
    """Seconds by timings of one variant: what does not grow, from the least and the most work; then the nearest."""
    least, most = (pick(known, key=lambda each: each.target.work) for pick in (min, max))
    still = CALL_SECONDS[target.kind]
    if len(known) > 2 and most.target.work > 2 * least.target.work and most.seconds > least.seconds:
        slope = (most.seconds - least.seconds) / (most.target.work - least.target.work)
        still = max(0.0, least.seconds / slope - least.target.work)
    distances = [target.distance(each.target) for each in known]
    nearest = [each for each, far in zip(known, distances, strict=True) if far < min(distances) + 1e-9]
    logs = [math.log(each.seconds / (each.target.work + still)) for each in nearest]
    return (target.work + still) * math.exp(fmean(logs))


def trials(timings: Sequence[Timing]) -> Iterator[Trial]:
    """Each timing, guessed from the others: without its shape, without what is near too, its device, its variant."""
    for one in timings:
        target = one.target
        alike = [each for each in timings if each.target.mode == target.mode and each.target.kind == target.kind]
        own = [each for each in alike if (each.target.variant, each.target.device) == (target.variant, target.device)]
        left: list[list[Timing]] = [
            [each for each in own if each.target.shape != target.shape and target.distance(each.target) >= least]
            for least in (0.0, NEAR, NEAR + 1)
        ]
        same = [each for each in alike if each.target.variant == target.variant]
        left.append([each for each in same if each.target.device != target.device])
        left.append([each for each in alike if each.target.variant != target.variant])
        for known in left:
            if known:
                found = guess(target, known)
                yield target, found, math.log(found.seconds / one.seconds)


def group_of(kind: str, found: Guess) -> tuple[str, str]:
    """The kind of device and the words by which errors are told apart."""
    far = " near" if found.distance <= NEAR else " far"
    return kind, found.evidence + (far if found.evidence == "calibrated" else "")


def quantile(errors: Iterable[float], level: float = LEVEL) -> float:
    """The factor that a share `level` of the errors, as logarithms, does not exceed on either side."""
    ordered = sorted(map(abs, errors))
    return math.exp(ordered[math.ceil(level * len(ordered)) - 1])


def factors_of(tried: Iterable[Trial]) -> Callable[[str, Guess], float]:
    """The factor of uncertainty of a guess, by the errors of the trials that were like it."""
    errors: dict[tuple[str, str], list[float]] = {}
    for target, found, error in tried:
        errors.setdefault(group_of(target.kind, found), []).append(error)
    known = {group: quantile(each) for group, each in errors.items()}
    worst = max(known.values(), default=10.0)

    def factor(kind: str, found: Guess) -> float:
        if found.evidence == "measured":
            return 1.0
        # farther than any trial the error is taken to grow with each doubling as it did up to there
        beyond = max(1.0, found.distance / REACH) if found.evidence == "calibrated" else 1.0
        return float(known.get(group_of(kind, found), worst) ** beyond)

    return factor


def published_timings() -> Iterator[Timing]:
    """The timings of `timings.toml`, and those of `tasks/published/kernels.toml`: 16k tokens of width 2,048."""
    tables = tomllib.loads((PACKAGE / "bench/wings/choose/timings.toml").read_text(encoding="utf-8"))["tables"]
    rows = [dict(zip(table["columns"], row, strict=True)) | {"device": table["device"]}
            for table in tables for row in table["rows"]]  # fmt: skip
    figures = tomllib.loads((PACKAGE / "tasks/published/kernels.toml").read_text(encoding="utf-8"))["figures"]
    for one in figures:
        heads, batch = 2048 // one["head_dim"], 16384 // one["length"]
        flops = 4.0 * batch * one["length"] ** 2 * 2048
        rows += [
            {"variant": f"{REFERENCE}[impl={kernel}]", "mode": "forward", "batch": batch, "length": one["length"],
             "heads": heads, "kv_heads": heads, "head_dim": one["head_dim"], "causal": one["causal"],
             "ms": 1e-9 * flops / rate, "device": "h100"}
            for kernel, rate in one["kernels"].items()
        ]  # fmt: skip
    for row in rows:
        shape = AttentionShape(
            heads=row["heads"], kv_heads=row["kv_heads"], head_dim=row["head_dim"], max_length=row["length"],
            causal=row["causal"], dtype="bfloat16",
        )  # fmt: skip
        device, spec = devices()[row["device"]], Spec.parse(row["variant"])
        # softmax has other kernels than our own
        known = Spec(REFERENCE) if spec.name == REFERENCE else spec
        if found := target_of(known, shape, row["mode"], device, batch=row["batch"]):
            yield Timing(target=replace(found[0], variant=str(spec)), seconds=row["ms"] / 1e3)


def device_of(table: ResultTable, machine: str) -> Device:
    """The sizes of a machine of Records: of a card by its data sheet, else as a plan counts with them."""
    about = table.machines[machine]
    for device in devices().values():
        if about.accelerators and about.accelerators[0].startswith(device.card):
            return device
    (rates,) = machines("cpu", about.threads)
    return Device(
        name=machine, card=about.words, memory_bytes=about.memory_bytes, bytes_per_second=rates.bytes,
        bfloat16=rates.bfloat16, float32=rates.float32, source="bench/run/estimate.py",
        kind="card" if about.accelerators else "processor",
    )  # fmt: skip


def stored_timings(table: ResultTable) -> Iterator[Timing]:
    """The timings of attention alone among the Records that count."""
    sizes = {
        machine: device_of(table, machine) for machine in {row.machine for row in table.current if row.lane == "time"}
    }
    for row in table.current:
        one = row.setting
        known = {"batch", "heads", "width", "length"} <= one.keys() and one.get("level") == "attention"
        if row.lane != "time" or row.outcome != "ok" or not known or one.get("compile") or one.get("padding"):
            continue
        heads = max(int(one["heads"]), 1)
        shape = AttentionShape(
            heads=heads, head_dim=int(one["width"]) // heads, kv_heads=one.get("kv_heads") or 0,
            max_length=int(one["length"]), causal=bool(one.get("causal")), dtype=str(one.get("dtype") or "float32"),
        )  # fmt: skip
        mode: Mode
        for mode in ("step", "forward", "decode"):
            timed = table.number(f"{mode}_seconds", row.at)
            # a variant whose package is not installed here cannot be counted
            with suppress(SelectionError):
                found = timed and timed.value > 0 and target_of(
                    Spec.parse(row.variant), shape, mode, sizes[row.machine], batch=int(one["batch"]),
                    input=str(one.get("input")),
                )  # fmt: skip
                if timed and found:
                    yield Timing(target=found[0], seconds=timed.value)
