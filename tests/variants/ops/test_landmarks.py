"""Segments, picked tokens and the iterated inverse."""

from __future__ import annotations

import itertools

import torch

from attnbench.variants.ops.landmarks import iterated_inverse, picks, segments


def test_segments_and_picks_cover_the_real_tokens_evenly() -> None:
    for real, count in itertools.product((0, 1, 3, 7, 8, 20), (1, 4, 7, 12)):
        scattered = torch.zeros(1, 24, dtype=torch.bool)
        scattered[0, torch.randperm(24, generator=torch.Generator().manual_seed(real))[:real]] = True
        mean, used = segments(scattered, count, torch.float64)
        assert int(used.sum()) == min(real, count)
        sizes = (mean[0] > 0).sum(-1)[used[0]]
        assert int(sizes.sum()) == real
        assert real == 0 or sizes.max() - sizes.min() <= 1
        torch.testing.assert_close(mean[0].sum(-1), used[0].double())
        assert (mean[0, :, ~scattered[0]] == 0).all()
        chosen, used = picks(scattered, count, torch.float64)
        assert torch.equal(chosen[0].sum(-1), used[0].double())
        assert float(chosen[0].sum(0).max()) <= 1


def test_the_iterated_inverse_is_that_of_moore_and_penrose_for_each_matrix_by_itself() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(3, 2, 6, 6, generator=generator, dtype=torch.float64)
    matrix[0, 0, 2:] = 0
    matrix[0, 0, :, 2:] = 0
    matrix[1] *= 1e6
    matrix[2, 1] = 0
    inverse = iterated_inverse(matrix, 40)
    torch.testing.assert_close(matrix @ inverse @ matrix, matrix, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(inverse[0, 0, :2, :2], torch.linalg.inv(matrix[0, 0, :2, :2]), rtol=1e-8, atol=1e-8)
    assert (inverse[2, 1] == 0).all()
    torch.testing.assert_close(iterated_inverse(matrix[1:2], 5), iterated_inverse(matrix, 5)[1:2], rtol=0, atol=0)
