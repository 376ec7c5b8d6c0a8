"""tensor_parallel.attention_heads: each rank has some heads, from query to output."""

import torch.distributed as dist

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import SMALL, Budget, Measure, Puzzle, Wrong, cases, drawn
from reference.tensor_parallel.answers.heads import attention
from reference.tensor_parallel.plain import enter, leave

from .common import all_reduces, by_definition, gradients, part, whole

BATCH, HEAD = 2, 2
WEIGHTS = ("query", "key", "value", "output")


def a_whole_layer(case):
    """Input and weights, as one process has them. What all heads give is not as wide as x."""
    width, inside = case.width, case.heads * HEAD
    shapes = {"x": (BATCH, case.sequence, width)} | dict.fromkeys(WEIGHTS[:3], (inside, width))
    return {name: whole(case, name, *shape) for name, shape in (*shapes.items(), ("output", (width, inside)))}


def own_heads(case, rank):
    """The whole input and the gradient of the whole output, and this rank's heads of each weight."""
    everything = a_whole_layer(case)
    return {
        "x": everything["x"],
        **{name: part(everything[name], case, rank, int(name == "output")) for name in WEIGHTS},
        "heads": case.heads,
        "upstream": case.normal(0, BATCH, case.sequence, case.width, name="upstream"),
    }


def head_by_head(case, inputs):
    """All heads in one process, by the definition of attention; then every rank's part of the gradients."""
    everything = {name: each.requires_grad_() for name, each in a_whole_layer(case).items()}
    y = by_definition(**everything, heads=case.heads, kv_heads=case.heads)
    found = gradients(y, inputs[0]["upstream"], everything)
    dims = {f"{name}.grad": int(name == "output") for name in WEIGHTS}
    return [
        {**found, **{name: part(found[name], case, rank, dim) for name, dim in dims.items()}} for rank in range(case.n)
    ]


PUZZLE = Puzzle(
    name="tensor_parallel.attention_heads",
    title="Attention, shared by heads",
    statement="""
        Attention has H heads of d features each. A head makes queries, keys and values of its own, compares them with
        each other, and knows of no other head. Only the output matrix brings together what they found, as a sum. So
        give each rank H / n heads. Each computes with them, forward and backward, as if there were no others, and one
        sum on the way there and one on the way back make it whole.

            query = x Qᵀ, key = x Kᵀ, value = x Vᵀ       cut into heads of d features
            head  = softmax(query keyᵀ / √d) value       a token sees itself and what was before it
            y     = (all heads side by side) Oᵀ

        Given are f and g, as `enter(x, group)` and `leave(x, group)`. For the heads themselves there is
        `torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)` with tensors [B, heads, S, d].

        Args:
            x: [B, S, D], the same on every rank.
            query, key, value: [H / n · d, D], the rows of this rank's heads, d for the first, then d for the next.
            output: [D, H / n · d], the columns that belong to them.
            heads: H, of all ranks together. n divides it.
            group: n ranks. Any n.

        Returns: y, [B, S, D], the same on every rank, with gradients for x (all of it, the same on every rank) and for
        this rank's weights. There is no residual connection here.

        Budget: one all-reduce of a tensor like x on the way there, and one on the way back.
        """,
    function=attention,
    cases=cases(worlds=(2, 4), heads=(4,), sequence=(3,), width=(6,))
    + cases(worlds=(3,), heads=(3, 6), sequence=(2, 4), width=(3,))
    + cases(worlds=(1, 5, 8), heads=lambda n: (n,), sequence=(3,), width=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), heads=(6,), sequence=(3,), width=(3,)),
    drawn=(
        drawn(worlds=SMALL, heads=lambda so_far: (so_far.n, 2 * so_far.n), sequence=(2, 3, 4), width=(3, 4)),
        drawn(worlds=(9,), heads=lambda so_far: (so_far.n, 2 * so_far.n), sequence=(2, 3, 4), width=(3, 4)),
    ),
    inputs=own_heads,
    oracle=head_by_head,
    drive=there_and_back,
    tolerance=1e-10,
    calls=(dist.all_reduce,),
    given=(enter, leave),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 2,
            why="x enters the region once, for queries, keys and values, and only one sum leaves it",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: all_reduces(case, *[(BATCH, case.sequence, case.width)] * 2),
            why="x enters the region once, for queries, keys and values, and only one sum leaves it",
        ),
    ),
    hints=(
        "How many heads has this rank, and how many features each? Neither follows from the shapes alone.",
        "`(x @ query.T).unflatten(-1, (own, -1)).transpose(1, 2)` is [B, own, S, d], where this rank has `own` heads.",
        "Side by side again: `mixed.transpose(1, 2).flatten(2)`, [B, S, own · d]. f before the three projections, g "
        "after the output matrix.",
    ),
    wrong=(
        Wrong(
            "this rank's features are cut into as many heads as all ranks have",
            diagnosis=r"result\[0, \d, \d\]: expected",
            edits=(("(own, -1)", "(heads, -1)"),),
        ),
        Wrong(
            "this rank's features are one head",
            diagnosis=r"result\[0, \d, \d\]: expected",
            edits=(("(own, -1)", "(1, -1)"),),
        ),
        Wrong(
            "tokens see what comes after them",
            diagnosis=r"result\[0, 0, 0\]: expected",
            edits=(("is_causal=True", "is_causal=False"),),
        ),
        Wrong(
            "the output has only this rank's heads",
            diagnosis=r"the result must be the same on every rank: rank 0 and rank 1 differ",
            edits=(
                (
                    "leave(mixed.transpose(1, 2).flatten(2) @ output.T, group)",
                    "mixed.transpose(1, 2).flatten(2) @ output.T",
                ),
            ),
        ),
        Wrong(
            "heads are summed, not their outputs",
            diagnosis=r"result\[0, 0, 0\]: expected",
            edits=(
                (
                    "leave(mixed.transpose(1, 2).flatten(2) @ output.T, group)",
                    "leave(mixed.transpose(1, 2).flatten(2), group) @ output.T",
                ),
            ),
        ),
        Wrong(
            "the gradient of x is what this rank's heads found",
            diagnosis=r"x\.grad\[0, 0, 0\]: expected .*\n.*x\.grad must be the same on every rank",
            edits=(("    x = enter(x, group)\n", ""),),
        ),
        Wrong(
            "the features of heads are taken apart",
            diagnosis=r"result\[0, \d, \d\]: expected",
            edits=(("mixed.transpose(1, 2).flatten(2)", "mixed.permute(0, 2, 3, 1).flatten(2)"),),
        ),
        Wrong(
            "x enters once for each of queries, keys and values",
            diagnosis=r"right, but a rank makes 4 calls where 2 must do.*\n.*x enters the region once",
            edits=(("    x = enter(x, group)\n", ""), ("(x @ weight.T)", "(enter(x, group) @ weight.T)")),
        ),
    ),
)
