"""Download: one file by HTTP, resumed after a break, checked by size and SHA-256; members of tar archives."""

from __future__ import annotations

import re
import tarfile
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..contract import DataError, DataPlace
from .prepared import file_digest, write_errors

CHUNK = 1 << 18
CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
TRIES = 4
RETRY_SECONDS = 3_600.0

PATIENCE_SECONDS = 120.0
SLOWEST = 20_000
"""Bytes a second, below which a server is given up once it has had PATIENCE_SECONDS."""

LARGEST_MEMBER = 2**30
"""Bytes of one member of an archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file at any of `urls`. `bytes` and `sha256` are those of the whole file."""

    name: str
    urls: tuple[str, ...]
    sha256: str
    bytes: int


class Unreachable(Exception):
    """No server answered, or none sent the whole file. The message is the reason."""


def fetch(remote: RemoteFile, place: DataPlace) -> Path:
    """The file under `place.cache`, downloaded if it is not there. A broken download is resumed.

    Raises Unreachable if no URL answers in a few seconds (remembered for an hour, see `forget_failures`), and DataError
    if the content is not that of the published file.
    """
    path = downloaded(remote, place)
    failure = _failure(remote, place)
    if path.is_file():
        return path
    if failure.is_file() and time.time() - failure.stat().st_mtime < RETRY_SECONDS:
        raise Unreachable(f"{failure.read_text(encoding='utf-8')} (remembered; `attnbench data get` tries again)")
    # a lock, so that processes that want the same file download it once
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.is_file():
                try:
                    _fetch(remote, path, place)
                except Unreachable as error:
                    failure.write_text(str(error), encoding="utf-8")
                    raise
                failure.unlink(missing_ok=True)
    return path


def forget_failures(place: DataPlace) -> None:
    """Let the next `fetch` of any file try the network again at once."""
    for failure in (place.cache / "downloads").glob("*.failed"):
        failure.unlink(missing_ok=True)


def downloaded(remote: RemoteFile, place: DataPlace) -> Path:
    """The path of the file once `fetch` has it. Only a whole, checked file ever has this name."""
    return place.cache / "downloads" / remote.name


def _failure(remote: RemoteFile, place: DataPlace) -> Path:
    return downloaded(remote, place).with_name(f"{remote.name}.failed")


def _fetch(remote: RemoteFile, path: Path, place: DataPlace) -> None:
    partial = path.with_name(f"{path.name}.part")
    problems = []
    for url in remote.urls:
        try:
            _fetch_from(url, remote, partial, place)
        except Unreachable as error:
            problems.append(f"{url}: {error}")
            continue
        digest = file_digest(partial)
        if digest == remote.sha256:
            partial.replace(path)
            return
        # the next URL would go on from these bytes, so a wrong file must go
        partial.unlink()
        raise DataError(f"{url} gave SHA-256 {digest}, expected {remote.sha256}; the file was deleted, try again later")
    raise Unreachable("; ".join(problems))


def _fetch_from(url: str, remote: RemoteFile, partial: Path, place: DataPlace) -> None:
    # only tries without a single byte count as failed: a slow line with many breaks still gets the file
    barren, began, first = 0, time.monotonic(), partial.stat().st_size if partial.exists() else 0
    while True:
        have = partial.stat().st_size if partial.exists() else 0
        if have > remote.bytes:
            partial.unlink()
            have = 0
        if have == remote.bytes:
            return
        try:
            with _open(url, have) as answer:
                _receive(answer, remote, partial, have, place, _Clock(began, have - first))
            problem = "the connection closed early"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500 and error.code != 429:
                raise Unreachable(f"HTTP {error.code} {error.reason}") from error
            problem = f"HTTP {error.code} {error.reason}"
        # a redirect to no address at all is a ValueError
        except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError, ValueError) as error:
            if have == 0 and not partial.exists():
                raise Unreachable(str(getattr(error, "reason", error)) or type(error).__name__) from error
            problem = str(error)
        now = partial.stat().st_size if partial.exists() else 0
        barren = 0 if now > have else barren + 1
        if barren == TRIES:
            raise Unreachable(f"{problem} ({now:,} of {remote.bytes:,} bytes are kept for the next try)")
        time.sleep(0.2 * 2**barren if barren else 0)


@dataclass(frozen=True, slots=True)
class _Clock:
    """When a download began, and how much it had brought before this connection."""

    began: float
    bytes: int

    def check(self, more: int) -> None:
        """Raises Unreachable where the server is too slow to wait for."""
        passed = time.monotonic() - self.began
        if passed > PATIENCE_SECONDS and (self.bytes + more) / passed < SLOWEST:
            speed = (self.bytes + more) / passed
            raise Unreachable(f"it sent {speed:,.0f} bytes a second for {passed:.0f} s; what came is kept")


def _receive(answer: Any, remote: RemoteFile, partial: Path, have: int, place: DataPlace, clock: _Clock) -> None:
    if answer.status != 206:
        # the server ignores ranges and starts again
        have = 0
    with partial.open("ab" if have else "wb") as file:
        came = 0
        # read1: what is there, since a whole block of a server that sends a byte now and then takes for ever
        while block := answer.read1(CHUNK):
            file.write(block)
            have += len(block)
            came += len(block)
            clock.check(came)
            place.progress(f"downloading {remote.name}", have, remote.bytes)
            if have > remote.bytes:
                raise Unreachable(f"it sends more than the expected {remote.bytes:,} bytes")


def _open(url: str, have: int) -> Any:
    """The response, or an error in a few seconds. Name resolution has no timeout of its own, hence the thread."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    outcome: list[Any] = []

    def connect() -> None:
        try:
            outcome.append(urllib.request.urlopen(request, timeout=READ_SECONDS))
        except Exception as error:  # handed to the caller's thread
            outcome.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    if not outcome:
        raise TimeoutError(f"no answer within {CONNECT_SECONDS:.0f} s")
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


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
                    if member.size > LARGEST_MEMBER:
                        raise DataError(f"{archive}: {member.name!r} has {member.size:,} bytes, and none has so many")
                    content = tar.extractfile(member)
                    if content is not None:
                        yield member.name, content.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{archive} does not read as a tar archive ({error}); fetch it again") from error
