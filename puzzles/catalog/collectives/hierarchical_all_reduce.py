"""collectives.hierarchical_all_reduce: within nodes first, so that little crosses between them."""

import torch

from puzzles.grading.drives import two_levels
from puzzles.grading.puzzle import LARGE, SMALL, Budget, Claim, Given, Measure, Puzzle, Wrong, cases, divisors, drawn
from reference.collectives import all_gather, all_reduce, cost, reduce_scatter
from reference.collectives.all_reduce import hierarchical

from .common import FLOAT, every_rank_has_the_sum, fewest_steps, one_tensor


def in_nodes(case, rank):
    """A tensor, and for the drive how ranks fill nodes."""
    return {**one_tensor(case, rank), "ranks_per_node": case.ranks_per_node}


def costs(case):
    """Formulas of the reference for this many nodes."""
    return cost.hierarchical(case.n // case.ranks_per_node, case.ranks_per_node)


def little_crosses(case, inputs, outputs, trace):
    """Between nodes, a rank sends its share in an all-reduce of one part."""
    part = -(-case.length // case.ranks_per_node)
    enough = cost.of(all_reduce.ring).most(case.n // case.ranks_per_node, part, FLOAT)
    claims = []
    for rank in range(case.n):
        sent = [message for message in trace.messages if message.src == rank]
        node = rank // case.ranks_per_node
        crossed = sum(message.bytes for message in sent if message.dst // case.ranks_per_node != node)
        said = f"rank {rank} sends {crossed} B to other nodes, where {enough} must do"
        claims.append(Claim(crossed <= enough, said))
    return claims


PUZZLE = Puzzle(
    name="collectives.hierarchical_all_reduce",
    title="All-reduce over nodes of several ranks",
    statement="""
        Every rank brings a tensor `x`. Afterwards every rank's `x` holds the sum of all of them, in place. The ranks
        live in nodes: links within a node are fast, those between nodes are slow. Let as little as possible cross
        between nodes: of each node's tensors only their sum, and of the sum each rank only its part.

        Given are the three rings that you know:
        `reduce_scatter(x, out, group, op)`, `all_reduce(x, group, op)` and `all_gather(x, out, group)`.

        Args:
            x: contiguous, flat, of the same length and dtype on every rank. Its length need not divide.
            intra: the l ranks of this node; as many on every node.
            inter: the m ranks that have the same number within their nodes, one on each.
            op: how to combine.

        Budget: 2(l-1) + 2(m-1) steps. A rank sends 2(l-1)/l of the tensor within its node, and 2(m-1)/m of a part,
        1/l of the tensor, to other nodes.
        """,
    function=hierarchical,
    answer="""
        mine = x.tensor_split(dist.get_world_size(intra))[dist.get_rank(intra)]
        shard = torch.empty_like(mine)
        reduce_scatter(x, shard, intra, op)
        all_reduce(shard, inter, op)
        all_gather(shard, x, intra)
        """,
    cases=cases(worlds=(4,), length=(24,), ranks_per_node=(2,))
    + cases(worlds=(4,), length=(10,), ranks_per_node=(2,), op=("AVG",))
    + cases(worlds=(6,), length=(25,), ranks_per_node=(2,))
    + cases(worlds=(6,), length=(24,), ranks_per_node=(3,), op=("AVG", "MAX"))
    + cases(worlds=(4,), length=(24,), ranks_per_node=(2,), dtype=(torch.int32,))
    + cases(worlds=(1, 3), length=(10,), ranks_per_node=lambda n: {1, n})
    + cases(worlds=(8,), length=(40,), ranks_per_node=(4,)),
    drawn=tuple(
        drawn(
            worlds=worlds,
            length=range(2, 60),
            ranks_per_node=lambda so_far: divisors(so_far.n),
            op=("SUM", "AVG", "MAX"),
        )
        for worlds in (SMALL, LARGE)
    ),
    inputs=in_nodes,
    oracle=every_rank_has_the_sum,
    judge=little_crosses,
    drive=two_levels,
    given=(
        Given(reduce_scatter.ring, "reduce_scatter"),
        Given(all_reduce.ring, "all_reduce"),
        Given(all_gather.ring, "all_gather"),
    ),
    budgets=(
        Budget(
            Measure.STEPS,
            target=lambda case: costs(case).steps(case.n, case.length, 4),
            optimum=fewest_steps,
            why="l-1 steps to add up within the node, 2(m-1) between nodes, l-1 to share within the node",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: costs(case).most(case.n, case.length, 4),
            why="between nodes a rank needs to send its part of the sum, not the whole of it",
        ),
    ),
    hints=(
        "What does a rank have after a reduce-scatter within its node? Which rank of another node has the same?",
        "Those who have the same part are `inter`. Once they have summed it, each rank has 1/l of the result. Which "
        "collective makes the whole of it?",
        "Three calls: reduce_scatter over `intra` into a shard, all_reduce of the shard over `inter`, all_gather over "
        "`intra`. The shard has the length of this rank's chunk: `x.tensor_split(l)[rank]`.",
    ),
    wrong=(
        Wrong(
            "whole tensors between the nodes",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*its part of the sum, not the whole",
            body="""
                all_reduce(x, intra, op)
                all_reduce(x, inter, op)
                """,
        ),
        Wrong(
            "one ring through all ranks",
            diagnosis=r"right, but it takes \d+ steps where \d+ must do",
            body="all_reduce(x, dist.group.WORLD, op)",
        ),
        Wrong(
            "only within the nodes",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(("    all_reduce(shard, inter, op)\n", ""),),
        ),
        Wrong(
            "the two groups exchanged",
            diagnosis=r"expected -?[\d.]+, got|elements|size",
            edits=(
                ("reduce_scatter(x, shard, intra, op)", "reduce_scatter(x, shard, inter, op)"),
                ("all_reduce(shard, inter, op)", "all_reduce(shard, intra, op)"),
            ),
        ),
        Wrong(
            "the average is taken on one level only",
            diagnosis=r"off by a factor of 2",
            edits=(("all_reduce(shard, inter, op)", "all_reduce(shard, inter)"),),
        ),
        Wrong(
            "no rank shares at the end",
            diagnosis=r"expected -?[\d.]+, got|still holds its own",
            edits=(("all_gather(shard, x, intra)", "mine.copy_(shard)"),),
        ),
        Wrong(
            "shards of one length",
            diagnosis=r"length|elements|size|shape|remainder",
            edits=(("torch.empty_like(mine)", "x.new_empty(x.numel() // dist.get_world_size(intra))"),),
        ),
        Wrong(
            "the two groups exchanged, throughout",
            diagnosis=r"right, but rank 0 sends 96 B to other nodes, where 48 must do",
            body="""
                mine = x.tensor_split(dist.get_world_size(inter))[dist.get_rank(inter)]
                shard = torch.empty_like(mine)
                reduce_scatter(x, shard, inter, op)
                all_reduce(shard, intra, op)
                all_gather(shard, x, inter)
                """,
        ),
        Wrong(
            "always a sum, divided where it is no sum",
            diagnosis=r"op=MAX: rank 0.*expected",
            body="""
                mine = x.tensor_split(dist.get_world_size(intra))[dist.get_rank(intra)]
                shard = torch.empty_like(mine)
                reduce_scatter(x, shard, intra)
                all_reduce(shard, inter)
                if op != dist.ReduceOp.SUM:
                    shard /= dist.get_world_size(intra) * dist.get_world_size(inter)
                all_gather(shard, x, intra)
                """,
        ),
    ),
)
