"""The shapes of known models, held against the counts that their makers state; and those of a config.json."""

import json
from pathlib import Path

import pytest

from attnbench.bench.core.errors import SelectionError, StoreError
from attnbench.bench.wings.choose.models import known_models, model_of

# billions of parameters, and of those that a token uses where they differ, as model cards and reports state them
STATED = {
    "llama-3-8b": (8.03, None), "llama-3-70b": (70.6, None), "llama-3-1b": (1.24, None), "llama-2-7b": (6.74, None),
    "mistral-7b": (7.24, None), "mixtral-8x7b": (46.7, 12.9), "qwen3-8b": (8.2, None), "qwen3-30b-a3b": (30.5, 3.3),
    "gemma-3-27b": (27.0, None), "gpt-oss-20b": (20.9, 3.6), "qwen3-next-80b-a3b": (80.0, 3.0),
    "kimi-linear-48b-a3b": (48.0, 3.0), "deepseek-v3": (671.0, 37.0),
}  # fmt: skip


@pytest.mark.parametrize("name", known_models())
def test_the_sizes_make_as_many_parameters_as_the_makers_state(name: str) -> None:
    model, (stated, used) = known_models()[name], STATED[name]
    assert model.source and model.parameters() / 1e9 == pytest.approx(stated, rel=0.02)
    # a token is not multiplied with the table of embeddings, which a stated count may hold
    least = model.parameters(active=True) / 1e9
    tables = model.vocab_size * model.hidden_size / 1e9
    assert least <= (used or stated) * 1.02 and least + tables >= (used or stated) * 0.95


def test_the_layers_of_a_released_model_are_a_pattern() -> None:
    known = {name: str(model.released) for name, model in known_models().items()}
    assert known["llama-3-8b"] == "softmax" and known["deepseek-v3"] == "mla"
    assert known["gemma-3-27b"] == "window[size=1024]:5//softmax" and known["mistral-7b"] == "window[size=4096]"
    assert known["qwen3-next-80b-a3b"] == "delta:3//softmax"
    assert known_models()["qwen3-next-80b-a3b"].recurrent_heads == (32, 128)


def test_a_config_file_is_a_model_and_unknown_keys_are_nothing(tmp_path: Path) -> None:
    values = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128256,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "rope_theta": 5e5,
        "sliding_window": None, "eos_token_id": [1, 2],
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(values))
    for path in (tmp_path, tmp_path / "config.json"):
        assert model_of(path).parameters() == known_models()["llama-3-8b"].parameters()
    (tmp_path / "config.json").write_text(json.dumps(values | {"hidden_size": -1}))
    with pytest.raises(StoreError, match=r"not the config.json of a decoder .*hidden_size"):
        model_of(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(values | {"num_key_value_heads": 5}))
    with pytest.raises(StoreError, match="key-value heads that divide 32 heads, got 5"):
        model_of(tmp_path)


def test_what_is_no_model_is_refused_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(
        SelectionError, match=r"no model named 'llama3-8b' \(did you mean 'llama-3-8b'.*deepseek-v3, .*config.json"
    ):
        model_of("llama3-8b")
    with pytest.raises(SelectionError, match=r"cannot read .*none.json: No such file"):
        model_of(tmp_path / "none.json")
    with pytest.raises(SelectionError, match="at least --layers, --width and --heads"):
        model_of(None, hidden_size=64)
    assert model_of(None, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, head_dim=None).width_of_head == 16


def test_the_keys_of_gpt2_are_read_and_an_encoder_is_refused(tmp_path: Path) -> None:
    def read(**values: object) -> object:
        (tmp_path / "config.json").write_text(json.dumps(values))
        return model_of(tmp_path)

    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_inner": None, "vocab_size": 50257,
            "n_positions": 1024, "n_ctx": 1024}  # fmt: skip
    # 124M with its table of positions, as its makers state
    assert read(**gpt2).parameters() + 1024 * 768 == pytest.approx(124e6, rel=0.01)
    assert read(**gpt2).max_position_embeddings == 1024
    assert read(**gpt2).assumed == ["a feed-forward of 4 × width (3,072)"]
    with pytest.raises(StoreError, match="missing required field `num_attention_heads`"):
        read(n_embd=768, n_layer=2)
    bert = {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768}
    for more in ({"model_type": "roberta"}, {"architectures": ["XForMaskedLM"]}, {"is_encoder_decoder": True}):
        with pytest.raises(SelectionError, match="no decoder"):
            read(**bert, **more)
    assert read(**bert, model_type="bert", is_decoder=True).heads == 12
