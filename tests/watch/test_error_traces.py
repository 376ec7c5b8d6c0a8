"""The trace of a call that failed says what the ranks' own records say of the same calls."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from reference.cluster.errors import DeadlockError
from reference.trace import Event, Op


def talk(*, for_ever: bool) -> None:
    """Uneven splits, requests in flight together, a group, a tag, and a receive from any rank."""
    rank, n = dist.get_rank(), dist.get_world_size()
    given, taken = [rank + 1] * n, [source + 1 for source in range(n)]
    dist.all_to_all_single(torch.empty(sum(taken), 2), torch.ones(sum(given), 2), taken, given)
    pair = dist.new_group([0, 1])
    requests = [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(2)]
    if rank < 2:
        requests.append(dist.broadcast(torch.ones(7), src=1, group=pair, async_op=True))
    for request in requests:
        request.wait()
    if rank == 0:
        dist.recv(torch.empty(3), tag=4)
    elif rank == 1:
        dist.send(torch.ones(3), dst=0, tag=4)
    if for_ever:
        dist.recv(torch.empty(1), src=(rank + 1) % n)


def timeless(events: tuple[Event, ...]) -> list[Event]:
    """Events without clocks, and of a receive that never ends, nothing."""
    return [replace(e, begin=0.0, end=None) for e in events if not (e.op is Op.RECV and e.completed is None)]


def test_a_failed_call_leaves_the_events_of_one_that_succeeds(clusters) -> None:
    cluster = clusters(3, watch=True)
    _, whole = cluster.trace(talk, for_ever=False)
    with pytest.raises(DeadlockError) as failure:
        cluster.run(talk, for_ever=True)
    trace = failure.value.trace
    assert [timeless(own) for own in trace.events] == [timeless(own) for own in whole.events]
    assert trace.bytes_sent == whole.bytes_sent
    assert all(e.begin <= e.end for own in trace.events for e in own if e.completed is not None)
