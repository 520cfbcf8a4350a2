"""Natural mistakes of a new user: the one line that answers says what to type instead. One line a rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_lines import answer

from attnbench.bench.cli.run import run
from attnbench.bench.core.errors import AttnbenchError
from attnbench.bench.core.spec import bytes_of
from attnbench.bench.plan.options import load_suite

RESULTS = str(Path(__file__).parents[3] / "results")


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        # words that are none, or in a wrong place
        ("leaderbord --results results", "Did you mean 'leaderboard'?"),
        ("judg rela", "Did you mean 'judge'?"),
        ("run rela lra-text", "`attnbench run --variants rela,entmax15 --task lra-text`"),
        ("--variants rela run", "`attnbench run --variants rela,entmax15 --task lra-text`"),
        ("new my-attention", "`attnbench new variant my-attention`"),
        ("new score-map mine", "this is what `attnbench new variant NAME` writes"),
        (f"leaderboard --json --results {RESULTS}", "`attnbench leaderboard --format json`"),
        ("plan --variants rela, linear --task sweep", "write no space after a comma: `rela,linear`"),
        ("plan --variants rela -- --task sweep", "leave out `--`"),
        ("plan --variants rela --task sweep --seeds 0,1,2", "`--seeds 3` for the seeds 0, 1 and 2"),
        ("plan --seeds", "`attnbench plan --help`"),
        ("plan --variants rela --task sweep --seeds three", "expected a valid integer; see"),
        ("plan --variants rela --task sweep --seeds 0", "expected a number greater than or equal to 1; see"),
        # names of another kind, or nearly known
        ("plan --task rela --variants softmax", "'rela': that is a variant"),
        ("plan --variants rela --task lra", "'lra' is a suite; `--suite lra`"),
        ("show lra", "`attnbench plan --suite lra`"),
        ("plan --suite quick", "'quick': that is a preset; `--preset quick`"),
        ("check not-installed-yet", "`pip install -e FOLDER`"),
        ("plan --variants ReLA --task sweep", "(did you mean 'rela'?)"),
        ("plan --variants rela --task sweep --preset SMOKE", "(did you mean 'smoke'?)"),
        ("plan --variants rela --task lra-text --preset quick[stepps=5]", "(did you mean 'steps'?)"),
        ("plan --suite LRA", "(did you mean 'lra'?)"),
        ("show LRA", "(did you mean 'lra'?)"),
        ("data list demoo", "(did you mean 'demo'?)"),
        (f"compare rela --results {RESULTS} --task LRA-TEXT", "did you mean 'lra-text'"),
        (f"compare softmax --results {RESULTS}", "`attnbench compare rela`"),
        (f"compare rela rela --results {RESULTS}", "`attnbench compare rela`"),
        (f"compare rela,linear --results {RESULTS}", "`attnbench compare rela linear`"),
        ("new variant 1st", "such as my-1st"),
        # folders and files
        (f"leaderboard --results {RESULTS}/records", f"--results {RESULTS}"),
        ("plan --suite suite.yaml", "rename it"),
        ("run --variants rela --task sweep --against records", "name a folder that has some with --against"),
        ("run --variants rela --task sweep --fail-if 3%", "expected --against FOLDER"),
    ],
)
def test_a_mistake_is_answered_with_the_right_words(
    line: str, advice: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suite.yaml").touch()
    found = answer(line)
    assert found.code in (2, 3, 4) and advice in found.errors
    # one line, which may name all suites
    assert len(found.errors) < 450 and found.errors.count("\n") == 1


def test_a_run_without_a_cell_of_the_kind_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AttnbenchError, match="no cell of the kind tune; leave out --lanes"):
        run(variants="softmax", tasks="recall", preset="smoke", lanes="tune", results=tmp_path)


def test_a_mark_of_the_byte_order_is_no_part_of_a_suite(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_bytes(b'\xef\xbb\xbftasks = ["sweep"]\nvariants = ["rela"]\n')
    assert [str(each) for each in load_suite(str(file)).variants] == ["rela"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("1KB", 1e3), ("40gb", 40e9), ("512mib", 512 * 2**20), ("2 GiB", 2**31), ("40000000000", 40e9)],
)
def test_units_of_memory_may_be_small_or_capital(text: str, size: float) -> None:
    assert bytes_of(text) == size


def test_a_size_without_unit_is_refused_where_it_can_be_none() -> None:
    with pytest.raises(AttnbenchError, match="40GB"):
        bytes_of("40")
