"""A step with every message written out is a step of one process."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.pipeline_parallel import orders, plain
from reference.pipeline_parallel.schedule import Schedule

WIDTH, ROWS = 3, 4


def stages(p: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(p)]


def given(k: int) -> Tensor:
    return torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(k))


def loss(y: Tensor, k: int) -> Tensor:
    return (k + 1) * y.square().sum()


def in_one_process(p: int, m: int) -> tuple[Tensor, list[list[Tensor]]]:
    model = nn.Sequential(*stages(p))
    total = sum(loss(model(given(k)), k) for k in range(m))
    total.backward()
    return total.detach(), [[parameter.grad for parameter in stage.parameters()] for stage in model]


def on_a_rank(schedule: Schedule) -> tuple[Tensor | None, list[Tensor]]:
    group = dist.group.WORLD
    stage = stages(group.size())[group.rank()]
    like = torch.empty(ROWS, WIDTH, dtype=torch.float64)
    total = plain.step(schedule.lines[group.rank()], stage, given, loss, like, group)
    return total, [parameter.grad for parameter in stage.parameters()]


@pytest.mark.parametrize("make", [orders.gpipe, orders.one_f_one_b])
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 1), (3, 5), (4, 4)])
def test_loss_and_gradients_are_those_of_one_process(clusters, make, p: int, m: int) -> None:
    expected, gradients = in_one_process(p, m)
    found = clusters(p).run(on_a_rank, make(p, m))
    assert [total is None for total, _ in found] == [rank < p - 1 for rank in range(p)]
    torch.testing.assert_close(found[-1][0], expected, rtol=1e-12, atol=0)
    for (_, own), whole in zip(found, gradients, strict=True):
        torch.testing.assert_close(own, whole, rtol=1e-12, atol=1e-14)
