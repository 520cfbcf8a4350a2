"""Options of executors: from a command line as text, from a suite as TOML, and never a way into a batch script."""

from pathlib import Path

import pytest
from command_lines import answer

import attnbench
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.plan.executor_settings import ExecutorSettings
from attnbench.bench.plan.options import load_suite
from attnbench.bench.wings.clusters.settings import RayOptions, SlurmOptions

SUITE = """
tasks = ["lra-text"]
variants = ["rela"]
[executor]
"""


def test_text_and_numbers_are_the_same_option() -> None:
    given = {"gpus": "1", "cpus": "8", "time": "1d12h", "sbatch.account": "me", "partition": "gpu"}
    found = ExecutorSettings.of("slurm", 64, given).options
    assert found == SlurmOptions(gpus=1, cpus=8, time="1d12h", sbatch={"account": "me"}, partition="gpu")


def test_a_command_line_changes_the_suite_and_another_executor_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SUITE + 'name = "slurm"\njobs = 8\ngpus = 1\n[executor.sbatch]\naccount = "me"\n', encoding="utf-8")
    settings = load_suite(str(path)).executor
    assert (settings.name, settings.jobs) == ("slurm", 8)
    changed = settings.changed(None, 2, {"time": "30m", "sbatch.qos": "high"})
    assert changed.jobs == 2
    assert changed.options == SlurmOptions(gpus=1, time="30m", sbatch={"account": "me", "qos": "high"})
    other = settings.changed("ray", None, {})
    assert (other.options, other.jobs) == (RayOptions(), None)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("slrum", {}, "executor among local, ray, slurm"),
        ("local", {"partition": "gpu"}, "known: none"),
        ("slurm", {"gpu": "1"}, "did you mean 'gpus'"),
        ("slurm", {"gpus": "8"}, "0 or 1"),
        ("slurm", {"gpus": "many"}, "got 'many'"),
        ("slurm", {"time": "2 hours"}, "duration such as"),
        ("slurm", {"time": "0m"}, "a minute or more"),
        ("slurm", {"memory": "lots"}, "size such as 32GB"),
        ("slurm", {"cluster": "pbs"}, "slurm, local or debug"),
        ("slurm", {"sbatch.output": "/etc/passwd"}, "no parameter 'output'"),
        ("slurm", {"sbatch.wrap": "rm"}, "no parameter 'wrap'"),
        ("slurm", {"sbatch": "account"}, "a table of"),
        ("slurm", {"partition": "gpu\n#SBATCH --wrap=evil"}, "expected partition to be a name"),
        ("slurm", {"partition": "gpu; rm"}, "expected partition to be a name"),
        ("slurm", {"sbatch.account": "$(id)"}, "expected sbatch to be"),
        ("ray", {"retries": "1000"}, "0 to 100"),
        ("ray", {"address": "a b"}, "expected address to be"),
    ],
)
def test_a_wrong_option_is_one_line_that_says_what_was_expected(name: str, options: dict, words: str) -> None:
    with pytest.raises(SelectionError, match=words.replace("(", r"\(")) as caught:
        ExecutorSettings.of(name, None, options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("name = 3", "name to be text"),
        ("jobs = true", "jobs a count"),
        ("jobs = 0", "from 1 to 10,000 jobs"),
        ('name = "ray"\naddress = "evil.example:6379"', "may come from others"),
        ('name = "slurm"\nsetup = "curl"', "no option 'setup'"),
    ],
)
def test_a_suite_of_a_stranger_cannot_say_more(tmp_path: Path, table: str, words: str) -> None:
    path = tmp_path / "theirs.toml"
    path.write_text(SUITE + table, encoding="utf-8")
    with pytest.raises(SelectionError, match=words) as caught:
        load_suite(str(path))
    assert "theirs.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("--executor slurm --executor-option account=x", "sbatch.account=…"),
        ("--executor-option partition=gpu", "add --executor slurm;"),
    ],
)
def test_a_mistake_is_answered_with_the_right_words(
    line: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = answer(f"plan --variants rela --task sweep {line}")
    assert found.code == 2 and advice in found.errors and found.errors.count("\n") == 1


def test_a_plan_says_what_slurm_gets_for_a_job_on_a_machine_without_slurm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"gpus": "1", "cpus": "8", "time": "1d12h", "memory": "32GB", "sbatch.account": "me"}
    attnbench.plan(
        "softmax", "recall", preset="smoke", executor="slurm", jobs=64, executor_options=given, results=tmp_path / "r"
    )
    assert caplog.messages[0] == (
        "slurm gets for each job: name=attnbench, timeout_min=2160, cpus_per_task=8, gpus_per_node=1, mem_gb=32, "
        "nodes=1, tasks_per_node=1, array_parallelism=64, account=me"
    )
    assert not (tmp_path / "r").exists()
