"""Traces of real ranks: the same program gives the same numbers, whatever the clocks said."""

import time
from math import ceil, log2

import pytest
import torch
import torch.distributed as dist

from reference.collectives import all_reduce
from reference.trace import Network, Op, SpanKind, Trace

NETWORK = Network.uniform(alpha=1e-5, beta=1e9)


def ring_with_late_ranks(late: int, seconds: float = 0.02):
    if dist.get_rank() == late:
        time.sleep(seconds)
    all_reduce.ring(torch.ones(100), dist.group.WORLD)


def every_collective():
    rank, n = dist.get_rank(), dist.get_world_size()
    x, chunks = torch.ones(n, 2), list(torch.ones(n, 2))
    dist.broadcast(x, 1)
    dist.reduce(x, 1)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    dist.scatter(torch.empty(2), chunks if rank == 1 else None, src=1)
    dist.gather(chunks[0], chunks if rank == 1 else None, dst=1)
    dist.all_gather(chunks, torch.ones(2))
    dist.reduce_scatter(torch.empty(2), list(x))
    dist.all_to_all_single(torch.empty(n, 2), x)
    dist.barrier()


def overlapped():
    requests = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
    for request in requests:
        request.wait()


def two_groups_of_the_same_ranks():
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    works = [dist.all_reduce, first], [lambda x, **more: dist.broadcast(x, 0, **more), second]
    in_order = works[::-1] if dist.get_rank() else works
    for work in [call(torch.ones(4), group=group, async_op=True) for call, group in in_order]:
        work.wait()


def any_source():
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank:
        dist.send(torch.ones(rank), 0)
    for _ in range(n - 1 if rank == 0 else 0):
        dist.recv(torch.empty(3))


def numbers(trace: Trace) -> tuple:
    timeline = trace.replay(NETWORK)
    return trace.bytes_sent, trace.steps, [(m.src, m.dst, m.bytes, m.step) for m in trace.messages], timeline


def test_two_groups_of_the_same_ranks_are_two_groups(clusters):
    traces = [clusters(2).trace(two_groups_of_the_same_ranks)[1] for _ in range(2)]
    assert traces[0].unmatched == ()
    assert traces[0].bytes_sent == [16 + 16, 16]
    assert len({str(numbers(trace)) for trace in traces}) == 1


def test_late_ranks_change_clocks_and_nothing_else(clusters):
    traces = [clusters(4).trace(ring_with_late_ranks, late)[1] for late in (0, 2, 2, 3)]
    assert len({str(numbers(trace)) for trace in traces}) == 1
    assert traces[0].steps == 6


def test_every_native_collective_is_counted(clusters):
    for n in (3, 4):
        _, trace = clusters(n).trace(every_collective)
        assert trace.unmatched == ()
        assert set(trace.counted_as) == {op for op in Op if not op.point_to_point}
        assert trace.steps == 5 * (n - 1) + 5 * ceil(log2(n))
        size, piece = n * 2 * 4, 2 * 4
        total = 2 * (n - 1) * size + 2 * (n - 1) * size  # broadcast and reduce; all_reduce
        total += 3 * n * (n - 1) * piece  # all_gather, reduce_scatter, all_to_all
        total += sum(trees(n)) * piece  # scatter and gather
        assert sum(trace.bytes_sent) == total


def trees(n: int) -> tuple[int, int]:
    """Pieces that travel in a binomial scatter, and in a gather: each as many hops as its place has ones in binary."""
    hops = sum(place.bit_count() for place in range(n))
    return hops, hops


def test_overlapped_collectives_share_their_ports(clusters):
    _, trace = clusters(4).trace(overlapped)
    assert trace.steps == 6
    assert trace.replay(NETWORK).duration >= 3 * 6 * (1000 / NETWORK.inter.beta)


def test_any_source_receives_match_the_rank_they_heard_from(clusters):
    _, trace = clusters(4).trace(any_source)
    assert trace.unmatched == ()
    assert sorted(m.bytes for m in trace.messages) == [4, 8, 12]


def test_a_measured_timeline_shows_who_waited(clusters):
    _, trace = clusters(4).trace(ring_with_late_ranks, 2, 0.3)
    timeline = trace.timeline()
    assert timeline.seconds(3, SpanKind.WAITING) > 0.2 > timeline.seconds(2, SpanKind.WAITING)


@pytest.mark.parametrize("n", [1, 2, 8])
def test_a_trace_of_nothing_is_empty(clusters, n):
    _, trace = clusters(n).trace(lambda: None)
    assert (trace.steps, trace.messages, trace.replay(NETWORK).duration) == (0, (), 0)
