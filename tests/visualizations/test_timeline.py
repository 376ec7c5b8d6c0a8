"""The lanes: readable for any number of ranks, honest about who waits."""

import pytest
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

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


@pytest.mark.turns(5)
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


def test_a_title_speaks_of_waiting_that_rounds_to_nothing():
    uneven = p.trace(32, lambda rank: p.ring_all_reduce(rank, 100)).replay(NETWORK)
    assert 0 < max(uneven.waiting) < 0.005 * uneven.duration
    assert lanes.finding(uneven).endswith("; ranks wait less than 1% of it")


def test_the_waiting_of_each_rank_is_written_at_its_lane(monkeypatch):
    texts = [words for words, _, _ in drawn(lanes.draw(p.trace(4, PROGRAMS["naive"]).replay(NETWORK)), monkeypatch)]
    assert [words for words in texts if words.endswith("%")] == ["0%", "33%", "50%", "67%"]


def test_a_moment_shows_only_what_has_happened(monkeypatch):
    timeline = p.trace(4, PROGRAMS["naive"]).replay(NETWORK)
    for share in (0, 0.3, 1):
        assert_readable(lanes.draw(timeline, now=share * timeline.duration), monkeypatch)


@pytest.mark.parametrize("n", [4, 16])
def test_arrows_go_from_sender_to_receiver_in_their_time(n):
    timeline = p.trace(n, PROGRAMS["ring" if n == 16 else "naive"]).replay(NETWORK)
    (axes,) = lanes.draw(timeline).axes
    arrows = [patch._posA_posB for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    arrows += [
        segment for each in axes.collections if isinstance(each, LineCollection) for segment in each.get_segments()
    ]
    assert len(arrows) == len(timeline.transfers)
    seen = sorted((begin, round(src), end, round(dst)) for (begin, src), (end, dst) in arrows)
    assert seen == sorted((one.begin, one.src, one.end, one.dst) for one in timeline.transfers)


def test_boxes_are_the_spans_in_the_colour_of_their_kind():
    timeline = p.trace(4, PROGRAMS["naive"]).replay(NETWORK)
    collections = [each for each in lanes.draw(timeline).axes[0].collections if isinstance(each, PatchCollection)]
    for kind, boxes in zip(lanes.FACES, collections, strict=True):
        corners = [path.get_extents() for path in boxes.get_paths()]
        seen = sorted((box.x0, box.x1, round((box.y0 + box.y1) / 2)) for box in corners)
        assert seen == sorted((span.begin, span.end, span.rank) for span in timeline.spans if span.kind is kind)
        assert not seen or to_hex(boxes.get_facecolor()[0]) == lanes.FACES[kind].lower()


def test_now_is_the_end_of_what_is_under_way():
    timeline = p.trace(4, PROGRAMS["naive"]).replay(NETWORK)
    now = 0.3 * timeline.duration
    (axes,) = lanes.draw(timeline, now=now).axes
    arrows = [patch._posA_posB for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == sum(one.begin < now for one in timeline.transfers)
    assert max(end for _, (end, _) in arrows) == now


def test_thickness_grows_with_bytes():
    widths = [lanes.thickness(size, {1, 1000, 10**6}) for size in (1, 1000, 10**6)]
    assert widths == sorted(widths) and widths[0] < widths[2]


def test_a_timeline_of_nothing_can_be_drawn(monkeypatch):
    assert_readable(lanes.draw(Timeline(1, (), (), 0.0)), monkeypatch)
