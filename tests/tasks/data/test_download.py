import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from attnbench.bench.core.errors import DataError
from attnbench.tasks.contract import DataPlace
from attnbench.tasks.data import download
from attnbench.tasks.data.download import RemoteFile, Unreachable, fetch, forget_failures, members
from attnbench.tasks.data.sources import ArchiveSource, DownloadSource

CONTENT = np.random.default_rng(0).bytes(1_500_000)


class Server(ThreadingHTTPServer):
    """Serves CONTENT, as badly as it is told to. `asked`: the Range header of every request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []
        self.ranges = True
        self.cuts: list[int] = []
        self.status = 200
        self.content = CONTENT

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file.tar.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(self.server.content) - start))
        self.end_headers()
        size = self.server.cuts.pop(0) if self.server.cuts else len(self.server.content)
        self.wfile.write(self.server.content[start : start + size])

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


@pytest.fixture
def remote(server: Server) -> RemoteFile:
    return RemoteFile(
        name="file.tar.gz", urls=(server.url,), sha256=hashlib.sha256(CONTENT).hexdigest(), bytes=len(CONTENT)
    )


def test_a_file_is_fetched_once_with_progress(place: DataPlace, server: Server, remote: RemoteFile) -> None:
    told: list[tuple[str, int, int]] = []
    watching = replace(place, progress=lambda what, done, total: told.append((what, done, total)))
    assert fetch(remote, watching).read_bytes() == CONTENT
    assert told[-1] == ("downloading file.tar.gz", len(CONTENT), len(CONTENT)) and len(told) > 3
    fetch(remote, watching)
    assert server.asked == [None]


def test_a_connection_that_breaks_is_resumed_where_it_broke(
    place: DataPlace, server: Server, remote: RemoteFile
) -> None:
    server.cuts = [400_000, 300_000]
    assert fetch(remote, place).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=400000-", "bytes=700000-"]


def test_a_server_without_ranges_starts_again_and_is_not_appended(
    place: DataPlace, server: Server, remote: RemoteFile
) -> None:
    server.ranges, server.cuts = False, [400_000]
    assert fetch(remote, place).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=400000-"]


def test_another_file_of_the_same_size_is_refused_and_deleted(
    place: DataPlace, server: Server, remote: RemoteFile
) -> None:
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(DataError, match=f"expected SHA-256 {remote.sha256}"):
        fetch(remote, place)
    assert list((place.cache / "downloads").glob("file.tar.gz*")) in ([], [place.cache / "downloads/file.tar.gz.lock"])
    server.content = CONTENT
    assert fetch(remote, place).read_bytes() == CONTENT


def test_more_bytes_than_the_file_has_are_not_taken(place: DataPlace, server: Server, remote: RemoteFile) -> None:
    server.content = CONTENT * 2
    with pytest.raises(Unreachable, match="more than the expected 1,500,000 bytes"):
        fetch(remote, place)


def test_a_server_that_always_breaks_is_given_up_and_what_came_is_kept(
    place: DataPlace, server: Server, remote: RemoteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    server.cuts = [200_000, *[0] * 20]
    with pytest.raises(Unreachable, match="200,000 of 1,500,000 bytes are kept"):
        fetch(remote, place)
    assert len(server.asked) == 1 + download.TRIES


def test_the_next_url_serves_where_the_first_has_nothing(place: DataPlace, server: Server, remote: RemoteFile) -> None:
    closed = f"http://127.0.0.1:{_closed_port()}/file.tar.gz"
    assert fetch(replace(remote, urls=(closed, server.url)), place).read_bytes() == CONTENT


def test_a_refusal_names_its_status(place: DataPlace, server: Server, remote: RemoteFile) -> None:
    server.status = 403
    with pytest.raises(Unreachable, match="HTTP 403"):
        fetch(remote, place)
    assert len(server.asked) == 1, "what is forbidden stays forbidden"


def test_no_network_fails_at_once_and_is_remembered(
    place: DataPlace, server: Server, remote: RemoteFile, tmp_path: Path
) -> None:
    closed = replace(remote, urls=(f"http://127.0.0.1:{_closed_port()}/x",))
    with pytest.raises(
        Unreachable, match=r"^http://127\.0\.0\.1:\d+/x: Failed to[a-z ]+: \[Errno \d+\] Connection refused$"
    ):
        fetch(closed, place)
    with pytest.raises(Unreachable, match="remembered"):
        fetch(remote, place)
    assert server.asked == []
    # and it is the state of the source, which an error without data shows
    archive = ArchiveSource(task="lra-text", remote=remote, read=lambda path, source, files: pytest.fail("read"))
    source = DownloadSource(archive=archive)
    assert source.prepared(place) is None and "refused" in source.availability(place).detail
    # a note that a clock since set back has written says nothing of the last hour
    (note,) = tmp_path.rglob("*.failed")
    was = note.stat().st_mtime
    os.utime(note, (was + 1e8, was + 1e8))
    assert source.availability(place).ready is False and "refused" not in source.availability(place).detail
    os.utime(note, (was, was))
    forget_failures(place)
    assert fetch(remote, place).read_bytes() == CONTENT
    assert source.availability(place).ready


def test_a_server_that_never_answers_does_not_hold_the_run(
    place: DataPlace, server: Server, remote: RemoteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(download, "READ_SECONDS", 0.1)
    monkeypatch.setattr(Handler, "do_GET", lambda handler: let_go.wait(20))
    try:
        with pytest.raises(Unreachable, match="timed out"):
            fetch(remote, place)
    finally:
        let_go.set()


def _closed_port() -> int:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as once:
        return once.server_port


def write_tar(path: Path, add: Callable[[tarfile.TarFile], None]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        add(tar)
    return path


def add_file(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def add_link(tar: tarfile.TarFile, name: str, target: str, kind: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    tar.addfile(info)


def test_a_malicious_archive_writes_nothing_and_its_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")

    def fill(tar: tarfile.TarFile) -> None:
        add_file(tar, "good/1.txt", b"one")
        add_file(tar, "../../evil/2.txt", b"evil")
        add_file(tar, f"{tmp_path}/good/3.txt", b"evil")
        add_link(tar, "good/4.txt", str(secret), tarfile.SYMTYPE)
        add_link(tar, "good/5.txt", "../secret.txt", tarfile.LNKTYPE)
        add_link(tar, "good/6.txt", "", tarfile.FIFOTYPE)
        add_file(tar, "good/../../7.txt", b"evil")

    archive = write_tar(tmp_path / "a.tar.gz", fill)
    before = sorted(tmp_path.rglob("*"))
    assert list(members(archive, r"good/\d+\.txt")) == [("good/1.txt", b"one")]
    assert sorted(tmp_path.rglob("*")) == before


def test_an_archive_cut_short_is_an_error_and_not_a_smaller_data_set(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "a.tar.gz", lambda tar: add_file(tar, "good/1.txt", CONTENT))
    archive.write_bytes(archive.read_bytes()[:-20_000])
    with pytest.raises(DataError, match="does not read as a tar archive"):
        list(members(archive, r"good/.*"))


def test_a_server_that_sends_a_byte_now_and_then_is_given_up(
    place: DataPlace, server: Server, remote: RemoteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PATIENCE_SECONDS", 0.3)
    stop = threading.Event()

    def trickle(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(CONTENT)))
        handler.end_headers()
        try:
            while not stop.wait(0.02):
                handler.wfile.write(b"x")
                handler.wfile.flush()
        except OSError:
            return

    monkeypatch.setattr(Handler, "do_GET", trickle)
    try:
        with pytest.raises(Unreachable, match="bytes a second"):
            fetch(remote, place)
    finally:
        stop.set()
