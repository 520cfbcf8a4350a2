"""Footnotes: what a reader must know to believe a board, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from ..core.cell import REFERENCE
from ..score.cost import controls
from ..score.quality import Trials
from ..stats import format as wording
from ..stats.bootstrap import DRAWS
from ..stats.intervals import LEVEL, Interval
from ..stats.metric import Yardstick
from ..stats.ranking import difference_is_proven
from ..stats.scoring import BATCHES, CAP, ratio
from ..store.rows import Run
from .board import Footnote
from .preset_text import setting_words
from .task_context import Facts

PERCENT = f"{LEVEL:.0%}".replace("%", " %")


def footnotes(facts: Facts) -> tuple[Footnote, ...]:
    """All that applies, the most needed first."""
    return tuple(f for part in (_data, _setting, _quality, _cost, _past) for f in part(facts))


def _data(facts: Facts) -> Iterator[Footnote]:
    question = facts.question
    words = {
        "official": "the original data, by its checksum",
        "regenerated": "made by our generator, not the original files",
        "surrogate": "other data of the same kind: not comparable with official results",
        "synthetic": "inputs drawn at random",
    }.get(question.fidelity, "unknown origin")
    source = f" ({'; '.join(facts.sources)})" if facts.sources else ""
    yield Footnote(
        topic="data",
        text=f"{question.fidelity}: {words}{source}",
        warning=question.fidelity in ("surrogate", "unknown"),
    )
    for note in facts.notes:
        yield Footnote(topic="data", text=note)
    if facts.counts:
        yield Footnote(
            topic="data", text=", ".join(f"{count:,} {split}" for split, count in facts.counts.items()) + " examples"
        )
    if question.selection == "test":
        yield Footnote(
            topic="selection",
            text="the checkpoint was chosen on the test split, as Long Range Arena does: results are too good",
            warning=True,
        )


def _setting(facts: Facts) -> Iterator[Footnote]:
    named = f"preset {facts.question.preset}, protocol {facts.question.protocol}"
    yield Footnote(topic="preset", text="; ".join([named, *setting_words(facts.setting)]))


def _quality(facts: Facts) -> Iterator[Footnote]:
    able = [t for t in facts.trials.values() if t.seeds]
    if not able:
        return
    reference = facts.trials.get(REFERENCE)
    seeds = sorted({seed for t in able for seed in t.seeds})
    kept, yardstick = all(t.keeps_examples for t in able), facts.yardstick
    count = max(t.examples for t in able)
    examples = f"{count:,} test examples" if count else "test examples"
    bare = not yardstick.is_share and not kept
    if bare:
        over, how = "", "; not over test examples, of which no statistics are at hand: on these very ones alone"
    elif yardstick.is_share:
        pairing = "paired by example" if kept else "not all predictions are kept: taken as independent, which is wider"
        over, how = f" and over test examples ({pairing}), their squares added", ""
    else:
        over = f" and over test examples ({DRAWS} bootstrap draws, paired by example), their squares added"
        how = ""
    if len(seeds) == 1:
        of_one = "no interval" if bare else f"±: {PERCENT} interval over the examples, not over seeds"
        text = f"seed {seeds[0]} alone on {examples}; {of_one}"
    else:
        text = (
            f"mean over seeds {wording.listed([str(s) for s in seeds])}, each on the same {examples}; ± and brackets: "
            f"{PERCENT} intervals over seeds (Student's t){over}{how}"
        )
    yield Footnote(topic=yardstick.title, text=text, warning=bare)
    if facts.signatures:
        several = len(facts.signatures) > 1
        apart = ". These are not the same score: do not compare across them" if several else ""
        yield Footnote(topic=yardstick.title, text=f"{'; '.join(facts.signatures)}{apart}", warning=several)
    if reference is not None and sum(not t.lack for t in able) > 1 and facts.setting.get("ranked", True):
        yield Footnote(
            topic="verdict",
            column="verdict",
            text=f"margin of {yardstick.margin_words(facts.margin)} {'above' if yardstick.sign < 0 else 'below'} "
            f"{REFERENCE}, by the interval of the difference",
        )
        yield Footnote(
            topic="rank",
            text=f"the places that the data leave open at {PERCENT}, corrected for all pairs; "
            "variants of equal places are tied and in alphabetical order",
        )


def _cost(facts: Facts) -> Iterator[Footnote]:
    if not facts.timings or facts.machine is None:
        yield Footnote(topic="speed", text="no speed was measured for this board")
        return
    machine = facts.machine
    rounds = sorted({len(t.seconds) for t in facts.timings.values() if t.seconds})
    span = f"{rounds[0]}–{rounds[-1]}" if len(rounds) > 1 else "".join(map(str, rounds)) or "no"
    unit = f"rounds in {BATCHES} batches" if rounds and rounds[0] >= 2 * BATCHES else "rounds"
    where = (
        machine.accelerators[0]
        if machine.accelerators
        else f"{machine.processor}, {machine.threads} of {machine.cores} cores"
    )
    torch_version = machine.versions.get("torch", "")
    yield Footnote(
        topic="speed",
        text=f"one training step, {span} rounds interleaved with {REFERENCE} on {where} (machine {machine.id}"
        + (f", torch {torch_version}" if torch_version else "")
        + f"); brackets: {PERCENT} intervals of the geometric mean over {unit} (t)",
    )
    if facts.foreign_load is not None and facts.foreign_load > 0.1:
        yield Footnote(
            topic="speed",
            text=f"other processes used up to {facts.foreign_load:.1f} cores meanwhile: trust ratios more than times",
            warning=True,
        )
    if len(facts.trained_on) > 1:
        yield Footnote(topic="machines", text=f"quality comes from machines {wording.listed(facts.trained_on)}")
    if facts.frontier_shares:
        yield Footnote(
            topic="frontier",
            text=f"share of {DRAWS} bootstrap draws over seeds, test examples and rounds in which no other is at "
            "once as good and as fast; ● where none is by the values shown",
            column="frontier",
        )
    if facts.at_equal_time:
        yield Footnote(
            topic="at equal time",
            text=f"best validation {facts.yardstick.title} against {REFERENCE}'s after the time that {REFERENCE} "
            "trained; the faster are not trained on and the slower stop mid-schedule, so both are understated; the "
            "rest is at equal steps",
            column="equal_time",
        )
    if facts.at_equal_state:
        yield Footnote(
            topic="at equal state",
            text="matched: at most as many bytes of decode state per sequence; held against the best other "
            "variant within them, whose luck in being chosen counts against the variant; at equal steps",
            column="equal_state",
        )
    yield from _null_control(facts)
    if any(t.outcome != "ok" for t in facts.timings.values()):
        yield Footnote(
            topic="failures",
            text=f"out of memory, timeout and incorrect count as {CAP:.0f} × {REFERENCE}, the cap of all costs",
        )


def _null_control(facts: Facts) -> Iterator[Footnote]:
    nulls = controls(facts.timings)
    if not nulls:
        yield Footnote(
            topic="null control", text="none was measured: the noise floor of these speeds is unknown", warning=True
        )
        return
    widest = max(nulls, key=lambda n: abs(n.value) + n.half_width())
    found = ratio(widest)
    floor = math.expm1(facts.floor)
    # every timed variant is one more chance to find a difference where there is none
    separates = [n for n in nulls if difference_is_proven(n, len(facts.timings) + len(nulls))]
    text = (
        f"{REFERENCE} timed under a second name came out at {found.value:.3f}× ({found.low:.3f}–{found.high:.3f}); "
        f"≈ marks differences within this noise floor of {100 * floor:.1f} %"
    )
    if separates:
        text += ". It separates from itself: no difference of that size can be trusted here"
    yield Footnote(topic="null control", text=text, warning=bool(separates))


def _past(facts: Facts) -> Iterator[Footnote]:
    for reason, count in sorted(facts.stale.items()):
        yield Footnote(topic="not counted", text=f"{count} older Record{'s' if count > 1 else ''}: {reason}")


def footnotes_of_trivial(
    levels: Iterable[tuple[Run, Interval | None]], trials: Mapping[str, Trials], yardstick: Yardstick
) -> tuple[Footnote, ...]:
    """A warning where a variant that was trained is no better than the best predictor that was not."""
    known = {run.variant: yardstick.sign * level.value for run, level in levels if level is not None}
    reached = {name: yardstick.sign * one.level().value for name, one in trials.items() if one.seeds}
    if not known or not reached:
        return ()
    best = max(known, key=lambda name: known[name])
    beaten = sorted(name for name, value in reached.items() if value <= known[best])
    if not beaten:
        return ()
    who = (
        "no variant is"
        if len(beaten) == len(reached)
        else f"{wording.listed(beaten)} {'are' if beaten[1:] else 'is'} not"
    )
    text = (
        f"{who} better than {best}, by the values shown: gaps between such rows say little of what attention can learn"
    )
    return (Footnote(topic="baseline", text=text, warning=True, column=yardstick.name),)
