"""`attnbench dashboard` and `explain`: pages to look at."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..board.select import read_store, scored
from ..store.artifacts import StoredCurves, StoredMaps
from .leaderboard import emit, store_of
from .options import Fidelity, Machine, Margin, Preset, Results, Selection, Task

if TYPE_CHECKING:
    from ..board.report import Report
    from ..board.simplex import Floats, Map
    from ..core.spec import Spec


ROOM = 1_500_000
"""Characters that all attention maps of a page may take together."""


class Picture(StrEnum):
    SVG = "svg"
    PNG = "png"


def dashboard(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for index.html.")] = Path("site"),
    results: Results = Path("results/local"),
    task: Task = None,
    preset: Preset = None,
    selection: Selection = None,
    fidelity: Fidelity = None,
    machine: Machine = None,
    margin: Margin = None,
    figures: Annotated[Picture | None, typer.Option("--figures", help="Also write every figure as a file.")] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Show what papers reported beside ours; never ranked with ours.")
    ] = False,
) -> None:
    """Write one self-contained page: boards, frontier, lengths, sparsity, training curves, and all Records behind."""
    needs_extra()
    from ...dashboards import html

    filters = {"task": task, "preset": preset, "selection": selection, "fidelity": fidelity, "machine": machine}
    exhibits = _exhibits(results, filters, margin)
    if published:
        from ..board.published import exhibits_beside

        exhibits = exhibits_beside(exhibits)
    emit(html.render(exhibits), out / "index.html")
    typer.echo(f"{out / 'index.html'}: {len(exhibits)} board{'' if len(exhibits) == 1 else 's'}")
    if figures is not None:
        count = _write_figures(exhibits, out / "figures", figures)
        typer.echo(f"{out / 'figures'}: {count} figure{'' if count == 1 else 's'}")


def needs_extra() -> None:
    """Raises SelectionError where the packages that draw are not installed."""
    from importlib.util import find_spec

    from ..core.errors import SelectionError

    missing = [name for name in ("altair", "vl_convert") if find_spec(name) is None]
    if missing:
        raise SelectionError(
            f"drawing needs {' and '.join(missing)}; install them with pip install 'attnbench[dashboard]'"
        )


def _exhibits(results: Path, filters: dict[str, str | None], margin: float | None) -> list[Report]:
    from ..board.build_report import exhibit_of_sweep, exhibit_of_task
    from ..board.length_board import modes_of, sweeps
    from ..score.key import BoardFilter, board_keys

    store = store_of(results)
    table, predictions = read_store(store)
    by_name = {board.name: board for board in scored(table, predictions, filters, margin)}
    found = board_keys(table, BoardFilter(**filters))
    curves, maps = StoredCurves(store), StoredMaps(store)
    trained = [board_key for board_key in found if board_key.runs(table, "train", "baseline")]
    untrained = sorted(set(found) - set(trained))
    room = ROOM // max(len(trained), 1)
    of_tasks = [
        exhibit_of_task(table, q, predictions, curves, margin, maps, room, by_name.get(q.name)) for q in trained
    ]
    swept = sweeps(table, trained) + sweeps(table, untrained, least=1)
    return of_tasks + [exhibit_of_sweep(table, sweep, mode) for sweep in swept for mode in modes_of(table, sweep)]


def _write_figures(exhibits: list[Report], folder: Path, picture: Picture) -> int:
    import re

    from ...dashboards.figures import figures
    from ..core.errors import StoreError

    count = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for report in exhibits:
            stem = re.sub(r"[^A-Za-z0-9.=-]+", "-", report.name).strip("-")[:120]
            for name, chart in figures(report).items():
                chart.save(str(folder / f"{stem}-{name}.{picture.value}"))
                count += 1
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror or error}; name another folder with --out") from None
    return count


def explain(
    what: Annotated[str, typer.Argument(help="What to draw: `simplex`.")] = "simplex",
    variants: Annotated[str, typer.Option(help="Maps from scores to weights.")] = "softmax,entmax15,sparsemax,rela",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for simplex.html.")] = Path("site"),
    figures: Annotated[Picture | None, typer.Option("--figures", help="Also write every figure as a file.")] = None,
) -> None:
    """Draw what maps from scores to weights do to two and three choices, and the entropies behind them."""
    from ..core.errors import SelectionError, StoreError

    if what != "simplex":
        raise SelectionError(f"expected `simplex`, got {what!r}")
    needs_extra()
    from ...dashboards import html
    from ...dashboards import simplex as ternary
    from ..board.simplex import triangle_of
    from ..core.spec import parse_selection

    triangle = triangle_of({str(spec): _map(spec) for spec in parse_selection(variants)})
    nulls = [f"{name} gives no weight at all to {n} of them" for name, n in triangle.null_rows.items() if n]
    paragraphs = [
        "Each corner is one of three choices and each point three weights; the middle is a third each.",
        "A map of the entmax family gives the weights p that make p·z + H(p) largest for scores z: the scores pull "
        "to a corner, the entropy H to the middle. Tsallis' entropy with alpha = 1 is Shannon's and gives softmax; "
        "with 1.5, entmax15; with 2, sparsemax.",
        "Weights that do not sum to one are drawn as shares of their sum."
        + (f" Of the random scores, {'; '.join(nulls)}." if nulls else ""),
    ]
    charts = ternary.charts(triangle)
    emit(html.render_figures("From scores to weights", paragraphs, charts), out / "simplex.html")
    typer.echo(str(out / "simplex.html"))
    if figures is not None:
        try:
            for name, chart in charts.items():
                chart.save(str(out / f"simplex-{name}.{figures.value}"))
        except OSError as error:
            raise StoreError(f"cannot write {out}: {error.strerror or error}; name another folder with --out") from None


def _map(spec: Spec) -> Map:
    """The variant's map from scores to weights; raises SelectionError for one that has none."""
    import torch

    from ...variants.contract import AttentionShape, ScoredVariant
    from ..core.errors import SelectionError
    from ..core.registry import VARIANTS

    shape = AttentionShape(heads=1, head_dim=4, max_length=3)
    variant = VARIANTS.build(VARIANTS.resolve(spec), shape)
    if not isinstance(variant, ScoredVariant):
        raise SelectionError(f"{spec} is no map from scores to weights; try softmax, entmax15, sparsemax or rela")

    def weights(scores: Floats) -> Floats:
        with torch.no_grad():
            found: Floats = variant.weigh(torch.from_numpy(scores)[None, None], None)[0, 0].double().numpy()
        return found

    return weights
