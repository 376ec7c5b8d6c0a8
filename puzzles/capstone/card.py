"""The report card: whose code runs, what holds, who is to blame where it does not, and what it costs."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from statistics import median
from typing import Any

import torch

from reference.cluster import Cluster, ClusterError, EachRank, RankError
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.oracle import Record, one_process, relative_difference
from reference.trace import Trace

from ..grading import pool
from ..grading.sent import bytes_sent
from . import controls
from .engines import MACHINES, RANKS, STEPS, Machine
from .parts import Function
from .seats import SEATS, filled

Functions = Mapping[str, Function]
EXACT = 1e-10  # in float64 the order of additions costs 1e-15, a mistake 1e-3
HALF_OF_IT = 0.5  # of the first loss, after so many steps on one batch
PATIENCE = 60.0  # seconds for one run, of which it takes a fraction of one
ROUNDS = 3  # of each, by turns, for a pace
WORDS = 200  # characters of what a rank has said
PRELOAD = (
    *pool.PRELOAD,  # what texts are given
    "puzzles.capstone.challenges",
    "puzzles.capstone.controls",
    "puzzles.capstone.seats",
    "puzzles.capstone.texts",
    "pydoc_data.topics",
    "reference.ledger",
    "torch._dynamo",
    "torch.fx.experimental.symbolic_shapes",
)


@dataclass(frozen=True)
class Result:
    """What came of a control.

    Attributes:
        name, engine: what should hold, and of which engine.
        found, limit: the number, and the most that it may be; found is None where the run has failed.
        said: why it has failed; "" where there is a number.
        blame: the puzzles whose code is to blame.
    """

    name: str
    engine: str
    found: float | None
    limit: float
    said: str = ""
    blame: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """True where the number is there, and small enough."""
        return self.found is not None and self.found <= self.limit


@dataclass(frozen=True)
class Cost:
    """A step of an engine, by the learner's code and by the reference's."""

    engine: str
    bytes: tuple[int, int]  # sent by the rank that sends most
    calls: tuple[int, int]  # of torch.distributed by a rank
    peak: tuple[int, int]  # bytes of tensors that are alive at most, on the rank that has most
    pace: float  # tokens/s, as a multiple of the reference's: medians of rounds by turns
    ran: Mapping[str, int]  # by puzzle, how often rank 0 has called the learner's function in two steps


@contextmanager
def ranks(world_size: int = RANKS) -> Iterator[Cluster]:
    """Walled-in ranks, on which a text runs as a check runs it."""
    with Cluster(world_size, watch=True, timeout=PATIENCE, untrusted=True, preload=PRELOAD) as cluster:
        yield cluster


def oracle(machine: Machine) -> Record:
    """One process. Which ranks read at the same time matters to a mixture of experts alone."""
    together = (machine.plan.dp_size(RANKS), machine.plan.micro_batches) if machine.config.model.experts else (1, 1)
    return _alone(machine.config, *together)


@cache
def _alone(config: TrainConfig, readers: int, micro_batches: int) -> Record:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors here are small: a second thread would only wait
    try:
        return one_process(replace(config, stop_after=STEPS), readers, micro_batches)
    finally:
        torch.set_num_threads(threads)


def off(found: Mapping[str, Any], machine: Machine) -> float:
    """How far a run is from one process: losses, norms and parameters, of those steps that it has taken."""
    alone, steps = oracle(machine), len(found["losses"])
    if not steps or found["parameters"].keys() != alone.parameters.keys():
        return float("inf")
    return max(
        relative_difference(found["losses"], alone.losses[-steps:]),
        relative_difference(found["norms"], alone.gradient_norms[-steps:]),
        *(relative_difference(found["parameters"][name], x) for name, x in alone.parameters.items()),
    )


def parity(cluster: Cluster, machine: Machine, functions: Functions) -> tuple[float, float]:
    """As one process."""
    return max(off(found, machine) for found in cluster.run(controls.run, machine, functions)), EXACT


def single(cluster: Cluster, machine: Machine, functions: Functions) -> tuple[float, float]:
    """One rank as four: both as one process."""
    one = replace(machine, plan=replace(machine.plan, micro_batches=1))
    return max(off(found, one) for found in cluster.run(controls.alone, one, functions)), EXACT


def layouts(cluster: Cluster, machine: Machine, functions: Functions) -> tuple[float, float]:
    """Two layouts of one seed: this one and a pipeline."""
    one, other = (cluster.run(controls.run, each, functions)[0] for each in (machine, MACHINES["pipeline"]))
    pairs = [(one["losses"], other["losses"])] + [
        (x, other["parameters"][name]) for name, x in one["parameters"].items()
    ]
    return max(relative_difference(*pair) for pair in pairs), EXACT


def constant(cluster: Cluster, machine: Machine, functions: Functions) -> tuple[float, float]:
    """A learning rate of zero."""
    found = cluster.run(controls.still, machine, functions)
    losses, moved = (torch.tensor([each[name] for each in found], dtype=torch.float64) for name in ("losses", "moved"))
    return float(torch.cat([losses.amax(1) - losses.amin(1), moved]).max()), 0.0  # a NaN, if there is one


def learnt(cluster: Cluster, machine: Machine, functions: Functions) -> tuple[float, float]:
    """One batch by heart."""
    found = cluster.run(controls.by_heart, machine, functions)
    losses = torch.tensor([each["losses"] for each in found], dtype=torch.float64)
    return float((losses[:, -1] / losses[:, 0]).max()), HALF_OF_IT


def resumed(cluster: Cluster, machine: Machine, functions: Functions) -> tuple[float, float]:
    """Saved by four, resumed by two."""
    files = cluster.run(controls.saved, machine, functions)
    return max(off(found, machine) for found in cluster.run(controls.resumed, machine, functions, files)), EXACT


def outlived(cluster: Cluster, machine: Machine, functions: Functions) -> tuple[float, float]:
    """A rank dies between two steps, and a new one takes its place."""
    left = cluster.survive(controls.until_death, machine, functions)
    memory = [each if isinstance(each, dict) else None for each in left]
    found = cluster.run(controls.after_death, machine, functions, EachRank(memory))
    return max(off(each, machine) for each in found), EXACT


CONTROLS: tuple[tuple[str, str, Callable[..., tuple[float, float]]], ...] = (
    *((f"{machine.title}: as one process", name, parity) for name, machine in MACHINES.items()),
    ("two layouts of one seed are equal", "tensor", layouts),
    ("one rank equals four", "data", single),
    ("a learning rate of 0 moves nothing", "shards", constant),
    ("one batch is learnt by heart", "tensor", learnt),
    ("saved by four and resumed by two: as if never interrupted", "shards", resumed),
    ("a rank dies, and nothing is lost", "shards", outlived),
)
"""What holds, of which engine, and how it is found."""


def seated_in(engine: str, functions: Functions) -> list[str]:
    """The puzzles whose code an engine runs."""
    taken = filled(functions)
    return list(dict.fromkeys(taken[seat.name] for seat in SEATS if seat.name in taken and engine in seat.engines))


def attempt(go: Callable[..., tuple[float, float]], *given: Any) -> tuple[float | None, float, str]:
    """The number that a control finds, its limit, and what went wrong."""
    try:
        return *go(*given), ""
    except (RankError, ClusterError) as error:
        return None, 0.0, " ".join(str(error).split())[:WORDS]
    except (ValueError, KeyError, RuntimeError) as error:
        return None, 0.0, f"{type(error).__name__}: {error}"[:WORDS]


def holds(go: Callable[..., tuple[float, float]], *given: Any) -> bool:
    """Whether a control holds."""
    found, limit, _ = attempt(go, *given)
    return found is not None and found <= limit


def failing_alone(
    names: Sequence[str], go: Callable[..., Any], cluster: Cluster, machine: Machine, functions: Functions
) -> tuple[str, ...]:
    """Those of these pieces with which a control fails though all others are the reference's."""
    return tuple(name for name in names if not holds(go, cluster, machine, {name: functions[name]}))


def to_blame(go: Callable[..., Any], cluster: Cluster, machine: Machine, functions: Functions) -> tuple[str, ...]:
    """Whose code makes a control fail: each piece alone, all others the reference's.

    Where none fails alone, the reference takes one seat after the other, and those without which it holds are named.
    """
    mine = seated_in(machine.name, functions)
    if not mine or not holds(go, cluster, machine, {}):
        return ()
    if alone := failing_alone(mine, go, cluster, machine, functions):
        return alone
    others = [{each: functions[each] for each in mine if each != name} for name in mine]
    return tuple(name for name, rest in zip(mine, others, strict=True) if holds(go, cluster, machine, rest))


def control(
    name: str, engine: str, go: Callable[..., Any], cluster: Cluster, functions: Functions, known: Sequence[str] = ()
) -> Result:
    """Run one.

    Args:
        known: to blame for what has failed before: where the control holds without them, no others are looked at.
    """
    machine = MACHINES[engine]
    found, limit, said = attempt(go, cluster, machine, functions)
    if found is not None and found <= limit:
        return Result(name, engine, found, limit)
    suspects = [each for each in seated_in(engine, functions) if each in known]
    without = {each: function for each, function in functions.items() if each not in known}
    if suspects and holds(go, cluster, machine, without):
        alone = failing_alone(suspects, go, cluster, machine, functions) if len(suspects) > 1 else ()
        return Result(name, engine, found, limit, said, alone or tuple(suspects))
    return Result(name, engine, found, limit, said, to_blame(go, cluster, machine, functions))


def cost(engine: str, cluster: Cluster, functions: Functions) -> Cost:
    """Of the second step. What the first one alone needs is not in it."""
    machine = MACHINES[engine]
    (*own, ran), (*reference, _) = (_price(cluster, machine, given) for given in (functions, {}))
    seconds = cluster.run(controls.paces, machine, functions, ROUNDS)
    mine, theirs = (max(median(each[who]) for each in seconds) for who in (0, 1))
    return Cost(engine, *zip(own, reference, strict=True), pace=theirs / mine, ran=ran)


def _price(cluster: Cluster, machine: Machine, functions: Functions) -> tuple[int, int, int, dict[str, int]]:
    """Bytes, calls and bytes of tensors of the rank that has most of them, and which functions ran."""
    found, trace = cluster.trace(controls.priced, machine, functions)
    ticks = [each["ticks"] for each in found]
    events = tuple(
        tuple(event for event in own if begin <= event.posted < end)
        for own, (begin, end) in zip(trace.events, ticks, strict=True)
    )
    sent = bytes_sent(Trace(trace.world_size, events, trace.returned))
    return max(sent), max(map(len, events)), max(each["peak"] for each in found), found[0]["calls"]


@dataclass(frozen=True)
class Card:
    """All of it."""

    seats: Mapping[str, str]  # by seat, the puzzle whose code is in it
    refused: Mapping[str, str]  # by puzzle, why its text has no seat
    results: tuple[Result, ...]
    ledger: Mapping[str, tuple[str, ...]]  # by engine, its faults
    costs: tuple[Cost, ...]
    scale: Mapping[str, float]  # of 64 modelled H100s: see `scale`
    seconds: float  # that it took

    @property
    def passed(self) -> bool:
        """Whether every control holds, and every ledger is clean."""
        return all(each.holds for each in self.results) and not any(self.ledger.values())

    @property
    def blamed(self) -> tuple[str, ...]:
        """The puzzles to blame."""
        return tuple(dict.fromkeys(name for result in self.results for name in result.blame))

    def ran(self, puzzle: str) -> int:
        """How often a learner's function was called, in two steps of each engine."""
        return sum(each.ran.get(puzzle, 0) for each in self.costs)

    def as_json(self) -> dict[str, Any]:
        """Plain data; what depends on the clock, and on when threads let go of memory, stands apart: "measured"."""
        results = [asdict(each) | {"holds": each.holds} for each in self.results]
        apart = ("pace", "peak")
        costs = [{name: value for name, value in asdict(each).items() if name not in apart} for each in self.costs]
        return {
            "seats": {seat.name: self.seats.get(seat.name) for seat in SEATS},
            "refused": dict(self.refused),
            "controls": results,
            "ledger": {engine: list(faults) for engine, faults in self.ledger.items()},
            "costs": costs,
            "scale": dict(self.scale),
            "passed": self.passed,
            "measured": {each.engine: {name: getattr(each, name) for name in apart} for each in self.costs},
        }


def card_of(
    functions: Functions,
    refused: Mapping[str, str] | None = None,
    *,
    engines: Sequence[str] = tuple(MACHINES),
    costs: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Card:
    """Run everything.

    Args:
        functions: a learner's, by puzzle.
        refused: texts without a seat, and why.
        engines: to look at.
        costs: whether to measure, and to scale.
        say: told of each control before it runs.
    """
    from .scale import REPLICAS, step_of_64

    began, results, ledger, measured = time.monotonic(), [], {}, []
    with ranks() as cluster:
        known: list[str] = []
        for name, engine, go in CONTROLS:
            if engine in engines:
                say(name)
                results.append(control(name, engine, go, cluster, functions, known))
                known += [each for each in results[-1].blame if each not in known]
        for engine in engines:
            say(f"ledger and costs: {MACHINES[engine].title}")
            if any(each.engine == engine and not each.holds for each in results):
                continue  # what is wrong has no price
            try:
                of_ranks = cluster.run(controls.faults, MACHINES[engine], functions)
                ledger[engine] = tuple(dict.fromkeys(fault for of_rank in of_ranks for fault in of_rank))
                if costs:
                    measured.append(cost(engine, cluster, functions))
            except (RankError, ClusterError) as error:
                ledger[engine] = (" ".join(str(error).split())[:WORDS],)
    scale = {}
    if costs and all(result.holds for result in results):
        # What no engine has run may be wrong, and an order of too few actions would be fast.
        proven = {name: functions[name] for engine in engines for name in seated_in(engine, functions)}
        try:
            with ranks(REPLICAS) as eight:
                scale = step_of_64(proven, eight)
        except (RankError, ClusterError, BadInput) as error:
            say(f"no step of 64 GPUs: {' '.join(str(error).split())[:WORDS]}")
    return Card(
        filled(functions), refused or {}, tuple(results), ledger, tuple(measured), scale, time.monotonic() - began
    )
