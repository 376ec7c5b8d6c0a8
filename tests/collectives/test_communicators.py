"""Every communicator says the same: what is done when it returns, what is started, and what is between two ranks."""

import os
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.collectives.communicator import ByHand, Communicator, Native
from reference.collectives.default import over
from reference.collectives.fast.dispatch import Fastest
from reference.trace import Op

from . import conformance as c
from .conftest import in_group
from .test_values import checked


class Five(Communicator):
    """One that defines what it must, and takes the rest as it is: all goes through another communicator."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self.inner = Fastest(group)

    def all_reduce(self, x: Tensor, op: dist.ReduceOp = dist.ReduceOp.SUM) -> None:
        self.inner.all_reduce(x, op)

    def all_gather(self, x: Tensor, out: Tensor) -> None:
        self.inner.all_gather(x, out)

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        self.inner.reduce_scatter(x, out)

    def all_to_all(self, x: Tensor, out: Tensor) -> None:
        self.inner.all_to_all(x, out)

    def broadcast(self, x: Tensor, root: int) -> None:
        self.inner.broadcast(x, root)


KINDS = (Native, ByHand, Fastest, Five)


def done(kind: Callable[..., Communicator]) -> dict[str, Callable[..., None]]:
    """Its five collectives, as functions that end in a group."""
    return {
        "all_reduce": lambda x, group, op: kind(group).all_reduce(x, op),
        "all_gather": lambda x, out, group: kind(group).all_gather(x, out),
        "reduce_scatter": lambda x, out, group, op: kind(group).reduce_scatter(x, out),
        "all_to_all": lambda x, out, group: kind(group).all_to_all(x, out),
        "broadcast": lambda x, root, group: kind(group).broadcast(x, root),
    }


def started(kind: Callable[..., Communicator]) -> dict[str, Callable[..., None]]:
    """Those that it starts, with their results where they belong."""

    def all_reduce(x: Tensor, group: dist.ProcessGroup, op: dist.ReduceOp) -> None:
        assert kind(group).start_all_reduce(x, op)() is x

    def all_gather(x: Tensor, out: Tensor, group: dist.ProcessGroup) -> None:
        assert kind(group).start_all_gather(x, out)() is out
        whole = torch.zeros_like(out)
        in_place = whole.view(-1).tensor_split(group.size())[group.rank()]
        in_place.copy_(x.view(-1))
        assert torch.equal(kind(group).start_all_gather(in_place, whole)(), out)

    def reduce_scatter(x: Tensor, out: Tensor, group: dist.ProcessGroup, op: dist.ReduceOp) -> None:
        n, x = group.size(), x.clone()
        assert kind(group).start_reduce_scatter(x.clone(), out)() is out
        in_place = x.view(-1).tensor_split(n)[group.rank()]
        assert kind(group).start_reduce_scatter(x, in_place)() is in_place
        assert torch.equal(in_place.view_as(out), out)

    return {"all_reduce": all_reduce, "all_gather": all_gather, "reduce_scatter": reduce_scatter}


def of_all_kinds(group: dist.ProcessGroup) -> list[str]:
    """In one length, which 1, 2, 3 and 8 ranks divide."""
    return [
        f"{kind.__name__}: {difference[:200]}"
        for kind in KINDS
        for functions in (done(kind), started(kind))
        for collective, function in functions.items()
        for difference in c.mismatches([c.Case(collective, function, 24, root=group.size() - 1)], group)
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_every_communicator_says_the_same(ranks: Cluster, n: int) -> None:
    checked(ranks, n, of_all_kinds)


def around_a_ring(group: dist.ProcessGroup) -> list[str]:
    rank, n, found = group.rank(), group.size(), []
    right, left = (rank + 1) % n, (rank - 1) % n
    for kind in KINDS:
        mine, swapped, received = torch.tensor([float(rank)]), torch.empty(1), torch.empty(1)
        communicator = kind(group)
        here = communicator.start_exchange(mine, right, swapped, left)()
        coming, leaving = communicator.start_receive(received, left), communicator.start_send(mine, right)
        if here is not swapped or leaving() is not mine or coming() is not received or not (here == received == left):
            found.append(kind.__name__)
    return found


@pytest.mark.parametrize("n", [2, 3])
def test_every_communicator_has_messages_between_two_ranks(ranks: Cluster, n: int) -> None:
    checked(ranks, n, around_a_ring)


def gather_where(group: dist.ProcessGroup, local: dict[str, str]) -> None:
    with patch.dict(os.environ, local):
        Fastest(group).start_all_gather(torch.ones(2), torch.empty(2 * group.size()))()


@pytest.mark.parametrize(
    ("launched", "operations"),
    [
        ({"WORLD_SIZE": "12", "LOCAL_WORLD_SIZE": "12"}, {Op.SEND, Op.RECV}),
        ({"WORLD_SIZE": "12", "LOCAL_WORLD_SIZE": "6"}, {Op.ALL_GATHER}),
        ({"WORLD_SIZE": "", "LOCAL_WORLD_SIZE": "12"}, {Op.ALL_GATHER}),
    ],
)
def test_between_machines_a_gather_that_starts_crosses_a_link_once(
    ranks: Cluster, launched: dict[str, str], operations: set[Op]
) -> None:
    """As messages to all it would cross once for each rank of the other machine; torch's own goes around a ring."""
    _, trace = ranks.trace(in_group, 3, gather_where, launched)
    assert {event.op for events in trace.events for event in events} == operations


def of_a_learner(group: dist.ProcessGroup) -> list[object]:
    """A sum that is wrong in a way of its own shows that it was asked, and not another."""
    mine = ByHand(group, {"all_reduce": lambda x, group, op: x.fill_(42)})
    x, out = torch.ones(2), torch.empty(2 * group.size())
    finished = mine.start_all_reduce(x)()
    mine.all_gather(torch.full((2,), float(group.rank())), out)
    return [] if finished.tolist() == [42, 42] and out[-1] == group.size() - 1 else [finished, out]


def test_an_algorithm_of_ones_own_takes_the_place_of_one(ranks: Cluster) -> None:
    checked(ranks, 2, of_a_learner)


def defaults(group: dist.ProcessGroup) -> tuple[bool, bool, tuple[int, int]]:
    mine = ByHand(group)
    return over(mine) is mine, type(over(group)) is Fastest, (mine.rank(), mine.size())


def test_a_plain_group_is_taken_for_the_fastest_and_a_communicator_for_itself(ranks: Cluster) -> None:
    found = [each for each in ranks.run(in_group, 3, defaults) if each]
    assert sorted(found) == [(True, True, (rank, 3)) for rank in range(3)]
