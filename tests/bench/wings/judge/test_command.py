"""`attnbench judge`, from its words to its page."""

import contextlib
import io
import json
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_lines import answer
from typer.testing import CliRunner

import attnbench
from attnbench.bench.cli import pages
from attnbench.bench.cli.app import app
from attnbench.bench.cli.main import Interrupted
from attnbench.bench.core.errors import SelectionError, StoreError
from attnbench.bench.core.harness import EDITED
from attnbench.bench.core.metrics import Interval
from attnbench.bench.core.record import Outcome
from attnbench.bench.core.spec import Spec
from attnbench.bench.gate import Property
from attnbench.bench.gate import report as gate_report
from attnbench.bench.gate.report import SETTINGS, CheckReport, Setting
from attnbench.bench.gate.result import Measured, Result
from attnbench.bench.plan import fingerprint
from attnbench.bench.run.events import LoggingListener
from attnbench.bench.wings.audit.report import AuditReport
from attnbench.bench.wings.judge import judge as module
from attnbench.bench.wings.judge import verdicts
from attnbench.bench.wings.judge.judge import AskTraits, examined_by
from attnbench.bench.wings.judge.page import JudgedCost, gate_line, judge_report
from attnbench.bench.wings.judge.score import Audited, Examined, JudgedTask

PLACES = {(("length", 64.0),): 1.0, (("length", 1024.0),): 0.95}
DONE = JudgedTask("selective-copy", "mine", PLACES, trained=64, steps=800, learning_rate=2e-3, examples=600)
GREEN = Examined(holding=("causal", "padding content", "padding length"))


@pytest.fixture
def said(monkeypatch):
    """What the command prints, and its exit code, where the judgement has found `tasks`."""

    def run(*words, tasks=((DONE, DONE),), examined=GREEN, stop=None):
        cost = JudgedCost(length=1024, ratio=Interval(0.8, 0.78, 0.82), rounds=9)
        page = partial(judge_report, "mine", audited=Audited())
        more = {"tasks": list(tasks), "costs": [cost]}
        made = [page(examined)] if examined.problem else [page(examined), page(examined, complete=True, **more)]

        def judging(*given, **options):
            yield from made[:stop]
            if stop:
                raise Interrupted(signal.SIGINT)

        monkeypatch.setattr(module, "judging", judging)
        if stop is None:
            ended = CliRunner().invoke(app, ["judge", "mine", *words])
            return ended.exit_code, ended.stdout
        with contextlib.redirect_stdout(io.StringIO()) as shown, pytest.raises(Interrupted):
            app(["judge", "mine", *words])
        return 130, shown.getvalue()

    return run


def test_prints_a_line_for_each_part_and_the_answers_below(said):
    code, text = said()
    assert code == 0 and len(text.split("\n")) < 40 and max(map(len, text.split("\n"))) <= 80
    assert text.startswith("gate            causal, padding-safe\n")
    assert "1,024 tokens: 0.80× (0.78 to 0.82), 9 rounds" in text and "95.0" in text
    below = text[text.index("In short: mine") :]
    assert "\nright?          nothing fails: causal, padding-safe\nbetter?         " in below
    assert "\ncost?           faster than softmax: 0.8× its time at 1,024 tokens\n" in below


def test_an_interrupt_prints_what_is_done(said):
    _, text = said(stop=1)
    assert text.startswith("gate  ") and "In short: mine\nright?  " in text and "cost" not in text
    _, text = said("--json", stop=1)
    found = json.loads(text)
    assert not found["complete"] and [line["topic"] for line in found["lines"]] == ["gate"]


def test_ends_with_the_page_of_all_figures_where_something_was_trained(said, monkeypatch):
    opened = []
    monkeypatch.setattr(pages, "say_page", opened.append)
    said("--results", "mine")
    said("--results", "mine", "--json")
    said("--results", "mine", examined=Examined(problem="does not build"))
    assert opened == [Path("mine")]


def test_a_reason_of_a_plugin_makes_no_line_of_its_own(said):
    evil = JudgedTask("max", "mine", {}, outcome=Outcome.CRASHED, reason="oops\ncost  mine is best\x1b[2J")
    _, text = said(tasks=[(evil, None)])
    assert "\x1b" not in text and not any(line.startswith("cost  mine") for line in text.split("\n"))


def test_prints_the_same_as_json(said):
    code, text = said("--json")
    found = json.loads(text)
    assert code == 0 and found["variant"] == "mine" and found["passed"]
    assert [line["topic"] for line in found["lines"]] == ["gate", "selective-copy", "cost"]
    assert found["lines"][1]["tables"][0]["rows"][0] == ["mine", [100.0, 95.0]]


def test_the_exit_code_tells_a_red_gate_from_what_cannot_run_here(said):
    assert said(examined=Examined(failures=("causal: no",)))[0] == 1
    assert said(examined=Examined(problem="needs a GPU", unsupported=True))[0] == 6
    lost = JudgedTask("max", "mine", {}, outcome=Outcome.TIMEOUT, reason="600 s")
    assert said(tasks=[(lost, None)])[0] == 1


@pytest.mark.parametrize(
    ("variant", "preset", "message"),
    [
        ("rlea", "quick", "rlea"),
        ("rela,linear", "quick", "expected one variant"),
        ("delta:3//softmax", "quick", "expected one variant to judge, alike in all layers, got delta:3//softmax"),
        ("rela", "base", "expected the preset quick or smoke"),
        ("rela", "quick[stps=3]", "stps"),
        ("local[flange=-1]", "quick", "flange"),
    ],
)
def test_wrong_words_are_told_before_anything_is_examined(variant, preset, message, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "check", lambda *given, **options: pytest.fail("examined"))
    with pytest.raises(SelectionError, match=message.replace("[", r"\[")):
        attnbench.judge(variant, preset=preset, results=tmp_path)


@pytest.mark.parametrize(
    ("name", "sees"), [("softmax", False), ("rela", False), ("linear", False), ("local", False), ("relative", True)]
)
def test_only_a_variant_with_positions_of_its_own_sees_the_order_of_keys(name, sees):
    traits = AskTraits(Spec(name)).answer(None)
    assert (traits.sees_order, traits.projects) == (sees, False)


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_a_layer_that_makes_its_keys_sees_their_order_where_distance_counts(slope, tmp_path):
    code = f"""
import torch
class Mine(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
    def forward(self, x):
        at = torch.arange(x.shape[1])
        scores = x @ x.mT / 99 - {slope} * (at[:, None] - at)
        return scores.masked_fill(at > at[:, None], -torch.inf).softmax(-1) @ x
"""
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    traits = AskTraits(Spec.parse(f"{tmp_path / 'mine.py'}:Mine")).answer(None)
    assert (traits.sees_order, traits.projects, traits.looks_back) == (bool(slope), True, True)


BOTH_WAYS = """
import torch
class Both(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
    def forward(self, x):
        return (x @ x.mT / 99).softmax(-1) @ x
"""


def test_a_layer_without_padding_is_told_so_before_softmax_is_trained_for_it(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(BOTH_WAYS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gate_report, "LENGTH", 96)
    asked = []

    def measured(variants, tasks, **options):
        asked.append(tasks)
        raise StoreError("enough")

    monkeypatch.setattr(module, "_measured", measured)
    pages = []
    with pytest.raises(StoreError, match="enough"):
        pages += module.judging("mine.py:Both", preset="smoke", results=tmp_path)
    audit, gate, pooled = pages[-1].lines
    assert "future: it looks both ways, at distances 1 to 63 (if it should be causal: --causal)" in audit.evidence
    assert gate.text == "no causal form"
    assert pooled.text == "no result: unsupported: no argument that keeps padding out was found"
    assert all(point.name == "sweep" for tasks in asked for point in tasks)


def test_a_layer_that_looks_one_ahead_is_asked_before_anything_is_trained(tmp_path, monkeypatch):
    code = BOTH_WAYS.replace("(x @ x.mT / 99)", "(x @ x.mT / 99).masked_fill(MASK, -torch.inf)")
    mask = "torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(2)"
    (tmp_path / "mine.py").write_text(code.replace("MASK", mask), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "check", lambda *given, **options: pytest.fail("gate"))
    found = answer("judge mine.py:Both --results r")
    assert found.code == 2, found
    assert "right?          not decided: future: an output depends on 1 later token" in found.output


def test_the_gate_is_told_what_a_layer_claims(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(BOTH_WAYS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gate_report, "LENGTH", 96)
    tasks = []
    monkeypatch.setattr(module, "run", lambda variants, asked, **options: tasks.extend(asked) or [])
    *_, page = module.judging("mine.py:Both", causal=True, results=tmp_path)
    assert any(each.startswith("causal: error ") for each in page.lines[1].evidence)
    # what it would read from later tokens tells nothing, and a task without causality is none that it claims to do
    assert {task.name for task in tasks} == {"sweep"}
    assert dict(page.answers)["better?"] == "not trained: it would read the answers from later tokens"
    assert page.notes[-1] == "Mend what moves earlier outputs, and type the same command again."


def test_the_variant_whose_gate_runs_is_said_before(monkeypatch, tmp_path):
    said, told = [], LoggingListener()
    told.notice = said.append
    monkeypatch.setattr(
        module, "check", lambda spec, **given: CheckReport(name="", results=(), seconds=0.0, problem=said[0])
    )
    found = attnbench.judge("rela", results=tmp_path, progress=told)
    assert said == ["gate: testing rela"] and found.lines[0].text == said[0]


def test_a_red_property_has_its_value_its_limit_and_a_cause():
    found = Measured(0.0129, 0.0087, "512 long")
    red = Property("bfloat16", lambda case: iter([found]), cause="a sum in half", whole=True).examine(None)
    setting = Setting(causal=True, cross=False, padding=True)
    (said,) = examined_by(CheckReport(name="mine", results=((setting, red),), seconds=1.0)).failures
    assert said == "bfloat16: error 0.013, allowed 0.0087; 512 long; usual cause: a sum in half"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "tasks"),
    [
        pytest.param("linear", ["recall", "selective-copy", "max"], marks=pytest.mark.soak),
        ("fastformer", ["max-pooled"]),
    ],
)
def test_a_judgement_goes_from_the_gate_to_the_page_and_measures_nothing_twice(variant, tasks, monkeypatch, tmp_path):
    monkeypatch.setattr("attnbench.bench.wings.judge.judge.SWEPT_LENGTHS", (32, 64))
    monkeypatch.setattr(gate_report, "LENGTH", 96)
    said, told = [], LoggingListener()
    told.notice = said.append
    found = attnbench.judge(variant, preset="smoke", results=tmp_path, progress=told)
    parts = [f"part {at} of {len(tasks) + 1}: {what}" for at, what in enumerate([*tasks, "time at 2 lengths"], 1)]
    assert [text for text in said if text.startswith("part ")] == parts
    assert not any("softmax was added" in text for text in said)
    assert [line.topic for line in found.lines] == ["gate", *tasks, "cost"]
    assert found.passed and found.complete and "padding-safe" in found.headline
    made = len(attnbench.records(tmp_path))
    assert made == 2 * len(tasks) + 4
    again = attnbench.judge(variant, preset="smoke", results=tmp_path)
    assert len(attnbench.records(tmp_path)) == made and again.lines[1:] == found.lines[1:]


def test_an_error_that_every_property_meets_is_told_once():
    def broken(case):
        raise ValueError("no")

    results = [Property(name, broken).examine(SimpleNamespace(one_head_if_slow=None)) for name in ("finite", "causal")]
    report = CheckReport(name="mine", results=tuple((SETTINGS[0], each) for each in results), seconds=1.0)
    line = gate_line(examined_by(report))
    assert "raised ValueError: no" in line.text and not line.evidence


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("lra-text", "'lra-text': that is a task"),
        ("rela linear", "`attnbench judge mine.py:MyAttention`"),
        ("rela --preset fast", "expected the preset quick or smoke"),
        ("rela --preset Smoke", "did you mean 'smoke'?"),
    ],
)
def test_a_mistake_is_answered_with_the_right_words(line, advice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = answer(f"judge {line}")
    assert found.code == 2 and advice in found.errors and found.errors.count("\n") == 1


LEAKS = """
import torch
class Leaks(torch.nn.Module):
    def __init__(self, dim, causal=True):
        super().__init__()
        self.inside = torch.nn.Linear(dim, dim)
    def forward(self, x):
        return self.inside(x) + x.roll(-1, 1)
"""


@pytest.fixture
def leaks(tmp_path, monkeypatch):
    """The name of a layer that looks one token ahead, in a folder of its own."""
    (tmp_path / "mine.py").write_text(LEAKS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return "mine.py:Leaks"


def test_verdicts_are_kept_until_the_code_changes(leaks, tmp_path, monkeypatch):
    tested = []

    def tests(kind, found):
        return lambda *given, **options: tested.append(kind) or found

    audit = AuditReport(target="", findings=(Result.of("future", Measured(1.0, 0.0, "leak")),), seconds=4.0)
    monkeypatch.setattr(module, "loaded", lambda point: tests("audit", audit))
    monkeypatch.setattr(module, "check", tests("gate", CheckReport(name="", results=(), seconds=1.0, problem="no")))
    monkeypatch.setattr(verdicts, "harness_name", lambda: "0.3.0")
    judged = partial(attnbench.judge, results=tmp_path / "results", progress=LoggingListener())
    first, again = judged(leaks), judged(leaks)
    assert tested == ["audit", "gate"] and again == first
    assert first.lines[0].text == "fails: future · holds: 0 · not tried: nothing (4 s)" and first.lines[0].evidence == (
        "future: leak",
    )
    judged(leaks, retry=True)
    assert tested == ["audit", "gate"] * 2
    (tmp_path / "mine.py").write_text(LEAKS + "\nx = 1\n", encoding="utf-8")
    fingerprint.source_hash.cache_clear()
    judged(leaks)
    assert tested == ["audit", "gate"] * 3
    # whoever is stopped in the gate needs no second audit
    monkeypatch.setattr(module, "check", lambda *given, **options: pytest.fail("gate"))
    (kept, *_) = sorted((tmp_path / "results" / "judged").iterdir(), key=lambda file: -file.stat().st_mtime)
    kept.write_text('{"audit": {"verdict": "nothing fails"}}')
    with pytest.raises(BaseException, match="gate"):
        judged(leaks)
    assert tested == ["audit", "gate"] * 3


def test_verdicts_in_an_edited_checkout_are_kept_until_its_next_edit(leaks, tmp_path, monkeypatch):
    (tmp_path / "bench").mkdir()
    edited = tmp_path / "bench" / "edited.py"
    edited.write_text("one", encoding="utf-8")
    monkeypatch.setattr(verdicts, "PACKAGE", tmp_path)
    monkeypatch.setattr(verdicts, "harness_name", lambda: "0.3.0" + EDITED)

    def kept():
        return verdicts.Verdicts.of(Spec(leaks), None, "cpu", tmp_path, again=False)

    kept().with_more(audit=Audited(verdict="nothing fails"))
    assert kept().audit == Audited(verdict="nothing fails")
    edited.write_text("two", encoding="utf-8")
    assert kept().audit is None


def test_a_damaged_verdict_is_made_anew(tmp_path):
    file = tmp_path / "judged" / "a.json"
    verdicts.Verdicts(file=file).with_more(audit=Audited(verdict="nothing fails"))
    assert json.loads(file.read_text())["audit"]["verdict"] == "nothing fails"
    file.write_text('{"audit": 3}')
    with pytest.raises(StoreError, match="not verdicts"):
        verdicts.read_json(verdicts._KeptVerdicts, file, "verdicts")


@pytest.mark.slow
def test_a_layer_that_leaks_is_compared_all_the_same_and_enters_no_board(leaks, tmp_path, monkeypatch):
    monkeypatch.setattr(gate_report, "LENGTH", 96)
    found = attnbench.judge(leaks, preset="smoke", quick=True, causal=True, results=tmp_path / "r")
    topics = [line.topic for line in found.lines]
    assert topics == ["audit", "gate", "recall", "cost"] and not found.passed
    assert "measured although" in found.lines[2].text and "with the same projections" in found.lines[3].evidence[0]
    records = attnbench.records(tmp_path / "r")
    assert {str(record.outcome) for record in records if record.cell.variant.name == leaks} == {"incorrect"}
