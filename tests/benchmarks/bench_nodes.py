"""Replayed times beside measured ones, on nodes of this machine: collectives by hand, and a step of each strategy.

A program is traced once, and its messages are replayed on a model of the nodes: the rate that was asked for, the token
bucket at both ends of each node's cable, the headers of TCP, IP and Ethernet, one link for all ranks of a node. What
kernel and processors add is measured on the same ranks before: α between nodes, α and β within one. Nothing is fitted.

`ours` is the replayed time and `peer` the measured one: all programs take turns, a run takes as long as on its slowest
rank; medians. A replay computes nothing. So a program counts where the link dominates: where it takes less than a tenth
of its time when links are as good as free. The others are listed, with what they take then.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import rows
import torch
import torch.distributed as dist
from rows import Row

from reference.choices import ContextMethod
from reference.cluster import Cluster
from reference.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from reference.config import TrainConfig
from reference.groups import Groups
from reference.mesh import Mesh
from reference.models import GPTConfig
from reference.models.moe_config import Balance, MoEConfig
from reference.networks.lab.on_nodes import FREE, Program, between_barriers, cut, node_model, settle
from reference.plan import DataParallelism, PipelineSchedule, Plan
from reference.trace import Network
from reference.train import Training, summed

NODES, PER_NODE = (2, 4), 2
SIZES = {"50 Mb/s": 1 << 21, "100 Mb/s": 1 << 22, "200 Mb/s": 1 << 23}
"""Bytes of a collective's whole tensor, by rate: a third of a second of it, in which TCP has found its pace."""
ROUNDS = 3
DOMINATES = 0.1  # share of its time that a program takes at most where links are free
MOST = 8.0  # per cent, of the median error where the link dominates


def collectives(nodes: int, size: int) -> dict[str, Program]:
    """Each algorithm of `reference.collectives`, on one tensor of so many bytes; called by each rank."""
    group, n = dist.group.WORLD, dist.get_world_size()
    whole, other = torch.ones(size // 4), torch.ones(size // 4)
    own = torch.ones(size // 4 // n)
    first = dist.get_rank() == 0
    chunks, collected = (whole, other) if first else (None, None)
    levels = Groups(group, Mesh({"node": nodes, "inside": PER_NODE}))
    intra, inter = levels.along("inside"), levels.along("node")
    return {
        **{f"broadcast, {f.__name__}": partial(f, whole, 0, group) for f in BROADCASTS},
        **{f"reduce, {f.__name__}": partial(f, whole, 0, group) for f in (reduce.naive, reduce.tree)},
        **{f"scatter, {f.__name__}": partial(f, own, chunks, 0, group) for f in (scatter.naive, scatter.tree)},
        **{f"gather, {f.__name__}": partial(f, own, collected, 0, group) for f in (gather.naive, gather.tree)},
        **{f"all-gather, {f.__name__}": partial(f, own, whole, group) for f in ALL_GATHERS},
        **{f"reduce-scatter, {f.__name__}": partial(f, whole, own, group) for f in REDUCE_SCATTERS},
        **{f"all-reduce, {f.__name__}": partial(f, whole, group) for f in ALL_REDUCES},
        "all-reduce, hierarchical": partial(all_reduce.hierarchical, whole, intra, inter),
        **{f"all-to-all, {f.__name__}": partial(f, whole, other, group) for f in ALL_TO_ALLS},
    }


BROADCASTS = (broadcast.naive, broadcast.flat, broadcast.tree, broadcast.chain, broadcast.scatter_all_gather)
ALL_GATHERS = (all_gather.ring, all_gather.recursive_doubling, all_gather.bruck)
REDUCE_SCATTERS = (reduce_scatter.ring, reduce_scatter.recursive_halving)
ALL_REDUCES = (
    all_reduce.naive,
    all_reduce.ring,
    all_reduce.recursive_doubling,
    all_reduce.halving_doubling,
    all_reduce.double_binary_tree,
)
ALL_TO_ALLS = (all_to_all.pairwise, all_to_all.spread_out, all_to_all.bruck, all_to_all.hypercube)

# Steps of strategies that send gradients and parameters: a few tokens of a model that is not so small
WIDE = TrainConfig(GPTConfig(2, 192, 8, 8, 512), batch=8, sequence=8, steps=1000, learning_rate=1e-9)
# Of those that send activations: many tokens of a model as narrow as it can be
NARROW = TrainConfig(GPTConfig(2, 32, 8, 8, 64), batch=32, sequence=64, steps=1000, learning_rate=1e-9)
EXPERTS = replace(NARROW, model=MoEConfig(2, 32, 8, 8, 64, experts=8, top_k=2, expert_hidden=16, balance=Balance.NONE))


def steps(nodes: int) -> dict[str, tuple[TrainConfig, Plan]]:
    """A step of each strategy, over all nodes."""
    n = nodes * PER_NODE
    data = {
        kind.value: (WIDE, Plan(kind, dp_replicate=nodes if kind is DataParallelism.HSDP else None))
        for kind in DataParallelism
    }
    context = {
        f"context parallel, {method}": (NARROW, Plan(context_parallel=n, context_method=method))
        for method in ContextMethod
    }
    pipeline = {
        f"pipeline parallel, {schedule}": (
            NARROW,
            Plan(pipeline_parallel=2, micro_batches=4, schedule=schedule),
        )
        for schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)
    }
    return {
        **data,
        "tensor parallel": (NARROW, Plan(tensor_parallel=n)),
        "sequence parallel": (NARROW, Plan(tensor_parallel=n, sequence_parallel=True)),
        **context,
        **pipeline,
        "expert parallel": (EXPERTS, Plan(expert_parallel=n)),
        "expert parallel, a copy to a node": (EXPERTS, Plan(expert_parallel=n, expert_nodes=nodes)),
    }


def step_of(config: TrainConfig, plan: Plan) -> Program:
    """A step, made ready; called by each rank. All its steps are alike: the learning rate changes nothing."""
    training = Training(config, dist.group.WORLD, torch.device("cpu"), plan)

    def step() -> None:
        part = training.backward(0)
        training.update(0)
        summed(part, training.loss_group)

    return step


def programs(nodes: int, size: int) -> dict[str, Program]:
    """All that is measured; called by each rank."""
    trainings = {name: step_of(*what) for name, what in steps(nodes).items()}
    return collectives(nodes, size) | trainings


def one_by_one(nodes: int, size: int) -> list[str]:
    """On a rank, to be traced: each program between barriers. Returns their names."""
    made = programs(nodes, size)
    between_barriers([lambda program=program: program for program in made.values()])
    return list(made)


def in_turns(nodes: int, size: int) -> dict[str, list[float]]:
    """On a rank: the seconds of each run of each program."""
    return rows.interleaved(programs(nodes, size), ROUNDS, settle)


def measure(report: Callable[[Row], None]) -> None:
    """All programs on all numbers of nodes at all rates."""
    errors: dict[tuple[int, str, str], float] = {}
    for nodes in NODES:
        with Cluster(nodes * PER_NODE, nodes=nodes, link=FREE, timeout=3600, preload=("torch._dynamo",)) as cluster:
            model = node_model(cluster)
            report(rows.plain(f"{nodes} nodes, α between them", model.alpha, "s"))
            report(rows.plain(f"{nodes} nodes, α within one", model.intra.alpha, "s"))
            report(rows.plain(f"{nodes} nodes, β within one", model.intra.beta / 1e6, "MB/s"))
            for rate, size in SIZES.items():
                network = model.network(rate)
                for name, (replayed, seconds, free) in at_rate(cluster, network, rate, size).items():
                    label = f"{nodes} nodes, {rate}, {name}"
                    if free <= DOMINATES * seconds:
                        errors[nodes, rate, name] = 100 * abs(replayed / seconds - 1)
                    else:
                        label += f" (does not count: {rows.quantity(free, 's')} with a free link)"
                    report(rows.beside(label, replayed, seconds, "s"))
    summarise(errors, report)


def at_rate(cluster: Cluster, network: Network, rate: str, size: int) -> dict[str, tuple[float, float, float]]:
    """The seconds of each program: replayed, measured, and measured where links are free."""
    nodes = cluster.nodes.count
    slow(cluster, FREE)
    names, trace = cluster.trace(one_by_one, nodes, size)
    traces = dict(zip(names[0], cut(trace, len(names[0])), strict=True))
    free = rows.medians(rows.of_ranks(cluster.run(in_turns, nodes, size)))
    slow(cluster, rate)
    found = rows.medians(rows.of_ranks(cluster.run(in_turns, nodes, size)))
    return {name: (traces[name].replay(network).duration, found[name], free[name]) for name in traces}


def slow(cluster: Cluster, rate: str) -> None:
    """Give all links this rate."""
    for node in range(cluster.nodes.count):
        cluster.slow(node, rate)


def summarise(errors: Mapping[tuple[int, str, str], float], report: Callable[[Row], None]) -> None:
    """Median errors, in per cent, by nodes and rate, by program, and of all."""
    for nodes in NODES:
        for rate in SIZES:
            some = [error for (count, at, _), error in errors.items() if (count, at) == (nodes, rate)]
            if some:
                report(rows.plain(f"median error, {nodes} nodes, {rate}, {len(some)} programs", median(some), "%"))
    for name in dict.fromkeys(name for _, _, name in errors):
        some = [error for (_, _, other), error in errors.items() if other == name]
        report(rows.plain(f"median error, {name}, {len(some)} times", median(some), "%"))
    report(
        rows.below(f"median error where the link dominates, {len(errors)} times", median([*errors.values()]), MOST, "%")
    )


def median(values: list[float]) -> float:
    """Of some errors."""
    return statistics.median(values)


if __name__ == "__main__":
    rows.main("nodes", measure)
