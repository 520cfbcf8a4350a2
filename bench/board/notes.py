"""Notes: every sentence that may stand below a board, in one table of topics.

A board shows its first six notes and has the others ready, so the table is in order of priority: reduced data, nothing
learned, stale, this board's error rate, mixed machines, the code that ran, power, and then the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core.cell import NO_ATTENTION, REFERENCE
from ..stats.bootstrap import DRAWS
from ..stats.intervals import LEVEL
from ..stats.scoring import CAP
from .board import Note, NoteKind

NAMED = 4
"""So many names a sentence lists; of more, it gives the number of the rest."""


class Topic(NamedTuple):
    """The word before a note, its kind, and its sentence as a template of `str.format`."""

    title: str
    kind: NoteKind
    template: str


# the order is the priority
TOPICS: dict[str, Topic] = {
    "reduced": Topic("reduced", "fact", "not the whole published task: {what}"),
    # nothing learned
    "not_judged": Topic("learned", "warning", "{reference} did not learn {tasks}: no variant is judged there"),
    "not_judged_older": Topic("version", "fact", "nobody is judged on {tasks}: of older versions; --task TASK does so"),
    "learned": Topic(
        "learned", "warning",
        "not every seed learned: {learned}; values are means of the seeds that learned, of all where none did{why}",
    ),
    "learned_on": Topic(
        "learned", "fact",
        "not every seed learned; values are means of the seeds that learned, of all where none did: {tasks}",
    ),
    "denied": Topic(
        "undecided", "fact",
        "{names}: the interval is clear of zero, but the mean over all seeds, or how many trainings learned, says the "
        "opposite",
    ),
    "no_gain": Topic("attention", "warning", "no gain is shown: {reference} less {no_attention}, {gap} {unit}"),
    # stale
    "stale": Topic(
        "version", "warning", "{some} of {all} Records are of {version}; now {now}: run the same command again"
    ),
    "edited": Topic("version", "warning", "{some} of {all} Records were made by an edited harness"),
    "left_behind": Topic("version", "fact", "{count} without a current Record; measure anew: `{command}`"),
    "ahead": Topic("version", "fact", "{count} measured only at a newer version, not yet complete: {names}"),
    "slow_card": Topic("calibration", "warning", "nothing is ranked: {why}; is another process on the GPU?"),
    # this board's error rate
    "error_undeclared": Topic(
        "error rate", "fact",
        "of simulated boards with 12 variants beyond 6 declared ones 5 to 6 % have a false difference, with 27 beyond "
        "8 to 11 %; here {count} are beyond {declared}",
    ),
    "error": Topic(
        "error rate", "fact",
        "of simulated boards ({like}), {orders:g} % have a false order and {intervals:g} % an interval that is off",
    ),
    "shares": Topic(
        "shares", "fact",
        "ranks count {all} of {all} trainings that learned against {most} or fewer as a difference, and no smaller one",
    ),
    "no_shares": Topic(
        "shares", "fact",
        "so few trainings prove no difference in how often they learn, not even {all} of {all} against 0",
    ),
    # mixed machines
    "machines": Topic("machines", "fact", "quality was measured on {machines}"),
    "disputed": Topic(
        "repeated", "warning", "{count} disputed: machines {machines} found too different ones, such as of {example}"
    ),
    "repeated": Topic("repeated", "fact", "{count} repeated results ignored (the first counts), such as {example}"),
    # the code that ran
    "code": Topic("code", "fact", "{code}"),
    "own_projections": Topic(
        "own projections", "fact", "{names}: whole layers, whose projections, and positions if any, are not the model's"
    ),
    "dropout": Topic("dropout", "fact", "{names} ignored the preset's attention dropout: they have no weights to drop"),
    # power
    "power": Topic(
        "power", "fact",
        "differences from {reference} below {span} {unit} would be missed in more than 1 of 5 repetitions",
    ),
    # data
    "selection": Topic(
        "selection", "warning", "the test split chose the checkpoints, as in Long Range Arena: results are optimistic"
    ),
    "surrogate": Topic("data", "warning", "{data}"),
    "unpublished": Topic("ours", "warning", "{board}; sizes, steps and data differ from the papers': no ranks"),
    "not_measured": Topic("not measured", "warning", "{what}"),
    # speeds that cannot be trusted
    "aa_separates": Topic(
        "A/A test", "warning",
        "{reference} under a second name is {ratio} {where}, which is proven: trust no difference of that size",
    ),
    "aa_missing": Topic("A/A test", "warning", "not measured: the noise floor of these speeds is unknown"),
    "host_bound": Topic(
        "host bound", "warning", "at {where} launching took as long as the work: these are times of the host"
    ),
    "load": Topic("load", "warning", "other processes used {cores:.1f} cores: trust ratios more than times"),
    "load_noted": Topic("load", "warning", "at {where}; at the worst, {note}"),
    "halves": Topic(
        "halves", "warning",
        "the second half of the rounds differs from the first by more than its interval for {names}, at most {most}: "
        "trust no smaller difference of theirs",
    ),
    "drift": Topic("machine speed", "warning", "at {where} a fixed piece of work changed its time by {change:+.0f} %"),
    "speed_differs": Topic(
        "machine speed", "warning",
        "a fixed piece of work took {shares} of its usual time: trust no times and exponents, but ratios",
    ),
    "aa": Topic("A/A test", "fact", "{reference} under a second name is {ratio}: below {floor} all is a tie (≈)"),
    "floor": Topic("A/A test", "fact", "differences in time below {floor} make no rank and no crossover"),
    "power_of_times": Topic("power", "fact", "differences in time below {difference} would mostly be missed"),
    "harness": Topic("harness", "fact", "Records by the hash of the code that made them: {made}"),
    "map": Topic(
        "reading", "fact",
        "time over {reference}'s, below 1 is faster; ≈: within the 95 % interval or the noise floor; intervals, memory "
        "and ranks: `attnbench leaderboard --lengths`, or of one task as `--task '{task}'`",
    ),
    "map_warned": Topic("{warned}", "warning", "a warning on {some} of these {all} sweeps, whose own boards say more"),
    "signatures": Topic("score", "warning", "different scores, not to be compared: {signatures}"),
    "seeds_alone": Topic("intervals", "warning", "over seeds alone: there are no statistics of test examples"),
    "no_sentences": Topic("test sets", "warning", "rows without an interval have no statistics of sentences"),
    # facts that bear on the answer
    "one_seed": Topic("intervals", "fact", "over examples at seed {seed} alone: another seed may differ by more"),
    "gain": Topic("attention", "fact", "{reference} less {no_attention}: {gap} {unit}"),
    "unproven_gain": Topic("attention", "method", "{reference} less {no_attention}: {gap} {unit}, {seeds}: no proof"),
    "uncounted": Topic("seeds", "fact", "{name}: {seeds} ignored, since a smaller seed is missing (they count from 0)"),
    "baseline": Topic("baseline", "fact", "not better than {best}, by the values shown: {names}"),
    "no_speed": Topic("speed", "fact", "no speed was measured for this board"),
    "failures": Topic("failures", "fact", "out of memory, timeout and incorrect count as {cap:.0f} × {reference}"),
    "data": Topic("data", "fact", "{data}"),
    "cost_from": Topic("cost", "fact", "{where}"),
    # how the numbers were made
    "data_note": Topic("data", "method", "{note}"),
    "unequal_seeds": Topic("seeds", "method", "{least} to {most}; each pair is compared on the seeds that both have"),
    "not_counted": Topic("not counted", "method", "{count}: {reason}"),
    "preset": Topic("preset", "method", "{setting}"),
    "quality": Topic("quality", "method", "judged on {boards}"),
    "memory": Topic("memory", "method", "limit of {limit} on the {memory} of {of}"),
    "records": Topic("records", "method", "{name}: {keys}"),
    "intervals": Topic(
        "intervals", "method",
        "{percent} over seeds {seeds} (Student's t) and {examples} test examples ({how}), squares of both added",
    ),
    "signature": Topic("score", "method", "{signatures}"),
    "ranks": Topic("rank", "method", "{percent} rank intervals, corrected for all pairs; ties in alphabetical order"),
    "comparisons": Topic(
        "comparisons", "method",
        "at {percent}, {corrected}; each variant's variance over seeds is shrunk towards the declared ones'",
    ),
    "own_variances": Topic(
        "comparisons", "method",
        "trainings failed, or fewer than {least} declared variants learned: each variant keeps its own variance",
    ),
    "average": Topic(
        "average", "method",
        "of the cells of the row; {percent} intervals hold for these tasks and not for others; a ± may differ from "
        "that on the task's own board, where other declared variants lend their variance over seeds",
    ),
    "best_trivial": Topic("best trivial", "method", "the best predictor without attention, by task: {named}"),
    "baselines": Topic("baselines", "method", "predictors without trained attention, for scale"),
    "speed": Topic(
        "speed", "method",
        "{work}, {rounds} rounds interleaved with {reference}, on {machine}; brackets: {percent} t intervals over "
        "{unit}",
    ),
    "tokens_decode": Topic(
        "tokens", "method", "the last 16 up to the length, one at a time, from a state that holds all before them"
    ),
    "tokens_forward": Topic(
        "tokens", "method", "one causal pass over the prompts without gradients; writing the state is no part of it"
    ),
    "state": Topic("state", "method", "of one sequence, all layers, {how}"),
    "positions": Topic(
        "positions", "method",
        "the {score} by position is of windows of the test that overlap only at the end of a text, longer than those "
        "of training; each number counts the positions since the one before",
    ),
    "settings": Topic(
        "settings", "method",
        "the {score} above is the mean over all settings; a table has one setting each, other axes fixed where most "
        "lengths were tested, difficulties at the shortest length",
    ),
    "right_key": Topic(
        "right key", "method",
        "weight of the one head that puts most on the key that holds the answer; weight that spreads falls with the "
        "length",
    ),
    "test_sets": Topic(
        "test sets", "method",
        "brackets: {percent} intervals of the difference over {over}; {draws} bootstrap draws, the same sentences for "
        "both (Koehn 2004), corrected as on the board",
    ),
    "untrained": Topic("untrained", "method", "{reference} before its training of seed 0, with the same search"),
    "attention": Topic(
        "attention", "method",
        "means over layers and heads on test pairs with the target given; head diversity: over queries that two heads "
        "answer or more; kinds of attention that the task does not replace are {reference}'s",
    ),
    "alignment": Topic(
        "AER", "method",
        "of cross attention with the target given; best head: chosen on the same sentences; shifted: by the step that "
        "reads the word; diagonal: links at the same relative position; layers and heads count from 0; gold "
        "sentences are often of another domain than the training's",
    ),
    "source": Topic("source", "method", "{origin}"),
    "paper": Topic("{paper}", "method", "{origin}"),
    "paper_note": Topic("note", "method", "{note}"),
    "paper_average": Topic("average", "method", "of the cells beside it, not the printed one{failed}"),
    "nominal": Topic(
        "nominal", "method",
        "FLOPs of a forward pass: 4 × batch × heads × length² × width of a head, half of them where it is causal; of a "
        "backward pass 2.5 times that; executed: times the share of the scores that are computed, in 64 × 64 blocks "
        "with a positive weight",
    ),
    "column": Topic("{title}", "method", "{text}"),
}  # fmt: skip

_PRIORITIES = {name: at for at, name in enumerate(TOPICS)}
_KNOWN = {
    "reference": REFERENCE, "no_attention": NO_ATTENTION, "cap": CAP, "percent": f"{100 * LEVEL:.0f} %", "draws": DRAWS,
}  # fmt: skip


def note(topic: str, *, column: str = "", **fields: object) -> Note:
    """The note on that topic of `TOPICS`, with these fields in its template; `column`: the one that it explains.

    >>> note("power", span="2.1", unit="points").text
    'differences from softmax below 2.1 points would be missed in more than 1 of 5 repetitions'
    """
    title, kind, template = TOPICS[topic]
    fields = _KNOWN | fields
    return Note(
        topic=title.format(**fields), text=template.format(**fields), kind=kind, priority=_PRIORITIES[topic],
        column=column,
    )  # fmt: skip


def some(names: Sequence[object], most: int = NAMED) -> str:
    """The names as a part of a sentence, of many the first.

    >>> some(["a", "b"]), some([0, 1, 2, 3, 4, 5])
    ('a, b', '0, 1, 2, 3 (+2 more)')
    """
    rest = f" (+{len(names) - most} more)" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + rest
