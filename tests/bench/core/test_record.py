"""Records survive their JSON, and refuse what is not one."""

import json
import math
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.bench.core import record
from attnbench.bench.core.cell import Cell
from attnbench.bench.core.decode import parse_json
from attnbench.bench.core.errors import StoreError
from attnbench.bench.core.files import PACKAGE
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.record import MOST_REASON, Machine, Measurement, Outcome, Provenance, Record, Started
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec

RECORD = Record(
    cell=Cell(variant=Spec.of("entmax", alpha=1.5), task=Spec("lra-text"), preset=Spec("quick"), seed=2),
    outcome=Outcome.OK,
    measurements=(
        Measurement.of("accuracy", 0.625, split="test"),
        Measurement.of("accuracy", 0.75, split="validation"),
        Measurement.of("step_seconds", 0.01, (0.01, 0.02)),
    ),
    machine=Machine(
        id="m", system="Linux", processor="p", cores=2, threads=2, memory_bytes=1,
        accelerators=("a",), versions={"torch": "2"},
    ),
    data=Provenance(source="s", fidelity="official", files={"f": "0" * 64}, counts={"test": 5}, notes=("n",)),
    digest="a-b-c",
    block="d",
    setting={"length": 512},
    artifacts={"curve": "0" * 24 + ".json"},
    started="2025-01-01T00:00:00+00:00",
    seconds=1.5,
)  # fmt: skip


def through_text(record):
    return Record.from_line(json.dumps(record.to_json(), allow_nan=False).encode())


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_record_survives_json_whole_and_without_data(outcome):
    assert through_text(RECORD) == RECORD
    failed = replace(RECORD, outcome=outcome, reason="because", measurements=(), data=None)
    assert through_text(failed) == failed


NUMBERS = st.floats(-1e100, 1e100) | st.sampled_from([math.inf, -math.inf, math.nan])


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_every_float_survives_including_those_that_json_lacks(values):
    measured = Measurement.of("loss", values[0], tuple(values))
    (back,) = through_text(replace(RECORD, measurements=(measured,))).measurements
    for ours, theirs in zip((back.value, *back.samples), (values[0], *values), strict=True):
        assert ours == theirs or (math.isnan(ours) and math.isnan(theirs))


def test_a_number_beyond_any_measurement_is_written_as_infinite_and_refused_when_read():
    measured = Measurement.of("loss", -1e200, (1e101,))
    (back,) = Record.from_line(replace(RECORD, measurements=(measured,)).to_line()).measurements
    assert (back.value, back.samples) == (-math.inf, (math.inf,))
    line = replace(RECORD, measurements=(Measurement.of("loss", 77.0),)).to_line().replace(b"77.0", b"1e101")
    with pytest.raises(StoreError, match=r"<= 1e\+100 - at `\$.measurements\[0\].value"):
        Record.from_line(line)


def test_a_line_with_the_bare_words_of_python_is_read():
    line = json.dumps(measured(value=math.inf, samples=[-math.inf]))
    assert '"value": Infinity' in line
    (found,) = Record.from_line(line.encode()).measurements
    assert (found.value, found.samples) == (math.inf, (-math.inf,))


@pytest.mark.parametrize("line", [b"{", b"nothing", b"[" * 100_000, b'"\xff"'], ids=["open", "word", "deep", "bytes"])
def test_what_is_no_json_is_refused(line):
    with pytest.raises(StoreError, match="it is not JSON"):
        Record.from_line(line)


def test_bare_words_outside_measurements_are_refused():
    for change in ({"seconds": math.inf}, {"setting": {"learning_rate": math.nan}}):
        with pytest.raises(StoreError, match="Expected `float`, got `str`"):
            Record.from_line(json.dumps(RECORD.to_json() | change).encode())


def test_text_that_is_no_unicode_is_refused_and_never_written():
    line = json.dumps(RECORD.to_json() | {"reason": "bad \udcff name", "seconds": math.nan})
    for text in (line, line.replace("NaN", "1.0")):
        with pytest.raises(StoreError, match="it is not JSON"):
            Record.from_line(text.encode())
    written = replace(RECORD, reason="bad \udcff name").to_line()
    assert Record.from_line(written).reason == r"bad \udcff name"


def test_a_note_of_a_measurement_that_is_not_a_number_is_not_written():
    measured = Measurement.of("canary_seconds", 1.0, drift=math.nan, length=512)
    (back,) = Record.from_line(replace(RECORD, measurements=(measured,)).to_line()).measurements
    assert back.where == {"length": 512}


def test_a_record_that_could_not_be_read_again_is_neither_made_nor_written_nor_read():
    with pytest.raises(StoreError, match="cannot be written"):
        replace(RECORD, seconds=math.nan).to_line()
    with pytest.raises(ValueError, match=r"setting: Expected `int`, got `str` - at `\$.steps`"):
        replace(RECORD, setting={"steps": "many"})
    with pytest.raises(ValueError, match=r"where: Expected `int` <= 9999 - at `\$.layer`"):
        Measurement.of("sparsity", 0.5, layer=10**6)
    with pytest.raises(StoreError, match="length <= 100000"):
        Record.from_line(replace(RECORD, reason="x" * 200_000).to_line())


def test_a_reason_of_any_length_is_cut_where_the_record_is_made():
    made = Record.of(RECORD.cell, Outcome.INCORRECT, "x" * 50_000_000, Started(), machine=RECORD.machine)
    assert made.reason == "x" * MOST_REASON + "…" and Record.from_line(made.to_line()) == made


def test_numbers_of_numpy_are_written_as_numbers():
    measured = Measurement.of("loss", np.float64(0.1), (np.float64(0.3),), examples=3)
    written = json.dumps(replace(RECORD, measurements=(measured,)).to_json()["measurements"])
    assert written == '[{"name": "loss", "value": 0.1, "unit": "nats", "samples": [0.3], "where": {"examples": 3}}]'
    with pytest.raises(NotImplementedError):
        replace(RECORD, setting={"thing": object()}).to_json()


def test_the_keys_of_a_line_are_those_documented():
    documented = "key cell outcome reason measurements machine data digest started seconds schema artifacts"
    later = "block setting absent implementation metric executor node device"
    assert set(documented.split()) | set(later.split()) == RECORD.to_json().keys()
    assert RECORD.to_json()["measurements"][0].keys() == {"name", "value", "unit", "samples", "where"}


@pytest.mark.parametrize("task", [entry.name for entry in TASKS.entries()])
def test_every_preset_of_our_tasks_can_be_written_and_read(task):
    for preset, recipe in TASKS.load(task).presets().items():
        written = replace(RECORD, cell=replace(RECORD.cell, task=Spec(task)), setting=asdict(recipe))
        assert Record.from_line(written.to_line()).setting.keys() == asdict(recipe).keys(), preset


def test_first_finds_by_name_and_by_what_narrows_it():
    assert RECORD.first("accuracy").value == 0.625
    assert RECORD.first("accuracy", split="validation").value == 0.75
    assert RECORD.first("accuracy", split="train") is None
    assert RECORD.first("loss") is None


def test_a_measurement_takes_the_unit_of_its_quantity():
    assert Measurement.of("step_seconds", 1.0).unit == "seconds"
    with pytest.raises(KeyError):
        Measurement.of("speediness", 1.0)


def test_every_quantity_says_its_unit_and_what_it_is():
    for name, quantity in METRICS.items():
        assert quantity.better in ("higher", "lower", "") and quantity.description, name
        for unit in ("seconds", "bytes"):
            assert not name.endswith(f"_{unit}") or quantity.unit == unit, name


def changed(**keys):
    return RECORD.to_json() | keys


def cell(**keys):
    return changed(cell=RECORD.cell.to_json() | keys)


def measured(**keys):
    return changed(measurements=[{"name": "loss", "value": 1.0, "unit": "nats"} | keys])


def where(**keys):
    return measured(where=keys)


def without(name):
    return {key: value for key, value in RECORD.to_json().items() if key != name}


ENDLESS = "a[" + ",".join(f"{name}=1,2,3,4,5,6,7,8" for name in "bcdefghijklmnop") + "]"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "expected a JSON object, got list"),
        (changed(schema=2), "expected schema 1, got 2"),
        (without("schema"), "got None"),
        (changed(schema="9" * 1000), "got '9{59}…;"),
        (without("cell"), "missing required field `cell`"),
        (changed(key="f" * 16), "does not match its cell"),
        (cell(seed=3), "does not match its cell"),
        # types and keys
        (changed(seconds="1"), r"Expected `float`, got `str` - at `\$.seconds`"),
        (changed(artifacts={"curve": 1}), r"Expected `str`, got `int` - at `\$.artifacts"),
        (changed(outcome="x" * 1000), "Invalid enum value 'x{100}.*…$"),
        (changed(unheard=1), r"it has no key `\$.unheard`"),
        (changed(**{"x" * 1000: 1}), "no key `.*…`"),
        (measured(unheard=1), r"unknown field `unheard` - at `\$.measurements\[0\]`"),
        (measured(value=True), r"got `bool` - at `\$.measurements\[0\].value"),
        (changed(setting={"steps": None}), r"setting: Expected `int`, got `null` - at `\$.steps`"),
        (changed(setting={"other": {"deep": 1}}), r"got `object` - at `\$.setting"),
        (changed(data={"source": "", "fidelity": "", "counts": {"test": 1.5}}), "Expected `int`"),
        (changed(metric={"name": "accuracy", "unit": "", "better": "", "points": 1}), "without points"),
        (where(layer=None), r"where: Expected `int`, got `null` - at `\$.layer` - at `\$.measurements\[0\]`"),
        (where(examples="many"), "Expected `int"),
        (where(set=["a"]), "Expected `str"),
        (where(other=[[1]]), "got `array`"),
        # bounds
        (changed(seconds=10**400), "Number out of range"),
        (cell(seed=-1), r"`int` >= 0 - at `\$.cell.seed`"),
        (cell(seed=2**63), r"`int` <= 9223372036854775807"),
        (cell(task="x" * 2000), "of length <= 1000"),
        (cell(task="a,b"), "expected one name"),
        (cell(task=ENDLESS), "expected one name, got several"),
        (changed(machine=RECORD.to_json()["machine"] | {"id": "../x"}), "matching regex"),
        (where(layer=10**6), "`int` <= 9999"),
    ],
)
def test_what_is_no_record_is_refused_with_the_reason(line, message):
    with pytest.raises(StoreError, match=message):
        Record.from_line(json.dumps(line).encode())


ODD_LINES = [
    RECORD.to_json(),
    without("schema"),
    without("node"),
    without("setting"),
    without("machine"),
    changed(schema=True),
    changed(schema=1.0),
    changed(machine=None),
    changed(data=None, metric=None),
    changed(setting={"steps": None}),
    changed(setting={"steps": 5, "other": ["a", 1, None]}),
    changed(setting={str(at): at for at in range(1000)}),
    changed(setting={str(at): at for at in range(1001)}),
    changed(machine=RECORD.to_json()["machine"] | {"colour": "red"}),
    changed(data=RECORD.to_json()["data"] | {"colour": "red"}),
    cell(colour="red"),
    cell(seed=3),
    changed(key=1),
    changed(measurements=None),
    measured(value="nan", samples=["inf", 1]),
    measured(value="many"),
    measured(value=2**70),
    measured(value=1e101),
    measured(samples=[1, 2.5, -3]),
    measured(samples=[None]),
    measured(unheard=1),
    # texts that would be read as others, were they joined without a look at where they end
    measured(name='loss","nats'),
    measured(name="], ["),
    measured(unit="\\"),
    measured(name=1),
    measured(unit=None),
    measured(name="x" * 501),
    changed(measurements=[{"name": "loss", "value": 1.0, "unit": "nats", "where": {"a": each}} for each in "bcb"]),
    changed(measurements=[{"name": "loss", "value": 1.0, "unit": "nats", "where": {"n": n}} for n in range(9000)]),
    where(layer=10**6),
    where(layer=1.0),
    where(split="test", pairs=4, note="\u00e4"),
    where(other=[[1]]),
]


@pytest.mark.parametrize("line", [json.dumps(line).encode() for line in ODD_LINES])
def test_the_quick_way_reads_nothing_that_the_other_refuses_and_gives_the_same(line):
    quick = record._from_usual_line(line)
    if quick is not None:
        assert repr(quick) == repr(Record._from_any_line(line))
    else:
        try:
            found = repr(Record._from_any_line(line))
        except StoreError as error:
            with pytest.raises(StoreError, match=re.escape(str(error))):
                Record.from_line(line)
        else:
            assert repr(Record.from_line(line)) == found


def test_the_committed_records_are_read_the_quick_way_and_give_the_same():
    files = sorted(PACKAGE.glob("results/**/records/*.jsonl"))
    if not files:
        pytest.skip("a copy of the project without its results")
    lines = [line for path in files for line in path.read_bytes().split(b"\n")[:-1:20]]
    quick = [record._from_usual_line(line) for line in lines]
    assert sum(found is not None for found in quick) > 0.9 * len(lines) > 50
    for found, line in zip(quick, lines, strict=True):
        assert found is None or found == Record._from_any_line(line)


def test_records_share_what_they_have_in_common_and_it_is_decoded_once(monkeypatch):
    lines = [replace(RECORD, cell=replace(RECORD.cell, seed=seed)).to_line() for seed in range(50)]
    decoded = []
    monkeypatch.setattr(record, "parse_json", lambda text: decoded.append(text) or parse_json(text))
    record._part.cache_clear()
    record._labels.cache_clear()
    first, *others = map(Record.from_line, lines)
    # machine, data, metric and setting, two names, two units and three `where`, beside one cell a Record
    assert len(decoded) - len(lines) == 4 + 2 + 2 + 3
    for other in others:
        assert other.setting is first.setting and other.machine is first.machine and other.data is first.data
        assert other.measurements.labels is first.measurements.labels
        assert other == Record._from_any_line(other.to_line())


def test_measurements_that_were_read_are_a_sequence_like_those_that_were_made():
    read = Record.from_line(RECORD.to_line()).measurements
    assert read == RECORD.measurements and RECORD.measurements == read
    assert read != RECORD.measurements[:2] and read != 3
    assert (read[-1], read[1:], len(read)) == (RECORD.measurements[-1], RECORD.measurements[1:], 3)
    assert repr(read) == repr(RECORD.measurements)
    with pytest.raises(IndexError):
        read[3]
