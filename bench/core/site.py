"""Site: where a run measures, which decides the Records that count as done there."""

from __future__ import annotations

from dataclasses import dataclass

from .record import Outcome, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One machine, or the nodes that an executor such as slurm chooses.

    `machine_id`: of the one machine; empty for nodes, which are not known before they have run. `on_gpu`: whether their
    GPUs are asked for. `threads`: of timings.
    """

    machine_id: str
    executor: str = "local"
    on_gpu: bool = False
    threads: int

    @property
    def name(self) -> str:
        """The same for all that a later run may ask whether it has been done."""
        return self.machine_id or f"{self.executor} {'gpu' if self.on_gpu else 'cpu'}"

    def counts(self, record: Record) -> bool:
        """Whether a Record of one of its cells answers here.

        Speeds answer at the same number of threads alone. Of nodes, any that the executor chose counts, and what was
        trained by this code counts from whatever machine; what failed on another machine may succeed here.
        """
        is_timing = record.cell.lane == "time"
        if is_timing and record.machine.threads != self.threads:
            return False
        if self.machine_id:
            return record.machine.id == self.machine_id
        if bool(record.machine.accelerators) != self.on_gpu:
            return False
        return record.executor == self.executor or (not is_timing and record.outcome is Outcome.OK)
