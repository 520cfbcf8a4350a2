"""The leak table of docs/huggingface.md: implementation × padding × cache, by random models of two layers.

python tools/leak_table.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "variants" / "integrations"))

import test_transformers as cases
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from attnbench.variants.integrations.transformers import attach

SETTINGS = [(padding, cached) for padding in ("none", "left", "right") for cached in (0, 4)]


def documented(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **more):
    times = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(times, 1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask[..., : key.shape[2]], float("-inf"))
    return (scores.softmax(-1).nan_to_num() @ value).transpose(1, 2).contiguous(), None


def main() -> None:
    AttentionInterface.register("documented", documented)
    AttentionMaskInterface.register("documented", sdpa_mask)
    titles = [f"{padding} padded{', cache' if cached else ''}" for padding, cached in SETTINGS]
    print("| model | attention |", " | ".join(titles), "|")
    print("|---|---|" + "---|" * len(titles))
    for name in cases.CAUSAL:
        for attention in ("documented", "softmax", "entmax15"):
            model = cases.model_of(name)
            if attention == "documented":
                model.set_attn_implementation(attention)
            else:
                attach(model, attention)
            found = [cases.leak(model, padding, cached) for padding, cached in SETTINGS]
            shown = [f"**{x:.2g}**" if x > cases.EAGER_TOLERANCE else f"{x:.0e}" if x else "0" for x in found]
            print(
                f"| {name} | {'the recipe' if attention == 'documented' else attention} |",
                " | ".join(shown),
                "|",
                flush=True,
            )


if __name__ == "__main__":
    main()
