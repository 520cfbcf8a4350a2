"""Text of strangers in the log of the Python interface."""

import pytest

from attnbench.bench.core.errors import LOG


def test_text_does_nothing_but_show(caplog: pytest.LogCaptureFixture) -> None:
    LOG.warning("%s, line %d", "a\x1b[2J\u202eb\nc\ud800 gr\u00fc\u00dft", 3)
    assert caplog.messages == ["a\\x1b[2J\\u202eb\\nc\\ud800 gr\u00fc\u00dft, line 3"]
