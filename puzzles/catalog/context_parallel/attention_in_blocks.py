"""context_parallel.attention_in_blocks: attention to some keys at a time, forward and backward."""

import torch

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.context_parallel.answers.blocks import attention_in_blocks

from .common import ATTENTION, DOUBLE, by_definition


def scores_around(case, rank):
    """Scores near `around`; most keys are seen, and some queries see none, as `blind` says."""
    b, h, q, s, d = case.batch, case.heads, case.queries, case.keys, case.head_dim
    query, key = case.normal(0, b, h, q, d, name="query"), case.normal(0, b, h, s, d, name="key")
    query[..., 0], key[..., 0] = case.around * d**0.5, 1 + 1e-3 * key[..., 0]
    seen = case.normal(0, q, s, name="seen") < 1
    seen[:: case.blind or q + 1] = False
    return {
        "query": query,
        "key": key,
        "value": case.normal(0, b, h, s, d, name="value"),
        "seen": seen if case.blind else seen | (torch.arange(s) == 0),
        "block": case.block,
        "upstream": case.normal(0, b, h, q, d, name="upstream"),
    }


def all_scores_at_once(case, inputs):
    """By the definition, and autograd."""
    given = inputs[0]
    leaves = [given[name].requires_grad_() for name in ("query", "key", "value")]
    out, _ = by_definition(*leaves, given["seen"])
    found = torch.autograd.grad((out * given["upstream"]).sum(), leaves)
    names = ("query.grad", "key.grad", "value.grad")
    return [{"returns": out.detach(), **dict(zip(names, found, strict=True))}]


def rows(case):
    """Queries, of all heads."""
    return case.batch * case.heads * case.queries


def for_a_block(case):
    """Bytes: scores and weights of a block, several outputs, several numbers for each query; keys of a block."""
    block = min(case.block, case.keys)
    keys = case.batch * case.heads * block * case.head_dim
    return DOUBLE * (rows(case) * (4 * block + 6 * case.head_dim + 10) + 4 * keys)


LARGE = r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*scores of one block"

PUZZLE = Puzzle(
    name="context_parallel.attention_in_blocks",
    title="Attention in blocks",
    statement="""
        Attention has a score for each pair of a query and a key. With 131,072 tokens that is 17 thousand million
        scores for each head: 34 GB in 16 bits. They need not exist at the same time. Go through the keys block by
        block, keep what the queries have got so far and the logsumexp of the scores so far, and correct both with each
        block. This is called online softmax.

            score = query · key / √d, or -inf where the key is not seen
            out = sum over keys of e^(score - lse) · value
            lse = log(sum over keys of e^score)

        Backward needs all scores once more. Autograd would keep them, all blocks of them. Write the backward yourself,
        in a `torch.autograd.Function`, and make them again, block by block. With P = e^(score - lse), where lse is
        that of all blocks together, and G, the gradient of out:

            gradient of value = Pᵀ G
            gradient of score = P · (G valueᵀ - m)       m: for each query, the sum over d of G · out
            gradient of query = (gradient of score) key / √d
            gradient of key = (gradient of score)ᵀ query / √d

        Scores may be around 1000 or -1000, where e^score is no number for a float64. And there may be queries that see
        no key at all: these get 0, and no gradient is NaN.

        Args:
            query: [B, H, Q, d].
            key: [B, H, S, d].
            value: [B, H, S, d].
            seen: [Q, S] of bool, which query sees which key.
            block: how many keys make a block. The last block may have fewer.

        Returns: out, [B, H, Q, d], with gradients for query, key and value.

        Budget: memory for the scores of one block, not of all; and forward leaves out and lse for backward, beside what
        it was given. Your own code, not torch's `scaled_dot_product_attention`.
        """,
    function=attention_in_blocks,
    cases=cases(
        worlds=(1,),
        batch=(1,),
        heads=(1,),
        queries=(3,),
        keys=(4,),
        head_dim=(2,),
        block=(2,),
        around=(0.0,),
        blind=(0,),
    )
    + cases(
        worlds=(1,),
        batch=(2,),
        heads=(2,),
        queries=(5,),
        keys=(7,),
        head_dim=(3,),
        block=(3,),
        around=(0.0, 1000.0, -1000.0),
        blind=(0, 2),
    )
    + cases(
        worlds=(1,),
        batch=(1,),
        heads=(2,),
        queries=(4,),
        keys=(5,),
        head_dim=(2,),
        block=(1, 5, 9),
        around=(0.0,),
        blind=(0, 1),
    )
    + cases(
        worlds=(1,),
        batch=(2,),
        heads=(1,),
        queries=(16,),
        keys=(250,),
        head_dim=(4,),
        block=(8,),
        around=(0.0,),
        blind=(0,),
    ),
    drawn=(
        drawn(
            worlds=(1,),
            batch=(1, 2),
            heads=(1, 2, 3),
            queries=range(2, 9),
            keys=range(3, 20),
            head_dim=(2, 3, 4),
            block=range(1, 8),
            around=tuple(float(x) for x in range(-900, 1000, 90)),
            blind=(0, 2, 3),
        ),
    ),
    large=case(1, batch=1, heads=1, queries=1200, keys=1210, head_dim=16, block=64, around=0.0, blind=0),
    inputs=scores_around,
    oracle=all_scores_at_once,
    drive=there_and_back,
    tolerance=1e-9,
    without=ATTENTION,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=for_a_block,
            optimum=lambda case: DOUBLE * rows(case) * (min(case.block, case.keys) + case.head_dim + 1),
            why="the scores of one block at a time are enough, and what queries have got so far",
        ),
        Budget(
            Measure.KEPT_BYTES,
            target=lambda case: DOUBLE * rows(case) * (2 * case.head_dim + 3),
            optimum=lambda case: DOUBLE * rows(case) * (case.head_dim + 1),
            why="scores can be made again in backward, from out and lse: autograd must not keep them",
        ),
    ),
    hints=(
        "Suppose you have out and lse of the blocks so far, and the scores of the next one. What is the new lse? By "
        "what must the old out be multiplied, now that the same sum is divided by more?",
        "`both = torch.logaddexp(lse, scores.logsumexp(-1))`; `out = e^(lse - both) · out + e^(scores - both) @ "
        "value`. Begin with out = 0 and lse = -inf. Where `both` is -inf, subtract 0 instead.",
        "In forward: `ctx.save_for_backward(query, key, value, seen, out, lse)`. In backward, for each block: "
        "`weights = e^(scores - lse)` with the lse of all blocks. Gradients of a block's keys and values are complete; "
        "those of queries are summed over blocks.",
    ),
    wrong=(
        Wrong(
            "all scores at once",
            diagnosis=LARGE,
            body="""
                scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
                blind = ~seen.any(-1, keepdim=True)
                return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0) @ value
                """,
        ),
        Wrong(
            "autograd keeps the scores of every block",
            diagnosis=r"right, but .*[\d,]+ B where [\d,]+ must do",
            body="""
                out = torch.zeros_like(query)
                largest = query.new_full(query.shape[:-1], -1e9).unsqueeze(-1)
                total = torch.zeros_like(largest)
                for begin in range(0, key.shape[2], block):
                    here = slice(begin, begin + block)
                    scores = query @ key[:, :, here].mT * query.shape[-1] ** -0.5
                    higher = torch.maximum(largest, scores.amax(-1, keepdim=True)).detach()
                    weights = (scores - higher).exp() * seen[:, here]
                    out = out * (largest - higher).exp() + weights @ value[:, :, here]
                    total = total * (largest - higher).exp() + weights.sum(-1, keepdim=True)
                    largest = higher
                return out / total.masked_fill(total == 0, 1.0)
                """,
        ),
        Wrong(
            "torch's attention",
            diagnosis=r"uses .*scaled_dot_product_attention: it is a part of what this puzzle asks for",
            text="""
import torch
import torch.nn.functional as F

class InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, seen, block):
        out = query.new_empty(query.shape)
        for row in range(query.shape[2]):
            some = seen[row].any()
            part = slice(row, row + 1)
            found = F.scaled_dot_product_attention(query[:, :, part], key, value, attn_mask=seen[part] | ~some)
            out[:, :, part] = found * some
        ctx.save_for_backward(query, key, value, seen)
        return out

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, seen = ctx.saved_tensors
        some = seen.any(-1, keepdim=True)
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in (query, key, value)]
            out = F.scaled_dot_product_attention(*leaves, attn_mask=seen | ~some) * some
            found = torch.autograd.grad((out * gradient).sum(), leaves)
        return *found, None, None

def attention_in_blocks(query, key, value, seen, block):
    return InBlocks.apply(query, key, value, seen, block)
""",
        ),
        Wrong(
            "the last block is left out where it is short",
            diagnosis=r"result\[0, 0, \d, 0\]: expected",
            edits=(
                (
                    "        for begin in range(0, key.shape[2], block):\n",
                    "        for begin in range(0, key.shape[2] // block * block, block):\n",
                ),
            ),
        ),
        Wrong(
            "what was got before is not corrected",
            diagnosis=r"result\[0, 0, \d, 0\]: expected",
            edits=(("_exp(lse.unsqueeze(-1), both) * out + ", "out + "),),
        ),
        Wrong(
            "each block has a softmax of its own",
            diagnosis=r"result\[0, 0, \d, 0\]: expected",
            edits=(("+ _exp(scores, both) @", "+ _exp(scores, scores.logsumexp(-1)) @"),),
        ),
        Wrong(
            "large scores overflow",
            diagnosis=r"result\[0, 0, \d, 0\]: expected -?[\d.e-]+, got (nan|0|inf)",
            edits=(
                (
                    "            both = torch.logaddexp(lse, scores.logsumexp(-1))\n",
                    "            both = (lse.exp() + scores.exp().sum(-1)).log()\n",
                ),
            ),
        ),
        Wrong(
            "NaN where a query sees nothing",
            diagnosis=r"result\[0, 0, 0, 0\]: expected 0, got nan(\n.*)*wrong with blind=",
            edits=(("lse.masked_fill(lse == -torch.inf, 0.0).unsqueeze(-1)", "lse.unsqueeze(-1)"),),
        ),
        Wrong(
            "a query that sees nothing gets the mean of all values",
            diagnosis=r"result\[0, 0, 0, 0\]: expected 0, got -?[\d.]+",
            edits=((".masked_fill(~seen, -torch.inf)", ".masked_fill(~seen, -1e30)"),),
        ),
        Wrong(
            "backward forgets that weights sum up to 1",
            diagnosis=r"query\.grad\[0, 0, 0, 0\]: expected",
            edits=((".mT - mean)", ".mT)"),),
        ),
        Wrong(
            "backward weighs by each block's own logsumexp",
            diagnosis=r"(query|key|value)\.grad\[0, 0, \d, \d\]: expected",
            edits=(
                (
                    "            weights = _exp(_scores(query, key[:, :, here], seen[:, here]), lse)\n",
                    "            scores = _scores(query, key[:, :, here], seen[:, here])\n"
                    "            weights = _exp(scores, scores.logsumexp(-1))\n",
                ),
            ),
        ),
        Wrong(
            "gradients of queries are those of the last block",
            diagnosis=r"query\.grad\[0, 0, \d, 0\]: expected",
            edits=(("of_query += of_scores", "of_query[:] = of_scores"),),
        ),
        Wrong(
            "backward without the mask",
            diagnosis=r"(query|key|value)\.grad\[0, 0, \d, \d\]: expected",
            edits=(
                (
                    "_exp(_scores(query, key[:, :, here], seen[:, here]), lse)",
                    "_exp(_scores(query, key[:, :, here], seen[:, here] | True), lse)",
                ),
            ),
        ),
        Wrong(
            "backward without 1 / √d",
            diagnosis=r"query\.grad\[0, 0, \d, \d\]: expected",
            edits=((" - mean) * query.shape[-1] ** -0.5", " - mean)"),),
        ),
    ),
)
