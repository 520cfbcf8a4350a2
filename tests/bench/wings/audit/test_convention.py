"""The convention of modules that were not written for us, found from their signature and by trial."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnbench.bench.wings.audit.convention import Unclear, recognise
from attnbench.bench.wings.audit.suite import audit_module

VALID = torch.ones(2, 64, dtype=torch.bool)
VALID[0, :4], VALID[1, 20] = False, False


def heads_last(q, k, v, mask=None):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


def keeps_nan(q, k, v, attn_mask=None):
    """Rows without a key are NaN, as a softmax of minus infinities is."""
    scores = q @ k.mT / 4
    return (scores if attn_mask is None else scores.masked_fill(~attn_mask, -torch.inf)).softmax(-1) @ v


class Layer(nn.Module):
    """Four heads of 12 with own projections; subclasses take a mask in their own way."""

    def __init__(self):
        super().__init__()
        self.projections, self.output = nn.Linear(48, 144), nn.Linear(48, 48)

    def attend(self, x, mask, causal=False):
        q, k, v = self.projections(x).view(*x.shape[:2], 3, 4, 12).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Additive(Layer):
    def forward(self, hidden_states, attention_mask=None):
        assert attention_mask is None or attention_mask.is_floating_point()
        return self.attend(hidden_states, attention_mask), None


class Dropping(Layer):
    def forward(self, x, mask=None):
        return self.attend(x, None if mask is None else ~mask[:, None, None])


class Keeping(Layer):
    def forward(self, x, mask=None):
        return self.attend(x, None if mask is None else mask[:, None, None])


class Counting(Layer):
    """Padding by the number of tokens of each sequence, as encoders of speech take it."""

    def keeps(self, x, lengths):
        return torch.arange(x.shape[1]) < lengths[:, None]

    def forward(self, x, lengths=None):
        return self.attend(x, None if lengths is None else self.keeps(x, lengths)[:, None, None])


class OneTooMany(Counting):
    def keeps(self, x, lengths):
        return torch.arange(x.shape[1]) <= lengths[:, None]


class AskingForNumbers(Counting):
    def forward(self, x, x_lens):
        return super().forward(x, x_lens)


class IgnoringNumbers(Counting):
    def forward(self, x, seq_lens=None):
        return self.attend(x, None)


class Ignoring(Layer):
    def forward(self, x, mask=None):
        return self.attend(x, None)


class Blurred(Layer):
    """Neither value of the mask keeps anything out."""

    def forward(self, x, mask):
        return self.attend(x, None) * (1.5 + mask.float().mean())


class Causal(Layer):
    def forward(self, x):
        return {"out": self.attend(x, None, True)}


class SequenceFirst(Layer):
    """(positions, batch, width), and nothing looks ahead."""

    def forward(self, x, key_padding_mask=None):
        keep = None if key_padding_mask is None else ~key_padding_mask[:, None, None]
        ahead = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        return self.attend(x.transpose(0, 1), ahead if keep is None else ahead & keep).transpose(0, 1), None


class ChannelsFirst(Layer):
    def forward(self, x):
        return self.attend(x.mT, None, True).mT


class KeywordsAlone(Layer):
    def forward(self, *, hidden_states, attention_mask=None):
        return self.attend(hidden_states, None if attention_mask is None else attention_mask[:, None, None])


class AnyKeywords(Layer):
    def forward(self, **kwargs):
        return self.attend(kwargs["hidden_states"], None)


class Turned(Layer):
    """Rotary positions from a table that is passed in."""

    def attend(self, x, table, causal=False):
        q, k, v = self.projections(x).view(*x.shape[:2], 3, 4, 12).permute(2, 0, 3, 1, 4)
        cos, sin = (each[:, None] for each in table)
        q, k = (each * cos + torch.cat([-each[..., 6:], each[..., :6]], -1) * sin for each in (q, k))
        return self.output(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class TablePassedIn(Turned):
    heads = 4

    def forward(self, hidden_states, position_embeddings=None):
        return self.attend(hidden_states, position_embeddings)


class PositionsPassedIn(Turned):
    def forward(self, x, positions):
        angles = positions[..., None] * 0.1 ** torch.arange(6).repeat(2)
        return self.attend(x, (angles.cos(), angles.sin()))


class StateFirst(Layer):
    """A sum of the past; the state comes first, and has to be passed in."""

    def forward(self, x, state):
        past = self.projections(x)[..., :48].cumsum(1) + (0 if state is None else state[:, None])
        return past[:, -1], past


def by_name(*, query, key, value, is_causal=False):
    return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(50, 48), Keeping()

    def forward(self, tokens, mask=None):
        return self.layer(self.table(tokens), mask)


@pytest.mark.parametrize(
    ("target", "kind", "plain", "padded", "causal"),
    [
        (F.scaled_dot_product_attention, "qkv", "m(q, k, v)", "m(q, k, v, attn_mask=valid[:, None, None])",
         "m(q, k, v, is_causal=True)"),
        (heads_last, "qkv", "m(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)",
         "m(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask=valid[:, None, None]).transpose(1, 2)",
         "m(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask=seen).transpose(1, 2)"),
        (keeps_nan, "qkv", "m(q, k, v)", "m(q, k, v, attn_mask=valid[:, None, None])", "m(q, k, v, attn_mask=seen)"),
        (Additive(), "layer", "m(x)[0]", "m(x, attention_mask=bias)[0]", "m(x, attention_mask=bias)[0]"),
        (Dropping(), "layer", "m(x)", "m(x, mask=~valid)", ""),
        (Keeping(), "layer", "m(x)", "m(x, mask=valid)", ""),
        (Causal(), "layer", "m(x)['out']", "", ""),
        (SequenceFirst(), "layer", "m(x.transpose(0, 1))[0].transpose(0, 1)",
         "m(x.transpose(0, 1), key_padding_mask=~valid)[0].transpose(0, 1)", ""),
        (ChannelsFirst(), "layer", "m(x.mT).mT", "", ""),
        (KeywordsAlone(), "layer", "m(hidden_states=x)", "m(hidden_states=x, attention_mask=valid)", ""),
        (AnyKeywords(), "layer", "m(hidden_states=x)", "", ""),
        (by_name, "qkv", "m(query=q, key=k, value=v)", "", "m(query=q, key=k, value=v, is_causal=True)"),
        (TablePassedIn(), "layer", "m(x, position_embeddings=rotary(12))", "", ""),
        (PositionsPassedIn(), "layer", "m(x, positions=positions)", "", ""),
        (StateFirst(), "layer", "m(x, state=None)[1]", "", ""),
        (nn.GRU(32, 32), "layer", "m(x.transpose(0, 1))[0].transpose(0, 1)", "", ""),
        pytest.param(torch.compile(Keeping(), backend="eager"), "layer", "m(x)", "m(x, mask=valid)", "",
                     marks=pytest.mark.slow),
        (Model(), "model", "m(ids)", "m(ids, mask=valid)", ""),
        (nn.MultiheadAttention(32, 4, batch_first=True), "layer", "m(x, x, x)[0]",
         "m(x, x, x, key_padding_mask=~valid)[0]", "m(x, x, x, attn_mask=~seen)[0]"),
    ],
)  # fmt: skip
def test_calls_are_found(target, kind, plain, padded, causal):
    found = recognise(target).convention
    assert (found.kind, found.plain, found.padded, found.causal) == (kind, plain, padded, causal)


def test_positions_first_is_found_by_what_spreads():
    found = recognise(nn.MultiheadAttention(32, 4))
    assert found.convention.plain == "m(x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1))[0].transpose(0, 1)"
    x = torch.randn(2, 64, 32)
    late = x + (torch.arange(64) == 40)[None, :, None]
    moved = (found((late,)) - found((x,))).abs().amax((0, 2))
    assert moved.min() > 0


@pytest.mark.parametrize("target", [Keeping(), Dropping(), Additive(), nn.MultiheadAttention(48, 4, batch_first=True)])
def test_the_uniform_call_masks_as_attention_by_hand(target):
    subject, x = recognise(target), torch.randn(2, 64, 48)
    short = subject((x[:1, 4:],))
    assert torch.allclose(subject((x,), VALID)[0, 4:], short[0], atol=1e-5)


def test_padding_and_causality_at_once_where_one_argument_holds_both():
    subject = recognise(F.scaled_dot_product_attention)
    q, k, v = subject.draw()
    ours = subject((q, k, v), VALID, causal=True)
    pairs = VALID[:, None, None] & torch.ones(64, 64, dtype=torch.bool).tril()
    scores = (q.double() @ k.double().mT / 4).masked_fill(~pairs, -torch.inf).softmax(-1)
    rows = pairs.any(-1, keepdim=True).expand_as(ours[..., :1])[..., 0]
    assert torch.allclose(ours[rows].double(), (scores @ v.double())[rows], atol=1e-5)


def test_a_mask_that_moves_nothing_is_said():
    found = recognise(Ignoring()).convention
    assert found.mask_ignored and found.padded == "m(x, mask=valid)"


@pytest.mark.parametrize(
    ("target", "name"), [(Counting(), "lengths"), (AskingForNumbers(), "x_lens"), (OneTooMany(), "lengths")]
)
def test_numbers_of_tokens_are_padding_behind_them(target, name):
    assert recognise(target).convention.padded == f"m(x, {name}=valid.sum(1))"


@pytest.mark.parametrize("target", [Counting, AskingForNumbers])
def test_padding_by_numbers_of_tokens_is_tried_behind_them_alone(target):
    found = audit_module(target(), causal=False)
    assert found and found.tried_all and not found.failures
    verdicts = {each.property: each.verdict for each in found.findings}
    assert all(verdicts[name] == "holds" for name in ("padding", "amount of padding", "empty rows", "gradients"))


def test_a_given_call_may_count_tokens():
    found = audit_module(Counting(), call="m(x, lengths=valid.sum(1))", causal=False, like="softmax")
    assert found and {each.property: each.verdict for each in found.findings}["like softmax"] == "holds"


@pytest.mark.parametrize("target", [OneTooMany, IgnoringNumbers])
def test_padding_that_numbers_of_tokens_leave_in_is_red(target):
    found = audit_module(target(), causal=False)
    assert {"padding", "amount of padding", "gradients"} <= {each.property for each in found.failures}


def test_an_unclear_mask_is_a_question_with_choices():
    with pytest.raises(Unclear, match=r"what does mask mean.*'m\(x, mask=valid\)' or 'm\(x, mask=~valid\)'"):
        recognise(Blurred())
    with pytest.raises(Unclear, match="how is it called"):
        recognise(lambda a, b: a)
    with pytest.raises(Unclear, match=r"^m\(x, mask=vald\) on .* raised NameError: name 'vald' .*\. A call may name m"):
        recognise(Blurred(), call="m(x, mask=vald)")


@pytest.mark.parametrize("call", ["m(x, mask=valid)", lambda m, x, valid: m(x, mask=valid)])
def test_a_given_call_replaces_the_search(call):
    subject, x = recognise(Blurred(), call=call), torch.randn(2, 64, 48)
    assert subject.convention.kind == "layer"
    assert torch.equal(subject((x,), VALID), subject.module(x, VALID))


def test_a_table_of_rotary_positions_is_that_of_the_positions():
    module, x = TablePassedIn(), torch.randn(2, 9, 48)
    angles = torch.arange(9)[:, None] * 10000.0 ** -(torch.arange(0, 12, 2) / 12).repeat(2)
    assert torch.allclose(recognise(module)((x,)), module(x, (angles.cos()[None], angles.sin()[None])), atol=1e-6)


def test_what_no_trial_gives_is_asked_for_by_name():
    class Needs(Layer):
        def forward(self, x, level):
            return self.attend(x + level, None)

    with pytest.raises(Unclear, match=r"called.* raised TypeError: .*`--call`, such as 'm\(x, level=…\)'"):
        recognise(Needs())
    assert recognise(Needs(), call="m(x, level=1.0)").convention.plain == "m(x, level=1.0)"


class ChannelsFirst(nn.Module):
    """Of as many channels as there are positions in a trial, with a layer of another width inside."""

    def __init__(self):
        super().__init__()
        self.filter, self.inside = nn.Linear(16, 64), nn.Conv1d(64, 64, 1)

    def forward(self, u):
        time = torch.arange(u.shape[2], dtype=u.dtype)[:, None] * torch.linspace(0.01, 1.0, 16)
        return torch.cumsum(self.inside(u) * self.filter(time.cos()).T, -1)


def test_positions_do_not_lie_along_the_channels_of_a_convolution():
    assert recognise(ChannelsFirst()).convention.plain == "m(x.mT).mT"


def test_tokens_without_a_table_of_embeddings_are_hidden_states():
    class OfTokens(Layer):
        def forward(self, tokens):
            return self.attend(tokens, None)

    assert recognise(OfTokens()).convention.plain == "m(x)"


def test_cross_attention_gets_the_states_as_its_memory():
    class Crosses(Layer):
        def forward(self, x, memory):
            return self.attend(x, None) + memory.mean(1, keepdim=True)

    assert recognise(Crosses()).convention.plain == "m(x, memory=x)"


def test_a_module_that_raises_errors_of_its_own_is_tried_further():
    class OwnError(Exception):
        pass

    class Strict(Layer):
        def forward(self, x, mask=None):
            if mask is not None and mask.dtype != torch.long:
                raise OwnError
            return self.attend(x, None if mask is None else mask[:, None, None].bool())

    assert recognise(Strict()).convention.padded == "m(x, mask=valid.long())"


def test_a_layer_of_transformers_is_causal_by_the_mask_of_its_model():
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaConfig

    config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2)
    found = recognise(LlamaAttention(config, layer_idx=0)).convention
    call = "m(x, position_embeddings=rotary(16), attention_mask=bias)[0]"
    assert (found.plain, found.causal, found.padded_causal) == (call.replace(", attention_mask=bias", ""), call, call)


def test_a_mask_that_is_read_as_padding_of_other_sequences_makes_nothing_causal():
    class ByRow(Layer):
        """Takes the first rows of a mask for those of its sequences, whatever the others are."""

        def forward(self, x, attention_mask=None):
            return self.attend(x, None if attention_mask is None else attention_mask[: len(x), None, None].bool())

    found = recognise(ByRow()).convention
    assert found.padded == "m(x, attention_mask=valid)" and found.causal == ""


def test_training_mode_is_as_before():
    module = Keeping()
    module.projections.eval()
    recognise(module)
    assert module.training and not module.projections.training
