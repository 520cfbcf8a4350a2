"""The bridge to transformers: no leak, whatever the model, its padding and its cache; and what it refuses."""

import copy

import pytest
import torch

from attnbench.variants.contract import SelectionError, Unsupported

pytest.importorskip("transformers", reason="needs the extra attnbench[transformers]")

from transformers import (
    AlbertConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    BertConfig,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    StaticCache,
    T5Config,
    ViTConfig,
    ViTModel,
)

from attnbench.variants.integrations.transformers import CHILD, attach, observe, register

TOKENS, LENGTH, WINDOW = 32, 10, 4
SIZES = {
    "vocab_size": TOKENS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "mistral": MistralConfig(**SIZES, sliding_window=WINDOW),
    "gpt2": GPT2Config(
        vocab_size=TOKENS, n_embd=32, n_layer=2, n_head=4, n_positions=64, scale_attn_by_inverse_layer_idx=True,
        bos_token_id=1, eos_token_id=2,
    ),
    "gemma": GemmaConfig(**SIZES),
    "gemma2": Gemma2Config(
        **SIZES, sliding_window=WINDOW, query_pre_attn_scalar=3, attn_logit_softcapping=None,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "bert": BertConfig(**{**SIZES, "pad_token_id": 0}),
}  # fmt: skip
PADDINGS = ("none", "left", "right")
CAUSAL = [name for name in CONFIGS if name != "bert"]
EAGER_TOLERANCE = 2e-6
"""Logits are of order 1, in float32 through two layers, and sums go in another order."""


def model_of(name, **changes):
    config = copy.deepcopy(CONFIGS[name])
    for key, value in changes.items():
        setattr(config, key, value)
    torch.manual_seed(1)
    model = (AutoModelForMaskedLM if name == "bert" else AutoModelForCausalLM).from_config(config).eval()
    with torch.no_grad():
        # as transformers draws them, scores are so small that every map gives nearly equal weights
        for parameter_name, parameter in model.named_parameters():
            if any(part in parameter_name for part in ("q_proj", "k_proj", "c_attn", "query", "key")):
                parameter.mul_(12.0)
    return model


def ids_of(rows=2, seed=0):
    return torch.randint(3, TOKENS, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))


def valid_of(padding, rows=2):
    valid = torch.ones(rows, LENGTH, dtype=torch.long)
    if padding == "left":
        valid[1, :3] = 0
    elif padding == "right":
        valid[1, -3:] = 0
    return valid


def inputs_of(padding):
    return {} if padding == "none" else {"attention_mask": valid_of(padding)}


@torch.no_grad()
def logits_of(model, ids, padding="none", cached=0):
    """Logits (batch, length, tokens); `cached`: the number of tokens that a first call leaves in the cache."""
    more = inputs_of(padding)
    if not cached:
        return model(ids, **({"use_cache": False} if model.config.model_type != "bert" else {}), **more).logits
    mask = more.get("attention_mask")
    first = {} if mask is None else {"attention_mask": mask[:, :cached]}
    before = model(ids[:, :cached], use_cache=True, **first)
    outputs = [before.logits]
    # several tokens at once, then one by one: queries fewer than keys in both ways
    for start, stop in ((cached, cached + 3), *((at, at + 1) for at in range(cached + 3, LENGTH))):
        step = {} if mask is None else {"attention_mask": mask[:, :stop]}
        after = model(ids[:, start:stop], past_key_values=before.past_key_values, use_cache=True, **step)
        outputs.append(after.logits)
    return torch.cat(outputs, 1)


def leak(model, padding="none", cached=0):
    """The largest change of an earlier logit when one token changes: the second, one in the middle, or the last."""
    ids, worst = ids_of(), 0.0
    before = logits_of(model, ids, padding, cached)
    for at in (1, 5, LENGTH - 1):
        other = ids.clone()
        other[:, at] = (other[:, at] - 3 + 7) % (TOKENS - 3) + 3
        change = (logits_of(model, other, padding, cached) - before).abs()
        assert change[0, at:].max() > 1e-4, "a changed token changes what comes after it"
        worst = max(worst, change[:, :at].max().item())
    return worst


@pytest.mark.parametrize("name", CONFIGS)
def test_softmax_gives_what_the_model_gives_by_itself(name):
    for padding in PADDINGS:
        model = model_of(name)
        model.set_attn_implementation("eager")
        expected = logits_of(model, ids_of(), padding)
        real = valid_of(padding).bool()
        attach(model, "softmax")
        for cached in (0, 4) if name != "bert" else (0,):
            found = logits_of(model, ids_of(), padding, cached)
            assert torch.isfinite(found).all()
            torch.testing.assert_close(found[real], expected[real], atol=EAGER_TOLERANCE, rtol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
def test_no_later_token_changes_an_earlier_logit(name):
    model = model_of(name)
    attach(model, "entmax15")
    for padding in PADDINGS:
        for cached in (0, 4):
            # the rows of a tile are solved together, so that a later one may move the last bit of an earlier one
            assert leak(model, padding, cached) < EAGER_TOLERANCE, (padding, cached)


def test_bert_sees_both_sides_and_no_padding():
    model = model_of("bert")
    attach(model, "entmax15")
    ids = ids_of()
    before = logits_of(model, ids, "right")
    other = ids.clone()
    other[1, -3:] = 5
    torch.testing.assert_close(logits_of(model, other, "right")[1, :-3], before[1, :-3], atol=EAGER_TOLERANCE, rtol=0)
    other[0, -1] = ids[0, -1] % (TOKENS - 3) + 3
    assert (logits_of(model, other, "right")[0, 0] - before[0, 0]).abs().max() > 1e-4


def test_a_cache_of_a_fixed_size_gives_the_same():
    model = model_of("llama")
    attach(model, "entmax15")
    ids = ids_of(1)
    expected = logits_of(model, ids)
    cache = StaticCache(config=model.config, max_cache_len=32)
    with torch.no_grad():
        first = model(ids[:, :6], past_key_values=cache).logits
        rest = model(ids[:, 6:], past_key_values=cache, cache_position=torch.arange(6, LENGTH)).logits
    torch.testing.assert_close(torch.cat([first, rest], 1), expected, atol=EAGER_TOLERANCE, rtol=1e-5)


def test_packed_sequences_equal_each_by_itself():
    model = model_of("llama")
    attach(model, "entmax15")
    ids, lengths = ids_of(1), (4, 6)
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    with torch.no_grad():
        packed = model(ids, position_ids=positions, use_cache=False).logits
        apart = [model(piece, use_cache=False).logits for piece in ids.split(lengths, 1)]
    torch.testing.assert_close(packed, torch.cat(apart, 1), atol=EAGER_TOLERANCE, rtol=1e-5)


def test_temperature_and_the_scaling_of_the_model_both_apply():
    model = model_of("gemma2")
    expected = logits_of(model, ids_of())
    attach(model, "softmax")
    assert (logits_of(model, ids_of()) - expected).abs().max() < EAGER_TOLERANCE
    attach(model, "softmax", temperature=2.0)
    warmer = logits_of(model, ids_of())
    model.set_attn_implementation("eager")
    for layer in model.model.layers:
        layer.self_attn.scaling /= 2.0
    torch.testing.assert_close(warmer, logits_of(model, ids_of()), atol=EAGER_TOLERANCE, rtol=1e-5)


def test_half_precision_keeps_weights_in_single():
    model = model_of("llama").bfloat16()
    attach(model, "entmax15")
    seen = []
    with observe(lambda module, variant, q, k, mask, hidden: seen.append(variant.weights(q, k, mask))):
        assert torch.isfinite(logits_of(model, ids_of(), "left")).all()
    assert {weights.dtype for weights in seen} == {torch.float32}
    for weights in seen:
        torch.testing.assert_close(weights[0].sum(-1), torch.ones_like(weights[0, ..., 0]), atol=1e-5, rtol=0)
        # the padded queries of the second row see no key
        assert (weights[1, :, :3] == 0).all()


def test_gradients_reach_every_weight_and_are_those_of_eager_softmax():
    gradients = []
    for bridged in (False, True):
        model = model_of("llama")
        model.set_attn_implementation("eager")
        if bridged:
            attach(model, "softmax")
        # the first real token is predicted from a padded query, whose output means nothing
        labels = ids_of().masked_fill(valid_of("left") == 0, -100)
        labels[1, 3] = -100
        model(ids_of(), attention_mask=valid_of("left"), labels=labels).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def test_registering_again_changes_nothing():
    name = register("entmax[alpha=1.25]")
    assert register("entmax[alpha=1.250]") == name and name.startswith("attnbench ")
    assert register("entmax[alpha=1.25]", temperature=0.5) != name
    with pytest.raises(SelectionError):
        register("entmux")
    with pytest.raises(SelectionError):
        register("entmax[beta=1]")


def test_a_variant_with_parameters_becomes_part_of_the_model():
    model = model_of("llama")
    model.set_attn_implementation(register("rela"))
    with pytest.raises(Unsupported, match=r"parameters of its own.*attach"):
        logits_of(model, ids_of())
    found = attach(model, "rela")
    assert len(found) == 2 and all(CHILD in dict(module.named_children()) for module in found)
    assert sum(CHILD in name for name, _ in model.named_parameters()) == 4
    assert leak(model) < EAGER_TOLERANCE
    model(ids_of(), labels=ids_of()).loss.backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if CHILD in name)


def test_the_variant_that_is_attached_last_attends():
    """ReLA has parameters and becomes a submodule; entmax15 has none."""
    expected = model_of("llama")
    attach(expected, "entmax15")
    model = model_of("llama")
    parameters = sum(1 for _ in model.parameters())
    attach(model, "rela")
    rela = logits_of(model, ids_of())
    model.set_attn_implementation(register("entmax15"))
    assert torch.equal(logits_of(model, ids_of()), logits_of(expected, ids_of()))
    # and back, with what was attached
    model.set_attn_implementation(register("rela"))
    assert torch.equal(logits_of(copy.deepcopy(model), ids_of()), rela)
    with pytest.raises(Unsupported, match="leak the future"):
        attach(model, "routing")
    assert torch.equal(logits_of(model, ids_of()), rela)
    attach(model, "rela[gated=false]")
    with pytest.raises(Unsupported, match="parameters of its own"):
        model.set_attn_implementation(register("rela"))
        logits_of(model, ids_of())
    attach(model, "entmax15")
    assert torch.equal(logits_of(model, ids_of()), logits_of(expected, ids_of()))
    assert sum(1 for _ in model.parameters()) == parameters


def test_parameters_survive_saving_and_loading(tmp_path):
    model = model_of("llama")
    attach(model, "rela")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if CHILD in name:
                parameter.normal_()
    expected = logits_of(model, ids_of())
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    attach(loaded, "rela")
    assert torch.equal(logits_of(loaded, ids_of()), expected)
    fresh = model_of("llama")
    attach(fresh, "rela")
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(logits_of(fresh, ids_of()), expected)
    # the model without its head, whose names lack the prefix
    base = AutoModel.from_pretrained(tmp_path).eval()
    attach(base, "rela")
    attached = {name: p for name, p in model.model.named_parameters() if CHILD in name}
    assert attached and all(torch.equal(base.get_parameter(name), p) for name, p in attached.items())


def test_saved_parameters_that_are_gone_are_refused_with_the_remedy(tmp_path):
    model = model_of("llama")
    attach(model, "rela")
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(Unsupported, match="are not in the safetensors"):
        attach(loaded, "rela")
    assert loaded.config._attn_implementation == "sdpa" and not any(CHILD in n for n, _ in loaded.named_parameters())
    loaded.config.attnbench_attached = None
    attach(loaded, "rela")


def test_layers_that_share_one_module_are_served():
    torch.manual_seed(1)
    config = AlbertConfig(**SIZES, embedding_size=16)
    model = AutoModelForMaskedLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = model(ids_of()).logits
        assert len(attach(model, "softmax")) == 1
        torch.testing.assert_close(model(ids_of()).logits, expected, atol=EAGER_TOLERANCE, rtol=1e-5)


def test_a_model_without_input_ids_is_refused_by_attach_and_served_by_register():
    torch.manual_seed(1)
    config = ViTConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=8
    )
    model = ViTModel(config).eval()
    model.set_attn_implementation("eager")
    pixels = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = model(pixels).last_hidden_state
        with pytest.raises(Unsupported, match=r"pixel_values.*register"):
            attach(model, "softmax")
        model.set_attn_implementation(register("softmax"))
        torch.testing.assert_close(model(pixels).last_hidden_state, expected, atol=EAGER_TOLERANCE, rtol=1e-5)


REFUSED = {
    "softcap": (lambda: model_of("gemma2", attn_logit_softcapping=30.0), "softmax", "softcap"),
    "sinks": (
        lambda: AutoModelForCausalLM.from_config(
            GptOssConfig(**{**SIZES, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4})
        ),
        "entmax15", "sinks",
    ),
    "position bias": (
        lambda: AutoModelForSeq2SeqLM.from_config(
            T5Config(vocab_size=TOKENS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
        ),
        "entmax15", "bias",
    ),
    "no interface": (
        lambda: AutoModelForCausalLM.from_config(MambaConfig(vocab_size=TOKENS, hidden_size=32, num_hidden_layers=2)),
        "entmax15", "interface",
    ),
    "not causal": (lambda: model_of("llama"), "nystrom", "no causal form"),
    "chooses by later tokens": (lambda: model_of("llama"), "routing", "leak the future"),
    "sliding window": (lambda: model_of("mistral"), "linear", "bounds"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_refused_with_the_reason(case):
    make, selection, reason = REFUSED[case]
    model = make().eval()
    before = model.config._attn_implementation
    with pytest.raises(Unsupported, match=reason):
        attach(model, selection)
        logits_of(model, ids_of())
    assert case == "sliding window" or model.config._attn_implementation == before


def test_a_mask_with_a_bias_is_refused():
    model = model_of("llama")
    attach(model, "softmax")
    bias = torch.zeros(2, 1, LENGTH, LENGTH) - torch.rand(LENGTH, LENGTH)
    with pytest.raises(Unsupported, match="adds a bias"):
        model(ids_of(), attention_mask=bias, use_cache=False)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_attentions_are_returned_where_they_are_asked_for(name):
    model = model_of(name)
    model.set_attn_implementation("eager")
    more = {"attention_mask": valid_of("right")}
    with torch.no_grad():
        expected = model(ids_of(), output_attentions=True, **more).attentions
        attach(model, "softmax")
        found = model(ids_of(), output_attentions=True, **more).attentions
        assert len(found) == len(expected) == 2 and not model(ids_of(), **more).attentions
        attach(model, "entmax15")
        sparse = model(ids_of(), output_attentions=True, **more).attentions
    real = valid_of("right").bool()
    for one, other, map_ in zip(found, expected, sparse, strict=True):
        assert torch.allclose(one.transpose(1, 2)[real], other.transpose(1, 2)[real], atol=EAGER_TOLERANCE)
        assert map_.shape == other.shape and (map_ == 0).float().mean() > (other == 0).float().mean()


def test_attentions_that_do_not_exist_are_refused():
    model = model_of("bert")
    attach(model, "nystrom[landmarks=2]")
    logits_of(model, ids_of())
    with pytest.raises(Unsupported, match="no weights, which output_attentions asks for"):
        model(ids_of(), output_attentions=True)
