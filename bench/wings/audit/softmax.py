"""Softmax: over which axis a module normalises its scores, as a mode of dispatch sees it in one call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...gate.lengths import taken
from ...gate.result import Answers, Measured, NotJudged
from ...run.link import at_the_code
from .calls import Inputs
from .subject import ForeignSubject


@contextmanager
def under(mode: TorchDispatchMode) -> Iterator[None]:
    """The mode, for one call of a subject."""
    try:
        with mode:
            yield
    except Exception:
        # code that compiles itself refuses the mode, and from then on every call, until this forgets
        torch.compiler.reset()
        raise


class _Softmaxes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes softmaxes over the wrong axis of scores: of tensors with two axes of as many as there are positions."""

    def __init__(self, length: int):
        super().__init__()  # type: ignore[no-untyped-call]
        self.length, self.problems, self.made = length, [], []  # type: ignore[var-annotated]

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._softmax.default:
            scores, axis = args[0], args[1] % args[0].ndim
            if list(scores.shape).count(self.length) > 1:
                if scores.shape[axis] != self.length:
                    text = f"a softmax of scores {tuple(scores.shape)} runs over axis {axis}, not over keys"
                    self.problems.append(text)
                self.made.append((found, found.stride(axis)))
        elif func is torch.ops.aten.bmm.default:
            for weights, stride in self.made:
                same = weights.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr()
                # the product sums over the last axis, which must be that of the softmax
                if same and args[0].stride(-1) != stride:
                    self.problems.append("weights are summed over another axis than that of their softmax")
        return found


def normalised(subject: ForeignSubject) -> Answers:
    """A softmax of scores runs over the keys, the axis over which the values are summed."""
    # neither as many heads, nor sequences, nor numbers of one head
    length = next(iter(taken(subject, (43,))), subject.convention.length)
    made, problems = _softmaxes(subject, subject.draw(3, length), length)
    if not made:
        yield NotJudged("no softmax in its own code")
        return
    lines = ("o = out(inputs)", "# read the axis of the softmax in the code; the shapes are in the finding")
    yield Measured(float(len(problems)), 0.0, "".join(problems[:1]), subject.shown(*lines))


@at_the_code
def _softmaxes(subject: ForeignSubject, inputs: Inputs, length: int) -> tuple[int, list[str]]:
    """The number of softmaxes of scores in one call, and in words those over another axis: seen there alone."""
    found = _Softmaxes(length)
    with under(found):
        subject.outputs(inputs, None, True)
    return len(found.made), found.problems
