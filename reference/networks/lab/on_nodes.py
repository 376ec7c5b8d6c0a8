"""Programs on nodes of this machine: the seconds that they take, beside those that a replay says.

    def ring():
        return lambda: all_reduce.ring(torch.ones(250_000), dist.group.WORLD)

    print(on_nodes({"ring": ring}, ranks=8, nodes=2, link="200 Mb/s")["ring"])     # measured 85 ms, replayed 83 ms

The model of the network is made of what is known (the rate that was asked for, the token bucket of each cable, headers,
the sender's buffer, one link for all ranks of a node, shared evenly) and of what kernel and processors of this machine
add, which is measured: α between nodes, α and β within one. Nothing is fitted. A replay computes nothing, so it says
too little where ranks compute much.

What the model leaves out: acknowledgements (66 bytes for every second packet at most, 2.3 % of the other direction),
pauses of congestion control, and a kernel that comes late to a token bucket because other programs use the processors
(a bucket makes up for 2 ms). All three show where both directions of a link are busy, as in a ring.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from reference.cluster import Cluster, Nodes
from reference.cluster.nodes import link_model
from reference.collectives.exchange import exchange
from reference.trace import Link, Network, Op, Trace

from ..answers.estimate import alpha_beta

FREE = "10 Gb/s"  # a link that takes next to no time
FULL = 5e-3  # seconds in which every token bucket is full again
LARGE = 1 << 21  # bytes of a message that says β
ROUNDS, CALLS = 11, 20

Program = Callable[[], object]


@dataclass(frozen=True)
class Compared:
    """Seconds of a program: as measured, None where this machine can't have nodes, and as replayed."""

    measured: float | None
    replayed: float

    def __str__(self) -> str:
        measured = "" if self.measured is None else f"measured {1e3 * self.measured:.0f} ms, "
        return f"{measured}replayed {1e3 * self.replayed:.0f} ms"


@dataclass(frozen=True)
class NodeModel:
    """Nodes of this machine as a replay takes them: what is the same at all rates of their links."""

    intra: Link
    alpha: float  # of a message between nodes, in seconds
    nodes: int
    ranks_per_node: int

    def network(self, link: str) -> Network:
        """With links of this rate."""
        inter = link_model(link, self.alpha)
        return Network(self.intra, inter, self.ranks_per_node, self.nodes * self.ranks_per_node, shared=True)


def on_nodes(
    programs: Mapping[str, Callable[[], Program]], ranks: int, nodes: int, link: str, rounds: int = 3
) -> dict[str, Compared]:
    """Measure and replay programs on nodes; where there can be none, say why in a line, and replay.

    Args:
        programs: by name. Each is called once on each rank, to make what it needs, and returns what is timed.
        ranks: of all nodes together.
        nodes: how many.
        link: rate of each, such as "200 Mb/s".
        rounds: that count, after one that does not; medians.
    """
    if not (found := Nodes.available()):
        print(f"No nodes here, so these are replays alone: {found.why_not}")
        with Cluster(ranks) as cluster:
            model = NodeModel(Link("within a node", 0.0, float("inf")), 0.0, nodes, ranks // nodes)
            return {name: Compared(None, replayed(cluster, make, model, link)) for name, make in programs.items()}
    with Cluster(ranks, nodes=nodes, link=FREE) as cluster:
        model = node_model(cluster)
        for node in range(nodes):
            cluster.slow(node, link)
        return {
            name: Compared(measured(cluster, make, rounds), replayed(cluster, make, model, link))
            for name, make in programs.items()
        }


def measured(cluster: Cluster, make: Callable[[], Program], rounds: int) -> float:
    """The median seconds of a program, each time on its slowest rank."""
    return statistics.median(map(max, zip(*cluster.run(seconds, make, rounds), strict=True)))


def seconds(make: Callable[[], Program], rounds: int) -> list[float]:
    """On a rank: the seconds of each round."""
    program, times = make(), []
    for _ in range(rounds + 1):
        settle()
        begin = time.perf_counter()
        program()
        times.append(time.perf_counter() - begin)
    return times[1:]


def settle() -> None:
    """On a rank: wait until buckets are full and all ranks are there."""
    time.sleep(FULL)
    dist.barrier()


def replayed(cluster: Cluster, make: Callable[[], Program], model: NodeModel, link: str) -> float:
    """The seconds of a program on a model of the nodes."""
    _, trace = cluster.trace(between_barriers, [make])
    (program,) = cut(trace, 1)
    return program.replay(model.network(link)).duration


def between_barriers(makes: list[Callable[[], Program]]) -> None:
    """On a rank, to be traced: a second run of each program, between two barriers."""
    for program in [make() for make in makes]:
        program()
        dist.barrier()
        program()
        dist.barrier()


def cut(trace: Trace, count: int) -> list[Trace]:
    """The traces of the second runs of so many programs."""
    parts = []
    for events in trace.events:
        at = [i for i, event in enumerate(events) if event.op is Op.BARRIER][-2 * count :]
        parts.append([events[begin + 1 : end] for begin, end in zip(at[::2], at[1::2], strict=True)])
    return [Trace(trace.world_size, of_ranks) for of_ranks in zip(*parts, strict=True)]


def node_model(cluster: Cluster) -> NodeModel:
    """What messages cost where links are next to free, each measured while all ranks send one: as in a collective."""
    nodes = cluster.nodes.count
    each = cluster.world_size // nodes
    small, large = torch.ones(1), torch.ones(LARGE // 4)
    between = step_of_a_ring(cluster, 1, small)
    if each == 1:
        return NodeModel(Link("within a node", 0.0, float("inf")), between, nodes, each)
    within = [step_of_a_ring(cluster, nodes, x) for x in (small, large)]
    alpha, beta = alpha_beta([small.nbytes, large.nbytes], within)
    return NodeModel(Link("within a node", max(alpha, 0.0), beta), between, nodes, each)


def step_of_a_ring(cluster: Cluster, rings: int, x: torch.Tensor) -> float:
    """Median seconds of a step in which each rank sends to the next of its ring and receives from the one before."""
    return measured(cluster, partial(ring, rings, x), ROUNDS) / CALLS


def ring(rings: int, x: torch.Tensor) -> Program:
    """On a rank: so many steps of its ring, of as many rings as there are, node after node."""
    n, received = dist.get_world_size() // rings, torch.empty_like(x)
    groups = [dist.new_group(range(first, first + n)) for first in range(0, rings * n, n)]
    group = groups[dist.get_rank() // n]
    place = group.rank()

    def steps() -> None:
        for _ in range(CALLS):
            exchange(x, (place + 1) % n, received, (place - 1) % n, group)

    return steps
