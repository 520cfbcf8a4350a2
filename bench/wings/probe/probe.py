"""`attnbench.probe`: a page on what one variant can do, from Python."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...api.boards import records
from ...api.check import check
from ...api.run import run
from ...core.log import LOG
from ...core.paths import RESULTS
from ...core.spec import Names, Spec, specs_of
from ...process.ask import asking

if TYPE_CHECKING:
    from ...run.events import RunListener
    from .page import ProbeReport


def probe(
    variant: Names,
    *,
    preset: str | Spec = "quick",
    results: str | Path = RESULTS,
    device: str | None = None,
    threads: int = 0,
    timeout: float | None = None,
    retry: bool = False,
    progress: RunListener | None = None,
) -> ProbeReport:
    """Profile a new variant in minutes: the gate, three synthetic tasks, the cost at three lengths.

    Each task is trained once, by seed 0 at the preset's own learning rate, beside softmax; nothing is run twice, and
    nothing where the gate fails. A variant without a causal form is probed on `max-pooled` alone. preset: `quick` or
    `smoke`, with changes such as `quick[steps=200]`. Variants of like behaviour are looked for in `results` and in the
    folder `results` here. For the rest see `RunOptions`. Raises as `run`.

    >>> print(attnbench.probe("entmax15").headline)                                                # doctest: +SKIP
    """
    from ...store.table import table_of
    from .page import page_of
    from .run_probe import run_probe

    told = partial(run, results=results, device=device, threads=threads, timeout=timeout, retry=retry, seeds=1)
    notice, told = progress.notice if progress else LOG.warning, partial(told, progress=progress)
    with asking():
        done = run_probe(specs_of(variant), preset, device, check=check, run=told, notice=notice)
    tables = [table_of(records(each, notice=notice)) for each in dict.fromkeys([Path(results), Path("results")])]
    return page_of(str(done.variant), done.examined, done.trained, done.beside, done.timed, tables)
