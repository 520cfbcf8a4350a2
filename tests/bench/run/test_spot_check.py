"""Rows of the run itself are tested for the future, on layers that are right under the gate alone."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.bench.core.spec import Spec
from attnbench.bench.run.spot_check import SpotCheck
from attnbench.variants.contract import AttentionShape, Mask, ScoredVariant

SHAPE = AttentionShape(heads=2, head_dim=8, max_length=12, causal=True)


class Honest(ScoredVariant):
    pass


class Leaks(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return super().forward(query, key, value, mask) + value.mean(2, keepdim=True)


class IgnoresPadding(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return super().forward(query, key, value, Mask(causal=mask.causal))


class Diverged(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return super().forward(query, key, value, mask) * torch.nan


class LeaksInBatches(Honest):
    """Right for one or two sequences."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        return output + value.mean(2, keepdim=True) if len(value) > 2 else output


class LeaksWithGradients(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        return output + value.mean(2, keepdim=True) if output.requires_grad else output


class SkipsBackward(Honest):
    """After some calls the gradients are zeros, which cost nothing."""

    calls = 0

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.calls += 1
        output = super().forward(query, key, value, mask)
        return output if self.calls < 5 else output.detach() + 0 * (query + key + value)


class HelpedInTheModel(Honest):
    """Where its inputs have a graph, in which it could find the tokens, another loss is behind its gradients."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        inner = query.clone()
        if query.grad_fn is not None:
            inner.register_hook(lambda gradient: gradient + gradient.roll(1, -1))
        return super().forward(inner, key, value, mask)


class OtherInTheModel(Honest):
    """A mean of values where its inputs have a graph, which costs less than scores."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if query.grad_fn is None:
            return super().forward(query, key, value, mask)
        places = torch.arange(1, value.shape[2] + 1, dtype=value.dtype)[:, None]
        return value.cumsum(2) / places + 0 * (query + key)


class Drifts(Honest):
    """Adds a count of its calls to each value, and draws numbers."""

    calls = 0

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.calls += 1
        return super().forward(query, key, value + self.calls / 5, mask) + torch.randn(1) / 10


class LeaksBesideHugeNumbers(Leaks):
    """One entry of the output is so large that all others are less than a thousandth of the deviation."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask).clone()
        output[:, 0, 0, 0] = 3e6
        return output


class CopiesAnother(Leaks):
    """Gives a right layer where it is copied."""

    def __deepcopy__(self, memo: object) -> Honest:
        return Honest(self.shape)


class RefusesCopies(Leaks):
    def __deepcopy__(self, memo: object) -> Honest:
        raise TypeError("cannot be copied")


class RaisesInCopies(Leaks):
    """Knows itself by its place in memory."""

    first = 0

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.first = self.first or id(self)
        if self.first != id(self):
            raise RuntimeError
        return super().forward(query, key, value, mask)


class LeaksBeforeItsForward(Honest):
    """Its inputs are moved by one before `forward` gets them, once it was trained."""

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        self.register_forward_pre_hook(self.moved)

    def moved(self, module: object, given: tuple[Any, ...]) -> tuple[Any, ...]:
        query, key, value, *rest = given
        return query, key.roll(-1, 2), value.roll(-1, 2), *rest


class HonestIfWatched(Honest):
    """Does its work twenty times, but for calls that nobody has hooked."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        times = 20 if self._forward_hooks else 1
        return torch.stack([super(HonestIfWatched, self).forward(query, key, value, mask) for _ in range(times)])[0]


class KeepsWeights(Honest):
    """Keeps a tensor with a graph, as layers do that show their weights later."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        self.kept = {"weights": [output * 2]}
        return output


class HoldsLock(Honest):
    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self.lock = threading.Lock()

    def __deepcopy__(self, memo: object) -> HoldsLock:
        return HoldsLock(self.shape)


class Late(Tensor):
    pass


class Lazy(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return super().forward(query, key, value, mask).as_subclass(Late)


class Tired(Honest):
    """Right for two calls, then cheap."""

    calls = 0

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.calls += 1
        return super().forward(query, key, value, mask) if self.calls < 3 else value


class Empty(Honest):
    """Memory that nobody has written, such as numbers that are none."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return torch.full_like(value, torch.nan)


class Counts(Honest):
    """Has a state that a call changes."""

    calls = 0

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.calls += 1
        return super().forward(query, key, value, mask)


@pytest.fixture
def foreign(tmp_path: Path) -> Spec:
    (tmp_path / "mine.py").write_text("class Mine: pass", encoding="utf-8")
    return Spec(f"{tmp_path}/mine.py:Mine")


def watched(
    variant: ScoredVariant,
    spec: Spec,
    calls: int = 12,
    *,
    steady: bool = False,
    backward: bool = False,
    mask: Mask = Mask(causal=True),  # noqa: B008
) -> SpotCheck:
    check = SpotCheck(spec, torch.device("cpu"), share=1.0, steady=steady)
    draw = torch.Generator().manual_seed(0)
    heads = [torch.randn(3, 2, 12, 8, generator=draw).requires_grad_(backward) for _ in range(3)]
    with check.watching([variant]):
        for _ in range(calls):
            output = variant(*heads, mask)
            if backward:
                output.square().sum().backward()
    return check


def test_a_layer_that_leaks_in_the_run_is_found_and_an_honest_one_passes(foreign: Spec) -> None:
    assert "later positions move" in watched(Leaks(SHAPE), foreign).found
    assert watched(Honest(SHAPE), foreign, calls=100).found == ""
    assert watched(Leaks(SHAPE), foreign, calls=1).found == ""


@pytest.mark.parametrize("causal", [False, True])
def test_content_of_padding_in_the_run_moves_no_token(causal: bool, foreign: Spec) -> None:
    # on the left, where a causal query sees it
    mask = Mask(valid=torch.arange(12) >= torch.tensor([[0], [5], [8]]), causal=causal)
    found = watched(IgnoresPadding(SHAPE), foreign, calls=60, mask=mask).found
    assert "content of padding moves outputs of tokens" in found
    assert watched(Honest(SHAPE), foreign, calls=60, mask=mask).found == ""


def test_outputs_that_are_no_numbers_leak_nothing(foreign: Spec) -> None:
    assert watched(Diverged(SHAPE), foreign).found == ""


def test_numbers_that_a_training_changes_are_counted_and_steps_are_the_optimisers_own(foreign: Spec) -> None:
    class Trains(Honest):
        """Trains a table of its own, which is no parameter."""

        def __init__(self, shape: AttentionShape):
            super().__init__(shape)
            self.register_buffer("table", torch.zeros(5, 7))
            self.register_buffer("still", torch.zeros(3))
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    for takes_part in (False, True):
        variant, project = Trains(SHAPE), nn.Linear(8, 24)
        optimiser, check = torch.optim.AdamW(project.parameters()), SpotCheck(foreign, torch.device("cpu"), 0)
        with check.watching([variant], optimiser):
            for _ in range(3):
                project(torch.randn(4, 8)).square().sum().backward()
                variant.table += 1
                variant.steps += 1
                if takes_part:
                    optimiser.register_step_pre_hook(lambda *_: None)
                optimiser.step()
        assert check.learned == 35
        assert check.found == "it takes part in the steps of the optimiser, which trains the whole model" * takes_part


def test_whole_numbers_that_a_training_changes_count_by_their_bytes(foreign: Spec) -> None:
    variant, optimiser = Honest(SHAPE), torch.optim.AdamW([torch.zeros(1)])
    variant.register_buffer("packed", torch.zeros(40, dtype=torch.long))
    variant.register_buffer("kept", torch.zeros(40, dtype=torch.long))
    check = SpotCheck(foreign, torch.device("cpu"), 0)
    with check.watching([variant], optimiser):
        variant.packed += 1
    assert check.learned == 320


class Faster(dict[str, Any]):
    """Settings of a group that tell one reader another rate."""


def puts_another_group(optimiser: torch.optim.Optimizer) -> None:
    optimiser.param_groups[:] = [Faster(each) for each in optimiser.param_groups]


def hooks_gradients(optimiser: torch.optim.Optimizer) -> None:
    for each in optimiser.param_groups[0]["params"]:
        each.register_post_accumulate_grad_hook(lambda parameter: None)


def raises_the_rate(optimiser: torch.optim.Optimizer) -> None:
    optimiser.param_groups[0]["lr"] *= 4


def shrinks_a_moment(optimiser: torch.optim.Optimizer) -> None:
    for state in optimiser.state.values():
        state["exp_avg_sq"].mul_(0.1)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (None, ""),
        (puts_another_group, "it takes part in the steps of the optimiser"),
        (raises_the_rate, "it takes part in the steps of the optimiser"),
        (hooks_gradients, "it changes gradients when they have been accumulated"),
        (shrinks_a_moment, "between two steps of the optimiser, another module's parameters changed"),
    ],
)
def test_a_layer_changes_nothing_that_the_optimiser_holds(way: Any, words: str, foreign: Spec) -> None:
    variant, project = Honest(SHAPE), nn.Linear(8, 24)
    optimiser = torch.optim.AdamW(project.parameters())
    check = SpotCheck(foreign, torch.device("cpu"), 0)
    with check.watching([variant], optimiser):
        for step in range(4):
            # as a schedule sets it
            optimiser.param_groups[0]["lr"] = 1e-3 * (step + 1)
            query, key, value = project(torch.randn(2, 2, 12, 8)).chunk(3, -1)
            variant(query, key, value, Mask(causal=True)).square().sum().backward()
            if way is not None and step == 2:
                way(optimiser)
            optimiser.step()
    assert check.found.startswith(words) and bool(check.found) == bool(words)


class LeaksAtFewPlaces(Honest):
    """Six of 64 outputs see the next value, in batches that no test of two rows has."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask).clone()
        places = torch.arange(5, 60, 10)
        output[:, :, places] += value[:, :, places + 1] * (len(value) >= 12)
        return output


def test_a_leak_at_few_places_is_found_since_each_sequence_has_its_own_cut(foreign: Spec) -> None:
    shape = replace(SHAPE, max_length=64)
    for kind, words in ((LeaksAtFewPlaces, "later positions move"), (Honest, "")):
        check, variant = SpotCheck(foreign, torch.device("cpu"), share=1.0), kind(shape)
        with check.watching([variant]):
            for _ in range(20):
                variant(*(torch.randn(32, 2, 64, 8) for _ in range(3)), Mask(causal=True))
        assert words in check.found and bool(check.found) == bool(words)


def test_a_layer_that_is_fast_before_it_is_trained_is_found(foreign: Spec) -> None:
    variant = Honest(SHAPE)
    variant.own = nn.Parameter(torch.zeros(7))
    check = SpotCheck(foreign, torch.device("cpu"), share=1.0, steady=True)
    found = check.fast_before_training([variant], lambda: 2 * (0.5 if float(variant.own.detach().max()) > 0 else 0.1,))
    assert found == "a sample takes 0.5 s once its weights have moved by 0.02, and 0.1 s with those that it drew"
    assert check.fast_before_training([variant], lambda: (0.1, 0.1)) == ""
    assert torch.equal(variant.own, torch.zeros(7))
    # a temperature that begins so low that all scores are nearly equal
    for sign, size in ((1, 0.5), (-1, -0.5)):
        late = lambda sign=sign: 2 * (0.5 if sign * float(variant.own.detach().max()) > 0.3 else 0.1,)  # noqa: E731
        assert f"once its weights have moved by {size}," in check.fast_before_training([variant], late)
    variant.own = nn.Parameter(torch.zeros(300))
    assert check.fast_before_training([variant], late) == ""
    # one that sleeps takes no more of the processor
    found = check.fast_before_training([variant], lambda: (0.5 if float(variant.own.detach().max()) > 0 else 0.1, 0.1))
    assert "once its weights have moved" in found
    # other processes take every second sample's cores
    turns = itertools.cycle([0.1, 0.5])
    assert check.fast_before_training([variant], lambda: (next(turns), 0.1)) == ""
    # without weights nothing has moved, and a machine that grows busy is not the layer's doing
    times = itertools.cycle([0.1, 0.5])
    assert check.fast_before_training([Honest(SHAPE)], lambda: 2 * (next(times),)) == ""


def test_nothing_is_left_on_inputs_that_are_timed_afterwards(foreign: Spec) -> None:
    calls = []

    class Counts(Honest):
        def forward(self, *given: Any) -> Tensor:
            calls.append(1)
            return super().forward(*given)

    variant, inputs = Counts(SHAPE).train(), [torch.randn(2, 2, 12, 8, requires_grad=True) for _ in range(3)]
    check = SpotCheck(foreign, torch.device("cpu"), share=1.0, steady=True)

    def step() -> int:
        calls.clear()
        variant(*inputs, Mask(causal=True)).square().sum().backward()
        return len(calls)

    with check.watching([variant]):
        assert step() > 1
    assert step() == 1 and check.found == ""


def test_a_leak_of_whole_batches_or_with_gradients_alone_is_found(foreign: Spec) -> None:
    assert "later positions move" in watched(LeaksInBatches(SHAPE), foreign, calls=40).found
    assert "later positions move" in watched(LeaksWithGradients(SHAPE), foreign, calls=40, backward=True).found
    assert watched(Honest(SHAPE), foreign, calls=40, backward=True).found == ""


@pytest.mark.parametrize(
    "kind", [LeaksBesideHugeNumbers, CopiesAnother, RefusesCopies, RaisesInCopies, LeaksBeforeItsForward]
)
def test_a_leak_is_found_however_it_hides(kind: type[ScoredVariant], foreign: Spec) -> None:
    words = "a copy of it raises" if kind is RaisesInCopies else "later positions move"
    assert words in watched(kind(SHAPE), foreign, calls=40).found


@pytest.mark.parametrize("kind", [KeepsWeights, HoldsLock])
def test_what_torch_or_python_cannot_copy_is_copied_or_left_to_the_layer(
    kind: type[ScoredVariant], foreign: Spec
) -> None:
    assert watched(kind(SHAPE), foreign, calls=20, backward=True).found == ""


@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_samples_stay_the_same(foreign: Spec, training: bool) -> None:
    def found(kind: type[ScoredVariant], dropout: float = 0.0) -> str:
        variant = kind(replace(SHAPE, dropout=dropout)).train(training)
        return watched(variant, foreign, steady=True, backward=True).found

    assert found(SkipsBackward) == "the same inputs give another gradient than they gave before"
    assert found(Honest) == found(Honest, dropout=0.3) == ""


@pytest.mark.parametrize(("kind", "dropout"), [(HelpedInTheModel, 0.0), (Honest, 0.0), (Honest, 0.3)])
def test_gradients_in_the_model_are_those_of_a_copy(kind: type[ScoredVariant], dropout: float, foreign: Spec) -> None:
    check, variant = SpotCheck(foreign, torch.device("cpu"), share=1.0), kind(replace(SHAPE, dropout=dropout)).train()
    project = nn.Linear(8, 24)
    with check.watching([variant]):
        for _ in range(4):
            heads = project(torch.randn(3, 2, 12, 8)).chunk(3, -1)
            variant(*heads, Mask(causal=True)).square().sum().backward()
    wrong = "its gradients in the model are others than those of a copy for the same inputs"
    assert check.found == (wrong if kind is HelpedInTheModel else "")


@pytest.mark.parametrize("kind", [OtherInTheModel, Honest, Drifts])
def test_an_output_in_the_model_is_that_of_a_copy(kind: type[ScoredVariant], foreign: Spec) -> None:
    check, variant = SpotCheck(foreign, torch.device("cpu"), share=1.0), kind(SHAPE).train()
    project = nn.Linear(8, 24)
    with check.watching([variant]):
        for _ in range(4):
            heads = project(torch.randn(3, 2, 12, 8)).chunk(3, -1)
            variant(*heads, Mask(causal=True)).square().sum().backward()
    assert ("% off that of a copy for the same inputs" in check.found) == (kind is OtherInTheModel), check.found


@pytest.mark.parametrize("writes", ["", "another module's", "its own"])
def test_parameters_change_by_the_optimiser_alone(writes: str, foreign: Spec) -> None:
    variant, project = Honest(SHAPE), nn.Linear(8, 24)
    variant.own, variant.large = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(30, 10))
    optimiser, check = (
        torch.optim.AdamW([*project.parameters(), variant.own, variant.large]),
        SpotCheck(foreign, torch.device("cpu"), 0),
    )
    with check.watching([variant], optimiser):
        for step in range(5):
            loss = (project(torch.randn(4, 8)) * variant.own * variant.large.mean()).square().sum()
            loss.backward()
            # as a temperature is kept within bounds
            variant.own.data.fill_(2.0)
            if writes and step == 3:
                (project.weight if writes == "another module's" else variant.large).data.mul_(2)
            optimiser.step()
    shape = "30 × 10" if writes == "its own" else "24 × 8"
    words = f"between two steps of the optimiser, {writes} parameters changed (of shape {shape})"
    assert check.found == words * bool(writes)
    project.weight.data.zero_()
    optimiser.step()
    assert check.found == words * bool(writes)


def test_our_own_code_is_not_watched() -> None:
    variant = Leaks(SHAPE)
    assert not SpotCheck(Spec("softmax"), torch.device("cpu"), share=1.0).is_on
    assert watched(variant, Spec("softmax")).found == ""


def test_no_draw_and_no_state_of_the_run_changes(foreign: Spec) -> None:
    variant = Counts(SHAPE)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    watched(variant, foreign, calls=5)
    assert torch.equal(torch.rand(3), expected) and variant.calls == 5 and not variant._forward_hooks


def test_outputs_of_samples_are_plain_and_stay_the_same(foreign: Spec) -> None:
    def found(kind: type[ScoredVariant]) -> str:
        return watched(kind(SHAPE).eval(), foreign, steady=True).found

    assert "is a Late, which may be computed when" in found(Lazy)
    assert "the same inputs give another output" in found(Tired) and "another output" in found(Empty)
    assert found(Honest) == found(Counts) == ""
    # in training it may draw numbers
    assert "another output" not in watched(Tired(SHAPE).train(), foreign, calls=4, steady=True).found


@pytest.mark.parametrize("by", ["content", "identity"])
def test_outputs_that_are_kept_are_found_by_content_that_was_not_seen(by: str, foreign: Spec) -> None:
    check = SpotCheck(foreign, torch.device("cpu"), share=1.0)
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 12, 8, generator=draw) for _ in range(2)]
    before = [each.clone() for each in inputs]
    kept: set[object] = set()
    noise = itertools.cycle([0.009, 0.001, 0.001])

    def honest() -> tuple[float, float]:
        return 2 * (next(noise),)

    def cheating() -> tuple[float, float]:
        """A sample's seconds on a busy machine, where an output is kept by what was drawn, or by place and version."""
        place = tuple(float(x.sum()) if by == "content" else (x.data_ptr(), x._version) for x in inputs)
        was_kept, seconds = place in kept, next(noise)
        kept.add(place)
        return 2 * (0.1 * seconds if was_kept else seconds,)

    assert check.kept_outputs(inputs, honest) == "" and check.kept_outputs([], honest) == ""
    cheating()
    assert "it keeps outputs from call to call" in check.kept_outputs(inputs, cheating)
    assert all(map(torch.equal, inputs, before))


def test_work_that_is_done_for_a_hook_alone_is_found(foreign: Spec) -> None:
    inputs = [torch.randn(2, 2, 256, 8) for _ in range(3)]

    def told(kind: type[ScoredVariant]) -> str:
        check, variant = SpotCheck(foreign, torch.device("cpu"), share=1.0, steady=True), kind(SHAPE)

        def seconds() -> tuple[float, float]:
            started, processor = perf_counter(), process_time()
            variant(*inputs, Mask(causal=True))
            return perf_counter() - started, process_time() - processor

        return check.honest_if_watched([variant], seconds)

    assert told(Honest) == "" and "while a hook is on its layers" in told(HonestIfWatched)
