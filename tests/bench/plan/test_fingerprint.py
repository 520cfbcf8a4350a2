"""Digests change with the code that makes numbers, and with nothing else."""

import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

import attnbench.bench.plan.fingerprint
from attnbench.bench.core.cell import Cell
from attnbench.bench.core.paths import PACKAGE
from attnbench.bench.core.record import Provenance
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.fingerprint import (
    KIND_FILES,
    PROTOCOL_FILES,
    closure,
    digest_of,
    digest_of_cell,
    normalised,
    with_data,
)

SOURCE = textwrap.dedent('''
    """About it."""

    import os  # for paths

    LIMIT = 3
    """What the limit is."""


    class Thing:
        """A thing.

        And more.
        """

        def act(self, x):
            """Acts."""
            # twice
            text = f"{x} # not a comment"
            return text * LIMIT
''')


def same(before, after):
    return normalised(before) == normalised(after)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# twice", "# two times, since once is not enough"),
        ("        # twice\n", ""),
        ("  # for paths", ""),
        ('"""Acts."""', '"""Acts well.\n\n        é # ü\n        """'),
        ('        """Acts."""\n', ""),
        ('"""About it."""', ""),
        ('"""What the limit is."""\n', ""),
        ("And more.", "And\n\n    less."),
        ("LIMIT = 3\n", "LIMIT = 3   \n\n\n"),
        ("\n", "\r\n"),
    ],
)
def test_sentences_and_blanks_do_not_count(old, new):
    assert old in SOURCE
    assert same(SOURCE, SOURCE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("# not a comment", "# no comment"),
        ("text * LIMIT", "LIMIT * text"),
        ("        return", "    return"),
        ("import os", "import io"),
        ("def act", "def acts"),
    ],
)
def test_code_counts(old, new):
    assert old in SOURCE
    assert not same(SOURCE, SOURCE.replace(old, new))


def test_blanks_inside_a_string_count():
    assert not same('x = """a\n\nb"""', 'x = """a\nb"""')
    assert not same('x = """a  \nb"""', 'x = """a\nb"""')
    assert not same('x = f"""a  \n{1}"""', 'x = f"""a\n{1}"""')
    assert same('x = ("a"  # one\n     "b")', 'x = ("a"\n     # two\n     "b")')


def test_what_does_not_parse_is_taken_as_it_is():
    assert normalised("def (  # x\n") == "def (  # x\n"


@given(st.text(alphabet="ab#'\"é \n=(),", max_size=60))
def test_normalising_twice_is_normalising_once_for_what_parses(text):
    once = normalised(text)
    assert normalised(once) == once


def test_the_form_is_pinned_so_that_another_python_gives_the_same_digest():
    assert normalised(SOURCE) == textwrap.dedent("""\
        import os
        LIMIT = 3
        class Thing:
            def act(self, x):
                text = f"{x} # not a comment"
                return text * LIMIT""")


@pytest.fixture
def package(tmp_path):
    """A stranger's package: `deep.one` needs `deep.two`, `three` and `four`; nobody needs `other`."""
    root = tmp_path / "stranger"
    files = {
        "__init__.py": "",
        "deep/__init__.py": "",
        "deep/one.py": "from .two import x\nfrom .. import three\nimport stranger.four\nimport os",
        "deep/two.py": "x = 2",
        "three.py": "def f():\n    from .five import y\n    return y",
        "four.py": "from attnbench.variants.contract import Variant",
        "five.py": "y = 5",
        "other.py": "z = 6",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_closure_follows_imports_within_the_package_and_into_the_contract(package):
    found = closure(package / "deep" / "one.py", package)
    names = {path.relative_to(package).as_posix() for path in found if path.is_relative_to(package)}
    assert names == {"deep/one.py", "deep/two.py", "__init__.py", "three.py", "four.py", "five.py"}
    assert found - {package / name for name in names} == {PACKAGE / "variants" / "contract.py"}


def digest_in_another_process(source):
    code = (
        "import sys; from pathlib import Path; from attnbench.bench.plan.fingerprint import digest_of;"
        "print(digest_of(Path(sys.argv[1]), None, 'train')); assert 'torch' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code, str(source)], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_a_change_in_what_is_imported_changes_the_variant_part_alone(package):
    source = package / "deep" / "one.py"
    before = digest_in_another_process(source)
    (package / "other.py").write_text("z = 7")
    (package / "five.py").write_text("y = 5  # still")
    assert digest_in_another_process(source) == before
    (package / "five.py").write_text("y = 6")
    after = digest_in_another_process(source)
    assert after.split("-")[:2] == before.split("-")[:2] and after.split("-")[2] != before.split("-")[2]


def test_a_package_has_the_same_digest_wherever_it_lies(package, tmp_path):
    moved = tmp_path / "elsewhere" / "stranger"
    moved.parent.mkdir()
    package.rename(moved)
    first = digest_of(moved / "deep" / "one.py", None, "train")
    moved.rename(package)
    assert digest_of(package / "deep" / "one.py", None, "train") == first


def test_a_digest_is_three_short_hashes():
    softmax = PACKAGE / "variants" / "softmax.py"
    parts = digest_of(softmax, softmax, "train").split("-")
    assert [len(part) for part in parts] == [10, 10, 10] and len(set(parts)) == 3


def test_lanes_depend_on_their_own_files():
    assert digest_of(None, None, "train") != digest_of(None, None, "time")


def test_every_file_that_a_protocol_names_is_there():
    for of, names in (PROTOCOL_FILES | KIND_FILES).items():
        assert [name for name in names if not (PACKAGE / name).is_file()] == [], of


def test_what_one_kind_of_problem_needs_is_no_part_of_another_kinds_digest(monkeypatch):
    """An edit of the beam search leaves Long Range Arena's Records as they are, and not the translations."""
    tasks = {"classification": "lra/text.py", "language": "lm/enwik8.py", "translation": "wmt/translate.py"}

    def protocols():
        return {kind: digest_of(None, PACKAGE / "tasks" / name, "train").split("-")[0] for kind, name in tasks.items()}

    before = protocols()
    real = attnbench.bench.plan.fingerprint._hash_of_file
    edited = PACKAGE / "bench" / "beam.py"
    monkeypatch.setattr(
        "attnbench.bench.plan.fingerprint._hash_of_file",
        lambda file, changed, size: "edited" if file == edited else real(file, changed, size),
    )
    after = protocols()
    assert len(set(before.values())) == 3
    assert [kind for kind in tasks if after[kind] != before[kind]] == ["translation"]


def test_the_digest_of_a_cell_is_that_of_its_variant_and_task():
    cell = Cell(variant=Spec.of("softmax", impl="eager"), task=Spec("lra-text"), preset=Spec("smoke"))
    expected = digest_of(PACKAGE / "variants" / "softmax.py", PACKAGE / "tasks" / "lra" / "text.py", "train")
    assert digest_of_cell(cell) == expected


def test_an_untrained_model_hangs_on_the_code_of_the_reference_and_copying_does_not():
    def digests():
        of = {"task": Spec("wmt14-en-de"), "preset": Spec("smoke"), "lane": "baseline"}
        return [digest_of_cell(Cell(variant=Spec(name), **of)).split("-")[2] for name in ("untrained", "copy")]

    softmax = digest_of(PACKAGE / "variants" / "softmax.py", None, "baseline").split("-")[2]
    assert digests() == [softmax, digest_of(None, None, "baseline").split("-")[2]]


def test_other_data_is_another_measurement():
    digest = "p-" + "t" * 10 + "-v"
    first, second = (Provenance(source="tree", fidelity="official", files={"a": checksum}) for checksum in "12")
    assert len({with_data(digest, data) for data in (None, first, second)}) == 3
    protocol, task, variant = with_data(digest, first).split("-")
    assert (protocol, len(task), variant) == ("p", 10, "v")


def test_a_timing_hangs_on_the_code_of_the_reference_too(monkeypatch):
    cell = Cell(variant=Spec("rela"), task=Spec("lra-text"), preset=Spec("smoke"), lane="time")
    before = digest_of_cell(cell)
    real = attnbench.bench.plan.fingerprint._closure_hash
    softmax = PACKAGE / "variants" / "softmax.py"
    monkeypatch.setattr(
        "attnbench.bench.plan.fingerprint._closure_hash",
        lambda file, contract: "edited" if file == softmax else real(file, contract),
    )
    assert digest_of_cell(cell) != before
    trained = Cell(variant=Spec("rela"), task=Spec("lra-text"), preset=Spec("smoke"))
    assert "edited" not in digest_of_cell(trained)


def test_the_contract_counts_however_a_plugin_imports_it(tmp_path, monkeypatch):
    plugin = tmp_path / "mine.py"
    plugin.write_text("from attnbench.variants import ScoredVariant\n", encoding="utf-8")
    before = digest_of(plugin, None, "train").split("-")[2]
    other = tmp_path / "contract.py"
    other.write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr("attnbench.bench.plan.fingerprint.VARIANT_CONTRACT", other)
    attnbench.bench.plan.fingerprint._closure_hash.cache_clear()
    assert digest_of(plugin, None, "train").split("-")[2] != before


def test_native_sources_and_their_headers_belong_to_the_variant():
    """A C++ file of the same name beside a module that is imported, and what it includes from there."""
    names = {file.name for file in closure(PACKAGE / "variants" / "entmax.py", PACKAGE / "variants")}
    assert {"cpu_entmax.py", "cpu_entmax.cpp", "cpu_gemm.h", "cpu_solver.h", "cpu_rows.h"} <= names
    assert "cpu_rela.cpp" not in names
