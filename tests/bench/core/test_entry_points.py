"""Which entry points are attnbench's own, whatever library reads them."""

from types import SimpleNamespace

from attnbench.bench.core.entry_points import is_own
from attnbench.bench.core.targets import target_of


def test_an_entry_point_of_another_reader_of_metadata_is_own_too() -> None:
    # `importlib_metadata`, once imported, answers for the standard library with its own class
    assert is_own(SimpleNamespace(name="text", value="attnbench.tasks.lra.text:Text"))
    assert not is_own(SimpleNamespace(name="text", value="attnbench_example.tasks:Text"))
    # a target names whatever module a sender likes
    assert not is_own(target_of("attnbench.bench.core.files:os.abort"))
