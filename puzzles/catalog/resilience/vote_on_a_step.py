"""resilience.vote_on_a_step: a step counts on all replicas or on none."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.resilience.answers.commit import vote_on_a_step

FLOAT = 4
BAD = {  # which of n replicas have no gradient
    "none": lambda n: set(),
    "the last": lambda n: {n - 1},
    "the first": lambda n: {0},
    "all but one": lambda n: set(range(1, n)),
    "all": lambda n: set(range(n)),
}
LEAST = {"one": lambda n: 1, "half": lambda n: (n + 1) // 2, "all": lambda n: n}


def weights_and_a_gradient(case, rank):
    """Equal weights, and a gradient; one that is not good is what a failure leaves behind."""
    good = rank not in BAD[case.bad](case.n)
    gradient = case.tensor(rank, case.length, name="gradient")
    if not good:
        gradient[rank % case.length] = float("nan") if rank % 2 else float("inf")
    return {
        "weight": case.tensor(0, case.length, name="weight"),
        "gradient": gradient,
        "good": good,
        "rate": 0.25,
        "least": LEAST[case.least](case.n),
    }


def those_that_are_well(case, inputs):
    """One process takes the step with the gradients that count, if they are enough."""
    counted = [each["gradient"] for each in inputs if each["good"]]
    weight, count = inputs[0]["weight"], 0
    if len(counted) >= inputs[0]["least"]:
        weight, count = weight - 0.25 * torch.stack(counted).sum(0) / len(counted), len(counted)
    return [{"weight": weight, "returns": count} for _ in inputs]


TAKE = "    weight -= rate * said[:-1] / count\n"

PUZZLE = Puzzle(
    name="resilience.vote_on_a_step",
    title="Vote on a step",
    statement="""
        Each rank is a replica. One of them ran out of memory in backward, another one read a damaged batch: they have
        no gradient, and they know it. They need not take the others along. Let the step be taken with the gradients
        that are there, by their mean, if there are at least `least` of them; also those that have none update, so that
        all replicas stay equal. Else no replica may change, not even those that are well.

        What stands in `gradient` on a replica that has failed is anything: it may be infinite or NaN.

        Args:
            weight: [N], equal on all ranks. Updated in place: weight -= rate * mean of the gradients that count.
            gradient: [N], of this replica. It stays as it is.
            good: whether this replica has computed it.
            rate: of learning.
            least: how many gradients make a step, 1 or more.
            group: n ranks. Any n.

        Returns: how many gradients were counted, the same on every rank; 0 where the step was not taken.

        Budget: one all-reduce of N + 1 numbers.
        """,
    function=vote_on_a_step,
    cases=cases(worlds=(4,), bad=("the last", "none", "all but one", "all"), least=("half",), length=(6,))
    + cases(worlds=(3,), bad=("the first",), least=("all", "half"), length=(5,))
    + cases(worlds=(2, 5), bad=("the last",), least=("one",), length=(7,))
    + cases(worlds=(1,), bad=("none", "all"), least=("one",), length=(3,))
    + cases(worlds=(8,), bad=("all but one",), least=("one",), length=(9,))
    + cases(worlds=(4,), members=(0, 2, 3), bad=("the last",), least=("half",), length=(6,)),
    drawn=on_any_ranks(bad=tuple(BAD), least=tuple(LEAST), length=range(3, 12)),
    inputs=weights_and_a_gradient,
    oracle=those_that_are_well,
    tolerance=1e-5,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 1,
            why="the number of good replicas fits into the message of the gradients",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, case.length + 1, FLOAT),
            why="a sum of N + 1 numbers is all that has to travel",
        ),
    ),
    hints=(
        "What can a replica bring to a sum that does not change it? Is it 0 times what it has?",
        "All ranks have to know two sums: that of the gradients, and that of ones for those that are good. Both are "
        "sums, so they fit into one message.",
        "`said = torch.cat([brought, brought.new_tensor([float(good)])])`, where `brought` is `torch.zeros_like` on a "
        "replica that has failed. After the all-reduce `int(said[-1])` is the count on all ranks.",
    ),
    wrong=(
        Wrong(
            "a replica that has failed stays away",
            diagnosis=r"rank \d finished without it|deadlock|waits",
            edits=(("    brought = gradient", "    if not good:\n        return 0\n    brought = gradient"),),
        ),
        Wrong(
            "zero times what it has",
            diagnosis=r"NaN",
            edits=(("gradient if good else torch.zeros_like(gradient)", "gradient * float(good)"),),
        ),
        Wrong(
            "a replica that is gone is counted forever (torchft#63)",
            diagnosis=r"weight\[0\]: expected",
            edits=(("said[:-1] / count", "said[:-1] / dist.get_world_size(group)"),),
        ),
        Wrong(
            "a replica that has failed does not update",
            diagnosis=r"weight on rank 3 still holds its own input",
            edits=((TAKE, "    if good:\n        weight -= rate * said[:-1] / count\n"),),
        ),
        Wrong(
            "each replica decides by itself",
            diagnosis=r"expected",
            edits=(("    if count < least:", "    if not good:"),),
        ),
        Wrong(
            "a step that is too few is taken all the same",
            diagnosis=r"least=half.*expected 0, got|weight\[0\]: expected|NaN|result: expected",
            edits=(("count < least", "count == 0"),),
        ),
        Wrong(
            "more than `least`",
            diagnosis=r"expected",
            edits=(("count < least", "count <= least"),),
        ),
        Wrong(
            "the vote is a message of its own",
            diagnosis=r"right, but a rank makes 2 calls where 1 must do.*\n.*fits into the message",
            body="""
                count = torch.tensor([int(good)])
                dist.all_reduce(count, group=group)
                total = gradient.clone() if good else torch.zeros_like(gradient)
                dist.all_reduce(total, group=group)
                if count < least:
                    return 0
                weight -= rate * total / count
                return int(count)
                """,
        ),
    ),
)
