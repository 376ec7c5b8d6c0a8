"""compression.zero_plus_plus_volume: 3 M between nodes becomes 0.75 M."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.compression.answers.zero_plus_plus import leaves_a_node


def message_by_message(case, inputs):
    """Each message from the last rank of a node to the first of the next, and between neighbours."""
    n, scales = case.nodes * case.ranks, 4 * (case.shard // case.block)
    total = 0
    for _gather in range(1 if case.second else 2):
        for _step in range(n - 1):
            total += case.shard + scales if case.weights else 2 * case.shard
    if case.gradients:
        for _rank in range(case.ranks):
            for _node in range(case.nodes - 1):
                total += case.shard // 2 + scales
    else:
        for _step in range(n - 1):
            total += 2 * case.shard
    return [total]


def counted(case, inputs):
    """The same, where there are too many messages to add up."""
    n, scales = case.nodes * case.ranks, 4 * (case.shard // case.block)
    gathers = (2 - case.second) * (n - 1) * ((case.shard + scales) if case.weights else 2 * case.shard)
    sums = case.ranks * (case.nodes - 1) * (case.shard // 2 + scales) if case.gradients else (n - 1) * 2 * case.shard
    return [gathers + sums]


BOTH = (False, True)

PUZZLE = Puzzle(
    name="compression.zero_plus_plus_volume",
    title="What leaves a node with ZeRO++",
    statement="""
        FSDP on N nodes of L ranks, n = N·L: parameters of n shards of m elements each, in 16 bits, are gathered before
        forward and before backward, gradients are reduce-scattered, all around a ring of n ranks, those of a node one
        after another. So what leaves a node is what its last rank sends: n-1 shards in each of the three passes,
        nearly 3 M, where M is the bytes of the model. ZeRO++ has three remedies:

            qwZ   parameters are gathered in 8 bits, with a scale of 4 bytes for each `block` of them
            hpZ   before backward they are gathered within the node, from a copy that forward has left there
            qgZ   gradients are summed within the node first. Then each of its L ranks sends each of its N-1
                  neighbours on the other nodes a shard, in 4 bits with a scale of 4 bytes for each `block`

        How many bytes leave a node in a step of one micro-batch?

        Args:
            shard: m, even; `block` divides it.
            nodes: N, at least 2.
            ranks: L, of a node.
            block: elements that share a scale.
            weights: whether qwZ is on.
            second: whether hpZ is on.
            gradients: whether qgZ is on.

        Returns: bytes, an int.

        Budget: a formula.
        """,
    function=leaves_a_node,
    cases=cases(
        worlds=(1,), shard=(1024,), nodes=(2,), ranks=(4,), block=(256,), weights=BOTH, second=BOTH, gradients=BOTH
    )
    + cases(
        worlds=(1,), shard=(96,), nodes=(3,), ranks=(1,), block=(32,), weights=BOTH, second=(True,), gradients=BOTH
    ),
    drawn=(
        drawn(
            worlds=(1,),
            block=(16, 64, 256),
            shard=lambda so_far: range(so_far.block, 40 * so_far.block, so_far.block),
            nodes=range(2, 30),
            ranks=range(1, 9),
            weights=BOTH,
            second=BOTH,
            gradients=BOTH,
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            shard=(256 * 10**9,),
            nodes=(10**12,),
            ranks=(8,),
            block=(256,),
            weights=BOTH,
            second=(True,),
            gradients=BOTH,
        ),
        "the number of nodes",
        oracle=counted,
    ),
    oracle=message_by_message,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 16,
            optimum=lambda case: 4,
            why="all messages of a pass are alike: count them, and multiply",
        ),
    ),
    hints=(
        "Three passes. Which of them does each remedy change, and is it the number of messages or their size?",
        "A shard takes 2m bytes, m + 4m/block in 8 bits, m/2 + 4m/block in 4 bits. A ring carries n-1 of them out of a "
        "node.",
        "(1 with hpZ, else 2) gathers of (n-1) shards; then (n-1) · 2m, or with qgZ L (N-1) (m/2 + 4m/block).",
    ),
    wrong=(
        Wrong(
            "scales are forgotten",
            diagnosis=r"expected \d+, got \d+",
            edits=(("scales = 4 * shard // block", "scales = 0"),),
        ),
        Wrong(
            "a gather in the node counts, too",
            diagnosis=r"expected \d+, got \d+",
            edits=(("(1 if second else 2)", "2"),),
        ),
        Wrong(
            "four bits around a ring",
            diagnosis=r"expected \d+, got \d+",
            edits=(("ranks * (nodes - 1) * (shard // 2", "(nodes * ranks - 1) * (shard // 2"),),
        ),
        Wrong(
            "gradients in eight bits",
            diagnosis=r"expected \d+, got \d+",
            edits=(("(shard // 2 + scales)", "(shard + scales)"),),
        ),
        Wrong(
            "what the whole model weighs, for large n",
            diagnosis=r"expected \d+, got \d+",
            edits=(("gather = (nodes * ranks - 1) *", "gather = nodes * ranks *"),),
        ),
        Wrong(
            "message by message",
            diagnosis=r"right, but it runs [\d,]+ lines where 16 must do|steps must not grow with the number of nodes",
            body="""
                scales, total = 4 * shard // block, 0
                for _ in range(nodes * ranks - 1):
                    total += (1 if second else 2) * (shard + scales if weights else 2 * shard)
                    if not gradients:
                        total += 2 * shard
                for _ in range(ranks * (nodes - 1)):
                    if gradients:
                        total += shard // 2 + scales
                return total
                """,
        ),
    ),
)
