"""Nobody bends the row of a built-in variant: its code and parameters have to be those of a release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from boards import entry
from sent_folders import invoke, of_release, trained

from attnbench.bench.board.task_board import board_for_task
from attnbench.bench.core.files import PACKAGE
from attnbench.bench.core.hashing import content_hash
from attnbench.bench.core.record import Record
from attnbench.bench.plan.fingerprint import DIGITS, variant_hash
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.record_files import ArrivedRecord
from attnbench.bench.store.store import Store
from attnbench.bench.store.table import table_of
from attnbench.bench.wings.sharing import releases as module
from attnbench.bench.wings.sharing.command import merge, validate
from attnbench.bench.wings.sharing.releases import Part, Unreleased, known_codes, named_parts, releases
from attnbench.bench.wings.sharing.validate import validate_records

Bench = Callable[..., object]
NAMES = ("softmax", "entmax15", "linear")
ADVICE = "give code of your own a name of its own, such as FILE.py:NAME; in a checkout of attnbench run `make releases`"


def send(
    bench: Bench, root: Path, variant: str, right: int, seeds: range = range(12), code: str = "", **changes: object
) -> Path:
    """A folder with sound Records of a variant at these seeds; of a release, unless they have another code."""
    store, plain = Store(root), Store(root.with_name(root.name + "-plain"))
    for seed in seeds:
        made: Record = trained(bench, plain, variant, right + seed % 3, seed, examples=100)
        for file in made.artifacts.values():
            store.put_artifact(plain.artifact(file), file[24:])
        digest = of_release("lane1.objective1.task1-d2", made.cell)
        digest = f"{digest.rpartition('-')[0]}-{code}" if code else digest
        store.append(replace(made, digest=digest, **changes))
    return root


@pytest.fixture
def board(bench: Bench, tmp_path: Path) -> Path:
    """A public board with twelve seeds of three variants."""
    for variant, right in zip(NAMES, (80, 90, 60), strict=True):
        send(bench, tmp_path / "honest", variant, right)
    assert invoke(merge, tmp_path / "honest", "--results", tmp_path / "board")[0] == 0
    return tmp_path / "board"


def figures(root: Path, *names: str) -> list[object]:
    """The results of rows of the board, and their gaps to softmax, with their intervals."""
    table = table_of(Store(root).records())
    found = board_for_task(table, board_keys(table)[0])
    return [entry(found, name, column) for name in names or NAMES for column in ("accuracy", "gap")]


@pytest.mark.parametrize("variant", ["entmax15", "softmax"])
def test_six_forged_seeds_of_other_code_and_a_later_day_are_refused(
    board: Path, bench: Bench, tmp_path: Path, variant: str
) -> None:
    before = figures(board)
    forged = send(bench, tmp_path / "forged", variant, 28, range(6), "deadbeef00", started="2026-11-24T00:00:00+00:00")
    line = (
        f"box-1.jsonl:1: expected code of a release under the name of a built-in variant, got {variant} (deadbeef00) "
        f"in 6 Records; {ADVICE}\n"
    )
    found = validate_records(forged)
    assert [str(each) for each in found.findings if each.severity == "error"] == [f"error: {line.rstrip()}"]
    assert found.sound == () and invoke(validate, forged)[0] == 1
    code, shown = invoke(merge, forged, "--results", board)
    assert code == 1 and "0 added, 0 known already, 6 left out" in shown
    assert f"left out: {line}" in shown
    assert figures(board) == before


def test_added_seeds_of_a_loser_are_taken_and_widen_no_other_interval(
    board: Path, bench: Bench, tmp_path: Path
) -> None:
    before = figures(board, "softmax", "linear")
    extra = send(bench, tmp_path / "extra", "entmax15", 20, range(12, 20))
    assert invoke(merge, extra, "--results", board)[0] == 0
    assert figures(board, "softmax", "linear") == before


@pytest.mark.parametrize(
    "variant",
    [
        "entmax15[iterations=1]", "entmax15[impl=quick]", "entmax15[impl=1]", "topk[k=many]", "topk[k=true]",
        "gate[mine=1]+softmax", "softmax//window[size=wide]",
    ],
)  # fmt: skip
def test_parameters_of_no_release_are_refused(board: Path, bench: Bench, tmp_path: Path, variant: str) -> None:
    before = figures(board)
    forged = send(bench, tmp_path / "forged", variant, 95, range(3))
    (error,) = [each.text for each in validate_records(forged).findings if each.severity == "error"]
    assert error == (
        f"expected parameters of a release under the name of a built-in variant, got {variant} in 3 Records; {ADVICE}"
    )
    code, shown = invoke(merge, forged, "--results", board)
    assert code == 1 and "0 added, 0 known already, 3 left out" in shown and figures(board) == before


@pytest.mark.parametrize(
    "variant",
    [
        "entmax15[impl=eager]", "topk[k=3]", "gate[by=head]+softmax", "window[sink=learned,size=16]",
        # whatever their code and parameters are
        "mine[iterations=1]", "mine.py:Mine", "gate+mine",
    ],
)  # fmt: skip
def test_declared_parameters_and_names_of_ones_own_pass(bench: Bench, tmp_path: Path, variant: str) -> None:
    sent = send(bench, tmp_path / "sent", variant, 95, range(3), "" if "mine" not in variant else "deadbeef00")
    assert validate_records(sent).errors == 0 and len(validate_records(sent).sound) == 3


def test_a_trivial_predictor_has_no_code_of_its_own(bench: Bench, tmp_path: Path) -> None:
    b = bench()
    for code, errors in ((variant_hash(b.cell("majority", lane="baseline"), "cpu"), 0), ("deadbeef00", 1)):
        b.train("majority", [0.5], cell={"lane": "baseline"})
        Store(tmp_path / code).append(replace(b.records[-1], digest=f"a1-b2-{code}"))
        assert validate_records(tmp_path / code).errors == errors


def test_whoever_edits_many_built_in_variants_reads_one_line(bench: Bench, tmp_path: Path) -> None:
    names = ["softmax", "rela", "linear", "topk", "sigmoid", "entmax15", "sparsemax", "window", "local", "fox"]
    for name in names:
        send(bench, tmp_path / "mine", name, 50, range(3), "c0ffee0000")
    (error,) = [each.text for each in validate_records(tmp_path / "mine").findings if each.severity == "error"]
    assert "local" not in error and "window (c0ffee0000) and 2 more in 30 Records; " in error and ADVICE in error
    assert len(error) < 500


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
@pytest.mark.parametrize(
    ("variant", "lane"),
    [
        ("softmax", "train"), ("softmax", "time"), ("delta[decay=channel]", "tune"), ("rela", "time"),
        ("gate+softmax", "train"), ("gate+window", "time"), ("conv+qk-norm+delta:3//softmax", "train"),
        ("dot//general", "train"), ("entmax15[impl=triton]", "train"), ("untrained", "baseline"),
        ("majority", "baseline"),
    ],
)  # fmt: skip
def test_the_code_of_this_version_is_listed_as_a_run_states_it(
    bench: Bench, variant: str, lane: str, device: str
) -> None:
    cell = bench().cell(variant, lane=lane)
    assert variant_hash(cell, device) in known_codes(tuple(named_parts(cell))), "run `make releases`"


def test_the_list_holds_this_checkout() -> None:
    (*_, last) = releases().states()
    present = module._present()
    assert present.keys() <= last.keys()
    assert [name for name, part in present.items() if part != last[name]] == [], "run `make releases`"


def test_the_list_holds_the_code_of_all_committed_records() -> None:
    folders = {file.parent.parent for file in (PACKAGE / "results").rglob("records/*.jsonl")}
    committed = [record for folder in folders if folder.name != "local" for record in Store(folder).records()]
    unreleased = Unreleased()
    for number, record in enumerate(committed):
        unreleased.add(ArrivedRecord(0, "", "committed", number, record))
    assert len(committed) > 1_700 and list(unreleased.errors()) == [], "run `make releases`"
    # both what they were made with and what there is now, of which the controls are
    for name in ("delta", "gated-linear", "fox", "indexer"):
        now = module._present()[name].hashes[0]
        assert releases().published[name] | {content_hash([now], DIGITS)} <= known_codes((name,))


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the list, in the place of the real one."""
    copy = tmp_path / "releases.toml"
    copy.write_bytes(module.FILE.read_bytes())
    monkeypatch.setattr(module, "FILE", copy)
    for function in (releases, known_codes):
        function.cache_clear()
    yield copy
    for function in (releases, known_codes):
        function.cache_clear()


def test_a_new_release_is_added_and_older_code_stays(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, older, kinds = listed.read_bytes(), known_codes(("rela",)), releases().kinds("rela", "impl")
    (*_, latest), both = releases().states(), known_codes(("linear", "rela"))
    monkeypatch.setattr(module, "_present", lambda: latest)
    module.list_releases()
    assert listed.read_bytes() == before
    edited = Part("variants/maps/rela.py", ("aa", "bb", "cc"), {"new": "bool"})
    monkeypatch.setattr(module, "_present", lambda: latest | {"rela": edited})
    monkeypatch.setattr(module, "__version__", "0.4.0")
    module.list_releases()
    for function in (releases, known_codes):
        function.cache_clear()
    assert listed.read_text().count("version = '0.4.0'") == 1 and (
        listed.read_bytes().count(b"\n'rela' = [") == before.count(b"\n'rela' = [") + 1
    )
    assert releases().changes[-1] == {"rela": edited}
    assert older < known_codes(("rela",)) and len(known_codes(("rela",)) - older) == 3
    assert releases().kinds("rela", "new") == ["bool"] and releases().kinds("rela", "impl") == kinds
    # both parts of one release, and never one of each
    assert len(known_codes(("linear", "rela")) - both) == 3
