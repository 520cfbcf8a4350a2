"""A capture that fails gives back the stream and the generator, so that what comes next runs as before."""

from __future__ import annotations

import pytest
import torch
from fake_cuda import install

from attnbench.bench.measure.cuda_graph import capture

DEVICE = torch.device("cuda", 0)


def test_a_capture_executes_nothing_and_its_replays_do(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    counter, other = torch.zeros(3), torch.ones(3)

    def work() -> None:
        counter.add_(other * 2).mul_(3)

    graph = capture(work, DEVICE)
    assert counter.tolist() == [0, 0, 0]
    graph.replay()
    graph.replay()
    assert counter.tolist() == [24, 24, 24]


def test_a_capture_that_fails_gives_back_stream_and_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch stays on its side stream where the end of a capture fails, and refuses later draws of dropout."""
    fake = install(monkeypatch)
    before = torch.cuda.current_stream()
    parameter = torch.ones(2)

    def work() -> None:
        parameter.add_(torch.rand(2))
        torch.cuda.synchronize()

    torch.manual_seed(0)
    with pytest.raises(torch.AcceleratorError, match="not permitted when stream is capturing"):
        capture(work, DEVICE)
    assert fake.given_back == [before] and parameter.tolist() == [1, 1]
    assert not fake.pools, "the allocator would go on as in a capture"
    found = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(found, torch.rand(3))


def test_a_capture_that_fails_and_is_ended_by_pytorch_raises_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later versions end it themselves, and complain where it is ended twice."""
    fake = install(monkeypatch)

    def work() -> None:
        fake.pools.clear()
        torch.cuda.synchronize()

    with pytest.raises(torch.AcceleratorError, match="not permitted when stream is capturing"):
        capture(work, DEVICE)
