"""Bytes that ranks send are counted without a replay, and are those that the replayed trace says."""

import pytest
import torch
import torch.distributed as dist

from puzzles.grading.sent import bytes_sent


def everything(group_of_three: bool) -> None:
    """All that a rank can say, with pieces that n does not divide, and in a group that is not the world."""
    ranks = [0, 2, 3] if group_of_three else list(range(dist.get_world_size()))
    group = dist.new_group(ranks)
    rank, n = dist.get_rank(group), len(ranks)
    if rank < 0:
        return
    x, pieces = torch.ones(7), [torch.empty(7) for _ in ranks]
    dist.all_reduce(x, group=group)
    dist.broadcast(x, group=group, group_src=1)
    dist.reduce(x, group=group, group_dst=n - 1)
    dist.all_gather(pieces, x, group=group)
    dist.scatter(x, pieces if rank == 1 else None, group=group, group_src=1)
    dist.gather(x, pieces if rank == 0 else None, group=group, group_dst=0)
    dist.all_to_all_single(torch.empty(2 * n), torch.ones(2 * n), group=group)
    dist.barrier(group=group)
    received = torch.empty(3)
    pair = [dist.P2POp(dist.isend, torch.ones(3), group=group, group_peer=(rank + 1) % n)]
    pair.append(dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % n))
    for request in dist.batch_isend_irecv(pair):
        request.wait()


@pytest.mark.parametrize("group_of_three", [False, True])
def test_what_was_sent_is_what_has_arrived(clusters, group_of_three):
    _, trace = clusters(4).trace(everything, group_of_three)
    assert bytes_sent(trace) == trace.bytes_sent
    assert sum(bytes_sent(trace)) > 0
