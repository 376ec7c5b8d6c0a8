"""On which node each rank is, and whether that suits a plan: ranks that talk most should share a node.

The mesh of a plan takes it for granted that ranks are numbered node after node, as many on each: then its inner axes
stay inside nodes. What starts the ranks decides whether that is so, and a plan may be too large for it. Either costs
speed and nothing else, so it is said in one line and the run continues. Shoeybi et al. 2019 ("Megatron-LM") keep tensor
parallelism inside a node for this reason.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from reference.choices import ContextMethod
from reference.mesh import TENSOR
from reference.plan import DataParallelism, Plan

if TYPE_CHECKING:
    from reference.models import ModelConfig


class Whereabouts(NamedTuple):
    """Where one rank is: what its machine is called, and which of the job's nodes torchrun takes it for."""

    host: str
    number: str  # "" where torchrun did not start it

    @classmethod
    def here(cls) -> "Whereabouts":
        """Of this process. Several nodes may be on one machine: see `reference.cluster.nodes`."""
        return cls(socket.gethostname(), os.environ.get("GROUP_RANK", ""))


def names_of(places: Sequence[Whereabouts]) -> list[str]:
    """What the node of each rank is called: by its host, or by its number where several nodes have one host."""
    hosts = {place.host for place in places}
    if len(hosts) == len(set(places)):
        return [place.host for place in places]
    return [f"node {place.number} of {place.host}" if len(hosts) > 1 else f"node {place.number}" for place in places]


def order_warnings(nodes: Sequence[str], plan: Plan, model: "ModelConfig") -> list[str]:
    """What of a plan will be slow where the ranks are, a sentence each.

    Args:
        nodes: the name of each rank's node, by rank.
        plan: which fits as many ranks, and the model.
        model: that is laid out.
    """
    if len(set(nodes)) == 1:
        return []
    return [*_uneven(nodes), *_interleaved(nodes), *_crossing(nodes, plan, model)]


def _ranks_of(nodes: Sequence[str]) -> dict[str, list[int]]:
    """The ranks of each node."""
    return {node: [rank for rank, other in enumerate(nodes) if other == node] for node in dict.fromkeys(nodes)}


def _uneven(nodes: Sequence[str]) -> Iterator[str]:
    """Nodes that have more ranks than others."""
    counts = {node: len(ranks) for node, ranks in _ranks_of(nodes).items()}
    most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    if counts[most] > counts[least]:
        numbers = f"{most} has {counts[most]} and {least} has {counts[least]}"
        yield f"nodes have different numbers of ranks: {numbers}; groups of neighbours then cross nodes"


def _interleaved(nodes: Sequence[str]) -> Iterator[str]:
    """Nodes whose ranks do not follow each other."""
    for node, ranks in _ranks_of(nodes).items():
        if ranks[-1] - ranks[0] >= len(ranks):
            numbers = ", ".join(map(str, ranks[:4])) + (", ..." if len(ranks) > 4 else "")
            yield (
                f"ranks are not numbered node after node: {node} has {numbers}; start them in blocks (one torchrun on "
                "each node, or srun --distribution=block)"
            )
            return


def _crossing(nodes: Sequence[str], plan: Plan, model: "ModelConfig") -> Iterator[str]:
    """Axes whose groups should each be on one node, and are not."""
    most = max(map(len, _ranks_of(nodes).values()))
    for axis, groups, cure in _inner_axes(len(nodes), plan, model):
        crossing = [group for group in groups if len({nodes[rank] for rank in group}) > 1]
        if crossing:
            ranks = ", ".join(map(str, crossing[0]))
            where = " and ".join(dict.fromkeys(nodes[rank] for rank in crossing[0]))
            yield f"{axis} crosses nodes: ranks {ranks} are on {where}; {cure.format(most=most)}"


def _inner_axes(ranks: int, plan: Plan, model: "ModelConfig") -> Iterator[tuple[str, list[tuple[int, ...]], str]]:
    """What should stay inside a node: its name, its groups of ranks, and what to do where it does not."""
    mesh = plan.mesh(ranks, model)
    if plan.tensor_parallel > 1:
        cure = "it sends most of all: let --tensor-parallel be no more than the {most} ranks of a node, and divide them"
        yield "tensor parallelism", mesh.groups(*TENSOR), cure
    if plan.context_method in (ContextMethod.ULYSSES, ContextMethod.USP) and plan.neighbours > 1:
        u = plan.neighbours
        view = mesh.view({"ring": plan.context_parallel // u, "heads": u}, of=("cp",))
        yield "the all-to-all of heads", view.groups("heads"), "take --context-method usp with fewer neighbours"
    if plan.data_parallel is DataParallelism.HSDP and mesh.size("dp_shard") > 1:
        cure = "let --dp-replicate be the number of nodes, or a multiple of it"
        yield "sharding within replicas (hsdp)", mesh.groups("dp_shard"), cure
    shards = ("dp_shard", "cp")
    for size, what in (
        (plan.secondary_shards, "the second copy (hpZ)"),
        (plan.ranks_per_node, "the sum in a node (qgZ)"),
    ):
        if size > 1:
            view = mesh.view({"node": mesh.size(*shards) // size, "inside": size}, of=shards)
            cure = "let --secondary-shards and --ranks-per-node be at most the {most} ranks of a node, and divide them"
            yield what, view.groups("inside"), cure
    if plan.expert_parallel > 1:
        inside = plan.expert_parallel // plan.expert_nodes
        whole = plan.expert_mesh(ranks, model)
        view = whole.view({"node": plan.expert_nodes, "inside": inside}, of=("ep",))
        cure = "let --expert-nodes say on how many nodes the ranks that share experts are: one copy of a token to each"
        yield "expert parallelism", view.groups("inside"), cure
