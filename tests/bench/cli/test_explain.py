"""The triangle against brute force: the maps, the sign of the entropy, the contours."""

from pathlib import Path

import numpy as np
import pytest
from command_lines import answer

from attnbench.bench.board import simplex as module
from attnbench.bench.board.simplex import contours, entropy, place, simplex_figure, surface
from attnbench.bench.cli.pages import _map
from attnbench.bench.core.spec import Spec


def softmax(scores: np.ndarray) -> np.ndarray:
    shifted = np.exp(scores - scores.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def relu(scores: np.ndarray) -> np.ndarray:
    return np.maximum(scores, 0.0)


def grid(steps: int) -> np.ndarray:
    return np.array([(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)]) / steps


@pytest.mark.parametrize(("alpha", "name"), [(1.0, "softmax"), (1.5, "entmax15"), (2.0, "sparsemax")])
def test_each_map_makes_scores_plus_entropy_largest(alpha: float, name: str) -> None:
    """Brute force over a grid of the simplex; with a minus before the entropy the answer would be a corner."""
    points = grid(200)
    for scores in np.random.default_rng(0).normal(size=(5, 3)):
        best = points[np.argmax(points @ scores + entropy(points, alpha))]
        assert _map(Spec(name))(scores[None])[0] == pytest.approx(best, abs=0.006)


def test_entropy_goes_to_shannons() -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(3), 20)
    assert entropy(weights, 1.0 + 1e-6) == pytest.approx(entropy(weights, 1.0), abs=1e-5)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_contours_lie_where_the_entropy_has_their_level(alpha: float) -> None:
    segments = list(contours(alpha))
    x, y = np.array([(s["x"], s["y"]) for s in segments]).T
    third = y / (3**0.5 / 2)
    second = x - third / 2
    weights = np.clip(np.stack([1 - second - third, second, third], axis=1), 0, 1)
    levels = np.array([s["level"] for s in segments])
    assert entropy(weights, alpha) == pytest.approx(levels, abs=4e-3 * levels.max() + 3e-3)
    assert len(set(levels)) == module.LEVELS


def test_corners_and_middle_are_where_they_should_be() -> None:
    x, y = place(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]]))
    assert x == pytest.approx([0, 1, 0.5, 0.5]) and y == pytest.approx([0, 0, 3**0.5 / 2, 3**0.5 / 6])


def test_rows_without_weight_are_counted_and_not_drawn() -> None:
    found = simplex_figure({"softmax": softmax, "relu": relu}, draws=50)
    expected = int((np.random.default_rng(0).normal(size=(50, 3)) <= 0).all(1).sum())
    assert expected > 0 and found.null_rows == {"softmax": 0, "relu": expected}
    assert sum(d["variant"] == "relu" for d in found.random) == 50 - expected
    dot = next(d for d in found.random if d["variant"] == "relu" and d["total"] < 0.9)
    shares = np.array([[dot["first"], dot["second"], dot["third"]]]) / dot["total"]
    assert (dot["x"], dot["y"]) == pytest.approx([float(v[0]) for v in place(shares)])


def test_paths_end_at_the_winner_two_choices_are_fair_and_the_surface_is_a_net() -> None:
    found = simplex_figure({"softmax": softmax})
    dots = [dot for dot in found.trajectories if dot["start"] == 0]
    assert (dots[0]["first"], dots[-1]["first"]) == (pytest.approx(1 / 3, abs=0.02), pytest.approx(1.0, abs=1e-6))
    middle = next(choice for choice in found.choices if abs(choice["lead"]) < 1e-9)
    assert middle["weight"] == pytest.approx(0.5)
    assert len({each["line"] for each in surface(2.0)}) == 36


@pytest.mark.slow  # a whole command
def test_the_command_writes_a_page_and_pictures(tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="the extra dashboard is not installed")
    pytest.importorskip("vl_convert", reason="the extra dashboard is not installed")
    assert answer(f"explain simplex --variants softmax,rela --out {tmp_path} --figures svg").code == 0
    assert "rela gives no weight at all to 15 of them" in (tmp_path / "simplex.html").read_text(encoding="utf-8")
    pictures = sorted(path.stem for path in tmp_path.glob("*.svg"))
    assert pictures == [f"simplex-{name}" for name in ("contours", "random", "surface", "trajectories", "two-choices")]


def test_only_maps_can_be_drawn() -> None:
    pytest.importorskip("altair", reason="the extra dashboard is not installed")
    for line, words in (("simplex --variants linear", "linear is no map"), ("complex", "expected `simplex`")):
        found = answer(f"explain {line}")
        assert found.code == 2 and words in found.errors
