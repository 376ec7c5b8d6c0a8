"""The lanes: readable for any number of ranks, honest about who waits."""

import pytest

from reference.trace import ETHERNET_100G, NVLINK4, Network, Op, Timeline
from tests.trace import programs as p
from visualizations import timeline as lanes

from .reading import assert_readable, drawn

NETWORK = Network.uniform(alpha=1e-5, beta=1e9)

PROGRAMS = {
    "ring": lambda rank: p.ring_all_reduce(rank, 100_000),
    "naive": lambda rank: p.naive_all_reduce(rank, 100_000),
    "tree": lambda rank: p.tree_broadcast(rank, 100_000),
    "batch": lambda rank: p.one_batch_all_to_all(rank, 1000),
    "native": lambda rank: rank.call(Op.ALL_REDUCE, 1000),
    "stuck": lambda rank: rank.post(Op.RECV, 8, (rank.rank + 1) % len(rank.world)),
    "nothing": lambda rank: None,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("n", [2, 8, 16])
def test_every_picture_can_be_read(monkeypatch, n, name):
    trace = p.trace(n, PROGRAMS[name])
    for timeline in (trace.replay(NETWORK), trace.timeline()):
        picture = lanes.draw(timeline)
        assert_readable(picture, monkeypatch)
        assert picture.get_size_inches()[1] < 8


def test_a_long_trace_says_that_it_left_out_its_messages(monkeypatch):
    trace = p.trace(8, lambda rank: [p.ring_all_reduce(rank, 800) for _ in range(25)])
    picture = lanes.draw(trace.replay(NETWORK))
    assert any("2800 messages, too many to draw" in words for words, _, _ in drawn(picture, monkeypatch))
    assert_readable(picture, monkeypatch)


def test_titles_say_what_happened():
    ring, naive, stuck = (p.trace(4, PROGRAMS[name]) for name in ("ring", "naive", "stuck"))
    assert lanes.finding(ring.replay(NETWORK)) == "Done after 660 µs; nobody waits"
    assert lanes.finding(naive.replay(NETWORK)) == "Done after 2.46 ms; ranks wait up to 67% of it"
    assert lanes.finding(stuck.replay(NETWORK)) == "Deadlock: every rank waits for a message that never comes"
    cluster = Network.cluster(2, 2, NVLINK4, ETHERNET_100G)
    assert "on 2 nodes of 2 (NVLink 4 / 100 GbE)" in lanes.finding(ring.replay(cluster))


def test_the_waiting_of_each_rank_is_written_at_its_lane(monkeypatch):
    texts = [words for words, _, _ in drawn(lanes.draw(p.trace(4, PROGRAMS["naive"]).replay(NETWORK)), monkeypatch)]
    assert [words for words in texts if words.endswith("%")] == ["0%", "33%", "50%", "67%"]


def test_a_moment_shows_only_what_has_happened(monkeypatch):
    timeline = p.trace(4, PROGRAMS["naive"]).replay(NETWORK)
    for share in (0, 0.3, 1):
        assert_readable(lanes.draw(timeline, now=share * timeline.duration), monkeypatch)


def test_a_window_can_be_looked_at(monkeypatch):
    timeline = p.trace(8, PROGRAMS["ring"]).replay(NETWORK)
    assert_readable(lanes.draw(timeline, window=(0, timeline.duration / 7)), monkeypatch)


def test_thickness_grows_with_bytes():
    widths = [lanes.thickness(size, {1, 1000, 10**6}) for size in (1, 1000, 10**6)]
    assert widths == sorted(widths) and widths[0] < widths[2]


def test_a_timeline_of_nothing_can_be_drawn(monkeypatch):
    assert_readable(lanes.draw(Timeline(1, (), (), 0.0)), monkeypatch)
