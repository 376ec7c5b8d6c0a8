"""memory.activation_bytes: what one layer keeps for backward, and which term runs away."""

import torch

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.memory.answers.estimates import layer_bytes


def tensor_after_tensor(case, inputs):
    """Every tensor that a layer keeps, made without memory for it, and weighed."""
    s, b, h, a = case.sequence, case.batch, case.width, case.heads

    def kept(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, dtype=dtype, device="meta").nbytes

    def mask(*shape):
        return kept(*shape, dtype=torch.bool)

    attention = [kept(b, s, h) for _ in ("input", "query", "key", "value", "context")] + [mask(b, s, h)]
    scores = [kept(b, a, s, s), mask(b, a, s, s), kept(b, a, s, s)] if case.scores else []
    mlp = [kept(b, s, h), kept(b, s, 4 * h), kept(b, s, 4 * h), mask(b, s, h)]
    norms = [kept(b, s, h), kept(b, s, h)]
    return [sum(attention) + sum(scores) + sum(mlp) + sum(norms)]


PUZZLE = Puzzle(
    name="memory.activation_bytes",
    title="Activations of a layer",
    statement="""
        What does one transformer layer keep from its forward until its backward? A classic one, as in GPT-3; an
        activation has 2 bytes, a mask of dropout 1. Each operation keeps what its backward will need:

        - two layer norms: their inputs;
        - attention: the input of its three projections (once, for they share it); queries, keys and values; the input
          of its output projection; and the mask of the dropout after that;
        - inside attention, for each head and each pair of tokens: the output of the softmax, the mask of its dropout,
          and the output of that dropout;
        - the MLP, which is four times as wide inside: the input of its first projection, the input of GELU, the input
          of its second projection (what GELU returned), and the mask of the dropout after that.

        The third kind grows with the square of the sequence. Flash attention and selective recomputation do not keep
        it, but make it again in backward: `scores` is False.

        Args:
            sequence: tokens in a sequence.
            batch: sequences in a micro-batch.
            width: of the residual stream; queries, keys and values together have this width each.
            heads: of attention.
            scores: whether the matrices inside attention are kept.

        Returns: bytes of one layer, an int.

        Budget: a formula.
        """,
    function=layer_bytes,
    cases=cases(worlds=(1,), sequence=(2048,), batch=(1,), width=(12_288,), heads=(96,), scores=(True, False))  # GPT-3
    + cases(worlds=(1,), sequence=(1, 7, 32_768), batch=(3,), width=(96,), heads=(4, 6), scores=(True, False)),
    drawn=(
        drawn(
            worlds=(1,),
            sequence=range(1, 200),
            batch=range(1, 9),
            heads=range(2, 9),
            width=lambda so_far: [so_far.heads * k for k in range(1, 20)],
            scores=(False, True),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), sequence=(2**36,), batch=(2,), width=(2**12,), heads=(2**6,), scores=(False,)),
        "the number of tokens",
    ),
    oracle=tensor_after_tensor,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 40,
            optimum=lambda case: 1,
            why="count bytes for one token and one pair of tokens, and multiply",
        ),
    ),
    hints=(
        "Count in units of `sequence · batch · width`. The two norms keep 4 bytes for each. Attention? The MLP?",
        "Attention 11, the MLP 19, the norms 4. A matrix of scores has batch · heads · sequence² numbers, with 5 bytes "
        "for each of them.",
        "s b h (34 + 5 a s / h): the second term is larger than the first as soon as 5 a s > 34 h.",
    ),
    wrong=(
        Wrong(
            "masks have 2 bytes, too",
            diagnosis=r"layer_bytes\(sequence=2048, .*scores=True\): expected -?[\d.]+, got",
            edits=(("34 * width + 5 *", "36 * width + 6 *"),),
        ),
        Wrong(
            "no masks",
            diagnosis=r"layer_bytes\(sequence=2048, .*scores=True\): expected -?[\d.]+, got",
            edits=(("34 * width + 5 *", "32 * width + 4 *"),),
        ),
        Wrong(
            "one matrix of scores for all heads",
            diagnosis=r"right with scores=False, wrong with scores=True",
            edits=(("5 * heads * sequence", "5 * sequence"),),
        ),
        Wrong(
            "scores of one sequence only",
            diagnosis=r"batch=3, .*scores=True\): expected 9852, got 9812",
            edits=(
                (
                    "sequence * batch * (34 * width + 5 * heads * sequence * scores)",
                    "sequence * batch * 34 * width + 5 * heads * sequence**2 * scores",
                ),
            ),
        ),
        Wrong(
            "the MLP is as narrow as the rest",
            diagnosis=r"off by a factor of|scores=True\): expected -?[\d.]+, got",
            edits=(("34 * width", "22 * width"),),
        ),
        Wrong(
            "scores are kept anyway",
            diagnosis=r"right with scores=True, wrong with scores=False",
            edits=((" * scores", ""),),
        ),
        Wrong(
            "queries, keys and values keep an input each",
            diagnosis=r"scores=True\): expected -?[\d.]+, got",
            edits=(("34 * width", "38 * width"),),
        ),
        Wrong(
            "token after token",
            diagnosis=r"right, but it runs [\d,]+ lines where 40 must do.*\n.*and multiply",
            body="""
                total = 0
                for token in range(sequence):
                    total += batch * (34 * width + 5 * heads * sequence * scores)
                return total
                """,
        ),
    ),
)
