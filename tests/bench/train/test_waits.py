"""No training step waits for a GPU: the host launches the next one while the device works, or captures it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from implementations import NO_TRITON
from torch import Tensor
from waits import META, install, waits

from attnbench.bench.core.errors import Unsupported
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.models.blocks import Batch, Model
from attnbench.bench.train.objectives.registry import objective_for
from attnbench.bench.train.trainer import ordinary_step
from attnbench.tasks.contract import Classification, Recipe
from attnbench.tasks.problems.language_modeling import Language, LanguageRecipe
from attnbench.variants import build
from attnbench.variants.kernels import gpu

SMALL: dict[str, Any] = {"width": 32, "heads": 2, "feed_forward": 32, "layers": 1, "length": 256, "batch": 2}
NAMES = [entry.name for entry in VARIANTS.entries() if entry.origin.startswith("attnbench ")]
# wrappers; a learned alpha is another branch of the same map
OTHERS = ["gate+rela", "xsa+softmax", "qk-norm+softmax", "sink+softmax", "conv+linear", "matched+gate+softmax",
          "entmax[alpha=learned]", "softmax[impl=eager]"]  # fmt: skip
KERNELS = ["rela", "rela[norm=head]", "entmax15", "sparsemax", "entmax", "local", "linear", "additive", "relative",
           "additive-lm"]  # fmt: skip


@pytest.fixture(autouse=True)
def on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def built(variant: str, device: str = "cpu") -> tuple[Model, Batch]:
    """The encoder, or the causal stack where the variant has only that form, and a padded batch."""
    ids, lengths = torch.ones(2, 1, 256, dtype=torch.long), torch.full((2, 1), 200)
    try:
        objective = objective_for(Classification(vocabulary=8, classes=2), Recipe(**SMALL))
        return objective.model(lambda shape: build(variant, shape), 0, device), (ids, lengths, torch.ones(2).long())
    except Unsupported:
        causal = objective_for(Language(vocabulary=8), LanguageRecipe(stride=256, **SMALL))
        return causal.model(lambda shape: build(variant, shape), 0, device), (ids, lengths, ids[:, 0])


def step(model: Model, batch: Batch) -> None:
    """A whole step on `meta`, the model and the batch of which lie there."""
    # another optimiser than that of a training, which knows no such device: the fused one makes one call of a kernel
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    ordinary_step(model, optimiser, model.recipe, [batch])


@pytest.mark.parametrize("variant", NAMES + OTHERS)
def test_no_variant_waits_in_its_eager_form(variant: str) -> None:
    model, batch = built(variant)
    model.to(META)
    batch = tuple(part.to(META) for part in batch)
    # the first step may fill buffers
    step(model, batch)
    with waits() as found:
        step(model, batch)
    assert found == []


def test_a_performer_that_draws_anew_reads_its_count_of_steps() -> None:
    """The one variant that waits; its steps are not captured, since a replay would never draw."""
    model, batch = built("performer[redraw=2]")
    model.to(META)
    with pytest.raises(RuntimeError, match="meta"):
        step(model, tuple(part.to(META) for part in batch))


@pytest.mark.skipif(NO_TRITON, reason="no Triton")
@pytest.mark.parametrize("variant", KERNELS)
def test_no_variant_waits_round_its_kernels(monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    """The code that launches them, forward and backward, with launches that do nothing."""
    launched: list[object] = []
    monkeypatch.setattr(gpu, "reason", lambda *_, **__: None)
    # all of them: one that is imported later would keep the launch that does nothing
    for file in gpu.FOLDER.glob("*.py"):
        module = importlib.import_module(f"attnbench.variants.kernels.triton.{file.stem}")
        if file.stem != "launch" and hasattr(module, "launch"):
            monkeypatch.setattr(module, "launch", lambda kernel, *_, **__: launched.append(kernel))
    name = variant.replace("]", ",impl=triton]") if "[" in variant else f"{variant}[impl=triton]"
    model, batch = built(name, "meta")
    model.to(META)
    batch = tuple(part.to(META) for part in batch)
    with waits() as found:
        step(model, batch)
    assert found == [] and len(launched) > 1


FAULTS: dict[str, Callable[[Tensor], object]] = {
    "a tensor made from numbers of the host": lambda x: x + torch.tensor([1.0], device=x.device),
    "a copy from the host": lambda x: x + torch.ones(1).to(x.device),
    "a copy between host and device": lambda x: torch.empty_like(x).copy_(torch.ones(3)),
    "_local_scalar_dense": lambda x: float(x.sum()),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "index": lambda x: x[x > 0],
    "index_put_": lambda x: x.index_put_((x > 0,), torch.ones(3, device=x.device)),
    "_linalg_check_errors": lambda x: torch.linalg.inv(torch.diag(x)),
    "repeat_interleave": lambda x: x.repeat_interleave(torch.ones(3, dtype=torch.long, device=x.device)),
    "equal": lambda x: torch.equal(x, x),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wait_is_found(name: str) -> None:
    x = torch.ones(3, device=META)
    try:
        with waits() as found:
            FAULTS[name](x)
    except (RuntimeError, NotImplementedError):
        # it has read a number that is not there
        pass
    assert any(each.startswith(f"{name} at {__file__}") for each in found), found


@pytest.mark.parametrize("read", [Tensor.cpu, Tensor.tolist, lambda x: x.to("cpu")])
def test_a_copy_to_the_host_raises(read: Callable[[Tensor], object]) -> None:
    with waits(), pytest.raises(NotImplementedError):
        read(torch.ones(3, device=META))
