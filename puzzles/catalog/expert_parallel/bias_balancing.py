"""expert_parallel.bias_balancing: a bias that chooses, weighs nothing, and moves once a step by what all ranks saw."""

import torch
import torch.distributed as dist

from puzzles.grading.drives.expert_routing import in_micro_batches_of_scores
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.expert_parallel.answers.biased import route_a_step

DOUBLE, RATE = 8, 0.03


def tokens_of(case, rank, number):
    """How many tokens a rank has in a micro-batch; with `idle`, the first rank has none at all."""
    return 0 if case.get("idle", False) and rank == 0 else case.tokens + (rank + number) % 2


def scores_and_a_bias(case, rank):
    """Scores between 0 and 1, and a bias that is as large as what sets them apart."""
    shapes = [(tokens_of(case, rank, number), case.experts) for number in range(case.micro_batches)]
    return {
        "scores": [case.normal(rank, *shape, name=f"scores {i}").sigmoid() for i, shape in enumerate(shapes)],
        "upstream": [case.normal(rank, tokens, case.k, name=f"upstream {i}") for i, (tokens, _) in enumerate(shapes)],
        "bias": 0.2 * case.normal(0, case.experts, name="bias"),
        "k": case.k,
        "rate": RATE,
    }


def token_after_token(case, inputs):
    """Of all ranks in one process, each token by itself."""
    bias, counts, found = inputs[0]["bias"].tolist(), [0] * case.experts, []
    for each in inputs:
        of_rank = {}
        for number, (scores, upstream) in enumerate(zip(each["scores"], each["upstream"], strict=True)):
            leaf = scores.clone().requires_grad_()
            chosen, weights = [], torch.zeros(len(leaf), case.k, dtype=leaf.dtype)
            for token, row in enumerate(leaf.tolist()):
                best = sorted(range(case.experts), key=lambda expert: -(row[expert] + bias[expert]))[: case.k]
                own = torch.stack([leaf[token, expert] for expert in best])
                weights = torch.cat([weights[:token], (own / own.sum())[None], weights[token + 1 :]])
                chosen.append(best)
                for expert in best:
                    counts[expert] += 1
            if chosen:
                (weights * upstream).sum().backward()
            of_rank |= {
                f"experts of micro-batch {number}": torch.tensor(chosen, dtype=torch.int64).view(-1, case.k),
                f"weights of micro-batch {number}": weights.detach(),
                f"gradient of scores {number}": leaf.grad if chosen else torch.zeros_like(scores),
            }
        found.append(of_rank)
    mean = sum(counts) / case.experts
    moved = [b + RATE * ((count < mean) - (count > mean)) for b, count in zip(bias, counts, strict=True)]
    centred = torch.tensor([each - sum(moved) / case.experts for each in moved], dtype=torch.float64)
    return [{**of_rank, "bias": centred} for of_rank in found]


BIAS = r"bias\[\d\]: expected -?[\d.]+, got -?[\d.]+"
WEIGHTS = r"weights of micro-batch 0\[\d, \d\]: expected"
EXPERTS = r"experts of micro-batch \d\[\d, \d\]: expected \d, got \d"

PUZZLE = Puzzle(
    name="expert_parallel.bias_balancing",
    title="A bias that keeps experts busy",
    statement="""
        A loss that evens out how busy experts are has a gradient, which disturbs the one that is wanted. A bias has
        none. Each expert has one, which is added to its scores to choose experts with. After each step, that of an
        expert which got more choices than the mean falls by a constant, that of one which got fewer rises by it, and
        that of one which got just the mean stays (DeepSeek-V3).

        The order matters. A step has several micro-batches, and many ranks with other tokens in each. All tokens of a
        step choose with the bias that the step before has left. Then it moves, once, by the choices of all
        micro-batches of all ranks, for it must stay the same on every rank. Last, its mean is taken out: it changes no
        choice, and nothing else would keep it from drifting.

        What an expert makes of a token is weighed by its score, without the bias.

        Args:
            scores: a list with a tensor [T, E] for each micro-batch, above 0, of this rank's tokens. T may differ, and
                may be 0. Gradients flow back through the weights.
            bias: [E], the same on every rank. To be moved in place, as it was described.
            k: experts of a token, those with the largest sum of score and bias.
            rate: the constant.
            group: n ranks. Any n.

        Returns: a list with a pair for each micro-batch: the experts of each token, [T, k] of int64, the best first;
        and their weights, [T, k]: scores divided by their sum over the token's experts.

        Budget: one all-reduce of E numbers.
        """,
    function=route_a_step,
    cases=cases(worlds=(4,), tokens=(3,), experts=(6,), k=(2,), micro_batches=(2,))
    + cases(worlds=(2, 3), tokens=(2,), experts=(5,), k=(1, 3), micro_batches=(2,))
    + cases(worlds=(1,), tokens=(4,), experts=(4,), k=(2,), micro_batches=(1, 3))
    + cases(worlds=(3,), tokens=(3,), experts=(6,), k=(2,), micro_batches=(2,), idle=(True,))
    + cases(worlds=(5, 8), tokens=(1,), experts=(4,), k=(2,), micro_batches=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), tokens=(2,), experts=(6,), k=(2,), micro_batches=(2,)),
    drawn=on_any_ranks(tokens=(1, 2, 3), experts=(4, 6, 7), k=(1, 2, 3), micro_batches=(2, 3)),
    inputs=scores_and_a_bias,
    oracle=token_after_token,
    drive=in_micro_batches_of_scores,
    tolerance=1e-10,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 1,
            why="the bias moves once a step: count over all micro-batches, then sum over the ranks",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, case.experts, DOUBLE),
            why="of a step one number for each expert is asked for: how many tokens chose it",
        ),
    ),
    hints=(
        "There are scores with a bias, and scores without. Which of them choose, and which of them weigh? And "
        "which tokens must have chosen before the bias may move?",
        "`chosen = (scores.detach() + bias).topk(k).indices`, and `scores.gather(1, chosen)` for the weights. Add up "
        "`torch.bincount(chosen.flatten(), minlength=E)` over micro-batches, and let one all-reduce do the rest.",
        "`bias += rate * (counts.mean() - counts).sign()`, with counts as floats, and then `bias -= bias.mean()`. An "
        "expert that got just the mean has a sign of 0.",
    ),
    wrong=(
        Wrong(
            "each rank counts its own tokens",
            diagnosis=BIAS,
            edits=(("    dist.all_reduce(counts, group=group)\n", ""),),
        ),
        Wrong(
            "the bias weighs, too",
            diagnosis=WEIGHTS,
            edits=(("weights = of_tokens.gather(1, chosen)", "weights = (of_tokens + bias).gather(1, chosen)"),),
        ),
        Wrong(
            "chosen without the bias",
            diagnosis=EXPERTS,
            edits=(("(of_tokens.detach() + bias).topk(k)", "of_tokens.detach().topk(k)"),),
        ),
        Wrong(
            "the mean drifts",
            diagnosis=BIAS,
            edits=(("    bias -= bias.mean()\n", ""),),
        ),
        Wrong(
            "busy experts rise",
            diagnosis=BIAS,
            edits=(("(counts.mean() - counts).sign()", "(counts - counts.mean()).sign()"),),
        ),
        Wrong(
            "it moves as far as an expert is off",
            diagnosis=BIAS,
            edits=(("(counts.mean() - counts).sign()", "(counts.mean() - counts) / counts.mean()"),),
        ),
        Wrong(
            "an expert that got the mean falls",
            diagnosis=BIAS,
            edits=(("(counts.mean() - counts).sign()", "torch.where(counts < counts.mean(), 1.0, -1.0)"),),
        ),
        Wrong(
            "a new bias, and the old one stays",
            diagnosis=BIAS,
            edits=(
                ("    bias += rate *", "    bias = bias + rate *"),
                ("    bias -= bias.mean()\n", "    bias = bias - bias.mean()\n"),
            ),
        ),
        Wrong(
            "weights over all experts",
            diagnosis=WEIGHTS,
            edits=(("weights / weights.sum(1, keepdim=True)", "weights / of_tokens.sum(1, keepdim=True)"),),
        ),
        Wrong(
            "weights without a gradient",
            diagnosis=r"gradient of scores 0: expected a float64 tensor of shape \(\d, 6\), got None",
            edits=(("weights = of_tokens.gather(1, chosen)", "weights = of_tokens.detach().gather(1, chosen)"),),
        ),
        Wrong(
            "it moves after each micro-batch",
            diagnosis=EXPERTS + "|" + BIAS,
            body="""
                routed = []
                for of_tokens in scores:
                    chosen = (of_tokens.detach() + bias).topk(k).indices
                    weights = of_tokens.gather(1, chosen)
                    routed.append((chosen, weights / weights.sum(1, keepdim=True)))
                    counts = torch.bincount(chosen.flatten(), minlength=len(bias)).to(bias)
                    dist.all_reduce(counts, group=group)
                    bias += rate * (counts.mean() - counts).sign()
                    bias -= bias.mean()
                return routed
                """,
        ),
        Wrong(
            "it moves before the step chooses",
            diagnosis=EXPERTS,
            body="""
                counts = torch.zeros_like(bias)
                for of_tokens in scores:
                    chosen = (of_tokens.detach() + bias).topk(k).indices
                    counts += torch.bincount(chosen.flatten(), minlength=len(bias))
                dist.all_reduce(counts, group=group)
                bias += rate * (counts.mean() - counts).sign()
                bias -= bias.mean()
                routed = []
                for of_tokens in scores:
                    chosen = (of_tokens.detach() + bias).topk(k).indices
                    weights = of_tokens.gather(1, chosen)
                    routed.append((chosen, weights / weights.sum(1, keepdim=True)))
                return routed
                """,
        ),
        Wrong(
            "a rank without tokens stays away",
            diagnosis=r"finished without it|rank \d never|deadlock|waits",
            edits=(
                (
                    "    dist.all_reduce(counts, group=group)\n",
                    "    if not counts.any():\n        return routed\n    dist.all_reduce(counts, group=group)\n",
                ),
            ),
        ),
        Wrong(
            "an all-reduce for each micro-batch",
            diagnosis=r"right, but a rank makes \d calls where 1 must do.*\n.*once a step",
            edits=(
                (
                    "        counts += torch.bincount(chosen.flatten(), minlength=len(bias))\n"
                    "    dist.all_reduce(counts, group=group)\n",
                    "        here = torch.bincount(chosen.flatten(), minlength=len(bias))\n"
                    "        dist.all_reduce(here, group=group)\n        counts += here\n",
                ),
            ),
        ),
        Wrong(
            "a row of counts for each micro-batch",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*one number for each expert",
            edits=(
                ("torch.zeros_like(bias)", "bias.new_zeros(len(scores), len(bias))"),
                ("for of_tokens in scores", "for row, of_tokens in zip(counts, scores)"),
                ("        counts += torch", "        row += torch"),
                (
                    "    dist.all_reduce(counts, group=group)\n",
                    "    dist.all_reduce(counts, group=group)\n    counts = counts.sum(0)\n",
                ),
            ),
        ),
    ),
)
