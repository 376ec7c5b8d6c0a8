"""expert_parallel.auxiliary_loss: a loss that keeps experts busy, as parts that add up over ranks."""

import torch
import torch.distributed as dist

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.collectives.compat import all_gather_single
from reference.expert_parallel.answers.auxiliary import auxiliary_loss

from .over_ranks import INTEGER, MOST, TOKENS, tokens_of


def scores_and_choices(case, rank):
    """Scores of this rank's tokens, and the best experts of each. In some cases each rank has other favourites."""
    likes = 3.0 * torch.nn.functional.one_hot(torch.tensor(rank % case.experts), case.experts) * case.own_favourites
    scores = (case.normal(rank, tokens_of(case, rank), case.experts, name="scores") + likes).softmax(-1)
    upstream = torch.tensor(2.0, dtype=torch.float64)  # what comes down the model is the same for each part
    return {"scores": scores, "chosen": scores.argsort(-1, descending=True)[:, : case.k], "upstream": upstream}


def one_process(case, inputs):
    """The shares of all choices, then term by term; a rank's part are those of its own tokens."""
    tokens = sum(len(each["scores"]) for each in inputs)
    counted = [0] * case.experts
    for each in inputs:
        for expert in each["chosen"].flatten().tolist():
            counted[expert] += 1
    shares = torch.tensor(counted, dtype=torch.float64) / max(1, case.k * tokens)
    of_score = case.experts * shares / max(1, tokens)  # each score is in one term, with this factor
    return [
        {
            "returns": sum((of_score @ score for score in each["scores"]), torch.zeros((), dtype=torch.float64)),
            "scores.grad": (each["upstream"] * of_score).expand(each["scores"].shape).clone(),
        }
        for each in inputs
    ]


OF_EACH_RANK = """\
experts, k = scores.shape[1], chosen.shape[1]
counts = torch.bincount(chosen.flatten(), minlength=experts).double()
shares = counts / max(1, chosen.numel())
own = experts * (shares * scores).sum() / max(1, len(scores))
"""
BY_GATHERED_CHOICES = """
    experts, k = scores.shape[1], chosen.shape[1]
    padded = chosen.new_full((16, k), experts)
    padded[: len(chosen)] = chosen
    whole = chosen.new_empty(16 * dist.get_world_size(group), k)
    dist.all_gather_single(whole, padded, group=group)
    counts = torch.bincount(whole.flatten(), minlength=experts + 1)[:experts].double()
    choices = counts.sum().clamp(min=1)
    return experts * (counts / choices * scores).sum() / (choices / k)
    """
assert MOST < 16  # what the program above pads to

DIFFERS = r"(result|scores\.grad\[\d, \d\]): expected -?[\d.e-]+, got -?[\d.e-]+"

PUZZLE = Puzzle(
    name="expert_parallel.auxiliary_loss",
    title="A loss that keeps experts busy",
    statement="""
        A router that likes an expert sends it more tokens, so it learns more, and is liked more. Against that there is
        a loss, beside that of the model:

            E · sum over experts of share(e) · mean_score(e)

        share(e) is how many of all choices expert e got, divided by the number of all choices; mean_score(e) is the
        mean of the tokens' scores for it. Both are 1/E if all experts are equally busy, and then the loss is 1. The
        share is a count and has no gradient; the scores have one.

        Both are meant over *all* tokens of all ranks. The mean of each rank's own loss is not that: a rank that reads
        code and one that reads poems may well use other experts. Over both of them all experts are busy; each rank by
        itself would be punished, until no expert knows what code is. And the result would depend on how many ranks
        there are.

        Return this rank's part: the terms of its own tokens, such that the parts of all ranks add up to the loss, and
        the gradient of each score is that of one process. Ranks have different numbers of tokens. One that has none
        takes part all the same; its part is 0, with a history, as that of the others. Where no rank has any, the loss
        is 0.

        Counts are whole numbers, and torch divides these in float32: give them the dtype of the scores before.

        Args:
            scores: [T, E], which add up to one for each token. T may be 0. Gradients flow back through them.
            chosen: [T, k] of int64, experts of each token, none of them twice.
            group: n ranks. Any n.

        Returns: a scalar, this rank's part. (Gradients are summed over ranks later, and never divided.)

        Budget: one all-reduce of E numbers, or of E + 1.
        """,
    function=auxiliary_loss,
    cases=cases(worlds=(4,), tokens=("the same", "different"), own_favourites=(True,), experts=(6,), k=(2,))
    + cases(worlds=(4,), tokens=("none on the first", "none"), own_favourites=(False,), experts=(6,), k=(2,))
    + cases(worlds=(3, 2), tokens=("different", "all on the last"), own_favourites=(True,), experts=(5,), k=(3, 1))
    + cases(worlds=(2,), tokens=("a single one",), own_favourites=(True,), experts=(4,), k=(1,))
    + cases(worlds=(1, 5, 8), tokens=("different",), own_favourites=(True,), experts=(4,), k=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), tokens=("different",), own_favourites=(True,), experts=(4,), k=(2,)),
    drawn=on_any_ranks(
        tokens=[each for each in TOKENS if each != "none"], own_favourites=(True, False), experts=(3, 6), k=(1, 2, 3)
    ),
    inputs=scores_and_choices,
    oracle=one_process,
    drive=there_and_back,
    tolerance=1e-10,
    calls=(dist.all_reduce, all_gather_single, dist.all_gather_into_tensor, dist.all_gather),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 1,
            why="counts of all experts are one tensor, and their sum is k times the number of tokens",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, case.experts + 1, INTEGER),
            optimum=lambda case: cost.of(ring).most(case.n, case.experts, INTEGER),
            why="all that a rank needs of the others is how often each expert was chosen",
        ),
    ),
    hints=(
        "Take two ranks and two experts. All tokens of rank 0 choose expert 0, all of rank 1 choose expert 1, with a "
        "score of 1. What is the loss of each rank alone, and what is it of all tokens? Which of the two means in the "
        "product is to blame?",
        "share(e) must be known, so counts are summed over ranks first. They have no gradient. What is left is linear "
        "in the scores: a sum over tokens, divided by the number of all tokens. A rank's part is that over its own.",
        "`counts = torch.bincount(chosen.flatten(), minlength=E)`, `dist.all_reduce(counts, group=group)`, "
        "`counts = counts.to(scores.dtype)`, `choices = counts.sum().clamp(min=1)`. The part is "
        "`E * (counts / choices * scores).sum() / (choices / k)`.",
    ),
    wrong=(
        Wrong(
            "the mean of each rank's own loss",
            diagnosis=DIFFERS,
            body=OF_EACH_RANK + "return own / dist.get_world_size(group)\n",
        ),
        Wrong(
            "the sum of each rank's own loss",
            diagnosis=DIFFERS,
            body=OF_EACH_RANK + "return own\n",
        ),
        Wrong(
            "each rank's own loss, weighed by its tokens",
            diagnosis=DIFFERS,
            body=OF_EACH_RANK
            + """\
tokens = torch.tensor(len(scores))
dist.all_reduce(tokens, group=group)
return own * (len(scores) / tokens.clamp(min=1).item())
""",
        ),
        Wrong(
            "the shares of this rank's choices",
            diagnosis=DIFFERS,
            edits=(
                (
                    "    dist.all_reduce(counts, group=group)\n",
                    "    of_all = counts.clone()\n    dist.all_reduce(of_all, group=group)\n",
                ),
                ("    choices = counts.sum().clamp(min=1)\n", "    choices = of_all.sum().clamp(min=1)\n"),
                ("counts / choices * scores", "counts / max(1, chosen.numel()) * scores"),
            ),
        ),
        Wrong(
            "the mean of scores of this rank's tokens",
            diagnosis=DIFFERS,
            edits=(("/ (choices / k)", "/ max(1, len(scores))"),),
        ),
        Wrong(
            "a mean of mean scores",
            diagnosis=r"tokens=different.* " + DIFFERS,
            edits=(("/ (choices / k)", "/ max(1, len(scores)) / dist.get_world_size(group)"),),
        ),
        Wrong(
            "averaged over ranks, although gradients are summed",
            diagnosis=r"off by exactly the world size, too little",
            edits=(("/ (choices / k)", "/ (choices / k) / dist.get_world_size(group)"),),
        ),
        Wrong(
            "the whole loss on every rank: what is summed later is n times as large",
            diagnosis=r"result: expected",
            edits=(
                (
                    "    return experts * (counts / choices * scores).sum() / (choices / k)\n",
                    "    own = experts * (counts / choices * scores).sum() / (choices / k)\n"
                    "    total = own.detach().clone()\n    dist.all_reduce(total, group=group)\n"
                    "    return own - own.detach() + total\n",
                ),
            ),
        ),
        Wrong(
            "divided by choices, where a mean over tokens is asked for",
            diagnosis=DIFFERS,
            edits=(("(choices / k)", "choices"),),
        ),
        Wrong(
            "first choices alone are counted",
            diagnosis=DIFFERS,
            edits=(("torch.bincount(chosen.flatten(),", "torch.bincount(chosen[:, 0],"), ("(choices / k)", "choices")),
        ),
        Wrong(
            "without E: the loss of busy experts is 1/E",
            diagnosis=r"(result|scores\.grad\[0, 0\]): expected",
            edits=(("return experts * (", "return ("),),
        ),
        Wrong(
            "whole numbers are divided in float32",
            diagnosis=r"(result|scores\.grad\[0, 0\]): expected (0\.\d{7})\d*, got 0\.\d+",
            edits=(("    counts = counts.to(scores.dtype)  # torch divides whole numbers in float32\n", ""),),
        ),
        Wrong(
            "nothing divided by nothing",
            diagnosis=r"tokens=none,.*(NaN|nan)|expected 0(\.0)?, got nan",
            edits=((".clamp(min=1)", ""),),
        ),
        Wrong(
            "without a gradient",
            diagnosis=r"scores\.grad: expected a float64 tensor of shape \(\d, \d\), got None",
            edits=(("* scores).sum()", "* scores.detach()).sum()"),),
        ),
        Wrong(
            "a rank without tokens has no part",
            diagnosis=r"scores\.grad: expected a float64 tensor of shape \(0, \d\), got None",
            edits=(
                (
                    "    return experts",
                    "    if not len(scores):\n        return scores.new_zeros(())\n    return experts",
                ),
            ),
        ),
        Wrong(
            "a rank without tokens stays away",
            diagnosis=r"finished without it|rank \d never|deadlock|waits",
            edits=(
                (
                    "    dist.all_reduce(counts, group=group)\n",
                    "    if not len(scores):\n        return scores.sum()\n    dist.all_reduce(counts, group=group)\n",
                ),
            ),
        ),
        Wrong(
            "counts in one call, tokens in another",
            diagnosis=r"right, but a rank makes 2 calls where 1 must do.*\n.*one tensor",
            edits=(
                (
                    "    choices = counts.sum().clamp(min=1)\n",
                    "    tokens = torch.tensor(len(scores))\n    dist.all_reduce(tokens, group=group)\n"
                    "    choices = (k * tokens).clamp(min=1)\n",
                ),
            ),
        ),
        Wrong(
            "all choices to all ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*how often each expert",
            body=BY_GATHERED_CHOICES,
        ),
    ),
)
