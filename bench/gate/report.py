"""A variant on trial: every property of the gate in each way of using attention, as one report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter

from ...variants.contract import AttentionShape
from ..core.errors import AttnbenchError, SelectionError
from ..core.registry import nearest
from ..core.spec import Spec
from ..measure.machine import choose_device
from .result import Result, as_meant, summary, told_at
from .suite import examine, pass_through
from .twins import Path, paths
from .variant import VariantFactory, VariantSource

LENGTH = 512
"""A multiple of the blocks of every kernel; other properties run one less than that."""
LONGER = 576
"""A length beyond a bound of 512 positions."""
INTERPRETED_LENGTH = 70
"""Two or three tiles of the kernels; Triton's interpreter takes a thousand times as long as the CPU."""
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to use attention."""

    causal: bool
    cross: bool
    padding: bool

    @property
    def head_dim(self) -> int:
        """Two widths, since an overflow or a wrong tile may occur at one of them only."""
        return 16 if self.padding else 64

    @property
    def heads(self) -> int:
        """More than four in one of them, since a kernel may take heads by fours."""
        return 8 if self.padding else 2

    @property
    def length(self) -> int:
        """Positions; no power of two where it looks back, since a table or a kernel may end at 512."""
        return LONGER if self.causal and self.padding else LENGTH

    def __str__(self) -> str:
        kind = "cross" if self.cross else "causal" if self.causal else "self"
        return f"{kind}, padding" if self.padding else kind


SETTINGS = tuple(
    Setting(causal, cross, padding)
    for padding in (True, False)
    for causal, cross in ((False, False), (True, False), (False, True))
)

INTERPRETED = tuple(setting for setting in SETTINGS if setting.padding or setting.causal)
"""The settings where Triton's interpreter, which is slow, runs the kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """`results` by setting; `paths`: the implementations; `problem`: why the variant does not build, empty if it does.

    The report is true where no property fails.
    """

    name: str
    results: tuple[tuple[Setting, Result], ...]
    seconds: float
    problem: str = ""
    #: how code that was not written for the contract is called, and where it ran
    note: str = ""
    paths: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return not self.problem and not self.failures

    @property
    def failures(self) -> list[Result]:
        """One result for each property that fails, in the worst setting."""
        return [result for _, result in self.worst() if result.held is False]

    @property
    def unsupported(self) -> str:
        """Why no property applies here, such as a path that this machine cannot run; empty where one does."""
        if not self.results or any(result.held is not None for _, result in self.results):
            return ""
        return self.results[0][1].detail

    @property
    def first_error(self) -> str:
        """The first error if every property that applies raised one: they usually share one cause."""
        tested = [result for _, result in self.worst() if result.held is not None]
        raised = tested and all(result.held is False and result.detail.startswith("raised ") for result in tested)
        return f"no property could be tested; the first attempt {tested[0].detail}" if raised else ""

    def worst(self) -> list[tuple[Setting, Result]]:
        """Each property in its worst setting: what fails first. Of reasons why it does not apply, its own before one
        that refuses a whole setting."""
        alike = Counter((setting, result.detail) for setting, result in self.results)

        def weight(setting: Setting, result: Result) -> tuple[float, ...]:
            return *result.severity, -alike[setting, result.detail]

        found: dict[str, tuple[Setting, Result]] = {}
        for setting, result in self.results:
            known = found.get(result.property)
            if known is None or weight(setting, result) > weight(*known):
                found[result.property] = (setting, result)
        return sorted(found.values(), key=lambda each: told_at(each[1]))

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name}: {self.problem}"
        if self.unsupported:
            return f"{self.name}: unsupported here, nothing was checked: {self.unsupported}"
        text = f"{self.name}: {summary(result for _, result in self.worst())}; {self.seconds:.1f} s"
        return "\n".join(filter(None, [text, self.note]))

    @property
    def undecided(self) -> tuple[str, ...]:
        """Properties whose author has to be asked; the report is not false by them."""
        return tuple(result.property for _, result in self.worst() if result.verdict == "asks")

    @property
    def tried_all(self) -> bool:
        """Nothing is left that was not tried or decided."""
        return bool(self) and all(result.verdict not in ("asks", "not tried") for _, result in self.worst())


def check_variant(
    variant: VariantSource | VariantFactory,
    name: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    sizes: tuple[int | None, int | None] = (None, None),
    note: str = "",
    causal: bool | None = None,
    by_design: Collection[str] = (),
    part: int = 0,
    parts: int = 1,
) -> CheckReport:
    """Examines `variant` in every `parts`-th setting, from `part` on, after a pass in each of the others: what it keeps
    from one to the next, such as a mask under too short a key, is seen whatever the count of parts.

    causal: whether a module of anybody claims to be; None asks it. by_design: names of properties that it breaks on
    purpose. Raises SelectionError for a module that no call fits, or an unknown dtype, DeviceError for a device.
    """
    if dtype not in DTYPES:
        raise SelectionError(f"expected a dtype of {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, got {dtype!r}")
    choose_device(device)
    start = perf_counter()
    results: list[tuple[Setting, Result]] = []
    found: list[Path] = []
    problem = ""
    interpreted = isinstance(variant, Spec) and variant.get("impl") == "triton" and device == "cpu"

    def shape_in(setting: Setting) -> AttentionShape:
        heads, width = sizes
        if width is not None:
            heads = heads or next(n for n in (setting.heads, 1) if width % n == 0)
        heads = heads or setting.heads
        return AttentionShape(
            heads=heads,
            head_dim=setting.head_dim if width is None else width // heads,
            max_length=min(LENGTH, INTERPRETED_LENGTH) if interpreted else setting.length,
            **asdict(setting),
            dtype=dtype,
            device=device,
        )

    settings = INTERPRETED if interpreted else SETTINGS
    try:
        for setting in settings:
            if setting not in settings[part::parts]:
                pass_through(variant, shape_in(setting))
        for setting in settings[part::parts]:
            shape = shape_in(setting)
            if not results:
                # a class that takes `causal` is examined as the layer that it is asked to be
                made = VariantFactory.of(variant).make(replace(shape, causal=causal is not False))
                note = "; ".join(filter(None, [getattr(made, "found", ""), note]))
                audited = getattr(made, "audited", None)
                if audited is None and (causal is not None or by_design):
                    raise SelectionError(
                        f"{name} says itself what it promises: --causal, --no-causal and --by-design are for a layer, "
                        "function or model that was not written for attnbench"
                    )
                if part == 0 and audited is not None:
                    # as it is called by itself, beside what it is as a variant of a model
                    results += [(setting, result) for result in audited(causal)]
            results += [(setting, result) for result in examine(variant, shape)]
            found += paths(variant, shape)
    except SelectionError:
        raise
    except AttnbenchError as error:
        problem = str(error)
    except Exception as error:
        problem = f"does not build: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    known = list(dict.fromkeys(result.property for _, result in results))
    unknown = sorted(set(by_design) - {*known}) if known and part == 0 else []
    if unknown:
        near = nearest(unknown[0], known)
        raise SelectionError(f"expected by design some of {', '.join(known)}; got {unknown[0]!r}{near}")
    meant = {*by_design, *(["causal"] if causal is False else ())}
    return CheckReport(
        name=name,
        results=tuple(
            (setting, result)
            for (setting, _), result in zip(results, as_meant([each for _, each in results], meant), strict=True)
        ),
        seconds=perf_counter() - start,
        problem=problem,
        paths=once_each(found),
        note=note,
    )


def once_each(found: Sequence[Path]) -> tuple[Path, ...]:
    """Each path once, in the order of its first: one that runs in some setting has been checked."""
    by_name = {path.name: path for path in sorted(found, key=lambda path: not path.refusal)}
    return tuple(by_name[name] for name in dict.fromkeys(path.name for path in found))


def unchecked(reports: list[CheckReport]) -> Iterator[str]:
    """One line for each reason not to check a path, with the variants that have such a path."""
    names: dict[str, list[str]] = {}
    for report in reports:
        for path in report.paths:
            if path.refusal:
                names.setdefault(path.refusal, []).append(report.name)
    for refusal, refused in names.items():
        yield f"not checked of {', '.join(refused)}: {refusal}"
