"""Dispatch and combine as actions of a pipeline's schedule: a block in four stages, two of which are on the link.

    rank r     F0.3  attention     F2.3  experts          line r computes
    its link          F1.3  dispatch      F3.3  combine   line p + r sends, and keeps no rank from computing

A link does one thing after the other, as a rank does, and waits for what it takes. So it is one more line of a
`Schedule`, and each part of a block a stage of its own: stage s of the pipeline becomes 4s to 4s + 3. Kinds of actions,
`validate`, `simulate` and the ranks that sleep (`pipeline_parallel.lab.sleeping_stages`) stay as they are, and no other
schedule knows of it.

What is left to say is an order. `in_turn` has all parts of an action before those of the next: a rank idles while its
tokens travel. `paired` takes a forward and the backward beside it together: attention of the one, experts' of the
other, experts, attention'; each sends while the other computes (DeepSeek-AI 2024, "DeepSeek-V3", sec. 3.2.1 and figure
4). DualPipe is made for that: what more micro-batches take is computing alone. In 1F1B the backward beside a forward
is the one that other ranks wait for, and pairs make a step longer.

`lab.overlapped` runs such pairs on one rank, with real messages.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from reference.pipeline_parallel.schedule import Action, Kind, Schedule
from reference.pipeline_parallel.simulate import Costs

ATTENTION, DISPATCH, EXPERTS, COMBINE = PARTS = range(4)
NAMES = ("attention", "dispatch", "experts", "combine")
Order = Callable[[Sequence[Action]], Iterator[Action]]
"""From a rank's line to what it computes and what its link sends, both in order."""


def in_turn(schedule: Schedule) -> Schedule:
    """Each action of a pipeline in its parts, one action after the other.

    Args:
        schedule: of p ranks, each stage one block.

    Returns:
        Of 2p lines: those of the ranks, then those of their links.
    """
    return _with_links(schedule, lambda line: (part for action in line for part in parts_of(action)))


def paired(schedule: Schedule) -> Schedule:
    """The same, where each forward that stands right before a backward of another micro-batch goes beside it.

    Raises:
        Deadlock: by `simulate`, where a backward waits for the forward that it is beside: DualPipe's do not.
    """
    return _with_links(schedule, _in_pairs)


def costs_of(schedule: Schedule, seconds: Mapping[str, float]) -> Costs:
    """What parts cost: each half of backward as much as forward, and a link has no weights.

    Args:
        schedule: as `in_turn` or `paired` makes it.
        seconds: of each of `NAMES`.
    """
    each = [seconds[name] for name in NAMES] * (schedule.stages // len(NAMES))
    weights = [0.0 if on_link(stage) else cost for stage, cost in enumerate(each)]
    return Costs(forward=each, input=each, weight=weights, unit="s")


def on_link(stage: int) -> bool:
    """Whether a stage is a message."""
    return stage % len(PARTS) in (DISPATCH, COMBINE)


def parts_of(action: Action) -> list[Action]:
    """The parts of an action, in their order. The second half of a backward sends nothing."""
    kind, stage, k = action
    parts = PARTS if kind is Kind.FORWARD else reversed(PARTS)
    found = [Action(kind, len(PARTS) * stage + part, k) for part in parts]
    if kind is Kind.WEIGHT:
        return [part for part in found if not on_link(part.stage)]
    if kind is Kind.INPUT:
        return [part._replace(kind=Kind.BACKWARD) if on_link(part.stage) else part for part in found]
    return found


def _with_links(schedule: Schedule, order: Order) -> Schedule:
    lines = [list(order(line)) for line in schedule.lines]
    ranks = [[action for action in line if not on_link(action.stage)] for line in lines]
    links = [[action for action in line if on_link(action.stage)] for line in lines]
    placement = tuple(rank + schedule.ranks * on_link(part) for rank in schedule.placement for part in PARTS)
    routes = tuple(tuple(len(PARTS) * stage + part for stage in route for part in PARTS) for route in schedule.routes)
    return Schedule(tuple(map(tuple, ranks + links)), placement, routes)


def _in_pairs(line: Sequence[Action]) -> Iterator[Action]:
    """A forward and the backward after it as DeepSeek-V3's figure 4 has them."""
    at = 0
    while at < len(line):
        one, other = line[at], line[at + 1] if at + 1 < len(line) else None
        if other and are_a_pair(one, other):
            yield from pair(one, other)
            at += 2
        else:
            yield from parts_of(one)
            at += 1


def are_a_pair(one: Action, other: Action) -> bool:
    """A forward, and a backward that does not begin with what it makes."""
    goes_back = other.kind in (Kind.BACKWARD, Kind.INPUT)
    return one.kind is Kind.FORWARD and goes_back and one.micro_batch != other.micro_batch


def pair(forward: Action, backward: Action) -> list[Action]:
    """Both in parts: what one sends travels while the other computes."""
    attention, dispatch, experts, combine = parts_of(forward)
    of_combine, of_experts, of_dispatch, of_attention = parts_of(backward)
    return [of_combine, attention, dispatch, of_experts, of_dispatch, experts, combine, of_attention]
