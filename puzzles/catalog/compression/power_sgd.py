"""compression.power_sgd: two thin matrices instead of a large one."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.compression.answers.subspace import power_sgd
from reference.compression.plain_memory import orthogonalise, power_step

from .gradients import most_in_sum


def gradient_residual_and_q(case, rank):
    """Other gradients and residuals on each rank, and the same Q."""
    a, b, r = case.shape
    return {
        "gradient": case.normal(rank, a, b, name="gradient"),
        "residual": case.normal(rank, a, b, name="residual"),
        "q": case.normal(0, b, r, name="q"),
    }


def of_one_process(case, inputs):
    """The sum of all is approximated; a rank keeps what is orthogonal to P of what it had."""
    wanted = [each["gradient"] + each["residual"] for each in inputs]
    whole = torch.stack(wanted).sum(0)
    found, q = power_step(whole, inputs[0]["q"])
    p = whole @ inputs[0]["q"]
    orthogonalise(p)
    return [{"returns": found, "residual": mine - p @ (p.T @ mine), "q": q} for mine in wanted]


PUZZLE = Puzzle(
    name="compression.power_sgd",
    title="PowerSGD",
    statement="""
        Let M be the sum over ranks of gradient and residual, [A, B]. It is never sent. Instead, with Q [B, R] of the
        step before:

            P = M Q                 summed over ranks: each has a part of it
            P = orthogonalise(P)
            Q = Mᵀ P                summed likewise; the next step begins with it
            P Qᵀ                    is about M

        A rank's residual is what it did not bring to that: its own matrix, less P times what it brought to Q.

        Given is `orthogonalise(columns)`: makes the columns of a matrix [A, R] orthonormal, in place.

        Args:
            gradient: [A, B] of this rank, float64.
            residual: [A, B] of this rank; updated in place.
            q: [B, R], the same on every rank; updated in place.
            group: n ranks. Any n.

        Returns: P Qᵀ, [A, B], the same on every rank.

        Budget: two all-reduces, of R (A + B) numbers together.
        """,
    function=power_sgd,
    cases=cases(worlds=(3, 4, 1), shape=((6, 5, 2),))
    + cases(worlds=(2, 8), shape=((3, 7, 1), (5, 4, 3)))
    + cases(worlds=(4,), members=(0, 2, 3), shape=((4, 6, 2),)),
    drawn=on_any_ranks(shape=((5, 6, 2), (7, 4, 1), (6, 6, 3))),
    inputs=gradient_residual_and_q,
    oracle=of_one_process,
    tolerance=1e-7,
    calls=(dist.all_reduce,),
    given=(orthogonalise,),
    budgets=(
        Budget(Measure.CALLS, target=lambda case: 2, why="one all-reduce of P and one of Q"),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: sum(most_in_sum(case.n, case.shape[2] * length) for length in case.shape[:2]),
            why="P has A R numbers, and Q has B R",
        ),
    ),
    hints=(
        "Products are linear: the sum of all ranks' M_i Q is M Q. Which is orthogonalised, the sum or the parts?",
        "Of Q you need both: this rank's part, for its residual, and the sum, for the result and for the next step.",
        "`residual += gradient`; all-reduce `residual @ q`; orthogonalise; `mine = residual.T @ p`; "
        "`residual -= p @ mine.T`; all-reduce `mine` in q.",
    ),
    wrong=(
        Wrong(
            "the parts of P are orthogonalised",
            diagnosis=r"expected",
            edits=(
                (
                    "    dist.all_reduce(p, group=group)\n    orthogonalise(p)\n",
                    "    orthogonalise(p)\n    dist.all_reduce(p, group=group)\n",
                ),
            ),
        ),
        Wrong(
            "P is not orthogonalised",
            diagnosis=r"expected",
            edits=(("    orthogonalise(p)\n", ""),),
        ),
        Wrong(
            "the residual is not added",
            diagnosis=r"expected",
            edits=(("    residual += gradient\n", "    residual.copy_(gradient)\n"),),
        ),
        Wrong(
            "the residual is what all lack, on each rank",
            diagnosis=r"residual.*expected|expected",
            edits=(
                ("    residual -= p @ mine.T\n", ""),
                ("    return p @ q.T", "    residual -= p @ q.T\n    return p @ q.T"),
            ),
        ),
        Wrong(
            "no warm start",
            diagnosis=r"q.*expected|expected",
            edits=(
                (
                    "    q.copy_(mine)\n    dist.all_reduce(q, group=group)\n",
                    "    q = mine.clone()\n    dist.all_reduce(q, group=group)\n",
                ),
            ),
        ),
        Wrong(
            "the result from this rank's Q",
            diagnosis=r"expected",
            edits=(("    return p @ q.T", "    return p @ mine.T"),),
        ),
        Wrong(
            "all of M is summed first",
            diagnosis=r"right, but|expected",
            edits=(
                (
                    "    residual += gradient\n    p = residual @ q\n    dist.all_reduce(p, group=group)\n",
                    "    residual += gradient\n    whole = residual.clone()\n    dist.all_reduce(whole, group=group)\n"
                    "    p = whole @ q\n",
                ),
            ),
        ),
    ),
)
