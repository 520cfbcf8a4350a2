"""Questions: answered here for attnbench's own plugins, in a child for others, whatever those do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attnbench.bench.core.errors import PluginError, SelectionError
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.facts import resolve
from attnbench.bench.process import ask as asked
from attnbench.bench.process.ask import SERVICE, ask, asking
from attnbench.bench.process.child import Child
from attnbench.bench.process.servers import end_servers
from attnbench.bench.run.questions import TryBuild
from attnbench.variants.contract import AttentionShape

PLUGIN = '''
from attnbench.variants.contract import AttentionShape, ScoredVariant
{code}

class Plugin(ScoredVariant):
    """A plugin."""

    def __init__(self, shape: AttentionShape, *, window: int = 64):
        super().__init__(shape)
'''


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for all plugins: another PYTHONPATH would start another server, which imports torch for seconds."""
    yield tmp_path_factory.mktemp("site")
    end_servers()


@pytest.fixture
def plugin(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Declares the foreign variant `foreign`, whose module runs the given code; returns the file of the module."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(asked, "end_servers", lambda: None)

    def declared(code: str) -> Path:
        module = site / f"foreign_{len(list(site.glob('foreign_*.py')))}.py"
        module.write_text(PLUGIN.format(code=code), encoding="utf-8")
        monkeypatch.setenv("ATTNBENCH_VARIANTS", f"foreign={module.stem}:Plugin")
        VARIANTS.__dict__.pop("_found", None)
        return module

    yield declared
    VARIANTS.__dict__.pop("_found", None)


def test_a_foreign_plugin_is_asked_once_in_a_child(plugin, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    plugin(f"import os; open({str(note)!r}, 'a').write(f'{{os.getpid()}}\\n')")
    with asking():
        for text, canonical in (("foreign[window=64]", "foreign"), ("foreign[window=8]", "foreign[window=8]")) * 2:
            assert str(resolve(VARIANTS, Spec.parse(text))) == canonical
        with pytest.raises(SelectionError, match="no parameter 'windw'") as raised:
            resolve(VARIANTS, Spec.parse("foreign[windw=8]"))
        assert not isinstance(raised.value, PluginError)
        (pid,) = note.read_text().split()
        assert int(pid) != os.getpid() and asked._CHILDREN.running
    assert not asked._CHILDREN.running and not asked._CHILDREN.answers


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise RuntimeError('no kernel')", "it does not load: RuntimeError: no kernel"),
        pytest.param("raise KeyboardInterrupt", "KeyboardInterrupt", marks=pytest.mark.slow),
        ("import os; print('last words', flush=True); os._exit(0)", "0; its error stream ended with: last words"),
        (
            "import os, traceback\ntry: (0).real / (1 - 1)\nexcept Exception: traceback.print_exc(); os._exit(3)",
            'its error stream ended with: ZeroDivisionError: division by zero (File "',
        ),
        pytest.param("import os; os.kill(os.getpid(), 9)", "SIGKILL", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_what_a_plugin_does_instead_of_an_answer_is_told(plugin, code: str, reason: str) -> None:
    plugin(code)
    with asking(), pytest.raises(PluginError) as raised:
        resolve(VARIANTS, Spec("foreign"))
    assert reason in raised.value.reason and raised.value.outcome == "crashed"
    assert "the variant 'foreign' of this script" in str(raised.value)


def test_a_plugin_that_hangs_hangs_once(plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin("import time; time.sleep(1000)")
    monkeypatch.setenv("ATTNBENCH_PLUGIN_SECONDS", "1")
    with asking():
        for text in ("foreign", "foreign[window=8]"):
            with pytest.raises(PluginError, match="no answer in 1 s") as raised:
                resolve(VARIANTS, Spec.parse(text))
            assert raised.value.outcome == "timeout"
        assert not asked._CHILDREN.running


def test_an_import_that_sleeps_is_named_once_while_it_lasts(
    plugin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plugin("import time; time.sleep(0.6)")
    monkeypatch.setattr(asked, "IMPORT_SECONDS", 0.2)
    shape = AttentionShape(heads=1, head_dim=4, max_length=8)
    with asking(), Child(SERVICE) as other:
        known = resolve(VARIANTS, Spec("foreign"))
        asked.ask_child(other, VARIANTS, "foreign", TryBuild(known, shape))
    assert [each.getMessage() for each in caplog.records] == [
        "importing the variant 'foreign' of this script takes longer than 0.2 s; "
        "it is ended after 60 s (ATTNBENCH_PLUGIN_SECONDS)"
    ]


def test_work_after_the_import_is_not_called_an_import(
    plugin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = plugin("")
    module.write_text(module.read_text() + "        import time; time.sleep(0.6)\n")
    monkeypatch.setattr(asked, "IMPORT_SECONDS", 0.3)
    with asking():
        known = resolve(VARIANTS, Spec("foreign"))
        ask(VARIANTS, "foreign", TryBuild(known, AttentionShape(heads=1, head_dim=4, max_length=8)))
    assert not caplog.records


def test_what_it_answered_before_it_hung_remains_true(plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    module = plugin("")
    module.write_text(module.read_text() + "        import time; time.sleep(1000)\n")
    shape = AttentionShape(heads=1, head_dim=4, max_length=8)
    with asking():
        known = resolve(VARIANTS, Spec.parse("foreign[window=64]"))
        monkeypatch.setenv("ATTNBENCH_PLUGIN_SECONDS", "0.1")
        with pytest.raises(PluginError, match=r"no answer in 0.5 s"):
            ask(VARIANTS, "foreign", TryBuild(known, shape), patience=10, most_seconds=0.5)
        assert resolve(VARIANTS, Spec.parse("foreign[window=64]")) == known
        with pytest.raises(PluginError, match=r"no answer in 0.5 s"):
            resolve(VARIANTS, Spec.parse("foreign[window=8]"))
        assert not asked._CHILDREN.running


@pytest.mark.parametrize(
    ("patience", "most_seconds", "limit"), [(1, None, 4), (10, None, 40), (10, 20, 20), (10, 1, 4), (1, 20, 4)]
)
def test_the_limit_of_an_answer_is_patient_within_what_the_person_allows(
    monkeypatch: pytest.MonkeyPatch, patience: float, most_seconds: float | None, limit: float
) -> None:
    monkeypatch.setenv("ATTNBENCH_PLUGIN_SECONDS", "4")
    assert asked._limit(patience, most_seconds) == limit


def test_attnbench_answers_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "Child", None)
    assert resolve(VARIANTS, Spec.parse("topk[k=8]")).name == "topk"
