"""From a hook on each parameter to buckets: the sums of one process, in flight while backward runs."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.cluster import Cluster
from reference.data_parallel.answers.reduce_on_last import reduce_on_last
from reference.data_parallel.plain import reduce_in_buckets, reduce_when_ready

Clusters = Callable[..., Cluster]
Gradients = dict[str, Tensor]
STEPS, PARTS, LAYER = 2, 3, 8 * (5 * 5 + 5)  # micro-batches of a step; bytes of a layer


class Watched(nn.Module):
    """Three layers, and how many calls this rank had made when backward came to the first of them, in each step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5)).double()
        self.calls_before_the_first: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        first = self.layers[0](x)
        if dist.is_initialized():
            first.register_hook(lambda _: self.calls_before_the_first.append(len(dist.group.WORLD.recorder.calls)))
        return self.layers[1:](first)


def backward(model: nn.Module, step: int, part: int, ranks: list[int]) -> None:
    """Through one micro-batch of these ranks."""
    x = torch.cat([samples(1 + rank % 2, seed=100 * step + 10 * part + rank) for rank in ranks])
    model(x).square().sum().backward()


def samples(count: int, seed: int) -> Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def taken(model: nn.Module) -> Gradients:
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found


def in_one_process(n: int, parts: int) -> list[Gradients]:
    model, found = Watched(), []
    for step in range(STEPS):
        for part in range(parts):
            backward(model, step, part, list(range(n)))
        found.append(taken(model))
    return found


def on_rank(form: Callable, *options: int) -> tuple[list[Gradients], list[int]]:
    """The gradients of every step, and the calls before backward came to the first layer."""
    model, found = Watched(), []
    finish = form(model, dist.group.WORLD, *options)
    for step in range(STEPS):
        backward(model, step, 0, [dist.get_rank()])
        finish()
        found.append(taken(model))
    return found, model.calls_before_the_first


FORMS = {  # with the calls that are made before backward comes to the first layer, and in a step
    "hooks": ((reduce_when_ready,), 4, 6),
    "buckets of two layers": ((reduce_in_buckets, 2 * LAYER), 1, 2),
    "one bucket": ((reduce_in_buckets, 10 * LAYER), 0, 1),
    "buckets smaller than any parameter": ((reduce_in_buckets, 1), 4, 6),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_gradients_are_summed_while_backward_runs(clusters: Clusters, n: int, form: str) -> None:
    arguments, before, calls = FORMS[form]
    results, trace = clusters(n).trace(on_rank, *arguments)
    assert_close(results, in_one_process(n, parts=1))
    assert all(calls_before == [before, calls + before] for _, calls_before in results)
    assert all(len(events) == STEPS * calls for events in trace.events)


def in_micro_batches() -> tuple[list[Gradients], list[int]]:
    model, found = Watched(), []
    micro_batch = reduce_on_last(model, dist.group.WORLD)
    for step in range(STEPS):
        for part in range(PARTS):
            with micro_batch(part == PARTS - 1):
                backward(model, step, part, [dist.get_rank()])
        found.append(taken(model))
    return found, model.calls_before_the_first


@pytest.mark.parametrize("n", [1, 2, 3])
def test_nothing_is_sent_before_the_last_micro_batch(clusters: Clusters, n: int) -> None:
    results, trace = clusters(n).trace(in_micro_batches)
    assert_close(results, in_one_process(n, PARTS))
    assert all(calls_before == [0, 0, 4, 6, 6, 10] for _, calls_before in results)
    assert all(len(events) == STEPS * 6 for events in trace.events)


def assert_close(results: list, expected: list[Gradients]) -> None:
    """In float64 the order of additions alone differs."""
    for found, _ in results:
        for ours, theirs in zip(found, expected, strict=True):
            for name, gradient in theirs.items():
                torch.testing.assert_close(ours[name], gradient, rtol=1e-12, atol=1e-13, msg=name)
