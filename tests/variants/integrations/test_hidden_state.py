"""Variants that take the hidden state, wrappers and patterns over layers, inside models of transformers."""

import copy

import pytest
import torch

from attnbench.variants.contract import Unsupported

pytest.importorskip("transformers", reason="needs the extra attnbench[transformers]")

from transformers import AlbertConfig, AutoModelForCausalLM, AutoModelForMaskedLM, BertConfig, LlamaConfig

from attnbench.variants.integrations.transformers import CHILD, attach, observe, register

SIZES = {
    "vocab_size": 32, "hidden_size": 48, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IDS = torch.randint(3, 32, (2, 10), generator=torch.Generator().manual_seed(0))
CAUSAL = ["delta", "gated-linear", "ssd", "fox", "nsa", "differential-v2", "gate+entmax15", "gate[by=head]+rela"]


def llama():
    torch.manual_seed(1)
    # heads of 8 make up 32 of the 48 numbers of the hidden state
    config = LlamaConfig(**SIZES, num_key_value_heads=2, head_dim=8)
    return AutoModelForCausalLM.from_config(config).eval()


def bert():
    torch.manual_seed(1)
    return AutoModelForMaskedLM.from_config(BertConfig(**SIZES)).eval()


@torch.no_grad()
def logits_of(model, ids=IDS, **more):
    return model(ids, **({"use_cache": False} if model.config.model_type == "llama" else {}), **more).logits


@pytest.mark.parametrize(
    ("make", "selection"), [*((llama, each) for each in CAUSAL), *((bert, each) for each in CAUSAL[-3:])]
)
def test_the_variant_gets_what_the_attention_module_is_called_with(make, selection):
    model = make()
    modules = attach(model, selection)
    given, seen = [], []

    def note(_, args, named):
        given.append([*args, *named.values()][0])

    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in modules]
    with observe(lambda module, variant, query, key, mask, hidden: seen.append((variant, hidden))):
        before = logits_of(model)
    assert len(seen) == 2
    for (variant, hidden), expected in zip(seen, given, strict=True):
        assert torch.equal(hidden, expected) and variant.shape.hidden_width == 48
    for hook in hooks:
        hook.remove()
    if make is llama:
        other = IDS.clone()
        other[:, 6] = 3 + (IDS[:, 6] - 2) % 29
        changed = (logits_of(model, other) - before).abs()
        assert changed[:, :6].max() < 1e-5 < changed[:, 6:].max()
    model.train()(IDS, labels=IDS).loss.backward()
    own = {name: p for name, p in model.named_parameters() if CHILD in name}
    assert own and all(p.grad is not None and torch.isfinite(p.grad).all() for p in own.values())
    # a layer that nothing else draws on would not move where the gate is cut off from the hidden state
    assert sum(p.grad.abs().sum() for p in own.values()) > 0


def test_an_open_gate_gives_softmax():
    model = llama()
    expected = logits_of(model)
    for module in attach(model, "gate+softmax"):
        gate = module._modules[CHILD]
        # sigmoid(0) = 1/2, and the projection behind attention gives the other half back
        torch.nn.init.zeros_(gate.projection.weight)
        module.o_proj.weight.data.mul_(2.0)
    torch.testing.assert_close(logits_of(model), expected, atol=2e-6, rtol=1e-5)


def test_what_the_cache_has_no_place_for_is_refused():
    model = llama()
    attach(model, "gate+local[query_block=4]")
    with torch.no_grad():
        first = model(IDS[:, :6], use_cache=True)
        rest = model(IDS[:, 6:], past_key_values=first.past_key_values).logits
    torch.testing.assert_close(rest, logits_of(model)[:, 6:], atol=2e-6, rtol=1e-5)
    for selection in ("delta", "fox", "gate+linear", "conv+softmax"):
        attach(model, selection)
        first = model(IDS[:, :6], use_cache=True)
        with pytest.raises(Unsupported):
            model(IDS[:, 6:], past_key_values=first.past_key_values)


def test_a_pattern_names_each_layer_by_itself():
    model = llama()
    modules = attach(model, "rela//softmax")
    assert [CHILD in module._modules for module in modules] == [True, False]
    plain = llama()
    attach(plain, "rela")
    assert not torch.equal(logits_of(model), logits_of(plain))
    model.set_attn_implementation(register("entmax15//softmax"))
    mixed = logits_of(model)
    model.set_attn_implementation("eager")
    model.model.layers[0].self_attn.config = copy.deepcopy(model.config)
    model.model.layers[0].self_attn.config._attn_implementation = register("entmax15")
    torch.testing.assert_close(mixed, logits_of(model), atol=2e-6, rtol=1e-5)


def test_a_pattern_over_layers_that_share_one_module_is_refused():
    torch.manual_seed(1)
    model = AutoModelForMaskedLM.from_config(AlbertConfig(**SIZES, embedding_size=16)).eval()
    with pytest.raises(Unsupported, match="does not know its layer"):
        attach(model, "rela//softmax")


@pytest.mark.parametrize(
    ("selection", "reason"),
    [
        ("matched+softmax", "feed-forward"),
        ("softmax//matched+gate+softmax", "feed-forward"),
        ("additive-lm[kernel_size=4]", "sublayer"),
        ("{file}:Own", "projections of its own"),
    ],
)
def test_what_changes_more_than_attention_is_refused_by_name(selection, reason, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from attnbench.variants.contract import Layer\n\nclass Own(Layer):\n    transform = lambda s, x, m: x\n"
    )
    selection = selection.format(file=file)
    model = llama()
    with pytest.raises(Unsupported, match=reason):
        attach(model, selection)
    with pytest.raises(Unsupported, match=reason):
        register(selection)


@pytest.mark.parametrize("selection", ["delta", "gate+softmax", "softmax//gated-linear"])
def test_register_alone_refuses_what_takes_the_hidden_state(selection):
    with pytest.raises(Unsupported, match=r"takes the hidden state.*call attach"):
        register(selection)
