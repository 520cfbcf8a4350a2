"""Search over tables of probabilities small enough that every output can be listed."""

from itertools import product

import pytest
import torch

from attnbench.bench.wings.translation.beam_search import beam_search, greedy_search, length_penalty

BEGIN, END, VOCABULARY = 0, 1, 4


class Table:
    """Log-probabilities of the next token for every prefix of every sequence, drawn once."""

    def __init__(self, sequences, length, seed, sharpness=1.5):
        generator = torch.Generator().manual_seed(seed)
        self.rows = [
            {
                prefix: (torch.randn(VOCABULARY, generator=generator) * sharpness).log_softmax(-1)
                for size in range(length)
                for prefix in product(range(VOCABULARY), repeat=size)
            }
            for _ in range(sequences)
        ]

    def step(self, tokens, state):
        """State: the sequence's number and all tokens but the first, as a tensor each."""
        number, prefix = state
        if prefix is None:
            prefix = tokens.new_zeros(len(tokens), 0)
        else:
            prefix = torch.cat([prefix, tokens[:, None]], dim=1)
        rows = [self.rows[n][tuple(p)] for n, p in zip(number.tolist(), prefix.tolist(), strict=True)]
        return torch.stack(rows), (number, prefix)

    def start(self):
        return torch.arange(len(self.rows)), None

    def log_probability(self, number, output):
        return sum(float(self.rows[number][output[:place]][token]) for place, token in enumerate(output))


def every_output(limit):
    """All outputs that end within `limit` tokens, END last."""
    words = [token for token in range(VOCABULARY) if token != END]
    return [(*prefix, END) for size in range(limit) for prefix in product(words, repeat=size)]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_a_beam_that_holds_every_hypothesis_finds_the_best_of_all_outputs(alpha):
    table, limits = Table(sequences=5, length=3, seed=3), [3, 3, 3, 1, 2]
    found = beam_search(
        table.step, table.start(), torch.tensor(limits), begin=BEGIN, end=END, beam=VOCABULARY**3, alpha=alpha
    )
    for number, (hypothesis, limit) in enumerate(zip(found, limits, strict=True)):
        scores = {
            output: table.log_probability(number, output) / length_penalty(len(output), alpha)
            for output in every_output(limit)
        }
        best = max(scores, key=scores.get)
        assert (*hypothesis.tokens, END) == best
        assert hypothesis.score == pytest.approx(scores[best], abs=1e-5)


def plain_beam_search(table, number, limit, beam, alpha):
    """The same rules for one sequence, in lists: live hypotheses, candidates sorted, ends taken off the top."""
    live, finished = [((), 0.0)], []
    for length in range(1, limit + 1):
        candidates = [
            ((*words, token), value + float(table.rows[number][words][token]))
            for words, value in live
            for token in (range(VOCABULARY) if length < limit else [END])
        ]
        candidates.sort(key=lambda each: -each[1])
        for words, value in candidates[:beam]:
            if words[-1] == END:
                finished.append((words[:-1], value / length_penalty(length, alpha)))
        live = [each for each in candidates if each[0][-1] != END][:beam]
        best = max((score for _, score in finished), default=-torch.inf)
        if len(finished) >= beam or not live or best >= live[0][1] / length_penalty(limit, alpha):
            break
    return max(finished, key=lambda each: each[1])


@pytest.mark.parametrize("beam", [2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_a_narrow_beam_keeps_to_the_rules_written_out_for_one_sequence(beam, seed):
    table, limits = Table(sequences=8, length=6, seed=seed), [6, 6, 5, 6, 4, 2, 6, 1]
    found = beam_search(table.step, table.start(), torch.tensor(limits), begin=BEGIN, end=END, beam=beam, alpha=0.6)
    for number, (hypothesis, limit) in enumerate(zip(found, limits, strict=True)):
        words, score = plain_beam_search(table, number, limit, beam, 0.6)
        assert hypothesis.tokens == words
        assert hypothesis.score == pytest.approx(score, abs=1e-5)


def test_where_nothing_is_a_number_the_output_is_empty_and_that_of_others_as_ever():
    table = Table(sequences=2, length=4, seed=3)

    def step(tokens, state):
        found, after = table.step(tokens, state)
        return torch.where((state[0] == 1)[:, None], torch.nan, found), after

    options = {"begin": BEGIN, "end": END, "beam": 3, "alpha": 0.6}
    sound, broken = beam_search(step, table.start(), torch.tensor([4, 4]), **options)
    assert sound == beam_search(table.step, (torch.tensor([0]), None), torch.tensor([4]), **options)[0]
    assert (broken.tokens, broken.log_probability, broken.score) == ((), -torch.inf, -torch.inf)


def test_greedy_takes_the_likeliest_token_until_the_end_or_the_limit():
    table, limits = Table(sequences=8, length=5, seed=5), [5, 5, 5, 5, 5, 3, 1, 2]
    found = greedy_search(table.step, table.start(), torch.tensor(limits), begin=BEGIN, end=END)
    for number, (hypothesis, limit) in enumerate(zip(found, limits, strict=True)):
        words = ()
        while len(words) + 1 < limit and int(table.rows[number][words].argmax()) != END:
            words = (*words, int(table.rows[number][words].argmax()))
        assert hypothesis.tokens == words
        assert hypothesis.log_probability == pytest.approx(table.log_probability(number, (*words, END)), abs=1e-5)
