"""A step of a pipeline to look at, whether it is planned, simulated or measured, and what can be said of it."""

from collections.abc import Mapping, Sequence
from math import inf

from reference.errors import BadInput
from reference.pipeline_parallel.lab.measure import measured
from reference.pipeline_parallel.schedule import Kind, Schedule
from reference.pipeline_parallel.simulate import ActionSpan, Costs, Simulation, simulate

Plan = Schedule | Simulation | Sequence[Sequence[ActionSpan]]
"""What can be drawn: an order, a simulated step, or what each rank of a real one did."""


def simulated(plan: Plan) -> Simulation:
    """A plan with times, from 0: of a schedule those of equal costs; of a run those that were measured.

    Raises:
        BadInput: if it is a run of nothing, or takes no time.
    """
    step = _step(plan)
    if not 0 < step.longest < inf:
        raise BadInput(f"there is nothing to draw: the step takes {step.longest:g} {step.unit}")
    return step


def _step(plan: Plan) -> Simulation:
    if isinstance(plan, Simulation):
        return plan
    if isinstance(plan, Schedule):
        share = plan.ranks / max(map(len, plan.routes))  # of a rank's layers, that a stage has
        return simulate(plan, Costs(share, share, share))
    if not any(plan):
        raise BadInput("there is nothing to draw: no rank has computed anything")
    return measured(_followed(plan), plan)


def finding(plan: Plan) -> str:
    """The default title: the bubble, and what a rank holds at most."""
    step = simulated(plan)
    most = number(max(peaks(step)))
    holds = f"; a rank holds at most {most} {'activation' if most == '1' else 'activations'}" if most != "0" else ""
    bubble = _bubble(step)
    return f"{bubble[0].upper()}{bubble[1:]}{holds}"


def finding_of(plans: Mapping[str, Plan]) -> str:
    """The default title of several: which has the least bubble, and which holds least; of one order, all bubbles."""
    steps = {name: simulated(plan) for name, plan in plans.items()}
    if len({step.schedule.lines for step in steps.values()}) == 1:
        return "The same order; bubble: " + ", ".join(f"{_rate(step)} ({name})" for name, step in steps.items())
    most = {name: max(peaks(step)) for name, step in steps.items()}
    least, lean = min(steps, key=lambda name: steps[name].bubble_rate), min(most, key=most.__getitem__)
    if len({_rate(step) for step in steps.values()}) == 1:
        bubble = _bubble(steps[least])
        return f"{bubble[0].upper()}{bubble[1:]} in all of them; {lean} holds least ({number(most[lean])})"
    waits = f"{least} waits least ({_bubble(steps[least]).removeprefix('the bubble is ')})"
    if number(most[lean]) == number(most[least]):
        return f"{waits}, and none holds less"
    return f"{waits}; {lean} holds least ({number(most[lean])})"


def peaks(step: Simulation) -> list[float]:
    """The most activations that each rank holds, in micro-batches of all layers of a rank."""
    return [max(counts) for _, counts in held(step)]


def held(step: Simulation) -> list[tuple[list[float], list[float]]]:
    """Of each rank: moments, and how many activations it holds from then on, in micro-batches of all layers of a rank.

    One is held from the beginning of its forward to the end of its backward; of a split backward, of its second half.
    Where there is no backward, nothing is held.
    """
    trains = any(span.action.kind is not Kind.FORWARD for line in step.spans for span in line)
    found = []
    for line in step.spans:
        moments, counts = [0.0], [0.0]
        for (kind, _, micro_batch), begin, end in line if trains else ():
            if kind is not Kind.INPUT:
                is_forward = kind is Kind.FORWARD
                share = step.schedule.ranks / len(step.schedule.routes[micro_batch])
                moments.append(begin if is_forward else end)
                counts.append(counts[-1] + (share if is_forward else -share))
        found.append((moments, counts))
    return found


def window(line: Sequence[ActionSpan], step: Simulation) -> tuple[float, float]:
    """The time of a lane that belongs to this step and to no other: as long as `longest`."""
    end = max(line[-1].end, step.longest) if line else step.longest
    return end - step.longest, end


def chunks_of(schedule: Schedule) -> dict[int, int]:
    """Of each stage, how many of smaller number its rank has."""
    return {stage: schedule.placement[:stage].count(rank) for stage, rank in enumerate(schedule.placement)}


def _followed(spans: Sequence[Sequence[ActionSpan]]) -> Schedule:
    """The schedule that a run has followed."""
    every = sorted((span.begin, span.action, rank) for rank, line in enumerate(spans) for span in line)
    placement: dict[int, int] = {}
    routes: dict[int, dict[int, None]] = {}  # stages in the order in which a micro-batch came to them
    for _, (_, stage, micro_batch), rank in every:
        placement[stage] = rank
        routes.setdefault(micro_batch, {})[stage] = None
    lines = tuple(tuple(span.action for span in line) for line in spans)
    return Schedule(
        lines,
        tuple(placement.get(stage, 0) for stage in range(max(placement) + 1)),
        tuple(tuple(routes.get(k, ())) for k in range(max(routes) + 1)),
    )


def _bubble(step: Simulation) -> str:
    rate = _rate(step)
    return "no bubble" if rate == "none" else f"the bubble is {rate}"


def _rate(step: Simulation) -> str:
    rate = step.bubble_rate
    return "none" if rate < 5e-4 else f"{rate:.{1 if rate < 0.0995 else 0}%}"


def number(value: float) -> str:
    """For a reader, in three digits."""
    return f"{value:.3g}"
