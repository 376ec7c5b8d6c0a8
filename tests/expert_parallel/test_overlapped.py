"""Two micro-batches that share a rank: what is simulated, and what ranks that sleep measure."""

from collections.abc import Callable
from functools import partial

import pytest
import torch.distributed as dist

from reference.cluster import Cluster
from reference.expert_parallel.lab.overlapped import (
    BACKWARD,
    FORWARD,
    BlockStep,
    Program,
    length,
    one_after_the_other,
    overlapped,
    run,
    simulate,
)

EVEN = dict.fromkeys((*FORWARD, *BACKWARD), 1.0)


def test_both_do_the_same_and_keep_the_order_of_each_micro_batch() -> None:
    one, other = one_after_the_other([2, 3], [0, 1]), overlapped([2, 3], [0, 1])
    assert sorted(map(str, one)) == sorted(map(str, other)) and len(set(one)) == 16
    for program in (one, other):
        for step in program:
            assert step.before is None or program.index(step.before) < program.index(step)


@pytest.mark.parametrize(("pairs", "apart", "together"), [(1, 8, 4), (4, 32, 16)])
def test_two_blocks_take_four_steps_instead_of_eight(pairs: int, apart: int, together: int) -> None:
    """As long as what is computed, and nothing of what is sent."""
    forward, backward = range(pairs, 2 * pairs), range(pairs)
    assert length(simulate(one_after_the_other(forward, backward), EVEN)) == apart
    assert length(simulate(overlapped(forward, backward), EVEN)) == together


def test_a_slow_link_is_what_is_left() -> None:
    slow = {part: 3.0 if BlockStep(0, part).sends else 1.0 for part in EVEN}
    assert length(simulate(overlapped([1], [0]), slow)) == pytest.approx(4 * 3)


def measured(program: Program, unit: float) -> float:
    """Seconds of a program whose steps take so long."""
    seconds = dict.fromkeys(EVEN, unit)
    run(program, seconds, dist.group.WORLD)
    dist.barrier()
    return length(run(program, seconds, dist.group.WORLD))


@pytest.mark.alone
def test_ranks_that_sleep_measure_what_was_simulated(clusters: Callable[..., Cluster]) -> None:
    """Four pairs on four ranks: 32 steps one after the other, 16 overlapped."""
    take, unit = partial(clusters(4).run, measured), 0.02
    apart = max(take(one_after_the_other(range(4, 8), range(4)), unit))
    together = max(take(overlapped(range(4, 8), range(4)), unit))
    assert 32 * unit <= apart and 16 * unit <= together
    assert apart / together > 1.6  # 32 / 16 is 2
