"""Suites: built in, or a person's own file."""

import pytest

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.registry import TASKS, VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.options import load_suite
from attnbench.bench.plan.suites import built_in


def test_the_built_in_suites_name_only_what_is_installed():
    assert {"lra", "smoke-all"} <= set(built_in())
    for name in built_in():
        suite = load_suite(name)
        assert suite.suite == name and suite.description
        assert {spec.name for spec in suite.tasks} <= {entry.name for entry in TASKS.entries()}
        # a hybrid names those of its layers
        named = {one.name for spec in suite.variants for one in spec.variants}
        assert named <= {entry.name for entry in VARIANTS.entries()}


def test_smoke_all_covers_every_installed_variant_with_one_seed():
    suite = load_suite("smoke-all")
    assert [spec.name for spec in suite.variants] == [entry.name for entry in VARIANTS.entries()]
    assert (suite.preset, suite.seeds) == (Spec("smoke"), 1)


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return str(path)

    return write


BASE = 'tasks = ["lra-text"]\nvariants = ["softmax"]\n'


def test_a_file_may_use_the_whole_selection_grammar(written):
    text = """
        tasks = ["lra-text[length=1k,2k]"]
        variants = ["rela", "entmax[alpha=1.25,1.5]", "rela"]
        preset = "quick[steps=100]"
        seeds = 5
        selection = "test"
    """
    suite = load_suite(written(text))
    assert [str(spec) for spec in suite.tasks] == ["lra-text[length=1024]", "lra-text[length=2048]"]
    assert [str(spec) for spec in suite.variants] == ["rela", "entmax[alpha=1.25]", "entmax[alpha=1.5]"]
    assert (suite.suite, suite.preset, suite.seeds, suite.selection) == ("mine", Spec.of("quick", steps=100), 5, "test")


def test_what_a_file_leaves_out_is_left_to_the_run(written):
    suite = load_suite(written(BASE))
    assert (suite.preset, suite.seeds, suite.selection) == (None, None, "validation")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BASE + "seed = 3", r"unknown key 'seed' \(did you mean 'seeds'"),
        (BASE + "name = 'x'", "unknown key 'name'"),
        (BASE + "seeds = 0", "expected seeds to be a count of 1 or more, got 0"),
        (BASE + "seeds = true", "expected seeds"),
        (BASE + "seeds = 1.5", "expected seeds"),
        (BASE + "selection = 'train'", "expected selection to be validation or test, got 'train'"),
        (BASE + "preset = 3", "expected preset"),
        (BASE + "preset = 'a,b'", "expected one name"),
        (BASE + "description = []", "expected description to be text"),
        ('tasks = ["lra-text"]', "expected variants to be a list of names .* got nothing"),
        ('variants = ["softmax"]', "expected tasks"),
        ('tasks = []\nvariants = ["softmax"]', r"expected tasks .* got \[\]"),
        ('tasks = ["lra-text"]\nvariants = "softmax"', "expected variants"),
        ('tasks = ["lra-text"]\nvariants = [1]', "expected variants"),
        ('tasks = ["lra-text"]\nvariants = ["sofmax"]', r"no variant named 'sofmax' \(did you mean 'softmax'"),
        ('tasks = ["lra-txt"]\nvariants = ["rela"]', r"no task named 'lra-txt' \(did you mean 'lra-text'"),
        (
            BASE.replace("softmax", "mine.py:Mine"),
            "names code by its place, mine.py:Mine, and installed variants alone",
        ),
        (BASE.replace("softmax", "gate+os:system[call=m(x)]//rela"), "names code by its place, os:system, and "),
        (BASE.replace("lra-text", "mine.py:Mine"), "installed tasks alone .* `--tasks mine.py:Mine,…` beside --suite"),
        ("tasks = [", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_path_and_what_was_expected(written, text, message):
    path = written(text)
    with pytest.raises(SelectionError, match=message) as raised:
        load_suite(path)
    assert "mine.toml" in str(raised.value) or "expected one name" in str(raised.value)


def test_an_unknown_suite_is_answered_with_the_nearest_and_a_missing_file_by_its_name(tmp_path):
    with pytest.raises(SelectionError, match=r"no suite named 'lar' \(did you mean 'lra'"):
        load_suite("lar")
    with pytest.raises(SelectionError, match=r"absent.toml: No such file"):
        load_suite(str(tmp_path / "absent.toml"))
