"""Open challenges: each has a number, the same on every machine, beside a bound that is known.

Who takes part writes a file into the folder `capstone` of the course; what is solved there takes part by itself.

| challenge  | file            | what is in it                                  | number                      |
|------------|-----------------|------------------------------------------------|-----------------------------|
| all-reduce | `all_reduce.py` | `all_reduce(x, intra, inter, group)`           | replayed seconds            |
| schedule   | `order.py`      | `order(rank, p, m)`, actions as for `zb_h1`    | time that ranks wait, in F  |
| plan       | `plan.json`     | `{"tp": 8, "pp": 2, ...}` of a layout          | predicted seconds of a step |
| bytes      | `sums.py`       | `sums(gradients, group)` for replicas          | seconds on 100 Mb/s         |
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from reference.cluster import Cluster, ClusterError, RankError
from reference.collectives import all_reduce
from reference.errors import BadInput
from reference.models import preset
from reference.pipeline_parallel import orders
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.simulate import simulate
from reference.pipeline_parallel.validate import validate
from reference.planning.hardware import GpuCluster, gpu
from reference.planning.job import Job
from reference.planning.layouts import SIZES, Layouts
from reference.planning.plans import CHOICES
from reference.planning.predict import predict
from reference.planning.refusals import misfit
from reference.planning.search import search
from reference.trace.network import INFINIBAND_NDR, NVLINK4
from reference.zero_bubble import orders as zero_bubble

from ..grading.files import write_whole
from ..grading.sent import bytes_sent
from . import controls
from .card import ranks
from .engines import MACHINES, RANKS, Machine
from .scale import ALL_REDUCES, ORDERS, SMALL, own_order, replayed
from .texts import Own

FOLDER, RECORDS = "capstone", "records.json"
NODES, PER_NODE, SIZE = 2, 4, 64 << 20  # of the network, and bytes of the tensor
STAGES, MICRO_BATCHES, MOST = 4, 8, 4  # of the pipeline, and activations that a rank holds at most
MODEL, GPUS, WINDOWS, TOKENS = "llama3-70b", 64, 512, 8192
WIDE = 8  # bytes of a gradient: engines compute in float64
LINE = 100e6 / 8  # bytes/s of a link of 100 Mb/s
GOAL, TRIES = 3.9, 12  # nats per byte, and steps in which it must be reached
CLOSE = 1e-6  # how near a sum is to the exact one, in float32
ENTRIES = {"all-reduce": "all_reduce.py", "schedule": "order.py", "plan": "plan.json", "bytes": "sums.py"}


@dataclass(frozen=True)
class Entry:
    """What somebody has reached.

    Attributes:
        challenge, who: a puzzle, a file, or "reference".
        value: less is better; None where it does not count.
        unit: of it.
        bound: that is known.
        why: why it does not count.
    """

    challenge: str
    who: str
    value: float | None
    unit: str
    bound: float
    why: str = ""


def entered(folder: Path, name: str) -> str | None:
    """The text that takes part in a challenge; None where there is none."""
    path = folder / FOLDER / ENTRIES[name]
    return path.read_text(encoding="utf-8-sig", errors="replace") if path.is_file() else None


def of_file(folder: Path, name: str, entry: str) -> dict[str, Own]:
    """The function of a text that takes part; it may import nothing of the course but what schedules are made of."""
    source = entered(folder, name)
    if source is None:
        return {}
    given = (("reference.pipeline_parallel.schedule", ("Action", "Kind")),)
    return {ENTRIES[name]: Own(name, source, str(folder / FOLDER / ENTRIES[name]), entry, given)}


# The fastest all-reduce on two nodes.


def on_two_levels(function: Callable[..., Any], levels: bool | str, length: int) -> tuple[float, int, int]:
    """On a rank: one all-reduce; returns how wrong it is, and between which ticks it was."""
    here, groups = dist.get_rank(), []
    for members in [range(n * PER_NODE, (n + 1) * PER_NODE) for n in range(NODES)]:
        groups.append((members, dist.new_group(list(members))))
    for members in [range(k, NODES * PER_NODE, PER_NODE) for k in range(PER_NODE)]:
        groups.append((members, dist.new_group(list(members))))
    intra, inter = [group for members, group in groups if here in members]
    x = torch.arange(length, dtype=torch.float32) + here
    recorder = dist.group.WORLD.recorder
    begin = recorder.tick
    if levels == "both":
        function(x, intra, inter, dist.group.WORLD)
    elif levels:
        function(x, intra, inter)
    else:
        function(x, group=dist.group.WORLD)
    n = NODES * PER_NODE
    exact = n * torch.arange(length, dtype=torch.float32) + n * (n - 1) / 2
    return float((x - exact).abs().max()), begin, recorder.tick


def fastest_all_reduce(functions: Mapping[str, Any], folder: Path, eight: Cluster) -> list[Entry]:
    """Seconds of 64 MiB on two nodes of four H100s, NVLink within and InfiniBand between them.

    Bound: what each node must send to the other is its own sum, as large as the tensor, through four cards.
    """
    bound = INFINIBAND_NDR.alpha + SIZE / (PER_NODE * INFINIBAND_NDR.beta)
    named = {name: functions[name] for name in (f"collectives.{each}" for each in ALL_REDUCES) if name in functions}
    two = {name: functions[name] for name in ("collectives.hierarchical_all_reduce",) if name in functions}
    tried = [("reference ring", all_reduce.ring, False), ("reference, two levels", all_reduce.hierarchical, True)]
    tried += [(name, each, False) for name, each in named.items()] + [(name, each, True) for name, each in two.items()]
    tried += [(name, each, "both") for name, each in of_file(folder, "all-reduce", "all_reduce").items()]
    found = []
    for who, function, levels in tried:
        try:
            told, trace = eight.trace(on_two_levels, function, levels, SMALL)
        except (RankError, ClusterError) as error:
            found.append(Entry("all-reduce", who, None, "s", bound, " ".join(str(error).split())[:120]))
            continue
        events = tuple(
            tuple(event for event in own if begin <= event.posted < end)
            for own, (_, begin, end) in zip(trace.events, told, strict=True)
        )
        seconds = replayed(replace(trace, events=events), SMALL, SIZE, NODES, PER_NODE, (NVLINK4, INFINIBAND_NDR))
        wrong = not all(off <= CLOSE for off, *_ in told)  # also of NaN
        found.append(Entry("all-reduce", who, None if wrong else seconds, "s", bound, "wrong sums" if wrong else ""))
    return found


# A schedule under a limit of memory.


def shortest_wait(functions: Mapping[str, Any], folder: Path, cluster: Cluster) -> list[Entry]:
    """How long ranks wait in a step of 4 stages and 8 micro-batches, F = I = W = 1, with room for 4 activations.

    Bound: the first gradient is back at rank 0 after p forwards and p - 1 backwards (I), and until then it has room for
    so many forwards alone. ZB-H1 reaches that.
    """
    bound = float(STAGES + (STAGES - 1) - MOST)
    known: dict[str, Callable[[], Schedule]] = {
        "reference 1F1B": lambda: orders.one_f_one_b(STAGES, MICRO_BATCHES),
        "reference ZB-H1": lambda: zero_bubble.zb_h1(STAGES, MICRO_BATCHES),
    }
    own = {**functions, **of_file(folder, "schedule", "order")}
    for name in (*ORDERS, ENTRIES["schedule"]):
        if name in own:
            known[name] = lambda name=name: own_order(own[name], cluster, STAGES, MICRO_BATCHES)
    found = []
    for who, make in known.items():
        try:
            schedule = make()
            most = max(validate(schedule).activations)
            wait = simulate(schedule).longest - 3 * MICRO_BATCHES
        except Exception as error:
            found.append(Entry("schedule", who, None, "F", bound, str(error).splitlines()[0][:120]))
            continue
        why = f"a rank holds {most} activations, and may hold {MOST}" if most > MOST else ""
        found.append(Entry("schedule", who, None if why else wait, "F", bound, why))
    return found


# A plan.


def layout_in(text: str) -> Layouts:
    """The layout that an object of JSON names: sizes, and choices by their words.

    Raises:
        BadInput: if it names none.
    """
    try:
        values = dict(json.loads(text))
        chosen = {name: kind(values[name]) for name, kind in CHOICES if name in values}
        layout = Layouts(**{**values, **chosen})
    except (ValueError, TypeError, OverflowError) as error:
        raise BadInput(f"it is no object of JSON with a layout: {error}") from None
    if not all(isinstance(values.get(name, 1), int) and values.get(name, 1) >= 1 for name in SIZES):
        raise BadInput(f"{', '.join(SIZES)} are whole numbers, 1 or more")
    if not isinstance(layout.sequence_parallel, bool):
        raise BadInput("sequence_parallel is true or false")
    return layout


def best_plan(folder: Path) -> list[Entry]:
    """Predicted seconds of a step of Llama 3 70B on 64 H100s. Bound: the best of all layouts that the planner knows."""
    job = Job(preset(MODEL), GpuCluster(gpu("h100"), GPUS), sequence=TOKENS, batch=WINDOWS)
    best = search(job).best[0]
    bound, found = float(best.seconds), []
    tried = {"tp 8, pp 8": '{"tp": 8, "pp": 8, "sequence_parallel": true}'}
    if (text := entered(folder, "plan")) is not None:
        tried[ENTRIES["plan"]] = text
    for who, text in tried.items():
        try:
            layout = layout_in(text)
        except BadInput as error:
            found.append(Entry("plan", who, None, "s", bound, str(error)[:120]))
            continue
        one = predict(job, layout)
        why = misfit(job, layout) or ("" if one.fits else f"its fullest rank needs {float(one.bytes) / 1e9:.0f} GB")
        found.append(Entry("plan", who, None if why else float(one.seconds), "s", bound, why))
    return found


# Fewest bytes to a loss.


def to_the_goal(machine: Machine, functions: Mapping[str, Any]) -> tuple[list[float], int, list[int], bool]:
    """On a rank: losses of all steps, when they begin and end, in ticks, and whether replicas are apart at the end."""
    parts_machine = machine.with_(steps=10 * TRIES, warmup=0, learning_rate=1e-2)
    training = controls.training_of(parts_machine, functions)
    begin = dist.group.WORLD.recorder.tick
    losses, ticks = [], []
    for step in range(TRIES):
        found, _ = controls.steps(training, step, step + 1)
        losses += found
        ticks.append(dist.group.WORLD.recorder.tick)
    flat = torch.cat([part.master.detach().flatten() for part in training.form.parts])
    first = flat.clone()
    dist.broadcast(first, src=0)
    apart = not (flat - first).abs().max() <= CLOSE  # also of NaN
    return losses, begin, ticks, apart


def fewest_bytes(functions: Mapping[str, Any], folder: Path, cluster: Cluster) -> list[Entry]:
    """Seconds that four replicas on links of 100 Mb/s send until their loss is below a goal.

    Bound: of exact sums, 2(n - 1)/n of all gradients in as many steps as the reference takes. Sums that are rounded or
    left out may be below it, as long as replicas stay equal.
    """
    machine = MACHINES["mixture"]
    tried: dict[str, Mapping[str, Any]] = {"reference, exact sums": {}}
    name = "data_parallel.flat_bucket"
    if name in functions:
        tried[name] = {name: functions[name]}
    for name, function in of_file(folder, "bytes", "sums").items():
        tried[name] = {"data_parallel.flat_bucket": Plain(function)}
    of_a_step = 2 * (RANKS - 1) / RANKS * machine.config.model.parameters * WIDE / LINE
    bound = 0.0
    found = []
    for who, given in tried.items():
        try:
            told, trace = cluster.trace(to_the_goal, machine, given)
        except (RankError, ClusterError) as error:
            found.append(Entry("bytes", who, None, "s", bound, " ".join(str(error).split())[:120]))
            continue
        losses = told[0][0]
        reached = next((step for step, loss in enumerate(losses) if loss <= GOAL), None)
        if not given and reached is not None:
            bound = (reached + 1) * of_a_step
        if any(apart for *_, apart in told):
            found.append(Entry("bytes", who, None, "s", bound, "replicas have other weights in the end"))
            continue
        if reached is None:
            why = f"its loss is {losses[-1]:.2f} after {TRIES} steps, above {GOAL}"
            found.append(Entry("bytes", who, None, "s", bound, why))
            continue
        events = tuple(
            tuple(event for event in own if begin <= event.posted < ticks[reached])
            for own, (_, begin, ticks, _) in zip(trace.events, told, strict=True)
        )
        sent = max(bytes_sent(replace(trace, events=events)))
        found.append(Entry("bytes", who, sent / LINE, "s", bound))
    return found


@dataclass(frozen=True)
class Plain:
    """A function that sums by itself: it takes no `all_reduce`."""

    function: Own

    def __call__(self, gradients: Any, group: Any, all_reduce: Any = None) -> None:
        self.function(gradients, group)


def all_of(functions: Mapping[str, Any], folder: Path, say: Callable[[str], None] = lambda line: None) -> list[Entry]:
    """Run them all, with a learner's functions and the files of `folder`."""
    say("the fastest all-reduce on two nodes")
    with ranks(NODES * PER_NODE) as eight:
        found = fastest_all_reduce(functions, folder, eight)
        say("the shortest wait in a pipeline, and the best plan")
        found += shortest_wait(functions, folder, eight) + best_plan(folder)
    say("the fewest bytes to a loss")
    with ranks() as cluster:
        return found + fewest_bytes(functions, folder, cluster)


# Records.


def records(folder: Path) -> list[Entry]:
    """What was reached before.

    Raises:
        BadInput: where the file is no table of records.
    """
    path = folder / FOLDER / RECORDS
    if not path.is_file():
        return []
    try:
        return [Entry(**each) for each in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise BadInput(f"{path} is no table of records: {error}; move it away, and a new one begins") from None


def keep(folder: Path, found: list[Entry]) -> list[Entry]:
    """Write a table in which is what is better than before, and return it."""
    table = entered_in(records(folder), found)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    write_whole(folder / FOLDER / RECORDS, json.dumps([asdict(each) for each in table], indent=1) + "\n")
    return table


def entered_in(before: list[Entry], found: list[Entry]) -> list[Entry]:
    """The best of each challenge and who, best ones first."""
    best: dict[tuple[str, str], Entry] = {}
    for each in (*before, *found):
        known = best.get((each.challenge, each.who))
        if each.value is not None and (known is None or each.value < known.value):
            best[each.challenge, each.who] = each
    return sorted(best.values(), key=lambda each: (each.challenge, each.value, each.who))
