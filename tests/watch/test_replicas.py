"""Replicas that drift apart without a wrong call: the parameter, the ranks and the step are named."""

import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

from reference.cluster import Cluster
from reference.cluster.errors import DriftError, RankError, RemoteException
from reference.cluster.watch.replicas import watch_replicas
from tests.watch.warm import LIMIT, WarmClusters


def train(mistake: str, steps: int = 4) -> float:
    """Data parallelism by hand, right but for one thing."""
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank if mistake == "seed" else 0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    watch_replicas(model)
    for step in range(steps):
        batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        for name, parameter in model.named_parameters():
            if not (mistake == "a parameter is forgotten" and name == "3.bias" and step == 2):
                dist.all_reduce(parameter.grad)
        if mistake == "learning rate" and step == 1 and rank == 1:
            optimizer.param_groups[0]["lr"] = 0.2
        if mistake == "clipped alone" and step == 3:
            nn.utils.clip_grad_norm_(model[0].parameters(), 0.01 * (1 + (rank == n - 1)))
        optimizer.step()  # <- here
    return sum(parameter.sum().item() for parameter in model.parameters())


SAYS = {
    "seed": [
        "'0.weight' differs before the first step",
        "on rank 0, another on rank 1, another on rank 2",
        "same seed",
    ],
    "a parameter is forgotten": [r"'3.bias' differs after step 3", "gradients"],
    "learning rate": [r"'0.weight' differs after step 2", "on ranks 0, 2, another on rank 1", "so do 5 others"],
    "clipped alone": [r"'0.weight' differs after step 4", "on ranks 0, 1, another on rank 2", "so does 1 other"],
}


@pytest.mark.parametrize("mistake", SAYS)
def test_the_parameter_the_ranks_and_the_step_are_named(mistake: str, warm: WarmClusters) -> None:
    with pytest.raises(DriftError) as found:
        warm.call(3, LIMIT, train, mistake)
    for words in SAYS[mistake]:
        assert re.search(words, str(found.value)), str(found.value)
    blamed = {"learning rate": 1, "clipped alone": 2}.get(mistake)
    assert blamed is None or found.value.rank == blamed
    assert found.value.file == __file__


@pytest.mark.parametrize("n", [2, 3])
def test_replicas_that_stay_one_are_not_accused(n: int, warm: WarmClusters) -> None:
    """Their buffers (the running statistics of BatchNorm) do differ."""
    assert len(set(warm.call(n, LIMIT, train, ""))) == 1


def by_hand(drifts: bool) -> None:
    """A step that no torch optimizer takes, and a model that is no replica beside it."""
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    nn.init.constant_(other.weight, dist.get_rank())
    compare = watch_replicas(model)
    for step in range(3):
        with torch.no_grad():
            model.weight -= 0.1 * (1 + drifts * (step == 1) * dist.get_rank())
            other.weight += 1
        compare()


def test_steps_by_hand_are_compared_when_one_asks(warm: WarmClusters) -> None:
    warm.call(2, LIMIT, by_hand, False)
    with pytest.raises(DriftError, match="'weight' differs after step 2"):
        warm.call(2, LIMIT, by_hand, True)


def in_two_groups(drifts: bool) -> None:
    """Ranks 0 and 1 hold one model, ranks 2 and 3 another: hybrid sharding, say."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    torch.manual_seed(dist.get_rank() // 2)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + drifts * (dist.get_rank() == 3)))
    watch_replicas(model, pairs[dist.get_rank() // 2])
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_only_ranks_of_one_group_hold_one_model(warm: WarmClusters) -> None:
    warm.call(4, LIMIT, in_two_groups, False)
    with pytest.raises(DriftError, match="after step 1: it has one value on rank 2, another on rank 3"):
        warm.call(4, LIMIT, in_two_groups, True)


def of_another_group() -> None:
    group = dist.new_group([0])
    watch_replicas(nn.Linear(2, 2), group)


def test_a_rank_outside_the_group_holds_no_replica(warm: WarmClusters) -> None:
    with pytest.raises(RankError, match="this rank is not in the group"):
        warm.call(2, LIMIT, of_another_group)


def test_ranks_that_nobody_watches_say_so() -> None:
    with Cluster(1) as cluster, pytest.raises(RemoteException, match="this rank is not watched"):
        cluster.run(by_hand, False)


def through_ddp() -> None:
    """torch's own DDP keeps replicas the same."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    watch_replicas(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(3, 4) + dist.get_rank()).sum().backward()
        optimizer.step()


def test_ddp_is_not_accused(warm: WarmClusters) -> None:
    warm.call(2, LIMIT, through_ddp)
