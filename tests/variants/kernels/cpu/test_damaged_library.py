"""A compiled library that was cut short: set aside, and built anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.variants.kernels.cpu import build


def test_a_torn_library_is_set_aside_and_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / build.LIBRARY
    library.write_bytes(b"\x7fELF torn")
    loaded: list[bytes] = []

    def built() -> Path:
        if not library.exists():
            library.write_bytes(b"whole")
        return library

    def load(path: Path) -> None:
        if path.read_bytes() != b"whole":
            raise OSError(f"{path}: file too short")
        loaded.append(path.read_bytes())

    monkeypatch.setattr(build, "built", built)
    monkeypatch.setattr(build, "_load", load)
    assert build.failure.__wrapped__() is None
    assert loaded == [b"whole"]
    assert (tmp_path / f"{build.LIBRARY}.damaged").read_bytes() == b"\x7fELF torn"
