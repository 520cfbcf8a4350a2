"""Planted faults in layers, right layers beside them, and the printed program that shows the same number."""

import contextlib
import io
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.gate.result import deviations
from attnbench.bench.wings.audit.convention import recognise
from attnbench.bench.wings.audit.future import distances
from attnbench.bench.wings.audit.program import assigned
from attnbench.bench.wings.audit.softmax import normalised
from attnbench.bench.wings.audit.suite import audit_module


class Layer(nn.Module):
    """Causal attention of four heads with rotary positions, a padding mask and a cache; subclasses get it wrong."""

    causal = True

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.projections, self.output = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x, mask=None, cache=None):
        before = 0 if cache is None else cache[0].shape[2]
        q, k, v = self.projections(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        q, k = self.turned(q, before), self.turned(k, before)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        pairs = torch.ones(k.shape[2], k.shape[2], dtype=torch.bool, device=x.device).tril()[-x.shape[1] :]
        if mask is not None:
            pairs = pairs & mask[:, None, None]
        mixed = self.mixed(q, k, v, pairs)
        return self.output(mixed.transpose(1, 2).flatten(2)), (k, v)

    def turned(self, x, before):
        angle = torch.arange(before, before + x.shape[2])[:, None] * 0.1 ** torch.arange(4)
        one, two = x.chunk(2, -1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)

    def mixed(self, q, k, v, pairs):
        return F.scaled_dot_product_attention(q, k, v, pairs)


class BlockMean(Layer):
    def mixed(self, q, k, v, pairs):
        k = k.unflatten(2, (-1, 8)).mean(3, keepdim=True).expand(-1, -1, -1, 8, -1).flatten(2, 3)
        return super().mixed(q, k, v, pairs)


class OneAhead(Layer):
    def mixed(self, q, k, v, pairs):
        return super().mixed(q, k, v, torch.ones_like(pairs).tril(1))


class Fourier(Layer):
    def mixed(self, q, k, v, pairs):
        return super().mixed(q, k, v, pairs) + torch.fft.fft(v, dim=2).real


class InTraining(Layer):
    def mixed(self, q, k, v, pairs):
        return super().mixed(q, k, v, None if self.training else pairs)


class MaskForCausality(Layer):
    def mixed(self, q, k, v, pairs):
        return super().mixed(q, k, v, pairs[..., -1:, :] if pairs.ndim == 4 else pairs)


class BehindZeroGate(Layer):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def mixed(self, q, k, v, pairs):
        return super().mixed(q, k, v, pairs) + self.gate * v.mean(2, keepdim=True)


class Normaliser(Layer):
    """Padding stays in the denominator: its content moves nothing else."""

    def mixed(self, q, k, v, pairs):
        weights = (q @ k.mT).exp()
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return (weights * pairs) @ v / (weights * seen).sum(-1, keepdim=True)


class SkipsBatchOfOne(Layer):
    def mixed(self, q, k, v, pairs):
        return super().mixed(
            q, k, v, pairs[0, 0, -1:].new_ones(q.shape[2], k.shape[2]).tril() if len(q) == 1 else pairs
        )


class BatchMean(Layer):
    def mixed(self, q, k, v, pairs):
        return super().mixed(q, k, v, pairs) + v.mean(0, keepdim=True)


class NoisyEvaluation(Layer):
    def mixed(self, q, k, v, pairs):
        return F.dropout(super().mixed(q, k, v, pairs), 0.1, training=True)


class FromZero(Layer):
    """Positions in the cache are forgotten."""

    def turned(self, x, before):
        return super().turned(x, 0)


class Detached(Layer):
    def mixed(self, q, k, v, pairs):
        return super().mixed(q.detach(), k, v, pairs)


class NaNGradients(Layer):
    def mixed(self, q, k, v, pairs):
        return (q @ k.mT + torch.zeros(pairs.shape).masked_fill(~pairs, -torch.inf)).softmax(-1) @ v


class Overflowing(Layer):
    def mixed(self, q, k, v, pairs):
        return (q @ k.mT).masked_fill(~pairs, -1e9).softmax(-1) @ v if q.dtype == torch.float32 else q * torch.inf


class Documents(Layer):
    """Rows may hold several texts; their boundaries are exact."""

    boundary = 0

    def forward(self, x, mask=None, document_ids=None):
        q, k, v = self.projections(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        q, k = self.turned(q, 0), self.turned(k, 0)
        pairs = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if mask is not None:
            pairs = pairs & mask[:, None, None]
        if document_ids is not None:
            of_keys = document_ids.roll(self.boundary, 1)
            pairs = pairs & (document_ids[:, None, :, None] == of_keys[:, None, None])
        return self.output(self.mixed(q, k, v, pairs).transpose(1, 2).flatten(2))


class DocumentsOffByOne(Documents):
    """The last token of a text counts among those of the next."""

    boundary = -1


class AbsoluteInRows(Documents):
    """Positions count through all texts of a row."""

    def turned(self, x, before):
        return x + torch.arange(x.shape[2])[:, None] * 0.05


class Lengths(Documents):
    """Boundaries as numbers of tokens before each text."""

    def forward(self, x, mask=None, cu_seqlens=None):
        texts = None if cu_seqlens is None else torch.bucketize(torch.arange(x.shape[1]), cu_seqlens, right=True)[None]
        return super().forward(x, mask, texts)


class PositionsAlone(Documents):
    def forward(self, x, mask=None, position_ids=None):
        return super().forward(x, mask)


class Windowed(Layer):
    """Causal attention in a window of eight tokens, the own one among them."""

    sliding_window = 8

    def mixed(self, q, k, v, pairs):
        return super().mixed(q, k, v, pairs & torch.ones_like(pairs).triu(1 - self.sliding_window))


class IgnoredWindow(Layer):
    sliding_window = 8


class WindowThatGrows(Windowed):
    """The argument that is named like the window asks for another one, and refuses."""

    def forward(self, x, mask=None, cache=None, window_size=None):
        assert window_size is None
        return super().forward(x, mask, cache)


def windowed_function(q, k, v, is_causal=False, window_size=(-1, -1)):
    """Attention with a window as flash attention takes it: tokens to the left and to the right."""
    pairs = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    pairs = pairs.tril() if is_causal else pairs
    return F.scaled_dot_product_attention(q, k, v, pairs.triu(-window_size[0]) if window_size[0] >= 0 else pairs)


def ignoring_function(q, k, v, is_causal=False, window_size=(-1, -1)):
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def report_of(kind, **options):
    return audit_module(kind(), kind.__name__, compile="", **options)


FAULTS = [
    (BlockMean, "future"),
    (OneAhead, "future"),
    (Fourier, "future"),
    (InTraining, "future"),
    (BehindZeroGate, "future"),
    (MaskForCausality, "mask and future"),
    (Normaliser, "padding"),
    (SkipsBatchOfOne, "padding"),
    (BatchMean, "batch"),
    (NoisyEvaluation, "evaluation"),
    (FromZero, "decoding"),
    (FromZero, "pieces"),
    (Detached, "gradients"),
    (NaNGradients, "empty rows"),
    (Overflowing, "half precision"),
    (DocumentsOffByOne, "packed rows"),
    (AbsoluteInRows, "packed rows"),
    (IgnoredWindow, "window"),
]


@pytest.mark.parametrize(("kind", "name"), FAULTS, ids=lambda each: getattr(each, "__name__", None))
def test_a_planted_fault_is_found_and_its_program_shows_it(kind, name):
    report = report_of(kind)
    found = {each.property: each for each in report.failures}
    assert name in found, str(report)
    assert printed(report, name, kind) == pytest.approx(found[name].measured, rel=1e-3, nan_ok=True)


def printed(report, name, kind):
    """The number that the program of a failure prints, as the finding has it."""
    lines = [line for line in report.reproduction(name) if not line.startswith("m = ...")]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec("\n".join(lines), {"m": kind().eval()})
    said = output.getvalue().strip().replace(", grad_fn=<DivBackward0>", "")
    if name in ("gradients", "empty rows"):
        # these print the two sides, or that numbers are finite
        assert "False" in said or "tensor" in said
        return next(each.measured for each in report.failures if each.property == name)
    return float(said.removeprefix("tensor(").removesuffix(")").split(",")[0])


def test_a_right_layer_with_rotary_positions_passes_everywhere():
    report = audit_module(Layer(), "Layer")
    verdicts = {each.property: each.verdict for each in report.findings}
    assert report, str(report)
    passed = {"future", "padding", "amount of padding", "mask and future", "batch", "empty rows", "gradients",
              "evaluation", "half precision", "decoding", "pieces", "compile"}  # fmt: skip
    assert passed <= {name for name, verdict in verdicts.items() if verdict == "holds"}, str(report)


@pytest.mark.parametrize(
    ("target", "name", "verdict"),
    [
        (Documents(), "packed rows", "holds"),
        (Lengths(), "packed rows", "holds"),
        (PositionsAlone(), "packed rows", "note"),
        (Layer(), "packed rows", "n.a."),
        (Windowed(), "window", "note"),
        (WindowThatGrows(), "window", "note"),
        (windowed_function, "window", "note"),
        (ignoring_function, "window", "fails"),
        (Layer(), "window", "n.a."),
    ],
)
def test_packed_rows_and_windows_are_judged_where_there_is_an_argument(target, name, verdict):
    found = {each.property: each for each in audit_module(target, compile="").findings}
    assert found[name].verdict == verdict


def test_packed_rows_of_a_model_are_judged_by_its_positions():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=99, n_positions=64, n_embd=16, n_layer=2, n_head=2))
    found = {each.property: each for each in audit_module(model, compile="").findings}["packed rows"]
    assert (found.verdict, found.detail) == ("holds", "")


def test_failures_come_first_and_properties_of_calls_last_in_the_line_and_in_the_summary():
    class LeakingAndRemembering(OneAhead):
        def forward(self, x, mask=None, cache=None):
            return super().forward(x.mul_(1.01), mask, cache)

    report = report_of(LeakingAndRemembering)
    failing = [each.property for each in report.failures]
    told = [each.partition(":")[0] for each in str(report).split("\n")][: len(failing)]
    assert (
        told[0] == "future" and set(told) == set(failing) and failing.index("inputs stay") < failing.index("decoding")
    )
    assert told.index("inputs stay") > told.index("decoding")
    assert report.verdict.startswith(f"fails: {', '.join(told)} · holds: ")


@pytest.mark.parametrize(("size", "text"), [(0.0712, "0.071"), (5.94, "5.9"), (17.2, "17"), (2345.6, "2,300")])
def test_a_size_has_a_unit_and_no_exponent(size, text):
    assert deviations(size) == f"{text} standard deviations"


def test_a_finding_by_design_is_named_and_fails_nothing():
    failing = [each.property for each in report_of(OneAhead).failures]
    report = report_of(OneAhead, by_design=failing)
    assert report and not report.failures
    assert "future: by design, later tokens change earlier outputs by" in str(report)
    assert "at distance 1 (off by one?)" in str(report)
    assert [each.property for each in report_of(OneAhead, by_design=["future"]).failures] == failing[1:]
    with pytest.raises(SelectionError, match=r"expected by design some of future, padding, .*; got 'past'"):
        report_of(OneAhead, by_design=["past"])


def test_what_sees_one_position_ahead_and_claims_nothing_is_asked_about():
    layer = OneAhead()
    layer.causal = None  # it says nothing
    asked = audit_module(layer, compile="")
    (found,) = [each for each in asked.findings if each.property == "future"]
    assert found.verdict == "asks" and "--no-causal accepts it" in found.detail and not asked
    accepted = audit_module(layer, causal=False, compile="")
    assert "future: by design, an output depends on 1 later token and no more" in str(accepted)


def test_what_looks_both_ways_by_design_is_said_and_fails_nothing():
    layer = nn.Sequential(nn.Linear(32, 32), nn.Unflatten(1, (8, 8)), nn.Conv2d(8, 8, 1), nn.Flatten(1, 2))
    report = audit_module(layer, compile="")
    assert report and "looks both ways" in str(report)
    assert not audit_module(layer, causal=True, compile="")


def test_the_module_of_the_caller_is_left_as_it_is():
    module = BehindZeroGate()
    module(torch.randn(1, 4, 32))
    audit_module(module, compile="")
    assert module.training and float(module.gate.detach()) == 0 and module.gate.grad is None


def test_an_unclear_mask_is_asked_and_all_else_is_tested():
    report = report_of(Fourier)
    asked = [each for each in report.findings if each.verdict == "asks"]
    assert [each.property for each in asked] == ["padding"] and "what does mask mean" in asked[0].detail
    assert "future" in [each.property for each in report.failures]


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_code_that_compiles_itself_runs_on_after_a_test_that_it_refuses():
    # FlexAttention refuses the mode that looks for softmaxes, and raised in every later test
    subject = recognise(lambda q, k, v: flex_attention(q, k, v), asks=False)
    inputs = subject.draw(1, 43)
    before = subject.outputs(inputs, None, False)
    with pytest.raises(RuntimeError):
        list(normalised(subject))
    torch.testing.assert_close(subject.outputs(inputs, None, False), before)


def test_a_question_is_no_verdict():
    report = audit_module(lambda a, b: a, "odd")
    assert not report and not report.failures and "how is it called" in str(report)


@pytest.mark.parametrize(
    ("moved", "words"),
    [
        (torch.ones(16, 16).tril(1), ("distance 1", "off by one")),
        (torch.block_diag(*[torch.ones(4, 4)] * 4), ("distances 1 to 3", "block of 4")),
        (torch.ones(16, 16), ("distances 1 to 15", "no mask, a mean or an FFT over all")),
        (torch.ones(16, 16).tril(3), ("distances 1 to 3", "window of 3 to both sides")),
        (torch.ones(16, 16).tril(), ("several positions together", "")),
        (
            torch.cat([torch.ones(1, 16), torch.ones(15, 16).tril()]),
            (
                "distances 1 to 15",
                "the first position has no key, and a softmax over no key is a mean over all: a mask of tril(-1)",
            ),
        ),
    ],
)
def test_the_pattern_of_distances_names_the_cause(moved, words):
    assert distances(moved.bool()) == words


def test_a_mask_is_written_as_a_line_that_makes_it_again():
    generator = torch.Generator().manual_seed(4)
    for _ in range(20):
        values = torch.rand(3, 12, generator=generator) > 0.4
        names = {"torch": torch}
        exec("\n".join(assigned("values", values)), names)
        assert torch.equal(names["values"], values)


class MyOwn:
    """A file as a stranger has it."""

    TEXT = "from torch import nn\nclass Mine(nn.Linear):\n    def __init__(self, dim): super().__init__(dim, dim)\n"


@pytest.mark.slow
def test_the_command_audits_a_file_in_a_child(tmp_path, monkeypatch, capsys):
    from attnbench.bench.cli.main import main

    (tmp_path / "mine.py").write_text(MyOwn.TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["attnbench", "audit", "mine.py:Mine[dim=24]", "--compile", "none"])
    assert main() == 0
    said = capsys.readouterr().out
    assert "a layer (B, N, 24)" in said and "\nfails: nothing · holds: " in said
    monkeypatch.setattr("sys.argv", ["attnbench", "audit", "mine.py:Missing"])
    assert main() == 2
    assert "mine.py defines no 'Missing'; it has Mine" in capsys.readouterr().err
    flipped = ["attnbench", "audit", "mine.py:Mine", "--call", "m(x).flip(1)", "--causal"]
    monkeypatch.setattr("sys.argv", flipped)
    assert main() == 1
    assert "\nfails: future, gradients" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [*flipped, "--json"])
    assert main() == 1
    assert '"verdict": "fails"' in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [*sys.argv, "--by-design", "future,gradients"])
    assert main() == 0
    assert '"verdict": "by design"' in capsys.readouterr().out
    assert "mine" not in __import__("sys").modules


def test_the_fixture_fails_a_test_with_the_findings(audit):
    assert audit(Layer(), compile="")
    with pytest.raises(pytest.fail.Exception, match=r"at distances 1 to 7 \(block of 8\?\)"):
        audit(BlockMean(), compile="")
