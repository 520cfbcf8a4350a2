"""The time and memory of samples as the parent of a worker sees them, beside those that the worker says.

Foreign code may bend the clock of the process that it runs in: it may replace the function that is read, or go back
after each call. It cannot bend the clock of another process. The worker tells when a sample begins and ends; messages
are late, by as much at the beginning as at the end, so that over the rounds their delays cancel. Some samples more are
of memory: the worker waits at both of their ends, while the kernel is asked what was touched in between.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from ...core.cell import REFERENCE, Cell
from ...core.record import Outcome, Record
from ...core.registry import VARIANTS
from ...measure.timer import LEAST_ROUNDS
from ..events import CellFinished, Event, RoundsEnded, SampleBegun, SampleEnded

_SHARE = 0.1
"""The part of a sample that may be missing from, or added to, the time that is seen from outside."""

_SHARE_OF_FEW = 0.4
"""The same of fewer than `LEAST_ROUNDS` samples, whose delays may not cancel."""

SLACK_SECONDS, SLACK_OF_A_GPU = 0.002, 0.5
"""The same in seconds. A GPU flushes its cache and waits before its events begin, and the parent sees that too."""

_ERRORS = 4.0
"""Standard errors, the larger of its own and the reference's, that are allowed beside these: delays scatter."""

_MORE, _SLACK_BYTES, _THREAD_BYTES = 1.25, 16 * 2**20, 4 * 2**20
"""Memory that a sample may touch beyond what is said: small blocks leave gaps, and Python and threads have theirs.

Of 13 right layers, at 256 tokens and eight of them at 1,024, the most was 13 MiB, whether they need 21 MiB or 507.
"""

_WRITTEN_BYTES = 2**20
"""What a sample may write to files: honest layers write nothing, and a library may write a cache."""

_MODES = ("step_seconds", "forward_seconds", "decode_seconds")


@dataclass(slots=True)
class _Samples:
    """Seconds of each sample of a Cell, by wall and processor: those seen from outside, and those that were said."""

    seen: list[tuple[float, float]] = field(default_factory=list)
    said: list[tuple[float, float]] = field(default_factory=list)

    def gaps(self, clock: int) -> list[float]:
        """Seconds of each sample that the worker leaves out, without the fifth that is largest and smallest."""
        gaps = sorted(seen[clock] - said[clock] for seen, said in zip(self.seen, self.said, strict=True))
        return gaps[len(gaps) // 5 : len(gaps) - len(gaps) // 5]


class OutsideTimes:
    """Follows the samples of one worker. `processor_seconds`: its processor time so far, as the kernel counts it.

    `threads`: how many may compute at once. `touched_bytes`: of its memory and of files, as the kernel counts them.
    """

    def __init__(
        self,
        processor_seconds: Callable[[], float],
        on_gpu: bool,
        threads: int,
        touched_bytes: Callable[..., tuple[float, float]] = lambda *, begins=False: (math.nan, math.nan),
    ):
        self.processor_seconds, self.slack = processor_seconds, SLACK_OF_A_GPU if on_gpu else SLACK_SECONDS
        self.threads, self.touched_bytes = threads, touched_bytes
        self.touched: dict[str, tuple[float, float]] = {}
        self.of: dict[str, _Samples] = {}
        self.compared = False
        self._began = "", 0.0, 0.0

    def note(self, event: SampleBegun | SampleEnded) -> None:
        """Takes the time, or the memory, now."""
        if event.waits:
            found = self.touched_bytes(begins=isinstance(event, SampleBegun))
            if isinstance(event, SampleEnded):
                # the least: an allocator comes to rest after the first
                self.touched[event.key] = min(found, self.touched.get(event.key, found))
            return
        key, wall, processor = event.key, time.monotonic(), self.processor_seconds()
        if isinstance(event, SampleBegun):
            self._began = key, wall, processor
        elif self._began[0] == key:
            samples = self.of.setdefault(key, _Samples())
            samples.seen.append((wall - self._began[1], processor - self._began[2]))
            samples.said.append((event.seconds, event.cpu_seconds))

    def blamed(self, event: Event, cells: Collection[Cell]) -> dict[Cell, str]:
        """The Cells whose code bends a clock, with what is wrong; after the rounds, and where a Record states others.

        Our own code bends none: where its times are wrong, it is the doing of all foreign code in its process.
        """
        wrong: dict[Cell, str] = {}
        if isinstance(event, RoundsEnded):
            self.compared = True
            trusted = next((cell.key for cell in cells if str(cell.variant) == REFERENCE), "")
            wrong = {cell: why for cell in cells if (why := self._contradiction(cell.key, trusted))}
        elif isinstance(event, CellFinished) and event.record.cell.lane == "time":
            if event.record.outcome is not Outcome.OK and not self.compared:
                # it leaves the rounds, and the others begin theirs again
                self.of.clear()
            elif not self._agrees(event.record):
                wrong[event.record.cell] = "its Record states other times than were told after each sample"
            elif why := self._hidden_memory(event.record):
                wrong[event.record.cell] = why
        timed = [cell for cell in cells if wrong and cell.lane == "time"]
        foreign = [cell for cell in timed if not VARIANTS.is_own(cell.variant.name)]
        found = {cell: wrong[cell] for cell in foreign if cell in wrong}
        return found or {cell: f"beside it, {why}" for cell in foreign for why in list(wrong.values())[:1]}

    def _contradiction(self, key: str, trusted: str) -> str:
        samples = self.of.get(key)
        if samples is None:
            return ""
        for clock, name in enumerate(("", " of the processor")):
            gaps, honest = samples.gaps(clock), self.of[trusted].gaps(clock) if trusted in self.of else [0.0]
            whole = statistics.fmean(seen[clock] for seen in samples.seen)
            error = max(np.std(each) / math.sqrt(len(each)) for each in (gaps, honest))
            share = _SHARE if len(samples.seen) >= LEAST_ROUNDS else _SHARE_OF_FEW
            # not a number where the kernel does not tell
            if abs(statistics.fmean(gaps)) > share * whole + self.slack + _ERRORS * error:
                said = statistics.fmean(each[clock] for each in samples.said)
                return (
                    f"a sample takes {whole:.3g} s{name} as another process sees it, and {said:.3g} s by its own clock"
                )
        # on a busy machine the clocks of two processes are compared roughly; those of one are not
        wall, busy = (statistics.fmean(each[clock] for each in samples.said) for clock in (0, 1))
        if busy > self.threads * (1 + _SHARE) * wall + self.slack:
            return f"{self.threads} threads computed for {busy:.3g} s in a sample of {wall:.3g} s by its own clocks"
        return ""

    def _hidden_memory(self, record: Record) -> str:
        said = record.first("peak_bytes")
        if said is None or self.slack == SLACK_OF_A_GPU or VARIANTS.is_own(record.cell.variant.name):
            return ""
        if record.key not in self.touched:
            return "its Record states memory that no other process could see"
        # not a number, and not more, where the kernel does not tell
        touched, written = self.touched[record.key]
        if written > _WRITTEN_BYTES:
            return f"a sample writes {written / 2**20:,.0f} MiB to files, which its own count of memory does not have"
        most = _MORE * said.value + _SLACK_BYTES + self.threads * _THREAD_BYTES
        if not touched > most:
            return ""
        return (
            f"a sample touches {touched / 2**20:,.0f} MiB of memory as the kernel counts it, and has "
            f"{said.value / 2**20:,.0f} MiB by its own count; what is kept between calls belongs in buffers"
        )

    def _agrees(self, record: Record) -> bool:
        """True if a Record has the times that were compared, or none."""
        timed = next(filter(None, map(record.first, _MODES)), None)
        if timed is None or record.outcome is not Outcome.OK:
            return True
        said = [seconds for seconds, _ in self.of[record.key].said] if record.key in self.of else []
        repeats = timed.where.get("repeats", 1)
        same = (math.isclose(a * repeats, b, rel_tol=1e-6) for a, b in zip(timed.samples, said, strict=False))
        return self.compared and len(said) == len(timed.samples) and all(same)
