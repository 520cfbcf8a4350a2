"""Making a module of somebody's class: sizes, settings of a class of their own, and words for what is missing."""

from dataclasses import dataclass

import pytest
import torch
from command_lines import answer
from torch import nn

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.spec import Spec
from attnbench.bench.wings.audit.suite import audit_module
from attnbench.bench.wings.audit.target import SMALL, USUAL, Settings, as_tested, load_target, made
from attnbench.variants.contract import AttentionShape


class Inner(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.project = nn.Linear(dim, dim)

    def forward(self, x):
        return self.project(x).cumsum(1)


@dataclass
class TinyConfig:
    n_embd: int = 768
    n_head: int = 12
    window: int = 7


class Configured(Inner):
    """The one class of this file that is called a config holds its settings."""

    def __init__(self, config, layer_idx):
        super().__init__(config.n_embd)
        self.window, self.layer = config.window, layer_idx


class Odd(Inner):
    def __init__(self, params: "Missing"):  # noqa: F821
        super().__init__(params["width"])


def test_settings_of_a_class_keep_what_no_shape_tells():
    module, arguments = made(Configured, "mine.py:Configured", SMALL, {})
    assert (module.project.in_features, module.window, module.layer) == (64, 7, 0)
    assert repr(arguments["config"]) == "TinyConfig(n_embd=64, n_head=4)"
    module, arguments = made(Configured, "mine.py:Configured", SMALL, {"window": 3, "layer_idx": 2})
    assert (module.window, module.layer) == (3, 2)


FILE = """
from torch import nn

class Layer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.project = nn.Linear(args.dim, args.dim, bias=args.bias)

    def forward(self, x):
        return self.project(x)

class Odd(Layer):
    def __init__(self, args):
        super().__init__(args)
        self.rate = args.odd_rate

class Wide(nn.Module):
    def __init__(self, shape_of_states):
        super().__init__()
"""


def test_settings_without_a_class_are_said_in_the_program(tmp_path):
    (tmp_path / "own.py").write_text(FILE, encoding="utf-8")
    built = load_target(Spec(f"{tmp_path}/own.py:Layer"))
    assert built.module.project.in_features == 64
    lines = [line for line in built.lines if "sys.path" not in line]
    assert lines == [
        "from own import Layer",
        "from types import SimpleNamespace",
        "torch.manual_seed(0); m = Layer(args=SimpleNamespace(dim=64, bias=True)).eval()",
    ]


@pytest.mark.parametrize(
    ("name", "words"), [("Odd", r"reads config\.odd_rate"), ("Wide", r"needs 'shape_of_states'.*own\.py:Wide\[shape")]
)
def test_what_nothing_tells_is_asked_for_with_a_function_of_two_lines(name, words, tmp_path):
    (tmp_path / "own.py").write_text(FILE, encoding="utf-8")
    with pytest.raises(SelectionError, match=rf"{words}.*`def mine\(dim, heads\): return {name}\(…\)`"):
        load_target(Spec(f"{tmp_path}/own.py:{name}"))


def test_a_constructor_that_names_its_arguments_by_overloads_gets_them():
    module, arguments = made(nn.GRU, "torch.nn:GRU", SMALL, {}, usual=USUAL)
    assert arguments == {"input_size": 64, "hidden_size": 64} and module.hidden_size == 64


def test_half_precision_and_compiled_code_are_tested_in_float32_and_said():
    for module, words in (
        (Inner().half(), "its parameters in float32"),
        (torch.compile(Inner(), backend="eager"), "without its torch"),
    ):
        report = audit_module(module, compile="")
        assert report and words in report.convention
    assert next(Inner().half().parameters()).dtype == torch.float16
    plain = Inner()
    assert as_tested(plain) == (plain, ())


def test_parameters_without_values_are_refused():
    with pytest.raises(SelectionError, match=r"device meta and have no values \(project.weight"):
        audit_module(Inner().to("meta"))
    assert isinstance(Settings.of(TinyConfig, "mine", SMALL, {}).made, TinyConfig)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("mine.py:WIDTH", "a class, a function or an nn.Module, got int"),
        ("mine.py:Mine --compile nothing", "expected a backend of torch.compile"),
        ("mine.py:Mine --by-design FUTURE", "did you mean 'future'"),
        ("transformers:Bertt", "has no model class 'Bertt', such as BertModel"),
    ],
)
def test_a_mistake_is_answered_with_the_right_words(line, advice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import torch\nWIDTH = 3\nclass Mine(torch.nn.Module): ...\n")
    found = answer(f"audit {line}")
    assert found.code == 2 and advice in found.errors and found.errors.count("\n") == 1


class OfBlocks(nn.Module):
    def __init__(self, dim, block_size=16):
        super().__init__()
        self.block_size = block_size


class OfPositions(nn.Module):
    def __init__(self, channels, block_size=1024):
        super().__init__()
        self.block_size, self.channels = block_size, channels


def test_a_small_default_of_a_block_is_kept_and_that_of_all_positions_is_not():
    shape = AttentionShape(heads=2, head_dim=8, max_length=300)
    assert made(OfBlocks, "m", shape, {})[0].block_size == 16
    module, _ = made(OfPositions, "m", shape, {})
    assert (module.block_size, module.channels) == (300, 16)


def test_a_variant_of_the_contract_is_sent_to_check():
    with pytest.raises(SelectionError, match=r"`attnbench check attnbench\.variants\.maps\.rela:ReLA` tests"):
        load_target(Spec("attnbench.variants.maps.rela:ReLA"))
