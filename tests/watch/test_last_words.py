"""What a rank reported before its process ended is read before it is said why it ended."""

import os

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.cluster.errors import MismatchError


def ends_with_a_mismatch() -> None:
    """Many reports, of which only the last says what is wrong, and then no more process to say anything."""
    other = 1 - dist.get_rank()
    kept = [dist.isend(torch.zeros(1), other) for _ in range(300)]
    kept.append(dist.irecv(torch.zeros(2), other))
    os._exit(3)


def test_a_dead_ranks_last_call_counts() -> None:
    with (
        Cluster(2, watch=True, timeout=10) as cluster,
        pytest.raises(MismatchError, match=r"sends 1 element .* receives 2 elements"),
    ):
        cluster.run(ends_with_a_mismatch)
