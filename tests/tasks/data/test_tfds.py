import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnbench.bench.cli.app import app
from attnbench.bench.core.errors import DataError
from attnbench.tasks.contract import DataPlace, Recipe
from attnbench.tasks.data.prepared import CachedData, stored
from attnbench.tasks.data.sources import METADATA, ExportSource
from attnbench.tasks.data.tfds import export
from attnbench.tasks.lra.listops import ListOps
from attnbench.tasks.lra.retrieval import Retrieval
from attnbench.tasks.lra.text import Text

ALL = Recipe(length=4096, validation_examples=None)
SMALL = Recipe(length=128, train_examples=64, validation_examples=8, test_examples=8)


@pytest.fixture
def pairs(place: DataPlace) -> Path:
    """A small set of document pairs in AAN's format."""
    folder = place.root / "lra_release" / "tsv_data"
    folder.mkdir(parents=True)
    for at, name in enumerate(("train", "eval", "test")):
        rows = [f"{i % 2}.0\ta{i}\tb{i}\tb'first {at} {i}'\tb'second \\t {i}'" for i in range(6 + at)]
        (folder / f"new_aan_pairs.{name}.tsv").write_text("\n".join(rows) + "\n")
    return folder


def elsewhere(place: DataPlace, exports: Path, monkeypatch: pytest.MonkeyPatch) -> DataPlace:
    """Another machine, which has the exports and nothing else."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(exports))
    return replace(place, root=place.root.parent / "nothing", cache=place.cache.parent / "other")


def only(place: DataPlace, task: str) -> CachedData:
    [found] = stored(place, task)
    return found


def test_without_tfds_an_export_says_what_to_install(
    place: DataPlace, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Text().load(place, ALL, 0, "validation")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(DataError, match=r"pip install 'attnbench\[tfds\]'"):
        export(only(place, "lra-text"), place.cache / "tfds", place)


def test_what_is_no_export_of_ours_is_passed_over(place: DataPlace) -> None:
    for content in (
        "{",
        "[]",
        '{"task": "lra-text"}',
        '{"task": "lra-text", "columns": [], "repeated": {}, "provenance": {}}',
    ):
        folder = place.root / "lra_text" / "abc" / "1.0.0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / METADATA).write_text(content)
        source = ExportSource(task="lra-text")
        assert source.folder(place) is None and source.prepared(place) is None


def test_an_export_with_nothing_prepared_says_what_to_do(place: DataPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_CACHE", str(place.cache))
    result = CliRunner().invoke(app, ["data", "export", "--tfds", str(place.cache / "tfds"), "lra-text"])
    assert isinstance(result.exception, DataError) and "attnbench data get" in str(result.exception)


class TestWithTFDS:
    """What needs the extra `tfds`."""

    pytestmark = pytest.mark.filterwarnings("ignore")

    @pytest.fixture(autouse=True)
    def tfds(self) -> None:
        pytest.importorskip("tensorflow_datasets", reason="the extra `tfds` is not installed")

    def test_tfds_reads_an_export_without_tensorflow(self, place: DataPlace, tree: Path) -> None:
        import tensorflow_datasets as tfds

        dataset = Text().load(place, ALL, 0, "test")
        path = export(only(place, "lra-text"), place.cache / "tfds", place)
        builder = tfds.builder_from_directory(str(path))
        rows = builder.as_data_source("train")
        assert [row["label"] for row in rows] == dataset.train.labels.tolist()
        assert [row["tokens"].tolist() for row in rows] == [ids.tolist() for ids in dataset.train.sequences()]
        assert builder.info.metadata["provenance"]["source"] == "aclImdb tree"
        assert "tensorflow" not in sys.modules

    def test_an_export_is_a_source_of_the_very_same_arrays(
        self, place: DataPlace, tree: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for task, name in ((Text(), "lra-text"), (Retrieval(), "lra-retrieval")):
            here = task.load(place, ALL, 3, "validation")
            exports = place.cache / "tfds"
            export(only(place, name), exports, place)
            there = task.load(elsewhere(place, exports, monkeypatch), ALL, 3, "validation")
            assert there.provenance == here.provenance
            for one, other in ((here.train, there.train), (here.validation, there.validation), (here.test, there.test)):
                assert (
                    one.split.tokens.tobytes() == other.split.tokens.tobytes()
                    and one.split.towers == other.split.towers
                )
                assert one.split.starts.tolist() == other.split.starts.tolist()
                assert one.indices.tolist() == other.indices.tolist() and one.labels.tolist() == other.labels.tolist()

    def test_an_export_stands_in_for_the_generator_only_where_it_is_the_same(
        self, place: DataPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from attnbench.tasks.lra import listops

        here = ListOps().load(place, SMALL, 0, "validation")
        exports = place.cache / "tfds"
        export(only(place, "lra-listops"), exports, place)
        other = elsewhere(place, exports, monkeypatch)

        def never(*arguments: object, **more: object) -> None:
            raise AssertionError("generated")

        monkeypatch.setattr(listops, "generate", never)
        there = ListOps().load(other, SMALL, 0, "validation")
        assert there.provenance == here.provenance
        assert there.train.split.tokens.tobytes() == here.train.split.tokens.tobytes()
        with pytest.raises(AssertionError, match="generated"):
            ListOps().load(other, replace(SMALL, length=96), 0, "validation")

    def test_an_export_is_written_once(self, place: DataPlace, tree: Path) -> None:
        Text().load(place, ALL, 0, "validation")
        path = export(only(place, "lra-text"), place.cache / "tfds", place)
        before = {each: each.stat().st_mtime_ns for each in path.iterdir()}
        assert export(only(place, "lra-text"), place.cache / "tfds", place) == path
        assert {each: each.stat().st_mtime_ns for each in path.iterdir()} == before

    def test_an_export_that_was_killed_is_none(
        self, place: DataPlace, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Text().load(place, ALL, 0, "validation")

        def killed(what: str, done: int, total: int) -> None:
            raise KeyboardInterrupt

        exports = place.cache / "tfds"
        with pytest.raises(KeyboardInterrupt):
            export(only(place, "lra-text"), exports, replace(place, progress=killed))
        other = elsewhere(place, exports, monkeypatch)
        assert ExportSource(task="lra-text").folder(other) is None
        assert (export(only(place, "lra-text"), exports, place) / METADATA).is_file()

    def test_the_command_exports_what_is_prepared(
        self, place: DataPlace, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ATTNBENCH_CACHE", str(place.cache))
        Text().load(place, ALL, 0, "validation")
        result = CliRunner().invoke(app, ["data", "export", "--tfds", str(place.cache / "tfds")])
        assert result.exit_code == 0, result.output
        [info] = (place.cache / "tfds").glob("lra_text/*/1.0.0/dataset_info.json")
        assert json.loads(info.read_text())["fileFormat"] == "array_record" and str(info.parent) in result.output
