"""The closed forms of bubbles, held to schedules that are run action by action."""

import pytest

from reference.pipeline_parallel.simulate import Costs, simulate
from reference.plan import LOOPED, PipelineSchedule
from reference.planning.layouts import Layouts
from reference.planning.step import waits

NEARLY = {  # of which the closed form is a line through what the generators make: by how many thirds of a stage at most
    PipelineSchedule.ONE_F_ONE_B_V: 1.0,
    PipelineSchedule.V_HALF: 1.0,
    PipelineSchedule.V_MIN: 3.0,
    PipelineSchedule.DUAL_PIPE_V: 1.0,
}


@pytest.mark.parametrize("schedule", PipelineSchedule)
@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("v", [2, 4])
def test_a_rank_waits_as_long_as_in_the_simulation(schedule: PipelineSchedule, p: int, v: int) -> None:
    if v != 2 and schedule not in LOOPED:
        return  # has no chunks to choose
    for m in (1, 2, 3, 4, 6, 8, 16, 24):
        if schedule is PipelineSchedule.INTERLEAVED and m > p and m % p:
            continue  # Megatron's order, which then waits longer: interleaved-even has its closed form
        timetable = schedule.timetable(p, m, v)
        chunks = timetable.stages // p
        third = 1 / chunks
        longest = simulate(timetable, Costs(third, third, third)).longest
        found = float(waits(Layouts(pp=p, chunks=chunks, schedule=schedule), m))
        assert 3 * found == pytest.approx(longest - 3 * m, abs=NEARLY.get(schedule, 1e-9)), (m, p, chunks)
