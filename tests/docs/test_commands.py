"""Commands and code that the pages show: each is one that the command line takes, and the guides run as written."""

import re
import shlex
import subprocess
import sys

import pytest
import torch
import typer
from markdown_it import MarkdownIt

import attnbench
from attnbench.bench.cli.app import UsageProblem, app
from attnbench.bench.plan.options import load_suite
from attnbench.docs.generator.repository import ROOT, markdown_files
from attnbench.variants.contract import AttentionShape, Mask

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def page(path):
    return (ROOT / path).read_text("utf-8")


def commands_of(text):
    """Lines of code that begin with `attnbench`, without comments; a line with an ellipsis is no whole command."""
    # a line that ends in a backslash goes on
    for token in MarkdownIt().parse(re.sub(r"\\\n *", "", text)):
        if token.type == "code_block" or (token.type == "fence" and token.info == "sh"):
            for command in re.findall(r"^ *(attnbench .*)", token.content, re.MULTILINE):
                for part in re.split(r"; +(?=attnbench )", re.split(r"\s#\s|\s+\|", command)[0]):
                    if "…" not in part:
                        yield part.strip()


@pytest.mark.slow
def test_the_command_line_takes_every_command_that_a_page_or_make_demo_shows():
    shown = {(path, command) for path in markdown_files() for command in commands_of(page(path))}
    shown |= {("Makefile", f"attnbench {words}") for words in re.findall(r"\$\(BIN\)/attnbench ([^'\n]+)", MAKEFILE)}
    assert len(shown) > 40
    for path, command in sorted(shown):
        group = typer.main.get_command(app)
        words = shlex.split(command)[1:]
        while hasattr(group, "get_command") and not words[0].startswith("--"):
            group, words = group.get_command(typer.Context(group), words[0]), words[1:]
            assert group is not None, f"{path}: {command}"
        try:
            # parses and checks every option, and runs nothing
            hasattr(group, "get_command") or group.make_context(group.name, list(words))
        except UsageProblem as error:
            pytest.fail(f"{path}: {command}: {error.message}")


def test_the_table_of_commands_has_each_of_them():
    rows = "\n".join(line for line in page("docs/commands.md").split("\n") if line.startswith("| `"))
    group = typer.main.get_command(app)
    assert [name for name in group.list_commands(typer.Context(group)) if not re.search(rf"`{name}[ `]", rows)] == []


@pytest.mark.slow
def test_the_first_minutes_run_as_written(tmp_path):
    blocks = re.findall(r"^```sh\n(.*?)^```", page("docs/getting-started.md"), re.MULTILINE | re.DOTALL)
    for command in "".join(blocks).strip().split("\n"):
        line = [sys.executable, "-m", *shlex.split(command)]
        ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 0, command + "\n" + ended.stdout + ended.stderr
    assert (tmp_path / "page" / "index.html").is_file()


def test_make_demo_runs_a_suite_that_a_plan_keeps_below_three_minutes(tmp_path):
    name = re.search(r"attnbench run --suite (\S+)", MAKEFILE)[1]
    made = attnbench.plan(suite=name, lanes="train", device="cpu", results=tmp_path)
    assert made.at_once == 2 and 0 < made.seconds < 180
    assert {"softmax", "entmax15", "linear", "local"} == {spec.name for spec in load_suite(name).variants}


@pytest.mark.soak  # trains four variants for a minute
def test_the_demo_separates_variants_that_recall_from_those_that_do_not_yet(tmp_path):
    found = [record for record in attnbench.run(suite="demo", results=tmp_path) if record.cell.lane == "train"]
    accuracy = {record.cell.variant.name: record.first("accuracy", split="test").value for record in found}
    assert min(accuracy["softmax"], accuracy["entmax15"]) > 0.95
    # after 300 steps at a constant rate linear attention has 82 %
    assert max(accuracy["linear"], accuracy["local"]) < 0.9


def names_of(path):
    """The names that the first block of Python of a page defines."""
    names = {"__name__": "guide"}
    exec(re.search(r"^```python\n(.*?)^```", page(path), re.MULTILINE | re.DOTALL)[1], names)
    return names


@pytest.mark.slow
def test_the_code_about_records_runs_as_it_stands(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"^```python\n(.*?)^```", page("docs/reading-records.md"), re.MULTILINE | re.DOTALL)
    exec("\n".join(blocks), {})
    assert "lra-listops" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["README.md", "docs/own-variant.md"])
def test_the_variant_of_the_guide_is_softmax_with_a_temperature(path):
    variant = names_of(path)["cooled"](AttentionShape(heads=1, head_dim=4, max_length=3), temperature=2.0)
    scores = torch.randn(1, 1, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(variant.weigh(scores, None), (scores / 2).softmax(-1))


def test_both_forms_of_the_kernel_of_the_guide_agree_and_say_which_ran():
    cooled = names_of("docs/own-kernel.md")["Cooled"]
    shape = AttentionShape(heads=2, head_dim=4, max_length=300, causal=True)
    generator = torch.Generator().manual_seed(1)
    query, key, value = torch.randn(3, 1, 2, 300, 4, generator=generator, dtype=torch.float64)
    valid = torch.arange(300)[None] < 290
    outputs = {}
    for impl in ("eager", "blocked", "auto"):
        variant = cooled(shape, temperature=0.5, impl=impl)
        outputs[impl] = variant(query, key, value, Mask(valid=valid, causal=True))
        assert variant.implementation == ("blocked" if impl == "auto" else impl)
    torch.testing.assert_close(outputs["blocked"], outputs["eager"])
    dropping = AttentionShape(heads=2, head_dim=4, max_length=300, dropout=0.1)
    assert cooled(dropping, impl="blocked").supports(dropping) == "impl=blocked drops no weights"
