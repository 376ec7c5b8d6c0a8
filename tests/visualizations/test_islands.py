"""What crosses between islands is what traces say, and the widget computes what the puzzle's answer does."""

import pytest
import torch
import torch.distributed as dist

from reference.collectives import all_reduce
from reference.decentralized.answers.counted import bytes_of_a_day
from reference.errors import BadInput
from reference.trace import Trace
from visualizations import island_widget, islands
from visualizations.traffic import matrix

from .reading import assert_readable, drawn


@pytest.fixture(scope="module")
def trace(clusters) -> Trace:
    return clusters(4).trace(lambda: all_reduce.ring(torch.ones(1000), dist.group.WORLD))[1]


def test_a_picture_can_be_read_and_says_what_crosses(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    for traces in ({"a ring": trace}, {"a ring": trace, "again": trace}):
        picture = islands.draw(traces, steps=2)
        assert_readable(picture, monkeypatch)
        words = [text for text, _, _ in drawn(picture, monkeypatch)]
        assert words.count("across 6 KB") == len(traces) and words.count("within 3 KB") == 2 * len(traces)
    assert islands.crossing(matrix(trace)) == 2 * 6000, "a ring of four has two links between halves"


def test_the_largest_islands_have_room(clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    _, eight = clusters(8).trace(lambda: all_reduce.ring(torch.ones(1000), dist.group.WORLD))
    assert_readable(islands.draw({"eight ranks": eight}, steps=1), monkeypatch)


def test_what_has_no_room_is_refused(trace: Trace) -> None:
    with pytest.raises(BadInput, match="1 or 2 programs, not 3"):
        islands.draw(dict.fromkeys("abc", trace), steps=1)
    with pytest.raises(BadInput, match="1 training step or more, not 0"):
        islands.draw({"a": trace}, steps=0)


@pytest.mark.parametrize("choice", [{}, {"overlap": 10}, {"megabits": 10, "bits": 32}, {"megabits": 100_000}])
@pytest.mark.parametrize("inner_steps", [20, 500])
def test_every_choice_can_be_read(monkeypatch: pytest.MonkeyPatch, choice: dict, inner_steps: int) -> None:
    assert_readable(island_widget.Choice(inner_steps=inner_steps, **choice).draw(), monkeypatch)


def test_the_widget_agrees_with_the_bytes_of_a_day() -> None:
    choice = island_widget.Choice(islands=8, inner_steps=100, bits=8, megabits=100, parameters=1e10, step=22.8)
    sent, share = bytes_of_a_day(10**10, 8, 100, 22.8, 8, 100.0, island_widget.DAY)
    assert choice.day == pytest.approx(sent)
    assert float(choice.utilisation(100, 8, 0, 100)) == pytest.approx(share)


def test_what_is_under_way_for_long_enough_is_not_waited_for() -> None:
    choice = island_widget.Choice(overlap=10, megabits=1000)
    assert float(choice.waits(8, 0, 1000)) > 0 == float(choice.waits(8, 10, 1000))


def test_one_step_is_one_step() -> None:
    assert "1 step to arrive" in island_widget.Choice(overlap=1).ways
    assert "2 steps to arrive" in island_widget.Choice(overlap=2).ways


def test_a_message_longer_than_a_round_is_refused() -> None:
    with pytest.raises(BadInput, match="5 steps, not 6"):
        island_widget.explore(inner_steps=5, overlap=6)
