"""planning.fullest_rank: the first rank has most in flight, the last one has the head."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.pipeline_parallel.orders import gpipe, interleaved, one_f_one_b
from reference.pipeline_parallel.validate import most_activations
from reference.planning.answers.fullest import fullest_rank


def rank_after_rank(case, inputs):
    """All ranks, each with what its order holds at most of one stage and one micro-batch."""
    p, m, v = case.ranks, case.micro_batches, case.chunks
    orders = {"gpipe": gpipe, "1f1b": one_f_one_b, "interleaved": lambda p, m: interleaved(p, m, v)}
    held = [most_activations(line) for line in orders[case.schedule](p, m).lines]
    found = []
    for rank in range(p):
        here = [case.weights for _layer in range(case.layers // p)]
        here += [case.table] * (rank == 0) + [case.table] * (rank == p - 1)
        room = sum(2 * each + 4 * each + 12 * each for each in here)
        for _activation in range(held[rank]):
            for _layer in range(case.layers // p // v):
                room += case.tokens * (case.inputs if case.recompute else case.kept)
        room += case.tokens * case.kept if case.recompute else 0
        room += case.tokens * case.logits if rank == p - 1 else 0
        found.append(room)
    return [(found.index(max(found)), max(found))]


def both_ends(case, inputs):
    """The same of the first and the last rank alone, where there are too many between them."""
    p, m, v = case.ranks, case.micro_batches, case.chunks
    first = {"gpipe": m, "1f1b": min(p, m), "interleaved": min((v + 1) * p - 1, m * v)}[case.schedule]
    last = {"gpipe": m, "1f1b": 1, "interleaved": (v - 1) * p + 1}[case.schedule]
    of_one = case.layers // p // v * case.tokens * (case.inputs if case.recompute else case.kept)
    tables = case.table * (2 if p == 1 else 1)  # a rank alone is the first and the last
    both = 18 * (case.layers // p * case.weights + tables) + case.tokens * case.kept * case.recompute
    ends = both + first * of_one, both + last * of_one + case.tokens * case.logits
    return [(0, ends[0]) if ends[0] >= ends[1] else (p - 1, ends[1])]


LLAMA_70B = {  # Grattafiori et al. 2024, table 3; on 8 tensor-parallel ranks, with flash attention
    "layers": (80,),
    "weights": (855_638_016 // 8,),
    "table": (128_256 * 8192 // 8,),
    "tokens": (8192,),
    "kept": ((8 * 8192 + 4 * 8192 + 4 * 1024 + 6 * 28_672) // 8,),  # norms; queries, output; keys, values; SwiGLU
    "inputs": (2048,),
    "logits": (6 * 128_256 // 8,),
}
SMALL = {
    "layers": (24,),
    "weights": (300,),
    "table": (50,),
    "tokens": (10,),
    "kept": (40,),
    "inputs": (3,),
    "logits": (60,),
}
ENDS = {**SMALL, "logits": (4000,), "table": (900,)}  # a head that outweighs what is in flight
KINDS = (True, False)

PUZZLE = Puzzle(
    name="planning.fullest_rank",
    title="Memory of the fullest rank",
    statement="""
        A pipeline fits if its fullest rank does. Which one is that, and how much does it hold?

        state         18 bytes for each parameter: 2 in bfloat16, 4 of the gradient, 12 of Adam and the parameter in
                      float32. All ranks have L / p layers; the first one has the table of tokens besides, the last one
                      the head, which is as large.
        activations   of each micro-batch in flight, each layer keeps `kept` bytes for a token. With recomputation it
                      keeps its input alone, `inputs` bytes; and one layer at a time is made again in backward, with
                      all of its `kept`.
        logits        `logits` bytes for each token of one micro-batch, on the last rank.

        In flight is what has had its forward and not yet its backward. Of p ranks, with r counted from 0:

        gpipe         all m micro-batches, on every rank.
        1f1b          p - r micro-batches, or m if there are fewer.
        interleaved   each rank has v stages of L / (p v) layers. It holds the activations of (v - 1) p + 2 (p - 1 - r)
                      + 1 pairs of a stage and a micro-batch, or of all m v.

        Args:
            schedule: "gpipe", "1f1b" or "interleaved".
            ranks: p.
            chunks: v; 1 for the first two.
            micro_batches: m; a multiple of p for "interleaved".
            layers: L; p v divides it.
            weights: parameters of a layer.
            table: parameters of the table, and of the head.
            tokens: of a micro-batch.
            kept: bytes of a token in a layer.
            inputs: bytes of a token in the input of a layer.
            recompute: whether layers keep their input alone.
            logits: bytes of a token.

        Returns: (the rank, its bytes), two ints; the first rank, where several hold as much. With p = 1 it is first
        and last.

        Budget: a formula, not a loop over ranks. Which ranks cannot be the fullest?
        """,
    function=fullest_rank,
    cases=cases(
        worlds=(1,),
        schedule=("1f1b",),
        ranks=(8,),
        chunks=(1,),
        micro_batches=(32,),
        **LLAMA_70B,
        recompute=(False, True),
    )
    + cases(
        worlds=(1,),
        schedule=("interleaved",),
        ranks=(4,),
        chunks=(5,),
        micro_batches=(32,),
        **LLAMA_70B,
        recompute=KINDS,
    )
    + cases(
        worlds=(1,),
        schedule=("gpipe", "1f1b"),
        ranks=(6, 4, 1),
        chunks=(1,),
        micro_batches=(1, 3, 12),
        **SMALL,
        recompute=KINDS,
    )
    + cases(
        worlds=(1,), schedule=("gpipe", "1f1b"), ranks=(4,), chunks=(1,), micro_batches=(2, 8), **ENDS, recompute=KINDS
    )
    + cases(
        worlds=(1,),
        schedule=("interleaved",),
        ranks=(2, 4),
        chunks=(3,),
        micro_batches=(4, 8),
        **SMALL,
        recompute=KINDS,
    )
    + cases(
        worlds=(1,), schedule=("interleaved",), ranks=(4,), chunks=(2,), micro_batches=(4,), **ENDS, recompute=KINDS
    ),
    drawn=tuple(
        drawn(
            worlds=(1,),
            schedule=(schedule,),
            ranks=(2, 3, 5),
            chunks=(2, 4) if schedule == "interleaved" else (1,),
            micro_batches=lambda so_far: [so_far.ranks * each for each in (1, 2, 3)],
            layers=lambda so_far: [so_far.ranks * so_far.chunks * each for each in (1, 2, 3)],
            weights=range(20, 500),
            table=range(10, 3000),
            tokens=range(1, 40),
            kept=range(20, 90),
            inputs=range(2, 20),
            recompute=KINDS,
            logits=range(1, 5000),
        )
        for schedule in ("gpipe", "1f1b", "interleaved")
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            schedule=("1f1b", "gpipe"),
            ranks=(2**40,),
            chunks=(1,),
            micro_batches=(2**50,),
            **{**SMALL, "layers": (2**45,)},
            recompute=KINDS,
        ),
        "ranks, micro-batches or layers",
        oracle=both_ends,
    ),
    oracle=rank_after_rank,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 50,
            optimum=lambda case: 12,
            why="no rank in the middle holds more than the first: look at the first and at the last",
        ),
    ),
    hints=(
        "What has the first rank that no other has, and what has the last? Can a rank between hold more than both?",
        "Write a function for the bytes of rank r. Its stages are L / (p v) layers, whatever the schedule; what "
        "differs is how many of them are in flight: m, p - r, or (v - 1) p + 2 (p - 1 - r) + 1, at most m v.",
        "18 (L/p · weights + table at either end) + in flight · L/(p v) · tokens · (inputs or kept) + tokens · kept "
        "with recomputation + tokens · logits on the last; then max((0, p - 1), key=that).",
    ),
    wrong=(
        Wrong(
            "the first rank is always the fullest",
            diagnosis=r"result\[0\]: expected 3, got 0",
            edits=(("max((0, ranks - 1), key=bytes_of)", "0"),),
        ),
        Wrong(
            "the last rank is always the fullest",
            diagnosis=r"result\[0\]: expected 0, got 7",
            edits=(("max((0, ranks - 1), key=bytes_of)", "ranks - 1"),),
        ),
        Wrong(
            "the mean of all ranks",
            diagnosis=r"result\[1\]: expected \d+, got \d+",
            edits=(("return fullest, bytes_of(fullest)", "return fullest, sum(map(bytes_of, (0, ranks - 1))) // 2"),),
        ),
        Wrong(
            "one micro-batch at a time",
            diagnosis=r"schedule=1f1b, ranks=8.*result\[\d\]: expected \d+, got \d+",
            edits=(("in_flight(rank) * stage", "stage"),),
        ),
        Wrong(
            "all micro-batches in flight",
            diagnosis=r"schedule=1f1b, ranks=8.*result\[0\]: expected 0, got 7",
            edits=(('"1f1b": after + 1', '"1f1b": micro_batches'),),
        ),
        Wrong(
            "p of them, where there are fewer",
            diagnosis=r"micro_batches=[13].*result\[\d\]: expected \d+, got \d+",
            edits=(("min(most[schedule], micro_batches * chunks)", "most[schedule]"),),
        ),
        Wrong(
            "the last rank of GPipe holds one",
            diagnosis=r"result\[\d\]: expected \d+, got \d+",
            edits=(
                (
                    "return min(most[schedule], micro_batches * chunks)",
                    "return min(most[schedule], micro_batches * chunks) if after else 1",
                ),
            ),
        ),
        Wrong(
            "interleaved stages are as 1F1B",
            diagnosis=r"schedule=interleaved.*result\[\d\]: expected \d+, got \d+",
            edits=(('"interleaved": (chunks - 1) * ranks + 2 * after + 1', '"interleaved": (after + 1) * chunks'),),
        ),
        Wrong(
            "each chunk is all layers of a rank",
            diagnosis=r"schedule=interleaved.*result\[\d\]: expected \d+, got \d+",
            edits=(("layers // (ranks * chunks) * tokens", "layers // ranks * tokens"),),
        ),
        Wrong(
            "recomputation keeps inputs, and nothing is made again",
            diagnosis=r"recompute=True.*result\[1\]: expected \d+, got \d+",
            edits=(("tokens * kept if recompute else 0", "0"),),
        ),
        Wrong(
            "all layers of a stage are made again at once",
            diagnosis=r"recompute=True.*result\[1\]: expected \d+, got \d+",
            edits=(("tokens * kept if recompute else 0", "layers // ranks * tokens * kept if recompute else 0"),),
        ),
        Wrong(
            "recomputation is not looked at",
            diagnosis=r"recompute=True.*result\[\d\]: expected \d+, got \d+",
            edits=(("(inputs if recompute else kept)", "kept"),),
        ),
        Wrong(
            "the table is on all ranks",
            diagnosis=r"ranks=1.*result\[1\]: expected \d+, got \d+",
            edits=(("ends = (rank == 0) + (rank == ranks - 1)", "ends = 1"),),
        ),
        Wrong(
            "the table and the head are one, and on the first rank",
            diagnosis=r"result\[\d\]: expected \d+, got \d+",
            edits=(("ends = (rank == 0) + (rank == ranks - 1)", "ends = rank == 0"),),
        ),
        Wrong(
            "logits are on no rank",
            diagnosis=r"result\[\d\]: expected \d+, got \d+",
            edits=(("+ made_again + of_loss", "+ made_again"),),
        ),
        Wrong(
            "the optimizer is forgotten",
            diagnosis=r"result\[1\]: expected \d+, got \d+",
            edits=(("STATE * parameters", "6 * parameters"),),
        ),
        Wrong(
            "rank after rank",
            diagnosis=r"right, but it runs [\d,]+ lines where 50 must do.*\n.*the first and at the last",
            edits=(("max((0, ranks - 1), key=bytes_of)", "max(range(ranks), key=bytes_of)"),),
        ),
    ),
)
