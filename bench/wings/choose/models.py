"""Models: the shapes of known ones (`models.toml`), or of a `config.json` as Hugging Face writes it."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ...core.decode import Name, brief, read_json
from ...core.errors import SelectionError, StoreError
from ...core.files import PACKAGE
from ...core.registry import nearest
from ...core.spec import Spec
from ...stats.format import in_a_line

Size = Annotated[int, Meta(ge=1, le=2**24)]
Some = Annotated[int, Meta(ge=0, le=2**24)]
"""A size that a model may lack; 0 where it does."""

LATENT = Spec("mla")
"""Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434), whose cache holds one latent vector a token."""

GPT2_KEYS = {
    "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embd": "hidden_size",
    "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
}  # fmt: skip
"""The keys of GPT-2's config.json, and what others call them."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder under the keys of its config.json; a missing one has the default that such files mean.

    `gated`: whether the feed-forward has three matrices, and not two.
    The latent vector of `mla` has kv_lora_rank values and qk_rope_head_dim more; a model without it has DeepSeek-V3's.
    Raises ValueError where kv heads do not divide heads.
    """

    num_hidden_layers: Annotated[int, Meta(ge=1, le=10_000)]
    hidden_size: Size
    num_attention_heads: Size
    num_key_value_heads: Some | None = None
    head_dim: Some | None = None
    intermediate_size: Some | None = None
    gated: bool = True
    vocab_size: Some = 0
    max_position_embeddings: Some | None = None
    tie_word_embeddings: bool = False
    moe_intermediate_size: Some | None = None
    shared_expert_intermediate_size: Some | None = None
    num_experts: Some | None = None
    num_local_experts: Some | None = None
    n_routed_experts: Some | None = None
    num_experts_per_tok: Some | None = None
    n_shared_experts: Some | None = None
    first_k_dense_replace: Some | None = None
    kv_lora_rank: Some | None = None
    q_lora_rank: Some | None = None
    qk_rope_head_dim: Some | None = None
    qk_nope_head_dim: Some | None = None
    v_head_dim: Some | None = None
    linear_num_value_heads: Some | None = None
    linear_value_head_dim: Some | None = None
    linear_num_heads: Some | None = None
    linear_head_dim: Some | None = None
    sliding_window: Some | None = None
    layer_types: Annotated[list[Name], Meta(max_length=10_000)] | None = None
    attention: Name = ""
    source: Name = ""

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"expected key-value heads that divide {self.heads} heads, got {self.kv_heads}")

    @property
    def heads(self) -> int:
        return self.num_attention_heads

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.heads

    @property
    def width_of_head(self) -> int:
        return self.head_dim or self.v_head_dim or max(1, self.hidden_size // self.heads)

    @property
    def recurrent_heads(self) -> tuple[int, int]:
        """Heads of a recurrence over the past, and their width."""
        heads, width = self.linear_num_value_heads or self.linear_num_heads, self.linear_value_head_dim
        return heads or self.heads, width or self.linear_head_dim or self.width_of_head

    @property
    def latent(self) -> tuple[int, int, int]:
        """For `mla`: the rank of the latent vector, the width of its rotary part, and that of a key beside it."""
        return self.kv_lora_rank or 512, self.qk_rope_head_dim or 64, self.qk_nope_head_dim or self.width_of_head

    @property
    def released(self) -> Spec:
        """The attention of its layers in turn."""
        if self.attention:
            return Spec.parse(self.attention)
        full = LATENT if self.kv_lora_rank else Spec("softmax")
        window = Spec.of("window", size=self.sliding_window) if self.sliding_window else full
        known = {"sliding_attention": window, "linear_attention": Spec("delta")}
        return Spec.pattern([known.get(kind, full) for kind in self.layer_types or ["full_attention"]])

    @property
    def assumed(self) -> list[str]:
        """The facts that nobody gave about the model, in words."""
        gate, has_inner = "gated " * self.gated, self.intermediate_size or self.moe_intermediate_size
        inner = [] if has_inner else [f"a {gate}feed-forward of 4 × width ({4 * self.hidden_size:,})"]
        return [*inner, *([] if self.vocab_size else ["no vocabulary"])]

    def parameters(self, active: bool = False) -> int:
        """The count of all weights, or of those that a token is multiplied with; norms and biases are left out."""
        width, heads = self.hidden_size, self.heads
        if self.kv_lora_rank:
            rank, rope, nope = self.latent
            of_query = heads * (nope + rope)
            queries = self.q_lora_rank * (width + of_query) if self.q_lora_rank else width * of_query
            attention = queries + width * (rank + rope) + rank * heads * (nope + self.width_of_head)
            attention += heads * self.width_of_head * width
        else:
            attention = 2 * width * self.width_of_head * (heads + self.kv_heads)
        experts = self.num_experts or self.num_local_experts or self.n_routed_experts or 0
        dense, inner = self.intermediate_size or 4 * width, self.moe_intermediate_size or self.intermediate_size or 0
        shared = (self.n_shared_experts or 0) * inner + (self.shared_expert_intermediate_size or 0)
        used = self.num_experts_per_tok or 0 if active else experts
        first = min(self.first_k_dense_replace or 0 if experts else self.num_hidden_layers, self.num_hidden_layers)
        hidden = first * dense + (self.num_hidden_layers - first) * (used * inner + shared + experts / 3)
        tables = 1 if active or self.tie_word_embeddings else 2
        matrices = (3 if self.gated else 2) * width * hidden
        return round(self.num_hidden_layers * attention + matrices + tables * self.vocab_size * width)


@cache
def known_models() -> dict[str, ModelShape]:
    """The models of `models.toml`, by name."""
    read = tomllib.loads((PACKAGE / "bench/wings/choose/models.toml").read_text(encoding="utf-8"))
    return {name: msgspec.convert(values, ModelShape) for name, values in read.items()}


def model_of(name: str | Path | None, **sizes: Any) -> ModelShape:
    """The model of that name, that of a config.json, or one of these sizes, under the keys of such a file.

    Raises SelectionError for a name that is none, StoreError for a file that is none.
    """
    if name is None:
        try:
            return msgspec.convert({key: value for key, value in sizes.items() if value is not None}, ModelShape)
        except msgspec.ValidationError as problem:
            raise SelectionError(f"expected --model, or at least --layers, --width and --heads: {problem}") from None
    if str(name) in known_models():
        return known_models()[str(name)]
    if Path(name).is_dir() or Path(name).suffix == ".json":
        path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
        try:
            return _of_file(path)
        except OSError as problem:
            raise SelectionError(f"cannot read {path}: {problem.strerror or problem}") from None
    raise SelectionError(
        f"no model named {str(name)!r}{nearest(str(name), known_models())}; there are {in_a_line(known_models())}; or "
        "name a config.json, or give --layers, --width, --heads, --kv-heads and --head-dim"
    )


def _of_file(path: Path) -> ModelShape:
    """Raises SelectionError for an encoder, OSError or StoreError for what is no model."""
    said = read_json(dict[str, Any], path, what := f"the config.json of a decoder ({path})")
    kind = f"{said.get('model_type')} {said.get('architectures')}"
    is_encoder = re.search("bert|MaskedLM", kind, re.IGNORECASE) and said.get("is_decoder") is not True
    if is_encoder or said.get("is_encoder_decoder") is True:
        raise SelectionError(f"{path} is of a model that is no decoder ({brief(kind)}), and has no prefill and token")
    if "n_embd" in said:
        # two matrices, and one table of words for both ends, where the file does not say otherwise
        other = {"gated": False, "tie_word_embeddings": True}
        said = other | {GPT2_KEYS.get(key, key): value for key, value in said.items()}
    try:
        return msgspec.convert(said, ModelShape)
    except ValueError as problem:
        raise StoreError(f"not {what}: {brief(problem)}") from None
