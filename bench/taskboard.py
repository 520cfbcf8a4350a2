"""The board of one task: quality ranks, with what it costs beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from . import wording
from .board import Board, Column, Entry, Footnote, Row, in_order
from .cell import REFERENCE
from .footnotes import Facts, footnotes
from .frame import Frame
from .intervals import Interval
from .matched import Curves
from .question import Question
from .ranks import standings
from .record import Outcome
from .score import CAP, LEAST_SEEDS, accuracy, ratio, verdict
from .timings import CAPPED, Timing, floor_of, timings_of_all
from .trials import Predictions, Trials, outcome_words, trials_of_all

Rows = Sequence[int]
"""Of the Frame."""

COLUMNS = (
    Column(name="accuracy", title="accuracy", unit="%", better="higher", importance=0,
           description="mean test accuracy over seeds, with its 95 % interval"),
    Column(name="gap", title=f"vs {REFERENCE}", unit="points", better="higher", importance=1,
           description="mean difference to the reference on the same seeds, with its 95 % interval"),
    Column(name="verdict", title="verdict", importance=4,
           description="what that interval proves, given the margin"),
    Column(name="step_time", title="step time", unit="× reference", better="lower", importance=1,
           description="time of one training step over the reference's in the same rounds"),
    Column(name="memory", title="peak memory", unit="× reference", better="lower", importance=3,
           description="peak memory of one training step over the reference's"),
    Column(name="sparsity", title="zeros", unit="fraction", importance=2,
           description="share of allowed attention weights that are exactly zero"),
    Column(name="block_sparsity", title="zero blocks", unit="fraction", importance=5,
           description="share of 64 × 64 blocks without any positive weight: only these can save time"),
    Column(name="null_rate", title="null", unit="fraction", importance=6,
           description="share of queries that attend to nothing"),
    Column(name="frontier", title="on frontier", unit="fraction", better="higher", importance=5,
           description="share of bootstrap draws in which no other is at once as accurate and as fast"),
    Column(name="equal_time", title="at equal time", unit="points", better="higher", importance=8,
           description="validation accuracy against the reference's after the time that the reference trained"),
    Column(name="state", title="decode state", unit="bytes", better="lower", importance=8,
           description="bytes that decoding keeps per sequence, all layers, at the length of the task"),
    Column(name="equal_state", title="at equal state", unit="points", better="higher", importance=9,
           description="test accuracy against the best other variant that decodes with no more bytes"),
    Column(name="dividend", title="dividend", better="higher", importance=9,
           description="speed-up × declared density; 1 where all of the promised saving was realised"),
    Column(name="parameters", title="parameters", unit="count", better="lower", importance=7,
           description="trainable parameters of the whole model"),
    Column(name="examples_rate", title="examples/s", unit="1/second", better="higher", importance=10,
           description="examples per second of training"),
    Column(name="tokens_rate", title="tokens/s", unit="1/second", better="higher", importance=8,
           description="real tokens per second of training, padding not counted"),
    Column(name="padded_tokens_rate", title="with padding", unit="1/second", better="higher", importance=11,
           description="tokens per second of training, padding counted"),
    Column(name="seeds", title="seeds", unit="count", importance=3, description="seeds trained"),
)  # fmt: skip


def board_for_task(
    frame: Frame,
    question: Question,
    *,
    predictions: Predictions = lambda name: None,
    curves: Curves = lambda name: None,
    margin: float = 1.0,
) -> Board:
    """Ranks by accuracy with cost beside it; `margin`: how many points below the reference still count as no worse."""
    trials = trials_of_all(frame, question, predictions)
    timings = timings_of_all(frame, question)
    facts = Facts.of(frame, question, trials, timings, curves, margin)
    rows = {name: _row(name, frame, trials.get(name), timings.get(name), facts) for name in sorted({*trials, *timings})}
    able = {name: t for name, t in trials.items() if not t.lack and facts.setting.get("ranked", True)}
    order = standings(list(able), lambda one, other: able[one].gap(able[other])) if len(able) > 1 else []
    return Board(
        name=question.name,
        title=f"{question.task}, preset {question.preset}",
        question=f"Which attention is right most often on {question.task}, and what does it cost against {REFERENCE}?",
        columns=COLUMNS,
        ranked=in_order(order, rows),
        unranked=tuple(row for name, row in rows.items() if name not in {s.name for s in order}),
        baselines=tuple(_baselines(frame, question)),
        footnotes=footnotes(facts) + _marks(rows),
    )


def _marks(rows: dict[str, Row]) -> tuple[Footnote, ...]:
    if any(entry.note == "†" for row in rows.values() for entry in row.entries):
        return (Footnote(topic="†", text=f"over 10 % more parameters than {REFERENCE}: not a model of the same size"),)
    return ()


def _reason(trials: Trials | None, timing: Timing | None, facts: Facts) -> str:
    if trials is None:
        words = "" if timing is None or timing.outcome == Outcome.OK else f"; timing: {outcome_words(timing.outcome)}"
        return f"not trained{words}"
    if not facts.setting.get("ranked", True):
        return f"preset {facts.question.preset} proves that it runs and is never ranked"
    if trials.lack:
        return trials.lack
    return "nothing to be ranked against"


def _row(name: str, frame: Frame, trials: Trials | None, timing: Timing | None, facts: Facts) -> Row:
    reference = facts.trials.get(REFERENCE)
    rows = [*(trials.rows if trials else ()), *([timing.row] if timing else ())]
    share, gap, proven = Entry(), Entry(), Entry()
    if trials and trials.seeds:
        found = trials.accuracy()
        alone = "" if len(trials.seeds) >= LEAST_SEEDS else "few seeds"
        share = _scaled(found, 100, wording.points(found), note=alone)
        if name == REFERENCE:
            gap = Entry(text="reference", value=0.0)
        elif reference and set(reference.seeds) & set(trials.seeds):
            estimate = trials.gap(reference)
            ends = estimate.interval()
            enough = len(set(reference.seeds) & set(trials.seeds)) >= LEAST_SEEDS
            if enough:
                gap = _scaled(ends, 100, wording.signed_points(ends), brief=wording.plus_minus(ends))
                proven = Entry(text=_verdict_words(ends, facts.margin))
            else:
                gap = Entry(text=wording.signed(ends.value), value=100 * ends.value)
    entries = {
        "accuracy": share,
        "gap": gap,
        "verdict": proven,
        "step_time": _step_time(timing, facts),
        "memory": _memory(name, frame, rows, facts),
        "sparsity": _share(frame, rows, "sparsity"),
        "block_sparsity": _share(frame, rows, "block_sparsity", block=64),
        "null_rate": _share(frame, rows, "null_rate"),
        "frontier": _frontier(name, facts),
        "dividend": _dividend(frame, rows, timing),
        "equal_time": _equal_time(name, facts),
        "state": _state(name, facts),
        "equal_state": _equal_state(name, facts),
        "parameters": _parameters(frame, rows, facts),
        "examples_rate": _rate(frame, rows, "examples_per_second"),
        "tokens_rate": _rate(frame, rows, "tokens_per_second"),
        "padded_tokens_rate": _rate(frame, rows, "padded_tokens_per_second"),
        "seeds": Entry(text=str(len(trials.seeds)), value=len(trials.seeds)) if trials else Entry(),
    }
    return Row(
        name=name,
        entries=tuple(entries[c.name] for c in COLUMNS),
        reason=_reason(trials, timing, facts),
        records=tuple(frame.key(at) for at in rows),
    )


def _scaled(found: Interval, scale: float, text: str, *, note: str = "", brief: str = "") -> Entry:
    value, low, high = (scale * end for end in (found.value, found.low, found.high))
    return Entry(text=text, brief=brief, value=value, low=low, high=high, note=note)


def _verdict_words(gap: Interval, margin: float) -> str:
    return {
        "better": "better",
        "within margin": f"within {wording.margin(margin)}",
        "worse": f"worse by > {wording.margin(margin)}",
        "undecided": "undecided",
    }[verdict(gap, margin / 100)]


def _step_time(timing: Timing | None, facts: Facts) -> Entry:
    if timing is None:
        return Entry()
    if timing.outcome != Outcome.OK:
        in_words = outcome_words(timing.outcome)
        if timing.outcome in CAPPED:
            return Entry(text=f"{in_words} (counts as {CAP:.0f}×)", brief=in_words, value=CAP, note=timing.reason)
        return Entry(text=in_words, note=timing.reason)
    if timing.cost is None:
        return Entry(text="too few rounds", note=timing.reason)
    if timing.variant == REFERENCE:
        return Entry(text=f"{wording.duration(timing.median)} a step", value=1.0)
    found = ratio(timing.cost)
    note = "≈" if abs(timing.cost.value) <= floor_of(facts.timings) else ""
    return _scaled(found, 1, wording.speed(found), note=note, brief=wording.speed(wording.point(found.value)))


def _memory(name: str, frame: Frame, rows: Rows, facts: Facts) -> Entry:
    own = frame.values("peak_bytes", rows)
    if not own or not facts.reference_bytes:
        return Entry()
    if name == REFERENCE:
        return Entry(text=wording.size(own[-1]), value=1.0)
    times = own[-1] / facts.reference_bytes
    return Entry(text=wording.memory(times), value=times)


def _share(frame: Frame, rows: Rows, name: str, **where: object) -> Entry:
    found = frame.values(name, rows, **where)
    if not found:
        return Entry()
    mean = math.fsum(found) / len(found)
    return Entry(text=wording.percent(mean), value=mean, low=min(found), high=max(found))


def _dividend(frame: Frame, rows: Rows, timing: Timing | None) -> Entry:
    density = frame.values("declared_density", rows)
    if not density or timing is None or timing.cost is None or density[-1] >= 1:
        return Entry()
    found = timing.cost.interval()
    value, low, high = (density[-1] * math.exp(-end) for end in (found.value, found.high, found.low))
    return Entry(text=f"{value:.2f}", value=value, low=low, high=high)


def _frontier(name: str, facts: Facts) -> Entry:
    share = facts.frontier_shares.get(name)
    if share is None:
        return Entry()
    return Entry(text=wording.percent(share), value=share, note="●" if name in facts.frontier else "")


def _equal_time(name: str, facts: Facts) -> Entry:
    gap = facts.at_equal_time.get(name)
    if gap is None:
        return Entry()
    ends = gap.interval()
    return _scaled(ends, 100, wording.signed_points(ends), brief=wording.plus_minus(ends))


def _state(name: str, facts: Facts) -> Entry:
    held = facts.state_bytes.get(name)
    return Entry() if held is None else Entry(text=wording.size(held), value=held)


def _equal_state(name: str, facts: Facts) -> Entry:
    rival = facts.at_equal_state.get(name)
    if rival is None:
        return Entry()
    ends = rival.gap.interval()
    against = f" vs {rival.name}"
    return _scaled(ends, 100, wording.signed_points(ends) + against, brief=wording.plus_minus(ends) + against)


def _parameters(frame: Frame, rows: Rows, facts: Facts) -> Entry:
    found = frame.values("parameters", rows)
    if not found:
        return Entry()
    heavy = facts.reference_parameters and found[-1] > 1.1 * facts.reference_parameters
    return Entry(text=wording.count(found[-1]), value=found[-1], note="†" if heavy else "")


def _rate(frame: Frame, rows: Rows, name: str) -> Entry:
    found = frame.values(name, rows)
    return Entry(text=wording.count(found[-1]), value=found[-1]) if found else Entry()


def _baselines(frame: Frame, question: Question) -> list[Row]:
    cells = question.cells(frame, "baseline").drop_duplicates("variant", keep="last").sort_values("variant")
    found = []
    for at, cell in cells.iterrows():
        tested = frame.number("accuracy", at, split="test")
        if cell["outcome"] != Outcome.OK or tested is None or not tested.where.get("examples"):
            reason = ": ".join(filter(None, [outcome_words(cell["outcome"]), cell["reason"]]))
            found.append(Row(name=cell["variant"], entries=(Entry(),) * len(COLUMNS), reason=reason))
            continue
        here = accuracy([tested.value], int(tested.where["examples"]))
        share = _scaled(here, 100, wording.points(here))
        entries = tuple(share if c.name == "accuracy" else Entry() for c in COLUMNS)
        found.append(Row(name=cell["variant"], entries=entries, records=(cell["key"],)))
    return found
