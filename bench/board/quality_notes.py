"""Quality notes: who learned, what comparisons can tell, where data and seeds come from; the preset in words."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ..core.cell import LEAST_SEEDS, NO_ATTENTION, RATE_SETTINGS, REFERENCE
from ..core.metrics import Interval, Metric
from ..core.spec import Spec
from ..score.contrasts import SEEDS_IN_DOUBT, Contrast, Contrasts
from ..score.quality import SeedScores
from ..stats.bootstrap import DRAWS
from ..stats.format import counted
from ..stats.intervals import LEVEL
from ..stats.moderation import LEAST_POOL
from ..stats.shares import least_difference
from ..store.rows import ResultRow, problem_of
from .board import Note
from .notes import note, some
from .task_context import BoardContext

_ORIGINS = {
    "official": "original files, verified by checksum",
    "regenerated": "drawn by our generator, not read from published files",
    "surrogate": "other data of the same kind, not comparable with official results",
    "own": "files of your own, comparable with results on the same files",
    "synthetic": "inputs drawn at random",
}


def learning_notes(context: BoardContext) -> Iterator[Note]:
    """The variants that did not learn the task at every seed, and the gain from attention."""
    scored = {name: one for name, one in context.scores.items() if one.seeds and not all(one.learned)}
    if scored:
        learned = [f"{name} {sum(scored[name].learned)} of {len(scored[name].seeds)}" for name in sorted(scored)]
        yield note("learned", learned=some(learned))
    found = context.contrasts.to_reference(NO_ATTENTION) if context.without_attention else None
    if found is not None:
        # of the reference over the model without attention, in points
        gain = Interval(-found.interval.value, -found.interval.high, -found.interval.low)
        metric, unit = context.metric, context.metric.of_difference
        if not found.has_enough_seeds:
            of_few = f", of {counted(len(found.seeds), 'seed')}: no proof"
            yield note("gain", kind="method", gap=metric.signed(gain.value), unit=unit, remark=of_few)
        elif found.by_shares:
            shares = [f"{share.learned} of {share.trained}" for share in reversed(found.shares)]
            counts = f", where {shares[0]} trainings learned with attention and {shares[1]} without"
            yield note("gain", gap=metric.signed(gain.value), unit=unit, remark=counts)
        elif not found.compares_means:
            few = f", of fewer than {found.least_seeds} seeds: no proof"
            yield note("gain", kind="method", gap=metric.gap(gain), unit=unit, remark=few)
        elif found.is_separated and found.advantage.value < 0:
            yield note("gain", gap=metric.gap(gain), unit=unit, remark="")
        else:
            yield note("gain", kind="warning", gap=metric.gap(gain), unit=unit, remark=", which shows no gain")


def unsettled_notes(by_place: Mapping[str, Mapping[str, SeedScores]]) -> Iterator[Note]:
    """The variants whose trainings ended too early to be called worse; `by_place`: scores by task, "" for one alone."""
    found = [
        f"{f'{place}: ' if place else ''}{name} at {one.unsettled} of {len(one.seeds)} seeds"
        for place, scores in sorted(by_place.items())
        for name, one in sorted(scores.items())
        if one.unsettled
    ]
    if found:
        yield note("unsettled", names=some(found))


def reduced_notes(runs: Iterable[ResultRow]) -> Iterator[Note]:
    """The tasks that are a part of the published ones, by the notes of their data."""
    cut = [(run, each) for run in runs for each in run.notes if " instead of " in each or " slice of " in each]
    found = dict.fromkeys(f"{run.task} at length {run.setting.get('length', 0):,}, {each}" for run, each in cut)
    if parts := [part for part in found if ", validation: " not in part]:
        yield note("reduced", what="; ".join(parts))


def data_notes(context: BoardContext) -> Iterator[Note]:
    """Origin and sizes of the data, the split that chose the checkpoints, and the preset."""
    fidelity = context.board_key.fidelity
    placed = [run for run in context.runs if not run.unplaced]
    sources = "; ".join(sorted({run.source for run in placed} - {""}))
    counts: Mapping[str, int] = next((run.counts for run in reversed(placed) if run.counts), {})
    origin = f"{fidelity}: {_ORIGINS.get(fidelity, 'origin not recorded')}" + (f" ({sources})" if sources else "")
    sizes = [f"{', '.join(f'{count:,} {split}' for split, count in counts.items())} examples"] if counts else []
    is_sound = fidelity in _ORIGINS and fidelity != "surrogate"
    more = dict.fromkeys(each for run in placed for each in run.notes)
    yield note("data", kind="fact" if is_sound else "warning", data="; ".join([origin, *sizes, *more]))
    yield from reduced_notes(placed)
    if context.board_key.selection == "test":
        yield note("selection")
    named = f"{context.board_key.preset}, protocol {context.board_key.protocol}"
    yield note("preset", setting="; ".join([named, *setting_words(context.setting)]))
    values, of_reference = context.table.values, context.newest_of_reference("parameters")
    own = sorted(name for name, one in context.scores.items() if values("own_projections", one.rows))
    if own and of_reference:
        parameters = [values("parameters", context.scores[name].rows)[-1] for name in own]
        listed = [f"{name} ({n / of_reference - 1:+.1%} parameters)" for name, n in zip(own, parameters, strict=True)]
        yield note("unlike", what=f"{some(listed)}: whole layers with projections, and positions if any, of their own")
    ignoring = [n for n, one in context.scores.items() if 0.0 in context.table.values("attention_dropout", one.rows)]
    if ignoring:
        yield note("unlike", what=f"{some(sorted(ignoring))} ignored attention dropout: they have no weights to drop")


def interval_notes(context: BoardContext) -> Iterator[Note]:
    """The seeds and examples that scores and their intervals are over."""
    scored, metric = [one for one in context.scores.values() if one.seeds], context.metric
    if not scored:
        return
    seeds = sorted({seed for one in scored for seed in one.seeds})
    kept, most = all(one.keeps_examples for one in scored), max(one.examples for one in scored)
    if not metric.is_share and not kept:
        yield note("intervals", kind="warning", over="over seeds alone: there are no statistics of test examples")
    elif len(seeds) == 1:
        of_one = f"over examples at seed {seeds[0]} alone: another seed may differ by more"
        yield note("intervals", kind="fact", over=of_one)
    else:
        paired = "paired by example" if metric.is_share else f"{DRAWS} bootstrap draws, paired by example"
        how = paired if kept else "not all predictions are there: taken as independent, which is wider"
        over = f"seeds {some(seeds)} (Student's t) and {f'{most:,}' if most else 'the'} test examples ({how})"
        yield note("intervals", over=f"{100 * LEVEL:.0f} % over {over}, squares of both added")
    tested = (context.table.number(metric.name, at, split="test") for one in context.scores.values() for at in one.rows)
    signatures = sorted({str(m.where["signature"]) for m in tested if m is not None and m.where.get("signature")})
    if len(signatures) > 1:
        yield note("signature", kind="warning", signatures=f"not to be compared: {'; '.join(signatures)}")
    elif signatures:
        yield note("signature", signatures=signatures[0])


def seed_notes(scores: Mapping[str, SeedScores]) -> Iterator[Note]:
    """Seeds that do not count."""
    for name, one in sorted(scores.items()):
        if one.uncounted:
            seeds = f"seed{'s' * (len(one.uncounted) > 1)} {some(one.uncounted)}"
            yield note("uncounted", name=name, seeds=seeds)


def describe_correction(contrasts: Contrasts, names: Iterable[str]) -> str:
    """The pairs that the comparisons of these variants are corrected for: the statement that every display quotes.

    >>> describe_correction(Contrasts({}, ["softmax", "rela", "linear"]), ["rela", "mine"])
    'comparisons with softmax are corrected for 2, ranks for 3 pairs of 3 declared variants; those of mine for 5 and 15'
    """
    text = (
        f"comparisons with {REFERENCE} are corrected for {contrasts.shown_pairs(REFERENCE, REFERENCE)}, ranks for "
        f"{contrasts.pairs(REFERENCE)} pairs of {len(contrasts.declared)} declared variants"
    )
    others = sorted(set(names) - contrasts.declared)
    if not others:
        return text
    return (
        f"{text}; those of {some(others)} for {contrasts.shown_pairs(others[0], REFERENCE)} and "
        f"{contrasts.pairs(others[0])}"
    )


def comparison_notes(
    contrasts: Contrasts, ranked: Collection[str], gaps: Sequence[Contrast], metric: Metric, *, average: bool = False
) -> Iterator[Note]:
    """The error rate of these comparisons, the smallest differences that they find, and their correction.

    `ranked`: names of the ranked variants; `gaps`: their differences from the reference. `average`: whether these are
    means over tasks.
    """
    if len(ranked) < 2:
        return
    clear = [gap for gap in gaps if gap.interval.low > 0 or gap.interval.high < 0]
    if doubted := [gap.one for gap in gaps if not gap.is_certain and not gap.compares_means and not gap.by_shares]:
        yield note("in_doubt", names=some(doubted), least=SEEDS_IN_DOUBT)
    if denied := [gap.one for gap in clear if gap.compares_means and not gap.is_separated and not gap.is_spared]:
        yield note("denied", names=some(denied))
    if by_mean := [gap for gap in gaps if gap.compares_means]:
        effects = sorted(gap.minimal_detectable_effect() for gap in by_mean)
        least, most = (metric.value(effects[at]) for at in (0, -1))
        span = least if least == most else f"{least}–{most}"
        yield note("power", of=f"from {REFERENCE}", span=f"{span} {metric.of_difference}")
    undeclared = len(set(ranked) - contrasts.declared)
    if undeclared > len(contrasts.declared):
        like = f"3 to 5 seeds; here {undeclared} variants beyond {len(contrasts.declared)} declared ones"
        errors = "with 12 variants beyond 6 declared ones 5 to 6 % have a false difference, with 27 8 to 11 %"
        yield note("error", like=like, errors=errors)
    else:
        kind: Kind = "suite" if average else "failing" if contrasts.failing(ranked) else "task"
        seeds = min((gap.shares[0].trained // gap.tasks for gap in gaps), default=LEAST_SEEDS)
        rates = simulated_errors(kind, seeds, len(ranked))
        like = f"{rates.seeds} seeds, {rates.variants} variants; here {seeds} and {len(ranked)}"
        errors = (
            f"at most {rates.orders:g} % have a false order, {rates.verdicts:g} % a false verdict, and about "
            f"{rates.intervals:g} % an interval that is off"
        )
        yield note("error", like=like, errors=errors)
    if contrasts.failing(ranked) or any(gap.failures for gap in gaps):
        all_learned = min((gap.shares[0].trained for gap in gaps), default=LEAST_SEEDS)
        most_of_other = least_difference(all_learned, contrasts.pairs(*ranked))
        counts = f"only {all_learned} of {all_learned} against at most {most_of_other}"
        few = f"none, not even {all_learned} of {all_learned} against 0"
        yield note("shares", which=few if most_of_other is None else counts)
    variance = "each variant's variance over seeds is shrunk towards the declared ones'"
    if any(not gap.is_moderated for gap in gaps):
        variance += f", or its own where trainings failed or fewer than {LEAST_POOL} declared variants learned"
    yield note("ranks", corrected=f"{describe_correction(contrasts, ranked)}; {variance}")


def baseline_notes(
    levels: Iterable[tuple[ResultRow, Interval | None]], scores: Mapping[str, SeedScores], metric: Metric
) -> Iterator[Note]:
    """The trained variants that are no better than the best trivial predictor. A fact, and no bar to be shown."""
    best, level, reached = _best_rule(levels, scores, metric)
    beaten = sorted(name for name, value in reached.items() if value <= level)
    if best and beaten:
        yield note("baseline", best=best, names=some(beaten), column=metric.name)


def unbeaten(
    levels: Iterable[tuple[ResultRow, Interval | None]], scores: Mapping[str, SeedScores], metric: Metric
) -> str:
    """A sentence on a trivial predictor that is as good as every trained variant; empty where one variant beats all."""
    best, level, reached = _best_rule(levels, scores, metric)
    if not best or not reached or max(reached.values()) > level:
        return ""
    return f"No variant beats the rule {best} ({metric.value(metric.sign * level)})."


def _best_rule(
    levels: Iterable[tuple[ResultRow, Interval | None]], scores: Mapping[str, SeedScores], metric: Metric
) -> tuple[str, float, dict[str, float]]:
    """The best trivial predictor, "" for none, its level, and those of the trained variants, all higher when better."""
    known = {run.variant: metric.sign * level.value for run, level in levels if level is not None}
    best = max(known, key=lambda name: known[name], default="")
    reached = {name: metric.sign * one.compared.mean for name, one in scores.items() if one.seeds}
    return best, known.get(best, -math.inf), reached


Kind = Literal["task", "failing", "suite"]
"""A board of one task on which every training learned, or some failed; or a suite's."""


class ErrorRates(NamedTuple):
    """Shares of simulated boards, in %: with a false order in their ranks, a false verdict, an interval off the truth.

    Orders and verdicts are the worst of boards like the committed ones and of equal variants, like any committed one.
    """

    seeds: int
    variants: int
    orders: float
    verdicts: float
    intervals: float


SEEDS, VARIANTS = (3, 6, 12), (6, 11, 33)

# the last table of docs/scoring_simulations.md, which tools/simulate_scoring.py makes: by kind and seeds, one for each
# number of variants
SIMULATED: dict[tuple[Kind, int], tuple[tuple[float, float, float], ...]] = {
    ("task", 3): ((4.5, 4.5, 7.0), (1.5, 2.4, 7.3), (0.6, 1.6, 6.0)),
    ("task", 6): ((4.5, 4.9, 5.5), (3.1, 4.0, 5.8), (1.6, 2.2, 8.0)),
    ("task", 12): ((4.5, 4.4, 5.3), (3.8, 4.0, 4.2), (2.4, 2.4, 3.6)),
    ("failing", 3): ((1.7, 1.8, 8.2), (1.2, 1.9, 16.4), (0.4, 0.4, 24.2)),
    ("failing", 6): ((1.2, 1.1, 5.2), (1.7, 1.8, 13.1), (0.8, 1.0, 25.4)),
    ("failing", 12): ((1.4, 1.5, 4.8), (1.8, 2.2, 10.9), (1.0, 1.2, 23.0)),
    ("suite", 3): ((4.2, 5.5, 1.5), (2.2, 3.5, 1.9), (0.6, 1.6, 2.2)),
    ("suite", 6): ((4.8, 4.8, 3.6), (3.0, 3.7, 3.5), (2.4, 2.8, 4.0)),
    ("suite", 12): ((4.3, 4.9, 2.8), (3.1, 3.7, 2.1), (3.0, 2.8, 2.8)),
}


def simulated_errors(kind: Kind, seeds: int, variants: int) -> ErrorRates:
    """The rates of the simulated boards that have no more seeds, and no fewer variants where there are such.

    >>> simulated_errors("suite", 5, 8)[:2], simulated_errors("task", 20, 50)[:2]
    ((3, 11), (12, 33))
    """
    fewer = max((count for count in SEEDS if count <= seeds), default=SEEDS[0])
    more = min((count for count in VARIANTS if count >= variants), default=VARIANTS[-1])
    return ErrorRates(fewer, more, *SIMULATED[kind, fewer][VARIANTS.index(more)])


_TRAINING = (
    "learning rate {rates}, {warmup:,} warm-up steps, {schedule} decay",
    "{precision}",
)


# absent from older Records, which were made before these were there: the smallest value that is no change, the text
_OPTIONAL = {
    "accumulate": (1, "{accumulate} batches to a step"),
    "averaged": (1, "the last {averaged} evaluated states averaged"),
    "label_smoothing": (0, "label smoothing {label_smoothing:g}"),
    "clip_value": (0, "entries of gradients clipped at {clip_value:g}"),
    "convolution": (0, "a causal convolution of width {convolution} over the embeddings"),
}


def short_preset(preset: str) -> str:
    """A preset for a heading; of many changed settings those that change the model or the data, or their number.

    >>> short_preset("quick[positions=rope,rate_extensions=2,tuning_seeds=2]")
    'quick[positions=rope,…]'
    >>> short_preset("quick[learning_rate=0.004]"), short_preset("quick[batch=64,length=64,steps=300]")
    ('quick[learning_rate=0.004]', 'quick with 3 settings changed')
    """
    spec, rest = Spec.parse(preset), beside_rates(preset)
    named = f"[{','.join(rest)},…]" if 0 < len(rest) <= 2 else f" with {len(spec.parameters)} settings changed"
    return preset if len(spec.parameters) <= 2 else spec.name + named


def beside_rates(preset: str) -> list[str]:
    """The settings of a preset as text, without those by which the learning rate was chosen: they change no model."""
    given = preset.partition("[")[2].removesuffix("]").split(",")
    return [each for each in given if each and each.partition("=")[0] not in RATE_SETTINGS]


def setting_words(setting: Mapping[str, Any]) -> list[str]:
    """The fields of a preset in words, the most important first; a sentence that says so where some are missing.

    >>> setting_words({})
    ['the full preset was not recorded']
    """
    problem = problem_of(setting)
    try:
        known = {**setting, "rates": _rates(setting)}
        known |= {f"{noun}_noun": noun if setting[f"{noun}s"] == 1 else f"{noun}s" for noun in ("layer", "head")}
        if setting.get("positions") == "none":
            known["positions"] = "no"
        words = [part.format_map(known) for part in (*problem.recipe_words, *_TRAINING)]
    except (KeyError, ValueError):
        return ["the full preset was not recorded"]
    words += [part.format_map(setting) for name, (least, part) in _OPTIONAL.items() if setting.get(name, 0) > least]
    if setting.get("query_key_scale", 1.0) != 1.0:
        words.append(f"initial projections to queries and keys times {setting['query_key_scale']:g}")
    if problem.objective == "language_modeling" and setting.get("longest"):
        words.append(f"by position in windows of {setting['longest']:,}")
    departures = setting.get("departures")
    return words + ([f"differs from the published code: {departures}"] if departures else [])


def _rates(setting: Mapping[str, Any]) -> str:
    """
    >>> _rates({"learning_rate": 0.001}), _rates({"learning_rate": 0.001, "learning_rates": [0.001, 0.004]})
    ('0.001', '0.001 or 0.004, of which each variant takes the best by validation on seeds that no board uses')
    >>> _rates({"learning_rate": 0.001, "learning_rates": [0.001, 0.004], "rate_extensions": 2}).partition(", of")[0]
    '0.001 or 0.004, and beyond an end of these while that is better by a standard error, at most 2 times'
    """
    grid = setting.get("learning_rates")
    if not grid:
        return f"{setting['learning_rate']:g}"
    listed = " or ".join(f"{rate:g}" for rate in grid)
    if extensions := setting.get("rate_extensions", 0):
        listed += f", and beyond an end of these while that is better by a standard error, at most {extensions} times"
    return f"{listed}, of which each variant takes the best by validation on seeds that no board uses"
