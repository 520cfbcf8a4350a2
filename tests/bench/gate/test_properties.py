"""The gate on what should pass: built-in variants, many seeds, refusals with their reason; and `attnbench check`."""

from __future__ import annotations

import importlib
import json
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
import typer
from torch import Tensor
from torch.nn import functional as F
from typer.testing import CliRunner

from attnbench.bench.cli.check import check
from attnbench.bench.core.entry_points import EntryPointGroup, read_group
from attnbench.bench.core.errors import AttnbenchError, SelectionError
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.gate import PROPERTIES, Result, examine, quick_gate, suite
from attnbench.bench.gate.case import Case, gap
from attnbench.bench.gate.modes import dropout_share
from attnbench.bench.gate.numerics import row_error
from attnbench.bench.gate.report import SETTINGS as SETTINGS_OF_CHECK
from attnbench.bench.gate.variant import with_heads
from attnbench.variants.contract import AttentionShape, Mask, ScoredVariant, Variant

SHAPE = AttentionShape(heads=2, head_dim=16, max_length=200)
NAMES = ("softmax", "leaky", "windowed", "broken", "absent")
"""The variants that there are in tests of the command."""
SETTINGS = [SHAPE, replace(SHAPE, causal=True), replace(SHAPE, cross=True)]


def reds(findings: list[Result]) -> list[Result]:
    return [finding for finding in findings if finding.held is False]


INSTALLED = [entry.name for entry in VARIANTS.entries()]
EVERY = pytest.mark.parametrize("name", INSTALLED)


@pytest.mark.parametrize(
    "name",
    [
        # half a minute for these four together, each of a kind that others have too
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("reformer", "skyformer", "nystrom", "sinkhorn")))
        for name in INSTALLED
    ],
)
def test_every_installed_variant_holds_what_it_promises(name: str) -> None:
    """Looking back in full, or both ways where it refuses that."""
    both, back, _ = SETTINGS
    findings = examine(name, back, thorough=False)
    if all(finding.held is None for finding in findings):
        findings = examine(name, both, thorough=False)
    assert reds(findings) == []
    held = {finding.property for finding in findings if finding.held}
    # a variant that nothing applies to has not been examined
    assert {"finite", "deterministic", "batch independence", "gradient", "gradient reaches"} <= held


@pytest.mark.slow
@EVERY
def test_the_other_ways_of_use_of_a_variant_hold_too(name: str) -> None:
    """Both ways and across two sequences in full; both ways also in the quick form."""
    both, _, cross = SETTINGS
    assert reds([finding for shape in (both, cross) for finding in examine(name, shape, thorough=False)]) == []
    assert quick_gate(name, both, form="short") is None


@pytest.mark.parametrize(
    ("impl", "shape"),
    [
        ("sdpa", SETTINGS[1]),
        ("eager", SETTINGS[0]),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("eager", SETTINGS[1]), ("sdpa", SETTINGS[0]))),
        *(pytest.param(impl, SETTINGS[2], marks=pytest.mark.slow) for impl in ("sdpa", "eager")),
    ],
    ids=lambda x: x if isinstance(x, str) else "causal" if x.causal else "cross" if x.cross else "self",
)
def test_the_reference_holds_all_that_applies(impl: str, shape: AttentionShape) -> None:
    findings = examine(f"softmax[impl={impl}]", shape)
    assert reds(findings) == []
    missing = {finding.property for finding in findings if finding.held is None}
    assert missing == {"causal values", "parameters learn", "gradient in precision"} | (
        {"queries differ from keys"} if shape.causal
        # the share of dropout is the same in all ways of use, so it is drawn where the variant looks back
        else {"causal", "prefix consistency", "aligned at the last key", "decode", "decode state", "compiled",
              "dropout share"}
        | ({"packed sequences"} if shape.cross else {"queries differ from keys"})
    )  # fmt: skip


@pytest.mark.parametrize(
    "head_dim",
    [*(pytest.param(dim, marks=pytest.mark.soak) for dim in (80, 96)), pytest.param(128, marks=pytest.mark.slow)],
)
def test_the_reference_holds_with_wide_heads_too(head_dim: int) -> None:
    """With AVX-512 and 1,000 equal keys PyTorch's gradient of the values is off by 2e-3 at 128, by 9e-4 at 80."""
    shape = replace(SHAPE, heads=8, head_dim=head_dim, max_length=1024)
    assert quick_gate("softmax", shape) is None


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["softmax", "entmax15", "local", "linear"])
def test_half_precision_is_gated_in_its_own_tolerance(name: str, dtype: str) -> None:
    assert quick_gate(name, replace(SHAPE, causal=True, dtype=dtype)) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["topk", "rela", *(pytest.param(name, marks=pytest.mark.soak) for name in ("softmax", "entmax", "routing"))]
)
def test_no_seed_of_ten_raises_a_false_alarm(name: str) -> None:
    shape = replace(SHAPE, max_length=64, causal=True)
    assert [quick_gate(name, shape, seed) for seed in range(10)] == [None] * 10


def test_a_refused_shape_gives_the_reason_for_every_property() -> None:
    findings = examine("linformer", replace(SHAPE, causal=True))
    assert [finding.property for finding in findings] == [item.name for item in PROPERTIES]
    assert {finding.verdict for finding in findings} == {"n.a."}
    assert len({finding.detail for finding in findings}) == 1
    assert "causal" in findings[0].detail
    assert quick_gate("linformer", replace(SHAPE, causal=True)) is None


def test_a_variant_that_refuses_few_positions_is_gated_at_more() -> None:
    class Picky(ScoredVariant):
        seen: ClassVar[list[int]] = []

        def supports(self, shape: AttentionShape) -> str | None:
            return f"{shape.max_length} positions are too few" if shape.max_length < 384 else None

        def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
            self.seen.append(key.shape[2])
            return super().forward(query, key, value, mask) + torch.nan

    finding = quick_gate(Picky, replace(SHAPE, max_length=4096))
    assert finding is not None
    assert finding.property == "finite"
    assert max(Picky.seen) <= 384


def test_the_length_and_the_batch_to_be_measured_are_run_and_float64_where_it_fits() -> None:
    seen: list[tuple[int, int, torch.dtype]] = []

    class Watched(Variant):
        """The mean of all values, in linear time."""

        ignores = frozenset({"query", "key"})
        uses_dropout = False

        def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
            seen.append((query.shape[0], query.shape[2], query.dtype))
            real = mask.real(key)[:, None, :, None]
            total = value.where(real, 0).sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp(min=1)
            return total.expand(query.shape)

    assert quick_gate(Watched, replace(SHAPE, max_length=1024), batch=5) is None
    assert (5, 1024, torch.float32) in seen
    assert (1, 1024, torch.float64) in seen
    seen.clear()
    assert quick_gate(Watched, replace(SHAPE, max_length=8192), batch=3) is None
    assert (3, 8192, torch.float32) in seen
    assert max(length for _, length, dtype in seen if dtype == torch.float64) <= 2048
    seen.clear()
    assert quick_gate(Watched, replace(SHAPE, max_length=8192), batch=3, form="short") is None
    assert max(length for _, length, _ in seen) <= 96


def test_the_gate_leaves_random_numbers_and_threads_as_they_were() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    threads = torch.get_num_threads()
    with torch.no_grad():
        assert quick_gate("softmax", SHAPE) is None
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_gradients_are_tested_inside_inference_mode() -> None:
    with torch.inference_mode():
        verdicts = {f.property: f.verdict for f in examine("softmax", SHAPE)}
    tested = ("gradient reaches", "gradient", "gradient at length", "implementations")
    assert {name: verdicts[name] for name in tested} == dict.fromkeys(tested, "holds")


def test_a_kink_on_the_way_is_no_wrong_gradient() -> None:
    class Hinged(ScoredVariant):
        """A gate that starts exactly at the kink of a ReLU."""

        def __init__(self, shape: AttentionShape):
            super().__init__(shape)
            self.gate = torch.nn.Parameter(torch.ones(shape.head_dim))

        def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
            return super().forward(query, key, value, mask) * (1 + F.relu(self.gate - 1)).to(value.dtype)

    assert reds(examine(Hinged, SHAPE)) == []


def learns(variant: type[Variant], monkeypatch: pytest.MonkeyPatch) -> bool | None:
    monkeypatch.setattr(suite, "PROPERTIES", [item for item in PROPERTIES if item.name == "parameters learn"])
    [found] = examine(variant, SHAPE)
    return found.held


def test_a_parameter_without_elements_has_nothing_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoMemory(ScoredVariant):
        """Learned keys, of which there are none; and a scale."""

        def __init__(self, shape: AttentionShape):
            super().__init__(shape)
            self.memories = torch.nn.Parameter(torch.randn(0, shape.head_dim))
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
            return super().forward(query, key, value, mask) * self.scale.to(value.dtype)

    assert learns(NoMemory, monkeypatch)


def test_a_gate_that_is_shut_for_most_inputs_learns_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class MostlyShut(ScoredVariant):
        """The first query opens a gate by a part from 0 to 1, and mostly wholly or not at all."""

        def __init__(self, shape: AttentionShape):
            super().__init__(shape)
            self.opening = torch.nn.Parameter(torch.ones(shape.head_dim))

        def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
            gate = (4 * query[:, :, :1] @ self.opening.to(query.dtype)).clamp(0, 1)
            return super().forward(query, key, value, mask) * (1 + gate[..., None])

    assert learns(MostlyShut, monkeypatch)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "found"), [(8, 8, (5, 5)), (8, 2, (8, 2)), (12, 4, (6, 2)), (8, 1, (8, 1)), (2, 2, (2, 2))]
)
def test_fewer_heads_share_keys_as_all_do(heads: int, kv_heads: int, found: tuple[int, int]) -> None:
    shape = with_heads(replace(SHAPE, heads=heads, kv_heads=kv_heads), 5, 2)
    assert (shape.heads, shape.kv_heads) == found
    # a layer splits its state into heads, and a state of another width is the caller's
    whole = AttentionShape(heads=heads, kv_heads=kv_heads, head_dim=16, max_length=8)
    assert with_heads(whole, 5, 2).hidden_width == 16 * found[0]
    assert with_heads(replace(whole, hidden_width=24), 5, 2).hidden_width == 24


def test_an_unknown_name_is_an_error_and_no_finding() -> None:
    with pytest.raises(SelectionError, match="softmax"):
        examine("sofmax", SHAPE)


def test_distances_are_relative_and_infinite_for_what_is_no_number() -> None:
    expected = torch.tensor([[4.0, 0.0], [0.0, 2.0]])
    assert gap(expected + torch.tensor([[0.0, 0.0], [1.0, 0.0]]), expected) == 0.25
    assert gap(expected * torch.nan, expected) == torch.inf
    assert gap(torch.zeros(2), torch.zeros(2)) == 0.0
    assert gap(torch.ones(2), torch.zeros(2)) == torch.inf
    with pytest.raises(ValueError, match="expected shape"):
        gap(torch.zeros(2), torch.zeros(3))
    assert row_error(expected, expected) == 0.0
    assert row_error(expected * 1.1, expected) == pytest.approx(0.1, rel=0.15)


class Leaky(ScoredVariant):
    """Lets padded keys in."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return super().forward(query, key, value, replace(mask, valid=None))


class Windowed(ScoredVariant):
    def __init__(self, shape: AttentionShape, *, width: int = 3):
        super().__init__(shape)
        self.width = width


class Broken(ScoredVariant):
    def __init__(self, shape: AttentionShape):
        raise KeyError("table")


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A script with three variants of its own and a package that does not load, beside the reference."""
    module = types.ModuleType("strangers")
    module.__dict__.update(Leaky=Leaky, Windowed=Windowed, Broken=Broken)
    monkeypatch.setitem(sys.modules, "strangers", module)

    def read(group: str, declared: str = "") -> EntryPointGroup:
        found = read_group(group, declared)
        known = {name: found.points[name] for name in NAMES if name in found.points}
        return EntryPointGroup(points=known) if group == VARIANTS.group else found

    monkeypatch.setattr("attnbench.bench.core.registry.read_group", read)
    monkeypatch.setattr(VARIANTS, "_own", set())
    # a name of the environment goes to a child, those that are declared here load in this process
    monkeypatch.setenv("ATTNBENCH_VARIANTS", "absent=strangers_absent:Absent")
    VARIANTS.__dict__.pop("_found", None)
    for variant in (Leaky, Windowed, Broken):
        VARIANTS.declare(variant.__name__.lower(), f"strangers:{variant.__name__}")
    monkeypatch.setattr("attnbench.bench.gate.report.LENGTH", 48)
    yield
    VARIANTS.__dict__.pop("_found", None)


def invoke(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(check)
    # in this process, which alone knows what is declared here
    return CliRunner().invoke(app, [*arguments, "--jobs", "1"], env={"COLUMNS": "200"})


@pytest.fixture
def one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """One way of use, since other tests run them all."""
    # whoever imports them now would keep the few
    importlib.import_module("attnbench.bench.run.check")
    monkeypatch.setattr("attnbench.bench.gate.report.SETTINGS", SETTINGS_OF_CHECK[:1])


def test_check_prints_a_table_and_succeeds_on_a_green_variant(plugins: None, one_way: None) -> None:
    result = invoke("windowed[width=5]")
    assert result.exit_code == 0, result.output
    assert "windowed[width=5]: " in result.output
    assert "fails: nothing" in result.output
    for item in PROPERTIES:
        assert item.name in result.output


def test_check_names_what_is_red_and_exits_with_one(plugins: None, one_way: None) -> None:
    result = invoke("leaky")
    assert result.exit_code == 1
    summary = result.output.strip().split("\n")[-1]
    assert "fails: " in summary
    assert "padding content" in summary
    assert "padding length" in summary


@pytest.mark.slow
def test_check_all_goes_on_past_variants_that_do_not_load_or_build(plugins: None, one_way: None) -> None:
    result = invoke("--all")
    assert result.exit_code == 1
    assert "absent: it does not load: ModuleNotFoundError" in result.output
    assert "broken: does not build: KeyError" in result.output
    assert "softmax: " in result.output
    assert "2 of 5 variants hold all that applies to them" in result.output


@pytest.mark.slow
def test_check_as_json_has_one_object_for_each_property_and_setting(plugins: None) -> None:
    result = invoke("leaky", "--json")
    assert result.exit_code == 1
    rows = json.loads(result.output)
    assert len(rows) == 6 * len(PROPERTIES)
    assert {(r["causal"], r["cross"], r["padding"]) for r in rows} == {
        (causal, cross, padding)
        for causal, cross in ((False, False), (True, False), (False, True))
        for padding in (True, False)
    }
    red = {row["property"] for row in rows if row["verdict"] == "fails"}
    assert {"padding content", "padding length", "masked rows"} <= red
    assert all(row["detail"] for row in rows if row["verdict"] == "n.a.")
    # without padding it has no fault
    assert not any(row["verdict"] == "fails" for row in rows if not row["padding"])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), SelectionError),
        (("softmax", "--all"), SelectionError),
        (("leeky",), SelectionError),
        (("windowed[size=5]",), SelectionError),
        (("softmax", "--dtype", "int8"), SelectionError),
        (("softmax", "--device", "abacus"), SelectionError),
    ],
)
def test_check_tells_a_mistake_before_it_examines(
    plugins: None, arguments: tuple[str, ...], error: type[AttnbenchError]
) -> None:
    assert isinstance(invoke(*arguments).exception, error)


def test_many_weights_of_one_row_are_no_other_rate_of_dropout() -> None:
    """Two weights in each of five heads: all ten are kept in one draw of ten thousand."""

    class Twice(ScoredVariant):
        def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
            dropped = [F.dropout(self.weights(query, key, mask), self.shape.dropout, self.training) for _ in range(2)]
            return sum(dropped) / 2 @ value

    case = Case(Twice, replace(SHAPE, heads=5, kv_heads=5))
    answers = list(dropout_share(case))
    assert len(answers) == 3 and all(answer.value <= answer.allowed for answer in answers)
