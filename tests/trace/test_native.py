"""Native collectives count exactly as the algorithm they are named after."""

from math import ceil, log2

import pytest

from reference.trace import Network, Op
from reference.trace.native import tree_down, tree_up

from . import programs as p

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 17)
NETWORK = Network.uniform(alpha=1e-5, beta=1e9)


def native(n, op, numel=24, **more):
    return p.trace(n, lambda rank: rank.call(op, numel, **more))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("numel", [0, 1, 5, 160])
def test_native_all_reduce_is_the_ring_by_hand(n, numel):
    by_hand = p.trace(n, lambda rank: p.ring_all_reduce(rank, numel))
    trace = native(n, Op.ALL_REDUCE, numel)
    assert trace.counted_as == {Op.ALL_REDUCE: "ring"}
    assert (trace.bytes_sent, trace.bytes_received) == (by_hand.bytes_sent, by_hand.bytes_received)
    assert trace.steps == by_hand.steps
    assert trace.replay(NETWORK).transfers == tuple(
        type(t)(t.src, t.dst, t.begin, t.end, t.bytes, "all_reduce") for t in by_hand.replay(NETWORK).transfers
    )


@pytest.mark.parametrize("n", SIZES)
def test_reduce_scatter_and_all_gather_are_halves_of_the_ring(n):
    chunk = 5
    scatter, gather = native(n, Op.REDUCE_SCATTER, chunk * n), native(n, Op.ALL_GATHER, chunk)
    assert scatter.bytes_sent == gather.bytes_sent == [(n - 1) * chunk * p.ITEM] * n
    assert scatter.steps == gather.steps == n - 1


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("root", [0, 1, -1])
def test_rooted_collectives_are_binomial_trees(n, root):
    root %= n
    steps = ceil(log2(n))
    broadcast, reduce = native(n, Op.BROADCAST, peer=root), native(n, Op.REDUCE, peer=root)
    assert broadcast.steps == reduce.steps == steps
    assert sum(broadcast.bytes_sent) == sum(reduce.bytes_sent) == (n - 1) * 24 * p.ITEM
    assert broadcast.bytes_received[root] == reduce.bytes_sent[root] == 0
    assert broadcast.bytes_received == reduce.bytes_sent
    scatter, gather = native(n, Op.SCATTER, peer=root), native(n, Op.GATHER, peer=root)
    assert scatter.steps == gather.steps == steps
    assert scatter.bytes_sent[root] == gather.bytes_received[root] == (n - 1) * 24 * p.ITEM
    assert scatter.unmatched == gather.unmatched == ()


@pytest.mark.parametrize("n", SIZES)
def test_a_tree_reaches_every_rank_once_and_upwards_is_downwards_reversed(n):
    for root in range(n):
        down = {(me, m.peer) for me in range(n) for r in tree_down(me, root, [1] * n) for m in r if m.sends}
        up = {(m.peer, me) for me in range(n) for r in tree_up(me, root, [1] * n) for m in r if m.sends}
        assert sorted(child for _, child in down) == [r for r in range(n) if r != root]
        assert down == up


@pytest.mark.parametrize("n", SIZES)
def test_all_to_all_is_pairwise_and_knows_its_splits(n):
    even = native(n, Op.ALL_TO_ALL, 3 * n)
    assert even.steps == n - 1
    assert even.bytes_sent == [(n - 1) * 3 * p.ITEM] * n

    def program(rank):
        splits = tuple(p.ITEM * (rank.rank + other) for other in range(n))
        rank.call(Op.ALL_TO_ALL, sum(splits) // p.ITEM, splits=splits)

    uneven = p.trace(n, program)
    sent = [sum(p.ITEM * (me + other) for other in range(n) if other != me) for me in range(n)]
    assert uneven.bytes_sent == uneven.bytes_received == sent


@pytest.mark.parametrize("n", SIZES)
def test_barrier_takes_log_n_steps_and_no_bytes(n):
    trace = native(n, Op.BARRIER, 0)
    assert (trace.steps, sum(trace.bytes_sent)) == (ceil(log2(n)), 0)


def test_the_kth_collective_of_a_group_meets_the_kth():
    def program(rank):
        mine = (0, 1) if rank.rank < 2 else (2, 3)
        rank.call(Op.ALL_REDUCE, 8, group=mine)
        rank.call(Op.ALL_REDUCE, 16)
        rank.call(Op.ALL_REDUCE, 8, group=mine)

    trace = p.trace(4, program)
    assert trace.steps == 2 + 6 + 2
    assert trace.unmatched == ()


def test_collectives_that_run_beside_each_other_are_not_in_each_others_way():
    def program(rank):
        first = rank.post(Op.ALL_REDUCE, 8)
        second = rank.post(Op.ALL_REDUCE, 8)
        rank.wait(first, second)

    assert p.trace(4, program).steps == 6


def test_a_collective_that_a_rank_left_out_is_unmatched():
    def program(rank):
        if rank.rank != 2:
            rank.post(Op.ALL_REDUCE, 8)

    trace = p.trace(3, program)
    assert [e.rank for e in trace.unmatched] == [0, 1]


def test_collectives_that_differ_do_not_meet():
    def program(rank):
        rank.post(Op.ALL_REDUCE if rank.rank else Op.BARRIER, 8)

    trace = p.trace(2, program)
    assert trace.messages == () and len(trace.unmatched) == 2


def test_a_rank_outside_the_group_sends_nothing():
    trace = p.trace(3, lambda rank: rank.call(Op.ALL_REDUCE, 8, group=(0, 1)))
    assert trace.bytes_sent == [32, 32, 0]
