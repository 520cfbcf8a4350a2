"""One table of colours: softmax is black, every variant looks the same in every figure of the project."""

import re
from pathlib import Path

import pytest

pytest.importorskip("altair", reason="the extra dashboard is not installed")

from attnbench.bench.board.report import Report
from attnbench.dashboards.colours import BLACK, IN_ORDER, appearance
from attnbench.dashboards.figures import figures

ROOT = Path(__file__).parents[2]


def drawn(part: object) -> dict[str, set[str]]:
    """What each name is drawn with, over all scales of a chart that tell variants apart."""
    found: dict[str, set[str]] = {}
    if isinstance(part, dict):
        if part.get("field") == "variant" and "scale" in part:
            for name, look in zip(part["scale"]["domain"], part["scale"]["range"], strict=True):
                # without a name: an end of the scale that keeps legends apart
                if name:
                    found.setdefault(name, set()).add(look)
        part = list(part.values())
    for inner in part if isinstance(part, list) else ():
        for name, looks in drawn(inner).items():
            found.setdefault(name, set()).update(looks)
    return found


def test_softmax_alone_is_black_and_no_two_variants_look_alike() -> None:
    assert appearance("softmax")[0] == BLACK and appearance("softmax[impl=math]")[0] == BLACK
    looks = [appearance(name) for name in ("softmax", *IN_ORDER)]
    assert len(set(looks)) == len(looks) and [colour for colour, _ in looks].count(BLACK) == 1
    # a variant of somebody else has one too, whatever stands beside it
    assert appearance("mine") == appearance("mine") and appearance("mine")[0] != BLACK


def test_parameters_change_the_shape_alone() -> None:
    plain, wide = appearance("local"), appearance("local[flange=16,query_block=16]")
    assert plain[0] == wide[0] and plain[1] != wide[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["report", "by_setting", "lengths"])
def test_every_figure_of_a_board_uses_the_table(kind: str, request: pytest.FixtureRequest) -> None:
    made: Report = request.getfixturevalue(kind)
    seen = 0
    for name, chart in figures(made).items():
        for variant, looks in drawn(chart.to_dict()).items():
            assert looks <= set(appearance(variant)), (name, variant)
            seen += 1
    assert seen >= 2


def test_committed_pictures_use_the_table() -> None:
    """By the label of each point of the first picture, and by the order of lines and names in the other."""
    first = (ROOT / "docs/figures/over-lengths.svg").read_text(encoding="utf-8")
    points = set(re.findall(r'variant: ([^";]+);[^>]*?fill="(#\w+)"', first))
    other = (ROOT / "docs/huggingface.svg").read_text(encoding="utf-8")
    lines = re.findall(r'h24" stroke="(#\w+)"[^>]*/>\n<text[^>]*>([^<]+)<', other)
    assert len(points) == 6 and len(lines) == 5
    for name, colour in [*points, *((name, colour) for colour, name in lines)]:
        assert colour == appearance(name)[0], (name, colour)
    assert re.findall(r'<polyline[^>]*stroke="(#\w+)"', other) == [colour for colour, _ in lines]
