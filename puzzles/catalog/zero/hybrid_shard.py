"""zero.hybrid_shard: shards within a node, replicas between nodes."""

import torch.distributed as dist

from puzzles.grading.drives.zero import with_backward_on_two_levels
from puzzles.grading.puzzle import LARGE, SMALL, Budget, Measure, Puzzle, Wrong, case, cases, divisors, drawn
from reference.zero import cost
from reference.zero.answers.on_shards import hybrid

from .common import ALL_GATHER, DOUBLE, REDUCE_SCATTER, gradient, sample

RATE = 0.125


def parameters_of(case):
    """All of them, flat."""
    return case.normal(0, case.ranks_per_node * case.slice, name="w")


def a_shard_and_data(case, rank):
    """The shard of this rank's place in its node, and for the drive its data and how ranks fill nodes."""
    shard = parameters_of(case).split(case.slice)[rank % case.ranks_per_node].clone()
    data = sample(case, rank, case.ranks_per_node * case.slice)
    return {"shard": shard, "rate": RATE, **data, "ranks_per_node": case.ranks_per_node}


def one_process_with_all_data(case, inputs):
    """All ranks' gradients in one step."""
    w = parameters_of(case)
    shards = (w - RATE * gradient(inputs, w)).split(case.slice)
    return [{"shard": shards[rank % case.ranks_per_node]} for rank in range(case.n)]


def sent(case):
    """Bytes that the busiest rank sends: within its node a gather and a scatter, between nodes an all-reduce."""
    nodes = case.n // case.ranks_per_node
    within = 2 * cost.one_pass(case.ranks_per_node * case.slice, case.ranks_per_node)
    return DOUBLE * (within + max(cost.all_reduce(case.slice, nodes, node) for node in range(nodes)))


def memory(case, shards):
    """Bytes of all parameters, of their gradient, of so many shards, and of a number in backward."""
    return DOUBLE * ((2 * case.ranks_per_node + shards) * case.slice + 1)


PUZZLE = Puzzle(
    name="zero.hybrid_shard",
    title="Shards in a node, replicas between nodes (HSDP)",
    statement="""
        Links within a node are fast, those between nodes are slow, and one node has room for the whole model. Then let
        the ranks of a node share it, and every node hold a replica: what is gathered in each layer stays within the
        node, and only gradients cross, a shard of each rank.

        Take one step of gradient descent: gather the parameters, compute their gradient, sum it over all ranks, and
        subtract `rate` times the sum from this rank's shard.

        Args:
            shard: this rank's part of the flat parameters. Update it in place.
            backward: `backward(parameters)` is the gradient of this rank's part of the loss, flat; each rank has
                divided its loss by the number of tokens of all ranks.
            rate: of learning.
            intra: the s ranks of this node, which hold one part each, in group order. As many on every node.
            inter: the r ranks that hold the same part as this one, one on each node.

        Budget: 2(s-1)/s of the parameters sent within the node, 2(r-1)/r of a shard to other nodes. Memory for all
        parameters, a whole gradient, and two shards.
        """,
    function=hybrid,
    cases=cases(worlds=(4,), slice=(6, 5), ranks_per_node=(2,))
    + cases(worlds=(6,), slice=(4,), ranks_per_node=(3, 2))
    + cases(worlds=(3,), slice=(4,), ranks_per_node=(1, 3))
    + cases(worlds=(1,), slice=(4,), ranks_per_node=(1,))
    + cases(worlds=(8,), slice=(5,), ranks_per_node=(4,)),
    drawn=(
        drawn(worlds=SMALL, slice=range(3, 8), ranks_per_node=lambda so_far: divisors(so_far.n)),
        drawn(worlds=LARGE, slice=range(3, 8), ranks_per_node=lambda so_far: divisors(so_far.n)),
    ),
    large=case(4, slice=800_000, ranks_per_node=4),
    inputs=a_shard_and_data,
    oracle=one_process_with_all_data,
    drive=with_backward_on_two_levels,
    tolerance=1e-10,
    calls=(*ALL_GATHER, *REDUCE_SCATTER, dist.all_reduce),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=sent,
            why="gather and scatter within the node; between nodes sum what is left, this rank's shard",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: memory(case, shards=2),
            optimum=lambda case: memory(case, shards=1),
            why="a node holds the parameters once: no rank needs more than they, their gradient, and shards",
        ),
    ),
    hints=(
        "Which ranks hold what a rank lacks to have all parameters? Which ranks hold the same as it does?",
        "A reduce-scatter over `intra` gives each rank its part of the node's sum. Whose parts must be added to it?",
        "Four calls and an update: all-gather the shard over `intra`; backward; reduce-scatter over `intra`; "
        "all-reduce what came over `inter`; shard -= rate * gradient.",
    ),
    wrong=(
        Wrong(
            "the whole gradient crosses between nodes",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*this rank's shard",
            edits=(
                (
                    "    reduce_scatter_single(gradient, backward(parameters), group=intra)\n",
                    "    whole = backward(parameters)\n    dist.all_reduce(whole, group=inter)\n"
                    "    reduce_scatter_single(gradient, whole, group=intra)\n",
                ),
                ("    dist.all_reduce(gradient, group=inter)\n", ""),
            ),
        ),
        Wrong(
            "replicas drift apart",
            diagnosis=r"expected -?[\d.]+, got",
            edits=(("    dist.all_reduce(gradient, group=inter)\n", ""),),
        ),
        Wrong(
            "averaged on both levels",
            diagnosis=r"expected -?[\d.]+, got",
            edits=(
                (
                    "    dist.all_reduce(gradient, group=inter)\n",
                    "    gradient /= dist.get_world_size(intra)\n    dist.all_reduce(gradient, group=inter)\n"
                    "    gradient /= dist.get_world_size(inter)\n",
                ),
            ),
        ),
        Wrong(
            "the two groups exchanged",
            diagnosis=r"expected -?[\d.]+, got|size|shape",
            edits=(
                ("gradient, backward(parameters), group=intra", "gradient, backward(parameters), group=inter"),
                ("dist.all_reduce(gradient, group=inter)", "dist.all_reduce(gradient, group=intra)"),
            ),
        ),
        Wrong(
            "summed over all ranks, whatever part they hold",
            diagnosis=r"expected -?[\d.]+, got",
            edits=(("dist.all_reduce(gradient, group=inter)", "dist.all_reduce(gradient)"),),
        ),
        Wrong(
            "parameters are gathered again after the step",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do",
            edits=(
                (
                    "    shard.sub_(gradient, alpha=rate)",
                    "    shard.sub_(gradient, alpha=rate)\n    all_gather_single(parameters, shard, group=intra)",
                ),
            ),
        ),
    ),
)
