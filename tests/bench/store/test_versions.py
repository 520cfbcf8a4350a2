"""Which version and code of a variant counts: what the model without attention and untried code may not decide."""

from __future__ import annotations

from attnbench.bench.core.cell import NO_ATTENTION
from attnbench.bench.store.rows import completeness
from attnbench.bench.store.table import table_of

OLD, NEW = "lane1.objective1.task0-d1-v1", "lane1.objective1.task1-d1-v1"


def test_the_model_without_attention_is_no_variant_that_a_version_is_complete_with(bench) -> None:
    b = bench()
    for name in ("softmax", NO_ATTENTION):
        b.train(name, [0.6] * 3, digest=OLD)
    assert completeness(table_of(b.records).rows) == (0, 0)
    b.train("rela", [0.6] * 3, digest=OLD)
    assert completeness(table_of(b.records).rows) == (1, 0)
    # beside it, a newer version with softmax and no-attention alone is not complete
    for name in ("softmax", NO_ATTENTION):
        b.train(name, [0.7] * 3, digest=NEW)
    assert {row.version for row in table_of(b.records).current} == {"lane1.objective1.task0"}


def test_the_reference_does_not_fall_to_code_that_was_tried_and_failed(bench) -> None:
    """Two seeds of newer code, or three of which one failed, are not three results."""
    b = bench()
    for name in ("softmax", "rela", "linear"):
        b.train(name, [0.6] * 3, digest=OLD)
    newer = OLD.replace("-v1", "-v2")
    b.train("softmax", [0.6] * 2, digest=newer)
    b.add(b.cell("softmax", 2), outcome="crashed", reason="boom", digest=newer)
    codes = {row.variant_code for row in table_of(b.records).current if row.variant == "softmax"}
    assert codes == {"v1"}
