"""Tiny configurations of models in `transformers`, so small that each is tested in a second or two."""

from __future__ import annotations

import sys
from typing import Any

from ...core.errors import SelectionError

NAMES: dict[Any, str] = {
    0: """pad_token_id num_kv_shared_layers""",
    1: """bos_token_id n_group topk_group n_shared_experts first_k_dense_replace indexer_kv_heads mamba_n_groups
        n_groups""",
    2: """eos_token_id decoder_layers num_key_value_heads swa_num_key_value_heads num_global_key_value_heads
        num_experts_per_tok o_groups indexer_n_heads linear_num_key_heads mamba_expand hc_mult
        type_vocab_size""",
    3: """n_layer num_layers""",
    4: """num_hidden_layers num_attention_heads n_head decoder_attention_heads swa_num_attention_heads num_experts
        num_local_experts n_routed_experts moe_num_experts indexer_compress_ratio linear_num_value_heads
        linear_num_heads conv_kernel time_step_rank""",
    6: """index_topk""",
    8: """num_heads rotary_dim sliding_window attention_chunk_size qk_rope_head_dim qk_nope_head_dim indexer_budget
        state_size ssm_state_size mamba_d_state mamba_n_heads mamba_num_heads chunk_size
        hidden_size_per_layer_input""",
    16: """head_dim swa_head_dim global_head_dim query_pre_attn_scalar kv_lora_rank o_lora_rank v_head_dim
        index_n_heads index_head_dim indexer_head_dim linear_key_head_dim linear_value_head_dim
        linear_head_dim mamba_d_head mamba_head_dim""",
    32: """moe_intermediate_size shared_expert_intermediate_size q_lora_rank""",
    64: """hidden_size d_model n_embd embedding_size word_embed_proj_dim attention_hidden_size lru_width
        intermediate_size n_inner ffn_dim decoder_ffn_dim ffn_hidden_size""",
    99: """vocab_size vocab_size_per_layer_input""",
    128: """max_position_embeddings n_positions mamba_d_ssm""",
}
"""Fields of configurations by their tiny value."""

SIZES: dict[str, Any] = {field: value for value, fields in NAMES.items() for field in fields.split()}
SIZES |= {"hidden_dropout": 0.0, "partial_rotary_factor": 0.5, "is_decoder": True, "use_cache": True}
"""The tiny value of each field; a model has those that its configuration knows."""

# latent attention has heads of two parts, and as many key heads as query heads
LATENT = {"num_key_value_heads": 4, "head_dim": 8, "partial_rotary_factor": 1.0}

MOST_PARAMETERS = 10_000_000


def tiny_model(name: str, values: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """A model of `transformers` with random weights, and the lines of plain torch that make the same.

    values: fields of the configuration that replace the tiny ones; `attn_implementation` among them. Weights are drawn
    anew, so that no branch begins at zero. Raises SelectionError for a name or a model that cannot be built so small.
    """
    import torch

    if not torch.cuda.is_available():
        # where fla is installed, models of linear attention call its Triton kernels, which a processor does not run
        sys.modules.setdefault("fla", None)  # type: ignore[arg-type]
    import transformers

    kind: Any = getattr(transformers, name, None)
    if getattr(kind, "config_class", None) is None:
        raise SelectionError(f"transformers {transformers.__version__} has no model class {name!r}, such as BertModel")
    known = _fields(kind.config_class)
    fields = {field: value for field, value in SIZES.items() if field in known}
    if "qk_rope_head_dim" in fields:
        fields |= {field: value for field, value in LATENT.items() if field in known}
    fields |= values
    try:
        config = kind.config_class(**fields)
        with torch.device("meta"):
            size = sum(each.numel() for each in kind(config).parameters())
        if size > MOST_PARAMETERS:
            raise ValueError(f"it has {size:,} parameters")
        torch.manual_seed(0)
        model = kind(config).float().eval()
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise SelectionError(
            f"no tiny {name} could be built ({reason}); name fields, as `{name}[num_heads=2]`"
        ) from error
    for each in model.parameters():
        if each.ndim > 1:
            torch.nn.init.normal_(each, std=0.15)
    inside = ", ".join(f"{field}={value!r}" for field, value in fields.items())
    lines = (
        f"from transformers import {name}",
        f"config = {name}.config_class({inside})",
        f"torch.manual_seed(0); m = {name}(config).float().eval()",
        "[torch.nn.init.normal_(p, std=0.15) for p in m.parameters() if p.ndim > 1]",
    )
    return model, lines


def _fields(kind: Any) -> set[str]:
    """The fields of a configuration that can be set, and that are one value for all layers."""
    default, found = kind(), set()
    for field in SIZES:
        told = getattr(kind, field, None)
        if isinstance(told, property) and told.fset is None:
            continue
        try:
            getattr(default, field)
        except Exception:
            # a configuration with a value by layer raises whatever its authors chose where one value is asked for
            continue
        found.add(field)
    return found
