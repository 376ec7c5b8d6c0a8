"""Which weights each forward and each backward sees, where a pipeline never flushes.

A flush at the end of each step costs the bubble. Without one, a stage takes an optimizer step when it has gone backward
through all micro-batches of a batch, while later micro-batches are on their way through other stages. So the weights
change between the forward of a micro-batch and its backward. Version v of a stage is what its weights are after v
updates. Which version is seen follows from the order of computation alone, and from one decision:

    newest          both see what is there when they run                          PipeMare, and all that flush
    stashed         backward sees what its forward has seen                       PipeDream
    vertical_sync   all stages see what the first has when the batch comes in     PipeDream with vertical sync
    two_buffers     the same, with batches so large that two versions are enough  PipeDream-2BW

Harlap et al. 2018, "PipeDream: Fast and efficient pipeline parallel DNN training"; Narayanan et al. 2019, "PipeDream:
Generalized pipeline parallelism for DNN training", sec. 3.3; Narayanan et al. 2021, "Memory-efficient pipeline-parallel
DNN training", sec. 3.1; Yang et al. 2021, "PipeMare: Asynchronous pipeline parallel DNN training".
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from reference.errors import BadInput
from reference.pipeline_parallel.schedule import Action, Kind, Schedule

Seen = Mapping[Action, int]
"""The version of its stage's weights that an action computes with."""

Policy = Callable[[Schedule, int], Seen]
"""From an order, and how many micro-batches make an update, to what is seen."""


def newest(schedule: Schedule, batch: int) -> dict[Action, int]:
    """What is there when an action runs: how many updates its stage has made by then.

    Args:
        schedule: an order over all micro-batches of a run, batch after batch, with whole backwards.
        batch: micro-batches that make an update.

    Raises:
        BadInput: if the order splits backward.
    """
    found: dict[Action, int] = {}
    if split := next((a for line in schedule.lines for a in line if a.kind in (Kind.INPUT, Kind.WEIGHT)), None):
        raise BadInput(f"{split} is half of a backward: versions are defined for whole ones, B")
    for line in schedule.lines:
        backwards: Counter[int] = Counter()  # of each stage
        for action in line:
            found[action] = backwards[action.stage] // batch
            backwards[action.stage] += action.kind is Kind.BACKWARD
    return found


def stashed(schedule: Schedule, batch: int) -> dict[Action, int]:
    """Weight stashing: forward sees the newest weights of its stage, and puts them aside for its backward.

    Narayanan et al. 2019, sec. 3.3. Arguments as for `newest`.
    """
    found = newest(schedule, batch)
    return {action: found[action._replace(kind=Kind.FORWARD)] for action in found}


def vertical_sync(schedule: Schedule, batch: int) -> dict[Action, int]:
    """All micro-batches of a batch see, on every stage, the version that was newest when the first of them came in.

    Narayanan et al. 2019, sec. 3.3. Arguments as for `newest`.
    """
    found = newest(schedule, batch)

    def entered(micro_batch: int) -> int:
        first = micro_batch - micro_batch % batch
        return found[Action(Kind.FORWARD, schedule.routes[first][0], first)]

    return {action: entered(action.micro_batch) for action in found}


def two_buffers(schedule: Schedule, batch: int) -> dict[Action, int]:
    """Double-buffered weights: a batch sees the version before the newest, and no older one is needed.

    Narayanan et al. 2021, sec. 3.1: W(t+1) = W(t) - rate * gradient at W(t-1). Arguments as for `newest`.

    Raises:
        BadInput: if a batch is so small that more than two versions are in use.
    """
    found = vertical_sync(schedule, batch)
    most = max(map(len, kept(schedule, batch, found).values()))
    if most > 2:
        raise BadInput(
            f"with updates every {batch} micro-batches, {most} versions are in use; two are enough from "
            f"{schedule.stages - 1} micro-batches on"
        )
    return found


def kept(schedule: Schedule, batch: int, seen: Seen) -> dict[Action, tuple[int, ...]]:
    """The versions that an action's stage keeps while the action runs: the newest, and those that are still needed.

    Args:
        schedule, batch: as for `newest`.
        seen: what a policy has found for them.
    """
    found: dict[Action, tuple[int, ...]] = {}
    now = newest(schedule, batch)
    for line in schedule.lines:
        last = {(action.stage, seen[action]): at for at, action in enumerate(line)}  # when a version is seen last
        here: dict[int, tuple[int, ...]] = {}
        for at, action in enumerate(line):
            stage, newer = action.stage, now[action]
            needed = [v for v in here.get(stage, ()) if v != newer and last.get((stage, v), -1) >= at]
            found[action] = here[stage] = (*needed, newer)
    return found


def delay(seen: Seen, kind: Kind, stage: int, update: int, batch: int) -> float:
    """How many updates old the weights are that a batch sees, when its own update is made: PipeMare's tau.

    It is the mean of its micro-batches, some of which may see newer weights than others.

    Args:
        seen: what a policy has found.
        kind: forward or backward.
        stage: of which weights.
        update: the number of the batch, from 0.
        batch: micro-batches in it.
    """
    micro_batches = range(update * batch, (update + 1) * batch)
    return sum(update - seen[Action(kind, stage, k)] for k in micro_batches) / batch


def joined(parts: Iterable[Schedule]) -> Schedule:
    """One order after the other, over the same stages; micro-batches are numbered on.

    The same one several times is a pipeline that flushes.
    """
    first, *others = parts
    lines, routes = [list(line) for line in first.lines], list(first.routes)
    for part in others:
        for line, more in zip(lines, part.lines, strict=True):
            line += [action._replace(micro_batch=len(routes) + action.micro_batch) for action in more]
        routes += part.routes
    return Schedule(tuple(map(tuple, lines)), first.placement, tuple(routes))
