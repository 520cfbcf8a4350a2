"""Metrics: every name that a measurement may have, with unit, direction and meaning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a measurement's name stands for. `better` is 'higher', 'lower' or '' where neither is.

    `points`: points in one unit, for what a task is judged by, 0 for all else; `margin`: how many points worse than the
    reference still count as no worse, unless a person says otherwise.
    """

    unit: str
    better: str
    description: str
    points: float = 0.0
    margin: float = 0.0


QUANTITIES: dict[str, Quantity] = {
    # quality
    "accuracy": Quantity(
        "fraction", "higher", "share of examples classified right; `where.split` says of which split", 100.0, 1.0
    ),
    "bleu": Quantity("BLEU", "higher", "corpus BLEU of sacrebleu; `where.signature`, `where.set`", 1.0, 0.5),
    "bits_per_character": Quantity(
        "bits",
        "lower",
        "bits spent on predicting the test text, over its characters",
        1.0,
        0.02,
    ),
    "chrf": Quantity("chrF", "higher", "corpus chrF of sacrebleu; `where.signature`, `where.set`"),
    "perplexity": Quantity("", "lower", "2 to the bits per token of the original text; `where.token` says which"),
    "alignment_error_rate": Quantity(
        "fraction", "lower", "of cross attention against gold links; `where.layer`, `where.head`, `where.shift`"
    ),
    "loss": Quantity("nats", "lower", "mean cross entropy per example; `where.split` says of which split"),
    "best_step": Quantity("steps", "", "training step of the checkpoint that validation chose"),
    "steps": Quantity("steps", "", "training steps made"),
    "parameters": Quantity("count", "lower", "trainable parameters of the whole model"),
    "extra_parameters": Quantity("count", "lower", "trainable parameters that the variant adds to the shared model"),
    "train_seconds": Quantity("seconds", "lower", "wall time of the training loop, evaluation excluded"),
    # cost, from interleaved rounds; samples are one per round, in the order of the rounds
    "step_seconds": Quantity("seconds", "lower", "one training step: forward, backward, optimiser"),
    "forward_seconds": Quantity("seconds", "lower", "one forward pass without gradients"),
    "decode_seconds": Quantity("seconds", "lower", "one decoding step with cache"),
    "cpu_seconds": Quantity("seconds", "lower", "process time of the same samples, over all threads"),
    "reference_step_seconds": Quantity("seconds", "lower", "the reference in the same rounds"),
    "reference_forward_seconds": Quantity("seconds", "lower", "the reference in the same rounds"),
    "reference_decode_seconds": Quantity("seconds", "lower", "the reference in the same rounds"),
    "null_step_seconds": Quantity(
        "seconds", "lower", "the reference's own code under a second name, in the same rounds"
    ),
    "null_forward_seconds": Quantity("seconds", "lower", "the null control in the same rounds"),
    "null_decode_seconds": Quantity("seconds", "lower", "the null control in the same rounds"),
    "foreign_load": Quantity("cores", "lower", "processor time used by other processes during the samples, per second"),
    "canary_seconds": Quantity(
        "seconds", "", "a fixed piece of work, once a round; `where.drift` is the share by which it slowed down"
    ),
    "host_bound": Quantity(
        "fraction", "lower", "share of samples in which the host was timed, launching, and not the GPU"
    ),
    "gpu_clock": Quantity("MHz", "", "clock of the GPU's processors when the samples ended"),
    "gpu_temperature": Quantity("°C", "", "temperature of the GPU when the samples ended"),
    "examples_per_second": Quantity("1/second", "higher", "examples per second of training, from the median step"),
    "decode_tokens_per_second": Quantity(
        "1/second", "higher", "tokens put out per second of translating the test split with a beam of `where.beam`"
    ),
    "tokens_per_second": Quantity("1/second", "higher", "real tokens per second of training, padding not counted"),
    "padded_tokens_per_second": Quantity("1/second", "higher", "tokens per second of training, padding counted"),
    # work, by counting matrix products
    "flops": Quantity("FLOP", "lower", "matrix products of one unit of work; `where.how` they were counted"),
    "dense_flops": Quantity("FLOP", "", "what the two products of dense attention would need for the same"),
    "traffic_bytes": Quantity(
        "bytes", "lower", "bytes that all operators read and wrote, each as if nothing were cached"
    ),
    "arithmetic_intensity": Quantity("FLOP/byte", "", "flops over traffic_bytes"),
    "peak_share": Quantity(
        "× peak", "higher", "flops per second over the best matrix product measured on this machine"
    ),
    "copy_share": Quantity("× peak", "higher", "traffic per second over the best copy measured on this machine"),
    # memory
    "peak_bytes": Quantity(
        "bytes", "lower", "peak of allocated memory over one unit of what is timed, with parameters and optimiser"
    ),
    "reserved_bytes": Quantity("bytes", "lower", "peak reserved by the CUDA allocator over the same"),
    "longest_length": Quantity(
        "tokens", "higher", "longest sequence that runs in `where.memory_bytes`; `where.stopped` by"
    ),
    "state_bytes": Quantity("bytes", "lower", "decode state per sequence, all layers, at `where.length` tokens"),
    # what attention does
    "declared_density": Quantity("fraction", "", "share of allowed score entries that the mechanism says it computes"),
    "sparsity": Quantity(
        "fraction", "", "share of allowed weights that are exactly zero, on real validation batches or drawn inputs"
    ),
    "block_sparsity": Quantity(
        "fraction", "", "share of square blocks of side `where.block` without a positive weight"
    ),
    "null_rate": Quantity("fraction", "", "share of real queries whose weights are all zero"),
    "entropy": Quantity("fraction", "", "entropy of the normalised weights over the logarithm of the allowed keys"),
    "attention_distance": Quantity("tokens", "", "mean |i - j| under the weights"),
    "head_diversity": Quantity(
        "nats", "", "generalised Jensen-Shannon divergence between the heads of `where.layer`, over real queries"
    ),
    "positional_attention": Quantity(
        "fraction",
        "",
        "mean weight, as it is, that a head puts at its favourite offset of `where.offsets`; the highest of the heads",
    ),
    "alpha": Quantity("", "", "learned alpha of an entmax head"),
}
