"""Replayed times against closed formulas."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import ceil, log2

import pytest

from reference.trace import (
    ETHERNET_100G,
    INFINIBAND_NDR,
    NVLINK4,
    TCP_ON_ETHERNET,
    Link,
    Network,
    Op,
    SpanKind,
    Timeline,
    Trace,
)

from . import programs as p

ALPHA, BETA = 1e-5, 1e9
NETWORK = Network.uniform(alpha=ALPHA, beta=BETA)
SIZES = (1, 2, 3, 4, 5, 8, 16, 17)


def message(numel: float) -> float:
    return ALPHA + numel * p.ITEM / BETA


def exactly(seconds: float):
    return pytest.approx(seconds, rel=1e-14, abs=0)


@pytest.mark.parametrize("n", SIZES)
def test_ring_takes_two_n_minus_one_messages_of_a_chunk(n):
    timeline = p.trace(n, lambda rank: p.ring_all_reduce(rank, 1000 * n)).replay(NETWORK)
    assert timeline.duration == exactly(2 * (n - 1) * message(1000))
    assert timeline.waiting == [0] * n


@pytest.mark.parametrize("n", SIZES)
def test_naive_takes_two_n_minus_one_messages_of_everything(n):
    timeline = p.trace(n, lambda rank: p.naive_all_reduce(rank, 1000)).replay(NETWORK)
    assert timeline.duration == exactly(2 * (n - 1) * message(1000))
    assert timeline.waiting[0] == 0
    if n > 1:
        assert timeline.waiting[-1] == exactly(2 * (n - 2) * message(1000))


@pytest.mark.parametrize("n", SIZES)
def test_tree_takes_log_n_messages(n):
    timeline = p.trace(n, lambda rank: p.tree_broadcast(rank, 1000)).replay(NETWORK)
    assert timeline.duration == exactly(ceil(log2(n)) * message(1000))


@pytest.mark.parametrize("n", (2, 4, 8, 16))
def test_recursive_doubling_takes_log_n_messages(n):
    timeline = p.trace(n, lambda rank: p.recursive_doubling_all_reduce(rank, 1000)).replay(NETWORK)
    assert timeline.duration == exactly(log2(n) * message(1000))


@pytest.mark.parametrize("n", (2, 3, 4, 8))
def test_a_batch_goes_through_one_port_message_by_message(n):
    timeline = p.trace(n, lambda rank: p.one_batch_all_to_all(rank, 1000)).replay(NETWORK)
    assert timeline.duration >= (n - 1) * message(1000) * (1 - 1e-14)
    for port in ("src", "dst"):
        for rank in range(n):
            mine = [t for t in timeline.transfers if getattr(t, port) == rank]
            assert all(a.end <= b.begin for a, b in pairwise(mine))


def test_a_rank_sends_and_receives_at_once():
    timeline = p.trace(2, lambda rank: rank.exchange(1 - rank.rank, 1000, 1 - rank.rank, 1000)).replay(NETWORK)
    assert timeline.duration == exactly(message(1000))


def test_links_of_two_classes_do_not_share_a_port():
    network = Network.cluster(nodes=2, ranks_per_node=2, intra=Link("in", 0, 1e9), inter=Link("out", 0, 1e9))

    def rank_0_sends_to_both(rank):
        if rank.rank == 0:
            rank.wait(rank.post(Op.SEND, 1000, 1), rank.post(Op.SEND, 1000, 2))
        elif rank.rank < 3:
            rank.recv(0, 1000)

    assert p.trace(4, rank_0_sends_to_both).replay(network).duration == exactly(4e-6)


def swap_across(rank: p.Rank) -> None:
    """Of 2 nodes of 2 ranks: each rank swaps 1000 float32 with the one of its number on the other node."""
    other = (rank.rank + 2) % 4
    rank.exchange(other, 1000, other, 1000)


@pytest.mark.parametrize(("shared", "times"), [(False, 1), (True, 2)])
def test_ranks_of_a_node_share_one_link_where_there_is_one(shared: bool, times: int):
    network = Network(Link("in", 0, 1e12), Link("out", 0, 1e9), ranks_per_node=2, shared=shared)
    assert p.trace(4, swap_across).replay(network).duration == exactly(times * 4e-6)


SHARED = Network(Link("in", 0, 1e12), Link("out", 0, 1e9), ranks_per_node=2, shared=True)
BUFFERED = replace(SHARED, inter=replace(SHARED.inter, buffer=8e3))


def test_messages_share_a_link_evenly_whichever_began_first():
    """Rank 0 sends 12 kB and rank 1 4 kB, each at half of the rate until the small one is there, after 8 µs."""
    numel = {0: 3000, 1: 1000}

    def program(rank):
        if rank.rank < 2:
            rank.send(rank.rank + 2, numel[rank.rank])
        else:
            rank.recv(rank.rank - 2, numel[rank.rank - 2])

    ends = {transfer.src: transfer.end for transfer in p.trace(4, program).replay(SHARED).transfers}
    assert ends == {1: exactly(8e-6), 0: exactly(16e-6)}


def to_two_nodes(rank: p.Rank) -> None:
    """Of 4 nodes of 2 ranks: rank 0 sends to two of them, one after the other; the first passes it on to the last."""
    if rank.rank == 0:
        rank.send(2, 1000)
        rank.send(4, 1000)
    if rank.rank in (2, 4):
        rank.recv(0, 1000)
    if rank.rank == 2:
        rank.send(6, 1000)
    if rank.rank == 6:
        rank.recv(2, 1000)


def test_a_sender_with_a_buffer_does_not_wait_and_its_messages_share_the_link():
    """Without, the first message arrives after 4 µs, and is passed on while the second one is under way: 8 in all."""
    trace = p.trace(8, to_two_nodes)
    assert trace.replay(SHARED).duration == exactly(8e-6)
    assert trace.replay(BUFFERED).duration == exactly(12e-6)


def test_a_buffer_holds_the_end_of_a_large_message():
    """Of 12 kB the sender waits for the first 4: after 4 µs it sends to another node, at half of the rate of both."""

    def program(rank):
        if rank.rank == 0:
            rank.send(2, 3000)
            rank.send(4, 1000)
        elif rank.rank in (2, 4):
            rank.recv(0, {2: 3000, 4: 1000}[rank.rank])

    ends = {transfer.dst: transfer.end for transfer in p.trace(6, program).replay(BUFFERED).transfers}
    assert ends == {4: exactly(12e-6), 2: exactly(16e-6)}


def test_messages_to_the_same_rank_follow_each_other():
    ends = [
        transfer.end for transfer in p.trace(6, lambda rank: one_way_to(2, rank, 1000, 1000)).replay(BUFFERED).transfers
    ]
    assert ends == [exactly(4e-6), exactly(8e-6)]


def one_way_to(target: int, rank: p.Rank, *sizes: int) -> None:
    """Rank 0 sends so many float32 to a rank, message after message."""
    for size in sizes:
        if rank.rank == 0:
            rank.send(target, size)
        elif rank.rank == target:
            rank.recv(0, size)


def test_a_message_between_nodes_has_headers():
    assert [TCP_ON_ETHERNET.on_the_wire(size) for size in (0, 1, 1448, 1449)] == [0, 67, 1514, 1581]
    link = Link("out", ALPHA, 1e9, packets=TCP_ON_ETHERNET)
    trace = p.trace(2, lambda rank: rank.exchange(1 - rank.rank, 1000, 1 - rank.rank, 1000))
    assert trace.replay(Network.of(link)).duration == exactly(ALPHA + (4000 + 3 * 66) / 1e9)


BUCKET = Link("a token bucket", ALPHA, BETA, burst=1e4)  # which fills in 10 µs


def one_way(*sizes: int) -> Callable[[p.Rank], None]:
    """Rank 0 sends so many float32, message after message; rank 1 receives."""
    return lambda rank: one_way_to(1, rank, *sizes)


@pytest.mark.parametrize(("numel", "seconds"), [(1000, ALPHA), (2500, ALPHA), (10_000, ALPHA + 30_000 / BETA)])
def test_what_a_full_bucket_holds_passes_at_once(numel: int, seconds: float):
    assert p.trace(2, one_way(numel)).replay(Network.of(BUCKET)).duration == exactly(seconds)


def test_a_bucket_fills_while_the_link_is_idle_and_not_beyond():
    """The latency before the second message is as long as it takes to fill: half of that fills half."""
    slow, quick = Network.of(BUCKET), Network.of(replace(BUCKET, alpha=ALPHA / 2))
    assert p.trace(2, one_way(10_000, 10_000)).replay(slow).duration == exactly(2 * (ALPHA + 30_000 / BETA))
    assert p.trace(2, one_way(10_000, 10_000)).replay(quick).duration == exactly(ALPHA + (30_000 + 35_000) / BETA)


def test_messages_that_follow_each_other_hide_their_latencies_in_the_bucket():
    """Once it is empty, a link that a token bucket limits carries its rate whatever is between two messages."""
    seconds = p.trace(2, one_way(*[2000] * 100)).replay(Network.of(replace(BUCKET, alpha=ALPHA / 2))).duration
    assert seconds == exactly(ALPHA / 2 + (100 * 8000 - 10_000) / BETA)


def test_a_ring_through_a_cluster_goes_at_the_speed_of_its_slowest_link():
    network = Network.cluster(2, 4, NVLINK4, ETHERNET_100G)
    timeline = p.trace(8, lambda rank: p.ring_all_reduce(rank, 8000)).replay(network)
    assert timeline.duration == exactly(14 * ETHERNET_100G.time(4000))
    assert network.node(3) == 0 and network.node(4) == 1 and network.link(3, 4) is ETHERNET_100G
    assert str(network) == "2 nodes of 4 (NVLink 4 / 100 GbE)"


def test_waiting_ends_where_the_message_begins():
    def program(rank):
        if rank.rank < 2:
            rank.exchange(1 - rank.rank, 1000, 1 - rank.rank, 1000)
        if rank.rank == 1:
            rank.send(2, 500)
        if rank.rank == 2:
            rank.recv(1, 500)

    spans = [s for s in p.trace(3, program).replay(NETWORK).spans if s.rank == 2]
    assert [(s.kind, s.label) for s in spans] == [
        (SpanKind.WAITING, "recv from 1"),
        (SpanKind.COMMUNICATION, "recv from 1"),
    ]
    assert spans[0].begin == 0 and spans[0].end == spans[1].begin == exactly(message(1000))
    assert spans[1].end == exactly(message(1000) + message(500))


def test_a_deadlock_replays_as_ranks_that_are_stuck_to_the_end():
    def program(rank):
        p.ring_all_reduce(rank, 8)
        rank.post(Op.RECV, 8, (rank.rank + 1) % 4)

    timeline = p.trace(4, program).replay(NETWORK)
    last = [next(s for s in reversed(timeline.spans) if s.rank == rank) for rank in range(4)]
    assert all(s.kind is SpanKind.STUCK and s.end == timeline.duration > s.begin for s in last)
    nothing_but_stuck = p.trace(2, lambda rank: rank.post(Op.RECV, 8, 1 - rank.rank)).replay(NETWORK)
    assert nothing_but_stuck.duration > 0 and [s.kind for s in nothing_but_stuck.spans] == [SpanKind.STUCK] * 2


def posts_a_receive_and_goes_on(rank: p.Rank) -> None:
    if rank.rank == 0:
        rank.post(Op.RECV, 8, 1, tag=1)
    p.ring_all_reduce(rank, 8)


@pytest.mark.parametrize("timeline", [lambda trace: trace.replay(NETWORK), Trace.timeline])
def test_a_receive_holds_nobody_up_who_goes_on_without_it(timeline):
    trace = p.trace(2, posts_a_receive_and_goes_on)
    (stuck,) = (span for span in timeline(trace).spans if span.kind is SpanKind.STUCK)
    assert stuck.rank == 0 and stuck.begin == max(s.end for s in timeline(trace).spans if s.rank == 0 and s != stuck)
    over = timeline(replace(trace, returned=frozenset({0, 1})))
    assert SpanKind.STUCK not in {span.kind for span in over.spans}
    assert over.duration < timeline(trace).duration


def test_a_rank_that_died_leaves_the_others_waiting():
    def program(rank):
        rank.call(Op.ALL_REDUCE, 64)
        if rank.rank != 1:
            rank.post(Op.ALL_REDUCE, 64)

    trace = p.trace(4, program)
    for timeline in (trace.replay(NETWORK), trace.timeline()):
        assert {s.rank for s in timeline.spans if s.kind is SpanKind.STUCK} == {0, 2, 3}


def test_what_returned_in_the_real_run_is_never_stuck():
    def collectives_that_do_not_match(rank):
        rank.call(Op.ALL_REDUCE if rank.rank else Op.BROADCAST, 64, peer=None if rank.rank else 0)
        p.ring_all_reduce(rank, 8)

    timeline = p.trace(3, collectives_that_do_not_match).replay(NETWORK)
    assert SpanKind.STUCK not in {s.kind for s in timeline.spans}
    assert timeline.duration >= 4 * message(2)


def test_spans_of_a_rank_never_overlap():
    trace = p.trace(6, lambda rank: (p.one_batch_all_to_all(rank, 50), p.naive_all_reduce(rank, 9)))
    for timeline in (trace.replay(NETWORK), trace.timeline()):
        for rank in range(6):
            spans = [s for s in timeline.spans if s.rank == rank]
            assert all(a.begin < a.end <= b.begin for a, b in pairwise(spans))


def test_the_same_program_always_gives_the_same_timeline():
    def once():
        return p.trace(7, lambda rank: (p.one_batch_all_to_all(rank, 50), p.ring_all_reduce(rank, 99)))

    assert once().replay(NETWORK) == once().replay(NETWORK)


def test_a_timeline_survives_json():
    timeline = p.trace(3, lambda rank: p.naive_all_reduce(rank, 8)).replay(NETWORK)
    assert Timeline.from_dict(json.loads(json.dumps(timeline.to_dict()))) == timeline


def test_measured_waiting_is_until_the_other_side_is_there():
    def program(rank):
        if rank.rank == 0:
            rank.wait(rank.post(Op.SEND, 8, 1, begin=5e-3))
        else:
            rank.recv(0, 8)

    events = tuple((replace(event, end=6e-3),) for (event,) in p.trace(2, program).events)
    spans = Trace(2, events).timeline().spans
    assert [(s.rank, s.kind) for s in spans] == [
        (0, SpanKind.COMMUNICATION),
        (1, SpanKind.WAITING),
        (1, SpanKind.COMMUNICATION),
    ]
    assert spans[1].end == spans[2].begin == 5e-3


def test_ten_times_the_events_take_ten_times_as_much_work():
    """If each event looked at all others, they would take a hundred times as much."""
    few, many = (
        p.trace(16, lambda rank, times=times: [p.ring_all_reduce(rank, 64) for _ in range(times)]) for times in (1, 10)
    )
    assert sum(map(len, many.events)) == 10 * sum(map(len, few.events)) == 9600
    assert lines_run(many.replay) < 11 * lines_run(few.replay)


def lines_run(replay: Callable[[Network], object]) -> int:
    """How many lines of Python a replay goes through, each time that it does."""
    lines = 0

    def count(frame, event, argument):
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        replay(NETWORK)
    finally:
        sys.settrace(before)
    return lines


def test_a_network_says_what_is_wrong_with_it():
    with pytest.raises(ValueError, match="latency in seconds"):
        Network.uniform(alpha=-1, beta=1)
    with pytest.raises(ValueError, match="bandwidth in bytes per second"):
        Network.uniform(alpha=0, beta=0)
    for wrong in ({"burst": -1}, {"buffer": float("inf")}):
        with pytest.raises(ValueError, match="a number of bytes, 0 or more"):
            Link("link", 0, 1, **wrong)
    for network in (lambda: Network(NVLINK4, NVLINK4, 0), lambda: Network.uniform(0, 1, -3)):
        with pytest.raises(ValueError, match="of a network is a whole number, 1 or more, or None"):
            network()
    with pytest.raises(ValueError, match=r"whole nodes of whole ranks, 1 or more, not 2 x 2\.5"):
        Network.cluster(2, 2.5)
    with pytest.raises(ValueError, match="the network has 2 ranks, the trace has 4"):
        p.trace(4, lambda rank: None).replay(Network.of(INFINIBAND_NDR, world_size=2))
