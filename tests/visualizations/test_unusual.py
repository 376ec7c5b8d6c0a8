"""Names longer than their place, and more ranks than a lesson has: still a picture that can be read."""

from collections.abc import Callable

import pytest

from reference.mesh import Mesh
from reference.pipeline_parallel.orders import gpipe, one_f_one_b
from reference.trace import Link, Network
from reference.trace.activity import Activity, Doing
from reference.trace.contents import Contents
from tests.trace import programs as p
from visualizations import axes_traffic, collective, mesh, network, overlap, schedules, style, traffic

from .reading import assert_readable, drawn

NAME = "a very long name of something that nobody would ever call a rank or an algorithm"


def ring(ranks: int) -> p.Trace:
    return p.trace(ranks, lambda rank: p.ring_all_reduce(rank, 100))


PICTURES: dict[str, Callable[[], style.Picture]] = {
    "lanes": lambda: overlap.draw([[Activity(Doing.FORWARD, NAME, 0.0, 1.0)]], names=[NAME]),
    "charts": lambda: schedules.compare({NAME: gpipe(4, 4), f"{NAME} again": one_f_one_b(4, 4)}),
    "links": lambda: network.draw(Network(Link(NAME, 1e-6, 1e9), Link(f"{NAME} again", 1e-5, 1e8), 2, 4)),
    "programs": lambda: traffic.draw({NAME: ring(4), f"{NAME} again": ring(4)}, 2),
    "axes": lambda: mesh.draw(Mesh({NAME: 4, "tensor": 2})),
    "bars": lambda: axes_traffic.draw(ring(8), Mesh({NAME: 8}), 4),
    "axes of several letters": lambda: axes_traffic.draw(ring(32), Mesh({"dp_replicate": 2, "dp_shard": 16}), 4),
    "six axes": lambda: mesh.draw(Mesh(dict.fromkeys(["tensor", "data", "pipe", "context", "expert", "mine"], 2)), 64),
    "32 ranks": lambda: axes_traffic.draw(ring(32), Mesh({"data": 32}), 8),
}


@pytest.mark.parametrize("what", PICTURES)
def test_it_can_be_read(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_readable(PICTURES[what](), monkeypatch)


def test_short_names_are_whole() -> None:
    assert style.fitted("ring", 1.0) == "ring"
    assert style.fitted(NAME, 1.0).endswith("…")


def test_axes_that_begin_alike_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [words for words, _, _ in drawn(PICTURES["axes of several letters"](), monkeypatch)]
    assert {"dp_shard", "several axes"} <= set(texts)
    assert sum(words.endswith(" between nodes") for words in texts) == 2 + 1  # and the note below


def test_what_leaves_a_node_is_seen_on_every_bar() -> None:
    picture = PICTURES["axes of several letters"]()
    hatched = [patch for patch in picture.axes[0].patches if patch.get_hatch()]
    assert hatched and all(patch.get_edgecolor() != patch.get_facecolor() for patch in hatched)


def test_a_price_in_a_title_is_no_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    price = "$2 an hour, and not $3"
    picture, _ = style.canvas(1.0, price)
    assert price in [words for words, _, _ in drawn(picture, monkeypatch)]
    assert style.width_of("$2$") > style.width_of("2$")


def test_names_of_lanes_keep_the_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    activities = [[Activity(Doing.FORWARD, "", 0.0, 1.0)]]
    texts = drawn(overlap.draw(activities, names=["after every backward"]), monkeypatch)
    (box,) = [box for words, _, box in texts if words == "after every backward"]
    assert box.x0 == pytest.approx(8, abs=1)


def test_messages_of_different_sizes_are_not_taken_for_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [Contents((((1,),) * 8,) * 31)] * 8
    words = {words for words, _, _ in drawn(collective.draw(ring(8), held), monkeypatch)}
    assert "8: 400 B in all" in words
