"""Layers beside our references: right ones in many forms, and each usual mistake, which is named."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attnbench
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.wings.audit import suite
from attnbench.bench.wings.audit.like import alibi_slopes
from attnbench.bench.wings.audit.suite import audit_module
from attnbench.variants.ops.entmax import sparsemax


@pytest.fixture(autouse=True)
def _alone(monkeypatch, request):
    """Only what is tested here; the other tests of the audit have files of their own."""
    names = suite.MIXING if "mix" in request.node.name else ()
    kept = ("evaluation", *names, "weights") if names else ("weights",)
    monkeypatch.setattr(suite, "TESTS", {name: suite.TESTS[name] for name in kept})
    monkeypatch.setattr(suite, "MIXING", names)
    monkeypatch.setattr(suite.decoding, "tests", lambda subject: {})


def finding(name, module, **options):
    return next(each for each in audit_module(module, compile="", **options).findings if each.property == name)


def compared(module, like):
    return finding(f"like {like}", module, like=like)


def noted(module):
    found = finding("weights", module)
    assert found.verdict == "note"
    return found.detail


class Layer(nn.Module):
    """Causal softmax attention of four heads; subclasses compute it otherwise, or get it wrong."""

    causal, scale, kv_heads = True, 8**-0.5, 4

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        few = 8 * self.kv_heads
        self.query, self.key, self.value, self.output = (nn.Linear(32, n) for n in (32, few, few, 32))

    def forward(self, x):
        return self.output(self.joined(self.mixed(*self.split(x))))

    def split(self, x):
        return (each(x).unflatten(-1, (-1, 8)).transpose(1, 2) for each in (self.query, self.key, self.value))

    def joined(self, mixed):
        return mixed.transpose(1, 2).flatten(2)

    def mixed(self, q, k, v):
        return self.weights(self.masked(self.scores(q, k))) @ v

    def scores(self, q, k):
        return q @ k.mT * self.scale

    def masked(self, scores):
        return scores.masked_fill(self.hidden(*scores.shape[-2:]), -1e9) if self.causal else scores

    def hidden(self, queries, keys):
        return torch.ones(queries, keys, dtype=torch.bool).triu(1)

    def weights(self, scores):
        return scores.softmax(-1)


class Encoder(Layer):
    causal = False


class Fused(Layer):
    def mixed(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class ScaledBefore(Layer):
    scale = 1.0

    def split(self, x):
        q, k, v = super().split(x)
        return q / 8**0.25, k * 8**-0.25, v


class Rotated(Layer):
    """Rotary positions, behind the scale of queries."""

    scale = 1.0

    def mixed(self, q, k, v):
        return super().mixed(self.turned(q * 8**-0.5), self.turned(k), v)

    def turned(self, x):
        angle = torch.arange(x.shape[2])[:, None] * 0.1 ** torch.arange(4)
        one, two, cos, sin = *x.chunk(2, -1), angle.cos(), angle.sin()
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)


class Einsum(Layer):
    """Heads stay behind positions."""

    def forward(self, x):
        q, k, v = (each(x).unflatten(-1, (4, 8)) for each in (self.query, self.key, self.value))
        weights = self.weights(self.masked(torch.einsum("bihd,bjhd->bhij", q, k) * self.scale))
        return self.output(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


class HeadByHead(Layer):
    def forward(self, x):
        heads = zip(*(each.unbind(1) for each in self.split(x)), strict=True)
        return self.output(torch.cat([self.mixed(*(each[:, None] for each in head))[:, 0] for head in heads], -1))


class InBlocks(Layer):
    """Blocks of queries, written into one output."""

    def mixed(self, q, k, v):
        found, hidden = torch.empty_like(q), self.hidden(q.shape[2], k.shape[2])
        for at in range(0, q.shape[2], 32):
            rows = slice(at, at + 32)
            scores = self.scores(q[:, :, rows], k).masked_fill(hidden[rows], -torch.inf)
            found[:, :, rows] = self.weights(scores) @ v
        return found


class InFloat32(Layer):
    def weights(self, scores):
        return F.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)


class Grouped(Layer):
    kv_heads = 2

    def mixed(self, q, k, v):
        return super().mixed(q, self.repeated(k), self.repeated(v))

    def repeated(self, x):
        return x.repeat_interleave(2, 1)


class GroupedByEinsum(Grouped):
    def mixed(self, q, k, v):
        scores = torch.einsum("bkgid,bkjd->bkgij", q.unflatten(1, (2, 2)), k) * self.scale
        return torch.einsum("bkgij,bkjd->bkgid", self.weights(self.masked(scores)), v).flatten(1, 2)


class GroupedInTurn(Grouped):
    def repeated(self, x):
        return x.repeat(1, 2, 1, 1)


class ValuesInTurn(Grouped):
    def mixed(self, q, k, v):
        return Layer.mixed(self, q, k.repeat_interleave(2, 1), v.repeat(1, 2, 1, 1))


class Online(Layer):
    """Blocks of keys, with a maximum that grows."""

    rescales_sums = rescales_total = True
    block = 32

    def mixed(self, q, k, v):
        hidden = self.hidden(q.shape[2], k.shape[2])
        top, total, sums = torch.full((*q.shape[:-1], 1), -1e30), 0.0, torch.zeros_like(q)
        for at in range(0, k.shape[2], self.block):
            keys = slice(at, at + self.block)
            scores = self.scores(q, k[:, :, keys]).masked_fill(hidden[:, keys], -1e30)
            higher = torch.maximum(top, scores.amax(-1, keepdim=True))
            exps, rescale, top = (scores - higher).exp(), (top - higher).exp(), higher
            sums = sums * (rescale if self.rescales_sums else 1.0) + exps @ v[:, :, keys]
            total = total * (rescale if self.rescales_total else 1.0) + exps.sum(-1, keepdim=True)
        return sums / total


class NotRescaled(Online):
    rescales_sums = False


class NothingRescaled(Online):
    rescales_sums = rescales_total = False
    block = 64


class OverAllHeads(Layer):
    scale = 32**-0.5


class NotScaled(Layer):
    scale = 1.0


class Tempered(Layer):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.randn(4, 1, 1))

    def scores(self, q, k):
        return super().scores(q, k) * self.temperature.exp()


class ScaledTwice(Layer):
    def mixed(self, q, k, v):
        return F.scaled_dot_product_attention(q * 8**-0.5, k, v, is_causal=True)


class NotNormalised(Layer):
    def weights(self, scores):
        return scores.exp()


class ZeroKeys(Encoder):
    def mixed(self, q, k, v):
        more = (0, 0, 0, -k.shape[2] % 64)
        return super().mixed(q, F.pad(k, more), F.pad(v, more))


class FilledInput(Encoder):
    """Whole blocks of inputs, whose rows behind the end are keys too."""

    def forward(self, x):
        return super().forward(F.pad(x, (0, 0, 0, -x.shape[1] % 64)))[:, : x.shape[1]]


class FilledCausal(FilledInput):
    causal = True


class OneAhead(Layer):
    def hidden(self, queries, keys):
        return super().hidden(queries, keys).triu(2)


class OneBehind(Layer):
    def hidden(self, queries, keys):
        return torch.ones(queries, keys, dtype=torch.bool).triu()


class Capped(Layer):
    def scores(self, q, k):
        return 20 * (super().scores(q, k) / 20).tanh()


class CappedAfter(Layer):
    def weights(self, scores):
        return (20 * (scores / 20).tanh()).softmax(-1)


class OverQueries(Layer):
    def weights(self, scores):
        return scores.softmax(-2)


class OverHeads(Layer):
    def weights(self, scores):
        return scores.softmax(1)


class ALiBi(Layer):
    slope = -1.0

    def slopes(self):
        return 2.0 ** (-8 * torch.arange(1, 5) / 4)

    def scores(self, q, k):
        back = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        return super().scores(q, k) + self.slope * self.slopes()[:, None, None] * back


class BiasGrows(ALiBi):
    slope = 1.0


class BiasTwice(ALiBi):
    slope = -2.0


class BiasDivided(ALiBi):
    """Scores and their bias are divided together."""

    slope = -(8**-0.5)


class SlopesFromOne(ALiBi):
    def slopes(self):
        return 2.0 ** (-8 * torch.arange(4) / 4)


class SlopesReversed(ALiBi):
    def slopes(self):
        return super().slopes().flip(0)


class Linear(Layer):
    """Causal linear attention by its scores."""

    def mixed(self, q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        sums = (q @ k.mT).tril() @ v
        return sums / self.norm(q, k)

    def norm(self, q, k):
        return (q * k.cumsum(2)).sum(-1, keepdim=True)


class LinearNotNormalised(Linear):
    def norm(self, q, k):
        return 1.0


class LinearOfAllKeys(Linear):
    def norm(self, q, k):
        return (q * k.sum(2, keepdim=True)).sum(-1, keepdim=True)


class Windowed(Layer):
    size = 8

    def hidden(self, queries, keys):
        back = torch.arange(queries)[:, None] - torch.arange(keys)
        return (back < 0) | (back >= self.size)


class WindowOf9(Windowed):
    size = 9


class WithSink(Windowed):
    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(4))

    def weights(self, scores):
        sinks = self.sinks[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]


class ReLA(Layer):
    """The paper's layer: ReLU, then a gated norm over all heads."""

    def __init__(self):
        super().__init__()
        self.gate, self.gain = nn.Parameter(torch.randn(32)), nn.Parameter(1 + 0.1 * torch.randn(32))

    def masked(self, scores):
        return scores.masked_fill(self.hidden(*scores.shape[-2:]), 0.0)

    def weights(self, scores):
        return scores.relu()

    def joined(self, mixed):
        sums = super().joined(mixed)
        return sums / (sums.square().mean(-1, keepdim=True) + 1e-8).sqrt() * self.gain * (self.gate * sums).sigmoid()


class Gated(Layer):
    def forward(self, x):
        return self.output(self.joined(self.mixed(*self.split(x))) * x.sigmoid())


class Padded(Encoder):
    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        pairs = None if mask is None else mask[:, None, None]
        return self.output(self.joined(F.scaled_dot_product_attention(q, k, v, pairs, scale=self.given(mask))))

    def given(self, mask):
        return None


class PaddedOtherwise(Padded):
    """The path with a mask has another scale."""

    def given(self, mask):
        return None if mask is None else 1 / 8


class SplitByView(Layer):
    def split(self, x):
        return (each(x).reshape(len(x), 4, -1, 8) for each in (self.query, self.key, self.value))

    def joined(self, mixed):
        return mixed.reshape(len(mixed), -1, 32)


class JoinedByView(Layer):
    def joined(self, mixed):
        return mixed.reshape(len(mixed), -1, 32)


def function(q, k, v):
    late = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(late, -1e9).softmax(-1) @ v


def function_without_scale(q, k, v):
    return function(q * q.shape[-1] ** 0.5, k, v)


def named(each):
    return getattr(each, "__name__", None)


OF_SOFTMAX = [Layer, Encoder, Fused, ScaledBefore, Rotated, Einsum, HeadByHead, InBlocks, InFloat32, Grouped,
              GroupedByEinsum, Online, FilledCausal, Padded]  # fmt: skip

RIGHT = [
    *((each, "softmax") for each in OF_SOFTMAX),
    (ALiBi, "softmax|alibi"),
    (Linear, "linear"),
    (Windowed, "window[size=8]"),
    (WithSink, "window[size=8,sink=learned]"),
    (ReLA, "rela"),
]

WRONG = [
    (OverAllHeads, "softmax", "scores are divided by sqrt(32); a head is 8 wide: sqrt(8)"),
    (NotScaled, "softmax", "scores are not divided; a head is 8 wide"),
    (ScaledTwice, "softmax", "scores are divided by 8; a head is 8 wide"),
    (Tempered, "softmax", "scores are multiplied by a parameter of the layer, which was drawn for this test"),
    (NotNormalised, "softmax", "weights are not divided by their sum"),
    (LinearNotNormalised, "linear", "weights are not divided by their sum"),
    (LinearOfAllKeys, "linear", "weights are not divided by their sum, or by another one"),
    (NotRescaled, "softmax", "sums over blocks of 32 keys are not rescaled when the maximum grows"),
    (NothingRescaled, "softmax", "sums over blocks of 64 keys are not rescaled when the maximum grows"),
    (ZeroKeys, "softmax", "keys that fill up a block take part"),
    (FilledInput, "softmax", "keys that fill up a block take part"),
    (GroupedInTurn, "softmax", "heads of keys and values are repeated in turn (0, 1, 0, 1)"),
    (ValuesInTurn, "softmax", "heads of values are repeated in turn (0, 1, 0, 1)"),
    (OneAhead, "softmax", "a query sees one key ahead"),
    (OneBehind, "softmax", "a query does not see its own key"),
    (Encoder, "softmax1", "it is like softmax"),
    (Capped, "softmax", "scores are capped at 20"),
    (CappedAfter, "softmax", "the cap of scores at 20 comes after the mask"),
    (OverQueries, "softmax", "the softmax runs over queries"),
    (OverHeads, "softmax", "the softmax runs over heads"),
    (BiasGrows, "softmax|alibi", "the bias of ALiBi has the other sign"),
    (BiasTwice, "softmax|alibi", "the bias of ALiBi is added twice"),
    (BiasDivided, "softmax|alibi", "the bias of ALiBi is divided by sqrt(8), as scores are"),
    (SlopesFromOne, "softmax|alibi", "the slopes of ALiBi begin at 1"),
    (SlopesReversed, "softmax|alibi", "the slopes of ALiBi stand in another order of heads"),
    (Layer, "softmax|alibi", "there is no bias of ALiBi"),
    (ALiBi, "softmax", "it has a bias of ALiBi: --like 'softmax|alibi'"),
    (WindowOf9, "window[size=8]", "it is like window[size=9]"),
    (Layer, "window[size=8]", "it is like softmax"),
    (Windowed, "window[size=8,sink=learned]", "it is like window[sink=none,size=8]"),
    (Layer, "rela", "it is like softmax"),
]


@pytest.mark.parametrize(("kind", "like"), RIGHT, ids=named)
def test_a_right_layer_is_like_the_reference_in_whatever_form(kind, like):
    found = compared(kind(), like)
    assert (found.verdict, found.detail) == ("holds", "")
    assert found.measured < 1e-9


@pytest.mark.parametrize(("kind", "like", "cause"), WRONG, ids=named)
def test_a_usual_mistake_is_red_and_named(kind, like, cause):
    found = compared(kind(), like)
    assert found.verdict == "fails" and cause in found.detail, found.detail
    assert "attnbench.audit(m, like=" in found.program[-1]


def test_layers_of_torch_and_functions_are_compared():
    assert compared(nn.MultiheadAttention(32, 4, batch_first=True), "softmax").verdict == "holds"
    assert compared(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), "softmax").verdict == "holds"
    assert compared(function, "softmax").verdict == "holds"
    assert "scores are not divided" in compared(function_without_scale, "softmax").detail


def test_a_scale_that_is_right_at_one_width_is_red():
    def fixed(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, scale=0.25)

    def of_the_width(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5)

    report = attnbench.audit(fixed, compile="", like="softmax")
    assert [each.property for each in report.failures] == ["like softmax"], str(report)
    assert attnbench.audit(of_the_width, compile="", like="softmax")


def test_a_difference_with_padding_alone_is_red():
    found = compared(PaddedOtherwise(), "softmax")
    assert found.detail.startswith("differs with padding by ") and "scores are divided by 8;" in found.detail


@pytest.mark.parametrize(
    ("module", "like", "reason"),
    [
        (nn.GRU(32, 32, batch_first=True), "softmax", "not compared: no product of queries and keys is seen"),
        (nn.MultiheadAttention(32, 4, batch_first=True, add_bias_kv=True), "softmax", "not compared: it has 151 keys"),
        (Gated(), "softmax", "its sums of values are those of softmax; what follows them, as a gate or a norm"),
        (Layer(), "performer", "not compared: performer draws numbers that the layer draws otherwise"),
        (Layer(), "delta", "not compared: delta projects the hidden state by parameters of its own"),
        (ALiBi(), "gate+softmax", "not compared: gate+softmax projects the hidden state"),
    ],
)
def test_what_cannot_be_compared_is_asked_and_passes_nowhere(module, like, reason):
    report = audit_module(module, compile="", like=like)
    assert not report and f"like {like}: {reason}" in str(report)
    assert f"not decided: like {like}" in report.verdict


def test_an_unknown_reference_is_refused_at_once():
    with pytest.raises(SelectionError, match="did you mean 'softmax'"):
        attnbench.audit(Layer(), like="sofmax")
    with pytest.raises(SelectionError, match="rope"):
        attnbench.audit(Layer(), like="softmax|rope")


def test_a_named_target_is_compared_where_its_code_was_never_imported(tmp_path, monkeypatch):
    lines = ("import torch", "def mine(q, k, v):", "    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v")
    layer = ("from torch import nn", "class Mine(nn.MultiheadAttention):", "    def __init__(self):")
    layer += ("        super().__init__(32, 4, batch_first=True)",)
    (tmp_path / "mine.py").write_text("\n".join((*lines, *layer)))
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "Mine"):
        report = attnbench.audit(f"mine.py:{name}", compile="", like="softmax")
        assert report and "like softmax" in str(report).partition("ok: ")[2]
    report = attnbench.audit("mine.py:Mine", compile="", like="softmax1")
    assert "cause: it is like softmax" in str(report)


def test_the_fixture_takes_a_reference(audit):
    assert audit(Layer(), compile="", like="softmax")
    with pytest.raises(pytest.fail.Exception, match=r"like softmax: differs by .* scores are not divided"):
        audit(NotScaled(), compile="", like="softmax")


@pytest.mark.parametrize("heads", [4, 6])
def test_slopes_are_those_of_the_paper_and_of_its_code(heads):
    def released(count):
        """The released code of Press et al. 2022, in its own words of powers."""
        if math.log2(count).is_integer():
            start = 2 ** (-(2 ** -(math.log2(count) - 3)))
            return [start * start**at for at in range(count)]
        low = 2 ** math.floor(math.log2(count))
        return released(low) + released(2 * low)[0::2][: count - low]

    tables = alibi_slopes(heads)
    assert tables[-1].tolist() == pytest.approx(released(heads))
    assert tables[0].tolist() == pytest.approx([2 ** (-8 * at / heads) for at in range(1, heads + 1)])


@pytest.mark.parametrize("kind", [SplitByView, JoinedByView])
def test_heads_that_mix_positions_are_named_where_they_are_seen(kind):
    report = audit_module(kind(), compile="")
    words = "split" if kind is SplitByView else "joined"
    assert f"; cause: heads are {words} by view, without transpose, which mixes positions" in str(report)
    assert len(report.failures) and str(report).count("by view") == 1


def test_notes_say_what_the_weights_are():
    kept = "its weights sum to one; a number added to all its scores changes nothing; the order of other tokens"
    assert noted(Layer()) == f"{kept} changes nothing; tokens that stand twice count more"
    assert noted(Rotated()) == f"{kept} counts"
    assert "changes outputs" in noted(NotNormalised()) and "its weights sum to 0." in noted(WithSink())
    assert noted(nn.GRU(32, 32, batch_first=True)) == "the order of other tokens counts"

    class Largest(Encoder):
        def weights(self, scores):
            largest = (scores == scores.amax(-1, keepdim=True)).to(scores.dtype)
            return largest / largest.sum(-1, keepdim=True)

    class Sparse(Encoder):
        def weights(self, scores):
            return sparsemax(8 * scores)

    assert noted(Largest()).endswith("tokens that stand twice count once")
    assert noted(Sparse()).endswith("tokens that stand twice count more")


class InChunks(nn.Module):
    """Linear attention in chunks: queries and keys of 8 heads are the same, and stand as rows beside their state."""

    def __init__(self):
        super().__init__()
        self.projections, self.output = nn.Linear(32, 160), nn.Linear(128, 32)

    def forward(self, x):
        carried, outputs = x.new_zeros(len(x), 16, 128), []
        for piece in self.projections(x).split(64, 1):
            q, k, v = piece.split([16, 16, 128], -1)
            seen = torch.ones(q.shape[1], q.shape[1], dtype=x.dtype).tril()
            within = torch.einsum("bln,bmn,lm,bmp->blp", q, k, seen, v)
            outputs.append(within + torch.einsum("bln,bnp->blp", q, carried))
            carried = carried + k.mT @ v
        return self.output(torch.cat(outputs, 1))


def test_products_of_several_sizes_are_no_error_of_the_audit():
    assert "raises" not in noted(InChunks())
