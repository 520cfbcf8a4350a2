"""A file of one's own: what it must be, said before anything of it is read."""

import os
import socket

import pytest

from attnbench.bench.core.errors import DataError
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec
from attnbench.tasks.data.own_file import MOST_BYTES


def huge(path):
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)


def listening(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)


ODD = {
    "missing": (lambda path: None, "my.txt: No such file or directory"),
    "empty": (lambda path: path.touch(), "my.txt: it is empty"),
    "folder": (lambda path: path.mkdir(), "my.txt: expected a file, got a folder"),
    "pipe": (os.mkfifo, "my.txt: expected a file, got a named pipe"),
    "socket": (listening, "my.txt: expected a file, got a socket"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "my.txt: expected a file, got a device"),
    "link to itself": (lambda path: path.symlink_to("my.txt"), "my.txt: Too many levels of symbolic links"),
    "huge": (huge, "my.txt: it has 1,073,741,825 bytes, and at most 1,073,741,824 are read; take a part of it"),
}


@pytest.mark.parametrize("task", ["text", "parallel"])
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_to_read_is_told_at_once_by_the_list_and_by_the_run(kind, task, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    make, said = ODD[kind]
    make(tmp_path / "my.txt")
    built = TASKS.build(Spec.of(task, file="my.txt"))
    (way,) = built.availability(place)
    assert (way.ready, way.detail, way.source) == (False, said, "a file of your own")
    with pytest.raises(DataError) as caught:
        built.load(place, built.recipe(Spec("smoke")), 0, "validation")
    assert str(caught.value) == f"{said}; {way.advice}" and str(tmp_path) in way.advice
    # nothing was hashed or prepared
    assert not place.cache.exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told_too(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text("text")
    (tmp_path / "my.txt").chmod(0)
    (way,) = TASKS.build(Spec.of("text", file="my.txt")).availability(place)
    assert way.detail == "my.txt: Permission denied"
