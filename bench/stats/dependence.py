"""Standard errors of a mean over examples that share documents, such as pairs of papers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt


def standard_error(values: npt.NDArray[Any], documents: npt.NDArray[Any] | None = None) -> float:
    """The standard error of the mean of `values` (examples,).

    `documents`: (examples, 2), the two documents of each example by number, which may be the same; None where all
    examples are independent. Examples that share a document may err alike: this is the dyadic cluster-robust variance
    (Aronow, Samii and Assenova 2015), the sum of the products of all such pairs of residuals. Noise can make that sum
    too small, so it is never below that of independent examples.

    >>> values = np.array([0.0, 0.0, 1.0, 1.0])
    >>> round(standard_error(values), 3)
    0.289
    >>> round(standard_error(values, np.array([[0, 1], [0, 2], [3, 4], [3, 5]])), 3)  # two twice over
    0.408
    """
    count = len(values)
    if count < 2:
        return 0.0
    residuals = np.asarray(values, dtype=np.float64) - np.mean(values, dtype=np.float64)
    independent = float(np.sum(residuals**2))
    scale = count / (count - 1) / count**2
    if documents is None:
        return math.sqrt(independent * scale)
    low, high = documents.min(axis=1), documents.max(axis=1)
    pairs = low != high
    by_document = np.bincount(low, weights=residuals, minlength=int(high.max()) + 1)
    by_document += np.bincount(high[pairs], weights=residuals[pairs], minlength=len(by_document))
    # examples of the same two documents were counted once for each of them
    _, same = np.unique(np.stack([low[pairs], high[pairs]], axis=1), axis=0, return_inverse=True)
    twice = np.bincount(same.ravel(), weights=residuals[pairs])
    total = float(np.sum(by_document**2) - np.sum(twice**2))
    return math.sqrt(max(total, independent) * scale)


def inflation(values: npt.NDArray[Any], documents: npt.NDArray[Any] | None) -> float:
    """How many times larger the standard error is than that of independent examples; at least 1.

    >>> inflation(np.array([0.0, 0.0, 1.0, 1.0]), np.array([[0, 1], [0, 2], [3, 4], [3, 5]])).__round__(3)
    1.414
    """
    independent = standard_error(values)
    return standard_error(values, documents) / independent if documents is not None and independent else 1.0
