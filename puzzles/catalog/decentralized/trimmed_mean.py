"""decentralized.trimmed_mean: gradients among ranks that lie, and no rank sees all of them."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_gather import ring as all_gather_ring
from reference.collectives.compat import all_gather_single
from reference.decentralized.answers.trimmed import trimmed_mean

DOUBLE = 8
SHARE = {"none": lambda n: 0, "some": lambda n: (n - 1) // 3, "most": lambda n: (n - 1) // 2}


def a_gradient(case, rank):
    """Of an honest rank; the first ones lie."""
    liars = SHARE[case.liars](case.n)
    gradient = case.factors(rank, case.n * case.chunk)
    if rank < liars:
        gradient[rank::2] = 1e30 * (-1) ** rank
        gradient[rank + 1 :: 3] = -1e25
    return {"gradient": gradient, "liars": liars}


def number_by_number(case, inputs):
    """Sort what all say of each number."""
    liars, n = inputs[0]["liars"], case.n
    said = zip(*(each["gradient"].tolist() for each in inputs), strict=True)
    means = [sum(sorted(column)[liars : n - liars]) / (n - 2 * liars) for column in said]
    return [torch.tensor(means, dtype=torch.float64)] * n


PUZZLE = Puzzle(
    name="decentralized.trimmed_mean",
    title="The trimmed mean among liars",
    statement="""
        Some ranks may say anything instead of their gradients: by a bug, a broken memory, or on purpose. A single one
        moves a mean as far as it likes. Leave out, for each number by itself, the `liars` largest and the `liars`
        smallest of what the n ranks say, and take the mean of the rest. Honest ranks are left out, too; that is the
        price.

        To sort, all n numbers of a place must be in one place, but not those of all places on every rank. Send as few
        bytes as an all-reduce does.

        `dist.all_to_all_single(out, x, group=group)` gives the j-th n-th of `x` to rank j, and puts what comes from
        rank i into the i-th n-th of `out`.

        Args:
            gradient: [N] in float64, as this rank says. n divides N. Leave it as it is.
            liars: f, less than n / 2.
            group: n ranks. Any n.

        Returns: [N], the same on every rank.

        Budget: 2(n-1)/n · N numbers sent by a rank.
        """,
    function=trimmed_mean,
    cases=cases(worlds=(4, 3), liars=("most", "none"), chunk=(3,))
    + cases(worlds=(1, 2, 5), liars=("most",), chunk=(2,))
    + cases(worlds=(8,), liars=("some",), chunk=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), liars=("most",), chunk=(4,)),
    drawn=on_any_ranks(liars=("some", "most"), chunk=range(1, 6)),
    inputs=a_gradient,
    oracle=number_by_number,
    tolerance=1e-10,
    calls=(
        dist.all_to_all_single,
        dist.all_to_all,
        dist.all_gather,
        all_gather_single,
        dist.all_gather_into_tensor,
        dist.all_reduce,
    ),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 2 * cost.of(all_gather_ring).most(case.n, case.n * case.chunk, DOUBLE),
            why="a rank needs all ranks' numbers of its own n-th of the places only",
        ),
    ),
    hints=(
        "An all-reduce is a reduce-scatter and an all-gather. Which half can no longer be done by sums, and what takes "
        "its place?",
        "All-to-all: afterwards this rank has its n-th of all ranks' gradients. View them as [n, N/n], sort along the "
        "first dimension, cut, take the mean.",
        "`said.view(n, -1).sort(0).values[liars : n - liars].mean(0)`, then an all-gather of that.",
    ),
    wrong=(
        Wrong(
            "the mean",
            diagnosis=r"expected",
            edits=(("ordered[liars : n - liars]", "ordered"),),
        ),
        Wrong(
            "only the largest are left out",
            diagnosis=r"expected",
            edits=(("ordered[liars : n - liars]", "ordered[: n - liars]"),),
        ),
        Wrong(
            "one more on the upper side",
            diagnosis=r"expected|NaN",
            edits=(("ordered[liars : n - liars]", "ordered[liars : n - liars - 1]"),),
        ),
        Wrong(
            "divided by all ranks",
            diagnosis=r"expected",
            edits=((".mean(0)\n", ".sum(0) / n\n"),),
        ),
        Wrong(
            "whole ranks are left out, by how long their gradient is",
            diagnosis=r"expected",
            edits=((".sort(0).values", "[said.view(n, -1).norm(dim=1).argsort()]"),),
        ),
        Wrong(
            "sorted along the wrong dimension",
            diagnosis=r"expected",
            edits=((".sort(0)", ".sort(1)"),),
        ),
        Wrong(
            "every rank gets everything",
            diagnosis=r"right, but rank \d sen(t|ds) [\d,]+ B where [\d,]+ must do.*\n.*own n-th",
            body="""
                n = dist.get_world_size(group)
                said = [torch.empty_like(gradient) for _ in range(n)]
                dist.all_gather(said, gradient, group=group)
                return torch.stack(said).sort(0).values[liars : n - liars].mean(0)
                """,
        ),
    ),
)
