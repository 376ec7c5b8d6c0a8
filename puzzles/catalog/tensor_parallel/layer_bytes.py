"""tensor_parallel.layer_bytes: what a layer sends, as a formula."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.tensor_parallel.answers.layer_bytes import layer_bytes


def message_after_message(case, inputs):
    """Every all-reduce of a layer, there and back, and each step of it around the ring."""
    numbers = case.batch * case.sequence * case.width
    regions = ["attention and MLP"] if case.side_by_side else ["attention", "MLP"]
    all_reduces = [(region, direction) for region in regions for direction in ("forward", "backward")]
    sent = 0
    for _ in all_reduces:
        for _half in ("reduce-scatter", "all-gather"):
            sent += sum(numbers * case.itemsize // case.ranks for _ in range(case.ranks - 1))
    return [sent]


def counted(case, inputs):
    """The same, where there are too many messages to add up."""
    numbers, all_reduces = case.batch * case.sequence * case.width, 2 if case.side_by_side else 4
    return [all_reduces * 2 * (case.ranks - 1) * (numbers * case.itemsize // case.ranks)]


PUZZLE = Puzzle(
    name="tensor_parallel.layer_bytes",
    title="The bytes of a layer",
    statement="""
        A transformer layer has two regions in which ranks share the work, attention and the MLP. Each has an all-reduce
        of B S D numbers at its end on the way there, and one at its beginning on the way back:

            y = x + attention(norm(x))        z = y + mlp(norm(y))

        PaLM and GPT-J put the two side by side: z = x + attention(norm(x)) + mlp(norm(x)). Both read the same, and both
        add to the same. Then f stands before both, g after both, and they are one region.

        How many bytes does one rank send for one layer, forward and backward? Count all-reduces that send as little as
        an all-reduce can. Weights and their gradients are not counted: they stay where they are.

        Args:
            batch: B, sequences.
            sequence: S, tokens in each.
            width: D, of the residual stream. The number of ranks divides it.
            ranks: t, that share the layer; at least 1.
            itemsize: bytes of a number: 2 in bfloat16.
            side_by_side: whether attention and the MLP stand side by side.

        Returns: bytes, an int.

        Budget: a formula.
        """,
    function=layer_bytes,
    cases=cases(  # Llama 3 8B on a node
        worlds=(1,), batch=(1,), sequence=(8192,), width=(4096,), ranks=(8,), itemsize=(2,), side_by_side=(False, True)
    )
    + cases(
        worlds=(1,), batch=(3,), sequence=(1, 5), width=(12,), ranks=(1, 2, 3, 6), itemsize=(4,), side_by_side=(False,)
    )
    + cases(
        worlds=(1,), batch=(2,), sequence=(7,), width=(1500,), ranks=(750,), itemsize=(2,), side_by_side=(True, False)
    ),
    drawn=(
        drawn(
            worlds=(1,),
            batch=range(1, 9),
            sequence=range(1, 100),
            ranks=range(1, 40),
            width=lambda so_far: [so_far.ranks * k for k in range(1, 20)],
            itemsize=(1, 2, 4, 8),
            side_by_side=(False, True),
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            batch=(2,),
            sequence=(8192,),
            width=(2**40,),
            ranks=(2**40,),
            itemsize=(2,),
            side_by_side=(False, True),
        ),
        "the number of ranks",
        oracle=counted,
    ),
    oracle=message_after_message,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 15,
            optimum=lambda case: 2,
            why="every all-reduce of a layer sends the same: count them, and multiply",
        ),
    ),
    hints=(
        "How many all-reduces are there, forward and backward together? What does a rank send in one?",
        "Around a ring a rank sends n-1 pieces twice, an n-th of the tensor each: 2 (t-1) · B S D / t numbers.",
        "Four all-reduces, or two where attention and the MLP are one region. With 8 ranks that is 7 B S D numbers, or "
        "3.5.",
    ),
    wrong=(
        Wrong(
            "forward alone",
            diagnosis=r"expected 469762048, got 234881024\n.*off by a factor of 0\.5|expected 469762048, got 234881024",
            edits=(("2 * regions * 2", "regions * 2"),),
        ),
        Wrong(
            "an all-reduce sends its tensor once",
            diagnosis=r"expected 469762048, got 268435456",
            edits=(
                (
                    "2 * regions * 2 * (ranks - 1) * (batch * sequence * width // ranks)",
                    "2 * regions * (batch * sequence * width)",
                ),
            ),
        ),
        Wrong(
            "every rank sends the whole tensor to all ranks",
            diagnosis=r"expected 469762048, got 1879048192",
            edits=(
                ("2 * (ranks - 1) * (batch * sequence * width // ranks)", "(ranks - 1) * (batch * sequence * width)"),
            ),
        ),
        Wrong(
            "side by side costs as much",
            diagnosis=r"right with side_by_side=False, wrong with side_by_side=True",
            edits=(("1 if side_by_side else 2", "2"),),
        ),
        Wrong(
            "numbers, not bytes",
            diagnosis=r"expected 469762048, got 234881024",
            edits=((" * itemsize", ""),),
        ),
        Wrong(
            "the bytes of all ranks together",
            diagnosis=r"expected 469762048, got 3758096384",
            edits=(("(batch * sequence * width // ranks)", "(batch * sequence * width)"),),
        ),
        Wrong(
            "a number that is no int",
            diagnosis=r"expected 469762048, got 469762048\.0 \(an int is asked for\)",
            edits=(("width // ranks", "width / ranks"),),
        ),
        Wrong(
            "one sequence",
            diagnosis=r"batch=3.*expected",
            edits=(("(batch * sequence", "(sequence"),),
        ),
        Wrong(
            "message after message",
            diagnosis=r"right, but it runs [\d,]+ lines where 15 must do.*\n.*count them, and multiply",
            body="""
                sent = 0
                for all_reduce in range(2 if side_by_side else 4):
                    for step in range(2 * (ranks - 1)):
                        sent += batch * sequence * width * itemsize // ranks
                return sent
                """,
        ),
    ),
)
