"""`attnbench referee`: tasks that follow from a secret alone, and places that hold, turn or stay open."""

import json

import pytest
from typer.testing import CliRunner

from attnbench.bench.board.board import Board, Row
from attnbench.bench.cli.app import app
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.registry import TASKS
from attnbench.bench.wings.referee import referee as wing
from attnbench.bench.wings.referee.referee import Place, RefereeReport, drawn_tasks, order_of


def board_of(name: str, *ranks: tuple[str, int, int]) -> Board:
    ranked = tuple(Row(name=one, entries=(), first=first, last=last) for one, first, last in ranks)
    return Board(
        name=name, title=name, question="", columns=(), ranked=ranked, unranked=(Row(name="none", entries=()),)
    )  # fmt: skip


def test_a_secret_draws_two_tasks_that_can_be_trained_and_tested() -> None:
    seen = set()
    for number in range(60):
        drawn = drawn_tasks(f"secret {number}")
        assert len({task.name for task, _ in drawn}) == 2
        for task, preset in drawn:
            built = TASKS.build(TASKS.resolve(task))
            recipe = built.recipe(preset)
            assert recipe.ranked and built.settings(recipe)
            assert recipe.shortest <= recipe.length
            seen.add(task.name)
    assert seen == {"recall", "stack", "flip-flop", "reverse"}


def test_two_secrets_seldom_draw_the_same_question() -> None:
    drawn = [tuple(map(str, one)) for number in range(100) for one in drawn_tasks(str(number))]
    assert len(set(drawn)) > 190


@pytest.mark.parametrize(
    ("one", "other", "order"),
    [("a", "b", 1), ("b", "a", -1), ("b", "c", 0), ("a", "d", 1), ("a", "none", None), ("a", "unknown", None)],
)
def test_the_order_of_two_is_that_of_their_rank_intervals(one: str, other: str, order: int | None) -> None:
    board = board_of("hidden", ("a", 1, 1), ("b", 2, 3), ("c", 2, 3), ("d", 4, 4))
    assert order_of(board, one, other) == order


@pytest.mark.parametrize(
    ("claimed", "found", "verdict"),
    [
        (1, (1, 1), "holds"), (1, (0, 1), "holds"), (-1, (-1, None), "holds"), (1, (-1, 0), "turned"),
        (-1, (1, 1), "turned"), (1, (1, -1), "mixed"), (1, (0, None), "open"), (0, (1, 1), "no claim"),
        (None, (1, 1), "no claim"),
    ],
)  # fmt: skip
def test_a_place_holds_where_no_task_shows_the_opposite(claimed, found, verdict) -> None:
    assert Place(rival="r", claimed=claimed, found=found).verdict == verdict


def test_the_headline_counts_the_places_that_were_claimed() -> None:
    places = tuple(Place(rival=str(at), claimed=one, found=(1,)) for at, one in enumerate((1, -1, 0, 1)))
    report = RefereeReport(variant="mine", secret="s", boards=(), places=places)
    assert report.headline == "mine: 2 of 3 places hold, 1 turned (secret s)"
    nothing = RefereeReport(variant="mine", secret="s", boards=(), places=places[2:3])
    assert nothing.headline == "mine: no claim to hold against 2 drawn tasks"


@pytest.fixture
def trained(monkeypatch):
    """Runs train nothing; on both tasks mine is before softmax, and the claims say so too."""
    calls = []

    def run(variants, tasks, **options):
        calls.append((list(map(str, variants)), str(tasks[0]), options))
        return []

    def boards(where, *, suite=None, notice=None):
        if suite:
            return [board_of("claims", ("rela", 1, 1), ("linear", 2, 2), ("softmax", 2, 3))]
        return [board_of("hidden", ("softmax", 1, 1), ("rela", 2, 2), ("linear", 3, 3))]

    monkeypatch.setattr(wing, "run", run)
    monkeypatch.setattr(wing, "boards", boards)
    return calls


def test_the_command_says_which_places_hold_and_its_exit_code_tells(trained, tmp_path) -> None:
    words = ["referee", "rela", "--rivals", "linear", "--secret", "s", "--results", str(tmp_path), "--json"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 1, found.output
    told = json.loads(found.stdout)
    assert told["headline"] == "rela: 1 of 2 places hold, 1 turned (secret s)"
    assert {each["rival"]: each["verdict"] for each in told["places"]} == {"softmax": "turned", "linear": "holds"}
    assert [(names, task) for names, task, _ in trained] == [
        (["rela", "softmax", "linear"], str(task)) for task, _ in drawn_tasks("s")
    ]
    (first, second) = (options["results"] for *_, options in trained)
    assert first == second and first.parent == tmp_path / "referee"


def test_a_secret_is_drawn_where_none_is_given(trained, tmp_path) -> None:
    secrets = {wing.referee("rela", rivals="linear", results=tmp_path).secret for _ in range(2)}
    assert len(secrets) == 2 and all(len(each) == 16 for each in secrets)


@pytest.mark.parametrize(("variant", "seeds"), [("rela,linear", 3), ("rela", 2)])
def test_one_variant_and_three_seeds_are_the_least(trained, tmp_path, variant: str, seeds: int) -> None:
    with pytest.raises(SelectionError, match="expected one variant and at least 3 seeds"):
        wing.referee(variant, seeds=seeds, results=tmp_path)
