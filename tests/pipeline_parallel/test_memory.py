"""What a rank keeps beside activations does not grow with the number of micro-batches."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

from reference.cluster import Cluster
from reference.memory.history import Kind
from reference.memory.lab.gauge import Gauge
from reference.pipeline_parallel.orders import forward_only, gpipe, one_f_one_b
from reference.pipeline_parallel.run import Pipeline
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.split_backward import DeferredWeightGradients, split_backward
from reference.zero_bubble.orders import zb_h1

Clusters = Callable[..., Cluster]
ORDERS = {"1F1B": one_f_one_b, "ZB-H1": zb_h1}
SIDE = 64  # of a square activation


def peak(schedule: Schedule) -> int:
    """Bytes of a second step, at its peak, of tensors that are made in it."""
    rank = dist.get_rank()
    stage = nn.Sequential(nn.Linear(SIDE, SIDE, bias=False), nn.Tanh())
    split_backward(stage, deferred := DeferredWeightGradients())
    pipeline = Pipeline(schedule, {rank: stage}, dist.group.WORLD, torch.device("cpu"), deferred=deferred)
    x = torch.ones(SIDE, SIDE)

    def step() -> None:
        pipeline.step(lambda k: (x,), lambda y, k: y.sum())
        stage.zero_grad()

    step()
    with Gauge({Kind.PARAMETERS: stage.parameters}) as gauge:
        step()
    return gauge.history.peak


def peaks(clusters: Clusters, order: Callable[[int, int], Schedule], m: int) -> list[int]:
    return clusters(4).run(peak, order(4, m))


@pytest.mark.parametrize("name", ORDERS)
def test_what_has_left_is_not_kept(clusters: Clusters, name: str) -> None:
    """Not the outputs that were sent, nor the gradients: three times the micro-batches take no byte more."""
    assert peaks(clusters, ORDERS[name], 8) == peaks(clusters, ORDERS[name], 24)


def test_inference_keeps_nothing(clusters: Clusters) -> None:
    few, many = (peaks(clusters, lambda p, m: forward_only(gpipe(p, 1), m), m) for m in (8, 24))
    assert few == many


def test_gpipe_keeps_what_it_must(clusters: Clusters) -> None:
    """So the gauge would see it."""
    few, many = (peaks(clusters, gpipe, m) for m in (8, 24))
    activation = SIDE * SIDE * 4
    assert all(more - less >= 16 * activation for less, more in zip(few, many, strict=True))
