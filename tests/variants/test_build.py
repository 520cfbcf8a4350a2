"""Building a variant by its name: the example in the docstring works."""

from __future__ import annotations

import re

from attnbench.variants import AttentionShape, build
from attnbench.variants.sparse.local import Local


def test_the_example_of_the_docstring_builds() -> None:
    (selection,) = re.findall(r"such as `(.+?)`", str(build.__doc__))
    variant = build(selection, AttentionShape(heads=2, head_dim=16, max_length=256))
    assert isinstance(variant, Local) and variant.flange == 64
