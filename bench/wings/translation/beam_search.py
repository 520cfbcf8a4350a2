"""Beam search for the likeliest output, of many sequences at once, over any model that goes token by token."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...measure.memory import reordered

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""(last tokens (rows,), state) → log-probabilities (rows, vocabulary) of the next tokens, and the state after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """An output without its end. `log_probability`: with the end; `score`: that over the length penalty."""

    tokens: tuple[int, ...]
    log_probability: float
    score: float


def length_penalty(tokens: int, alpha: float) -> float:
    """((5 + tokens) / 6) ** alpha, END counted (Wu et al. 2016, equation 14).

    >>> length_penalty(1, 0.6), length_penalty(7, 0.0), length_penalty(7, 1.0)
    (1.0, 1.0, 2.0)
    """
    return float(((5 + tokens) / 6) ** alpha)


@torch.inference_mode()
def beam_search(
    step: Step, state: Any, limits: Tensor, *, begin: int, end: int, beam: int, alpha: float
) -> list[Hypothesis]:
    """The best hypothesis found of each sequence. limits: (sequences,), most tokens of each, END counted.

    Rows of `state`, one per sequence, are its tensors' first dimension. At each step the `beam` likeliest unfinished
    hypotheses of a sequence live on; one that ends is finished where it is among the `beam` likeliest of all. A
    sequence stops with `beam` finished ones, or when none that lives can score higher; at its limit all that live must
    end. Where nothing can end, as with logits that are no numbers, the output is empty and its score -inf.
    """
    count = len(limits)
    finished: list[list[Hypothesis]] = [[] for _ in range(count)]
    most = limits.tolist()
    device = limits.device
    at = list(range(count))
    state = reordered(state, torch.arange(count, device=device).repeat_interleave(beam))
    scores = torch.full((count, beam), -torch.inf, device=device)
    # All rows of a beam begin alike: with one of them alive, the first step does not choose the same token many times.
    scores[:, 0] = 0.0
    tokens = torch.full((count, beam, 1), begin, device=device)
    length = 0
    while at:
        length += 1
        found, state = step(tokens[:, :, -1].flatten(), state)
        vocabulary = found.shape[-1]
        found = found.float().view(len(at), beam, vocabulary)
        last = [place for place, sequence in enumerate(at) if length >= most[sequence]]
        if last:
            only_end = torch.full_like(found[last], -torch.inf)
            only_end[..., end] = found[last][..., end]
            found[last] = only_end
        # each live hypothesis has one end, so twice as many candidates leave `beam` that go on
        candidates = (scores[..., None] + found).flatten(1).topk(min(2 * beam, beam * vocabulary))
        origin, token = candidates.indices // vocabulary, candidates.indices % vocabulary
        ends = token == end
        _finish(finished, at, tokens, candidates.values, origin, ends, beam, length_penalty(length, alpha))
        live, kept = _padded(candidates.values.masked_fill(ends, -torch.inf), beam).topk(beam)
        going = []
        for place, best in enumerate(live[:, 0].tolist()):
            done = finished[at[place]]
            # The best score that a live hypothesis could still get: its probability only falls, and the penalty of the
            # longest output divides it by most.
            reach = best / length_penalty(most[at[place]], alpha)
            is_beaten = bool(done) and max(each.score for each in done) >= reach
            if best > -torch.inf and len(done) < beam and not is_beaten:
                going.append(place)
        # Sequences that are done leave the batch, which is what makes short ones cheap.
        places = torch.tensor(going, dtype=torch.long, device=device)
        kept, scores = kept[places].clamp(max=origin.shape[1] - 1), live[places]
        origin, token = origin[places].gather(1, kept), token[places].gather(1, kept)
        rows = places[:, None] * beam + origin
        state = reordered(state, rows.flatten())
        past = tokens.flatten(0, 1)[rows.flatten()].view(len(going), beam, length)
        tokens = torch.cat([past, token[..., None]], dim=2)
        at = [at[place] for place in going]
    nothing = Hypothesis(tokens=(), log_probability=-math.inf, score=-math.inf)
    return [max(done, key=lambda each: each.score, default=nothing) for done in finished]


def _finish(
    finished: list[list[Hypothesis]],
    at: list[int],
    tokens: Tensor,
    values: Tensor,
    origin: Tensor,
    ends: Tensor,
    beam: int,
    penalty: float,
) -> None:
    """Adds the hypotheses that end among the `beam` likeliest candidates of each sequence."""
    ending = ends[:, :beam] & (values[:, :beam] > -torch.inf)
    for place, rank in ending.nonzero().tolist():
        value = float(values[place, rank])
        words = tuple(tokens[place, origin[place, rank], 1:].tolist())
        finished[at[place]].append(Hypothesis(tokens=words, log_probability=value, score=value / penalty))


def _padded(values: Tensor, beam: int) -> Tensor:
    """The values with at least `beam` columns; added ones can never be chosen before a real one."""
    lacking = max(0, beam - values.shape[1])
    return torch.nn.functional.pad(values, (0, lacking), value=-torch.inf)


@torch.inference_mode()
def greedy_search(step: Step, state: Any, limits: Tensor, *, begin: int, end: int) -> list[Hypothesis]:
    """The output that takes the likeliest token at each step; at its limit a sequence ends."""
    most = limits.tolist()
    at = list(range(len(most)))
    tokens = torch.full((len(most), 1), begin, device=limits.device)
    totals = torch.zeros(len(most), device=limits.device)
    found: dict[int, Hypothesis] = {}
    length = 0
    while at:
        length += 1
        options, state = step(tokens[:, -1], state)
        last = torch.tensor([length >= most[sequence] for sequence in at], device=limits.device)
        token = torch.where(last, end, options.argmax(-1))
        totals = totals + options.float().gather(1, token[:, None])[:, 0]
        for place in (token == end).nonzero().flatten().tolist():
            total = float(totals[place])
            found[at[place]] = Hypothesis(tokens=tuple(tokens[place, 1:].tolist()), log_probability=total, score=total)
        going = (token != end).nonzero().flatten()
        tokens = torch.cat([tokens, token[:, None]], dim=1)[going]
        totals, state = totals[going], reordered(state, going)
        at = [at[place] for place in going.tolist()]
    return [found[sequence] for sequence in range(len(most))]
