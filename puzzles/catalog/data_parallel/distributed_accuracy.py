"""data_parallel.distributed_accuracy: sums and counts add up, means do not."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.data_parallel.answers.metrics import accuracy

from .common import LENGTHS, MANY, count_of

CLASSES = 3


def predictions_of_a_rank(case, rank):
    """Logits and targets; every third one is not to be predicted, of the others about half are right."""
    count = 2 * count_of(case, rank)
    logits = case.normal(rank, count, CLASSES).float()
    targets = case.tensor(rank, count, dtype=torch.int64, name="targets") % CLASSES
    targets[::2] = logits.argmax(1)[::2]
    targets[2::3] = -100
    return {"logits": logits, "targets": targets}


def share_of_hits(case, inputs):
    """One process looks at every token, one by one."""
    hits = asked = 0
    for each in inputs:
        for row, target in zip(each["logits"].tolist(), each["targets"].tolist(), strict=True):
            if target != -100:
                asked += 1
                hits += row.index(max(row)) == target
    return [hits / asked] * case.n


PUZZLE = Puzzle(
    name="data_parallel.distributed_accuracy",
    title="How accurate are all of us together?",
    statement="""
        Every rank has tested the model on its own tokens. For which share of the tokens of all ranks is the most
        likely one the right one? Tokens whose target is -100, such as padding, are not asked.

        Args:
            logits: this rank's, [T, classes]. T differs from rank to rank, and may be 0; not on all ranks.
            targets: [T], of int64.
            group: n ranks. Any n.

        Returns: a number (a float), the same on every rank.

        Budget: one all-reduce of two numbers.
        """,
    function=accuracy,
    answer="""
        asked = targets != -100
        hits = (logits.argmax(-1) == targets) & asked
        totals = torch.tensor([hits.sum(), asked.sum()], dtype=torch.float64)
        dist.all_reduce(totals, group=group)
        return (totals[0] / totals[1]).item()
        """,
    cases=cases(worlds=(3, 2, 4, 1, 5, 8), lengths=LENGTHS)
    + cases(worlds=(4,), lengths=(MANY,))
    + cases(worlds=(4,), members=(0, 2, 3), lengths=("different",)),
    drawn=on_any_ranks(lengths=LENGTHS),
    inputs=predictions_of_a_rank,
    oracle=share_of_hits,
    tolerance=1e-6,  # a quotient in float32 is off by 6e-8, and a token more or less by 1e-2
    calls=(dist.all_reduce,),
    budgets=(
        Budget(Measure.CALLS, target=lambda case: 1, why="numbers of one dtype travel together: torch.stack"),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, 2, 8),
            why="two numbers are enough: how many are right, and how many are asked",
        ),
    ),
    hints=(
        "Rank 0 has 1 of 3 right, rank 1 has 1 of 1. What do they have together? Which numbers did you add up?",
        "Sum the hits and the number of tokens that are asked, both over the group, and divide at the very end.",
        "One tensor of two numbers, in a dtype that holds large integers exactly: float64, or int64.",
    ),
    wrong=(
        Wrong(
            "a mean of means",
            diagnosis=r"right with lengths=equal, wrong with lengths=different|result: expected",
            body="""
                asked = targets != -100
                hits = (logits.argmax(-1) == targets) & asked
                mine = hits.sum().double() / max(1, asked.sum())
                dist.all_reduce(mine, group=group)
                return mine.item() / dist.get_world_size(group)
                """,
        ),
        Wrong(
            "padding counts as a mistake",
            diagnosis=r"result: expected 0\.\d+, got 0\.\d+",
            edits=(("asked.sum()]", "asked.numel()]"),),
        ),
        Wrong(
            "its own tokens only",
            diagnosis=r"result: expected 0\.\d+, got|the result must be the same on every rank",
            edits=(("    dist.all_reduce(totals, group=group)\n", ""),),
        ),
        Wrong(
            "as many tokens everywhere as here",
            diagnosis=r"right with lengths=equal, wrong with lengths=|result: expected",
            body="""
                asked = targets != -100
                hits = ((logits.argmax(-1) == targets) & asked).sum()
                dist.all_reduce(hits, group=group)
                return hits.item() / max(1, asked.sum().item() * dist.get_world_size(group))
                """,
        ),
        Wrong(
            "a tensor instead of a number",
            diagnosis=r"expected 0\.\d+, got a float64 tensor",
            edits=((".item()", ""),),
        ),
        Wrong(
            "rounded to whole numbers",
            diagnosis=r"result: expected 0\.\d+, got 0",
            edits=(("(totals[0] / totals[1]).item()", "float(totals[0] // totals[1])"),),
        ),
        Wrong(
            "hits and tokens in a message each",
            diagnosis=r"right, but a rank makes 2 calls where 1 must do.*\n.*travel together",
            body="""
                asked = targets != -100
                hits, tokens = ((logits.argmax(-1) == targets) & asked).sum(), asked.sum()
                dist.all_reduce(hits, group=group)
                dist.all_reduce(tokens, group=group)
                return hits.item() / tokens.item()
                """,
        ),
        Wrong(
            "every rank's numbers to all ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*two numbers are enough",
            body="""
                asked = targets != -100
                hits = (logits.argmax(-1) == targets) & asked
                totals = torch.zeros(dist.get_world_size(group), 2, dtype=torch.float64)
                totals[dist.get_rank(group)] = torch.tensor([hits.sum(), asked.sum()])
                dist.all_reduce(totals, group=group)
                right, all_tokens = totals.sum(0).tolist()
                return right / all_tokens
                """,
        ),
    ),
)
