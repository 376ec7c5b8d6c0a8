"""Groups of every size among the ranks of one warm cluster."""

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from reference.cluster import Cluster

MOST = 17


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
