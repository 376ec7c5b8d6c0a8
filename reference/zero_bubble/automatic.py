"""An order for given costs and a given memory: a greedy one that fills bubbles, the best of a grid.

Orders by hand fit one case: ZB-H2 has no bubble where F, I and W take as long, and needs room for 2p - 1 activations.
Here each rank that is free looks at what has come, what is in flight, and its memory, and decides by rules:

    alternate    a forward after an input gradient, and an input gradient after a forward, if both are ready
    warm up      no gradient has come yet: as many forwards as memory allows, or fewer the later the rank is (`ramp`)
    recycle      it is a forward's turn, and there is no room for it: W
    fill         nothing is ready: W, if the gap until the next message is long enough
    wait         it is not: a W now would hold up what another rank waits for. But a rank that has no time left to wait
                 (`Aim.longest`) fills the gap nevertheless

Memory is counted as in the paper: a forward leaves 1, the activations of one micro-batch in one stage; its input
gradient frees all but the share that the weight gradient needs; and W frees that.

Qi et al. 2023, "Zero bubble pipeline parallelism", sec. 3.1. There a rank fills a short gap if its bubble would become
the largest of all ranks; here, if it would become larger than a bubble that is aimed at, which is one more thing to
try. There are some 60 attempts, of O(p m log p) steps each: p = 16 and m = 128 take seconds.

With two stages on each rank, there and back, building blocks are tried instead (`building_blocks`), each with all of
the memory: below 1F1B's, that is what an order with one stage on a rank cannot make good use of.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count, product
from math import inf

from reference.errors import BadInput
from reference.pipeline_parallel.orders import one_f_one_b
from reference.pipeline_parallel.schedule import Action, Kind, Schedule
from reference.pipeline_parallel.simulate import Costs, Simulation, simulate

from .building_blocks import (
    INTERVAL,
    half_block,
    min_block,
    of_block,
    one_f_one_b_v,
    v_half,
    v_min,
    whole_block,
)
from .orders import dual_pipe_v, zb_h1, zb_h2, zb_v

ROUNDING = 1e-9  # of a sum of shares that fills memory exactly
HALVES = (0.0, *(1 / 2**k for k in range(8, -1, -1)))  # of the bubble that is found first: what to aim at
EIGHTHS = tuple(k / 8 for k in range(3, 9))  # of the best that is found so: a closer look


@dataclass(frozen=True)
class Limit:
    """What a rank may hold."""

    memory: float  # in activations of one micro-batch in one stage
    weight_share: float = 1.0  # the share of them that is held from I to W: M_W / M_B in the paper

    def held(self, forward: int, of_input: int, of_weight: int) -> float:
        """How much memory is taken after so many actions of each kind."""
        return (forward - of_input) + self.weight_share * (of_input - of_weight)

    def allows(self, line: Iterable[Action]) -> bool:
        """Whether a rank can compute a line whose backward is split."""
        done = dict.fromkeys(Kind, 0)
        for action in line:
            done[action.kind] += 1
            if self.held(done[Kind.FORWARD], done[Kind.INPUT], done[Kind.WEIGHT]) > self.memory + ROUNDING:
                return False
        return True


def kept_for_weights(width: int, heads: int, sequence: int) -> float:
    """The share of a transformer block's activations that the gradients of its weights need.

    A block that stores its attention matrices holds s b h (34 + 5 a s / h) bytes, and W needs 32 s b h of them.

    Korthikanti et al. 2022, "Reducing activation recomputation", eq. 1; Qi et al. 2023, sec. 2.3 (M_W / M_B).
    """
    return 32 / (34 + 5 * heads * sequence / width)


def automatic(p: int, m: int, costs: Costs, memory: float, weight_share: float = 1.0, chunks: int = 1) -> Schedule:
    """The order with the shortest step (`Simulation.longest`) that is found for p ranks, m micro-batches and a memory.

    Never worse than 1F1B, ZB-H1 and ZB-H2 where these fit into the memory, for they are tried too; with two chunks,
    than V-Min, V-Half, 1F1B-V, ZB-V and DualPipeV. A better one may exist: the paper continues from here with integer
    linear programming.

    Args:
        p: ranks.
        m: micro-batches.
        costs: of the stages, in any unit.
        memory: of each rank, in activations of one micro-batch in all of the rank's layers; at least 1.
        weight_share: the part of them that is held from I to W, see `kept_for_weights`. All of them by default: so
            `validate` counts, and it is true of any model.
        chunks: stages on a rank: 1, or 2, which make a V: rank r has stages r and 2p - 1 - r.

    Raises:
        BadInput: if memory is less than 1, `weight_share` not from 0 to 1, or `chunks` neither 1 nor 2.
    """
    if memory < 1:
        raise BadInput(f"a forward leaves activations that take 1; a memory of {memory} has no room for them")
    if not 0 <= weight_share <= 1:
        raise BadInput(f"weight_share is the share of activations that W needs, from 0 to 1, not {weight_share}")
    if chunks not in (1, 2):
        raise BadInput(f"a rank has 1 chunk, or 2 that make a V, not {chunks}")
    limit = Limit(memory * chunks, weight_share)
    if chunks == 2:
        return _shortest(_on_a_v(p, m, limit), costs).schedule

    def attempts(longest: float) -> list[Schedule]:
        aims = (Aim(longest, *choice) for choice in product((False, True), repeat=2))
        return [_attempt(p, m, costs, limit, aim) for aim in aims]

    known = [order for order in _known(p, m) if all(map(limit.allows, order.lines))]
    best = _shortest([*known, *attempts(inf)], costs)
    for parts in (HALVES, EIGHTHS):
        bubble = best.longest - best.busy
        for longest in (best.busy + part * bubble for part in parts):
            if longest <= best.longest:
                best = _shortest([best.schedule, *attempts(longest)], costs)
    while (better := _shortest([best.schedule, *attempts(best.longest)], costs)).longest < best.longest:
        best = better
    return best.schedule


def _known(p: int, m: int) -> Iterator[Schedule]:
    """Orders by hand, all with a backward that is split: 1F1B's in place."""
    yield _split(one_f_one_b(p, m))
    yield zb_h1(p, m)
    yield zb_h2(p, m)


def _on_a_v(p: int, m: int, limit: Limit) -> Iterator[Schedule]:
    """Orders for two stages a rank that fit: of each building block, as seldom as memory demands, and ZB-V."""
    for block in (min_block, half_block, whole_block):
        attempts = (of_block(p, m, block, Kind.INPUT, n * INTERVAL, room=int(limit.memory)) for n in count(1))
        yield next(order for order in attempts if all(map(limit.allows, order.lines)))
    for order in map(_split, (v_min(p, m), v_half(p, m), one_f_one_b_v(p, m), zb_v(p, m), dual_pipe_v(p, m))):
        if all(map(limit.allows, order.lines)):
            yield order


def _split(schedule: Schedule) -> Schedule:
    """The same order, with I and at once W in place of each B."""
    halves = {Kind.BACKWARD: (Kind.INPUT, Kind.WEIGHT)}
    lines = tuple(
        tuple(action._replace(kind=kind) for action in line for kind in halves.get(action.kind, (action.kind,)))
        for line in schedule.lines
    )
    return replace(schedule, lines=lines)


def _shortest(schedules: Iterable[Schedule], costs: Costs) -> Simulation:
    return min((simulate(schedule, costs) for schedule in schedules), key=lambda simulation: simulation.longest)


@dataclass(frozen=True)
class Aim:
    """What an attempt tries."""

    longest: float  # the step aimed at: a rank waits only if it could still be through by then
    ramp: bool  # warm up in 1F1B's shape: from the whole memory on the first rank to one forward on the last
    patient: bool  # wait as long as there is time, with forwards too; or spread the time over the step, and for W only


@dataclass
class _Rank:
    """One rank in an attempt: what it may do, what it has done, and what has come."""

    seconds: dict[Kind, float]
    limit: Limit
    ahead: float  # how many forwards may be without their input gradients
    spare: float  # how long it may wait in all
    patient: bool
    micro_batches: int
    line: list[Action] = field(default_factory=list)
    done: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    arrivals: dict[Kind, list[float]] = field(default_factory=lambda: {Kind.FORWARD: [], Kind.INPUT: []})
    latest: Kind = Kind.INPUT  # of forward and input gradient, which alternate
    begun: float = inf
    busy: float = 0.0
    free: float = 0.0  # when its last action ends

    def decide(self, now: float) -> Kind | None:
        """What to do next, if the rank is free; None if it waits for a message."""
        forward, gradient = self.until(Kind.FORWARD, now), self.until(Kind.INPUT, now)
        room, unfinished = self.has_room(), self.done[Kind.INPUT] > self.done[Kind.WEIGHT]
        if gradient <= 0:
            if forward > 0 or self.latest is Kind.FORWARD:
                return Kind.INPUT
            if room:
                return Kind.FORWARD
            return Kind.WEIGHT if unfinished else Kind.INPUT
        if forward <= 0 and room and not (self.patient and self.waits(Kind.FORWARD, gradient, now)):
            return Kind.FORWARD
        gap = min(forward, gradient) if forward > 0 and room else gradient
        return Kind.WEIGHT if unfinished and not self.waits(Kind.WEIGHT, gap, now) else None

    def until(self, kind: Kind, now: float) -> float:
        """How long it takes until what the next action of a kind needs is there; inf if that is not in flight."""
        arrivals, which = self.arrivals[kind], self.done[kind]
        return arrivals[which] - now if which < len(arrivals) else inf

    def has_room(self) -> bool:
        """Whether memory, and the shape of the warm-up, allow one more forward."""
        forward, of_input, of_weight = self.done[Kind.FORWARD] + 1, self.done[Kind.INPUT], self.done[Kind.WEIGHT]
        fits = self.limit.held(forward, of_input, of_weight) <= self.limit.memory + ROUNDING
        return fits and forward - of_input <= self.ahead + ROUNDING

    def waits(self, kind: Kind, gap: float, now: float) -> bool:
        """Whether an action would take longer than a gap, and the rank has the time to let the gap pass."""
        share = 1.0 if self.patient else (self.done[Kind.INPUT] + 1) / self.micro_batches
        idle = now - self.begun - self.busy
        return gap < self.seconds[kind] and idle + gap <= self.spare * share

    def run(self, kind: Kind, stage: int, now: float) -> None:
        """Compute."""
        self.line.append(Action(kind, stage, self.done[kind]))
        self.done[kind] += 1
        if kind is not Kind.WEIGHT:
            self.latest = kind
        self.begun = min(self.begun, now)
        self.busy += self.seconds[kind]
        self.free = now + self.seconds[kind]


def _attempt(p: int, m: int, costs: Costs, limit: Limit, aim: Aim) -> Schedule:
    """The order in which ranks compute that decide when they are free, with what each knows at that time."""
    ranks = _ranks(p, m, costs, limit, aim)
    events = [(0.0, 0)]  # times at which a rank may have something to decide
    while events:
        now, r = heappop(events)
        if ranks[r].free > now or not (kind := ranks[r].decide(now)):
            continue
        ranks[r].run(kind, r, now)
        end = ranks[r].free
        heappush(events, (end, r))
        neighbour = r + {Kind.FORWARD: 1, Kind.INPUT: -1, Kind.WEIGHT: 0}[kind]
        if neighbour == p:
            ranks[r].arrivals[Kind.INPUT].append(end)  # the last rank turns around
        elif neighbour != r and neighbour >= 0:
            ranks[neighbour].arrivals[kind].append(end + costs.message)
            heappush(events, (end + costs.message, neighbour))
    return Schedule.straight((rank.line for rank in ranks), range(p), m)


def _ranks(p: int, m: int, costs: Costs, limit: Limit, aim: Aim) -> list[_Rank]:
    """Ranks before a step: all micro-batches are there for the first one."""
    table, ranks = costs.table(p), []
    for r in range(p):
        seconds = {kind: table[kind][r] for kind in Kind}
        ahead = 1 + (limit.memory - 1) * (p - 1 - r) / max(p - 1, 1) if aim.ramp else inf
        spare = aim.longest - m * (seconds[Kind.FORWARD] + seconds[Kind.BACKWARD])
        ranks.append(_Rank(seconds, limit, ahead, spare, aim.patient, m))
    ranks[0].arrivals[Kind.FORWARD] = [0.0] * m
    return ranks
