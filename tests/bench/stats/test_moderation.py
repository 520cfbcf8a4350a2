"""Who is far outside a board: an F test at 0.1 % of the board, beside scipy's, and a third of the pool at most."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from attnbench.bench.stats.moderation import moderated_variances


def deviations(*sizes: float) -> np.ndarray:
    """Scores of four seeds, each variant with a pattern of its own and no effect that seeds share."""
    patterns = np.array([[1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
    signs = np.array([patterns[at % 3] * (1 if at % 2 else -1) for at in range(len(sizes))])
    return np.array(sizes)[:, None] * signs


@pytest.mark.parametrize("count", [6, 9])
def test_far_outside_begins_where_an_f_test_at_a_thousandth_says_so(count: int) -> None:
    pool = np.ones(count, dtype=bool)
    limit = stats.f.ppf(1 - 0.001 / count, 3, 3 * (count - 1))

    def ratio(size: float) -> tuple[float, bool]:
        """The largest variance over the mean of the others, as the rule has it, and whether it is outside."""
        scores = deviations(size, *[1.0] * (count - 1))
        centred = scores - scores.mean(axis=1, keepdims=True)
        residuals = centred - centred.mean(axis=0)
        own = (residuals**2).sum(axis=1) / 3 / (1 - 1 / count)
        return own[0] / np.mean(own[1:]), bool(moderated_variances(scores, pool).keeps_own[0])

    found = [ratio(size) for size in np.linspace(1, 12, 300)]
    assert [far for _, far in found] == [value > limit for value, _ in found]
    assert {far for _, far in found} == {True, False}


def test_at_most_a_third_of_a_pool_is_outside() -> None:
    far = [
        moderated_variances(deviations(*[300.0] * many, *[1.0] * (12 - many)), np.ones(12, bool))
        for many in range(1, 7)
    ]
    assert [int(found.keeps_own.sum()) for found in far] == [1, 2, 3, 4, 0, 0]
