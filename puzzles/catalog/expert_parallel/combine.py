"""expert_parallel.combine: what experts have made goes back to its tokens."""

import torch
import torch.distributed as dist

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, on_any_ranks
from reference.expert_parallel.answers.exchange import combine, exchange_rows

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


def rows_and_weights(case, rank):
    """What this rank's experts have made, the weights of its tokens, and the gradient of what these get."""
    counts, chosen = counts_of(case)[:, rank], choices_of(case, rank)
    return {
        "made": case.normal(rank, int(counts.sum()), WIDTH, name="made"),
        "counts": counts,
        "chosen": chosen,
        "weights": case.normal(rank, *chosen.shape, name="weights"),
        "upstream": case.normal(rank, tokens_of(case, rank), WIDTH, name="upstream"),
    }


def all_rows_at_hand(case, inputs):
    """Each row finds its token, whichever rank has it; gradients by hand."""
    chosen = chosen_by(inputs)
    out = [torch.zeros_like(each["upstream"]) for each in inputs]
    of_weights = [torch.zeros_like(each["weights"]) for each in inputs]
    of_made = []
    for rank, given in enumerate(inputs):
        sources = rows_of_experts(chosen, rank, case.each)
        gradients = []
        parts = given["made"].split([len(tokens) for _, tokens, _ in sources])
        for (source, tokens, choices), made in zip(sources, parts, strict=True):
            weights, upstream = inputs[source]["weights"][tokens, choices], inputs[source]["upstream"][tokens]
            out[source].index_add_(0, tokens, weights[:, None] * made)
            of_weights[source][tokens, choices] = (made * upstream).sum(1)
            gradients.append(weights[:, None] * upstream)
        of_made.append(torch.cat(gradients))
    return [
        {"returns": out[rank], "made.grad": of_made[rank], "weights.grad": of_weights[rank]} for rank in range(case.n)
    ]


CHOICE_BY_CHOICE = """
    n, here = counts.shape
    expert_of_row = torch.arange(here).repeat(n).repeat_interleave(counts.flatten())
    by_rank = made[expert_of_row.argsort(stable=True).argsort()]
    order = chosen.flatten().argsort(stable=True)
    k, own_back = chosen.shape[1], torch.bincount(chosen.flatten() // here, minlength=n).tolist()
    which = exchange_rows(order % k, own_back, counts.sum(1).tolist(), group)  # which choice of its token a row is
    of_rank = torch.arange(n).repeat_interleave(counts.sum(1))
    out = 0
    for choice in range(k):
        sent = torch.bincount(of_rank[which == choice], minlength=n).tolist()
        own = chosen[:, choice]
        back = torch.bincount(own // here, minlength=n).tolist()
        rows = exchange_rows(by_rank[which == choice], sent, back, group)
        out = out + rows[own.argsort(stable=True).argsort()] * weights[:, choice, None]
    return out
    """

PADDED = """
    n, here = counts.shape
    expert_of_row = torch.arange(here).repeat(n).repeat_interleave(counts.flatten())
    by_rank = made[expert_of_row.argsort(stable=True).argsort()]
    back = torch.bincount(chosen.flatten() // here, minlength=n).tolist()
    parts = by_rank.split(counts.sum(1).tolist())
    parts = [torch.cat([part, part.new_zeros(32 - len(part), part.shape[1])]) for part in parts]
    rows = exchange_rows(torch.cat(parts), [32] * n, [32] * n, group).unflatten(0, (n, 32))
    rows = torch.cat([part[:many] for part, many in zip(rows, back)])
    order = chosen.flatten().argsort(stable=True)
    of_choices = rows[order.argsort()].view(-1, chosen.shape[1], rows.shape[1])
    return (of_choices * weights[..., None]).sum(1)
    """

DIFFERS = r"result\[\d+, \d\]: expected -?[\d.e-]+, got -?[\d.e-]+"

PUZZLE = Puzzle(
    name="expert_parallel.combine",
    title="What experts made, back to its tokens",
    statement="""
        The experts of this rank have computed the rows that came to them. What they made goes back to where each row
        came from, and there a token adds up what its k experts made of it, weighed.

        All that was done on the way there is undone on the way back, in the opposite order. There, each rank sorted its
        choices by expert, the rows travelled, and those that arrived rank by rank were regrouped: all rows of this
        rank's first expert, from all ranks in their order; then all rows of the second one, ... So lies what the
        experts have made, in `made`.

        Given is `exchange_rows(x, sent, received, group)`: the first sent[0] rows of `x` go to rank 0, the next sent[1]
        to rank 1; the result has received[0] rows of rank 0 first. Both are lists of ints. Autograd goes back through
        it: gradients travel the other way. That is a call of all ranks, too, so each rank must go back through it.

        Args:
            made: [N, D], what this rank's experts made. N may be 0.
            counts: [n, E/n] of int64, how many rows came from each rank for each expert of this rank. N is their sum.
            chosen: [T, k] of int64, experts of this rank's tokens, none of them twice. T may be 0. Rank r has the
                experts from r · E/n to (r+1) · E/n - 1.
            weights: [T, k], of what they make.
            group: n ranks. Any n.

        Returns: [T, D], with gradients for made and weights.

        Budget: one exchange there and one back, and in it only rows that leave their rank, each once.
        """,
    function=combine,
    cases=EXCHANGES,
    drawn=on_any_ranks(**ANY),
    inputs=rows_and_weights,
    oracle=all_rows_at_hand,
    drive=there_and_back,
    tolerance=1e-10,
    calls=(dist.all_to_all_single,),
    given=(exchange_rows,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: bytes_there_and_back(counts_of(case).sum(2)),
            optimum=lambda case: bytes_there_and_back(copies_of(case)),
            why="a row goes back to the rank of its token, and nothing is added to make parts equally long",
        ),
        Budget(
            Measure.CALLS,
            target=lambda case: 2,
            why="what was made for all choices travels in one exchange, in the order in which rows came",
        ),
    ),
    hints=(
        "To take x[order] back, one needs the order's inverse: the place that each element has in it. How does "
        "`argsort` find it? Two sorts have to be undone here, and an exchange between them. Which one first?",
        "The expert of each row as it arrived: `torch.arange(here).repeat(n).repeat_interleave(counts.flatten())`, "
        "where `here` is E/n. Sorted stably, that gave the order in which `made` lies; "
        "`made[expert_of_row.argsort(stable=True).argsort()]` lies as rows arrived, rank by rank.",
        "This rank gets back what it sent: `torch.bincount(chosen.flatten() // here, minlength=n)` rows of each rank, "
        "in the order `chosen.flatten().argsort(stable=True)`. Undo it as well; then `.view(-1, k, D)`, times "
        "`weights[..., None]`, and `.sum(1)`.",
    ),
    wrong=(
        Wrong(
            "rows leave in the order of experts, and not rank by rank",
            diagnosis=DIFFERS,
            edits=(("made[expert_of_row.argsort(stable=True).argsort()]", "made"),),
        ),
        Wrong(
            "sorted once more, and not back",
            diagnosis=DIFFERS,
            edits=(("expert_of_row.argsort(stable=True).argsort()", "expert_of_row.argsort(stable=True)"),),
        ),
        Wrong(
            "rows stay in the order of experts when they are back",
            diagnosis=DIFFERS,
            edits=(("rows[order.argsort()]", "rows"),),
        ),
        Wrong(
            "the order in the place of its inverse",
            diagnosis=DIFFERS,
            edits=(("rows[order.argsort()]", "rows[order]"),),
        ),
        Wrong(
            "first choices are taken to come before second ones",
            diagnosis=DIFFERS,
            edits=(
                (
                    ".view(-1, chosen.shape[1], rows.shape[1])",
                    ".view(chosen.shape[1], -1, rows.shape[1]).transpose(0, 1)",
                ),
            ),
        ),
        Wrong(
            "not weighed",
            diagnosis=DIFFERS,
            edits=((" * weights[..., None]", ""),),
        ),
        Wrong(
            "weights add up to k, and so they are divided by it",
            diagnosis=DIFFERS,
            edits=((").sum(1)", ").mean(1)"),),
        ),
        Wrong(
            "sent and received are exchanged",
            diagnosis=r"input splits add up to \d+, the input has \d+ rows",
            edits=(("counts.sum(1).tolist(), back, group", "back, counts.sum(1).tolist(), group"),),
        ),
        Wrong(
            "autograd does not see the exchange",
            diagnosis=r"made\.grad: expected a float64 tensor of shape \(\d+, 3\), got None",
            edits=(("exchange_rows(by_rank,", "exchange_rows(by_rank.detach(),"),),
        ),
        Wrong(
            "the router does not learn: weights without a history",
            diagnosis=r"weights\.grad: expected a float64 tensor of shape \(\d+, \d\), got None",
            edits=(("weights[..., None]", "weights.detach()[..., None]"),),
        ),
        Wrong(
            "experts get the gradient of the sum, not weighed",
            diagnosis=r"made\.grad\[\d+, \d\]: expected",
            edits=(
                (
                    "(of_choices * weights[..., None]).sum(1)",
                    "(of_choices + (of_choices * (weights[..., None] - 1)).detach() + of_choices.detach() "
                    "* (weights - weights.detach())[..., None]).sum(1)",
                ),
            ),
        ),
        Wrong(
            "a rank without tokens stays away",
            diagnosis=r"finished without it|rank \d never|deadlock|waits",
            edits=(
                (
                    "    n, here = counts.shape\n",
                    "    n, here = counts.shape\n    if not len(chosen):\n        return made[:0]\n",
                ),
            ),
        ),
        Wrong(
            "parts of one length",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*equally long",
            body=PADDED,
        ),
        Wrong(
            "choice by choice",
            diagnosis=r"right, but (rank \d sent [\d,]+ B|a rank makes \d+ calls) where [\d,]+ must do",
            body=CHOICE_BY_CHOICE,
        ),
    ),
)
