"""Curves cross where the formulas say; networks show their numbers."""

from functools import partial

import pytest

from reference.errors import BadInput
from reference.networks import TIMES, bus_bandwidth, crossing, ring_time
from reference.trace import ETHERNET_100G, HOME_INTERNET, NVLINK4, Network
from visualizations import cost, network
from visualizations import curves as curves_of

from .reading import assert_readable, drawn

ALPHA, BETA = 4e-6, 50e9


def curves(n: int) -> dict[str, cost.Curve]:
    return {name: partial(lambda time, size: time(n, size, ALPHA, BETA), time) for name, time in TIMES.items()}


@pytest.mark.parametrize("n", [4, 8, 64])
def test_the_marked_crossing_is_that_of_the_formula(n):
    rounds = n.bit_length() - 1
    expected = crossing((2 * rounds, rounds), (2 * (n - 1) / n, rounds), ALPHA, BETA)
    ((size, before, after),) = cost.crossings(curves(n), (256, 1e9))
    assert (before, after) == ("recursive doubling", "halving-doubling")
    assert size == pytest.approx(expected, rel=2e-3)


def test_the_title_names_the_fastest():
    assert cost.finding(curves(8), (256, 1e9)) == "Fastest: recursive doubling up to 480 KB, halving-doubling beyond"
    assert cost.finding({"ring": curves(8)["ring"]}, (1, 10)) == "Fastest at every size: ring"


@pytest.mark.parametrize("n", [2, 4, 8, 13, 64])
def test_every_chart_can_be_read(monkeypatch, n):
    dots = {"ring": [(size, curves(n)["ring"](size) * 1.2) for size in (1e3, 1e5, 1e7)], "gloo": [(1e4, 1e-4)]}
    picture = cost.draw(curves(n), (256, 1e9), measured=dots)
    assert_readable(picture, monkeypatch)
    assert "lines: theory   dots: measured" in [words for words, _, _ in drawn(picture, monkeypatch)]
    assert_readable(cost.draw(curves(n), (256, 1e9)), monkeypatch)


def test_what_was_measured_at_no_size_of_the_chart_is_left_out(monkeypatch):
    picture = cost.draw(curves(8), (1e3, 1e6), measured={"ring": [(1, 1e-3), (1e5, 2e-3)], "gloo": []})
    (axes,) = picture.axes
    assert [2e-3] in [list(line.get_ydata()) for line in axes.lines]
    assert_readable(picture, monkeypatch)


def test_lines_are_the_formulas_and_dots_what_was_measured():
    times, points = curves(8), [(1e3, 1e-3), (1e5, 2e-3)]
    (axes,) = cost.draw(times, (256, 1e9), measured={"gloo": points}).axes
    many = [line for line in axes.lines if len(line.get_xdata()) == cost.SAMPLES]
    for line, curve in zip(many, times.values(), strict=True):
        assert list(line.get_ydata()) == [curve(size) for size in line.get_xdata()]
    (dots,) = [line for line in axes.lines if line.get_linestyle() == "None" and len(line.get_xdata()) == 2]
    assert [(x, y) for x, y in dots.get_xydata()] == points


def test_bandwidth_is_held_against_the_hardware(monkeypatch):
    theory = {"ring": lambda size: bus_bandwidth(8, size, ring_time(8, size, ALPHA, BETA))}
    picture = cost.draw_bandwidth(theory, (1e4, 1e10), measured={"seen": [(1e9, 30e9)]}, limit=("InfiniBand NDR", BETA))
    assert repr(picture) == "<Picture: 30 GB/s at best, 60% of InfiniBand NDR>"
    assert_readable(picture, monkeypatch)


def test_the_best_is_one_that_is_seen():
    measured = {"seen": [(1e3, 9e9), (1e6, 2e9), (1e12, 9e9)]}
    assert repr(cost.draw_bandwidth({}, (1e4, 1e10), measured=measured)) == "<Picture: 2 GB/s at best>"


@pytest.mark.parametrize(
    ("drawing", "ranks"),
    [
        (Network.of(NVLINK4), 8),
        (Network.of(NVLINK4), 1),
        (Network.uniform(alpha=1e-6, beta=1e9), 16),
        (Network.cluster(2, 4), None),
        (Network.cluster(3, 1, NVLINK4, HOME_INTERNET), None),
        (Network.cluster(4, 8, NVLINK4, ETHERNET_100G), None),
        (Network.cluster(64, 8), None),
        (Network.cluster(2, 32), None),
    ],
    ids=str,
)
def test_every_network_can_be_read(monkeypatch, drawing, ranks):
    assert_readable(network.draw(drawing, world_size=ranks), monkeypatch)


def test_each_rank_of_a_large_network_is_asked_for_its_node_once(monkeypatch):
    asked, node = [], Network.node
    monkeypatch.setattr(Network, "node", lambda self, rank: asked.append(rank) or node(self, rank))
    network.draw(Network.cluster(2048, 8))
    assert len(asked) < 2 * 2048 * 8


def test_one_rank_has_no_links():
    assert network.finding(Network.of(NVLINK4), 1) == "1 rank: no other to talk to"


def test_numbers_of_crossings_that_are_close_do_not_touch(monkeypatch):
    tangents = {f"line {i}": lambda size, i=i: size ** (1 - i / 10) * 2.0 ** (i * i / 30) for i in range(6)}
    assert len(cost.crossings(tangents, (1, 1e9))) == 5
    assert_readable(cost.draw(tangents, (1, 1e9)), monkeypatch)


def test_more_lines_than_can_be_told_apart_are_refused():
    seven = {f"line {i}": lambda size, i=i: size * (i + 1) for i in range(7)}
    with pytest.raises(BadInput, match="tells 6 lines apart, not 7"):
        cost.draw(seven, (1, 100))
    with pytest.raises(BadInput, match="tells 6 lines apart, not 7"):
        curves_of.draw({name: [(1, 1), (2, 2)] for name in seven}, title="too many", x="x", y="y")


def test_a_network_shows_its_numbers(monkeypatch):
    texts = [words for words, _, _ in drawn(network.draw(Network.cluster(2, 4)), monkeypatch)]
    assert {"NVLink 4", "InfiniBand NDR", "450 GB/s", "50 GB/s", "1.9 µs", "rank 7", "node 1"} <= set(texts)
