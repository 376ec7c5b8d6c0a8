"""collectives.ring_all_reduce: sum chunks around a ring, then pass the sums around."""

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, cases
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.collectives.exchange import exchange, exchange_reduce
from reference.collectives.reduction import AVG, SUM, finish


def everybody_has_the_sum(case, inputs):
    total = sum(each["x"] for each in inputs)
    return [{"x": total / case.n if case.op == AVG else total}] * case.n


def one_chunk(case):
    """Bytes of the longest chunk."""
    return 4 * -(-case.length // case.n) if case.n > 1 else 0


PUZZLE = Puzzle(
    name="collectives.ring_all_reduce",
    title="All-reduce around a ring",
    statement="""
        Every rank brings a tensor `x`. Afterwards every rank's `x` holds the sum of all of them, in place.

        Cut `x` into n chunks. In the first half, chunks travel to the right and every rank adds its own to what
        comes; after n-1 steps every rank holds one chunk of the sum. In the second half those travel around.

        Given are two ways to send to one rank while you receive from another:
        `exchange(outgoing, target, incoming, source, group)` puts what comes into `incoming`,
        `exchange_reduce(outgoing, target, accumulator, source, group, op)` adds it to what is there. And
        `finish(chunk, n, op)` ends the reduction of a chunk: it divides where `op` is the average.

        Args:
            x: contiguous, of the same shape and dtype on every rank. n need not divide the number of its elements.
            group: n ranks. Any n.
            op: how to combine.

        Budget: 2(n-1) steps, 2(n-1)/n of the tensor sent by each rank, and one chunk of memory.
        """,
    function=ring,
    cases=cases(worlds=(2, 3, 4, 1, 5, 8), length=(40,), op=(SUM,))
    + cases(worlds=(3, 4), length=(10, 1), op=(SUM,))
    + cases(worlds=(3,), length=(10,), op=(AVG,))
    + cases(worlds=(4,), members=(0, 2, 3), length=(6,), op=(SUM,)),
    inputs=lambda case, rank: {"x": case.tensor(rank, case.length), "op": case.op},
    oracle=everybody_has_the_sum,
    calls=POINT_TO_POINT,
    given=(exchange, exchange_reduce, finish),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, case.length, 4),
            why="a ring moves chunks, never the whole tensor",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: cost.of(ring).steps(case.n, case.length, 4),
            why="each half takes n-1 exchanges: nobody needs to see its own chunk come back",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=one_chunk,
            why="one buffer of the size of a chunk is enough; tensor_split makes views, not copies",
        ),
    ),
    hints=(
        "`x.view(-1).tensor_split(n)` gives n chunks that are views of `x`, also where n does not divide its length.",
        "If every rank begins with another chunk and they all move to the right, no two ever meet. Which one does rank "
        "r send in step s, and into which one goes what comes from the left?",
        "In step s of the first half rank r sends chunk (r - s) % n and adds to chunk (r - s - 1) % n.",
        "After that, rank r holds the sum of chunk (r + 1) % n: `finish` it, and let the second half begin with it.",
    ),
    wrong=(
        Wrong(
            "a ring that moves whole tensors",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*chunks, never the whole tensor",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                passing, received = x.clone(), torch.empty_like(x)
                for _ in range(n - 1):
                    exchange(passing, (rank + 1) % n, received, (rank - 1) % n, group)
                    x += received
                    passing, received = received, passing
                """,
        ),
        Wrong(
            "the remainder is left out",
            diagnosis=r"the remainder",
            edits=(("x.view(-1).tensor_split(n)", "x.view(-1)[: x.numel() // n * n].tensor_split(n)"),),
        ),
        Wrong(
            "averaged where the sum is asked",
            diagnosis=r"off by exactly the world size, too little",
            edits=(("finish(chunks[right], n, op)", "chunks[right].div_(n)"),),
        ),
        Wrong(
            "only the first half",
            diagnosis=r"expected \d+, got \d+",
            edits=(("for step in range(n - 1):\n        exchange(", "for step in range(0):\n        exchange("),),
        ),
        Wrong(
            "a copy of everything",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do",
            edits=(("chunks = x.view", "before = x.clone()\n    chunks = x.view"),),
        ),
        Wrong(
            "torch's own",
            diagnosis=r"uses dist.all_reduce; allowed here: send, ",
            body="dist.all_reduce(x, op, group)",
        ),
    ),
)
