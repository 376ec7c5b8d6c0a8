"""Bytes, steps and matching, against what one counts by hand."""

import pickle
from dataclasses import replace
from math import ceil, log2

import pytest

from reference.trace import Op, Trace

from . import programs as p

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17)


@pytest.mark.parametrize("n", SIZES)
def test_ring_sends_two_n_minus_one_over_n_in_as_many_steps(n):
    trace = p.trace(n, lambda rank: p.ring_all_reduce(rank, 40 * n))
    assert trace.bytes_sent == trace.bytes_received == [2 * (n - 1) * 40 * p.ITEM] * n
    assert trace.steps == 2 * (n - 1)
    assert trace.unmatched == ()


@pytest.mark.parametrize("n", SIZES)
def test_naive_all_reduce_takes_as_many_steps_as_the_root_has_messages(n):
    trace = p.trace(n, lambda rank: p.naive_all_reduce(rank, 10))
    assert trace.steps == 2 * (n - 1)
    assert trace.bytes_sent == [(n - 1) * 40] + [40] * (n - 1)
    assert [m.step for m in trace.messages] == list(range(1, 2 * n - 1))


@pytest.mark.parametrize("n", SIZES)
def test_tree_takes_log_n_steps(n):
    assert p.trace(n, lambda rank: p.tree_broadcast(rank, 10)).steps == ceil(log2(n))


@pytest.mark.parametrize("n", [2, 5, 8])
def test_one_batch_is_one_step_and_blocking_sends_are_many(n):
    assert p.trace(n, lambda rank: p.one_batch_all_to_all(rank, 3)).steps == 1

    def one_after_another(rank):
        for peer in range(1, n):
            if rank.rank == 0:
                rank.send(peer, 3)
            elif rank.rank == peer:
                rank.recv(0, 3)

    assert p.trace(n, one_after_another).steps == n - 1


def test_messages_of_one_channel_meet_in_order_and_tags_are_channels():
    def program(rank):
        if rank.rank == 0:
            for numel, tag in ((1, 7), (2, 0), (3, 7), (4, 0)):
                rank.post(Op.SEND, numel, 1, tag=tag)
        else:
            for numel, tag in ((2, 0), (1, 7), (4, 0), (3, 7)):
                rank.recv(0, numel, tag=tag)

    messages = p.trace(2, program).messages
    assert all(m.send.shape == m.recv.shape and m.send.tag == m.recv.tag for m in messages)
    assert [m.recv.shape for m in messages] == [(2,), (1,), (4,), (3,)]


def test_groups_are_channels():
    def program(rank):
        pair = {"group": (0, 1)}
        if rank.rank == 0:
            rank.post(Op.SEND, 1, 1, **pair)
            rank.post(Op.SEND, 2, 1)
        elif rank.rank == 1:
            rank.recv(0, 2)
            rank.recv(0, 1, **pair)

    messages = p.trace(3, program).messages
    assert [(m.send.shape, m.recv.shape) for m in messages] == [((2,), (2,)), ((1,), (1,))]


def test_groups_of_the_same_ranks_are_told_apart_by_name():
    first, second = {"group": (0, 1), "group_name": "1"}, {"group": (0, 1), "group_name": "2"}

    def program(rank):
        calls = [(Op.ALL_REDUCE, 4, None, first), (Op.BROADCAST, 2, 0, second)]
        message = Op.RECV if rank.rank else Op.SEND
        calls += [(message, 3, 1 - rank.rank, first), (message, 5, 1 - rank.rank, second)]
        places = [rank.post(*call, **group) for *call, group in (calls[::-1] if rank.rank else calls)]
        rank.wait(*places)

    trace = p.trace(2, program)
    assert trace.unmatched == ()
    assert trace.bytes_sent == [(4 + 2 + 3 + 5) * p.ITEM, 4 * p.ITEM]
    assert all(message.send.group_name == message.recv.group_name for message in trace.messages)


def test_an_unanswered_call_is_unmatched_and_does_not_count():
    def program(rank):
        if rank.rank == 0:
            rank.send(1, 5)
            rank.send(1, 6)
        else:
            rank.recv(0, 5)
            rank.post(Op.RECV, 9, 2)

    trace = p.trace(3, program)
    assert [(e.rank, e.shape) for e in trace.unmatched] == [(0, (6,)), (1, (9,)), (2, (5,)), (2, (9,))]
    assert trace.bytes_sent == [20, 0, 0]


def test_sends_that_were_buffered_do_not_stop_the_count():
    def every_rank_sends_first(rank):
        other = 1 - rank.rank
        rank.send(other, 4)
        rank.recv(other, 4)

    trace = p.trace(2, every_rank_sends_first)
    assert (trace.steps, trace.unmatched) == (1, ())


def test_order_comes_from_ticks_not_from_clocks():
    trace = p.trace(4, lambda rank: p.ring_all_reduce(rank, 8))
    shaken = tuple(
        tuple(replace(e, begin=(e.posted * 37 % 11) * 1e-3, end=0.02) for e in events) for events in trace.events
    )
    steps = [(m.src, m.dst, m.step) for m in Trace(4, shaken).messages]
    assert steps == [(m.src, m.dst, m.step) for m in trace.messages]


def test_a_trace_can_be_pickled_after_it_was_read():
    trace = p.trace(3, lambda rank: p.ring_all_reduce(rank, 9))
    assert trace.steps == 4
    copy = pickle.loads(pickle.dumps(trace))
    assert copy == trace and copy.steps == 4


def test_a_trace_says_what_it_counted_natives_as():
    text = str(p.trace(4, lambda rank: rank.call(Op.ALL_REDUCE, 8)))
    assert "6 steps" in text and "all_reduce counted as ring" in text


def test_a_trace_needs_events_of_every_rank():
    with pytest.raises(ValueError, match="2 ranks has events of 1"):
        Trace(2, ((),))
