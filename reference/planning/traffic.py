"""What a rank waits for at most: bytes along each axis in a step, and how long its links take for them.

A ring carries 2 (n-1)/n of a tensor's bytes for an all-reduce, and half of that for a gather or a scatter. Between
nodes it goes through as many cards as it has ranks on a node, each card with its own share, up to the rate inside.

Inside a node its rate is that of the links there, if its groups do not disturb each other. They send at once, and a
GPU's constant `shared` says how much slower that makes them. Tables of all-reduces do not show it, for they time one
group alone; steps do. With the whole rate for each group, steps of 2 and 4 tensor-parallel ranks on A100s are predicted
too short and those of 8 too long, for 3.6 and for 39.1 billion parameters. Why, no volume says: a switch has room for
all. A pair of stages has its links alone, since it sends but once for each micro-batch.

| axis    | what travels                            | how often                                              |
|---------|-----------------------------------------|--------------------------------------------------------|
| tp      | [T, D], summed                          | 2 for each layer forward, 2 backward, 2 if made again  |
| cp      | keys and values, and their gradients    | once around forward, twice backward, for each layer    |
| ep      | T k rows of [D], there and back         | 2 for each layer forward, 2 backward, 2 if made again  |
| pp      | [T, D], a t-th of it                    | 2 for each stage and micro-batch                       |
| dp      | gradients; with sharding, parameters    | twice a step; ZeRO-2 and FSDP each micro-batch         |
"""

from dataclasses import dataclass

import numpy as np

from reference.choices import Recompute

from .hardware import GpuCluster
from .job import Job
from .layouts import Column, Layouts, Sharding
from .work import HALF

SINGLE = 4  # bytes of a number in float32
SHARING = 8  # GPUs whose groups may share links, on wider switches too


@dataclass(frozen=True)
class Group:
    """Ranks that talk to each other.

    Attributes:
        ranks: how many there are.
        on_node: how many of them a node has that has any; where such groups end inside nodes, the fewest.
        beside: groups that send over the links of the same GPUs, this one among them; 1 where it leaves its node, for
            there each has cards of its own.
    """

    ranks: Column
    on_node: Column
    beside: Column = 1.0

    @property
    def steps(self) -> Column:
        """Latencies of a collective: one for each doubling."""
        return np.log2(np.maximum(self.ranks, 1))

    def rate(self, cluster: GpuCluster) -> Column:
        """Bytes per second of a ring through all of them, as the data sheets have it."""
        intra, across = cluster.gpu.intra, self.on_node * cluster.gpu.inter
        return np.where(self.ranks > self.on_node, np.minimum(across, intra), intra)


def group(cluster: GpuCluster, ranks: Column, stride: Column) -> Group:
    """Of ranks that lie `stride` apart."""
    on_node = np.clip(_together(cluster, ranks * stride) // stride, 1, ranks)
    beside = np.maximum(min(cluster.per_node, cluster.gpus, SHARING) / on_node, 1)
    return Group(ranks, on_node, np.where(ranks > on_node, 1, beside))


def leaves_node(cluster: GpuCluster, block: Column) -> Column:
    """Whether any of the blocks of so many neighbours, one after another, lies on more than one node."""
    return _together(cluster, block) < block


def _together(cluster: GpuCluster, block: Column) -> Column:
    """How many of such a block are on one node: 6 on nodes of 8 are 6, then 2 and 4, then 4 and 2, so at least 2."""
    return np.gcd(np.asarray(block, dtype=int), min(cluster.per_node, cluster.gpus))


def groups(job: Job, layouts: Layouts) -> dict[str, Group]:
    """By axis: "tp", "cp", "dp" (together with cp: those that sum gradients), "ep", "edp", and "pp" as a pair."""
    t, c, d = layouts.tp, layouts.cp, layouts.dp
    here = t * c * d
    holders = here / (layouts.ep * layouts.etp)
    return {
        "tp": group(job.cluster, t, 1.0),
        "cp": group(job.cluster, c, t),
        "dp": group(job.cluster, c * d, t),
        "ep": group(job.cluster, layouts.ep, layouts.etp),
        "edp": group(job.cluster, holders, layouts.ep * layouts.etp),
        "pp": Group(np.minimum(layouts.pp, 2), np.where(here < job.cluster.per_node, 2, 1)),
    }


@dataclass(frozen=True)
class Volume:
    """What a rank sends along one axis, for one micro-batch or one step.

    Attributes:
        bytes: that go through its link.
        calls: of collectives, or messages.
    """

    bytes: Column
    calls: Column


def ring(numel: Column, group: Group, times: Column, size: int = HALF) -> Volume:
    """So many gathers or scatters of a tensor; an all-reduce is two of them."""
    n = np.maximum(group.ranks, 1)
    return Volume(times * size * numel * (n - 1) / n, times * (n > 1))


def along_tensor(job: Job, layouts: Layouts, at: Group) -> Volume:
    """For one layer and one micro-batch."""
    passes = 6 if layouts.recompute is Recompute.FULL else 4
    return ring(layouts.tokens(job) * job.model.width, at, 2 * passes)


def along_context(job: Job, layouts: Layouts, at: Group) -> Volume:
    """For one layer and one micro-batch: blocks of keys and values go around, and come back with their gradients."""
    keys = 2 * layouts.tokens(job) * np.maximum(job.model.kv_heads / layouts.tp, 1) * job.model.head_dim
    around = (3 if layouts.recompute is Recompute.NONE else 4) * HALF + SINGLE * 1
    return Volume(around * keys * (at.ranks - 1), 3 * (at.ranks - 1))


def along_experts(job: Job, layouts: Layouts, at: Group) -> Volume:
    """For one layer with experts and one micro-batch."""
    passes = 6 if layouts.recompute is Recompute.FULL else 4
    rows = layouts.tokens(job) / layouts.tp * job.model.width * (job.model.top_k if job.model.experts else 0)
    return ring(rows, at, passes)


def along_pipe(job: Job, layouts: Layouts) -> Volume:
    """For one micro-batch: to the next stage, and gradients back, for each stage of a rank."""
    stream = layouts.tokens(job) * job.model.width / layouts.tp
    borders = 2 * layouts.chunks * (layouts.pp > 1)
    return Volume(borders * HALF * stream, borders)


PASSES = {  # around the ring of data parallelism: of each micro-batch, and once a step
    Sharding.NONE: (0, 2),  # gradients are summed
    Sharding.ZERO1: (0, 2),  # gradients to their owners, parameters back
    Sharding.ZERO2: (1, 1),  # gradients leave after each micro-batch
    Sharding.FSDP: (3, 0),  # parameters come for forward and for backward, gradients leave
}


def along_data(parameters: Column, layouts: Layouts, at: Group) -> tuple[Volume, Volume]:
    """For one micro-batch, and once for a step."""
    often, once = PASSES[layouts.sharding]
    return ring(parameters, at, often), ring(parameters, at, once)
