"""Scaling: how a cost grows with length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .intervals import Estimate, NoiseSource
from .scoring import log_ratio


def upper_half(lengths: Sequence[int]) -> list[int]:
    """The lengths from the geometric middle on, where constant costs weigh least; two at least.

    >>> upper_half([256, 512, 1024, 2048, 4096])
    [1024, 2048, 4096]
    """
    ordered = sorted(lengths)
    if len(ordered) <= 2:
        return ordered
    middle = math.sqrt(ordered[0] * ordered[-1])
    above = [length for length in ordered if length >= middle * (1 - 1e-9)]
    return above if len(above) > 1 else ordered[-2:]


def exponent(logs: Mapping[int, Estimate]) -> Estimate | None:
    """The slope of log cost over log length, by least squares over the upper half of the lengths; None for one length.

    Its noise is that of each cost, and of the costs about the line (with n - 2 degrees of freedom): a bend counts too.

    >>> exponent({length: Estimate(2 * math.log(length)) for length in (256, 512, 1024, 2048)}).value
    2.0
    """
    lengths = upper_half(list(logs))
    if len(lengths) < 2:
        return None
    places = [math.log(length) for length in lengths]
    values = [logs[length].value for length in lengths]
    centre = math.fsum(places) / len(places)
    spread = math.fsum((x - centre) ** 2 for x in places)
    shares = [(x - centre) / spread for x in places]
    slope = math.fsum(share * value for share, value in zip(shares, values, strict=True))
    noise = [
        NoiseSource(abs(share) * n.error, n.freedom)
        for share, length in zip(shares, lengths, strict=True)
        for n in logs[length].noise
    ]
    if len(lengths) > 2:
        mean = math.fsum(values) / len(values)
        rest = [v - mean - slope * (x - centre) for x, v in zip(places, values, strict=True)]
        freedom = len(lengths) - 2
        noise.append(NoiseSource(math.sqrt(math.fsum(r * r for r in rest) / freedom / spread), freedom))
    return Estimate(round(slope, 12), tuple(noise))


def log_cost(samples: Sequence[float]) -> Estimate:
    """The logarithm of the geometric mean of raw samples, with an interval over rounds as for ratios."""
    return log_ratio(samples, [1.0] * len(samples))
