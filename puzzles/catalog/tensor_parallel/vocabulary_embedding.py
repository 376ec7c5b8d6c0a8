"""tensor_parallel.vocabulary_embedding: each rank has some rows of the table."""

from functools import partial
from math import prod

import torch
import torch.distributed as dist

from puzzles.grading.drives.tensor_parallel import named
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.tensor_parallel.answers.vocabulary import look_up

from .common import ALL_GATHER, DOUBLE, all_reduces, part, whole

NAMES = ("what is found", "gradient of table")
ROWS, WIDTH = 24, 3


def tokens_of(case, rows, name="tokens"):
    """Tokens, the same on every rank; some of them twice. `of` says whose they are: of any ranks, or all of one."""
    drawn = case.tensor(0, case.tokens, dtype=torch.int64, name=name)
    found = drawn % (case.n * rows) if case.of == "any rank" else drawn % rows + (case.n - 1) * rows
    return torch.cat([found, found[:2]])


def sizes_of(case):
    """Rows that a rank has, and how wide they are."""
    return case.get("rows", ROWS), case.get("width", WIDTH)


def whole_table(case):
    """The rows of all ranks."""
    rows, width = sizes_of(case)
    return whole(case, "table", case.n * rows, width)


def rows_and_tokens(case, rank):
    """All tokens, this rank's rows, and the gradient of what is found."""
    rows, width = sizes_of(case)
    tokens = tokens_of(case, rows)
    return {
        "tokens": tokens,
        "table": part(whole_table(case), case, rank, 0),
        "upstream": whole(case, "upstream", len(tokens), width),
    }


def one_whole_table(case, inputs):
    """torch's own embedding with all rows, by autograd."""
    table = whole_table(case).requires_grad_()
    found = torch.nn.functional.embedding(inputs[0]["tokens"], table)
    (found * inputs[0]["upstream"]).sum().backward()
    shards = [part(table.grad, case, rank, 0) for rank in range(case.n)]
    return [{"returns": "2 tensors", **dict(zip(NAMES, (found.detach(), each), strict=True))} for each in shards]


def found_bytes(case):
    """Bytes of what is found."""
    return (case.tokens + 2) * sizes_of(case)[1] * DOUBLE


def shard_bytes(case):
    """Bytes of a rank's rows."""
    return DOUBLE * prod(sizes_of(case))


PUZZLE = Puzzle(
    name="tensor_parallel.vocabulary_embedding",
    title="An embedding, split by vocabulary",
    statement="""
        The embedding of Llama 3 has 128,256 rows. Share them: of V rows rank r has the r-th n-th, and every rank needs
        what the *whole* table gives for all tokens. Of most tokens it does not have the row.

        Look up what this rank has, let the others add what they have, and find the gradient of this rank's rows. A row
        gets the upstream gradients of all places in the text where its token stands.

        Args:
            tokens: [T] of integers from 0 to V - 1, the same on every rank. Some come more than once.
            table: [V / n, D], this rank's rows.
            upstream: [T, D], gradient of the loss with respect to what is found, the same on every rank.
            group: n ranks. Any n.

        Returns: two tensors: what is found, [T, D], the same on every rank; the gradient of this rank's rows,
        [V / n, D].

        Budget: one all-reduce of T D numbers. Memory for a few tensors of T D numbers and for the gradient, but for
        nothing of T V / n numbers.
        """,
    function=look_up,
    cases=cases(worlds=(2, 3, 4, 1, 5, 8), tokens=(7,), of=("any rank",))
    + cases(worlds=(3, 4), tokens=(5,), of=("one rank",))
    + cases(worlds=(4,), members=(0, 2, 3), tokens=(6,), of=("any rank",)),
    drawn=on_any_ranks(tokens=range(4, 9), of=("any rank", "one rank")),
    large=case(2, tokens=3000, of="any rank", rows=12_000, width=160),
    inputs=rows_and_tokens,
    oracle=one_whole_table,
    drive=partial(named, NAMES),
    calls=(dist.all_reduce, *ALL_GATHER),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: all_reduces(case, (case.tokens + 2, sizes_of(case)[1])),
            why="rows stay where they are: what travels is one vector for each token",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 3 * found_bytes(case) + shard_bytes(case) + 64 * (case.tokens + 2),
            optimum=lambda case: found_bytes(case) + shard_bytes(case),
            why="no matrix of tokens times vocabulary: an index says the same as a row of zeros with a one",
        ),
    ),
    hints=(
        "For a token that lives elsewhere, what must this rank add so that the sum over ranks is right? And which row "
        "may it read meanwhile, without an index error?",
        "`here = tokens - rank * len(table)`, `mine = (here >= 0) & (here < len(table))`. Read row "
        "`here.where(mine, 0)`, and multiply what you read with `mine.unsqueeze(-1)`.",
        "Backward, too, only `mine` counts, and a token that stands in two places adds twice: "
        "`torch.zeros_like(table).index_add_(0, row, upstream * mine.unsqueeze(-1))`. Does it have to travel?",
    ),
    wrong=(
        Wrong(
            "every rank adds a row for every token",
            diagnosis=r"rank 0, what is found\[\d, 0\]: expected",
            edits=(("found = table[row] * mine.unsqueeze(-1)", "found = table[row]"),),
        ),
        Wrong(
            "an index that this rank does not have",
            diagnosis=r"index \d+ is out of bounds|out of range",
            edits=(("here.where(mine, 0)", "here"),),
        ),
        Wrong(
            "negative indices count from the end",
            diagnosis=r"index -\d+ is out of bounds",
            edits=(("mine = (here >= 0) & (here < rows)", "mine = here < rows"),),
        ),
        Wrong(
            "masked after the sum",
            diagnosis=r"what is found\[\d, 0\]: expected",
            edits=(
                ("found = table[row] * mine.unsqueeze(-1)", "found = table[row]"),
                ("    return found,", "    found *= mine.unsqueeze(-1)\n    return found,"),
            ),
        ),
        Wrong(
            "row 0 gets the gradients of the tokens of others",
            diagnosis=r"gradient of table\[0, 0\]: expected",
            edits=(("upstream * mine.unsqueeze(-1)", "upstream"),),
        ),
        Wrong(
            "of a token that comes twice, the last place wins",
            diagnosis=r"gradient of table\[\d+, 0\]: expected",
            edits=(
                (
                    "torch.zeros_like(table).index_add_(0, row, upstream * mine.unsqueeze(-1))",
                    "torch.zeros_like(table)\n    gradient[row[mine]] = upstream[mine]",
                ),
            ),
        ),
        Wrong(
            "the upstream gradient is summed, too",
            diagnosis=r"gradient of table\[\d+, 0\]: expected",
            edits=(
                (
                    "    gradient = torch.zeros",
                    "    upstream = upstream.clone()\n    dist.all_reduce(upstream, group=group)\n"
                    "    gradient = torch.zeros",
                ),
            ),
        ),
        Wrong(
            "the whole table is gathered",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*rows stay where they are",
            edits=(
                (
                    "    found = table[row] * mine.unsqueeze(-1)\n    dist.all_reduce(found, group=group)\n",
                    "    every = [torch.empty_like(table) for _ in range(dist.get_world_size(group))]\n"
                    "    dist.all_gather(every, table, group=group)\n"
                    "    found = torch.cat(every)[tokens]\n",
                ),
            ),
        ),
        Wrong(
            "a one in a row of zeros for each token",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*an index says the same",
            body="""
                rows = torch.arange(len(table)) + dist.get_rank(group) * len(table)
                one_hot = (tokens.unsqueeze(-1) == rows).to(table.dtype)
                found = one_hot @ table
                dist.all_reduce(found, group=group)
                return found, one_hot.T @ upstream
                """,
        ),
    ),
)
