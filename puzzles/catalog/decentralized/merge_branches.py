"""decentralized.merge_branches: branches become one mixture of experts."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_gather import ring as all_gather_ring
from reference.collectives.all_reduce import ring
from reference.collectives.compat import all_gather_single
from reference.decentralized.answers.merged import merge

DOUBLE = 8


def a_branch(case, rank):
    """Weights of a model that has learned from a part of the text."""
    return {
        "feed_forward": case.tensor(rank, case.features, dtype=torch.float64, name="feed-forward"),
        "rest": case.tensor(rank, case.others, dtype=torch.float64, name="rest"),
    }


def one_mixture(case, inputs):
    """All feed-forwards stay; of the rest there is one."""
    experts = torch.stack([each["feed_forward"] for each in inputs])
    mean = sum(each["rest"] for each in inputs) / case.n
    return [{"returns": experts, "rest": mean} for _ in inputs]


def bytes_of(case):
    """An all-reduce of the rest, an all-gather of feed-forwards."""
    gathered = cost.of(all_gather_ring).most(case.n, case.n * case.features, DOUBLE)
    return cost.of(ring).most(case.n, case.others, DOUBLE) + gathered


PUZZLE = Puzzle(
    name="decentralized.merge_branches",
    title="Merge branches into experts",
    statement="""
        n ranks have trained copies of one model, each on another part of the text, without a message in all that time.
        Branch-Train-MiX (Sukhbaatar et al. 2024) makes one model of them: the feed-forward of each branch becomes an
        expert, so what a branch has learned of its part stays; of all other weights there is one copy, the mean of all.
        A router, trained afterwards, learns which expert is for which token.

        Args:
            feed_forward: [F] in float64, of this rank's branch. Leave it as it is.
            rest: [R], all other weights of the branch. Becomes the mean of all branches, in place.
            group: n ranks, a branch each. Any n.

        Returns: [n, F], a new tensor, the same on every rank: the experts, that of group rank 0 first.

        Budget: an all-reduce of R numbers and an all-gather of F from each rank.
        """,
    function=merge,
    cases=cases(worlds=(3, 2, 4, 1), features=(6,), others=(4,))
    + cases(worlds=(5, 8), features=(3,), others=(7,))
    + cases(worlds=(4,), members=(0, 2, 3), features=(4,), others=(5,)),
    drawn=on_any_ranks(features=range(2, 20), others=range(2, 20)),
    inputs=a_branch,
    oracle=one_mixture,
    tolerance=1e-13,
    new=True,
    calls=(dist.all_reduce, dist.all_gather, all_gather_single, dist.all_gather_into_tensor, dist.broadcast),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=bytes_of,
            why="of the rest only the mean is needed: sum it, and gather the feed-forwards alone",
        ),
    ),
    hints=(
        "Of what must each rank have all n, and of what only the sum?",
        "`dist.all_reduce(rest, group=group)`, divided by n; `dist.all_gather` of the feed-forwards into a list, then "
        "`torch.stack`.",
    ),
    wrong=(
        Wrong(
            "feed-forwards are averaged, too",
            diagnosis=r"result.*expected|expected",
            edits=(
                (
                    "    return torch.stack(experts)",
                    "    return torch.stack(experts).mean(0).expand(n, -1).contiguous()",
                ),
            ),
        ),
        Wrong(
            "the sum of the rest",
            diagnosis=r"rest.*expected",
            edits=(("    rest /= n\n", ""),),
        ),
        Wrong(
            "the rest of the first branch",
            diagnosis=r"rest.*expected",
            edits=(
                (
                    "    dist.all_reduce(rest, group=group)\n    rest /= n\n",
                    "    dist.broadcast(rest, group=group, group_src=0)\n",
                ),
            ),
        ),
        Wrong(
            "its own expert first",
            diagnosis=r"result.*expected|expected",
            edits=(("torch.stack(experts)", "torch.stack(experts).roll(-dist.get_rank(group), 0)"),),
        ),
        Wrong(
            "experts one after another, flat",
            diagnosis=r"shape",
            edits=(("torch.stack(experts)", "torch.cat(experts)"),),
        ),
        Wrong(
            "the mean is a new tensor",
            diagnosis=r"rest.*(still holds its own input|expected)",
            edits=(("    rest /= n\n", "    rest = rest / n\n"),),
        ),
        Wrong(
            "everything is gathered",
            diagnosis=r"right, but rank \d sen(t|ds) [\d,]+ B where [\d,]+ must do.*\n.*only the mean",
            body="""
                n = dist.get_world_size(group)
                branch = torch.cat([feed_forward, rest])
                branches = [torch.empty_like(branch) for _ in range(n)]
                dist.all_gather(branches, branch, group=group)
                whole = torch.stack(branches)
                rest.copy_(whole[:, len(feed_forward) :].mean(0))
                return whole[:, : len(feed_forward)].clone()
                """,
        ),
    ),
)
