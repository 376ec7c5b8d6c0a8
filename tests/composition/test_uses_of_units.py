"""How often a pipeline gathers a unit of FSDP and sends its gradients: counts in programs, and closed forms."""

from collections.abc import Callable

import pytest

from reference.composition.traffic_of_gradients import Uses, uses_in_program
from reference.pipeline_parallel.orders import breadth_first, gpipe, interleaved, one_f_one_b
from reference.pipeline_parallel.passes import programmed
from reference.pipeline_parallel.schedule import Kind, Schedule
from reference.zero_bubble.building_blocks import v_half, v_min
from reference.zero_bubble.orders import dual_pipe_v, zb_h1, zb_h2, zb_v

P = 4


def uses_on(rank: int, schedule: Schedule) -> list[Uses]:
    """Of each stage of a rank, with gradients in both halves of backward."""
    line = programmed(schedule, ahead=1, shards=True).lines[rank]
    return [uses_in_program(line, stage, lambda kind: kind is not Kind.FORWARD) for stage in schedule.stages_on(rank)]


@pytest.mark.parametrize("m", [4, 8, 11])
@pytest.mark.parametrize("order", [gpipe, one_f_one_b, zb_h1, zb_h2, zb_v, v_half, v_min, dual_pipe_v])
def test_a_rank_of_one_or_two_stages_gathers_each_once(order: Callable[[int, int], Schedule], m: int) -> None:
    """Two are whole at a time, so none is ever freed: as many bytes as replicas send, whatever m."""
    for rank in range(P):
        assert set(uses_on(rank, order(P, m))) == {(1, 1)}


@pytest.mark.parametrize("m", [4, 8])
@pytest.mark.parametrize("v", [1, 2, 3, 5])
def test_breadth_first_gathers_forward_and_backward_but_for_the_last_two_stages(v: int, m: int) -> None:
    """2 v - 2 gathers and v reductions on each rank, whatever m."""
    for rank in range(P):
        found = uses_on(rank, breadth_first(P, m, v))
        assert found == [(1 + (place < v - 2), 1) for place in range(v)]


def test_interleaving_gathers_and_reduces_more_with_more_micro_batches() -> None:
    """Of three chunks one is always elsewhere: stages come and go with each p micro-batches."""
    few, many = (uses_on(P - 1, interleaved(P, m, 4)) for m in (2 * P, 3 * P))
    assert few == [(4, 2), (3, 2), (3, 2), (2, 2)]
    assert many == [(gathers + 1, reductions + 1) for gathers, reductions in few]


def test_gradients_that_are_not_here_do_not_leave() -> None:
    """A unit whose gradients all come in one half of backward is reduced in the last one, too."""
    line = programmed(zb_h1(2, 4), ahead=1, shards=True).lines[0]
    assert uses_in_program(line, 0, lambda kind: False) == (1, 1)
