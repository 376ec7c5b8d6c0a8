"""Two micro-batches share a rank: while tokens of one travel, the other computes (DualPipe's purpose).

A block of experts has two parts that compute and two that send, and one waits for the other:

    forward     attention   dispatch   experts    combine
    backward    combine'    experts'   dispatch'  attention'

Alone, a micro-batch leaves the processor idle while it sends. A forward of one and a backward of another depend on each
other in nothing, so that each sends while the other computes: with a backward that computes twice as long as a forward,
and messages as long as a part of the forward, a pair takes six steps instead of ten (DeepSeek-AI 2024, "DeepSeek-V3",
sec. 3.2.1 and figure 4).

Orders are schedules of a rank and its link (`dispatch_actions`), so `pipeline_parallel.simulate` says how long they
take. `run` does it: on real ranks, with real all-to-alls, where computing is sleeping and so is a link.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import torch
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator
from reference.collectives.default import over
from reference.pipeline_parallel.lab.measure import Timings, measured
from reference.pipeline_parallel.schedule import Action, Kind, Schedule
from reference.pipeline_parallel.simulate import Costs, Result, Simulation, makes, needs

from .dispatch_actions import on_link


def one_block(m: int) -> Schedule:
    """A rank with one block, a forward ahead: so every backward but the last has a forward before it to go beside."""
    forwards, backwards = ([Action(kind, 0, k) for k in range(m)] for kind in (Kind.FORWARD, Kind.BACKWARD))
    beside = [action for pair in zip(forwards[1:], backwards, strict=False) for action in pair]
    return Schedule.straight([[forwards[0], *beside, backwards[-1]]], [0], m)


def run(schedule: Schedule, costs: Costs, group: ProcessGroup, numel: int = 256) -> Simulation:
    """Do it on this rank, with all others of a group: what the link sends is all-to-alls, on a thread of its own.

    Args:
        schedule: `in_turn` or `paired` of `one_block`.
        costs: seconds; a message takes at least so long, as over a link of that speed.
        group: n ranks, which all run this.
        numel: elements of each message to each rank.

    Returns:
        When this rank and its link did what.
    """
    communicator, table = over(group), costs.table(schedule.stages)
    done = {made: Event() for line in schedule.lines for made in map(makes, line) if made}
    with ThreadPoolExecutor(max_workers=2) as lines:
        lanes = [lines.submit(_follow, line, schedule, done, table, communicator, numel) for line in schedule.lines]
        return measured(schedule, [lane.result().spans for lane in lanes])


def _follow(
    line: Sequence[Action],
    schedule: Schedule,
    done: dict[Result, Event],
    seconds: dict[Kind, list[float]],
    communicator: Communicator,
    numel: int,
) -> Timings:
    """Go through a line: each action waits for what it takes."""
    timings = Timings()
    for action in line:
        if needed := needs(schedule, action):
            done[needed].wait()
        with timings.of(action):
            until = time.monotonic() + seconds[action.kind][action.stage]
            if on_link(action.stage):
                _exchange(action, communicator, numel)
            time.sleep(max(0.0, until - time.monotonic()))
        done[makes(action)].set()
    return timings


def _exchange(action: Action, communicator: Communicator, numel: int) -> None:
    """An all-to-all of numbers that say from whom they are."""
    n = communicator.size()
    x = torch.full((n * numel,), float(communicator.rank()))
    communicator.all_to_all(x, out := torch.empty_like(x))
    if not torch.equal(out.view(n, numel)[:, 0], torch.arange(n).float()):
        raise RuntimeError(f"what {action} has sent did not arrive")
