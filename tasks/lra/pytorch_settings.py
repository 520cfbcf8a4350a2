"""The settings of the PyTorch code that most published Long Range Arena tables of efficient attention come from.

Both share one model: 2 layers of width 64, 2 heads, feed-forward 128, mean pooling, embeddings and positions of
deviation 0.02, OneCycle with linear annealing, AdamW without weight decay. Batch, rate, warm-up and steps are each
task's own. Sources: `lra_config.py` of github.com/mlpen/Nystromformer, `config.py` of github.com/pkuzengqi/Skyformer.
"""

from __future__ import annotations

from dataclasses import replace

from ..contract import Recipe

_BOTH = (
    "bfloat16 where the code has float16, which needs loss scaling; the whole test set, where the code drops the last "
    "part of a batch; a validation split of the training data where the task brings none, since the code then chooses "
    "the step on the test set; pixels are ids shifted by one and never masked, since the code masks black pixels"
)

NYSTROMFORMER = Recipe(
    learning_rate=1e-4,
    schedule="one_cycle",
    pooling="padded_mean",
    clip=0.0,
    validation_examples=None,
    precision="bfloat16",
    departures=_BOTH,
)
"""Xiong et al. 2021: no clipping of gradients."""

SKYFORMER = replace(
    NYSTROMFORMER,
    steps=50_000,
    clip_value=1.0,
    departures=f"{_BOTH}; the best step may be an early one, where the code looks at the last four fifths alone",
)
"""Chen et al. 2021: each entry of a gradient is clipped at 1; 50,000 steps on every task."""
