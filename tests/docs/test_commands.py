"""Commands that the pages show: each is one that the command line takes, and the first minutes run as written."""

import re
import shlex
import subprocess
import sys

import click
import pytest
import torch
import typer
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from attnbench.bench.cli.app import app
from attnbench.docs.generator.repository import ROOT, markdown_files
from attnbench.variants.contract import AttentionShape, Mask

PAGES = [page for page in markdown_files() if page.startswith("docs/") or "/" not in page or "README" in page]


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
def test_the_command_line_takes_every_command_that_a_page_shows():
    shown = {(page, command) for page in PAGES for command in commands_of((ROOT / page).read_text("utf-8"))}
    assert len(shown) > 40
    for page, command in sorted(shown):
        group = typer.main.get_command(app)
        words = shlex.split(command)[1:]
        while hasattr(group, "commands") and not words[0].startswith("--"):
            assert words[0] in group.commands, f"{page}: {command}"
            group, words = group.commands[words[0]], words[1:]
        try:
            # parses and checks every option, and runs nothing
            hasattr(group, "commands") or group.make_context(group.name, list(words))
        except click.UsageError as error:
            pytest.fail(f"{page}: {command}: {error.message}")


def shell_blocks(page):
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.strip().split("\n")]


@pytest.mark.slow
def test_the_first_minutes_run_as_written(tmp_path):
    commands = shell_blocks("docs/getting-started.md")
    assert commands[0].startswith("attnbench run")
    for command in commands:
        line = [sys.executable, "-m", *shlex.split(command)]
        ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 0, command + "\n" + ended.stdout + ended.stderr
    assert (tmp_path / "page" / "index.html").is_file()


def test_the_first_command_about_choosing_answers_from_the_committed_records(monkeypatch):
    monkeypatch.chdir(ROOT)
    command = shell_blocks("docs/choosing.md")[0]
    ended = CliRunner().invoke(app, shlex.split(command)[1:])
    assert ended.exit_code == 0 and "Which attention costs least" in ended.output


@pytest.mark.slow
def test_the_code_about_records_runs_as_it_stands(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "reading-records.md").read_text(encoding="utf-8")
    exec("\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)), {})
    assert "lra-listops" in capsys.readouterr().out


def test_the_variant_of_the_guide_is_softmax_with_a_temperature():
    page = (ROOT / "docs" / "own-variant.md").read_text(encoding="utf-8")
    names = {"__name__": "guide"}
    exec(re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1], names)
    variant = names["cooled"](AttentionShape(heads=1, head_dim=4, max_length=3), temperature=2.0)
    scores = torch.randn(1, 1, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(variant.weigh(scores, None), (scores / 2).softmax(-1))


def test_both_forms_of_the_kernel_of_the_guide_agree_and_say_which_ran():
    page = (ROOT / "docs" / "own-kernel.md").read_text(encoding="utf-8")
    names = {"__name__": "guide"}
    exec(re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1], names)
    shape = AttentionShape(heads=2, head_dim=4, max_length=300, causal=True)
    generator = torch.Generator().manual_seed(1)
    query, key, value = torch.randn(3, 1, 2, 300, 4, generator=generator, dtype=torch.float64)
    valid = torch.arange(300)[None] < 290
    found = {}
    for impl in ("eager", "blocked", "auto"):
        variant = names["Cooled"](shape, temperature=0.5, impl=impl)
        found[impl] = variant(query, key, value, Mask(valid=valid, causal=True))
        assert variant.implementation == (impl if impl != "auto" else "blocked")
    torch.testing.assert_close(found["blocked"], found["eager"])
    torch.testing.assert_close(found["auto"], found["eager"])
    dropping = AttentionShape(heads=2, head_dim=4, max_length=300, dropout=0.1)
    assert names["Cooled"](dropping, impl="blocked").supports(dropping) == "impl=blocked drops no weights"
