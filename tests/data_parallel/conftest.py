"""Groups of every size among the ranks of one warm cluster, and one way to hold trainings against the oracle."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch.distributed as dist

from reference.cluster import Cluster

from .training import Case, Record, differences, one_process, same_bits, train

MOST = 8
EXACT = 1e-10  # in float64 the order of additions costs about 1e-15 a step, any mistake at least 1e-3


@pytest.fixture(scope="session")
def ranks(clusters: Callable[..., Cluster]) -> Cluster:
    """As many ranks as any test here wants."""
    return clusters(MOST)


def members(n: int) -> list[int]:
    """n global ranks of the cluster: not the first ones, so that a group rank is no global rank."""
    return sorted((MOST - 1 - 3 * i) % MOST for i in range(n))


def in_group(n: int, fn: Callable[..., Any], *arguments: Any) -> Any:
    """To be run on every rank: `fn(group, *arguments)` on the members of a group of n, None on the others."""
    group = dist.new_group(members(n))
    return fn(group, *arguments) if group is not dist.GroupMember.NON_GROUP_MEMBER else None


def train_all(group: dist.ProcessGroup, cases: Sequence[Case]) -> list[Record]:
    """One case after the other."""
    return [train(group, case) for case in cases]


def records(ranks: Cluster, n: int, cases: Sequence[Case]) -> list[list[Record]]:
    """What each of n ranks has written down, case by case."""
    found = ranks.run(in_group, n, train_all, cases)
    return [list(of_case) for of_case in zip(*(found[rank] for rank in members(n)), strict=True)]


def wrong(found: Sequence[Record], oracle: Any, bound: float = EXACT) -> dict[str, float]:
    """What differs by more than `bound` from the oracle on some rank, and the ranks that differ from the first one."""
    worst: dict[str, float] = {}
    for rank, record in enumerate(found):
        for name, difference in differences(record, oracle).items():
            worst[name] = max(difference, worst.get(name, 0.0))
        if not same_bits(record, found[0]):
            worst[f"rank {rank} differs from rank 0"] = float("inf")
    return {name: difference for name, difference in worst.items() if difference > bound}


def prove(ranks: Cluster, n: int, cases: Sequence[Case], zeros: bool = False) -> None:
    """Every case on n ranks equals one process, and the ranks each other to the last bit."""
    for case, found in zip(cases, records(ranks, n, cases), strict=True):
        oracle = one_process(case.task, case.optimizer, n * case.micro_batches, zeros, case.steps)
        assert wrong(found, oracle) == {}, f"{case} on {n} ranks"
