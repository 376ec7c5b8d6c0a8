"""sequence_parallel.activation_bytes: what a layer keeps on a rank, with and without slices between its halves."""

import torch

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.sequence_parallel.answers.activations import activation_bytes


def tensor_after_tensor(case, inputs):
    """Every tensor that a rank keeps, made without memory for it, and weighed."""
    s, b, h, a, t = case.sequence, case.batch, case.width, case.heads, case.ranks
    mine = s // t if case.sequence_parallel else s

    def kept(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, dtype=dtype, device="meta").nbytes

    def mask(*shape):
        return kept(*shape, dtype=torch.bool)

    def between(tokens):
        """Two norms' inputs, the inputs of attention and MLP, two masks of dropout."""
        return [kept(b, tokens, h) for _ in range(4)] + [mask(b, tokens, h) for _ in range(2)]

    attention = [kept(b, s, h // t) for _ in ("query", "key", "value", "context")]
    scores = [kept(b, a // t, s, s), mask(b, a // t, s, s), kept(b, a // t, s, s)] if case.scores else []
    mlp = [kept(b, s, 4 * h // t) for _ in ("input of GELU", "output of GELU")]
    return [sum(between(mine) + attention + scores + mlp)]


PAPER = {"sequence": (2048,), "batch": (1,), "ranks": (8,)}  # its tables 3 and 4: GPT-3, and Megatron's 530B

PUZZLE = Puzzle(
    name="sequence_parallel.activation_bytes",
    title="Activations of a layer on one of t ranks",
    statement="""
        What does one transformer layer keep on a rank, from its forward until its backward? A classic one, as in GPT-3,
        split among t ranks; an activation has 2 bytes, a mask of dropout 1. On one rank alone it keeps 34 bytes for
        each of the sequence · batch · width numbers that go through it, and the matrices of attention:

        - between the regions that are split: the inputs of two layer norms, what the norms hand to attention and to the
          MLP, and the masks of the two dropouts after these;
        - inside attention: queries, keys and values, and the input of the output projection;
        - inside attention, for each head and each pair of tokens: the output of the softmax, the mask of its dropout,
          and the output of that dropout (`scores`; selective recomputation makes them again instead);
        - inside the MLP, which is four times as wide: input and output of GELU.

        Tensor parallelism splits what lies inside, by heads or by columns. Of what lies between, every rank has all
        tokens. With sequence parallelism it has a slice; what attention and MLP get is kept as slices, too, and
        gathered again in backward.

        Args:
            sequence: s, tokens in a sequence.
            batch: b, sequences in a micro-batch.
            width: h, of the residual stream; queries, keys and values of all heads together have this width each.
            heads: a, of attention.
            ranks: t, which divides s, h and a.
            sequence_parallel: whether there are slices between the regions.
            scores: whether the matrices inside attention are kept.

        Returns: bytes of one layer on one rank, an int.

        Budget: a formula.
        """,
    function=activation_bytes,
    cases=cases(
        worlds=(1,), **PAPER, width=(12_288,), heads=(96,), sequence_parallel=(False, True), scores=(True, False)
    )
    + cases(worlds=(1,), **PAPER, width=(20_480,), heads=(128,), sequence_parallel=(False, True), scores=(True,))
    + cases(
        worlds=(1,),
        sequence=(6, 32_769),
        batch=(3,),
        width=(12,),
        heads=(3, 6),
        ranks=(3,),
        sequence_parallel=(False, True),
        scores=(True, False),
    ),
    drawn=(
        drawn(
            worlds=(1,),
            ranks=(2, 3, 4),
            sequence=lambda so_far: [so_far.ranks * k for k in range(1, 50)],
            batch=range(1, 6),
            heads=lambda so_far: [so_far.ranks * k for k in range(1, 5)],
            width=lambda so_far: [so_far.heads * k for k in range(1, 9)],
            sequence_parallel=(False, True),
            scores=(False, True),
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            sequence=(2**36,),
            batch=(2,),
            width=(2**12,),
            heads=(2**6,),
            ranks=(2**6,),
            sequence_parallel=(False, True),
            scores=(False,),
        ),
        "the number of tokens",
    ),
    oracle=tensor_after_tensor,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 40,
            optimum=lambda case: 3,
            why="count bytes for one token and one pair of tokens, and multiply",
        ),
    ),
    hints=(
        "Sort the 34 into two heaps: what lies inside attention and MLP, and what lies between. Count the second "
        "first: four tensors of 2 bytes, two masks of 1.",
        "10 lie between, 24 inside. The matrices of attention lie inside, too: 5 bytes for each head and pair of "
        "tokens, 5 a s² b in all.",
        "Tensor parallelism: s b h (10 + 24/t + 5 a s / (h t)). With sequence parallelism the 10 is divided as well. "
        "Divide whole numbers of bytes by `//`: t divides them.",
    ),
    wrong=(
        Wrong(
            "tensor parallelism splits everything",
            diagnosis=r"right with sequence_parallel=True, wrong with sequence_parallel=False",
            edits=(("(between // ranks if sequence_parallel else between)", "between // ranks"),),
        ),
        Wrong(
            "slices change nothing",
            diagnosis=r"right with sequence_parallel=False, wrong with sequence_parallel=True",
            edits=(("(between // ranks if sequence_parallel else between)", "between"),),
        ),
        Wrong(
            "what is gathered is kept: inputs of attention and MLP are whole",
            diagnosis=r"expected 358612992, got 446693376\n.*right with sequence_parallel=False",
            edits=(
                (
                    "(between // ranks if sequence_parallel else between)",
                    "(between * 6 // 10 // ranks + between * 4 // 10 if sequence_parallel else between)",
                ),
            ),
        ),
        Wrong(
            "every rank has the scores of all heads",
            diagnosis=r"right with scores=False, wrong with scores=True",
            edits=(
                (
                    "sequence * batch * (24 * width + 5 * heads * sequence * scores) // ranks",
                    "sequence * batch * (24 * width // ranks + 5 * heads * sequence * scores)",
                ),
            ),
        ),
        Wrong(
            "scores are kept anyway",
            diagnosis=r"right with scores=True, wrong with scores=False",
            edits=((" * scores", ""),),
        ),
        Wrong(
            "slices split what lies inside once more",
            diagnosis=r"right with sequence_parallel=False, wrong with sequence_parallel=True",
            edits=(("* scores) // ranks", "* scores) // ranks // (ranks if sequence_parallel else 1)"),),
        ),
        Wrong(
            "a number that is no int",
            diagnosis=r"expected (\d+), got \1\.0 \(an int is asked for\)",
            edits=(("* scores) // ranks", "* scores) / ranks"),),
        ),
        Wrong(
            "masks have 2 bytes, too",
            diagnosis=r"sequence_parallel=False, scores=True\): expected -?[\d.]+, got -?[\d.]+",
            edits=(("10 * width", "12 * width"), ("5 * heads", "6 * heads")),
        ),
        Wrong(
            "token after token",
            diagnosis=r"right, but it runs [\d,]+ lines where 40 must do.*\n.*and multiply",
            body="""
                total = 0
                for token in range(sequence):
                    total += batch * (24 * width + 5 * heads * sequence * scores) // ranks
                    total += batch * 10 * width // (1 if not sequence_parallel else ranks)
                return total
                """,
        ),
    ),
)
