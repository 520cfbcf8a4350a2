"""Spot check: now and then, rows of the run itself are tested for the future, as the gate tests rows of its own.

Code may look at its callers and be right under the gate alone. Here it is called from within the run, at moments and on
rows that are drawn anew each time. What recognises this file too remains possible; SECURITY.md says so.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from ...variants.contract import Mask, Variant
from ..core.registry import VARIANTS
from ..core.spec import Spec

_ROWS = 2
"""Sequences of a batch that are tested."""

_MOVED = {torch.float32: 1e-3, torch.float64: 1e-6}
"""The share of the outputs' deviation that may move; of other types, `_MOVED_ROUGHLY`."""

_MOVED_ROUGHLY = 0.1

CONFIRMED = 2
"""Tests that must fail: rounding may move a choice of keys that are equally good, and so an output, but not often."""


class SpotCheck:
    """The tests of one Cell. `share`: of the calls that are tested, at random, while `watching`."""

    def __init__(self, variant: Spec, device: torch.device, share: float):
        # our own code has tests for it; on a GPU a test within a captured step would end the capture
        self.is_on = device.type == "cpu" and not VARIANTS.is_own(variant.name)
        self.share, self.failed, self.found, self.draw = share, 0, "", random.SystemRandom()

    @contextmanager
    def watching(self, variants: Iterable[Variant]) -> Iterator[None]:
        """Inside, calls of `variants` are tested."""
        hooks = [each.register_forward_hook(self._look) for each in variants if self.is_on]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def __deepcopy__(self, memo: Any) -> SpotCheck:
        return self

    def _look(self, variant: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        if self.draw.random() >= self.share or self.found:
            return
        # what cannot be copied, or refuses two rows, is not tested here
        with suppress(Exception), torch.no_grad(), torch.random.fork_rng(devices=[]):
            problem = self._problem(copy.deepcopy(variant), inputs)
            self.failed += bool(problem)
            if self.failed >= CONFIRMED:
                self.found = problem

    def _problem(self, variant: Any, inputs: tuple[Any, ...]) -> str:
        query, key, value, mask, *hidden = inputs
        length, batch = query.shape[2], query.shape[0]
        is_plain = mask.causal and mask.bounds is None and variant.causality == "strict"
        if not is_plain or key.shape[2] != length or length < 2:
            return ""
        rows = self.draw.sample(range(batch), min(_ROWS, batch))
        cut = self.draw.randrange(1, length)
        mask = Mask(valid=None if mask.valid is None else mask.valid[rows], causal=True)
        parts = [each.detach()[rows].clone() for each in (query, key, value)]
        states = [each.detach()[rows].clone() for each in hidden]
        seed = self.draw.randrange(2**31)

        def ran() -> Tensor:
            torch.manual_seed(seed)
            outputs: Tensor = copy.deepcopy(variant).forward(*parts, mask, *states)
            return outputs.double()

        before = ran()
        for each, axis in [*((part, 2) for part in parts), *((state, 1) for state in states)]:
            late = each.narrow(axis, cut, length - cut)
            late.copy_(3 * late.roll(1, axis) + 1)
        after = ran()
        moved = float((after - before)[:, :, :cut].abs().max())
        allowed = _MOVED.get(query.dtype, _MOVED_ROUGHLY) * float(before.std())
        if moved <= allowed:
            return ""
        return f"on rows of the run itself, positions from {cut:,} on move the outputs before them by {moved:.2g}"
