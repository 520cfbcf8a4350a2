"""Download: one file by HTTP through pooch, resumed after a break; members of tar archives."""

from __future__ import annotations

import re
import tarfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..contract import DataError, DataPlace
from .prepared import write_errors

CHUNK = 1 << 18
CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
TRIES = 4
RETRY_SECONDS = 3_600.0

PATIENCE_SECONDS = 120.0
SLOWEST = 20_000
"""Bytes a second. A slower server is given up once it has had PATIENCE_SECONDS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file at any of `urls`. `bytes` and `sha256` describe the whole file."""

    name: str
    urls: tuple[str, ...]
    sha256: str
    bytes: int


class Unreachable(Exception):
    """No server answered, or none sent the whole file. The message is the reason."""


def fetch(remote: RemoteFile, place: DataPlace) -> Path:
    """Return the file under `place.cache`, downloaded if it is not there. A broken download is resumed.

    Raises Unreachable if no URL gives the file (remembered for an hour, see `forget_failures`), and DataError if the
    content differs from the published file.
    """
    path = place.download(remote.name)
    if path.is_file():
        return path
    if reason := failure(remote, place):
        raise Unreachable(f"{reason} (remembered; `attnbench data get` tries again)")
    failed = _failed(remote, place)
    # a lock, so that processes that want the same file download it once
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.is_file():
                try:
                    _retrieve(remote, path, place)
                except Unreachable as error:
                    failed.write_text(str(error), encoding="utf-8")
                    raise
                failed.unlink(missing_ok=True)
    return path


def failure(remote: RemoteFile, place: DataPlace) -> str:
    """Return why a download failed within the last hour; empty if none did."""
    failed = _failed(remote, place)
    # a note of the future was written before the clock was set back
    is_recent = failed.is_file() and 0 <= time.time() - failed.stat().st_mtime < RETRY_SECONDS
    return failed.read_text(encoding="utf-8") if is_recent else ""


def forget_failures(place: DataPlace) -> None:
    """Let the next `fetch` of any file try the network again at once."""
    for failed in (place.cache / "downloads").glob("*.failed"):
        failed.unlink(missing_ok=True)


def _failed(remote: RemoteFile, place: DataPlace) -> Path:
    return place.download(remote.name).with_name(f"{remote.name}.failed")


def _retrieve(remote: RemoteFile, path: Path, place: DataPlace) -> None:
    # imported here, since listing tasks needs neither
    import pooch

    pooch.get_logger().setLevel("WARNING")
    problems = []
    for url in remote.urls:
        try:
            pooch.retrieve(
                url, f"sha256:{remote.sha256}", remote.name, path.parent, downloader=_Resuming(remote, place)
            )
            return
        except Unreachable as error:
            problems.append(f"{url}: {error}")
        except ValueError as error:
            # pooch has deleted the file, so that the next try does not go on from these bytes
            raise DataError(
                f"{url} gave another file than the published one, expected SHA-256 {remote.sha256}; try again later"
            ) from error
    raise Unreachable("; ".join(problems))


@dataclass(frozen=True, slots=True)
class _Resuming:
    """A downloader for pooch that goes on where an earlier download of the file broke."""

    remote: RemoteFile
    place: DataPlace

    def __call__(self, url: str, output_file: str, mover: Any) -> None:
        from requests import RequestException
        from urllib3.exceptions import HTTPError

        partial = self.place.download(self.remote.name).with_name(f"{self.remote.name}.part")
        # only tries without a single byte count as failed: a slow line with many breaks still gets the file
        barren, began, first = 0, time.monotonic(), _size(partial)
        while (have := _size(partial)) != self.remote.bytes:
            try:
                for size in self._receive(url, partial, have):
                    passed = time.monotonic() - began
                    if passed > PATIENCE_SECONDS and (size - first) / passed < SLOWEST:
                        raise Unreachable(f"it sent {(size - first) / passed:,.0f} bytes a second for {passed:.0f} s")
                problem = "the connection closed early"
            # a redirect to no address at all is a ValueError
            except (RequestException, HTTPError, ValueError) as error:
                said = str(getattr(next(iter(error.args), ""), "reason", error))
                problem = said.partition("): ")[2] or said
                # no server there: the next mirror is tried at once
                if not partial.exists():
                    raise Unreachable(problem) from error
            barren = 0 if _size(partial) > have else barren + 1
            if barren == TRIES:
                raise Unreachable(
                    f"{problem} ({_size(partial):,} of {self.remote.bytes:,} bytes are kept for the next try)"
                )
            time.sleep(0.2 * 2**barren if barren else 0)
        partial.replace(output_file)

    def _receive(self, url: str, partial: Path, have: int) -> Iterator[int]:
        """Append what one connection sends to `partial`, and yield its size after each piece."""
        import requests

        # gzip on the way would make other bytes of an archive
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        timeouts = (CONNECT_SECONDS, READ_SECONDS)
        with requests.get(url, headers=headers, stream=True, timeout=timeouts) as answer:
            if 400 <= answer.status_code < 500 and answer.status_code != 429:
                raise Unreachable(f"HTTP {answer.status_code} {answer.reason}")
            answer.raise_for_status()
            # a server that ignores ranges starts again
            have = have if answer.status_code == 206 else 0
            with partial.open("ab" if have else "wb") as file:
                # read1: what is there, since a whole block of a server that sends a byte now and then takes for ever
                while block := answer.raw.read1(CHUNK):
                    file.write(block)
                    have += len(block)
                    self.place.progress(f"downloading {self.remote.name}", have, self.remote.bytes)
                    if have > self.remote.bytes:
                        raise Unreachable(f"it sends more than the expected {self.remote.bytes:,} bytes")
                    yield have


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def members(archive: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of each plain file of a tar archive whose whole name matches `pattern`.

    The archive is read as a stream and nothing is unpacked, so no member can escape a folder. Links and devices are
    skipped. Raises DataError if it is no archive or is cut short.
    """
    wanted = re.compile(pattern)
    try:
        with tarfile.open(archive, mode="r|*") as tar:
            for member in tar:
                if member.isfile() and wanted.fullmatch(member.name):
                    content = tar.extractfile(member)
                    if content is not None:
                        yield member.name, content.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{archive} does not read as a tar archive ({error}); fetch it again") from error
