"""sequence_parallel.embed_a_slice: an embedding split by vocabulary that leaves slices, without a detour."""

import torch

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.sequence_parallel.answers.on_slices import embed
from reference.sequence_parallel.plain import gather, scatter

from .common import mine, one_pass, slices_of, tokens_of

ROWS = 3  # of the table, on each rank


def tokens_and_my_rows(case, rank):
    """The same tokens on every rank, the ends of all ranks' rows among them; this rank's rows of the table."""
    count = case.batch * case.n * case.slice
    ends = torch.arange(case.n * ROWS).repeat(1 + count // (case.n * ROWS))[:count]
    order = case.normal(0, count, name="order").argsort()
    return {
        "tokens": ends[order].view(case.batch, -1),
        "table": case.normal(rank, ROWS, case.width, name="table"),
        "upstream": case.normal(rank, *mine(case), name="upstream"),
    }


def looked_up_in_the_whole_table(case, inputs):
    """The whole table in one process, by autograd."""
    table = torch.cat([each["table"] for each in inputs]).requires_grad_()
    y = table[inputs[0]["tokens"]]
    (y * tokens_of(inputs, "upstream")).sum().backward()
    found = zip(slices_of(y.detach(), case.n), table.grad.chunk(case.n), strict=True)
    return [{"returns": part, "table.grad": rows} for part, rows in found]


ALL_REDUCED = """
    n = dist.get_world_size(group)

    class Whole(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return gather(scatter(x, group), group)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    class Split(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.chunk(n, 1)[dist.get_rank(group)].contiguous()

        @staticmethod
        def backward(ctx, gradient):
            return gather(gradient, group)

    first = dist.get_rank(group) * len(table)
    here = (tokens >= first) & (tokens < first + len(table))
    found = torch.nn.functional.embedding(torch.where(here, tokens - first, 0), table) * here.unsqueeze(-1)
    return Split.apply(Whole.apply(found))
    """

PUZZLE = Puzzle(
    name="sequence_parallel.embed_a_slice",
    title="An embedding that leaves slices",
    statement="""
        The table of an embedding is split by rows: rank r has the rows of tokens [r · V/n, (r + 1) · V/n). For a token
        of its own a rank can give the row; for any other it gives zeros. The sum over ranks is the embedding, and with
        tensor parallelism an all-reduce gives it to all ranks.

        With sequence parallelism, what comes next wants a slice of the tokens on each rank. So leave slices, and do
        not send what no rank asked for.

        Given are `gather(x, group)`, [B, S/n, D] -> [B, S, D], and `scatter(x, group)`, [B, S, D] -> [B, S/n, D], which
        adds up what all ranks have made, and gives each its slice. Gradients pass through both: each is the backward of
        the other.

        Args:
            tokens: [B, S] of integers in [0, V), the same on every rank; n divides S.
            table: [V/n, D], this rank's rows.
            group: n ranks. Any n.

        Returns: [B, S/n, D], the embedding of this rank's slice of the tokens. After its backward, `table.grad` is that
        of all tokens, of this rank's rows.

        Budget: a slice sent n-1 times, and as much in backward.
        """,
    function=embed,
    cases=cases(worlds=(4,), batch=(2,), slice=(2,), width=(3,))
    + cases(worlds=(3, 2, 1, 5), batch=(1,), slice=(4,), width=(2,))
    + cases(worlds=(8,), batch=(2,), slice=(2,), width=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), batch=(2,), slice=(3,), width=(2,)),
    drawn=on_any_ranks(batch=(1, 2), slice=range(1, 5), width=(2, 3)),
    inputs=tokens_and_my_rows,
    oracle=looked_up_in_the_whole_table,
    drive=there_and_back,
    tolerance=1e-10,
    given=(gather, scatter),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 2 * one_pass(case),
            why="no rank needs the sum of all tokens: scatter it, one pass there, and one pass back",
        ),
    ),
    hints=(
        "An all-reduce is a reduce-scatter and an all-gather. Which of the two would you undo right away?",
        "`here = (tokens >= first) & (tokens < first + len(table))`. Look up row 0 where a token is not here, and make "
        "zeros of what you found.",
        "`found = table[torch.where(here, tokens - first, 0)] * here.unsqueeze(-1)`, then scatter it.",
    ),
    wrong=(
        Wrong(
            "a sum for all ranks, and a slice of it",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*no rank needs the sum of all tokens",
            body=ALL_REDUCED,
        ),
        Wrong(
            "only my slice of the tokens, in my rows",
            diagnosis=r"result\[0, \d, 0\]: expected -?[\d.]+, got",
            edits=(("scatter(found, group)", "found.chunk(group.size(), 1)[group.rank()]"),),
        ),
        Wrong(
            "row 0 for every token of the others",
            diagnosis=r"result\[0, 0, 0\]: expected -?[\d.]+, got",
            edits=((" * here.unsqueeze(-1)", ""),),
        ),
        Wrong(
            "tokens are not counted from the first of my rows",
            diagnosis=r"index out of range",
            edits=(("F.embedding(row.where(here, 0), table)", "F.embedding(tokens.where(here, 0), table)"),),
        ),
        Wrong(
            "every rank's rows wrap around",
            diagnosis=r"result\[0, 0, 0\]: expected -?[\d.]+, got",
            body="return scatter(torch.nn.functional.embedding(tokens % len(table), table), group)",
        ),
        Wrong(
            "one row too many is mine",
            diagnosis=r"index out of range|IndexError",
            edits=(("(row < len", "(row <= len"),),
        ),
        Wrong(
            "the sum without a gradient",
            diagnosis=r"table\.grad: expected a float64 tensor.*got None",
            edits=(("scatter(found, group)", "scatter(found.detach(), group)"),),
        ),
        Wrong(
            "all tokens on every rank",
            diagnosis=r"result: expected a float64 tensor of shape \(2, 2, 3\), got .* of shape \(2, 8, 3\)",
            body=ALL_REDUCED.replace("Split.apply(Whole.apply(found))", "gather(scatter(found, group), group)"),
        ),
    ),
)
