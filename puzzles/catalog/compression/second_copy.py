"""compression.second_copy: hpZ, which copy a rank has and what it costs."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, divisors, drawn
from reference.compression.answers.zero_plus_plus import second_copy


def shard_by_shard(case, inputs):
    """Of the n shards of the padded parameters, those that follow each other in this rank's part of the node's copy."""
    shard = (case.numel + case.ranks - 1) // case.ranks
    number = [rank for rank in range(case.ranks) if rank // case.node == case.rank // case.node].index(case.rank)
    shards_of_a_piece = case.ranks // case.node
    begin = sum(shard * shards_of_a_piece for _earlier in range(number))
    received = sum(shard * shards_of_a_piece * case.size for other in range(case.node) if other != number)
    return [(begin, begin + shard * shards_of_a_piece, shard * shards_of_a_piece * case.size, received)]


def counted(case, inputs):
    """The same, where there are too many ranks to go through."""
    piece = (case.numel + case.ranks - 1) // case.ranks * (case.ranks // case.node)
    begin = (case.rank - case.rank // case.node * case.node) * piece
    return [(begin, begin + piece, piece * case.size, (case.node - 1) * piece * case.size)]


PUZZLE = Puzzle(
    name="compression.second_copy",
    title="Which copy, and how much memory (hpZ)",
    statement="""
        FSDP on n ranks gathers all parameters twice in a step, before forward and before backward, and what it gathers
        has not changed between them. hpZ of ZeRO++ lets what forward has gathered stay in the node: its s ranks cut it
        into s pieces and keep one each until the optimizer changes the parameters, in the dtype that they compute in.
        Backward then gathers within the node, and nothing crosses to other nodes. Each rank still updates its n-th:
        the second copy is for computing alone.

        Parameters are padded to a multiple of n first, so that the n shards are alike. Ranks of a node follow each
        other: node 0 has ranks 0 to s-1.

        Args:
            rank: which.
            ranks: n, all of them.
            node: s, ranks of a node, a divisor of n.
            numel: Ψ, parameters.
            size: bytes of an element.

        Returns: (begin, end, kept, received): where this rank's piece of the second copy begins and ends among the
        padded parameters, its bytes, and the bytes that this rank receives when backward gathers them.

        Budget: a formula.
        """,
    function=second_copy,
    cases=cases(worlds=(1,), rank=(5, 0, 2), ranks=(8,), node=(4,), numel=(64, 61), size=(2,))
    + cases(worlds=(1,), rank=(7,), ranks=(12,), node=(1, 3, 12), numel=(100,), size=(4,))
    + cases(worlds=(1,), rank=(0,), ranks=(1,), node=(1,), numel=(5,), size=(2,)),
    drawn=(
        drawn(
            worlds=(1,),
            ranks=range(2, 60),
            rank=lambda so_far: range(so_far.ranks),
            node=lambda so_far: divisors(so_far.ranks),
            numel=range(1, 5000),
            size=(2, 4),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), rank=(10**12 - 1,), ranks=(10**12,), node=(10**6,), numel=(7 * 10**15 + 1,), size=(2,)),
        "the number of ranks",
        oracle=counted,
    ),
    oracle=shard_by_shard,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 16,
            optimum=lambda case: 3,
            why="a piece is n/s shards; its place follows from the rank's number in its node",
        ),
    ),
    hints=(
        "What do the ranks of one node hold together? So how much of it is one rank's piece, in shards of the n-th "
        "size?",
        "piece = ceil(Ψ / n) · n / s. Rank 5 of nodes of 4 is number 1 of its node.",
        "begin = rank % s · piece; kept = piece · size; received = (s - 1) · piece · size.",
    ),
    wrong=(
        Wrong(
            "the n-th that it updates",
            diagnosis=r"expected \d+, got \d+",
            edits=(("-(-numel // ranks) * ranks // node", "-(-numel // ranks)"), ("rank % node", "rank")),
        ),
        Wrong(
            "the number of the node",
            diagnosis=r"expected \d+, got \d+",
            edits=(("rank % node", "rank // node"),),
        ),
        Wrong(
            "padded to a multiple of the node alone",
            diagnosis=r"expected \d+, got \d+",
            edits=(("-(-numel // ranks) * ranks // node", "-(-numel // node)"),),
        ),
        Wrong(
            "the whole model on each rank",
            diagnosis=r"expected \d+, got \d+",
            edits=(("piece * size, (node", "node * piece * size, (node"),),
        ),
        Wrong(
            "a gather from all ranks",
            diagnosis=r"expected \d+, got \d+",
            edits=(("(node - 1) * piece * size", "(ranks - 1) * piece * size // (ranks // node)"),),
        ),
        Wrong(
            "shard by shard",
            diagnosis=r"the number of steps must not grow with the number of ranks|right, but",
            body="""
                shard, begin = -(-numel // ranks), 0
                for other in range(rank // node * node, rank):
                    for _ in range(ranks // node):
                        begin += shard
                piece = shard * (ranks // node)
                return begin, begin + piece, piece * size, (node - 1) * piece * size
                """,
        ),
    ),
)
