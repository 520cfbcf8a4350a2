"""One page for each variant and task of attnbench, written from the registry when the site is built.

A new entry point, parameter, preset or board appears without a change here. Names of other packages are left out: they
are not attnbench's to document.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnbench.bench.board.published import Table, published
from attnbench.bench.cli.catalogue import DescribePlugin, Fact
from attnbench.bench.core.errors import AttnbenchError
from attnbench.bench.core.registry import TASKS, VARIANTS, Registry
from attnbench.bench.core.spec import Spec
from attnbench.bench.process.ask import ask
from attnbench.tasks.data.data import place

from . import board_excerpts
from .attention_map import LENGTH, attention_map
from .markdown import cell, code, table
from .repository import ROOT

DATA = "DATA"
"""What stands for the folder of original data, which is another on each machine."""

IMPLEMENTATIONS = {
    "auto": "chosen by device, dtype and size; the Record says which ran",
    "eager": "plain PyTorch operators; the definition, with which all others are compared",
    "sdpa": "PyTorch's fused `scaled_dot_product_attention`",
    "blocked": "block by block in PyTorch, so that not all scores are held",
    "compiled": "the same blocks through `torch.compile`",
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
"""Titles of the folders of variants and tasks; another folder has its name as title."""

TASK_FAMILIES = {
    "synthetic": "Synthetic problems",
    "lra": "Long Range Arena",
    "language_modeling": "Language modelling",
    "translation": "Translation",
    "": "Cost over lengths",
}


def names(registry: Registry) -> list[str]:
    """The names that attnbench itself brings."""
    return [entry.name for entry in registry.entries() if registry.is_own(entry.name)]


def family(registry: Registry, name: str) -> str:
    """The folder of a variant or task, such as `maps`; empty for a file outside one."""
    source = registry.source(name)
    parts = source.relative_to(ROOT).parts if source else ()
    return parts[1] if len(parts) > 2 else ""


def variant_page(name: str) -> tuple[str, dict[str, bytes]]:
    """The page of a variant and its pictures by file name."""
    facts = _facts(VARIANTS, name)
    parts = [f"# {name}", *_head(VARIANTS, name, facts), "## In short", _fact_table(facts)]
    parts += [*_parameters(facts, "variant", name), *_implementations(facts, name)]
    pictures = {}
    for causal, word in ((False, "full"), (True, "causal")):
        drawn = attention_map(name, causal)
        if drawn:
            pictures[f"{name}-{word}.png"] = drawn
    if pictures:
        images = [f"![Weights of {name}, {file.split('-')[-1][:-4]}](maps/{file}){{ .map }}" for file in pictures]
        parts += [
            "## Attention map",
            f"The weights of one head before any training, {LENGTH} queries (down) by {LENGTH} keys (across), on drawn "
            "input in which neighbours are alike: without a mask, and causal where there are two. Dark is a large "
            "weight, pale a small one, grey exactly zero.",
            " ".join(images),
        ]
    parts += _measured(board_excerpts.of_variant(name), f"No committed board has {code(name)} yet.")
    parts += ["## Try it", _commands([f"attnbench check {name}", *_run_lines(name)])]
    return "\n\n".join(parts) + "\n", pictures


def task_page(name: str) -> str:
    """The page of a task."""
    with _empty_data_folder() as folder:
        facts = _facts(TASKS, name, folder)
        sources = _sources(name, folder)
    task = TASKS.load(name)
    parts = [f"# {name}", *_head(TASKS, name, facts), "## In short"]
    suites = ", ".join(task.suites)
    short = [fact for fact in facts if fact.label in ("problem", "metric")]
    short += [Fact(label="lanes", value=", ".join(task.lanes)), Fact(label="version", value=str(task.version))]
    short += [Fact(label="suites", value=suites)] if suites else []
    parts.append(_fact_table(short))
    parts += _parameters(facts, "task", name)
    presets = [fact for fact in facts if fact.label.startswith("preset ")]
    if presets:
        rows = [[code(fact.label.removeprefix("preset ")), cell(fact.value)] for fact in presets]
        parts += ["## Presets", table(("preset", "setting"), rows)]
    parts += ["## Data", sources]
    if task.baselines:
        lines = [f"- {code(word)}: {_sentence(baseline)}" for word, baseline in task.baselines.items()]
        parts += ["## Baselines", "Trivial predictors that are rows of every board:", "\n".join(lines)]
    parts += _measured(board_excerpts.of_task(name), "No committed board has this task yet.")
    parts += _published(name)
    if task.lanes == ("time",):
        commands = [f"attnbench run --variants rela,linear --task '{name}[length=256..4096]'"]
    else:
        selection = shlex.quote(_selection(name))
        commands = [
            f"attnbench data list {name}",
            f"attnbench run --variants rela,entmax15 --task {selection} --seeds 3",
        ]
    parts += ["## Try it", _commands(commands)]
    return "\n\n".join(parts) + "\n"


def index_page(registry: Registry, title: str, introduction: str, families: dict[str, str]) -> str:
    """The list of all pages of a registry, by family."""
    parts = [f"# {title}", introduction]
    grouped: dict[str, list[str]] = {}
    for name in names(registry):
        grouped.setdefault(family(registry, name), []).append(name)
    for folder in sorted(grouped, key=lambda word: (list(families).index(word) if word in families else 99, word)):
        rows = [[f"[{name}]({name}.md)", _prose(registry.describe(name))] for name in grouped[folder]]
        parts += [f"## {families.get(folder, folder.replace('_', ' ').capitalize())}", table(("name", "what"), rows)]
    return "\n\n".join(parts) + "\n"


def _facts(registry: Registry, name: str, data_dir: Path | None = None) -> list[Fact]:
    return ask(registry, name, DescribePlugin(registry.noun, Spec(name), data_dir))


def _head(registry: Registry, name: str, facts: list[Fact]) -> Iterator[str]:
    """Description, equation, paper, and where the code is."""
    first, _, rest = (inspect.getdoc(registry.load(name)) or "").partition("\n")
    yield _prose(first)
    value = {fact.label: fact.value for fact in facts}
    if value.get("equation"):
        # one statement a line, as long ones are cut on a narrow page
        yield "```text\n" + "\n".join(value["equation"].split("; ")) + "\n```"
    if rest.strip():
        yield _prose(rest.strip())
    lines = [f"- **Paper**: {cell(value['paper'])}"]
    source = registry.source(name)
    if source:
        path = source.relative_to(ROOT).as_posix()
        lines.append(f"- **Source**: [{path}](../../{path})")
    yield "\n".join(lines)


def _fact_table(facts: list[Fact]) -> str:
    left_out = ("variant", "task", "origin", "description", "paper", "equation")
    shown = [fact for fact in facts if fact.label not in left_out and not fact.label.startswith("parameter ")]
    return table(("property", "value"), [[cell(fact.label), cell(fact.value)] for fact in shown])


def _parameters(facts: list[Fact], noun: str, name: str) -> Iterator[str]:
    rows = []
    for fact in facts:
        if fact.label.startswith("parameter "):
            kind, _, default = fact.value.rpartition(", default")
            rows.append([code(fact.label.removeprefix("parameter ")), cell(kind), code(default.strip() or "(empty)")])
    if rows:
        yield "## Parameters"
        first = rows[0][0].strip("`")
        yield f"Set them in brackets, as in `{name}[{first}=…]`. Values that differ make another {noun}."
        yield table(("parameter", "values", "default"), rows)


def _implementations(facts: list[Fact], name: str) -> Iterator[str]:
    stated = next((fact.value for fact in facts if fact.label == "parameter impl"), "")
    if stated:
        words = [word.strip() for word in stated.rpartition(", default")[0].split("|")]
        rows = [[code(word), IMPLEMENTATIONS.get(word, "")] for word in words]
        yield "## Implementations"
        yield f"`{name}[impl=…]` forces one. All compute the same function, which the gate checks forward and backward."
        yield table(("impl", "what runs"), rows)


def _measured(found: Iterator[tuple[board_excerpts.StoredBoard, str]], otherwise: str) -> Iterator[str]:
    excerpts = list(found)
    yield "## Measured"
    yield "From the committed boards; each names its machine, versions and notes." if excerpts else otherwise
    for board, excerpt in excerpts:
        headline = board.values.get("headline", "")
        yield f"**{cell(board.title)}** ([whole board](../../{board.page}))" + (
            f": {cell(headline)}" if headline else ""
        )
        yield excerpt


def _sources(name: str, folder: Path) -> str:
    try:
        found = TASKS.build(Spec(name)).availability(place(folder, offline=True))
    except AttnbenchError as error:
        return f"They depend on parameters: {cell(error)}."
    rows = []
    for source in found:
        how = source.advice or ("nothing is needed" if source.ready else source.detail)
        texts = [cell(text.replace(str(folder), DATA)) for text in (how, source.estimate)]
        rows.append([cell(source.source), source.fidelity, *texts])
    note = f"`{DATA}` is the folder of `--data-dir` or `ATTNBENCH_DATA`. The first source that is there counts."
    return f"{note}\n\n{table(('source', 'fidelity', 'how to get it', 'time and space'), rows)}"


def _published(name: str) -> Iterator[str]:
    """The tables of papers that have this task as a column."""
    tables = [each for each in published()[0] if name in each.columns]
    if tables:
        yield "## Published numbers"
        yield "As printed in the papers; models, data and lengths differ from ours, so they are never ranked with ours."
    for each in tables:
        yield f"**{cell(each.paper)} ({each.year}), {cell(each.title)}**, {cell(each.quantity)} in {cell(each.unit)}"
        rows = [[cell(model), cell(_own(each, model)), cell(each.cells(model)[name])] for model in each.rows]
        yield table(("model", "here", name), [row for row in rows if row[2]], right=(2,))


def _own(each: Table, model: str) -> str:
    return each.ours.get(model, "")


def _selection(name: str) -> str:
    """How to name a task in a command: with the parameters that its own error asks for, where it cannot do without."""
    with _empty_data_folder() as folder:
        try:
            TASKS.build(Spec(name)).availability(place(folder, offline=True))
        except AttnbenchError as error:
            asked = re.search(re.escape(name) + r"\[[^\]]*\]", str(error))
            return asked[0] if asked else name
    return name


def _run_lines(name: str) -> list[str]:
    return [
        f"attnbench run --variants {name} --task 'sweep[length=256..4096]'",
        f"attnbench run --variants {name} --task lra-text --seeds 3",
    ]


def _commands(lines: list[str]) -> str:
    return "```sh\n" + "\n".join(lines) + "\n```"


def _sentence(function: Any) -> str:
    """The first line of the docstring of a function, or of one with some arguments filled in."""
    inner = getattr(function, "func", function)
    return _prose((inspect.getdoc(inner) or "a trivial predictor").partition("\n")[0])


def _prose(text: str) -> str:
    """A docstring as Markdown: code in backticks stays, and no other sign is taken as markup."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if at % 2 else part.replace("<", "&lt;").replace("*", "\\*") for at, part in enumerate(parts))


@contextmanager
def _empty_data_folder() -> Iterator[Path]:
    """A folder in which no data lie, as root and cache, so that a page is the same wherever it is built."""
    before = os.environ.get("ATTNBENCH_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ATTNBENCH_CACHE"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["ATTNBENCH_CACHE"]
            else:
                os.environ["ATTNBENCH_CACHE"] = before
