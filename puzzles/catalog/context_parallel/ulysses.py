"""context_parallel.ulysses: some heads of all tokens, in exchange for some tokens of all heads."""

import torch
import torch.distributed as dist

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives.compat import all_gather_single, reduce_scatter_single
from reference.context_parallel.answers.heads import ulysses
from reference.context_parallel.plain import attend

from .in_one_process import attention_of_all, bytes_of, tokens_of_a_rank

ROWS = (
    "x.unflatten(1, (n, -1)) for x in (query, key, value)], dim=2)  # [B, n, heads, S / n, d]",
    "received = _Exchange.apply(packed.movedim(1, 0), group)",
)


def positions_of(case):
    """Slices of the sequence, one after another: [n, S / n]."""
    return torch.arange(case.n * case.local).view(case.n, -1)


def in_one_process(case, inputs):
    """All tokens and all heads."""
    return attention_of_all(case, inputs, positions_of(case))


def a_rank(case, rank):
    """This rank's slice; as many heads as a case has for each rank, times n."""
    return tokens_of_a_rank(case, rank, case.local)


def sent(case):
    """Bytes that a rank sends: of queries, keys, values and outputs all but its own n-th, there and back."""
    return 2 * (case.n - 1) * bytes_of(case, 2 * (case.heads + case.kv_heads), case.local) // case.n


def sized(worlds, local, each, kv_each, members=None):
    """Cases with so many heads for each rank."""
    return tuple(
        case
        for n in worlds
        for case in cases(
            worlds=(n,),
            members=members,
            local=local,
            heads=tuple((len(members) if members else n) * one for one in each),
            kv_heads=((len(members) if members else n) * kv_each,),
        )
    )


BY_ALL_GATHER = """
    rank, n = dist.get_rank(group), dist.get_world_size(group)

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            every = x.new_empty(n, *x.shape)
            dist.all_gather_single(every.flatten(0, 1), x.contiguous(), group=group)
            return every

        @staticmethod
        def backward(ctx, gradient):
            own = gradient.new_empty(gradient.shape[1:])
            dist.reduce_scatter_single(own, gradient.contiguous().flatten(0, 1), group=group)
            return own

    heads, shared = query.shape[1], key.shape[1]
    every = Gather.apply(torch.cat([query, key, value], 1)).movedim(0, 2).flatten(2, 3)
    seen = torch.ones(every.shape[2], every.shape[2], dtype=torch.bool).tril()
    out = attend(*every.split([heads, shared, shared], 1), seen)[0]
    return out.chunk(n, 2)[rank]
"""

PUZZLE = Puzzle(
    name="context_parallel.ulysses",
    title="Ulysses: to heads and back",
    statement="""
        Attention treats each head by itself, everything else each token. So while attention lasts, share out heads and
        not tokens: rank r comes with the r-th slice of the sequence, of all heads; it gets all tokens of the r-th n-th
        of the heads, computes their attention as one process would; and gives each rank the output of its tokens.

            [B, H, S/n, d]  --all-to-all-->  [B, H/n, S, d]
            [B, H/n, S, d]  --attention-->   [B, H/n, S, d]
            [B, H/n, S, d]  --all-to-all-->  [B, H, S/n, d]

        That is a transposition there and one back. A rank sends less, the more ranks there are; a ring does not.
        What is the gradient of a transposition?

        Given is `attend(query, key, value, seen)`: [B, H, S, d] with [B, K, S, d], and `seen`, [S, S] of bool: which
        query sees which key. Here each sees those up to its own. It returns the output and its logsumexps. Autograd
        goes back through it, and not through `dist.all_to_all_single(out, x, group=group)`, for which you need a
        `torch.autograd.Function`. That call sees memory: both tensors are contiguous, and the r-th n-th of the rows
        (dim 0) of `x` goes to rank r.

        Args:
            query: [B, H, S/n, d], of this rank's tokens; n divides H.
            key, value: [B, K, S/n, d]; n divides K, and K divides H.
            group: n ranks. Any n.

        Returns: [B, H, S/n, d], with gradients for query, key and value.

        Budget: two collectives there and two back, and (n-1)/n of queries, keys, values and outputs sent each way.
        """,
    function=ulysses,
    cases=sized((2,), (2,), (1, 2), 1)
    + sized((4,), (1, 3), (1,), 1)
    + sized((3,), (2, 3), (2,), 2)
    + sized((1, 5), (2,), (4,), 2)
    + sized((8,), (1,), (1,), 1)
    + sized((4,), (2,), (2,), 1, members=(0, 2, 3)),
    drawn=on_any_ranks(
        local=(1, 2, 3),
        heads=lambda so_far: (2 * so_far.n, 4 * so_far.n),
        kv_heads=lambda so_far: (so_far.n, 2 * so_far.n),
    ),
    inputs=a_rank,
    oracle=in_one_process,
    drive=there_and_back,
    tolerance=1e-10,
    calls=(dist.all_to_all_single, dist.all_to_all, all_gather_single, reduce_scatter_single),
    given=(attend,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 4,
            why="queries, keys and values travel in one tensor: join them for each rank, then exchange",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=sent,
            why="a rank needs all tokens of its own heads, and nothing of the others",
        ),
    ),
    hints=(
        "Rank i sends piece j to rank j, and rank j keeps it at place i. In backward, where does the gradient of what "
        "lies at place i have to go?",
        "To heads: `x.unflatten(1, (n, -1)).movedim(1, 0)` has a row for each rank, [n, B, H/n, S/n, d]. What comes "
        "has a row for each rank's tokens: `.movedim(0, 2).flatten(2, 3)` puts these side by side.",
        "Join queries, keys and values before they travel: `torch.cat([x.unflatten(1, (n, -1)) for x in ...], dim=2)`, "
        "[B, n, (H + 2K)/n, S/n, d]. After it, `split` takes them apart. And back: "
        "`out.unflatten(2, (n, -1)).movedim(2, 0)`, exchange, `.movedim(0, 1).flatten(1, 2)`.",
    ),
    wrong=(
        Wrong(
            "the r-th n-th of queries, keys and values in a row: some ranks get no queries",
            diagnosis=r"result\[0, \d, \d, \d\]: expected",
            edits=(
                (
                    "torch.cat([x.unflatten(1, (n, -1)) for x in (query, key, value)], dim=2)",
                    "torch.cat([query, key, value], dim=1).unflatten(1, (n, -1))",
                ),
            ),
        ),
        Wrong(
            "heads are dealt out in turn, and come back in a row",
            diagnosis=r"result\[0, \d, \d, \d\]: expected",
            edits=(("x.unflatten(1, (n, -1)) for x", "x.unflatten(1, (-1, n)).transpose(1, 2) for x"),),
        ),
        Wrong(
            "tokens as memory has them",
            diagnosis=r"result\[0, \d, \d, \d\]: expected",
            edits=(("received.movedim(0, 2).flatten(2, 3)", "received.movedim(0, 3).flatten(2, 3)"),),
        ),
        Wrong(
            "the output keeps this rank's heads in its own order",
            diagnosis=r"result\[0, \d, \d, \d\]: expected",
            edits=((".movedim(0, 1).flatten(1, 2)", ".movedim(0, 2).flatten(1, 2)"),),
        ),
        Wrong(
            "each token sees all tokens",
            diagnosis=r"result\[0, \d, \d, \d\]: expected",
            edits=(("dtype=torch.bool).tril()", "dtype=torch.bool)"),),
        ),
        Wrong(
            "gradients stay where they are",
            diagnosis=r"query\.grad\[0, \d, \d, \d\]: expected",
            edits=(("return _exchanged(gradient, ctx.group), None", "return gradient, None"),),
        ),
        Wrong(
            "gradients are averaged",
            diagnosis=r"query\.grad\[0, \d, \d, \d\]: expected",
            edits=(
                (
                    "return _exchanged(gradient, ctx.group), None",
                    "return _exchanged(gradient, ctx.group) / dist.get_world_size(ctx.group), None",
                ),
            ),
        ),
        Wrong(
            "autograd does not see the exchange",
            diagnosis=r"query\.grad: expected a float64 tensor of shape \(.*\), got None",
            edits=(
                ("_Exchange.apply(packed.movedim(1, 0), group)", "_exchanged(packed.detach().movedim(1, 0), group)"),
            ),
        ),
        Wrong(
            "counts ranks of the world, not of the group",
            diagnosis=r"in the group \[0, 2, 3\]",
            edits=(("    n = dist.get_world_size(group)\n", "    n = dist.get_world_size()\n"),),
        ),
        Wrong(
            "three exchanges where one will do",
            diagnosis=r"right, but a rank makes 8 calls where 4 must do.*\n.*in one tensor",
            edits=(
                (
                    "_Exchange.apply(packed.movedim(1, 0), group)",
                    "torch.cat([_Exchange.apply(x, group) for x in packed.movedim(1, 0).split("
                    "[x.shape[1] // n for x in (query, key, value)], 2)], 2)",
                ),
            ),
        ),
        Wrong(
            "all heads of all tokens, on each rank",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*nothing of the others",
            body=BY_ALL_GATHER,
        ),
    ),
)
