"""context_parallel.gather_keys: all keys and values on each rank, for as long as attention lasts."""

import torch

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.choices import ContextLayout
from reference.collectives.compat import all_gather_single, reduce_scatter_single
from reference.context_parallel.answers.gather import gathered_attention
from reference.context_parallel.layouts import layout
from reference.context_parallel.plain import attend

from .in_one_process import attention_of_all, bytes_of, tokens_of_a_rank

GATHERS = (all_gather_single, torch.distributed.all_gather_into_tensor, torch.distributed.all_gather)
SUMS = (reduce_scatter_single, torch.distributed.reduce_scatter_tensor, torch.distributed.all_reduce)


def positions_of(case):
    """Where the tokens of each rank stand: [n, S / n], padding behind the last."""
    shared = layout(ContextLayout(case.layout), case.length, case.n)
    return torch.stack([shared.positions(rank) for rank in range(case.n)])


def tokens_and_positions(case, rank):
    """This rank's tokens, and where those of all ranks are."""
    positions = positions_of(case)
    return {**tokens_of_a_rank(case, rank, positions.shape[1]), "positions": positions}


def in_one_process(case, inputs):
    """All tokens in one process, in the order in which ranks hold them."""
    return attention_of_all(case, inputs, positions_of(case))


def sent(case, heads):
    """Bytes that a rank sends: so many heads of its keys and values to each other rank, and back."""
    return 2 * (case.n - 1) * 2 * bytes_of(case, heads, positions_of(case).shape[1])


PUZZLE = Puzzle(
    name="context_parallel.gather_keys",
    title="All keys and values at once",
    statement="""
        Llama 3 was trained on long texts without a ring. Each rank keeps its own queries and gathers the keys and
        values of all ranks in one collective; then attention is that of one process, with the rows of the mask that
        belong to its tokens. With grouped queries there are few heads of keys, so this is little to send.

        Each rank uses the keys of a token for its own queries. Whose gradients make up the gradient of my keys? Going
        back is a collective again.

        Ranks may hold tokens in any order: contiguous, a piece of the head and one of the tail, every n-th. All that
        you need to know is where each token stands. A query sees the keys that stand at its own position or before it.

        Given is `attend(query, key, value, seen)`. Several heads of queries may look at one of keys: [B, H, Q, d] with
        [B, K, S, d]. `seen` is [Q, S] of bool. It returns the output, [B, H, Q, d], and its logsumexps, [B, H, Q].
        Autograd goes back through it. It does not go back through a collective of torch.distributed: for that, write a
        `torch.autograd.Function`. `all_gather_single(out, x, group=group)` and
        `reduce_scatter_single(out, x, group=group)` see memory: the longer tensor is contiguous, and has n times as
        many rows (dim 0) as the other.

        Args:
            query: [B, H, S/n, d], of this rank's tokens.
            key, value: [B, K, S/n, d]; K divides H.
            positions: [n, S/n], where the tokens of each rank stand, the same on every rank.
            group: n ranks. Any n.

        Returns: [B, H, S/n, d], with gradients for query, key and value.

        Budget: one collective each way, and a rank's keys and values sent n-1 times each way.
        """,
    function=gathered_attention,
    cases=cases(worlds=(4,), layout=("zigzag", "contiguous"), length=(8,), heads=(2,), kv_heads=(2,))
    + cases(worlds=(3,), layout=("striped", "zigzag"), length=(5, 12), heads=(4,), kv_heads=(2,))
    + cases(worlds=(2, 1, 5, 8), layout=("zigzag",), length=(11,), heads=(3,), kv_heads=(1,))
    + cases(worlds=(4,), members=(0, 2, 3), layout=("zigzag",), length=(6,), heads=(2,), kv_heads=(1,)),
    drawn=on_any_ranks(layout=("zigzag", "striped"), length=range(3, 26), heads=(2, 4), kv_heads=(1, 2)),
    inputs=tokens_and_positions,
    oracle=in_one_process,
    drive=there_and_back,
    tolerance=1e-10,
    calls=(*GATHERS, *SUMS),
    given=(attend,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 2,
            why="keys and values travel together, `torch.stack([key, value])`, and so do their gradients",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: sent(case, case.kv_heads),
            why="send each head of keys once, and of the sum of all gradients only what is a rank's own",
        ),
    ),
    hints=(
        "Two ranks look at the same key and find another gradient for it each. What is the gradient of that key, and "
        "which rank needs it?",
        "Forward is an all-gather, backward a reduce-scatter. Gather `torch.stack([key, value])` into "
        "`blocks = x.new_empty(n, *x.shape)`, as `blocks.flatten(0, 1)`, and bring the n before the tokens: "
        "`blocks.movedim(0, -3).flatten(-3, -2)`.",
        "Keys now stand as `positions.flatten()` says, queries as `positions[rank]` does: "
        "`seen = positions[rank][:, None] >= positions.flatten()`. Backward undoes the order, "
        "`gradient.unflatten(-2, (n, -1)).movedim(-3, 0).contiguous()`, before the reduce-scatter.",
    ),
    wrong=(
        Wrong(
            "keys are taken to be in order, as they are with contiguous slices",
            diagnosis=r"result\[0, \d, \d, \d\]: expected .*(\n.*)*right with layout=contiguous, wrong with layout=",
            edits=(
                (
                    "positions[dist.get_rank(group)][:, None] >= positions.flatten()",
                    "(dist.get_rank(group) * query.shape[2] + torch.arange(query.shape[2]))[:, None] "
                    ">= torch.arange(key.shape[2])",
                ),
            ),
        ),
        Wrong(
            "the mask of one rank's tokens, for those of each",
            diagnosis=r"result\[0, \d, \d, \d\]: expected",
            edits=(
                (
                    "positions[dist.get_rank(group)][:, None] >= positions.flatten()",
                    "torch.ones(query.shape[2], query.shape[2], dtype=torch.bool).tril()"
                    ".repeat(1, dist.get_world_size(group))",
                ),
            ),
        ),
        Wrong(
            "tokens do not see themselves",
            diagnosis=r"result\[0, \d, \d, \d\]: expected",
            edits=(("[:, None] >= positions", "[:, None] > positions"),),
        ),
        Wrong(
            "each keeps its own part of the gradient",
            diagnosis=r"key\.grad\[0, \d, \d, \d\]: expected",
            edits=(
                (
                    "        reduce_scatter_single(own, parts.flatten(0, 1), group=ctx.group)\n",
                    "        own.copy_(parts[dist.get_rank(ctx.group)])\n",
                ),
            ),
        ),
        Wrong(
            "gradients are averaged",
            diagnosis=r"key\.grad\[0, \d, \d, \d\]: expected .*(\n.*)*off by exactly the world size, too little",
            edits=(("return own, None", "return own / dist.get_world_size(ctx.group), None"),),
        ),
        Wrong(
            "the gradients of the tokens of another rank",
            diagnosis=r"key\.grad\[0, \d, \d, \d\]: expected",
            edits=(
                (
                    "(dist.get_world_size(ctx.group), -1)).movedim(-3, 0)",
                    "(-1, dist.get_world_size(ctx.group))).movedim(-2, 0)",
                ),
            ),
        ),
        Wrong(
            "autograd does not see the all-gather",
            diagnosis=r"key\.grad: expected a float64 tensor of shape \(.*\), got None",
            edits=(
                (
                    "_Gathered.apply(torch.stack([key, value]), group)",
                    "_Gathered.apply(torch.stack([key, value]).detach(), group)",
                ),
            ),
        ),
        Wrong(
            "heads of keys are repeated before they travel",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*send each head of keys once",
            edits=(
                (
                    "torch.stack([key, value]), group)",
                    "torch.stack([key, value]).repeat_interleave(query.shape[1] // key.shape[1], 2), group)",
                ),
            ),
        ),
        Wrong(
            "an all-reduce, and a part of it",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*only what is a rank's own",
            edits=(
                (
                    "        reduce_scatter_single(own, parts.flatten(0, 1), group=ctx.group)\n",
                    "        dist.all_reduce(parts, group=ctx.group)\n"
                    "        own.copy_(parts[dist.get_rank(ctx.group)])\n",
                ),
            ),
        ),
        Wrong(
            "keys travel, then values",
            diagnosis=r"right, but a rank makes 4 calls where 2 must do.*\n.*travel together",
            edits=(
                (
                    "key, value = _Gathered.apply(torch.stack([key, value]), group)",
                    "key, value = _Gathered.apply(key, group), _Gathered.apply(value, group)",
                ),
            ),
        ),
    ),
)
