"""The board of one task: ranks by the score that the task is judged by, with what it costs beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..core.cell import REFERENCE
from ..core.protocol import LEAST_SEEDS
from ..core.record import Outcome
from ..score.baselines import trivial_levels
from ..score.cost import CAPPED, Timing, timings_of_all
from ..score.key import Question
from ..score.matched_budget import Curves
from ..score.pairwise import gaps_of_all
from ..score.quality import Predictions, Trials, outcome_words, trials_of_all, yardstick_of
from ..stats import format as wording
from ..stats.intervals import Interval
from ..stats.metric import Yardstick
from ..stats.ranking import standings
from ..stats.scoring import CAP, ratio, verdict
from ..store.rows import Run
from ..store.table import Frame
from .attention_tables import boards_of_attentions, footnotes_of_attentions, lowest_error
from .board import Board, Entry, Footnote, Row, in_order
from .footnotes import footnotes, footnotes_of_trivial
from .task_columns import columns
from .task_context import Facts
from .test_sets import SetStatistics, boards_of_sets, footnotes_of_sets, judged_by_set

Rows = Sequence[int]
"""Of the Frame."""


def board_for_task(
    frame: Frame,
    question: Question,
    *,
    predictions: Predictions = lambda name: None,
    curves: Curves = lambda name: None,
    sets: SetStatistics = lambda name: {},
    margin: float | None = None,
) -> Board:
    """Ranks by the task's yardstick with cost beside it; below, what each test set and each kind of attention says.

    `margin`: how many points worse than the reference still count as no worse, None for the yardstick's own.
    """
    yardstick = yardstick_of(frame, question)
    trials = trials_of_all(frame, question, predictions)
    timings = timings_of_all(frame, question)
    facts = Facts.of(frame, question, yardstick, trials, timings, curves, margin)
    rows = {name: _row(name, frame, trials.get(name), timings.get(name), facts) for name in sorted({*trials, *timings})}
    able = {name: t for name, t in trials.items() if not t.lack and facts.setting.get("ranked", True)}
    order = standings(list(able), gaps_of_all(able)) if len(able) > 1 else []
    by_set = judged_by_set(frame, question, yardstick, sets)
    attentions = boards_of_attentions(frame, question) if by_set else []
    trivial = list(trivial_levels(frame, question, yardstick, predictions))
    return Board(
        name=question.name,
        title=f"{question.task}, preset {question.preset}",
        question=f"Which attention {yardstick.question} on {question.task}, and what does it cost against {REFERENCE}?",
        columns=columns(yardstick),
        ranked=in_order(order, rows),
        unranked=tuple(row for name, row in rows.items() if name not in {s.name for s in order}),
        baselines=tuple(_baselines(trivial, yardstick)),
        footnotes=(
            *footnotes(facts),
            *footnotes_of_trivial(trivial, trials, yardstick),
            *_marks(rows),
            *_of_decoding(rows, [column.name for column in columns(yardstick)].index("decoded_rate")),
            *footnotes_of_sets(by_set),
            *footnotes_of_attentions(attentions),
        ),
        parts=(*boards_of_sets(question, yardstick, by_set), *attentions),
    )


def _marks(rows: dict[str, Row]) -> tuple[Footnote, ...]:
    if any(entry.note == "†" for row in rows.values() for entry in row.entries):
        text = f"over 10 % more parameters than {REFERENCE}: not a model of the same size"
        return (Footnote(topic="†", text=text, column="parameters"),)
    return ()


def _of_decoding(rows: dict[str, Row], at: int) -> tuple[Footnote, ...]:
    if not any(row.entries[at].text for row in rows.values()):
        return ()
    text = (
        "each test set was translated once, by itself: no interleaved rounds, so the load of the moment is in it, "
        "and on a GPU the compiling of kernels for each new length"
    )
    return (Footnote(topic="decoded/s", text=text, warning=True, column="decoded_rate"),)


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
    yardstick = facts.yardstick
    level, gap, proven = Entry(), Entry(), Entry()
    if trials and trials.seeds:
        found = trials.level()
        alone = "" if len(trials.seeds) >= LEAST_SEEDS else "few seeds"
        level = _scaled(found, yardstick.points, yardstick.level(found), note=alone)
        if name == REFERENCE:
            gap = Entry(text="reference", value=0.0)
        elif reference and set(reference.seeds) & set(trials.seeds):
            estimate = trials.gap(reference)
            ends = estimate.interval()
            enough = len(set(reference.seeds) & set(trials.seeds)) >= LEAST_SEEDS
            if enough:
                gap = _advantage(ends, yardstick)
                proven = Entry(text=_verdict_words(ends, facts))
            else:
                gap = Entry(text=yardstick.signed(ends.value), value=yardstick.difference(ends).value)
    entries = {
        yardstick.name: level,
        "gap": gap,
        "verdict": proven,
        "step_time": _step_time(timing, facts),
        "memory": _memory(name, frame, rows, facts),
        "sparsity": _mean(_overall(frame, rows, "sparsity"), wording.percent),
        "block_sparsity": _mean(_overall(frame, rows, "block_sparsity", block=64), wording.percent),
        "null_rate": _mean(_overall(frame, rows, "null_rate"), wording.percent),
        "perplexity": _mean(frame.values("perplexity", rows, split="test"), "{:,.1f}".format),
        "diversity": _mean(_overall(frame, rows, "head_diversity"), "{:.3f}".format),
        "alignment": _alignment(frame, rows),
        "frontier": _frontier(name, facts),
        "dividend": _dividend(frame, rows, timing),
        "equal_time": _equal_time(name, facts),
        "state": _state(name, facts),
        "equal_state": _equal_state(name, facts),
        "parameters": _parameters(frame, rows, facts),
        "examples_rate": _rate(frame, rows, "examples_per_second"),
        "tokens_rate": _rate(frame, rows, "tokens_per_second"),
        "padded_tokens_rate": _rate(frame, rows, "padded_tokens_per_second"),
        "decoded_rate": _decoded(frame, rows, reference.rows if reference and name != REFERENCE else ()),
        "seeds": Entry(text=str(len(trials.seeds)), value=len(trials.seeds)) if trials else Entry(),
        "implementation": Entry(text=facts.implementations.get(name, "") if facts.implementations_differ else ""),
    }
    return Row(
        name=name,
        entries=tuple(entries[c.name] for c in columns(yardstick)),
        reason=_reason(trials, timing, facts),
        records=tuple(frame.key(at) for at in rows),
    )


def _scaled(found: Interval, scale: float, text: str, *, note: str = "", brief: str = "") -> Entry:
    value, low, high = (scale * end for end in (found.value, found.low, found.high))
    return Entry(text=text, brief=brief, value=value, low=low, high=high, note=note)


def _advantage(ends: Interval, yardstick: Yardstick, suffix: str = "") -> Entry:
    shown = yardstick.difference(ends)
    return Entry(
        text=yardstick.gap(ends) + suffix, brief=yardstick.gap_in_brief(ends) + suffix, value=shown.value,
        low=shown.low, high=shown.high,
    )  # fmt: skip


def _verdict_words(gap: Interval, facts: Facts) -> str:
    margin = facts.yardstick.margin_words(facts.margin)
    return {
        "better": "better",
        "within margin": f"within {margin}",
        "worse": f"worse by > {margin}",
        "undecided": "undecided",
    }[verdict(gap, facts.margin / facts.yardstick.points)]


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
    note = "≈" if abs(timing.cost.value) <= facts.floor else ""
    return _scaled(found, 1, wording.speed(found), note=note, brief=wording.speed(wording.point(found.value)))


def _memory(name: str, frame: Frame, rows: Rows, facts: Facts) -> Entry:
    own = frame.values("peak_bytes", rows)
    if not own or not facts.reference_bytes:
        return Entry()
    if name == REFERENCE:
        return Entry(text=wording.size(own[-1]), value=1.0)
    times = own[-1] / facts.reference_bytes
    return Entry(text=wording.memory(times), value=times)


def _overall(frame: Frame, rows: Rows, name: str, **where: object) -> list[float]:
    """The finite values of what the variant does, one a Record; one kind of attention by itself may be softmax's."""
    found: list[float] = []
    for at in rows:
        measured = [m for m in frame.numbers.of(at).get(name, ()) if "attention" not in m.where]
        found += [m.value for m in measured if where.items() <= m.where.items() and math.isfinite(m.value)][:1]
    return found


def _mean(found: list[float], words: Callable[[float], str]) -> Entry:
    """Over seeds, from the lowest to the highest."""
    if not found:
        return Entry()
    mean = math.fsum(found) / len(found)
    return Entry(text=words(mean), value=mean, low=min(found), high=max(found))


def _alignment(frame: Frame, rows: Rows) -> Entry:
    lowest = lowest_error(frame, rows)
    return Entry() if lowest is None else Entry(text=f"{lowest:.3f}", value=lowest)


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
    return _advantage(gap.interval(), facts.yardstick)


def _state(name: str, facts: Facts) -> Entry:
    held = facts.state_bytes.get(name)
    return Entry() if held is None else Entry(text=wording.size(held), value=held)


def _equal_state(name: str, facts: Facts) -> Entry:
    rival = facts.at_equal_state.get(name)
    if rival is None:
        return Entry()
    return _advantage(rival.gap.interval(), facts.yardstick, f" vs {rival.name}")


def _parameters(frame: Frame, rows: Rows, facts: Facts) -> Entry:
    found = frame.values("parameters", rows)
    if not found:
        return Entry()
    heavy = facts.reference_parameters and found[-1] > 1.1 * facts.reference_parameters
    return Entry(text=wording.count(found[-1]), value=found[-1], note="†" if heavy else "")


def _decoded(frame: Frame, rows: Rows, of_reference: Rows) -> Entry:
    """Mean over seeds, and as a multiple of the reference's."""
    own, theirs = (frame.values("decode_tokens_per_second", some) for some in (rows, of_reference))
    if not own:
        return Entry()
    rate = sum(own) / len(own)
    times = f" ({rate / (sum(theirs) / len(theirs)):.2f}×)" if theirs else ""
    return Entry(text=wording.count(rate) + times, value=rate)


def _rate(frame: Frame, rows: Rows, name: str) -> Entry:
    found = frame.values(name, rows)
    return Entry(text=wording.count(found[-1]), value=found[-1]) if found else Entry()


def _baselines(levels: list[tuple[Run, Interval | None]], yardstick: Yardstick) -> list[Row]:
    found = []
    for run, level in levels:
        if level is None:
            reason = ": ".join(filter(None, [outcome_words(run.outcome), run.reason]))
            found.append(Row(name=run.variant, entries=(Entry(),) * len(columns(yardstick)), reason=reason))
            continue
        shown = _scaled(level, yardstick.points, yardstick.level(level))
        entries = tuple(shown if c.name == yardstick.name else Entry() for c in columns(yardstick))
        found.append(Row(name=run.variant, entries=entries, records=(run.key,)))
    return found
