"""The clock of a short run: what is waited for, what is hidden, and what has been sent after each step."""

from dataclasses import replace
from itertools import pairwise

import pytest

from reference.choices import Outer
from reference.config import TrainConfig
from reference.decentralized.lab.short_runs import ShortRun, TimedMessage
from reference.trace.activity import Doing

STEPS, COMPUTE, SECONDS, BYTES = 12, 1.0, 3.0, 100.0
SYNCHRONOUS = TrainConfig(steps=STEPS)
DILOCO = replace(SYNCHRONOUS, islands=2, outer=Outer.DILOCO, inner_steps=4)
STREAMING = replace(DILOCO, outer=Outer.STREAMING, fragments=2, overlap_steps=1)


def run(config: TrainConfig, meets: TimedMessage = TimedMessage(BYTES, SECONDS)) -> ShortRun:  # noqa: B008
    return ShortRun(config, [float(step) for step in range(STEPS)], 1.0, TimedMessage(BYTES, SECONDS), meets)


@pytest.mark.parametrize(
    ("config", "seconds", "messages"),
    [
        (SYNCHRONOUS, STEPS * (COMPUTE + SECONDS), STEPS),
        (DILOCO, STEPS * COMPUTE + 3 * SECONDS, 3),
        (replace(DILOCO, synchronous_steps=4), STEPS * COMPUTE + 6 * SECONDS, 6),
    ],
)
def test_each_message_is_waited_for(config: TrainConfig, seconds: float, messages: int) -> None:
    one = run(config)
    assert one.timetable(COMPUTE).taken[-1] == seconds
    assert one.sent()[-1] == messages * BYTES and len(one.timetable(COMPUTE).under_way) == messages


def test_a_message_that_has_steps_to_arrive_costs_what_is_longer_than_they() -> None:
    """Six fragments, of which the last one has not been used when the run ends: five are waited for."""
    for seconds, waits in ((0.5, 0.0), (1.0, 0.0), (1.75, 0.75)):
        one = run(STREAMING, TimedMessage(BYTES / 2, seconds))
        assert one.timetable(COMPUTE).taken[-1] == STEPS * COMPUTE + 5 * waits
        assert one.sent()[-1] == 6 * BYTES / 2


def test_a_link_carries_one_message_after_another() -> None:
    slow = run(replace(STREAMING, inner_steps=4, overlap_steps=3), TimedMessage(BYTES, 5.0))
    under_way = slow.timetable(COMPUTE).under_way
    assert all(end <= begin for (_, end), (begin, _) in pairwise(under_way))


def test_a_curve_has_means_at_the_ends_of_their_steps() -> None:
    assert run(SYNCHRONOUS).curve(range(STEPS + 1)) == [(10, 4.5)]


def test_lanes_end_where_they_shall() -> None:
    lane = run(DILOCO).lanes(COMPUTE, until=6.0)
    assert [each.end for each in lane if each.doing is Doing.FORWARD] == [1.0, 2.0, 3.0, 4.0]
    assert [(each.begin, each.end) for each in lane if each.doing is Doing.COMMUNICATION] == [(4.0, 6.0)]
