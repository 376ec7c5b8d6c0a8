"""Short runs side by side: losses of several ways to meet, bytes from the trace, and seconds on a link by replay.

Each rank is an island. Losses come from training here; seconds do not, since a busy machine's clock says little. A step
computes for as long as is assumed, messages take what a replay of their trace on a link says, and one that is under way
while islands train is waited for only where it is late. `reference.decentralized.lab.quality` has longer runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

import torch
import torch.distributed as dist

from reference.choices import Outer
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.decentralized.rounds import ends_of_rounds
from reference.decentralized.streaming import is_due
from reference.islands import ONE_ISLAND
from reference.trace import Link, Network
from reference.trace.activity import Activity, Doing
from reference.train import Training, train, validation_loss

PRELOAD = ("torch._dynamo", "reference.train", "reference.decentralized.lab.short_runs")
SMOOTH = 10  # steps of a point of a curve


@dataclass(frozen=True)
class TimedMessage:
    """One message of a run, a sum of gradients or of what a round has changed."""

    bytes: float  # that a rank sends
    seconds: float  # on the link


@dataclass(frozen=True)
class Timetable:
    """A run on the clock of a link, from 0.0 on, in seconds."""

    taken: Sequence[float]  # when each step has been taken, its messages with it; the first is 0.0
    computing: Sequence[tuple[float, float]]  # of each step, from when till when
    under_way: Sequence[tuple[float, float]]  # of each message


@dataclass(frozen=True)
class ShortRun:
    """A run, and what it would take on a link.

    Attributes:
        config: of the run.
        losses: of each step, the mean over islands, in nats per byte.
        held_out: the loss of held-out text at the end.
        shared: a message of a step in which gradients are shared.
        meets: a message of islands that meet.
    """

    config: TrainConfig
    losses: Sequence[float]
    held_out: float
    shared: TimedMessage
    meets: TimedMessage

    def message(self, step: int) -> TimedMessage | None:
        """What is said after so many steps."""
        if shares_gradients(self.config, step):
            return self.shared
        count = messages_after(self.config, step)
        return TimedMessage(count * self.meets.bytes, count * self.meets.seconds) if count else None

    def timetable(self, compute: float) -> Timetable:
        """Steps and messages in time.

        Args:
            compute: seconds that a step computes.
        """
        clock, free, taken, computing, under_way, due = 0.0, 0.0, [0.0], [], [], {}
        for step in range(1, len(self.losses) + 1):
            computing.append((clock, clock := clock + compute))
            if said := self.message(step):
                begin = max(clock, free)  # the link is one
                free = begin + said.seconds
                under_way.append((begin, free))
                due[step + steps_to_arrive(self.config, step)] = free
            clock = max(clock, due.get(step, 0.0))
            taken.append(clock)
        return Timetable(taken, computing, under_way)

    def sent(self) -> list[float]:
        """Bytes that a rank has sent after each step, from 0.0 on."""
        total = [0.0]
        for step in range(1, len(self.losses) + 1):
            said = self.message(step)
            total.append(total[-1] + (said.bytes if said else 0.0))
        return total

    def curve(self, over: Sequence[float]) -> list[tuple[float, float]]:
        """The mean loss of some steps, over what is given for each step, such as `sent()`."""
        ends = range(0, len(self.losses) + 1, SMOOTH)
        return [(over[end], fmean(self.losses[begin:end])) for begin, end in pairwise(ends)]

    def lanes(self, compute: float, until: float) -> list[Activity]:
        """What an island does in the first seconds, to draw it."""
        times = self.timetable(compute)
        found = [Activity(Doing.FORWARD, "", begin, end) for begin, end in times.computing if end <= until]
        size = int((self.shared if self.config.outer is Outer.NONE else self.meets).bytes)
        return found + [
            Activity(Doing.COMMUNICATION, "link", begin, min(end, until), size)
            for begin, end in times.under_way
            if begin < until
        ]


def steps_of_round(config: TrainConfig) -> int:
    """Of islands; 1 where ranks share gradients."""
    return 1 if config.outer is Outer.NONE else config.meets.inner_steps


def messages_of_round(config: TrainConfig) -> int:
    """Each at a time of its own."""
    return config.meets.fragments if config.outer is Outer.STREAMING else 1


def shares_gradients(config: TrainConfig, step: int) -> bool:
    """Whether ranks share gradients in the step after which so many have been taken."""
    return config.outer is Outer.NONE or step <= config.meets.synchronous_steps


def messages_after(config: TrainConfig, step: int) -> int:
    """How many messages islands begin after so many steps of a run; after the last one, all that there are."""
    if config.outer is not Outer.STREAMING:
        return int(step in ends_of_rounds(config))
    meets = config.meets
    fragments = range(meets.fragments)
    return sum(step == config.steps or is_due(meets, each, step - meets.synchronous_steps) for each in fragments)


def steps_to_arrive(config: TrainConfig, step: int) -> int:
    """Steps that islands take while what they say after so many steps is under way; after the last one none."""
    if shares_gradients(config, step) or step == config.steps:
        return 0
    match config.outer:
        case Outer.STREAMING:
            return config.meets.overlap_steps
        case Outer.EAGER | Outer.GOSSIP:
            return config.meets.inner_steps
    return 0


def run(cluster: Cluster, config: TrainConfig, link: Link) -> ShortRun:
    """Train, and trace a round.

    Args:
        cluster: whose ranks are islands, or share gradients.
        config: of the run; islands have one rank each.
        link: between any two ranks.
    """
    losses, held_out = zip(*cluster.run(trained, config), strict=True)
    shares = replace(config, **ONE_ISLAND)
    shared, meets = (traced(cluster, each, link) for each in (shares, config))
    return ShortRun(config, [fmean(each) for each in zip(*losses, strict=True)], held_out[0], shared, meets)


def traced(cluster: Cluster, config: TrainConfig, link: Link) -> TimedMessage:
    """A message of a round, the mean of all."""
    alone = config if config.outer is Outer.NONE else replace(config, synchronous_steps=0)
    if config.outer is Outer.STREAMING:
        alone = replace(alone, overlap_steps=0)  # each fragment once, and none of a second round
    _, trace = cluster.trace(a_round, alone)
    messages = messages_of_round(config)
    return TimedMessage(max(trace.bytes_sent) / messages, trace.replay(Network.of(link)).duration / messages)


def trained(config: TrainConfig) -> tuple[list[float], float]:
    """On each rank: train. Returns the loss of each step, and of held-out text."""
    losses: list[float] = []
    training = train(config, dist.group.WORLD, torch.device("cpu"), report=lambda step: losses.append(step.loss))
    return losses, validation_loss(training)


def a_round(config: TrainConfig) -> None:
    """On each rank, to be traced: a round."""
    steps = steps_of_round(config)
    training = Training(replace(config, steps=2 * steps), dist.group.WORLD, torch.device("cpu"))
    for step in range(steps):
        training.backward(step)
        training.update(step)
