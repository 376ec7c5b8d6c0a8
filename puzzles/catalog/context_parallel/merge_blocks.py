"""context_parallel.merge_blocks: what two blocks of keys give together, from what each of them gives."""

from functools import partial

import torch

from puzzles.grading.drives.context_parallel import there_and_back_from
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.context_parallel.answers.blocks import merge

RETURNED = ("the merged out", "the merged lse")
BLIND = ("neither", "the first", "the second", "both", "in turn")  # which blocks show nothing to every other query


def two_blocks(case, rank):
    """What queries got of two blocks. Each logsumexp is near `around`; some queries see nothing of a block.

    Where all see both, the last query's logsumexps are equal.
    """
    shape = case.batch, case.heads, case.queries
    given = {}
    for block, (out, lse) in enumerate((("out", "lse"), ("other", "other_lse"))):
        hidden = torch.zeros(case.queries, dtype=torch.bool)
        hidden[1::2] = case.blind in (BLIND[1 + block], "both")
        if case.blind == "in turn":
            hidden[block::2] = True
        given[out] = case.normal(0, *shape, case.head_dim, name=out).masked_fill(hidden.unsqueeze(-1), 0.0)
        given[lse] = (case.around + case.normal(0, *shape, name=lse)).masked_fill(hidden, -torch.inf)
    if case.blind == "neither":
        given["other_lse"][..., -1] = given["lse"][..., -1]
    upstreams = [case.normal(0, *shape, case.head_dim, name="of out"), case.normal(0, *shape, name="of lse")]
    return {**given, "upstreams": upstreams}


def by_their_difference(case, inputs):
    """Each block's share is a sigmoid of how much its logsumexp is larger; gradients by hand."""
    out, lse, other, other_lse, (of_out, of_lse) = inputs[0].values()
    apart = lse - other_lse
    share, other_share = (torch.sigmoid(x).nan_to_num(0.0) for x in (apart, -apart))
    both = share.unsqueeze(-1) * out + other_share.unsqueeze(-1) * other
    both_lse = torch.maximum(lse, other_lse) + torch.log1p(torch.exp(-apart.abs()))
    of_apart = share * other_share * (of_out * (out - other)).sum(-1)
    gradients = {
        "out.grad": share.unsqueeze(-1) * of_out,
        "lse.grad": of_apart + share * of_lse,
        "other.grad": other_share.unsqueeze(-1) * of_out,
        "other_lse.grad": other_share * of_lse - of_apart,
    }
    merged = both, both_lse.where(~both_lse.isnan(), -torch.inf)
    return [{"returns": "2 tensors", **dict(zip(RETURNED, merged, strict=True)), **gradients}]


PUZZLE = Puzzle(
    name="context_parallel.merge_blocks",
    title="Merge two blocks of attention",
    statement="""
        A query looks at keys. Its scores with them are dot products, and it gets the mean of their values, weighted by
        the softmax of its scores. A long sequence lies in blocks, and a block's keys and values are seen at another
        time than the other block's. Of each block alone a query has two things: `out`, which is the attention to that
        block as if there were no other, and `lse`, the logsumexp of its scores with that block:

            out = sum over keys of e^(score - lse) · value        lse = log(sum over keys of e^score)

        These two are enough to find what the query gets of both blocks together, and the logsumexp of all scores. Then
        a third block can be merged in the same way.

        Scores may be large: around 1000, where e^score is more than a float64 holds, or around -1000, where it is 0. A
        mask may hide a whole block from a query: then its `lse` is -inf and its `out` is 0. Where both blocks are
        hidden, so is the result: -inf and 0. And autograd goes backward through your code: no gradient may be NaN.
        (`torch.logaddexp(-inf, -inf)` is -inf, and its gradient is NaN.)

        Args:
            out: [B, H, Q, d], what each query got of the first block.
            lse: [B, H, Q].
            other: [B, H, Q, d], what the same queries got of the second block.
            other_lse: [B, H, Q].

        Returns: out and lse of both blocks together, like `out` and `lse`, with gradients for all four arguments. That
        of a query that has seen nothing is 0.

        Budget: 40 lines, however many queries there are.
        """,
    function=merge,
    cases=cases(worlds=(1,), batch=(1,), heads=(1,), queries=(2,), head_dim=(2,), around=(0.0,), blind=("neither",))
    + cases(
        worlds=(1,),
        batch=(2,),
        heads=(3,),
        queries=(5,),
        head_dim=(4,),
        around=(0.0, 1000.0, -1000.0),
        blind=("neither", "the first", "the second", "both"),
    )
    + cases(worlds=(1,), batch=(1,), heads=(2,), queries=(3,), head_dim=(1,), around=(300.0,), blind=BLIND),
    drawn=(
        drawn(
            worlds=(1,),
            batch=(1, 2, 3),
            heads=(1, 2, 3),
            queries=range(2, 9),
            head_dim=(1, 2, 3, 4),
            around=tuple(float(x) for x in range(-2000, 2000, 97)),
            blind=BLIND,
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,), batch=(1,), heads=(2,), queries=(100_000,), head_dim=(2,), around=(0.0,), blind=("in turn",)
        ),
        "the number of queries",
    ),
    inputs=two_blocks,
    oracle=by_their_difference,
    drive=partial(there_and_back_from, RETURNED),
    tolerance=1e-10,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 40,
            optimum=lambda case: 8,
            why="all queries are merged by the same few operations on whole tensors",
        ),
    ),
    hints=(
        "Undo the division: e^lse · out is a sum over the keys of one block, before it was divided. Such sums can be "
        "added. By what is the sum of both divided?",
        "out of both = (e^lse · out + e^other_lse · other) / (e^lse + e^other_lse). Numerator and denominator may both "
        "be divided by e^largest, where `largest` is the larger one of the two logsumexps: then nothing overflows. "
        "Where it is -inf, subtract 0 instead: -inf - -inf is NaN.",
        "`nothing = total == 0`, then `total = total.masked_fill(nothing, 1.0)` before it is divided by and before its "
        "logarithm is taken; at the end `lse.masked_fill(nothing, -torch.inf)`. To mask the result alone is too late: "
        "the gradient of log(0) is infinite, and 0 times that is NaN.",
    ),
    wrong=(
        Wrong(
            "the mean of both",
            diagnosis=r"the merged out\[0, 0, 0, 0\]: expected",
            body="return (out + other) / 2, torch.logaddexp(lse, other_lse)",
        ),
        Wrong(
            "logsumexps are added",
            diagnosis=r"the merged lse\[0, 0, 0\]: expected",
            edits=(("(largest + total.log())", "(lse + other_lse)"),),
        ),
        Wrong(
            "outputs are added without their shares",
            diagnosis=r"the merged out\[0, 0, 0, 0\]: expected",
            edits=(("share.unsqueeze(-1) * out + other_share.unsqueeze(-1) * other", "out + other"),),
        ),
        Wrong(
            "shares are swapped",
            diagnosis=r"the merged out\[0, 0, 0, 0\]: expected",
            edits=(("share.unsqueeze(-1) * out + other_share", "other_share.unsqueeze(-1) * out + share"),),
        ),
        Wrong(
            "large scores overflow",
            diagnosis=r"the merged out\[0, 0, 0, 0\]: expected -?[\d.]+, got (nan|0)(\n.*)*right with around=",
            body="""
                share, other_share = lse.exp(), other_lse.exp()
                total = share + other_share
                nothing = total == 0
                total = total.masked_fill(nothing, 1.0)
                both = (share.unsqueeze(-1) * out + other_share.unsqueeze(-1) * other) / total.unsqueeze(-1)
                return both, total.log().masked_fill(nothing, -torch.inf)
                """,
        ),
        Wrong(
            "NaN where a query has seen nothing",
            diagnosis=r"the merged out\[0, 0, 1, 0\]: expected 0, got nan(\n.*)*wrong with blind=both",
            body="""
                total = torch.logaddexp(lse, other_lse)
                share, other_share = (lse - total).exp().unsqueeze(-1), (other_lse - total).exp().unsqueeze(-1)
                return share * out + other_share * other, total
                """,
        ),
        Wrong(
            "right on the way there, NaN on the way back",
            diagnosis=r"\.grad\[0, 0, 1(, 0)?\]: expected 0, got nan(\n.*)*wrong with blind=both",
            body="""
                total = torch.logaddexp(lse, other_lse)
                seen = total.masked_fill(total == -torch.inf, 0.0)
                share, other_share = (lse - seen).exp().unsqueeze(-1), (other_lse - seen).exp().unsqueeze(-1)
                return share * out + other_share * other, total
                """,
        ),
        Wrong(
            "the logarithm of 0 is masked afterwards",
            diagnosis=r"lse\.grad\[0, 0, 1\]: expected 0, got nan(\n.*)*wrong with blind=both",
            edits=(("(largest + total.log())", "(largest + (share + other_share).log())"),),
        ),
        Wrong(
            "a hidden block counts as one with the logsumexp 0",
            diagnosis=r"the merged out\[0, 0, 1, 0\]: expected",
            edits=(
                (
                    "    largest = torch.maximum",
                    "    lse = lse.masked_fill(lse == -torch.inf, 0.0)\n    largest = torch.maximum",
                ),
            ),
        ),
        Wrong(
            "what is divided by has no gradient",
            diagnosis=r"lse\.grad\[0, 0, 0\]: expected",
            edits=(("/ total.unsqueeze(-1)", "/ total.detach().unsqueeze(-1)"),),
        ),
        Wrong(
            "query after query",
            diagnosis=r"right, but it runs [\d,]+ lines where 40 must do.*\n.*the same few operations",
            body="""
                merged, sums = [], []
                for query in range(out.shape[2]):
                    one, two = lse[:, :, query], other_lse[:, :, query]
                    largest = torch.maximum(one, two).detach()
                    largest = largest.masked_fill(largest == -torch.inf, 0.0)
                    share, other_share = (one - largest).exp(), (two - largest).exp()
                    total = share + other_share
                    nothing = total == 0
                    total = total.masked_fill(nothing, 1.0)
                    both = share.unsqueeze(-1) * out[:, :, query] + other_share.unsqueeze(-1) * other[:, :, query]
                    merged.append(both / total.unsqueeze(-1))
                    sums.append((largest + total.log()).masked_fill(nothing, -torch.inf))
                return torch.stack(merged, 2), torch.stack(sums, 2)
                """,
        ),
    ),
)
