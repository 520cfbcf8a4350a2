"""Digests change with the versions, the data and the variant's own source, and with nothing else."""

import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.bench.core.cell import LANE_VERSIONS, Cell
from attnbench.bench.core.files import PACKAGE
from attnbench.bench.core.record import Provenance, version_of
from attnbench.bench.core.registry import TASKS, VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan import fingerprint
from attnbench.bench.plan.fingerprint import (
    closure,
    digest_of_cell,
    native_without_comments,
    normalised,
    token_hash,
    variant_hash,
    versions_of,
)
from attnbench.tasks.problems.language_modeling import Language
from attnbench.variants.kernels import gpu

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
        ("import os  # for paths", "import io\nfrom os import path"),
    ],
)
def test_sentences_imports_and_blanks_do_not_count(old, new):
    assert old in SOURCE
    assert same(SOURCE, SOURCE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("# not a comment", "# no comment"),
        ("text * LIMIT", "LIMIT * text"),
        ("        return", "    return"),
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


def hash_in_another_process(source):
    code = (
        "import sys; from pathlib import Path; from attnbench.bench.plan import fingerprint;"
        "print(fingerprint.source_hash(Path(sys.argv[1]), '')); assert 'torch' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code, str(source)], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_a_change_in_what_is_imported_changes_the_hash(package):
    source = package / "deep" / "one.py"
    before = hash_in_another_process(source)
    (package / "other.py").write_text("z = 7")
    (package / "five.py").write_text("y = 5  # still")
    assert hash_in_another_process(source) == before
    (package / "five.py").write_text("y = 6")
    assert hash_in_another_process(source) != before


def test_a_package_has_the_same_hash_wherever_its_files_lie(package, tmp_path):
    before = hash_in_another_process(package / "deep" / "one.py")
    moved = tmp_path / "elsewhere" / "stranger"
    moved.parent.mkdir()
    package.rename(moved)
    assert hash_in_another_process(moved / "deep" / "one.py") == before
    (moved / "three.py").rename(moved / "six.py")
    (moved / "deep" / "one.py").write_text("from .two import x\nfrom .. import six\nimport stranger.four\nimport os")
    assert hash_in_another_process(moved / "deep" / "one.py") == before


def cell(variant="rela", task="lra-text", lane="train"):
    return Cell(variant=Spec(variant), task=Spec(task), preset=Spec("smoke"), lane=lane)


def test_a_digest_names_versions_data_and_variant():
    versions, data, variant = digest_of_cell(cell(), None, "cpu").split("-")
    assert versions == "lane1.objective1.task1" == version_of(digest_of_cell(cell(), None, "cpu"))
    assert len(data) == len(variant) == 10 and data != variant


def test_versions_are_those_of_lane_objective_and_task(monkeypatch):
    monkeypatch.setitem(LANE_VERSIONS, "time", 7)
    monkeypatch.setattr(Language, "objective_version", 3)
    monkeypatch.setattr(TASKS.load("enwik8"), "version", 5)
    assert versions_of(cell(task="enwik8")) == "lane1.objective3.task5"
    assert versions_of(cell(task="enwik8", lane="time")) == "lane7.objective3.task5"
    assert versions_of(cell(task="lra-text")) == "lane1.objective1.task1"


def test_an_untrained_model_hangs_on_the_source_of_the_reference_and_copying_does_not():
    untrained, copy = (variant_hash(cell(name, "lra-text", "baseline"), "cpu") for name in ("untrained", "copy"))
    assert untrained == variant_hash(cell("softmax"), "cpu") != copy


def test_other_data_is_another_measurement():
    first, second = (Provenance(source="tree", fidelity="official", files={"a": checksum}) for checksum in "12")
    third = replace(first, fidelity="surrogate")
    found = [digest_of_cell(cell(), data, "cpu").split("-") for data in (None, first, second, third)]
    assert len({parts[1] for parts in found}) == 4 and len({(parts[0], parts[2]) for parts in found}) == 1


def test_a_timing_hangs_on_the_source_of_the_reference_too(monkeypatch):
    timed, trained = (variant_hash(cell(lane=lane), "cpu") for lane in ("time", "train"))
    real, softmax = fingerprint.source_hash, VARIANTS.source("softmax")
    monkeypatch.setattr(
        fingerprint, "source_hash", lambda file, *more: "edited" if file == softmax else real(file, *more)
    )
    assert variant_hash(cell(lane="time"), "cpu") != timed and variant_hash(cell(), "cpu") == trained


def test_the_contract_is_no_part_of_a_variants_own_source():
    own = closure(VARIANTS.source("linformer"), PACKAGE / "variants")
    contract = PACKAGE / "variants" / "contract.py"
    assert contract in own and variant_hash(cell("linformer"), "cpu") != variant_hash(cell("sigmoid"), "cpu")
    source = VARIANTS.source("linformer")
    assert fingerprint.source_hash(source, "") == token_hash([source])


def test_native_sources_and_their_headers_belong_to_the_variant():
    """A C++ file of the same name beside a module that is imported, and what it includes from there."""
    found = closure(VARIANTS.source("entmax15"), PACKAGE / "variants")
    names = {file.relative_to(PACKAGE / "variants" / "kernels" / "cpu").as_posix() for file in found
             if file.parent.name == "cpu"}  # fmt: skip
    assert {"entmax.py", "entmax.cpp", "gemm.h", "solver.h", "rows.h"} <= names and "tiles.cpp" not in names


@pytest.mark.skipif(gpu.file_of("launch") is None, reason="no Triton kernels")
@pytest.mark.parametrize(
    ("kernel", "changed"),
    [
        # Triton's interpreter runs it on a processor where it is asked for; of another kind of device nothing is known
        ("kernels/triton/entmax.py", {("entmax15", "cuda"), ("entmax15", "mps"), ("entmax15[impl=triton]", "cpu")}),
        (
            "kernels/cpu/solver.h",
            {("entmax15", "cpu"), ("entmax15", "mps"), ("entmax15[impl=triton]", "cpu"), ("entmax15[impl=cpp]", "cpu")},
        ),
        (
            "kernels/dispatch.py",
            {
                ("entmax15", "cpu"),
                ("entmax15", "cuda"),
                ("entmax15", "mps"),
                ("entmax15[impl=triton]", "cpu"),
                ("entmax15[impl=cpp]", "cpu"),
            },
        ),
        ("kernels/triton/maps.py", set()),
    ],
)
def test_a_changed_kernel_changes_the_digests_of_its_own_device_alone(monkeypatch, kernel, changed):
    cases = {(name, "cpu") for name in ("entmax15", "entmax15[impl=triton]", "entmax15[impl=cpp]")}
    cases |= {("entmax15", "cuda"), ("entmax15", "mps"), ("softmax", "cpu"), ("softmax", "cuda")}

    def digests():
        fingerprint.source_hash.cache_clear()
        return {
            (name, device): digest_of_cell(replace(cell(), variant=Spec.parse(name)), None, device)
            for name, device in cases
        }

    before, real = digests(), fingerprint._hash_of_file
    edited = PACKAGE / "variants" / kernel
    monkeypatch.setattr(
        fingerprint, "_hash_of_file", lambda file, *state: "edited" if file == edited else real(file, *state)
    )
    after = digests()
    fingerprint.source_hash.cache_clear()
    assert {case for case in cases if before[case] != after[case]} == changed


@pytest.mark.parametrize("change", ["// why\n", "/* two\nlines */", "\n\n", '#include "rows.h"\n'])
def test_comments_of_native_sources_do_not_count(change):
    source = "int one = 1;\nint two = one / 2;\n"
    assert native_without_comments(source.replace("int two", change + "int two")) == native_without_comments(source)
    assert native_without_comments(source.replace("/", "*")) != native_without_comments(source)


@pytest.mark.parametrize(
    "source",
    [b"x = 1\0\n", b"(" * 100_000 + b")" * 100_000, b"-" * 200_000 + b"1", "x = 'é'".encode("latin-1"), b"def ("]
)  # fmt: skip
def test_a_file_that_no_parser_reads_is_hashed_as_it_stands(tmp_path, source):
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_bytes(source)
    other.write_bytes(source + b"# more")
    assert token_hash([one]) == token_hash([one]) != token_hash([other])
    assert closure(one, tmp_path) == {one}
