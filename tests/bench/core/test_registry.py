"""Plugins by name: found without import, loaded on first use, and told apart from broken ones."""

import os
import re
import sys
import textwrap
from dataclasses import replace

import pytest

from attnbench.bench.core.errors import PluginError, SelectionError, Unsupported
from attnbench.bench.core.registry import NAMES_ELSEWHERE, TASKS, VARIANTS, Registry, parameters
from attnbench.bench.core.spec import Spec
from attnbench.bench.core.targets import module_source
from attnbench.variants import AttentionShape

PLUGIN = '''
from typing import Literal

class Window:
    """Sees a window.

    More of it.
    """

    def __init__(self, shape, *, window: int = 64, scale: float = 1.0, mode: Literal["soft", "hard"] = "soft",
                 flange: int | None = None, causal: bool = False, label: str = "x"):
        self.given = dict(window=window, scale=scale, mode=mode, flange=flange, causal=causal, label=label)
'''


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution of one module on the path: its metadata as pip writes it, its source beside it."""
    monkeypatch.syspath_prepend(tmp_path)

    def distribution(name, module, source, *entries):
        (tmp_path / f"{module}.py").write_text(source)
        folder = tmp_path / f"{name.replace(chr(45), chr(95))}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = "\n".join(f"{entry} = {module}:{target}" for entry, target in entries)
        (folder / "entry_points.txt").write_text(f"[example.plugins]\n{lines}\n")
        monkeypatch.delitem(sys.modules, module, raising=False)

    distribution.folder = tmp_path
    return distribution


def plugins():
    return Registry("example.plugins", "gadget")


def test_a_plugin_is_described_with_its_origin_before_it_is_imported(install):
    install("stranger", "strange_window", PLUGIN, ("window", "Window"))
    (entry,) = plugins().entries()
    assert (entry.name, entry.target, entry.origin) == ("window", "strange_window:Window", "stranger 1.0")
    assert plugins().describe("window") == "Sees a window."
    assert "strange_window" not in sys.modules
    assert plugins().load("window").__name__ == "Window"
    assert "strange_window" in sys.modules


@pytest.mark.parametrize(
    "source", ["raise RuntimeError('no kernel')", "import no_such_thing", "def (", "import sys; sys.exit(3)", ""]
)
def test_a_broken_plugin_breaks_nothing_but_its_own_loading(install, source):
    install("broken", "broken_module", source, ("broken", "Broken"))
    install("stranger", "strange_window", PLUGIN, ("window", "Window"))
    registry = plugins()
    assert [entry.name for entry in registry.entries()] == ["broken", "window"]
    assert registry.describe("broken") == ""
    assert registry.load("window")
    with pytest.raises(SelectionError, match=r"the gadget 'broken' of broken 1\.0 cannot be used: it does not load: "):
        registry.load("broken")


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(SelectionError, match=r"no variant named 'sofmax' \(did you mean 'softmax'"):
        VARIANTS.load("sofmax")


def test_a_name_that_others_use_is_answered_with_the_selection_that_is_meant() -> None:
    for name, meant in (("kda", "delta[decay=channel]"), ("Mamba-2", "ssd")):
        with pytest.raises(SelectionError, match=re.escape(f"no variant named {name!r} (did you mean {meant!r}?)")):
            VARIANTS.load(name)
    for meant in NAMES_ELSEWHERE.values():
        assert str(VARIANTS.resolve(Spec.parse(meant))) == meant
    # where there are no variants there is none to mean
    with pytest.raises(SelectionError, match=r"no task named 'kda'; "):
        TASKS.load("kda")


def test_two_packages_with_one_name_disable_that_name_alone(install):
    install("first", "first_module", PLUGIN, ("window", "Window"), ("other", "Window"))
    install("second", "second_module", PLUGIN, ("window", "Window"))
    registry = plugins()
    assert [entry.name for entry in registry.entries()] == ["other"]
    assert [(entry.name, entry.origin) for entry in registry.disabled()] == [
        ("window", "first 1.0"), ("window", "second 1.0"),
    ]  # fmt: skip
    with pytest.raises(SelectionError, match=r"'window'.*first 1\.0.*second 1\.0"):
        registry.load("window")


def test_attnbench_keeps_a_name_that_another_package_brings_too(install):
    install("attnbench-twin", "twin_module", PLUGIN, ("window", "Window"))
    install("second", "second_module", PLUGIN, ("window", "Window"))
    target = "attnbench.bench.core.spec:Spec"
    entry_points = install.folder / "attnbench_twin-1.0.dist-info" / "entry_points.txt"
    entry_points.write_text(f"[example.plugins]\nwindow = {target}\n")
    registry = plugins()
    assert [(entry.name, entry.target) for entry in registry.entries()] == [("window", target)]
    (disabled,) = registry.disabled()
    assert disabled.origin == "second 1.0" and "taken by attnbench itself" in disabled.problem
    assert not registry.is_foreign("window")


@pytest.mark.parametrize(
    "line", ["window", "= strange_window:Window", "win[dow = strange_window:Window", "window = strange_window",
             "window = a..b:C", "\x1b[31mred = strange_window:Window"],
)  # fmt: skip
def test_a_malformed_entry_point_disables_that_name_alone(install, line):
    install("stranger", "strange_window", PLUGIN, ("good", "Window"))
    install("broken", "broken_module", "")
    (install.folder / "broken-1.0.dist-info" / "entry_points.txt").write_text(
        f"[example.plugins]\n{line}\nalso-good = broken_module:Thing\n[console_scripts]\nx\n"
    )
    registry = plugins()
    assert [entry.name for entry in registry.entries()] == ["also-good", "good"]
    (disabled,) = registry.disabled()
    assert disabled.origin == "broken 1.0" and "expected a" in disabled.problem


def test_foreign_is_what_neither_attnbench_nor_this_process_has_brought(install, monkeypatch):
    install("stranger", "strange_window", PLUGIN, ("window", "Window"))
    monkeypatch.setenv("EXAMPLE_PLUGINS", "inherited=strange_window:Window")
    registry = plugins()
    assert registry.is_foreign("window") and registry.is_foreign("inherited")
    registry.declare("own", "strange_window:Window")
    assert not registry.is_foreign("own") and registry.is_foreign("inherited")
    assert registry.package("window") == "stranger 1.0" and registry.package("inherited") == "strange_window"


def test_variables_and_a_limit_that_an_import_sets_do_not_count(install, monkeypatch):
    source = "import os; os.environ['OMP_NUM_THREADS'] = '1'; os.environ['NEW'] = '1'; del os.environ['OLD']\n"
    source += "import sys; sys.setrecursionlimit(sys.getrecursionlimit() + 1)\n"
    install("stranger", "strange_window", source + PLUGIN, ("window", "Window"))
    monkeypatch.setenv("OLD", "kept")
    before, depth = dict(os.environ), sys.getrecursionlimit()
    assert plugins().load("window") and dict(os.environ) == before and sys.getrecursionlimit() == depth


def test_one_package_that_is_found_twice_is_one(install, tmp_path, monkeypatch):
    install("stranger", "strange_window", PLUGIN, ("window", "Window"))
    copy = tmp_path / "again" / "stranger-1.0.dist-info"
    copy.mkdir(parents=True)
    for file in (tmp_path / "stranger-1.0.dist-info").iterdir():
        (copy / file.name).write_text(file.read_text())
    monkeypatch.syspath_prepend(copy.parent)
    assert [entry.name for entry in plugins().entries()] == ["window"]


@pytest.mark.parametrize(
    ("selection", "canonical"),
    [
        ("window[window=64,scale=1,flange=none]", "window"),
        ("window[scale=2,label=3,causal=true]", "window[causal=true,label=3,scale=2.0]"),
        ("window[mode=hard,flange=8]", "window[flange=8,mode=hard]"),
    ],
)
def test_a_spec_is_resolved_to_the_types_of_the_constructor_without_defaults(install, selection, canonical):
    install("stranger", "strange_window", PLUGIN, ("window", "Window"))
    assert str(plugins().resolve(Spec.parse(selection))) == canonical


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ("window[windw=3]", r"no parameter 'windw' \(did you mean 'window'\?\); it has: window=64, scale=1.0"),
        ("window[window=1.5]", "expected window to be int, got '1.5'"),
        ("window[window=true]", "expected window to be int, got 'true'"),
        ("window[scale=true]", "expected scale to be float, got 'true'"),
        ("window[mode=firm]", r"expected mode to be soft \| hard, got 'firm'"),
        ("window[flange=a]", r"expected flange to be int \| none, got 'a'"),
        ("window[causal=1]", "expected causal to be bool, got '1'"),
    ],
)
def test_a_wrong_parameter_is_refused_with_the_right_ones(install, selection, message):
    install("stranger", "strange_window", PLUGIN, ("window", "Window"))
    with pytest.raises(SelectionError, match=message):
        plugins().resolve(Spec.parse(selection))


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ("width", "parameter 'width' has no default, and each parameter needs one"),
        (
            "width: Annotated[int | None, Range(1, 4096)] = 0",
            "the default of parameter 'width', 0, is outside its range from 1 to 4,096",
        ),
        ("width: Missing = 0", "NameError: name 'Missing' is not defined"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_refused_before_anything_is_built(install, parameter, message):
    source = f"""
        from __future__ import annotations
        from typing import Annotated
        from attnbench.variants.contract import Range

        class Odd:
            def __init__(self, shape, *, {parameter}):
                pass
    """
    install("odds", "odd_class", textwrap.dedent(source), ("odd", "Odd"))
    with pytest.raises(PluginError, match=r"the gadget .odd. of odds 1\.0 cannot be used: its constructor") as e:
        plugins().resolve(Spec.parse("odd[width=3]"))
    assert message in str(e.value)


def test_a_parameter_without_an_annotation_has_the_type_of_its_default(install):
    source = """
        class Plain:
            def __init__(self, shape, *, width=4, rate=0.5, anything=None):
                self.given = (width, rate, anything)
    """
    install("plain", "plain_class", textwrap.dedent(source), ("plain", "Plain"))
    assert plugins().build(Spec.parse("plain[width=8,rate=1,anything=x]"), "shape").given == (8, 1.0, "x")
    with pytest.raises(SelectionError, match="expected width to be int, got 'x'"):
        plugins().resolve(Spec.parse("plain[width=x]"))


def test_build_passes_what_the_spec_says(install):
    install("stranger", "strange_window", PLUGIN, ("window", "Window"))
    given = plugins().build(Spec.parse("window[window=8,scale=2]"), "shape").given
    assert given == {"window": 8, "scale": 2.0, "mode": "soft", "flange": None, "causal": False, "label": "x"}


def test_a_pattern_is_refused_where_the_model_has_fewer_layers():
    hybrid, shape = Spec.parse("delta:2//softmax"), AttentionShape(heads=1, head_dim=4, max_length=8, causal=True)
    with pytest.raises(Unsupported, match="the pattern has 3 layers, the model only 2"):
        VARIANTS.build(hybrid, replace(shape, layers=2))
    built = [VARIANTS.build(hybrid, replace(shape, layer=layer, layers=4)) for layer in range(4)]
    assert [type(each).__name__ for each in built] == ["Delta", "Delta", "Softmax", "Delta"]


def test_parameters_of_a_score_map_are_read_in_its_own_module(install):
    source = """
        from __future__ import annotations
        from typing import Literal
        from attnbench.variants.contract import score_map
        Mode = Literal["soft", "hard"]

        @score_map()
        def odd(scores, allowed, *, mode: Mode = "soft"):
            '''An odd map.'''
            return scores
    """
    install("maps", "odd_map", textwrap.dedent(source), ("odd", "odd"))
    (mode,) = parameters(plugins().load("odd")).values()
    assert (mode.name, mode.kind_text(), mode.default) == ("mode", "soft | hard", "soft")
    assert plugins().describe("odd") == "An odd map."


def test_the_source_of_a_module_is_found_without_importing_its_package(install, tmp_path):
    package = tmp_path / "closed"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError")
    (package / "inner" / "__init__.py").write_text("raise RuntimeError")
    (package / "inner" / "thing.py").write_text("")
    install("unrelated", "unrelated_module", "")
    assert module_source("closed.inner.thing") == package / "inner" / "thing.py"
    assert module_source("closed.inner") == package / "inner" / "__init__.py"
    assert module_source("closed.absent") is None
    assert module_source("no_such_package.thing") is None


def test_every_built_in_name_has_a_source_with_a_one_line_description():
    for registry in (VARIANTS, TASKS):
        lacking = [entry.name for entry in registry.entries() if not registry.describe(entry.name)]
        assert lacking == []
