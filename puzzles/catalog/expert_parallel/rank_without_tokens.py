"""expert_parallel.rank_without_tokens: a rank has nothing to compute, and all others wait for it."""

import torch
import torch.distributed as dist

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.expert_parallel.answers.empty import mixture
from reference.expert_parallel.answers.exchange import exchange_rows

from .over_ranks import (
    ANY,
    INTEGER,
    WIDTH,
    bytes_there_and_back,
    choices_of,
    copies_of,
    counts_of,
    tokens_of,
)

HIDDEN = 2


def tokens_and_experts(case, rank):
    """This rank's tokens, with the experts that they choose, and the matrices of its own experts."""
    tokens = tokens_of(case, rank)
    return {
        "x": case.normal(rank, tokens, WIDTH),
        "chosen": choices_of(case, rank),
        "weights": case.normal(rank, tokens, case.k, name="weights"),
        "up": case.normal(rank, case.each, HIDDEN, WIDTH, name="up"),
        "down": case.normal(rank, case.each, WIDTH, HIDDEN, name="down"),
        "upstream": case.normal(rank, tokens, WIDTH, name="upstream"),
    }


def one_process(case, inputs):
    """All experts compute all tokens, and a mask says whose results count."""
    names = ("x", "weights", "up", "down")
    leaves = {name: [each[name].clone().requires_grad_() for each in inputs] for name in names}
    x, weights, up, down = (torch.cat(leaves[name]) for name in names)
    chosen = torch.cat([each["chosen"] for each in inputs])
    made = torch.einsum("etf,edf->ted", torch.tanh(torch.einsum("td,efd->etf", x, up)), down)
    by_expert = torch.zeros(len(x), len(up), dtype=torch.float64).scatter_add(1, chosen, weights)
    out = torch.einsum("te,ted->td", by_expert, made)
    flat = [leaf for name in names for leaf in leaves[name]]
    gradients = torch.autograd.grad(out, flat, torch.cat([each["upstream"] for each in inputs]))
    by_name = {name: gradients[index * case.n : (index + 1) * case.n] for index, name in enumerate(names)}
    parts = out.detach().split([len(each["x"]) for each in inputs])
    return [
        {"returns": parts[rank], **{f"{name}.grad": by_name[name][rank] for name in names}} for rank in range(case.n)
    ]


def sent(case, between):
    """Bytes of counts, and of rows there and back, in forward and in backward; `between` ranks, [n, n]."""
    return (case.n - 1) * case.each * INTEGER + 2 * bytes_there_and_back(between)


BROKEN = """
    n, here, k = dist.get_world_size(group), len(up), chosen.shape[1]
    order = chosen.flatten().argsort(stable=True)
    wanted = torch.bincount(chosen.flatten(), minlength=n * here).view(n, here)
    counts = torch.empty_like(wanted)
    dist.all_to_all_single(counts, wanted, group=group)
    sent, received = wanted.sum(1).tolist(), counts.sum(1).tolist()

    rows = exchange_rows(x[order // k], sent, received, group)
    if len(rows) == 0:
        made = torch.empty(0, x.shape[1], dtype=x.dtype)
    else:
        expert_of_row = torch.arange(here).repeat(n)
        expert_of_row = expert_of_row.repeat_interleave(counts.flatten())
        by_expert = expert_of_row.argsort(stable=True)
        parts = rows[by_expert].split(counts.sum(0).tolist())
        outputs = []
        for part, a, b in zip(parts, up, down):
            outputs.append(torch.tanh(part @ a.T) @ b.T)
        made = torch.cat(outputs)[by_expert.argsort()]

    back = exchange_rows(made, received, sent, group)
    of_choices = back[order.argsort()].view(-1, k, x.shape[1])
    return (of_choices * weights[..., None]).sum(1)
    """
EMPTY = "        made = torch.empty(0, x.shape[1], dtype=x.dtype)\n"
HANGS = r"rank \d finished without it|rank \d never|deadlock|waits"

PUZZLE = Puzzle(
    name="expert_parallel.rank_without_tokens",
    title="A rank that gets no tokens",
    statement="""
        A layer of experts over ranks trains for hours. Then, in one step, it hangs. Forward has succeeded on all ranks.
        One of them has left backward and waits in the all-reduce of gradients; all others wait in backward, in an
        exchange of rows. In that step no token of any rank had chosen an expert of that one rank.

        With few tokens, or a router that has favourites, this is no rare case. It was found in several of the libraries
        that large models are trained with, each time anew.

        Mend the program. A rank may get no rows, or have no tokens, or both. It must go through the same exchanges as
        all others, in backward, too. And parameters of experts that had nothing to do get gradients, of zeros: what
        comes after, a sum over replicas or a norm of all gradients, counts on them.

        Given is `exchange_rows(x, sent, received, group)`, which is right: the first sent[0] rows of `x` go to rank 0,
        the next sent[1] to rank 1; the result has received[0] rows of rank 0 first. Its backward is the same exchange
        the other way, and a call of all ranks.

        Args:
            x: [T, D], tokens of this rank. T may be 0, and differ from rank to rank.
            chosen: [T, k] of int64, experts of each token, none of them twice. Rank r has the experts from r · E/n to
                (r+1) · E/n - 1.
            weights: [T, k], of what they make.
            up: [E/n, F, D], of this rank's experts. One expert makes tanh(row @ up.T) @ down.T of a row.
            down: [E/n, D, F].
            group: n ranks. Any n.

        Returns: [T, D], with gradients for x, weights, up and down.

        Budget: one exchange of counts, one of rows there and one back, the last two in backward, too; and no row that
        no token has asked for.
        """,
    function=mixture,
    body=BROKEN,
    cases=cases(worlds=(4,), tokens=("different",), liked=("all", "not the first rank's"), each=(2,), k=(2,))
    + cases(worlds=(4,), tokens=("none on the first", "none"), liked=("all",), each=(2,), k=(2,))
    + cases(worlds=(3,), tokens=("all on the last",), liked=("not the last rank's",), each=(1, 2), k=(2,))
    + cases(worlds=(2,), tokens=("none on the first",), liked=("not the first rank's",), each=(2,), k=(1,))
    + cases(worlds=(1, 5), tokens=("different",), liked=("few",), each=(3,), k=(2,))
    + cases(worlds=(8,), tokens=("all on the last",), liked=("few",), each=(1,), k=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), tokens=("different",), liked=("not the last rank's",), each=(2,), k=(2,)),
    drawn=on_any_ranks(**{**ANY, "liked": ("few", "not the first rank's", "not the last rank's")}),
    inputs=tokens_and_experts,
    oracle=one_process,
    drive=there_and_back,
    tolerance=1e-10,
    calls=(dist.all_to_all_single, dist.all_reduce),
    given=(exchange_rows,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 5,
            why="no rank has to ask whether another one has nothing: each does the same, whatever it has",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: sent(case, counts_of(case).sum(2)),
            optimum=lambda case: sent(case, copies_of(case)),
            why="zero rows can be computed, too: no row has to be made up so that each rank has one",
        ),
    ),
    hints=(
        "Forward does the same calls on all ranks. Backward goes along the history of what is returned. Which part of "
        "it is missing on a rank that gets no rows? Which calls would have been made there?",
        "What is made of no rows must still come from `rows`, and from `up` and `down`. What does torch make of "
        "`torch.zeros(0, 3) @ torch.zeros(3, 2)`, and what does autograd make of it?",
        "Each line of the second branch is right for zero rows, as well: `split` gives empty parts, their products are "
        "empty and have a history, `cat` joins them. So there is no need for the first branch.",
    ),
    wrong=(
        Wrong(
            "no rows, no history, as it was",
            diagnosis=HANGS,
            body=BROKEN + "    # until one day\n",
        ),
        Wrong(
            "what is made has a gradient, and still does not come from the rows",
            diagnosis=HANGS,
            body=BROKEN.replace("dtype=x.dtype)", "dtype=x.dtype, requires_grad=True)"),
        ),
        Wrong(
            "it comes from the parameters, and not from the rows",
            diagnosis=HANGS,
            body=BROKEN.replace(EMPTY, EMPTY + "        made = made + 0 * (up.sum() + down.sum())\n"),
        ),
        Wrong(
            "it comes from the rows, and not from the parameters",
            diagnosis=r"up\.grad: expected a float64 tensor of shape \(2, 2, 3\), got None",
            body=BROKEN.replace(EMPTY, "        made = rows\n"),
        ),
        Wrong(
            "gradients of zeros by hand, and no exchange",
            diagnosis=HANGS,
            body=BROKEN.replace(
                EMPTY, EMPTY + "        up.grad, down.grad = torch.zeros_like(up), torch.zeros_like(down)\n"
            ),
        ),
        Wrong(
            "a rank that gets no rows returns at once",
            diagnosis=HANGS,
            body=BROKEN.replace(EMPTY, "        return x\n"),
        ),
        Wrong(
            "a rank that has no tokens returns at once",
            diagnosis=HANGS,
            edits=(
                (
                    "    order = chosen.flatten().argsort(stable=True)\n",
                    "    if not len(x):\n        return x\n    order = chosen.flatten().argsort(stable=True)\n",
                ),
            ),
        ),
        Wrong(
            "experts without rows are skipped, one by one",
            diagnosis=r"expected a non-empty list of Tensors",
            edits=(
                (
                    " for part, a, b in zip(parts, up, down, strict=True)]",
                    " for part, a, b in zip(parts, up, down, strict=True) if len(part)]",
                ),
            ),
        ),
        Wrong(
            "experts without rows are skipped, and zero rows are put beside them",
            diagnosis=r"up\.grad: expected a float64 tensor of shape \(2, 2, 3\), got None",
            edits=(
                (
                    "torch.cat([torch.tanh(part @ a.T) @ b.T for part, a, b in zip(parts, up, down, strict=True)])",
                    "torch.cat([rows[:0], *(torch.tanh(part @ a.T) @ b.T for part, a, b in zip(parts, up, down) "
                    "if len(part))])",
                ),
            ),
        ),
        Wrong(
            "a row of zeros for each rank, so that none is without",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*no row has to be made up",
            edits=(
                (
                    "    order = chosen.flatten().argsort(stable=True)\n",
                    "    x = torch.cat([x, x.new_zeros(n, x.shape[1])])\n"
                    "    firsts = here * torch.arange(n)[:, None].expand(n, k)\n"
                    "    chosen, weights = torch.cat([chosen, firsts]), torch.cat([weights, weights.new_zeros(n, k)])\n"
                    "    order = chosen.flatten().argsort(stable=True)\n",
                ),
                (" * weights[..., None]).sum(1)", " * weights[..., None]).sum(1)[: len(x) - n]"),
            ),
        ),
        Wrong(
            "ranks ask each other whether one of them has nothing",
            diagnosis=r"right, but a rank makes 6 calls where 5 must do.*\n.*no rank has to ask",
            edits=(
                (
                    "    rows = exchange_rows(",
                    "    least = counts.sum()\n    dist.all_reduce(least, dist.ReduceOp.MIN, group=group)\n"
                    "    rows = exchange_rows(",
                ),
            ),
        ),
    ),
)
