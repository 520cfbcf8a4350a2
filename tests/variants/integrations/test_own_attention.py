"""Models that attend by their own code: refused by every door, or served with a warning of what stays as it is."""

import copy
import warnings

import pytest
import torch
from torch import nn

from attnbench.variants.contract import Unsupported

pytest.importorskip("transformers", reason="needs the extra attnbench[transformers]")

from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BloomConfig,
    CodeGenConfig,
    DebertaV2Config,
    FalconConfig,
    GPTJConfig,
    GPTNeoXJapaneseConfig,
    LayoutLMConfig,
    MambaConfig,
    MarkupLMConfig,
    MptConfig,
    OpenAIGPTConfig,
    PegasusXConfig,
    SamVisionConfig,
    SiglipVisionConfig,
    XGLMConfig,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter

from attnbench.variants.integrations.own_attention import asks_interface, is_own_attention
from attnbench.variants.integrations.transformers import attach, register

TOKENS = 32
IDS = torch.randint(3, TOKENS, (2, 10), generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
NAMED = {"vocab_size": TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GPT = {"vocab_size": TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
OWN = {
    "bloom": BloomConfig(vocab_size=TOKENS, hidden_size=32, n_layer=2, n_head=4),
    "mpt": MptConfig(vocab_size=TOKENS, d_model=32, n_layers=2, n_heads=4, max_seq_len=64),
    "xglm": XGLMConfig(vocab_size=TOKENS, d_model=32, ffn_dim=48, num_layers=2, attention_heads=4),
    "codegen": CodeGenConfig(**GPT, rotary_dim=4),
    "gptj": GPTJConfig(**GPT, rotary_dim=4),
    "openai-gpt": OpenAIGPTConfig(**GPT),
    "gpt-neox-japanese": GPTNeoXJapaneseConfig(**NAMED),
    "falcon": FalconConfig(**NAMED, ffn_hidden_size=48),
    "deberta-v2": DebertaV2Config(**NAMED, intermediate_size=48, pos_att_type=["c2p"], relative_attention=True),
    # no attention at all
    "mamba": MambaConfig(vocab_size=TOKENS, hidden_size=32, num_hidden_layers=2),
}


def model_of(config, **more):
    torch.manual_seed(1)
    make = AutoModelForCausalLM if "CausalLM" in str(config.architectures) else AutoModel
    return make.from_config(copy.deepcopy(config), **more).eval()


@pytest.mark.parametrize("name", OWN)
def test_a_model_that_a_name_would_not_change_is_refused_by_every_door(name, tmp_path):
    model = model_of(OWN[name], attn_implementation="eager")
    with torch.no_grad():
        before = model(IDS)[0]
    with pytest.raises(Unsupported, match="does not attend through the interface"):
        model.set_attn_implementation(register("entmax15"))
    with pytest.raises(Unsupported, match="does not attend through the interface"):
        attach(model, "entmax15")
    with pytest.raises(Unsupported, match="does not attend through the interface"):
        model_of(OWN[name], attn_implementation=register("entmax15"))
    model.save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match="does not attend through the interface"):
        AutoModel.from_pretrained(tmp_path, attn_implementation=register("entmax15"))
    assert model.config._attn_implementation == "eager"
    with torch.no_grad():
        assert torch.equal(model(IDS)[0], before)


def test_the_refusal_names_the_class():
    with pytest.raises(Unsupported, match=r"GPTJAttention computes its own attention.*attn_implementation='eager'"):
        model_of(OWN["gptj"]).set_attn_implementation(register("softmax"))


def test_a_class_that_looks_attention_up_in_its_own_table_is_refused_without_a_raw_error():
    config = SamVisionConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=8, output_channels=8,
        global_attn_indexes=[1],
    )  # fmt: skip
    with pytest.raises(Unsupported, match="does not attend through the interface"):
        model_of(config, attn_implementation=register("entmax15"))


def test_a_part_that_stays_as_it_is_is_named_in_a_warning():
    config = SiglipVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=8
    )
    model = model_of(config, attn_implementation="eager")
    with torch.no_grad():
        expected = model(IMAGE).last_hidden_state
    with pytest.warns(UserWarning, match=r"MultiheadAttention in SiglipVisionModel .* stays as it is"):
        model.set_attn_implementation(register("softmax"))
    with torch.no_grad():
        torch.testing.assert_close(model(IMAGE).last_hidden_state, expected, atol=2e-6, rtol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.set_attn_implementation("eager")


def test_attach_refuses_layers_of_their_own_beside_others():
    config = PegasusXConfig(
        vocab_size=TOKENS, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, block_size=8,
        num_global_tokens=4,
    )  # fmt: skip
    model = model_of(config, attn_implementation="eager")
    with pytest.warns(UserWarning, match="stays as it is"), pytest.raises(Unsupported, match="GlobalLocalAttention"):
        attach(model, "softmax")
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("kind", [LayoutLMConfig, MarkupLMConfig])
def test_one_row_of_a_mask_is_that_of_every_query(kind):
    """They hand over (batch, 1, 1, keys), which MarkupLM fills with -10000."""
    model = model_of(kind(**NAMED, intermediate_size=48, pad_token_id=0), attn_implementation="eager")
    valid = torch.ones_like(IDS)
    valid[1, -3:] = 0
    for more in ({}, {"attention_mask": valid}):
        with torch.no_grad():
            model.set_attn_implementation("eager")
            expected = model(IDS, **more).last_hidden_state
            model.set_attn_implementation(register("softmax"))
            found = model(IDS, **more).last_hidden_state
        torch.testing.assert_close(found[valid == 1], expected[valid == 1], atol=2e-6, rtol=1e-5)


def test_no_mask_hides_nothing_as_in_eager_attention():
    attend = ALL_ATTENTION_FUNCTIONS[register("softmax")]
    query, key, value = torch.randn(3, 2, 4, 10, 8, generator=torch.Generator().manual_seed(0))
    module = nn.Module()
    expected = (query @ key.transpose(-1, -2) / 8**0.5).softmax(-1) @ value
    torch.testing.assert_close(attend(module, query, key, value, None)[0].transpose(1, 2), expected, atol=1e-6, rtol=0)
    module.is_causal = True
    with pytest.raises(Unsupported, match="no mask came"):
        attend(module, query, key, value, None)


def test_kinds_of_modules_are_told_apart_by_their_code():
    assert asks_interface(BertSelfAttention) and not is_own_attention(BertSelfAttention)
    assert is_own_attention(nn.MultiheadAttention) and not asks_interface(nn.MultiheadAttention)
    # takes a softmax over experts
    assert not is_own_attention(MixtralTopKRouter) and not asks_interface(nn.Linear)
