"""`attnbench check`: what a variant promises, tested, as a table or as JSON."""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import AttnbenchError, DeviceError, SelectionError, Unsupported
from ..core.registry import VARIANTS
from ..core.spec import Spec, parse_selection

if TYPE_CHECKING:
    from ...variants.contract import AttentionShape
    from ..gate import GateResult, Path

HEADS, LENGTH = 2, 384
STYLES = {"holds": "green", "fails": "bold red", "n.a.": "dim"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to use attention; all six of them are examined, four where Triton's interpreter takes its time."""

    causal: bool
    cross: bool
    padding: bool

    @property
    def head_dim(self) -> int:
        """Two widths, since what overflows or is tiled may do so at one of them only."""
        return 16 if self.padding else 64

    def __str__(self) -> str:
        kind = "cross" if self.cross else "causal" if self.causal else "self"
        return f"{kind}, padding" if self.padding else kind


SETTINGS = tuple(
    Setting(causal, cross, padding)
    for padding in (True, False)
    for causal, cross in ((False, False), (True, False), (False, True))
)


INTERPRETED = tuple(setting for setting in SETTINGS if setting.padding or setting.causal)


@dataclass(frozen=True, slots=True)
class Examined:
    """One variant: its findings by setting and its paths, or why it could not be examined at all."""

    name: str
    findings: tuple[tuple[Setting, GateResult], ...]
    seconds: float
    problem: str = ""
    paths: tuple[Path, ...] = ()

    @property
    def unsupported(self) -> str:
        """Why nothing at all applies here, such as a path that this machine cannot run; empty where something does."""
        if not self.findings or any(finding.held is not None for _, finding in self.findings):
            return ""
        return self.findings[0][1].detail

    @property
    def red(self) -> bool:
        return bool(self.problem) or any(finding.held is False for _, finding in self.findings)

    def rows(self) -> list[tuple[Setting, GateResult]]:
        """One for each property: its worst setting, in the order of the gate."""
        worst: dict[str, tuple[Setting, GateResult]] = {}
        for setting, finding in self.findings:
            known = worst.get(finding.property)
            if known is None or _severity(finding) > _severity(known[1]):
                worst[finding.property] = (setting, finding)
        return list(worst.values())

    def summary(self) -> str:
        if self.problem:
            return f"{self.name}: {self.problem}"
        if self.unsupported:
            return f"{self.name}: unsupported here, nothing was checked: {self.unsupported}"
        rows = self.rows()
        count = {verdict: sum(f.verdict == verdict for _, f in rows) for verdict in STYLES}
        failed = ", ".join(f.property for _, f in rows if f.held is False)
        text = f"{self.name}: {count['holds']} hold, {count['fails']} fail, {count['n.a.']} not applicable"
        return f"{text}; {self.seconds:.1f} s" + (f"; red: {failed}" if failed else "")

    def path_lines(self) -> Iterator[str]:
        """Which paths were compared with the eager definition, and why others were not."""
        if self.unsupported or not self.paths:
            return
        compared = ", ".join(path.name for path in self.paths if not path.refusal)
        yield f"{self.name}: paths checked against the eager definition: {compared or 'none'}"
        for path in self.paths:
            if path.refusal:
                yield f"{self.name}: path {path.name} was not checked: {path.refusal}"


def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="Variants, such as `rela` or `local\\[flange=64]`.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check every installed variant.")] = False,
    device: Annotated[str, typer.Option(help="Where to examine: cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Precision to examine in: float32, bfloat16, float16.")] = "float32",
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one object for each finding.")] = False,
) -> None:
    """Test what variants promise: causality, padding, gradients, precision, decoding.

    Exit code 1 where one fails, 6 where one that is named cannot run here, such as `rela\\[impl=triton]` without a GPU.
    """
    specs = _specs(names or [], every)
    _require(device, dtype)
    # one table for one or a few; for all of them a line each, and the table of those that fail
    brief = every or len(specs) > 3
    examined = []
    for spec in specs:
        examined.append(_examine(spec, device, dtype))
        if not json:
            _print(examined[-1], brief)
    if json:
        typer.echo(json_format.dumps([row for one in examined for row in _objects(one)], indent=2))
    elif len(examined) > 1:
        red = sum(one.red for one in examined)
        typer.echo(f"{len(examined) - red} of {len(examined)} variants hold all that applies to them")
        if brief:
            for line in _unchecked(examined):
                typer.echo(line)
    if any(one.red for one in examined):
        raise typer.Exit(1)
    if not every and any(one.unsupported for one in examined):
        raise typer.Exit(Unsupported.exit_code)


def _specs(names: list[str], every: bool) -> list[Spec]:
    if every and names:
        raise SelectionError("expected names or --all, got both; leave one out")
    if every:
        return [Spec(entry.name) for entry in VARIANTS.entries()]
    if not names:
        raise SelectionError("expected the name of a variant or --all; `attnbench list variants` names them")
    specs = [spec for name in names for spec in parse_selection(name)]
    # a wrong name among several is better told now than after minutes
    return [VARIANTS.resolve(spec) for spec in specs]


def _require(device: str, dtype: str) -> None:
    import torch

    if dtype not in ("float32", "bfloat16", "float16"):
        raise SelectionError(f"expected a dtype of float32, bfloat16 or float16, got {dtype!r}")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise DeviceError(f"expected a device of this machine, got {device!r}: {reason}") from None


def _examine(spec: Spec, device: str, dtype: str) -> Examined:
    from ...variants.contract import AttentionShape
    from ..gate import examine

    start = perf_counter()
    findings: list[tuple[Setting, GateResult]] = []
    found: list[Path] = []
    problem = ""
    try:
        for setting in INTERPRETED if spec.get("impl") == "triton" and device == "cpu" else SETTINGS:
            shape = AttentionShape(
                heads=HEADS,
                head_dim=setting.head_dim,
                max_length=LENGTH,
                **asdict(setting),
                dtype=dtype,
                device=device,
            )
            findings += [(setting, finding) for finding in examine(spec, shape)]
            found += _paths(spec, shape)
    except AttnbenchError as error:
        problem = str(error)
    except Exception as error:
        problem = f"does not build: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    # one that runs in some setting has been checked
    by_name = {path.name: path for path in sorted(found, key=lambda path: not path.refusal)}
    ordered = tuple(by_name[name] for name in dict.fromkeys(path.name for path in found))
    return Examined(str(spec), tuple(findings), perf_counter() - start, problem, ordered)


def _paths(spec: Spec, shape: AttentionShape) -> list[Path]:
    from ..gate import paths

    try:
        return paths(spec, shape)
    except Unsupported:
        return []


def _unchecked(examined: list[Examined]) -> Iterator[str]:
    """One line for each reason not to check a path, with the variants that have such a path."""
    names: dict[str, list[str]] = {}
    for one in examined:
        for path in one.paths:
            if path.refusal:
                names.setdefault(path.refusal, []).append(one.name)
    for refusal, refused in names.items():
        yield f"not checked of {', '.join(refused)}: {refusal}"


def _print(examined: Examined, brief: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if examined.findings and not examined.unsupported and not (brief and not examined.red):
        table = Table("property", "verdict", "measured", "allowed", "detail", title=escape(examined.name), box=None)
        for setting, finding in examined.rows():
            if brief and finding.held is not False:
                continue
            style = STYLES[finding.verdict]
            where = f"{setting}: {finding.detail}" if finding.detail else str(setting)
            table.add_row(
                finding.property,
                f"[{style}]{finding.verdict}[/]",
                _number(finding.measured),
                _number(finding.allowed),
                escape(finding.detail if finding.held is None else where),
            )
        console.print(table)
    console.print(escape(examined.summary()), style="bold red" if examined.red else "", soft_wrap=True)
    if not brief:
        for line in examined.path_lines():
            console.print(escape(line), soft_wrap=True)


def _objects(examined: Examined) -> Iterator[dict[str, Any]]:
    if examined.problem:
        yield {"variant": examined.name, "property": "builds", "verdict": "fails", "detail": examined.problem}
    for setting, finding in examined.findings:
        yield {
            "variant": examined.name,
            **asdict(setting),
            "property": finding.property,
            "verdict": finding.verdict,
            "measured": _json_number(finding.measured),
            "allowed": _json_number(finding.allowed),
            "detail": finding.detail,
        }
    for path in examined.paths:
        yield {"variant": examined.name, "path": path.name, "checked": not path.refusal, "reason": path.refusal}


def _severity(finding: GateResult) -> tuple[int, float]:
    """Red before green before not applicable; then by how much of the allowance is used."""
    if finding.held is None:
        return (0, 0.0)
    return (2 - finding.held, finding.measured / finding.allowed if finding.allowed else finding.measured)


def _number(value: float) -> str:
    return "" if math.isnan(value) else "0" if value == 0 else f"{value:.2g}"


def _json_number(value: float) -> float | str | None:
    """JSON knows no infinity: it becomes text, and what was not measured null."""
    return None if math.isnan(value) else value if math.isfinite(value) else str(value)
