"""The store under kills, crowds, damage and full disks."""

import errno
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.bench.core.cell import Cell
from attnbench.bench.core.errors import StoreError
from attnbench.bench.core.record import Machine, Measurement, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.store import record_files
from attnbench.bench.store.store import MOST_NOTICES, Site, Store

MACHINE = Machine(id="bench-1", system="Linux", processor="a processor", cores=2, threads=2, memory_bytes=2**33)


def record(seed=0, outcome=Outcome.OK, digest="p-t-v", machine=MACHINE, reason=""):
    cell = Cell(variant=Spec("rela"), task=Spec("lra-text"), preset=Spec("smoke"), seed=seed)
    measured = (Measurement.of("accuracy", 0.625, split="test"),)
    return Record(cell=cell, outcome=outcome, measurements=measured, machine=machine, digest=digest, reason=reason)


@pytest.fixture
def notices():
    return []


@pytest.fixture
def store(tmp_path, notices):
    return Store(tmp_path, notices.append)


def lines(tmp_path):
    return tmp_path / "records" / "bench-1.jsonl"


def test_what_is_appended_is_read_back_in_order_by_this_and_by_another_store(store, tmp_path):
    for seed in (2, 0, 1):
        store.append(record(seed))
    assert [r.cell.seed for r in store.records()] == [2, 0, 1]
    assert list(Store(tmp_path).records()) == [record(2), record(0), record(1)]


def test_each_record_is_one_json_line_with_the_documented_keys(store, tmp_path):
    store.append(record())
    text = lines(tmp_path).read_text()
    assert text.count("\n") == 1 and text.endswith("\n")
    expected = {"key", "cell", "outcome", "reason", "measurements", "machine", "data", "digest", "started", "seconds"}
    assert expected | {"schema", "artifacts"} <= json.loads(text).keys()


def test_an_empty_store_has_no_records_and_makes_no_folder_when_read(tmp_path):
    assert list(Store(tmp_path / "none").records()) == []
    assert not (tmp_path / "none").exists()


def test_a_torn_last_line_is_set_aside_and_costs_nothing_else(store, tmp_path, notices):
    whole = [record(seed).to_line() for seed in (0, 1)]
    set_aside = tmp_path / "records" / "bench-1.jsonl.torn"
    for kept in (1, 20, -2):
        notices.clear()
        store.prepare()
        lines(tmp_path).parent.mkdir(exist_ok=True)
        lines(tmp_path).write_bytes(whole[0] + whole[1][:kept])
        set_aside.unlink(missing_ok=True)
        Store(tmp_path, notices.append).append(record(2))
        assert [r.cell.seed for r in Store(tmp_path).records()] == [0, 2]
        assert set_aside.read_bytes() == whole[1][:kept].rstrip(b"\n") + b"\n"
        assert len(notices) == 1


def test_reading_alone_names_a_torn_line_and_changes_nothing(store, tmp_path, notices):
    store.append(record(0))
    with lines(tmp_path).open("ab") as file:
        file.write(b'{"key": "' + b"x" * 200_000)
    before = lines(tmp_path).read_bytes()
    assert [r.cell.seed for r in Store(tmp_path, notices.append).records()] == [0]
    assert lines(tmp_path).read_bytes() == before
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["bench-1.jsonl"]
    assert len(notices) == 1 and "the last line is incomplete and was not read" in notices[0]


def test_a_corrupt_middle_line_is_reported_once_with_its_number_and_skipped(store, tmp_path, notices):
    for seed in range(3):
        store.append(record(seed))
    damaged = lines(tmp_path).read_text().split("\n")
    damaged[1] = damaged[1][:40]
    lines(tmp_path).write_text("\n".join(damaged))
    assert [r.cell.seed for r in store.records()] == [0, 2]
    assert [r.cell.seed for r in store.records()] == [0, 2]
    assert len(notices) == 1 and "line 2 was skipped" in notices[0]


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 99},
        {"key": "0" * 16},
        {"outcome": "splendid"},
        {"cell": {"variant": "rela"}},
        {"cell": record(1).cell.to_json() | {"variant": "["}},
        {"seconds": "long"},
        {"measurements": [{"name": 1, "value": 2.0, "unit": "s", "samples": [], "where": []}]},
        {"surprise": 1},
    ],
)
def test_a_line_that_is_json_but_no_record_of_ours_is_skipped_with_the_reason(store, tmp_path, notices, change):
    store.append(record(0))
    with lines(tmp_path).open("a") as file:
        file.write(json.dumps(record(1).to_json() | change) + "\n[]\n\n" + "[" * 100_000 + "\n")
    assert [r.cell.seed for r in store.records()] == [0]
    assert [f"line {at}" in notice for at, notice in zip((2, 3, 5), notices, strict=True)] == [True] * 3


def test_values_that_json_lacks_survive(store, tmp_path):
    strange = replace(record(), measurements=(Measurement.of("loss", float("inf"), (1.0, float("inf"))),))
    store.append(strange)
    assert "Infinity" not in lines(tmp_path).read_text()
    assert list(Store(tmp_path).records()) == [strange]


def test_text_with_unicode_line_ends_stays_one_line(store, tmp_path):
    store.append(record(reason="first\u2028second\x85third\nfourth\x0bfifth"))
    (back,) = Store(tmp_path).records()
    assert back.reason == "first\u2028second\x85third\nfourth\x0bfifth"


CROWD = textwrap.dedent("""
    import json, sys
    from pathlib import Path
    from dataclasses import replace
    from attnbench.bench.core.record import Record
    from attnbench.bench.store.store import Store
    template = Record.from_line(sys.argv[2].encode())
    store = Store(Path(sys.argv[1]))
    for seed in range(int(sys.argv[3]), int(sys.argv[3]) + 20):
        store.append(replace(template, cell=replace(template.cell, seed=seed)))
""")


def test_many_processes_append_at_once_and_no_line_is_lost_or_mixed(tmp_path, notices):
    template = json.dumps(replace(record(), reason="x" * 5000).to_json())
    crowd = [
        subprocess.Popen([sys.executable, "-c", CROWD, str(tmp_path), template, str(100 * number)])
        for number in range(6)
    ]
    reader = Store(tmp_path, notices.append)
    while any(process.poll() is None for process in crowd):
        list(reader.records())
    assert [process.returncode for process in crowd] == [0] * 6
    seeds = [r.cell.seed for r in Store(tmp_path, notices.append).records()]
    assert sorted(seeds) == [100 * number + seed for number in range(6) for seed in range(20)]
    assert notices == []


KILLED = textwrap.dedent("""
    import json, os, signal, sys
    from pathlib import Path
    from attnbench.bench.core.record import Record
    from attnbench.bench.store.store import Store
    from attnbench.bench import store
    real = os.write
    def half(descriptor, data):
        real(descriptor, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    target = Store(Path(sys.argv[1]))
    target.prepare()
    os.write = half
    target.append(Record.from_line(sys.argv[2].encode()))
""")


def test_a_kill_in_the_middle_of_a_write_loses_that_record_alone(store, tmp_path, notices):
    store.append(record(0))
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), json.dumps(record(1).to_json())])
    assert killed.returncode == -9
    assert not lines(tmp_path).read_bytes().endswith(b"\n")
    store.append(record(2))
    assert [r.cell.seed for r in store.records()] == [0, 2]
    assert len(notices) == 1


FULL = textwrap.dedent("""
    import json, resource, signal, sys
    from pathlib import Path
    from attnbench.bench.core.errors import StoreError
    from attnbench.bench.core.record import Record
    from attnbench.bench.store.store import Store
    record = Record.from_line(sys.argv[2].encode())
    store = Store(Path(sys.argv[1]))
    store.append(record)
    size = (Path(sys.argv[1]) / "records" / "bench-1.jsonl").stat().st_size
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + size // 2, resource.RLIM_INFINITY))
    try:
        store.append(record)
    except StoreError as error:
        print(error)
""")


def test_a_write_that_the_system_cuts_short_leaves_the_file_whole_and_keeps_the_record(tmp_path, notices):
    line = json.dumps(record().to_json())
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", FULL, str(tmp_path), line]
    message = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert "--results FOLDER" in message and "File too large" in message
    assert list(Store(tmp_path, notices.append).records()) == [record()]
    assert notices == []
    (rescued,) = tmp_path.glob("attnbench-rescued-*/bench-1.jsonl")
    assert str(rescued) in message
    assert Record.from_line(rescued.read_bytes()) == record()


def test_a_folder_that_cannot_be_made_is_named_before_anything_is_measured(tmp_path):
    (tmp_path / "file").write_text("in the way")
    blocked = Store(tmp_path / "file" / "results")
    with pytest.raises(StoreError, match=r"cannot write to .*results: Not a directory; .*--results FOLDER"):
        blocked.prepare()
    with pytest.raises(StoreError, match="cannot write to"):
        blocked.append(record())
    with pytest.raises(StoreError, match="cannot write to"):
        blocked.put_artifact(b"", ".json")


def test_a_machine_id_cannot_name_a_file_elsewhere(store, tmp_path):
    with pytest.raises(StoreError, match="machine id"):
        store.append(record(machine=replace(MACHINE, id="../elsewhere")))
    assert list(tmp_path.iterdir()) == []


def test_finished_needs_the_same_cell_code_and_machine(store):
    store.append(record(0))
    cell = record(0).cell
    site = Site(machine_id="bench-1", threads=2)
    assert store.finished(cell, "p-t-v", site) == record(0)
    assert store.finished(replace(cell, seed=1), "p-t-v", site) is None
    assert store.finished(cell, "p-t-w", site) is None
    assert store.finished(cell, "p-t-v", Site(machine_id="bench-2", threads=2)) is None


def test_every_outcome_is_final_unless_it_is_to_be_retried(store):
    site = Site(machine_id="bench-1", threads=2)
    for seed, outcome in enumerate(Outcome):
        store.append(record(seed, outcome))
        cell = record(seed).cell
        assert store.finished(cell, "p-t-v", site).outcome is outcome
        assert (store.finished(cell, "p-t-v", site, retry=True) is not None) == (outcome is Outcome.OK)


def test_a_second_attempt_replaces_the_first_in_the_answer_but_not_in_the_file(store):
    store.append(record(0, Outcome.CRASHED))
    store.append(record(0, Outcome.OK))
    assert store.finished(record(0).cell, "p-t-v", Site(machine_id="bench-1", threads=2)).outcome is Outcome.OK
    assert [r.outcome for r in store.records()] == ["crashed", "ok"]


def test_artifacts_are_named_by_their_content_and_written_once(store, tmp_path):
    name = store.put_artifact(b"[1, 2]", ".json")
    assert store.put_artifact(b"[1, 2]", ".json") == name
    assert store.put_artifact(b"[1, 3]", ".json") != name
    assert store.artifact(name) == b"[1, 2]"
    assert len(list((tmp_path / "artifacts").iterdir())) == 2


def test_an_artifact_name_cannot_leave_the_folder(store):
    for name in ("../records/bench-1.jsonl", "/etc/passwd", "", ".", "a" * 24, "A" * 24 + ".json"):
        with pytest.raises(StoreError, match="is not the name of an artifact"):
            store.artifact(name)


def test_a_missing_artifact_and_a_bad_suffix_are_named(store):
    with pytest.raises(StoreError, match="copy that folder"):
        store.artifact("a" * 24 + ".json")
    with pytest.raises(StoreError, match="suffix"):
        store.put_artifact(b"", "/../x")


def test_a_last_line_that_lost_only_its_end_is_read_and_kept(store, tmp_path, notices):
    store.append(record(0))
    lines(tmp_path).write_bytes(lines(tmp_path).read_bytes()[:-1])
    assert list(Store(tmp_path, notices.append).records()) == [record(0)]
    store.append(record(1))
    assert [r.cell.seed for r in store.records()] == [0, 1]
    assert notices == []


SECRET = b"of the reader\nlast line, torn"


@pytest.fixture
def secret(tmp_path):
    """A file of the reader, outside the folder that somebody sent."""
    path = tmp_path.with_name(tmp_path.name + "-home")
    path.write_bytes(SECRET)
    return path


def torn(store, tmp_path):
    store.append(record(0))
    with lines(tmp_path).open("ab") as file:
        file.write(b"attack")


def test_a_link_beside_a_torn_line_leads_no_reader_to_another_file(store, tmp_path, secret, notices):
    torn(store, tmp_path)
    (tmp_path / "records" / "bench-1.jsonl.torn").symlink_to(secret)
    (tmp_path / "records" / "zz.jsonl").symlink_to(secret)
    assert list(Store(tmp_path, notices.append).records()) == [record(0)]
    assert secret.read_bytes() == SECRET
    assert len(notices) == 2 and "zz.jsonl: cannot be read: expected a file, got a link" in notices[1]


def test_appending_follows_no_link_either(store, tmp_path, secret):
    torn(store, tmp_path)
    (tmp_path / "records" / "bench-1.jsonl.torn").symlink_to(secret)
    with pytest.raises(StoreError, match="expected a file, got a link"):
        store.append(record(1))
    lines(tmp_path).unlink()
    lines(tmp_path).symlink_to(secret)
    with pytest.raises(StoreError, match="expected a file, got a link"):
        store.append(record(1))
    (tmp_path / "artifacts").symlink_to(secret.parent)
    with pytest.raises(StoreError, match="expected a folder, got a link"):
        store.put_artifact(b"", ".json")
    assert secret.read_bytes() == SECRET


def test_no_folder_inside_may_be_a_link_but_the_whole_may(store, tmp_path, secret):
    for name in ("records", "artifacts", "checkpoints"):
        (tmp_path / f"{name}-in").mkdir()
        (tmp_path / f"{name}-in" / name).symlink_to(tmp_path)
        with pytest.raises(StoreError, match="is a link, which is not followed"):
            Store(tmp_path / f"{name}-in").prepare()
    (tmp_path / "out").symlink_to("real")
    (tmp_path / "real").mkdir()
    linked = Store(tmp_path / "out")
    linked.prepare()
    linked.append(record(0))
    assert list(Store(tmp_path / "real").records()) == [record(0)]


def test_bad_lines_are_named_up_to_a_number_and_then_counted(store, tmp_path, notices):
    store.append(record(0))
    with lines(tmp_path).open("ab") as file:
        file.write(b"{}\n" * 1000 + record(1).to_line())
    assert [r.cell.seed for r in store.records()] == [0, 1]
    assert len(notices) == MOST_NOTICES + 1 and notices[-1].endswith("997 more lines were skipped")


def test_a_line_and_a_file_without_bound_are_read_within_bounds(store, tmp_path, notices, monkeypatch):
    monkeypatch.setattr(record_files, "MOST_LINE_BYTES", 10_000)
    monkeypatch.setattr(record_files, "MOST_LINES", 4)
    store.append(record(0))
    with lines(tmp_path).open("ab") as file:
        file.write(b"x" * 100_000 + b"\n" + record(1).to_line() + b"\n" * 10 + record(2).to_line())
    assert [r.cell.seed for r in store.records()] == [0, 1]
    assert [("line 2" in n, "longer than 4 lines" in n) for n in notices] == [(True, False), (False, True)]


def test_a_run_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    Store(tmp_path / "new" / "results").prepare()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "results" / "records").mkdir(parents=True)
    Store(tmp_path / "results").prepare()
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["records"]


def test_a_record_that_comes_on_two_ways_is_stored_once(store):
    one, two = record(0), record(1)
    # the same cell, measured another time, is another Record
    again = replace(one, seconds=one.seconds + 1)
    Store(store.root).append(two)
    given = [one, one, two, again, two]
    assert [store.append(each, unless=lambda: False) for each in given] == [True, False, False, True, False]
    assert not store.append(record(2), unless=lambda: True)
    assert list(store.records()) == [two, one, again]
    # the shape of its line counts, not that of its values
    assert store.append(one, one.to_line().replace(b":", b": ", 1), unless=lambda: False)


def test_processes_that_collect_the_same_records_at_once_store_each_once(store, tmp_path):
    """As two commands do that start on a folder in which a cluster has left events."""
    program = """
import sys
from pathlib import Path
from attnbench.bench.core.record import Record
from attnbench.bench.store.store import Store
store = Store(Path(sys.argv[1]))
for line in Path(sys.argv[2]).read_bytes().splitlines(keepends=True):
    store.append(Record.from_line(line), line, unless=lambda: False)
"""
    made = [record(seed) for seed in range(60)]
    (tmp_path / "events").write_bytes(b"".join(each.to_line() for each in made))
    words = [sys.executable, "-c", program, str(tmp_path), str(tmp_path / "events")]
    processes = [subprocess.Popen(words) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert list(store.records()) == made


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.EROFS, "Read-only file system; make it writable, or name another folder with --results FOLDER"),
     (errno.ENOSPC, "No space left on device; free space, or name another folder with --results FOLDER")],
)  # fmt: skip
def test_the_cure_of_a_write_that_fails_is_that_of_its_reason(number, said, tmp_path, monkeypatch):
    def refused(*ignored):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(record_files, "append_line", refused)
    store = Store(tmp_path)
    with pytest.raises(StoreError, match=said):
        store.append(record())


def test_a_retry_takes_no_time_of_a_busy_machine_for_done(bench, tmp_path):
    b = bench(task="sweep[length=64]")
    times = [1.0, 1.01, 0.99]
    for load in (1.3, 0.0):
        record = b.time("rela", times, times, load=load)
        store = Store(tmp_path, print)
        store.append(record)
        site = Site(machine_id=record.machine.id, threads=2)
        found = [store.finished(record.cell, record.digest, site, retry=again) for again in (False, True)]
        assert [each is not None for each in found] == [True, not load]
