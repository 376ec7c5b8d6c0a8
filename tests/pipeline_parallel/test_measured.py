"""What a pipeline of sleeping stages really does: the bubble, the order and the memory that its schedule promises."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from matplotlib import pyplot as plt

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.pipeline_parallel.lab.sleeping_stages import SleepingRun, run_sleeping
from reference.pipeline_parallel.orders import breadth_first, gpipe, interleaved, naive, one_f_one_b
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.simulate import Costs, Simulation, simulate
from reference.pipeline_parallel.validate import validate
from reference.zero_bubble.building_blocks import one_f_one_b_v, v_half, v_min
from reference.zero_bubble.orders import dual_pipe, dual_pipe_v, zb_h1, zb_h2, zb_v
from visualizations import schedules

pytestmark = pytest.mark.alone

P, M = 4, 8
LATE = 0.001  # seconds by which an action may begin late: messages, autograd and waking up take that long
CLOSE = 0.05  # of the bubble, besides
ROUNDS = 20  # at most; the first is good enough where nothing else wants the cores
EQUAL, UNEQUAL = (0.026, 0.026, 0.026), (0.026, 0.030, 0.022)  # seconds: F, I and W of all stages of a rank
SHORT = (0.013, 0.015, 0.011)  # for an order that takes four times as long as the others


@dataclass(frozen=True)
class Promise:
    """What is said of an order, with p = 4 and m = 8."""

    make: Callable[[int, int], Schedule]
    bubble: Callable[[float, float, float], float]  # of F, I and W of all stages of a rank
    activations: tuple[int, ...]  # that each rank holds at most, of a stage and a micro-batch each
    stages: int = 1  # of one model, on a rank
    times: tuple[float, float, float] = UNEQUAL
    in_a_row: int = 3 * M  # actions that may make each other late

    @property
    def costs(self) -> Costs:
        """Of a stage."""
        return Costs(*(seconds / self.stages for seconds in self.times), unit="s")


PROMISES = {
    "naive": Promise(naive, lambda f, i, w: M * (P - 1) * (f + i + w), (1,) * P, times=SHORT, in_a_row=2 * M * P),
    "GPipe": Promise(gpipe, lambda f, i, w: (P - 1) * (f + i + w), (M,) * P),
    "1F1B": Promise(one_f_one_b, lambda f, i, w: (P - 1) * (f + i + w), (4, 3, 2, 1)),
    "interleaved": Promise(partial(interleaved, v=2), lambda f, i, w: (P - 1) * (f + i + w) / 2, (11, 9, 7, 5), 2),
    "breadth-first": Promise(partial(breadth_first, v=2), lambda f, i, w: (P - 1) * (f + i + w) / 2, (2 * M,) * P, 2),
    "ZB-H1": Promise(zb_h1, lambda f, i, w: (P - 1) * (f + i - w), (P,) * P),
    "ZB-H2": Promise(zb_h2, lambda f, i, w: (P - 1) * (f + i - 2 * w), (2 * P - 1,) * P),
    "ZB-V": Promise(zb_v, lambda f, i, w: 0.0, (2 * P,) * P, 2, EQUAL),
    "1F1B-V": Promise(one_f_one_b_v, lambda f, i, w: 7.5 * f, (6,) * P, 2, EQUAL),
    "V-Half": Promise(v_half, lambda f, i, w: (3 * P / 2 - 3.5) * f, (6,) * P, 2, EQUAL),
    "V-Min": Promise(v_min, lambda f, i, w: (2 * P - 2.5) * f, (4,) * P, 2, EQUAL),
    "DualPipe": Promise(dual_pipe, lambda f, i, w: (P / 2 - 1) * (f + i - w), (P + 1,) * P),
    "DualPipeV": Promise(dual_pipe_v, lambda f, i, w: (P - 1) / 2 * f, (2 * P + 1,) * P, 2, EQUAL),
}

Case = tuple[Promise, Simulation, SleepingRun]


@pytest.fixture(scope="module", params=PROMISES)
def case(request: pytest.FixtureRequest, clusters: Callable[..., Cluster]) -> Case:
    """A promise, what follows from it on paper, and what ranks have done.

    Where other processes want the cores, sleepers wake up late and messages wait for a core: then a step takes too
    long, never too short. So of several rounds the shortest says most.
    """
    promise = PROMISES[request.param]
    plan = simulate(promise.make(P, M), promise.costs)
    best = None
    for _ in range(ROUNDS):
        found = run_sleeping(clusters(P), plan.schedule, promise.costs)
        best = min(found, best or found, key=lambda run: run.step.longest)
        if is_near(best, plan, promise):
            break
    return promise, plan, best


def is_near(run: SleepingRun, plan: Simulation, promise: Promise) -> bool:
    """Whether a bubble is what is promised, but for what a machine adds."""
    expected = plan.longest - plan.busy
    return abs(run.bubble - expected) <= CLOSE * expected + added(run, plan, promise)


def added(run: SleepingRun, plan: Simulation, promise: Promise) -> float:
    """The seconds by which a machine may make a step longer.

    How long a sleep should be is known, so what sleepers overslept says how late this machine was in this very step:
    messages, which wake others, were as late.
    """
    return promise.in_a_row * LATE + (run.step.busy - plan.busy)


def test_the_bubble_is_that_of_the_formula(case: Case) -> None:
    promise, plan, run = case
    assert plan.longest - plan.busy == pytest.approx(promise.bubble(*promise.times))
    assert is_near(run, plan, promise), (run.bubble, run.step.busy - plan.busy)


def test_ranks_compute_in_the_order_of_the_plan(case: Case) -> None:
    """Each rank its own line; and across ranks, what ends clearly earlier on paper ends earlier.

    Clearly: by more than a whole action, and what a machine adds.
    """
    promise, plan, run = case
    assert tuple(tuple(span.action for span in line) for line in run.step.spans) == plan.schedule.lines
    on_paper, measured = (np.array([span.end for line in step.spans for span in line]) for step in (plan, run.step))
    shortest = min(span.end - span.begin for line in plan.spans for span in line)
    clearly = on_paper[:, None] + shortest + added(run, plan, promise) < on_paper[None, :]
    assert clearly.any() and (measured[:, None] < measured[None, :])[clearly].all()


def test_every_action_takes_its_time(case: Case) -> None:
    _, plan, run = case
    for asked, taken in zip(plan.spans, run.step.spans, strict=True):
        assert all(b.end - b.begin >= a.end - a.begin - 1e-6 for a, b in zip(asked, taken, strict=True))


def test_ranks_hold_as_many_activations_as_the_formula_says(case: Case) -> None:
    promise, plan, run = case
    assert run.activations == promise.activations == validate(plan.schedule).activations


def test_every_stage_has_the_gradient_of_every_micro_batch(case: Case) -> None:
    _, plan, run = case
    routes, stages = plan.schedule.routes, range(plan.schedule.stages)
    assert run.gradients == {stage: sum(stage in route for route in routes) for stage in stages}


def test_plan_and_run_are_drawn_by_one_function(case: Case) -> None:
    _, plan, run = case
    picture = schedules.compare({"on paper": plan, "measured": run.step.spans})
    above, below = picture.axes
    assert above.get_title(loc="left").startswith("on paper: ") and below.get_title(loc="left").startswith("measured: ")
    assert above.get_xlim() == below.get_xlim() == (0, max(plan.seconds, run.step.seconds))
    plt.close(picture)


def test_a_run_in_another_order_than_its_schedule_s_is_refused() -> None:
    step = simulate(one_f_one_b(2, 3))
    first, *others = step.spans[0]
    assert Simulation.of_spans(step.schedule, step.spans) == step
    begun = Simulation.of_spans(step.schedule, [line[:2] for line in step.spans])
    assert begun.seconds == 4  # F F on one; F B on the other, from 1
    with pytest.raises(BadInput, match=r"rank 0 has done F0\.1, and its line is F0\.0 F0\.1 B0\.0 F0\.2 B0\.1 B0\.2"):
        Simulation.of_spans(step.schedule, [others, step.spans[1]])
    with pytest.raises(BadInput, match=r"rank 0 has done F0\.0"):
        Simulation.of_spans(step.schedule, [[*step.spans[0], first], step.spans[1]])
