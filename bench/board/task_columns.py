"""Columns: what the board of a task shows of every variant, in the order in which it is shown."""

from __future__ import annotations

from functools import lru_cache

from ..core.cell import REFERENCE
from ..core.metrics import Metric
from .board import Column


@lru_cache
def columns(metric: Metric) -> tuple[Column, ...]:
    """The columns of a board whose task is judged so."""
    title, unit, better = metric.title, metric.display_unit, metric.better
    of_difference = metric.of_difference
    return (
        Column(name=metric.name, title=title, unit=unit, better=better, importance=0,
               description=f"mean test {title} over seeds, with its 95 % interval"),
        Column(name="gap", title=f"vs {REFERENCE}", unit=of_difference, better=better, importance=1,
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
        Column(name="perplexity", title="perplexity", better="lower", importance=3,
               description="on the test text: 2 to the bits per word of the original text, whatever the tokens are"),
        Column(name="diversity", title="head diversity", unit="nats", importance=7,
               description="how far the heads of a layer look apart (generalised Jensen-Shannon); 0 is alike"),
        Column(name="alignment", title="AER", unit="fraction", better="lower", importance=6,
               description="lowest alignment error rate of any head of cross attention, normal or shifted"),
        Column(name="frontier", title="on frontier", unit="fraction", better="higher", importance=5,
               description="share of bootstrap draws in which no other is at once as good and as fast"),
        Column(name="equal_time", title="at equal time", unit=of_difference, better=better, importance=8,
               description=f"validation {title} against the reference's after the time that the reference trained"),
        Column(name="state", title="decode state", unit="bytes", better="lower", importance=8,
               description="bytes that decoding keeps per sequence, all layers, at the length of the task"),
        Column(name="equal_state", title="at equal state", unit=of_difference, better=better, importance=9,
               description=f"test {title} against the best other variant that decodes with no more bytes"),
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
        Column(name="decoded_rate", title="decoded/s", unit="1/second", better="higher", importance=8,
               description="tokens that the search put out per second when the test set was translated, and the ratio"),
        Column(name="seeds", title="seeds", unit="count", importance=3, description="seeds trained"),
        Column(name="implementation", title="ran as", importance=7,
               description="which code was timed, and which trained where that differs; shown where variants differ"),
    )  # fmt: skip
