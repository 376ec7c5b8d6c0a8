"""expert_parallel.dispatch: rows to the ranks that have their experts, in the order of experts."""

import torch
import torch.distributed as dist

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, on_any_ranks
from reference.expert_parallel.answers.exchange import dispatch, exchange_rows

from .over_ranks import (
    ANY,
    EXCHANGES,
    WIDTH,
    bytes_there_and_back,
    choices_of,
    chosen_by,
    copies_of,
    counts_of,
    rows_of_experts,
    tokens_of,
)


def tokens_and_counts(case, rank):
    """This rank's tokens, what comes for each of its experts, and the gradient of the rows that it gets."""
    counts = counts_of(case)[:, rank]
    return {
        "x": case.normal(rank, tokens_of(case, rank), WIDTH),
        "chosen": choices_of(case, rank),
        "counts": counts,
        "upstream": case.normal(rank, int(counts.sum()), WIDTH, name="upstream"),
    }


def all_tokens_at_hand(case, inputs):
    """Each expert takes its rows from all ranks; the gradient of a token is the sum of those of its rows."""
    chosen = chosen_by(inputs)
    rows, gradients = [], [torch.zeros_like(each["x"]) for each in inputs]
    for rank, given in enumerate(inputs):
        sources = rows_of_experts(chosen, rank, case.each)
        rows.append(torch.cat([inputs[source]["x"][tokens] for source, tokens, _ in sources]))
        upstreams = given["upstream"].split([len(tokens) for _, tokens, _ in sources])
        for (source, tokens, _), upstream in zip(sources, upstreams, strict=True):
            gradients[source].index_add_(0, tokens, upstream)
    return [{"returns": own, "x.grad": gradient} for own, gradient in zip(rows, gradients, strict=True)]


ALL_TOKENS_TO_ALL_RANKS = """
    n, here = counts.shape
    first, missing = dist.get_rank(group) * here, 16 - len(x)
    padded = torch.cat([x, x.new_zeros(missing, x.shape[1])])
    own = torch.cat([chosen, chosen.new_full((missing, chosen.shape[1]), -1)])
    rows = exchange_rows(padded.repeat(n, 1), [16] * n, [16] * n, group)
    experts = exchange_rows(own.repeat(n, 1), [16] * n, [16] * n, group)
    tokens = [(experts == first + expert).any(1).nonzero()[:, 0] for expert in range(here)]
    return rows[torch.cat(tokens)]
    """

PADDED = """
    n, here = counts.shape
    flat = chosen.flatten()
    parts = []
    for rank in range(n):
        own = flat.where(flat // here == rank, n * here).argsort(stable=True)[: (flat // here == rank).sum()]
        part = x[own // chosen.shape[1]]
        parts.append(torch.cat([part, x.new_zeros(32 - len(part), x.shape[1])]))
    rows = exchange_rows(torch.cat(parts), [32] * n, [32] * n, group).unflatten(0, (n, 32))
    rows = torch.cat([part[:many] for part, many in zip(rows, counts.sum(1).tolist())])
    expert_of_row = torch.arange(here).repeat(n).repeat_interleave(counts.flatten())
    return rows[expert_of_row.argsort(stable=True)]
    """

DIFFERS = r"result\[\d+, \d\]: expected -?[\d.e-]+, got -?[\d.e-]+"

PUZZLE = Puzzle(
    name="expert_parallel.dispatch",
    title="Rows to the ranks of their experts",
    statement="""
        Rank r has the experts from r · E/n to (r+1) · E/n - 1. Send each token to the ranks of its k experts: a row for
        each choice. How many rows come has been exchanged before: `counts`.

        What arrives lies rank by rank: first the rows of rank 0, and within these first those for this rank's first
        expert, if rank 0 has sent them so. But experts compute on one block of rows each. So what has arrived must be
        regrouped: all rows of the first expert, from all ranks in their order, and those of a rank in the order of its
        tokens; then all rows of the second one, ...

        Given is `exchange_rows(x, sent, received, group)`: the first sent[0] rows of `x` go to rank 0, the next sent[1]
        to rank 1; the result has received[0] rows of rank 0 first. Both are lists of ints. Autograd goes back through
        it: gradients travel the other way. That is a call of all ranks, too, so each rank must go back through it.

        Args:
            x: [T, D], tokens of this rank. T may be 0, and differ from rank to rank.
            chosen: [T, k] of int64, experts of each token, none of them twice.
            counts: [n, E/n] of int64, how many rows come from each rank for each expert of this rank.
            group: n ranks. Any n.

        Returns: [N, D], the rows that this rank's experts compute, with gradients for x.

        Budget: one exchange there and one back, and in it only rows that leave their rank, each choice once.
        """,
    function=dispatch,
    cases=EXCHANGES,
    drawn=on_any_ranks(**ANY),
    inputs=tokens_and_counts,
    oracle=all_tokens_at_hand,
    drive=there_and_back,
    tolerance=1e-10,
    calls=(dist.all_to_all_single,),
    given=(exchange_rows,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: bytes_there_and_back(counts_of(case).sum(2)),
            optimum=lambda case: bytes_there_and_back(copies_of(case)),
            why="a row goes to the rank of its expert and to no other, and nothing is added to make parts equally long",
        ),
        Budget(
            Measure.CALLS,
            target=lambda case: 2,
            why="all choices travel in one exchange, in the order of their experts",
        ),
    ),
    hints=(
        "In the order of experts, choices are in the order of ranks, too. How many of them go to each rank? And when "
        "rows of all ranks have arrived: of which expert is each row? `counts` tells it.",
        "Before: `order = chosen.flatten().argsort(stable=True)`, rows `x[order // k]`, and "
        "`torch.bincount(chosen.flatten() // here, minlength=n)` of them for each rank, where `here` is E/n. What "
        "comes from each rank: `counts.sum(1)`.",
        "After: what arrives is for experts 0, 1, .. of rank 0's rows, 0, 1, .. of rank 1's, ..: "
        "`torch.arange(here).repeat(n).repeat_interleave(counts.flatten())` has the expert of each row. Sort it, "
        "stably, and take the rows in that order.",
    ),
    wrong=(
        Wrong(
            "regrouped by rank, and not by expert",
            diagnosis=DIFFERS,
            edits=(("rows[expert_of_row.argsort(stable=True)]", "rows"),),
        ),
        Wrong(
            "the rank of each row, in the place of its expert",
            diagnosis=DIFFERS,
            edits=(
                (
                    "torch.arange(here).repeat(n).repeat_interleave",
                    "torch.arange(n).repeat_interleave(here).repeat_interleave",
                ),
            ),
        ),
        Wrong(
            "as if what arrives lay expert by expert",
            diagnosis=DIFFERS,
            edits=(
                (
                    "torch.arange(here).repeat(n).repeat_interleave(counts.flatten())",
                    "torch.arange(here).repeat_interleave(n).repeat_interleave(counts.flatten())",
                ),
            ),
        ),
        Wrong(
            "the order in the place of its inverse",
            diagnosis=r"(result|x\.grad)\[\d+, \d\]: expected",
            edits=(("expert_of_row.argsort(stable=True)", "expert_of_row.argsort(stable=True).argsort()"),),
        ),
        Wrong(
            "rows leave in the order of tokens",
            diagnosis=DIFFERS,
            edits=(
                ("    order = chosen.flatten().argsort(stable=True)\n", "    order = torch.arange(chosen.numel())\n"),
            ),
        ),
        Wrong(
            "rows leave in the order of ranks, and within these of tokens",
            diagnosis=r"(result|x\.grad)\[\d+, \d\]: expected",
            edits=(("order = chosen.flatten().argsort", "order = (chosen.flatten() // here).argsort"),),
        ),
        Wrong(
            "the token of a choice: a remainder, as if first choices came before second ones",
            diagnosis=DIFFERS,
            edits=(("x[order // chosen.shape[1]]", "x[order % max(len(x), 1)]"),),
        ),
        Wrong(
            "experts are dealt out to ranks in turn",
            diagnosis=r"rank \d sends \d+ rows to rank \d, which expects \d+",
            edits=(("chosen.flatten() // here, minlength", "chosen.flatten() % n, minlength"),),
        ),
        Wrong(
            "sent and received are exchanged",
            diagnosis=r"input splits add up to \d+, the input has \d+ rows",
            edits=(("sent, counts.sum(1).tolist(), group", "counts.sum(1).tolist(), sent, group"),),
        ),
        Wrong(
            "autograd does not see the exchange",
            diagnosis=r"x\.grad: expected a float64 tensor of shape \(\d, 3\), got None",
            edits=(("exchange_rows(x[order", "exchange_rows(x.detach()[order"),),
        ),
        Wrong(
            "a rank without tokens stays away",
            diagnosis=r"finished without it|rank \d never|deadlock|waits",
            edits=(
                (
                    "    n, here = counts.shape\n",
                    "    n, here = counts.shape\n    if not len(x):\n"
                    "        return x.new_zeros(int(counts.sum()), x.shape[1])\n",
                ),
            ),
        ),
        Wrong(
            "each token once to each rank: rows for several experts are missing",
            diagnosis=r"rank \d sends \d+ rows to rank \d, which expects \d+",
            edits=(
                (
                    "    order = chosen.flatten().argsort(stable=True)\n",
                    "    chosen = chosen[:, :1]\n    order = chosen.flatten().argsort(stable=True)\n",
                ),
            ),
        ),
        Wrong(
            "all tokens to all ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*to no other",
            body=ALL_TOKENS_TO_ALL_RANKS,
        ),
        Wrong(
            "parts of one length",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*equally long",
            body=PADDED,
        ),
    ),
)
