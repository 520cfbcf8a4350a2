"""Products: the queries, keys and values of a layer's own pass, found by the products that it makes of them.

    with Products(inputs, length) as found:     # inputs of one sequence
        output = module(x)
    seen = found.seen(output)

A view of the same numbers is one place in memory, and nothing is freed before the end. Cannot see: products of blocks
that stand in the batch, scores that no matrix product makes, and attentions behind the first of a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_LEFT = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Products, and the number of the left factor among their arguments; the right one is the next."""

_FUSED = "_scaled_dot_product"
"""Begin of the names of torch's own attentions, whose first arguments are query, key and value."""

_COPIES = ("clone", "_unsafe_view", "_to_copy")
_MARKS = {"scores": "s", "sums": "so", "both": "so"}


class Unfound(Exception):
    """The reason why queries, keys and values are not found."""


@dataclass(frozen=True, slots=True)
class HeadInputs:
    """Query (heads, positions, width), key and value (heads, positions or more, width) of one sequence.

    block: keys of a product, where there are several; else 0.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    block: int = 0


@dataclass(frozen=True, slots=True)
class _Operation:
    """An operation, its largest input, and the number of its output. arranges: it moves numbers and changes none."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parent: Tensor
    number: int
    arranges: bool

    @property
    def name(self) -> str:
        return str(self.func.__name__).partition(".")[0].removesuffix("_")

    def again(self, other: Tensor) -> Tensor:
        """The same arrangement of other numbers; an operation that computes leaves them as they are."""
        if not self.arranges:
            return other
        # other numbers may lie in another order, of which there is no such view
        func = torch.reshape if self.name in ("view", "_unsafe_view") else self.func
        found = func(other, *self.args[1:], **self.kwargs)
        return found if isinstance(found, Tensor) else found[self.number]


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass as tensors and words.

    output: sums of values as the output projection gets them, or the output. order: where each number of it stands
    among sums of values (heads, positions, width), counted from 1; 0 where nothing stands. plain: nothing but a
    division lies between. mixes: how heads mix positions. reason: why nothing else is found.
    """

    output: Tensor
    raw: Tensor
    heads: list[HeadInputs]
    order: Tensor
    sums: list[Tensor]
    plain: bool = False
    mixes: str = ""
    reason: str = ""


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what is made of what in one pass. shift: added to all scores. ones: all values become ones."""

    def __init__(self, inputs: tuple[Tensor, ...], length: int, *, shift: float = 0.0, ones: bool = False):
        super().__init__()  # type: ignore[no-untyped-call]
        self.length, self.shift, self.ones = length, shift, ones
        # of each piece of memory: "x" where the inputs reach, "s" where scores do, "o" where sums of values do
        self.marks: dict[int, set[str]] = {_memory(each): {"x"} for each in inputs}
        self.kept: list[Any] = []
        self.steps: dict[Any, _Operation] = {}
        self.factors: dict[Any, float] = {}
        self.queries: list[tuple[Tensor, Tensor]] = []
        self.keys: list[tuple[Tensor, Tensor]] = []
        self.values: list[Tensor] = []
        self.sums: list[Tensor] = []
        self.joined: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.__name__.partition(".")[0]
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        at, role = _LEFT.get(name, 0), self._role(name, args)
        if role == "projection" and self.joined is None:
            self.joined = args[at]
        if role in ("scores", "both"):
            self._scored(args[at], args[at + 1], turned=role == "scores")
        if role in ("sums", "both"):
            value = 2 if role == "both" else at + 1
            self.values.append(args[value].flatten(0, -3).clone())
            if self.ones:
                args = (*args[:value], torch.ones_like(args[value]), *args[value + 1 :])
        found = func(*args, **kwargs)
        if role == "scores" and self.shift:
            found = found + self.shift
        made = [each for each in tree_leaves(found) if isinstance(each, Tensor)]
        if role in ("sums", "both"):
            self.sums.append(made[0].flatten(0, -3).clone())
        marks = set().union(*map(self._of, given), _MARKS.get(role, ""))
        self.kept.append((given, made))
        # `zeros_like` takes a shape alone
        if marks and not name.endswith("_like"):
            parent = max(given, key=lambda each: (len(self._of(each)), each.numel()))
            for number, each in enumerate(made):
                self.marks.setdefault(_memory(each), set()).update(marks)
                same = _memory(each) == _memory(parent) or name in _COPIES
                self._note(each, _Operation(func, args, kwargs, parent, number, same and args[0] is parent))
        return found

    def _of(self, tensor: Any) -> set[str]:
        return self.marks.get(_memory(tensor), set()) if isinstance(tensor, Tensor) else set()

    def _role(self, name: str, args: tuple[Any, ...]) -> str:
        """The name of this product of an attention: scores, sums of values, both, or the projection of its output."""
        if name.startswith(_FUSED):
            return "both" if all(self._of(each) == {"x"} for each in args[:3]) else ""
        if name not in _LEFT:
            return ""
        left, right = args[_LEFT[name]], args[_LEFT[name] + 1]
        of_left, of_right = self._of(left), self._of(right)
        if "o" in of_left:
            return "" if of_right else "projection"
        if left.ndim < 3 or of_right != {"x"}:
            return ""
        if "s" in of_left:
            return "sums"
        # products that sum over positions, as those of linear attention, are no scores
        width = self.queries[0][1].shape[-1] if self.queries else left.shape[-1]
        return "scores" if of_left and left.shape[-1] == width != self.length else ""

    def _scored(self, query: Tensor, key: Tensor, *, turned: bool) -> None:
        if turned:
            across = key.mT
            self._note(across, _Operation(torch.transpose, (key, -1, -2), {}, key, 0, True))
            key = across
        self.queries.append((query, query.flatten(0, -3).clone()))
        self.keys.append((key, key.flatten(0, -3).clone()))

    def _note(self, made: Tensor, step: _Operation) -> None:
        factor = self.factors.get(_place(step.parent), 1.0)
        if step.name in ("mul", "div") and step.args[0] is step.parent:
            by = step.args[1]
            constant = not isinstance(by, Tensor) or (by.numel() == 1 and not by.requires_grad and not self._of(by))
            by = (float(by) if constant else 0.0) or 1.0
            factor *= by if step.name == "mul" else 1 / by
        self.factors[_place(made)] = factor
        if _place(made) != _place(step.parent):
            # a view back to a former shape has a step already
            self.steps.setdefault(_place(made), step)

    def chain(self, tensor: Tensor) -> tuple[list[_Operation], Tensor]:
        """The steps from the last product, or from the last tensor of another shape, and that tensor."""
        steps: list[_Operation] = []
        while step := self.steps.get(_place(tensor)):
            product = step.name in _LEFT or step.name.startswith(_FUSED)
            if product or not (step.arranges or step.parent.shape == tensor.shape):
                break
            steps.insert(0, step)
            tensor = step.parent
        return steps, tensor

    def seen(self, output: Tensor) -> Pass:
        """The Pass of the products that led to this output."""
        target = output if self.joined is None else self.joined
        try:
            heads, value = self.heads(), self.values[0]
            shape = len(heads[0].query), self.length, value.shape[-1]
            order = self.arranged(torch.arange(1, math.prod(shape) + 1).reshape(shape), target)
            mixes = self.mixed_positions((order - 1) // shape[2] % self.length)
        except Unfound as reason:
            return Pass(target, output, [], torch.zeros(0), self.sums, reason=str(reason))
        plain = all(step.arranges or step.name == "div" for step in self.chain(target)[0])
        return Pass(target, output, heads, order, self.sums, plain, mixes)

    def heads(self) -> list[HeadInputs]:
        """Queries and keys as multiplied, but for constant factors; and as they were projected, where that is found.

        Raises Unfound where no product of queries and keys, or of weights and values, is seen for all positions.
        """
        if not (self.queries and self.values):
            raise Unfound(f"no product of {'weights and values' if self.queries else 'queries and keys'} is seen")
        query, key = (
            self._together([numbers / self.factors.get(_place(tensor), 1.0) for tensor, numbers in each])
            for each in (self.queries, self.keys)
        )
        value, several = self._together(self.values), len(self.keys) > 1
        if min(query.shape[1], key.shape[1]) < self.length or key.shape[1] != value.shape[1]:
            sizes = f"{query.shape[1]} queries, {key.shape[1]} keys and {value.shape[1]} values"
            raise Unfound(f"its products have {sizes} for {self.length} positions")
        found = [HeadInputs(self._rows(query), key, value, several * self.keys[0][1].shape[1])]
        before = [] if several else [_again(*self.chain(each[0][0])) for each in (self.queries, self.keys)]
        if before and (before[0].numel(), before[1].numel()) == (query.numel(), key.numel()):
            found.append(HeadInputs(self._rows(before[0].reshape(query.shape)), before[1].reshape(key.shape), value))
        return found

    def _rows(self, query: Tensor) -> Tensor:
        """Queries (heads, positions, width); rows of several heads that share a key may stand behind each other."""
        several = query.shape[1] % self.length == 0
        return query.reshape(-1, self.length, query.shape[-1]) if several else query[:, : self.length]

    def _together(self, pieces: list[Tensor]) -> Tensor:
        """Pieces (heads, some positions, width), each once: blocks of positions, or head by head."""
        distinct: list[Tensor] = []
        for piece in pieces:
            if not any(torch.equal(piece, other) for other in distinct):
                distinct.append(piece)
        by_head = all(piece.shape[1] >= self.length for piece in distinct)
        # all sizes but that along which they are joined
        if len({(piece.shape[1 if by_head else 0], piece.shape[-1]) for piece in distinct}) > 1:
            raise Unfound("its products are of several shapes")
        return torch.cat(distinct, 0 if by_head else 1)

    def arranged(self, mixed: Tensor, target: Tensor) -> Tensor:
        """Sums of values (heads, positions, width) as the target has them. Raises Unfound."""
        steps, first = self.chain(target)
        heads, length, width = mixed.shape
        if first.shape[-2:] == (length, heads * width) or first.shape[-3:-1] == (length, heads):
            mixed = mixed.transpose(0, 1)
        elif first.numel() > mixed.numel():
            mixed = F.pad(mixed, (0, 0, 0, first.shape[-2] - length))
        try:
            found = _again(steps, mixed.reshape(first.shape))
        except RuntimeError:
            raise Unfound("its outputs are arranged in another way") from None
        if found.shape != target.shape:
            raise Unfound("its outputs are arranged in another way")
        return found

    def mixed_positions(self, joined: Tensor) -> str:
        """The way in which heads get numbers of several positions, such as a view without a transposition, or empty.

        joined: the position of each number of the target.
        """
        rows = torch.arange(self.length)[:, None]
        steps, first = self.chain(self.queries[0][0])
        whole = first.shape[-2:-1] == (self.length,)
        split = _again(steps, rows.expand(first.shape)) if whole else rows
        for words, found in (("split", split), ("joined", joined)):
            if found.shape[-2:-1] == (self.length,) and bool((found != rows).any()):
                return f"heads are {words} by view, without transpose, which mixes positions"
        return ""


def _place(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _again(steps: list[_Operation], value: Tensor) -> Tensor:
    for step in steps:
        value = step.again(value)
    return value
