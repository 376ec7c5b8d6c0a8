"""context_parallel.copied_heads: Ulysses where ranks and heads of keys do not divide each other."""

import math

import torch
import torch.distributed as dist

from puzzles.grading.drives.context_heads import COMPUTED, counting_heads
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, divisors, drawn
from reference.context_parallel.answers.exchange import all_to_all
from reference.context_parallel.answers.heads import ulysses_with_copies

from .in_one_process import attention_of_all, bytes_of, tokens_of_a_rank

RANKS_AND_HEADS = (  # ranks, heads of queries, heads of keys
    (4, 4, 2), (3, 12, 4), (4, 4, 1), (2, 4, 4), (4, 12, 3), (6, 12, 4), (1, 4, 2), (5, 5, 1), (8, 8, 2), (2, 6, 3),
    (2, 8, 2),
)  # fmt: skip


def positions_of(case):
    """Slices of the sequence, one after another: [n, S / n]."""
    return torch.arange(case.n * case.local).view(case.n, -1)


def in_one_process(case, inputs):
    """All tokens and all heads, of which each rank computes an n-th."""
    return [{COMPUTED: case.heads // case.n, **found} for found in attention_of_all(case, inputs, positions_of(case))]


def sent(case, keys):
    """Bytes that a rank sends, there and back, where all ranks together get so many heads of keys."""
    return 2 * (case.n - 1) * bytes_of(case, 2 * case.heads + 2 * keys, case.local) // case.n


def used(case):
    """Bytes that the rank sends which sends most, where each gets those heads of keys that its queries look at."""
    served, own = case.heads // case.kv_heads, case.heads // case.n
    needs = [len({head // served for head in range(rank * own, (rank + 1) * own)}) for rank in range(case.n)]
    return sent(case, 0) + 2 * bytes_of(case, 2 * (sum(needs) - min(needs)), case.local)


PUZZLE = Puzzle(
    name="context_parallel.copied_heads",
    title="More ranks than heads of keys",
    statement="""
        Ulysses shares out heads. With grouped queries there are H of queries and fewer of keys and values, K: H / K
        neighbouring heads of queries look at the same one. Ranks must share out the heads of queries equally, or all
        wait for the one that has most: rank r computes the r-th n-th of them. Each of them needs its head of keys at
        the same rank. But 2 heads of keys do not make 4 equal shares, and with 12 heads of queries over 4 of keys, 3
        ranks have 4 heads of queries each, of which 3 look at one head of keys, and the fourth at the next one.

        The way out are copies: send a head of keys to each rank whose queries look at it. Let each rank get equally
        many, and let `attend` pair them with its queries as usual. How many copies of each head does that take, and
        how few will do? And what becomes of the gradients of the copies?

        Given is `all_to_all(x, group, split_dim, join_dim)`, through which autograd goes back: it cuts `x` along
        `split_dim` into n equal parts, gives the j-th to rank j, and puts what comes side by side along `join_dim`.

        Args:
            query: [B, H, S/n, d], of this rank's tokens, the r-th slice of the sequence; n divides H.
            key, value: [B, K, S/n, d]; K divides H, and need not divide n, nor n it.
            attend: causal attention of all tokens: `attend(query, key, value)` of [B, h, S, d], [B, k, S, d] twice,
                returns [B, h, S, d]. k divides h, and h / k neighbouring heads of queries look at the same one of keys.
            group: n ranks. Any n.

        Returns: [B, H, S/n, d], with gradients for query, key and value.

        Budget: of all ranks together lcm(K, n) heads of keys and of values, in exchange. (It is possible with fewer,
        if ranks get unequal numbers.)
        """,
    function=ulysses_with_copies,
    cases=tuple(
        case
        for n, heads, kv_heads in RANKS_AND_HEADS
        for case in cases(worlds=(n,), local=(2,), heads=(heads,), kv_heads=(kv_heads,))
    )
    + cases(worlds=(4,), members=(0, 2, 3), local=(2,), heads=(6,), kv_heads=(2,)),
    drawn=(drawn(worlds=(2, 3, 4, 6), local=(1, 2, 3), heads=(12, 24), kv_heads=divisors(12)),),
    inputs=lambda case, rank: tokens_of_a_rank(case, rank, case.local),
    oracle=in_one_process,
    drive=counting_heads,
    tolerance=1e-10,
    calls=(dist.all_to_all_single,),
    given=(all_to_all,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: sent(case, math.lcm(case.kv_heads, case.n)),
            optimum=lambda case: min(used(case), sent(case, math.lcm(case.kv_heads, case.n))),
            why="a rank needs a head of keys once, however many of its queries look at it: make fewer copies",
        ),
    ),
    hints=(
        "4 ranks, 4 heads of queries, 2 of keys: which head of keys does each rank need? And 12 over 4 on 3 ranks?",
        "Repeat each head side by side, `x.repeat_interleave(copies, dim=1)`, until n divides their number. Then n "
        "equal shares of queries and of keys fit together: copy i of head k is next to the queries that look at k. "
        "The least number of heads that is a multiple of both K and n is `math.lcm(K, n)`.",
        "Join queries, keys and values for each rank: `torch.cat([x.unflatten(1, (n, -1)) for x in ...], dim=2)`, then "
        "`all_to_all(packed, group, split_dim=1, join_dim=3).squeeze(1)` and `split`. Back: split_dim=2, join_dim=1. "
        "Autograd sums over what `repeat_interleave` has repeated.",
    ),
    wrong=(
        Wrong(
            "what there is of heads of keys is cut: 1, 1, 0 and 0",
            diagnosis=r"stack expects each tensor to be equal size",
            edits=(
                ("    key, value = (x.repeat_interleave(copies, dim=1) for x in (key, value))\n", ""),
                ("x.unflatten(1, (n, -1)) for x in", "torch.stack(x.tensor_split(n, 1), 1) for x in"),
            ),
        ),
        Wrong(
            "a group of heads for each rank, while there are any: 4, 4, 4 and 0",
            diagnosis=r"heads of queries that a rank computes: expected \d, got \d",
            body="""
                n, groups, served = dist.get_world_size(group), key.shape[1], query.shape[1] // key.shape[1]
                each = -(-groups // n)
                missing = n * each - groups

                def some_heads(x):
                    nothing = x.new_zeros(x.shape[0], missing * (x.shape[1] // groups), *x.shape[2:])
                    return all_to_all(torch.cat([x, nothing], 1), group, 1, 2)

                out = attend(some_heads(query), some_heads(key), some_heads(value))
                return all_to_all(out, group, 2, 1)[:, : groups * served]
                """,
        ),
        Wrong(
            "one head of keys for each rank: groups are torn",
            diagnosis=r"result\[0, \d+, \d, \d\]: expected",
            edits=(
                (
                    "x.repeat_interleave(copies, dim=1) for x in (key, value))",
                    "x[:, [rank * heads // n for rank in range(n)]] if heads % n else x for x in (key, value))",
                ),
            ),
        ),
        Wrong(
            "copies of all heads in a row",
            diagnosis=r"result\[0, \d+, \d, \d\]: expected",
            edits=(("x.repeat_interleave(copies, dim=1) for", "x.repeat(1, copies, 1, 1) for"),),
        ),
        Wrong(
            "the gradient of one copy",
            diagnosis=r"key\.grad\[0, \d, \d, \d\]: expected .*(\n.*)*",
            edits=(
                (
                    "x.repeat_interleave(copies, dim=1) for x in (key, value))",
                    "torch.cat([x[:, :, None]] + [x[:, :, None].detach()] * (copies - 1), 2).flatten(1, 2) "
                    "for x in (key, value))",
                ),
            ),
        ),
        Wrong(
            "the gradients of copies are averaged",
            diagnosis=r"key\.grad\[0, \d, \d, \d\]: expected",
            edits=(
                (
                    "x.repeat_interleave(copies, dim=1) for x in (key, value))",
                    "(x / copies + (x - x / copies).detach()).repeat_interleave(copies, dim=1) for x in (key, value))",
                ),
            ),
        ),
        Wrong(
            "all heads of each rank's own tokens",
            diagnosis=r"heads of queries that a rank computes: expected \d, got \d",
            body="return attend(query, key, value)",
        ),
        Wrong(
            "a head of keys for each head of queries",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*make fewer copies",
            edits=(("math.lcm(heads, n) // heads", "math.lcm(query.shape[1], n) // heads"),),
        ),
    ),
)
