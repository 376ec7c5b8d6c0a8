"""Closed forms of what schedules cost are what the schedules do, rank by rank and action by action."""

import pytest

from reference.pipeline_parallel.simulate import Costs, simulate
from reference.pipeline_parallel.validate import most_activations
from reference.plan import LOOPED, PipelineSchedule
from reference.planning.bubbles import bubble, in_flight
from reference.planning.layouts import Layouts

RANKS = range(2, 11)
CHUNKS = {True: (1, 2, 3), False: (1,)}
SLOW_START = (PipelineSchedule.V_HALF, PipelineSchedule.V_MIN)  # their forms hold from 3p / 2 micro-batches on
ROUGH = {PipelineSchedule.ONE_F_ONE_B_V: 1, PipelineSchedule.INTERLEAVED: 3}  # by so many F of a stage at most


def settings(schedule: PipelineSchedule) -> list[tuple[int, int, int]]:
    """p, v and m."""
    least = 1.5 if schedule in SLOW_START else 0
    several = [
        (p, v, m)
        for p in RANKS
        for v in CHUNKS[schedule in LOOPED]
        for m in {1, p - 1, p, p + 1, 3 * p // 2 + 1, 2 * p - 1, 2 * p, 2 * p + 3, 4 * p}
    ]
    return [(p, v, m) for p, v, m in several if m >= max(1, least * p)]


def waits(schedule: PipelineSchedule, p: int, v: int, m: int, costs: Costs) -> tuple[float, float]:
    """In a simulation, and by the closed form, in the unit of the costs of a stage."""
    timetable = schedule.timetable(p, m, v)
    chunks = timetable.stages // p
    of_rank = [chunks * cost for cost in (costs.forward, costs.input, costs.weight)]
    layouts = Layouts(pp=p, chunks=chunks, schedule=schedule)
    return simulate(timetable, costs).longest - m * sum(of_rank), float(bubble(layouts, m, *of_rank))


@pytest.mark.parametrize("schedule", PipelineSchedule)
def test_ranks_wait_as_long_as_the_closed_form_says(schedule: PipelineSchedule) -> None:
    for p, v, m in settings(schedule):
        counted, closed = waits(schedule, p, v, m, Costs())
        assert closed == pytest.approx(counted, abs=ROUGH.get(schedule, 0) + 1e-9), (p, v, m)


@pytest.mark.parametrize(
    "schedule",
    [
        PipelineSchedule.GPIPE,
        PipelineSchedule.ONE_F_ONE_B,
        PipelineSchedule.BREADTH_FIRST,
        PipelineSchedule.ZB_H1,
        PipelineSchedule.ZB_H2,
    ],
)
@pytest.mark.parametrize("costs", [Costs(1.0, 1.25, 0.875), Costs(2.0, 1.5, 1.25), Costs(1.0, 1.0, 0.5)])
def test_also_where_forward_and_the_halves_of_backward_differ(schedule: PipelineSchedule, costs: Costs) -> None:
    for p, v in ((2, 1), (4, 1), (7, 1)):
        counted, closed = waits(schedule, p, v, 3 * p, costs)
        assert closed == pytest.approx(counted), (p, v)


def test_interleaved_is_exact_where_ranks_divide_micro_batches() -> None:
    for p in RANKS:
        for m in (p, 2 * p, 5 * p):
            assert len(set(waits(PipelineSchedule.INTERLEAVED, p, 3, m, Costs()))) == 1


@pytest.mark.parametrize("schedule", [PipelineSchedule.V_HALF, PipelineSchedule.V_MIN])
def test_with_uneven_halves_some_schedules_wait_in_every_micro_batch(schedule: PipelineSchedule) -> None:
    """So no closed form of p alone can be right."""
    short, long = (waits(schedule, 6, 1, m, Costs(1.0, 1.25, 0.9))[0] for m in (18, 36))
    assert long > 1.25 * short


@pytest.mark.parametrize("schedule", PipelineSchedule)
def test_the_fullest_rank_holds_what_the_closed_form_says(schedule: PipelineSchedule) -> None:
    for p, v, m in settings(schedule):
        timetable = schedule.timetable(p, m, v)
        chunks = timetable.stages // p
        held = max(map(most_activations, timetable.lines)) / chunks
        assert float(in_flight(Layouts(pp=p, chunks=chunks, schedule=schedule), m)) == pytest.approx(held), (p, v, m)
