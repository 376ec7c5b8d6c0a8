"""The clock of a short run: what is waited for, what is hidden, and what has been sent after each step."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

from reference.choices import Outer
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.decentralized.lab.short_runs import ShortRun, TimedMessage, traced
from reference.islands import ONE_ISLAND
from reference.trace import Link
from reference.trace.activity import Doing
from reference.train import Training

from .one_process import EXACT

STEPS, COMPUTE, SECONDS, BYTES = 12, 1.0, 3.0, 100.0
SYNCHRONOUS = TrainConfig(steps=STEPS)
DILOCO = replace(SYNCHRONOUS, islands=2, outer=Outer.DILOCO, inner_steps=4)
STREAMING = replace(DILOCO, outer=Outer.STREAMING, fragments=2, overlap_steps=1)
LINK = Link("slow", alpha=1e-3, beta=1e6)


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
    """Five fragments, and both after the last step, which have no steps to arrive."""
    for seconds, waits in ((0.5, 0.0), (1.0, 0.0), (1.75, 0.75)):
        one = run(STREAMING, TimedMessage(BYTES / 2, seconds))
        assert one.timetable(COMPUTE).taken[-1] == STEPS * COMPUTE + 5 * waits + 2 * seconds
        assert one.sent()[-1] == 7 * BYTES / 2


@pytest.mark.parametrize("outer", [Outer.EAGER, Outer.GOSSIP])
def test_a_message_that_has_a_round_to_arrive_costs_nothing_but_at_the_end(outer: Outer) -> None:
    assert run(replace(DILOCO, outer=outer)).timetable(COMPUTE).taken[-1] == STEPS * COMPUTE + SECONDS


def trains(config: TrainConfig) -> None:
    """A whole run, to be traced."""
    training = Training(config, dist.group.WORLD, torch.device("cpu"))
    for step in range(config.steps):
        training.backward(step)
        training.update(step)


@pytest.mark.parametrize(
    "options",
    [
        {"outer": Outer.DILOCO, "inner_steps": 5},  # of which the last round has 2
        {"outer": Outer.STREAMING, "inner_steps": 4, "steps": 6, "overlap_steps": 1},
        {"outer": Outer.STREAMING, "inner_steps": 4, "steps": 6, "overlap_steps": 2},  # as long as to the next one
        {"outer": Outer.STREAMING, "inner_steps": 5},  # which two fragments do not divide
        {"outer": Outer.DILOCO, "inner_steps": 3, "synchronous_steps": 2},
    ],
)
def test_a_run_sends_what_is_said(clusters: Callable[..., Cluster], options: dict) -> None:
    two, config = clusters(2), replace(EXACT, islands=2, **options)
    _, trace = two.trace(trains, config)
    shared, meets = (traced(two, each, LINK) for each in (replace(config, **ONE_ISLAND), config))
    assert ShortRun(config, [0.0] * config.steps, 0.0, shared, meets).sent()[-1] == max(trace.bytes_sent)


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
