"""The template of a public board: its commands take an honest request and refuse a tampered one."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from attnbench import __version__
from attnbench.bench.store.store import Store
from attnbench.docs.generator.repository import ROOT

TEMPLATE = ROOT / "docs" / "public-board"
TASK = "lra-listops"


def git(folder, *arguments):
    identity = {f"GIT_{role}_{what}": "x@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull} | identity
    command = ["git", "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | settings, check=True, capture_output=True, text=True)


def make(folder, *arguments):
    command = ["make", "--no-print-directory", f"ATTNBENCH={sys.executable} -m attnbench", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.fixture
def board(tmp_path):
    """A clone of a board on a branch of a sender who adds the committed Records of two cells."""
    if not shutil.which("git") or not shutil.which("make"):
        pytest.skip("git and make are not installed")
    clone = tmp_path / "board"
    shutil.copytree(TEMPLATE, clone)
    git(clone, "init", "-q", "-b", "main")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "Begin the board")
    git(clone, "switch", "-q", "-c", "my-records")
    (clone / "results" / "records").mkdir(parents=True)
    (clone / "results" / "artifacts").mkdir()
    committed = Store(ROOT / "results")
    for source in sorted((ROOT / "results" / "records").glob("*.jsonl")):
        kept = [line for line in source.read_text(encoding="utf-8").split("\n") if wanted(line)]
        if kept:
            (clone / "results" / "records" / source.name).write_text("\n".join(kept) + "\n", encoding="utf-8")
            for name in {file for line in kept for file in json.loads(line).get("artifacts", {}).values()}:
                (clone / "results" / "artifacts" / name).write_bytes(committed.artifact(name))
    git(clone, "add", "results")
    git(clone, "commit", "-q", "-m", "Add Records")
    return clone


def wanted(line):
    if f'"{TASK}"' not in line and TASK not in line:
        return False
    cell = json.loads(line)["cell"]
    return str(cell["task"]).startswith(TASK) and cell["seed"] == 0 and cell["lane"] in ("train", "baseline")


def test_an_honest_request_is_valid_and_only_adds(board):
    checked, added = make(board, "validate"), make(board, "only-adds", "BASE=main")
    assert checked.returncode == 0 and " 0 errors" in checked.stdout, checked.stdout + checked.stderr
    assert added.returncode == 0 and "only Records and artifacts are added" in added.stdout


def test_a_changed_score_is_refused_with_its_file_and_line(board):
    (path,) = [p for p in (board / "results" / "records").iterdir() if "accuracy" in p.read_text(encoding="utf-8")][:1]
    lines = path.read_text(encoding="utf-8").split("\n")
    at = next(number for number, line in enumerate(lines) if line and json.loads(line)["cell"]["lane"] == "train")
    record = json.loads(lines[at])
    for measurement in record["measurements"]:
        if measurement["name"] == "accuracy" and measurement["where"].get("split") == "test":
            measurement["value"] = 0.99
    lines[at] = json.dumps(record)
    path.write_text("\n".join(lines), encoding="utf-8")
    checked = make(board, "validate")
    assert checked.returncode != 0
    assert f"{path.name}:{at + 1}: its accuracy is 0.9900, but its predictions give" in checked.stdout + checked.stderr
    # the same edit in a request that follows is refused by its form alone
    git(board, "switch", "-q", "-c", "edited")
    git(board, "commit", "-q", "-a", "-m", "Better numbers")
    added = make(board, "only-adds", "BASE=my-records")
    assert added.returncode != 0 and "a Record is never edited" in added.stderr


def test_a_request_that_removes_an_artifact_or_changes_the_rules_is_refused(board):
    artifact = sorted((board / "results" / "artifacts").iterdir())[0]
    artifact.unlink()
    (board / "only_adds.sh").write_text("exit 0\n", encoding="utf-8")
    git(board, "switch", "-q", "-c", "more")
    git(board, "commit", "-q", "-a", "-m", "Less")
    command = ["sh", str(TEMPLATE / "only_adds.sh"), "my-records", "more"]
    added = subprocess.run(command, cwd=board, capture_output=True, text=True)
    assert added.returncode == 1
    assert f"results/artifacts/{artifact.name} is removed" in added.stderr
    assert "only_adds.sh is neither a file of Records nor an artifact" in added.stderr


def test_a_request_adds_whole_lines_at_the_end_and_plain_files_alone(board):
    records = board / "results" / "records"
    (path, *_) = sorted(records.glob("*.jsonl"))
    before = path.read_text(encoding="utf-8")
    first = before.split("\n")[0] + "\n"
    git(board, "switch", "-q", "-c", "odd")

    def added():
        git(board, "add", "-A")
        git(board, "commit", "-q", "-m", "Odd")
        found = subprocess.run(
            ["sh", str(TEMPLATE / "only_adds.sh"), "my-records", "odd"], cwd=board, capture_output=True, text=True
        )
        git(board, "reset", "-q", "--hard", "my-records")
        return found

    path.write_text(before + first, encoding="utf-8")
    assert added().returncode == 0
    for kind, code in (("py", 0), ("json", 0), ("sh", 1)):
        # the file of a variant that was named by its place is an artifact of its Records
        (board / "results" / "artifacts" / f"{'ab' * 12}.{kind}").write_text("x = 1\n", encoding="utf-8")
        assert added().returncode == code, kind
    path.write_text(first + before, encoding="utf-8")
    assert "a Record is never edited" in added().stderr
    path.write_text(before.removesuffix("\n"), encoding="utf-8")
    assert "lacks the line feed of its last line" in added().stderr
    # of a file of another machine too, whose owner would be refused next
    (records / "other.jsonl").write_text(first.removesuffix("\n"), encoding="utf-8")
    assert "lacks the line feed of its last line" in added().stderr
    for name in ("CNAME", "notes.txt.jsonl.bak", "a" * 130 + ".jsonl"):
        (records / name).write_text(first, encoding="utf-8")
        assert added().returncode == 1, name
    for name in ("junk.json", "0" * 23 + ".npz", "0" * 24 + ".npz.exe.sh"):
        (board / "results" / "artifacts" / name).write_bytes(b"x")
        assert added().returncode == 1, name
    with (board / "results" / "artifacts" / ("0" * 24 + ".npz")).open("wb") as file:
        file.truncate(2**25 + 1)
    assert "is longer than" in added().stderr
    (records / ".gitattributes").write_text("*.jsonl -diff\n", encoding="utf-8")
    (records / "sub").mkdir()
    (records / "sub" / "more.jsonl").write_text(first, encoding="utf-8")
    (records / "link.jsonl").symlink_to(path.name)
    path.chmod(0o755)
    refused = added().stderr.split("\n")
    assert len([line for line in refused if line]) == 4
    for name in (
        ".gitattributes is neither",
        "more.jsonl lies in",
        "link.jsonl is no plain",
        f"{path.name} is no plain",
    ):
        assert any(name in line for line in refused)


def test_what_runs_a_request_is_pinned() -> None:
    workflow = (TEMPLATE / ".github" / "workflows" / "board.yml").read_text(encoding="utf-8")
    uses = re.findall(r"uses: (\S+)", workflow)
    assert len(uses) > 5 and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each) for each in uses)
    pins = dict(re.findall(r"^([a-z\[\]]+)==(.+)$", (TEMPLATE / "requirements.txt").read_text(encoding="utf-8"), re.M))
    assert pins == {"attnbench[dashboard]": __version__, "torch": pinned("torch")}
    guide = (ROOT / "docs" / "public-board.md").read_text(encoding="utf-8")
    assert "Protect `.github/`" in guide and (TEMPLATE / ".github" / "CODEOWNERS").is_file()


def pinned(name: str) -> str:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return re.search(rf"^{name}==(\S+)", constraints, re.M)[1]


@pytest.mark.slow
def test_boards_and_page_are_made_from_a_request(board):
    pytest.importorskip("altair", reason="the extra dashboard is not installed")
    made = make(board, "boards", "page", "SITE=made")
    assert made.returncode == 0, made.stderr
    boards = list((board / "made" / "boards").glob("*.md"))
    assert boards and TASK in boards[0].name and list((board / "made" / "boards").glob("*.json"))
    assert "softmax" in (board / "made" / "index.html").read_text(encoding="utf-8")
