"""Speed of translating with a cache against softmax: `python tests/perf/bench_decoding.py [tokens] [variant ...]`.

Every variant puts out the same number of tokens for the same sources, whatever they are, so that no untrained model
gains by ending early. Rounds are interleaved; printed are tokens per second and the median ratio to softmax.
"""

import statistics
import sys
from dataclasses import replace

import torch

from attnbench.bench.measure.timer import interleave
from attnbench.bench.models.decoding import can_cache, search_step, start
from attnbench.bench.models.encoder_decoder import Transformer
from attnbench.tasks.problems.translation import Translation, TranslationRecipe
from attnbench.variants import build

ROWS = 32 * 4
SOURCES = 32


def decoder(variant, tokens):
    recipe = replace(TranslationRecipe(), length=max(tokens, SOURCES), dropout=0.0)
    model = Transformer(Translation(vocabulary=2**16), recipe, lambda shape: build(variant, shape), 0).eval()
    source = torch.randint(4, recipe.vocabulary, (ROWS, 1, SOURCES), generator=torch.Generator().manual_seed(0))
    step = search_step(model)

    @torch.inference_mode()
    def work():
        state = start(model, model.encode(source, torch.full((ROWS, 1), SOURCES)))
        last = torch.full((ROWS,), 2)
        for _ in range(tokens):
            found, state = step(last, state)
            last = found.argmax(-1)

    if not can_cache(model):
        print(f"{variant} cannot go token by token; it is computed anew each time")
    return work


def main():
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    variants = sys.argv[2:] or ["rela", "sparsemax", "entmax15", "linear"]
    works = {name: decoder(name, tokens) for name in ("softmax", *variants)}
    works["softmax again"] = decoder("softmax", tokens)
    timing = interleave(works, reference="softmax", device=torch.device("cpu"), budget_seconds=10.0 * len(works))
    own = timing.samples["softmax"].seconds
    for name, samples in timing.samples.items():
        ratio = statistics.median(mine / its for mine, its in zip(samples.seconds, own, strict=True))
        speed = ROWS * tokens / statistics.median(samples.seconds)
        print(f"{name:14s} {speed:10,.0f} tokens/s  {ratio:5.2f} x the time of softmax ({timing.rounds} rounds)")


if __name__ == "__main__":
    main()
