"""tensor_parallel.tied_embedding: one table, two uses, one gradient."""

import torch
import torch.distributed as dist

from puzzles.grading.drives.tensor_parallel import with_layers_between
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.tensor_parallel.answers.vocabulary import tied_gradient

from .common import ALL_GATHER, all_reduces, part, whole
from .vocabulary_embedding import tokens_of

WIDTH = 3


def a_step(case):
    """The whole table, what stands for the layers, and the gradient of all logits."""
    vocabulary = case.n * case.rows
    shapes = {"table": (vocabulary, WIDTH), "layers": (WIDTH, WIDTH), "upstream": (case.tokens + 2, vocabulary)}
    return [whole(case, name, *shape) for name, shape in shapes.items()]


def part_of_a_step(case, rank):
    """This rank's rows and columns; for the drive, the layers."""
    (table, layers, upstream), tokens = a_step(case), tokens_of(case, case.rows)
    return {
        "tokens": tokens,
        "table": part(table, case, rank, 0),
        "y": table[tokens] @ layers,
        "upstream": part(upstream, case, rank, 1),
        "layers": layers,
    }


def autograd_through_both(case, inputs):
    """The table is looked up, and multiplied with what became of it; autograd adds up both."""
    table, layers, upstream = a_step(case)
    table.requires_grad_()
    logits = torch.nn.functional.embedding(inputs[0]["tokens"], table) @ layers @ table.T
    (logits * upstream).sum().backward()
    once = {"calls of backward": 1, "what backward is given": upstream @ table.detach()}
    return [{"returns": part(table.grad, case, rank, 0), **once} for rank in range(case.n)]


PUZZLE = Puzzle(
    name="tensor_parallel.tied_embedding",
    title="The gradient of a tied table",
    statement="""
        Many models have one table for both ends: row v is the embedding of token v, and the weight of its logit.

            h = table[tokens] -> layers -> y        logits = y tableᵀ

        So its gradient has two parts, one from each end. The table is split by vocabulary among n ranks; this rank has
        some rows, so some of the logits, and it was told the gradient u of those. The layers between are the same on
        every rank, and see all tokens: their backward must be given the whole gradient of y.

            gradient of the table as a head       uᵀ y
            gradient of y                         u table
            gradient of the table as embedding    each token's row gets what `backward` gives for its place

        Which of these need the other ranks?

        Args:
            tokens: [T] of integers from 0 to V - 1, the same on every rank. Some come more than once.
            table: [V / n, D], this rank's rows.
            y: [T, D], what the layers have made of the embeddings, the same on every rank.
            upstream: [T, V / n], gradient of the loss with respect to this rank's logits.
            backward: `backward(gradient)` goes through the layers between, once: from the whole gradient of y, [T, D],
                to that of the embeddings, [T, D].
            group: n ranks. Any n.

        Returns: the gradient of this rank's rows, [V / n, D].

        Budget: one all-reduce of T D numbers. Nothing as large as the table travels.
        """,
    function=tied_gradient,
    cases=cases(worlds=(2, 3, 4, 1, 5, 8), tokens=(5,), rows=(6,), of=("any rank",))
    + cases(worlds=(3,), tokens=(4,), rows=(2,), of=("one rank",))
    + cases(worlds=(4,), members=(0, 2, 3), tokens=(4,), rows=(4,), of=("any rank",)),
    drawn=on_any_ranks(tokens=range(3, 7), rows=range(3, 7), of=("any rank",)),
    inputs=part_of_a_step,
    oracle=autograd_through_both,
    drive=with_layers_between,
    tolerance=1e-10,
    calls=(dist.all_reduce, *ALL_GATHER),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: all_reduces(case, (case.tokens + 2, WIDTH)),
            why="both parts of a row's gradient arise where the row is: only the gradient of y needs all ranks",
        ),
        Budget(
            Measure.CALLS,
            target=lambda case: 1,
            why="both parts of a row's gradient arise where the row is: only the gradient of y needs all ranks",
        ),
    ),
    hints=(
        "y is the same on all ranks, and each makes other logits of it. What does that say of the gradient of y, and "
        "what of uᵀ y?",
        "`upstream @ table` is what this rank's logits want of y: sum it over ranks, then call `backward`. What comes "
        "out is the gradient of every place in the text. Which places belong to your rows?",
        "As in the embedding puzzle: `here = tokens - rank * len(table)`, `mine`, and `index_add_`, here onto "
        "`upstream.T @ y`.",
    ),
    wrong=(
        Wrong(
            "the head's part alone",
            diagnosis=r"result\[\d+, 0\]: expected",
            edits=(("gradient.index_add_(0, row, backward(of_y) * mine.unsqueeze(-1))", "gradient"),),
        ),
        Wrong(
            "the embedding's part alone",
            diagnosis=r"result\[0, 0\]: expected",
            edits=(("gradient = upstream.T @ y", "gradient = table.new_zeros(table.shape)"),),
        ),
        Wrong(
            "the embedding's part overwrites the head's",
            diagnosis=r"result\[\d+, 0\]: expected",
            edits=(
                (
                    "    return gradient.index_add_(0, row, backward(of_y) * mine.unsqueeze(-1))",
                    "    gradient[row[mine]] = backward(of_y)[mine]\n    return gradient",
                ),
            ),
        ),
        Wrong(
            "layers go backward from this rank's part",
            diagnosis=r"result\[\d+, 0\]: expected",
            edits=(("    dist.all_reduce(of_y, group=group)\n", ""),),
        ),
        Wrong(
            "layers go backward from this rank's part, and what comes out is summed",
            diagnosis=r"what backward is given\[0, 0\]: expected",
            edits=(
                (
                    "    dist.all_reduce(of_y, group=group)\n",
                    "    of_embeddings = backward(of_y)\n    dist.all_reduce(of_embeddings, group=group)\n",
                ),
                ("backward(of_y) * mine", "of_embeddings * mine"),
            ),
        ),
        Wrong(
            "layers go backward from the places of this rank's tokens alone",
            diagnosis=r"what backward is given\[\d, 0\]: expected",
            edits=(("backward(of_y) * mine.unsqueeze(-1)", "backward(of_y * mine.unsqueeze(-1))"),),
        ),
        Wrong(
            "layers go backward anew for each of this rank's tokens",
            diagnosis=r"calls of backward: expected 1, got \d",
            edits=(
                (
                    "    return gradient.index_add_(0, row, backward(of_y) * mine.unsqueeze(-1))",
                    "    for place in mine.nonzero().flatten():\n"
                    "        gradient[row[place]] += backward(of_y)[place]\n    return gradient",
                ),
            ),
        ),
        Wrong(
            "gradients of other rows are added to this rank's, as if the tables were replicas",
            diagnosis=r"result\[0, 0\]: expected",
            edits=(
                (
                    "    return gradient.index_add_(0, row, backward(of_y) * mine.unsqueeze(-1))",
                    "    gradient.index_add_(0, row, backward(of_y) * mine.unsqueeze(-1))\n"
                    "    dist.all_reduce(gradient, group=group)\n"
                    "    return gradient",
                ),
            ),
        ),
        Wrong(
            "row 0 gets what belongs to the rows of others",
            diagnosis=r"result\[0, 0\]: expected",
            edits=(("backward(of_y) * mine.unsqueeze(-1)", "backward(of_y)"),),
        ),
        Wrong(
            "of a token that comes twice, one place counts",
            diagnosis=r"result\[\d+, 0\]: expected",
            edits=(
                (
                    "    return gradient.index_add_(0, row, backward(of_y) * mine.unsqueeze(-1))",
                    "    gradient[row[mine]] += backward(of_y)[mine]\n    return gradient",
                ),
            ),
        ),
        Wrong(
            "an all-reduce of the whole table's gradient",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*arise where the row is",
            edits=(
                (
                    "    return gradient.index_add_(0, row, backward(of_y) * mine.unsqueeze(-1))",
                    "    gradient.index_add_(0, row, backward(of_y) * mine.unsqueeze(-1))\n"
                    "    every = table.new_zeros(dist.get_world_size(group), *table.shape)\n"
                    "    every[dist.get_rank(group)] = gradient\n"
                    "    dist.all_reduce(every, group=group)\n"
                    "    return every[dist.get_rank(group)]",
                ),
            ),
        ),
    ),
)
