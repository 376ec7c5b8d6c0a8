"""A pipeline that is simulated takes as long as formulas say where they hold, and longer where stages are uneven."""

from dataclasses import replace

import numpy as np
import pytest

from reference.choices import Recompute
from reference.errors import BadInput
from reference.models import GPTConfig, preset
from reference.models.moe_config import MoEConfig
from reference.plan import LOOPED, PipelineSchedule
from reference.planning.bubbles import bubble
from reference.planning.hardware import GpuCluster, gpu
from reference.planning.job import Job
from reference.planning.layouts import Layouts
from reference.planning.predict import predict
from reference.planning.simulated import ModelSeconds, Routing, Seconds, SimulatedStep, busiest, simulated
from reference.planning.step import Constants

MODEL = GPTConfig(32, 4096, 32, 8, 14_336, vocabulary=128_256)
MIXTURE = MoEConfig(32, 4096, 32, 8, 14_336, vocabulary=32_000, experts=8, top_k=2)
PLAIN = Constants(kernel=0.0, latency=0.0)
IN_V = (
    PipelineSchedule.ZB_V,
    PipelineSchedule.ONE_F_ONE_B_V,
    PipelineSchedule.V_HALF,
    PipelineSchedule.V_MIN,
    PipelineSchedule.DUAL_PIPE_V,
)


def job(model: GPTConfig, gpus: int, batch: int = 64) -> Job:
    return Job(model, GpuCluster(gpu("h100"), gpus), 4096, batch)


def chunks(schedule: PipelineSchedule) -> int:
    return 2 if schedule in LOOPED or schedule in IN_V else 1


@pytest.mark.parametrize("how", Recompute)
def test_on_one_stage_it_is_the_prediction_and_the_table_of_tokens(how: Recompute) -> None:
    one, layouts = job(MODEL, 16), Layouts(tp=8, dp=2, recompute=how, sequence_parallel=True)
    table = ModelSeconds.of(one, layouts, PLAIN).table.all
    expected = float(predict(one, layouts, PLAIN).seconds) + 32 * table
    assert simulated(one, layouts, PLAIN).mean == pytest.approx(expected)


def test_experts_that_are_even_cost_what_the_prediction_says() -> None:
    one, layouts = job(MIXTURE, 16), Layouts(tp=2, dp=8, ep=8, sequence_parallel=True)
    parts = ModelSeconds.of(one, layouts, PLAIN)
    even = parts.of_stages(one, [range(32)], np.ones(32))[0].all - parts.table.all
    time = predict(one, layouts, PLAIN).time
    assert 8 * even == pytest.approx(float(sum(time[name] for name in ("layers", "head", "tp", "cp", "ep"))))


def alike(schedule: PipelineSchedule, p: int, m: int) -> SimulatedStep:
    """Stages of one second each way."""
    timetable = schedule.timetable(p, m, chunks(schedule))
    return SimulatedStep(timetable, [[Seconds(1.0, 1.0, 1.0)] * timetable.stages], 0.0, 0.0)


@pytest.mark.parametrize("schedule", PipelineSchedule)
def test_stages_alike_wait_for_the_bubble_of_the_closed_form(schedule: PipelineSchedule) -> None:
    p, m, v = 4, 8, chunks(schedule)
    layouts = Layouts(pp=p, chunks=v, schedule=schedule)
    assert alike(schedule, p, m).mean == 3 * m * v + bubble(layouts, m, v, v, v)


@pytest.mark.parametrize("schedule", PipelineSchedule)
def test_one_long_stage_makes_all_ranks_wait(schedule: PipelineSchedule) -> None:
    """The mean of stages is what closed forms see: it hides the longest."""
    one = job(MODEL, 32)
    layouts = Layouts(tp=4, pp=4, dp=2, chunks=chunks(schedule), schedule=schedule, sequence_parallel=True)
    others = 4 * chunks(schedule) - 1
    pieces = [range(0, 32 - others), *(range(layer, layer + 1) for layer in range(32 - others, 32))]
    step = simulated(one, layouts, PLAIN, pieces=pieces)
    (stages,) = step.stages
    even = [(1 / len(stages)) * sum(stages, Seconds())] * len(stages)
    assert step.mean > 1.5 * replace(step, stages=[even]).mean
    assert step.p95 == step.mean, "nothing is left to chance"


def test_messages_are_on_their_way_while_ranks_compute() -> None:
    """There and back over each border before the first gradient comes; later each micro-batch waits for two at most."""
    even = alike(PipelineSchedule.ONE_F_ONE_B, p=4, m=8)
    late = replace(even, message=0.25).mean - even.mean
    assert 2 * 3 * 0.25 <= late <= 2 * 8 * 0.25


def test_the_first_stage_has_the_table_and_the_last_the_head() -> None:
    one, layouts = job(MODEL, 32), Layouts(tp=4, pp=4, dp=2, sequence_parallel=True)
    pieces = [range(0, 8), range(8, 16), range(16, 24), range(24, 32)]
    parts, (stages,) = ModelSeconds.of(one, layouts, PLAIN), simulated(one, layouts, PLAIN, pieces=pieces).stages
    assert stages[1] == stages[2] == sum([parts.dense] * 8, Seconds())
    assert stages[0] == stages[1] + parts.table
    assert stages[3] == stages[1] + parts.head
    assert stages[3].all > stages[0].all > stages[1].all


def test_fewer_blocks_beside_the_head_make_a_step_shorter() -> None:
    """As Llama 3 405B had one fewer on its first stage and on its last (Grattafiori et al. 2024, sec. 3.3.2)."""
    one, layouts = job(MODEL, 32), Layouts(tp=4, pp=4, dp=2, sequence_parallel=True)
    even = [range(0, 8), range(8, 16), range(16, 24), range(24, 32)]
    lighter = [range(0, 8), range(8, 17), range(17, 26), range(26, 32)]
    assert simulated(one, layouts, PLAIN, pieces=lighter).mean < simulated(one, layouts, PLAIN, pieces=even).mean


def test_experts_that_are_popular_make_steps_longer_and_of_many_lengths() -> None:
    one, layouts = job(MIXTURE, 64, batch=256), Layouts(tp=2, pp=4, dp=8, ep=8, sequence_parallel=True)
    even, some, wild = (simulated(one, layouts, routing=Routing(c, 20)) for c in (float("inf"), 10.0, 1.0))
    assert even.mean < some.mean < wild.mean
    assert some.p95 > 1.01 * some.mean
    assert even.p95 < 1.01 * even.mean


def test_the_busiest_rank_has_as_much_as_chance_gives_it() -> None:
    """With one popular expert in eight the rank that has it does all the work: eight times the mean."""
    one, layouts = job(MIXTURE, 16), Layouts(tp=2, dp=8, ep=8)
    loads = busiest(one, layouts, Routing(samples=50))
    assert loads.shape == (50, 32)
    assert 1 < loads.mean() < 1.1
    assert busiest(one, layouts, Routing(1e-3, samples=50)).mean() == pytest.approx(8, rel=0.05)
    assert (busiest(one, layouts, Routing(samples=50)) == loads).all(), "the same seed draws the same"
    assert (busiest(one, Layouts(tp=2, dp=8), Routing()) == 1).all(), "each rank has all experts"


def test_every_layer_of_a_sample_waits_for_its_own_busiest_rank() -> None:
    one, layouts = job(MIXTURE, 16), Layouts(tp=2, dp=8, ep=8)
    parts = ModelSeconds.of(one, layouts, PLAIN)
    loads = np.linspace(1, 2, 32)
    stages = parts.of_stages(one, [range(16), range(16, 32)], loads)
    extra = [sum(loads[:16] - 1), sum(loads[16:] - 1)]
    for stage, more, end in zip(stages, extra, (parts.table, parts.head), strict=True):
        expected = 16 * parts.experts + more * parts.uneven + end
        assert stage.all == pytest.approx(expected.all)
    assert parts.uneven.all < parts.experts.all


def test_llama_3_405b_is_simulated_for_every_schedule_that_it_may_have() -> None:
    one = Job(preset("llama3-405b"), GpuCluster(gpu("h100"), 16_384), 8192, 2048)
    rates = {}
    for schedule in PipelineSchedule:
        layouts = Layouts(tp=8, pp=16, dp=128, chunks=chunks(schedule), schedule=schedule, sequence_parallel=True)
        rates[schedule] = simulated(one, layouts, PLAIN).bubble_rate
    best = (PipelineSchedule.ZB_H2, PipelineSchedule.ZB_V, PipelineSchedule.ZB_H1, PipelineSchedule.INTERLEAVED)
    assert all(rates[schedule] < rates[PipelineSchedule.ONE_F_ONE_B] for schedule in best)


def test_what_cannot_be_simulated_is_refused() -> None:
    one, layouts = job(MODEL, 32), Layouts(tp=4, pp=4, dp=2)
    with pytest.raises(BadInput, match="of one layout"):
        simulated(one, Layouts(tp=np.array([4, 8]), pp=4, dp=2))
    with pytest.raises(BadInput, match="whole micro-batches"):
        simulated(one, replace(layouts, micro_batch=3))
    with pytest.raises(BadInput, match="stages of this schedule"):
        simulated(one, layouts, pieces=[range(32)])
    with pytest.raises(BadInput, match="concentration"):
        Routing(concentration=0.0)
