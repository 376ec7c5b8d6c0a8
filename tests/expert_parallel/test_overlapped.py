"""Two micro-batches that share a rank: what is simulated, and what ranks that sleep measure."""

from collections.abc import Callable

import pytest
import torch.distributed as dist

from reference.cluster import Cluster
from reference.expert_parallel.lab.dispatch_actions import NAMES, costs_of, in_turn, paired
from reference.expert_parallel.lab.overlapped import one_block, run
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.simulate import simulate
from reference.pipeline_parallel.validate import validate

EVEN = dict.fromkeys(NAMES, 1.0)


def steps(schedule: Schedule, seconds: dict[str, float] = EVEN) -> float:
    return simulate(schedule, costs_of(schedule, seconds)).seconds


@pytest.mark.parametrize("m", [1, 2, 5])
def test_both_do_the_same_in_orders_that_end(m: int) -> None:
    one, other = in_turn(one_block(m)), paired(one_block(m))
    assert [sorted(line) for line in one.lines] == [sorted(line) for line in other.lines]
    for schedule in (one, other):
        validate(schedule)
        assert [len(line) for line in schedule.lines] == [4 * m, 4 * m]


@pytest.mark.parametrize(("make", "of_a_pair"), [(in_turn, 10), (paired, 6)])
def test_a_pair_takes_six_steps_instead_of_ten(make: Callable[[Schedule], Schedule], of_a_pair: int) -> None:
    """As long as what is computed, and nothing of what is sent."""
    few, many = (steps(make(one_block(m))) for m in (2, 6))
    assert many - few == 4 * of_a_pair


def test_a_slow_link_is_what_is_left() -> None:
    slow = EVEN | {"dispatch": 3.0, "combine": 3.0}
    few, many = (steps(paired(one_block(m)), slow) for m in (2, 6))
    assert many - few == 4 * (4 * 3)


def measured(m: int, unit: float) -> tuple[float, float]:
    """Seconds of both orders of so many micro-batches, whose steps take so long; the second time, when all is warm."""
    found = []
    for make in (in_turn, paired):
        schedule = make(one_block(m))
        for _ in range(2):
            dist.barrier()
            step = run(schedule, costs_of(schedule, dict.fromkeys(NAMES, unit)), dist.group.WORLD)
        found.append(step.seconds)
    return tuple(found)


@pytest.mark.alone
def test_ranks_that_sleep_measure_what_was_simulated(clusters: Callable[..., Cluster]) -> None:
    """Four pairs on four ranks: 48 steps one after the other, 33 overlapped."""
    unit = 0.02
    apart, together = (max(of_ranks) for of_ranks in zip(*clusters(4).run(measured, 5, unit), strict=True))
    assert (steps(in_turn(one_block(5))), steps(paired(one_block(5)))) == (48, 33)
    assert 48 * unit <= apart and 33 * unit <= together
    assert apart / together > 1.1  # 48 / 33 is 1.45
