"""`attnbench dashboard` and `explain`: pages to look at."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .command import command, leave_to_child
from .leaderboard import refuse_unwritable, replace_text
from .options import FILTERS, Figures, Picture, Published, folder, named, sharing
from .output import say, warn

if TYPE_CHECKING:
    from ..board.report import Report
    from ..board.simplex import Floats, Map
    from ..core.spec import Spec

RESERVED_BYTES = 80 * 10**9
"""Addresses, not memory, that vl_convert reserves; 40 GB were too few, 80 were not (vl-convert-python 1.9, x86-64)."""


def _page(text: str | Path) -> Path:
    """A file NAME.html, or a folder; raises BadParameter for another file."""
    path = named(text)
    return path if path.suffix == ".html" and not path.is_dir() else folder(path)


def _file(out: Path, name: str) -> Path:
    return out if out.suffix == ".html" and not out.is_dir() else out / name


Out = Annotated[
    Path,
    typer.Option("--out", "-o", metavar="FOLDER", parser=_page, help="Folder of the page, or its file NAME.html."),
]


@command("Read", "attnbench dashboard --task lra-text")
@sharing(FILTERS)
def dashboard(
    out: Out = Path("site"),
    suite: Annotated[
        str | None, typer.Option(help="Average over the tasks of this suite, and show these alone.")
    ] = None,
    figures: Figures = None,
    published: Published = False,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "attnbench",
    **filters: Any,
) -> None:
    """Write one self-contained page: an overview, boards, frontiers, lengths, training curves and all Records."""
    needs_extra()
    page = _file(out, "index.html")
    refuse_unwritable(page)
    from ...dashboards.figures import figures as figures_of
    from ...dashboards.overview_figures import overview_figures
    from ..api import pages as api
    from ..stats.format import counted

    reports = api.reports(suite=suite, published=published, notice=warn, **filters)
    write_page(reports, page, title=title)
    say(f"{page}: {counted(len(reports), 'board')}")
    if figures is not None:
        charts = {
            f"{re.sub(r'[^A-Za-z0-9.=-]+', '-', report.name).strip('-')[:120]}-{name}": chart
            for report in reports
            for name, chart in figures_of(report).items()
        }
        charts |= {f"overview-{name}": chart for name, chart in overview_figures(api.overview(reports)).items()}
        # the folder may come from others, who may have planted links in it
        save(charts, page.parent / "figures", figures, follow=False)
        say(f"{page.parent / 'figures'}: {counted(len(charts), 'figure')}")


def write_page(reports: Sequence[Report], path: Path, *, title: str = "attnbench", follow: bool = True) -> None:
    """Writes the page of these reports, with an overview of several; without `follow`, its folder must be no link.

    Raises StoreError where it cannot be written.
    """
    _refuse_to_draw()
    from ...dashboards import html
    from ..api import pages as api

    overview = api.overview(reports) if len(reports) > 1 else None
    replace_text(path, html.render(reports, overview, title), follow=follow)


def say_page(results: Path) -> None:
    """Writes the page of a whole results folder into it and says where; without the extra, how to get one."""
    from ..api import pages as api
    from ..core.errors import StoreError

    if missing_extra():
        command = f"attnbench dashboard --results {shlex.quote(str(results))}"
        say(f"for a page of all figures: pip install 'attnbench[dashboard]'; {command}")
        return
    page = results / "page" / "index.html"
    try:
        # what the Records lack was said before, beside the answer
        # the folder may come from others, who may have planted links in it
        write_page(api.reports(results, notice=lambda text: None), page, follow=False)
        say(f"open: {page}")
    except StoreError as error:
        # the Records are stored; a page is made again at any time
        warn(f"no page: {error}")


def missing_extra() -> list[str]:
    """The packages that draw and are not installed."""
    from importlib.util import find_spec

    return [name for name in ("altair", "vl_convert") if find_spec(name) is None]


def needs_extra() -> None:
    """Raises SelectionError where the packages that draw are not installed."""
    from ..core.errors import SelectionError

    missing = missing_extra()
    if missing:
        raise SelectionError(
            f"drawing needs {' and '.join(missing)}; install them with pip install 'attnbench[dashboard]'"
        )
    _refuse_to_draw()


def _refuse_to_draw() -> None:
    """Raises StoreError where the library that draws lacks docstrings, or addresses: it would abort this process."""
    import resource
    import sys

    from ..core.errors import StoreError

    if sys.flags.optimize > 1:
        raise StoreError("drawing needs docstrings, which `python -OO` and PYTHONOPTIMIZE=2 take away; leave these out")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= limit < RESERVED_BYTES:
        raise StoreError(
            f"drawing reserves {RESERVED_BYTES / 1e9:.0f} GB of addresses, this process may have {limit / 1e9:.1f}; "
            "raise the limit (`ulimit -v`), then `attnbench dashboard` makes the page"
        )


def save(charts: Mapping[str, Any], folder: Path, picture: Picture, *, follow: bool = True) -> None:
    """Writes each chart under its name; without `follow`, the folder must be no link.

    Raises StoreError where it cannot be written.
    """
    from ..core.errors import StoreError
    from ..core.files import replacing

    try:
        for name, chart in charts.items():
            drawn = StringIO() if picture is Picture.SVG else BytesIO()
            chart.save(drawn, format=picture.value)
            content = drawn.getvalue()
            with replacing(folder / f"{name}.{picture.value}", follow=follow) as file:
                file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror or error}; name another folder with --out") from None


@command("Read", "attnbench explain --variants softmax,sparsemax")
def explain(
    what: Annotated[str, typer.Argument(help="Subject to draw: `simplex`.")] = "simplex",
    variants: Annotated[str, typer.Option(help="Maps from scores to weights.")] = "softmax,entmax15,sparsemax,rela",
    out: Out = Path("site"),
    figures: Figures = None,
) -> None:
    """Draw how maps from scores to weights treat two and three choices, and the entropies behind them."""
    from ..core.errors import SelectionError

    if what != "simplex":
        raise SelectionError(
            f"expected `simplex`, got {what!r}; name maps as in `attnbench explain --variants softmax,sparsemax`"
        )
    needs_extra()
    page = _file(out, "simplex.html")
    refuse_unwritable(page)
    from ...dashboards import html
    from ...dashboards import simplex as ternary
    from ..board.simplex import simplex_figure
    from ..core.spec import parse_selection

    figure = simplex_figure({str(spec): _map(spec) for spec in parse_selection(variants)})
    nulls = [f"{name} gives no weight at all to {n} of them" for name, n in figure.null_rows.items() if n]
    paragraphs = [
        "Each corner is one of three choices and each point three weights; the middle is a third each.",
        "A map of the entmax family gives the weights p that make p·z + H(p) largest for scores z: the scores pull "
        "to a corner, the entropy H to the middle. Tsallis' entropy with alpha = 1 is Shannon's and gives softmax; "
        "with 1.5, entmax15; with 2, sparsemax.",
        "Weights that do not sum to one are drawn as shares of their sum."
        + (f" Of the random scores, {'; '.join(nulls)}." if nulls else ""),
    ]
    charts = ternary.charts(figure)
    replace_text(page, html.render_figures("From scores to weights", paragraphs, charts))
    say(str(page))
    if figures is not None:
        save({f"simplex-{name}": chart for name, chart in charts.items()}, page.parent, figures)


def _map(spec: Spec) -> Map:
    """The variant's map from scores to weights; raises SelectionError for one that has none."""
    import torch

    from ...variants.contract import AttentionShape, ScoredVariant
    from ..core.errors import SelectionError
    from ..core.registry import VARIANTS

    leave_to_child(VARIANTS, spec)
    shape = AttentionShape(heads=1, head_dim=4, max_length=3)
    variant = VARIANTS.build(VARIANTS.resolve(spec), shape)
    if not isinstance(variant, ScoredVariant):
        raise SelectionError(f"{spec} is no map from scores to weights; try softmax, entmax15, sparsemax or rela")

    def weights(scores: Floats) -> Floats:
        with torch.no_grad():
            found: Floats = variant.weigh(torch.from_numpy(scores)[None, None], None)[0, 0].double().numpy()
        return found

    return weights
