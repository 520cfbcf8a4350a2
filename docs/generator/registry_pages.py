"""One page for each variant and task of attnbench, written from the registry when the site is built.

A new entry point, parameter, preset or board appears without a change here. Names of other packages are left out: their
own documents describe them.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from attnbench.bench.cli.app import app
from attnbench.bench.core.errors import AttnbenchError
from attnbench.bench.core.registry import TASKS, VARIANTS, Registry
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.options import built_in, load_suite
from attnbench.bench.wings.published.boards import published
from attnbench.tasks.contract import Availability, DataPlace

from .attention_map import LENGTH, attention_map
from .boards import BoardTable, tables
from .markdown import cell, code, table
from .repository import ROOT

DATA = Path("DATA")
"""A placeholder for the folder of original data, which differs between machines. Nothing is in it."""

IMPLEMENTATIONS = {
    "auto": "chosen by device, dtype and size; the Record says which ran",
    "eager": "plain PyTorch operators; the definition, with which all others are compared",
    "sdpa": "PyTorch's fused `scaled_dot_product_attention`",
    "cpp": "C++ for CPUs, built on first use",
    "triton": "Triton kernels for GPUs",
    "flex": "PyTorch's FlexAttention",
}

FAMILIES = {
    "maps": "Maps from scores to weights",
    "scores": "Scores of a query and a key",
    "sparse": "Sparse: which keys are seen",
    "linear": "Linear: the order of the sums",
    "low_rank": "Low rank",
    "pooling": "Pooling",
}
"""Titles of the folders of variants; another folder has its name as title."""

TASK_FAMILIES = {
    "synthetic": "Synthetic problems",
    "lra": "Long Range Arena",
    "language_modeling": "Language modelling",
    "translation": "Translation",
    "": "Cost over lengths",
}

REGISTRIES: tuple[tuple[Registry, str, str, Mapping[str, str], str], ...] = (
    (VARIANTS, "variants", "Variants", FAMILIES, "Attention mechanisms, by what they change."),
    (TASKS, "tasks", "Tasks", TASK_FAMILIES, "What variants are trained and timed on."),
)
"""Registry, folder of its pages, title, titles of its families, introduction."""


def names(registry: Registry) -> list[str]:
    """The names that attnbench itself brings."""
    return [entry.name for entry in registry.entries() if registry.is_own(entry.name)]


def by_family(registry: Registry, families: Mapping[str, str]) -> dict[str, list[str]]:
    """Title of a family → its names, in the order of `families`; a family is a folder of the code, such as `maps`."""
    grouped: dict[str, list[str]] = {folder: [] for folder in families}
    for name in names(registry):
        source = registry.source(name)
        parts = source.relative_to(ROOT).parts if source else ()
        grouped.setdefault(parts[1] if len(parts) > 2 else "", []).append(name)
    titled = {families.get(folder, folder.replace("_", " ").capitalize()): found for folder, found in grouped.items()}
    return {title: found for title, found in titled.items() if found}


def index_page(registry: Registry, title: str, introduction: str, families: Mapping[str, str]) -> str:
    """The list of all pages of a registry, by family."""
    parts = [f"# {title}", introduction]
    for family, found in by_family(registry, families).items():
        rows = [[f"[{name}]({name}.md)", _prose(registry.describe(name))] for name in found]
        parts += [f"## {family}", table(("name", "what"), rows)]
    return "\n\n".join(parts) + "\n"


def navigation(registry: Registry, folder: str, families: Mapping[str, str]) -> list[Any]:
    """The pages of a registry for the navigation of the site."""
    grouped = by_family(registry, families).items()
    pages = ({family: [{name: f"docs/{folder}/{name}.md"} for name in found]} for family, found in grouped)
    return [f"docs/{folder}/index.md", *pages]


def variant_page(name: str) -> tuple[str, dict[str, bytes]]:
    """The page of a variant, and its pictures by file name."""
    facts = _facts(name)
    parts = [*_head(VARIANTS, name, facts), _fact_table(facts)]
    parts += [*_parameters(facts, "variant", name), *_implementations(facts, name)]
    maps = {word: attention_map(name, causal=word == "causal") for word in ("full", "causal")}
    pictures = {f"maps/{name}-{word}.png": drawn for word, drawn in maps.items() if drawn}
    if pictures:
        parts += [
            "## Attention map",
            f"The weights of one head before any training, {LENGTH} queries (down) by {LENGTH} keys (across), on drawn "
            "input in which neighbours are alike: without a mask, and causal where there are two. Dark is a large "
            "weight, pale a small one, grey exactly zero.",
            " ".join(f"![Weights of {name}, {file.split('-')[-1][:-4]}]({file}){{ .map }}" for file in pictures),
        ]
    excerpts = ((board, board.excerpt(name)) for board in tables())
    parts += _measured(
        ((board, lines) for board, lines in excerpts if lines), f"No committed board has {code(name)} yet."
    )
    sweep = f"attnbench run --variants {name} --task 'sweep[length=256..4096]'"
    training = f"attnbench run --variants {name} --task lra-text --seeds 3"
    parts += _try(f"attnbench check {name}", sweep, training)
    return "\n\n".join(parts) + "\n", pictures


@cache
def _tasks_of_suites() -> dict[str, set[str]]:
    return {suite: {task.name for task in load_suite(suite).tasks} for suite in built_in()}


def task_page(name: str) -> tuple[str, dict[str, bytes]]:
    """The page of a task; it has no pictures."""
    facts, task = _facts(name), TASKS.load(name)
    short = {label: facts[label] for label in ("problem", "metric") if label in facts}
    suites = (suite for suite, tasks in _tasks_of_suites().items() if name in tasks)
    short |= {"job kinds": ", ".join(task.lanes), "version": str(task.version), "suites": ", ".join(suites)}
    parts = [*_head(TASKS, name, facts), _fact_table(short), *_parameters(facts, "task", name)]
    presets = [[code(label[7:]), cell(value)] for label, value in facts.items() if label.startswith("preset ")]
    if presets:
        parts += ["## Presets", table(("preset", "setting"), presets)]
    found = _availability(name)
    parts += ["## Data", _sources(found) if isinstance(found, list) else f"They depend on parameters: {cell(found)}."]
    if task.baselines:
        lines = [f"- {code(word)}: {_first_line(baseline)}" for word, baseline in task.baselines.items()]
        parts += ["## Baselines", "Trivial predictors that are rows of every board:", "\n".join(lines)]
    own = ((board, list(board.lines)) for board in tables() if board.task == name)
    parts += [*_measured(own, "No committed board has this task yet."), *_published(name)]
    if task.lanes == ("time",):
        parts += _try(f"attnbench run --variants rela,linear --task '{name}[length=256..4096]'")
    else:
        # a task that cannot do without parameters names them in its error
        asked = re.search(re.escape(name) + r"\[[^\]]*\]", str(found))
        selection = shlex.quote(asked[0] if asked else name)
        run = f"attnbench run --variants rela,entmax15 --task {selection} --seeds 3"
        parts += _try(f"attnbench data list {name}", run)
    return "\n\n".join(parts) + "\n", {}


@cache
def _facts(name: str) -> dict[str, str]:
    """The lines of `attnbench show`: label → value."""
    shown: dict[str, str] = json.loads(CliRunner().invoke(app, ["show", name, "--json"]).stdout)
    return shown


def _head(registry: Registry, name: str, facts: Mapping[str, str]) -> Iterator[str]:
    """Description, equation, paper, and where the code is."""
    yield f"# {name}"
    first, _, rest = (inspect.getdoc(registry.load(name)) or "").partition("\n")
    yield _prose(first)
    if facts.get("equation"):
        # one statement a line, as long ones are cut on a narrow page
        yield "```text\n" + "\n".join(facts["equation"].split("; ")) + "\n```"
    if rest.strip():
        yield _prose(rest.strip())
    source = registry.source(name)
    path = source.relative_to(ROOT).as_posix() if source else ""
    yield f"- **Paper**: {cell(facts['paper'])}" + (f"\n- **Source**: [{path}](../../{path})" if path else "")
    yield "## In short"


def _fact_table(facts: Mapping[str, str]) -> str:
    left_out = ("name", "variant", "task", "origin", "description", "paper", "equation")
    shown = {label: value for label, value in facts.items() if value and label not in left_out}
    rows = [[cell(label), cell(value)] for label, value in shown.items() if not label.startswith("parameter ")]
    return table(("property", "value"), rows)


def _parameters(facts: Mapping[str, str], noun: str, name: str) -> Iterator[str]:
    rows = []
    for label, value in facts.items():
        if label.startswith("parameter "):
            kind, _, default = value.rpartition(", default")
            rows.append([code(label.removeprefix("parameter ")), cell(kind), code(default.strip() or "(empty)")])
    if rows:
        yield "## Parameters"
        first = rows[0][0].strip("`")
        yield f"Set them in brackets, as in `{name}[{first}=…]`. Values that differ make another {noun}."
        yield table(("parameter", "values", "default"), rows)


def _implementations(facts: Mapping[str, str], name: str) -> Iterator[str]:
    if "parameter impl" in facts:
        words = [word.strip() for word in facts["parameter impl"].rpartition(", default")[0].split("|")]
        yield "## Implementations"
        yield f"`{name}[impl=…]` forces one. All compute the same function, which the gate checks forward and backward."
        yield table(("impl", "what runs"), [[code(word), IMPLEMENTATIONS.get(word, "")] for word in words])


def _measured(excerpts: Iterable[tuple[BoardTable, list[str]]], otherwise: str) -> Iterator[str]:
    found = list(excerpts)
    yield "## Measured"
    yield "From the committed boards; each names its machine, versions and notes." if found else otherwise
    for board, lines in found:
        if board.part:
            yield f"*{board.part}*"
        else:
            yield f"**{cell(board.title)}** ([whole board](../../{board.page})): {board.headline}"
        yield "\n".join(lines)


def _availability(name: str) -> list[Availability] | str:
    """The sources of a task's data where there are no data, or why they are not known."""
    try:
        return list(TASKS.build(Spec(name)).availability(DataPlace(root=DATA, cache=DATA, offline=True)))
    except AttnbenchError as error:
        return str(error)


def _sources(found: list[Availability]) -> str:
    rows = []
    for source in found:
        how = source.advice or ("nothing is needed" if source.ready else source.detail)
        rows.append([cell(source.source), source.fidelity, cell(how), cell(source.estimate)])
    note = f"`{DATA}` is the folder of `--data-dir` or `ATTNBENCH_DATA`. The first source that is there counts."
    return f"{note}\n\n{table(('source', 'data', 'how to get it', 'time and space'), rows)}"


def _published(name: str) -> Iterator[str]:
    """The tables of papers that have this task as a column."""
    tables_of_papers = [each for each in published()[0] if name in each.columns]
    if tables_of_papers:
        yield "## Published numbers"
        yield "As printed in the papers; models, data and lengths differ from ours, so they are never ranked with ours."
    for each in tables_of_papers:
        yield f"**{cell(each.paper)} ({each.year}), {cell(each.title)}**, {cell(each.quantity)} in {cell(each.unit)}"
        rows = [[cell(model), cell(each.ours.get(model, "")), cell(each.cells(model)[name])] for model in each.rows]
        yield table(("model", "here", name), [row for row in rows if row[2]], right=(2,))


def _try(*commands: str) -> list[str]:
    return ["## Try it", "```sh\n" + "\n".join(commands) + "\n```"]


def _first_line(function: Any) -> str:
    """The first line of the docstring of a function, or of one with some arguments filled in."""
    inner = getattr(function, "func", function)
    return _prose((inspect.getdoc(inner) or "a trivial predictor").partition("\n")[0])


def _prose(text: str) -> str:
    """A docstring as Markdown: code in backticks stays, and no other sign is taken as markup."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if at % 2 else part.replace("<", "&lt;").replace("*", "\\*") for at, part in enumerate(parts))
