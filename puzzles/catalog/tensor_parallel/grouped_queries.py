"""tensor_parallel.grouped_queries: more ranks than heads of keys and values."""

import torch.distributed as dist

from puzzles.grading.drives.tensor_parallel import among_neighbours
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, drawn
from reference.tensor_parallel.answers.heads import grouped_queries
from reference.tensor_parallel.plain import enter, leave

from .common import all_reduces, by_definition, gradients, part, whole

BATCH, SEQUENCE, WIDTH, HEAD = 2, 3, 3, 2
ODD_AND_LARGE = (3, 6, 1), (3, 6, 3), (6, 6, 2), (1, 4, 2), (8, 8, 4)  # ranks, heads, heads of keys


def a_whole_layer(case):
    """Input and weights, as one process has them."""
    inside, of_keys = case.heads * HEAD, case.kv_heads * HEAD
    shapes = {"x": (BATCH, SEQUENCE, WIDTH), "query": (inside, WIDTH), "keys": (of_keys, WIDTH)}
    shapes |= {"values": (of_keys, WIDTH), "output": (WIDTH, inside)}
    return {name: whole(case, name, *shape) for name, shape in shapes.items()}


def own_queries(case, rank):
    """This rank's heads of queries, all heads of keys and values, and the gradient of the whole output."""
    everything = a_whole_layer(case)
    return {
        **everything,
        "query": part(everything["query"], case, rank, 0),
        "output": part(everything["output"], case, rank, 1),
        "kv_heads": case.kv_heads,
        "upstream": case.normal(0, BATCH, SEQUENCE, WIDTH, name="upstream"),
    }


def one_process(case, inputs):
    """All heads in one process; each rank has the gradients of those heads of keys that its queries look at."""
    everything = {name: each.requires_grad_() for name, each in a_whole_layer(case).items()}
    x, query, keys, values, output = everything.values()
    y = by_definition(x, query, keys, values, output, heads=case.heads, kv_heads=case.kv_heads)
    found = gradients(y, inputs[0]["upstream"], everything)
    said = []
    for rank in range(case.n):
        served = {
            head * case.kv_heads // case.heads for head in range(case.heads) if head * case.n // case.heads == rank
        }
        used = [row // HEAD in served for row in range(case.kv_heads * HEAD)]
        own = {name: found[name] * found[name].new_tensor(used).unsqueeze(1) for name in ("keys.grad", "values.grad")}
        own |= {"query.grad": part(found["query.grad"], case, rank, 0)}
        said.append({**found, **own, "output.grad": part(found["output.grad"], case, rank, 1)})
    return said


def sent(case):
    """Bytes of the two sums of the region, and of those of a head's gradients among the ranks that share it."""
    sharers = case.ranks_per_head
    rows = max(1, case.kv_heads // case.n) * HEAD
    shared = 2 * 2 * (sharers - 1) * -(-rows * WIDTH // sharers) * 8
    return all_reduces(case, *[(BATCH, SEQUENCE, WIDTH)] * 2) + shared


PUZZLE = Puzzle(
    name="tensor_parallel.grouped_queries",
    title="More ranks than heads of keys and values",
    statement="""
        With grouped queries there are fewer heads of keys and values than of queries: K of them, and H / K neighbouring
        heads of queries look at the same one. Llama 3 has K = 8. Where n is at most K, each rank has K / n of them.
        Where n is larger, there are not enough, and n / K ranks get a copy of the same head. Ranks share the heads of
        queries as before: rank r has the r-th n-th of them.

        Which heads of keys and values do this rank's queries look at? And whose gradients make up the gradient of a
        head that several ranks have?

        Given are f and g, as `enter(x, group)` and `leave(x, group)`, and `neighbours(size)`, which cuts the n ranks
        into groups of `size` neighbours and gives you the one that this rank is in. Every rank has to ask for the same
        size. `torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)` lets several
        heads of q look at one of k and v, [B, heads, S, d] each.

        Here `keys` and `values` have all heads, as they are read from a file. Take those that this rank needs. The
        gradient of all others stays zero; the gradient of its own must be whole.

        Args:
            x: [B, S, D], the same on every rank.
            query: [H / n · d, D], the rows of this rank's heads of queries.
            keys, values: [K · d, D], all heads, one after the other, the same on every rank.
            output: [D, H / n · d], the columns of this rank's heads.
            kv_heads: K; it divides n, or n divides it.
            neighbours: of a size, the group of so many neighbours.
            group: n ranks. Any n.

        Returns: y, [B, S, D], the same on every rank, with gradients for x and all weights.

        Budget: one all-reduce of a tensor like x each way, and for keys and for values one all-reduce of a head's
        weights among the ranks that have it.
        """,
    function=grouped_queries,
    cases=tuple(
        case
        for n, heads, kv_heads in ((4, 4, 2), (4, 8, 2), (4, 4, 1), (2, 4, 1), (2, 4, 2), (2, 4, 4), *ODD_AND_LARGE)
        for case in cases(worlds=(n,), heads=(heads,), kv_heads=(kv_heads,), ranks_per_head=(max(1, n // kv_heads),))
    )
    + cases(worlds=(5,), members=(0, 1, 3, 4), heads=(4,), kv_heads=(2,), ranks_per_head=(2,)),
    drawn=(
        drawn(
            worlds=(6,),
            heads=(6, 12),
            kv_heads=(1, 2, 3, 6),
            ranks_per_head=lambda so_far: (so_far.n // so_far.kv_heads,),
        ),
    ),
    inputs=own_queries,
    oracle=one_process,
    drive=among_neighbours,
    tolerance=1e-10,
    calls=(dist.all_reduce,),
    given=(enter, leave),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 4,
            why="x enters once, y leaves once; keys and values have one sum each, among those who share them",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=sent,
            why="gradients of a head are summed among the ranks that have it, and of that head alone",
        ),
    ),
    hints=(
        "4 ranks, 8 heads of queries, 2 of keys and values. Heads 0 to 3 of queries look at the first. Which ranks "
        "have those?",
        "With `copies = max(1, n // kv_heads)` ranks for a head, rank r is in the (r // copies)-th group of "
        "neighbours, and has head r // copies. With fewer ranks than heads it has `kv_heads // n` of them, "
        "beginning at r * (kv_heads // n).",
        "Each sharer has used its copy with other queries: that is what f is for. `key = enter(keys[rows], "
        "neighbours(copies))`, the same for values, and continue as with any heads.",
    ),
    wrong=(
        Wrong(
            "gradients of copied heads stay unsummed",
            diagnosis=r"keys\.grad\[\d, \d\]: expected .*\n.*right with ranks_per_head=1, wrong with ranks_per_head=2",
            edits=(
                (
                    "key, value = enter(keys[rows], sharers), enter(values[rows], sharers)",
                    "key, value = keys[rows], values[rows]",
                ),
            ),
        ),
        Wrong(
            "gradients of keys are summed, those of values are not",
            diagnosis=r"values\.grad\[\d, \d\]: expected",
            edits=(("enter(values[rows], sharers)", "values[rows]"),),
        ),
        Wrong(
            "gradients are summed over all ranks, whichever head they have",
            diagnosis=r"right with kv_heads=1, wrong with kv_heads=2|keys\.grad\[\d, \d\]: expected",
            edits=(("neighbours(copies)\n", "group\n"),),
        ),
        Wrong(
            "heads are dealt out in turn",
            diagnosis=r"result\[0, 0, 0\]: expected",
            edits=(("rank // copies * own", "rank % kv_heads * own if n > kv_heads else rank * own"),),
        ),
        Wrong(
            "every rank takes the first head",
            diagnosis=r"result\[0, 0, 0\]: expected",
            edits=(("first, sharers = rank // copies * own,", "first, sharers = 0,"),),
        ),
        Wrong(
            "counts ranks of the world, not of the group",
            diagnosis=r"in the group \[0, 1, 3, 4\]: a rank of the group is not a global rank",
            edits=(("dist.get_rank(group), dist.get_world_size(group)", "dist.get_rank(), dist.get_world_size()"),),
        ),
        Wrong(
            "only for more ranks than heads",
            diagnosis=r"kv_heads=4, .*: rank 0, result\[0, 0, 0\]: expected",
            edits=(("max(1, kv_heads // n)", "1"),),
        ),
        Wrong(
            "x enters once for each of queries, keys and values",
            diagnosis=r"right, but a rank makes 6 calls where 4 must do.*\n.*x enters once",
            edits=(("    x = enter(x, group)\n", ""), ("(x @ weight.T)", "(enter(x, group) @ weight.T)")),
        ),
        Wrong(
            "gradients of all heads are summed, and not only of its own",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*of that head alone",
            edits=(
                (
                    "enter(keys[rows], sharers), enter(values[rows], sharers)",
                    "enter(keys, sharers)[rows], enter(values, sharers)[rows]",
                ),
            ),
        ),
    ),
)
