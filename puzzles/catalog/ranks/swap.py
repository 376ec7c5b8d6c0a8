"""ranks.swap: a send and a receive that must not wait for each other."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.ranks.plain import swap

from .common import shape_of


def partner_of(case, rank):
    """Ranks 0 and 1, 2 and 3, ...; or the first and the last, the second and the last but one, ..."""
    if case.pairs == "mirrored":
        return case.n - 1 - rank
    return rank ^ 1 if rank ^ 1 < case.n else rank


PUZZLE = Puzzle(
    name="ranks.swap",
    title="Swap without a deadlock",
    statement="""
        Ranks come in pairs, and the two of a pair swap their tensors: send `x` to `partner` and return what `partner`
        sends to you. Both run the same text at the same time.

        Args:
            x: a contiguous tensor, of the same shape and dtype on every rank. Leave it as it is.
            partner: the rank of `group` to swap with; your partner's partner is you. A rank that is left over is its
                own partner.
            group: the ranks that call this.

        Returns: a new tensor like `x`.

        Budget: one step. A link carries both directions at once, so neither message may wait for the other.
        """,
    function=swap,
    cases=cases(worlds=(2, 4, 1, 3, 8), length=(6,), pairs=("neighbours",))
    + cases(worlds=(4, 5), length=(6,), pairs=("mirrored",))
    + cases(worlds=(2,), length=(0, 1), pairs=("neighbours",))
    + cases(worlds=(5,), members=(1, 2, 4), length=(4,), pairs=("mirrored",))
    + cases(worlds=(2,), length=(6,), pairs=("neighbours",), dtype=(torch.int32,))
    + cases(worlds=(2,), length=(6,), pairs=("neighbours",), shape=((2, 3),)),
    drawn=on_any_ranks(length=range(2, 40), pairs=("neighbours", "mirrored")),
    inputs=lambda case, rank: {"x": case.tensor(rank, *shape_of(case)), "partner": partner_of(case, rank)},
    oracle=lambda case, inputs: [inputs[each["partner"]]["x"] for each in inputs],
    tolerance=0,
    new=True,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(Measure.BYTES_SENT, target=lambda case: 4 * case.length if case.n > 1 else 0),
        Budget(
            Measure.STEPS,
            target=lambda case: min(1, case.n - 1),
            why="one of the two waits until the other has sent: post the send and the receive before you wait",
        ),
    ),
    hints=(
        "How soon `send` returns depends on the backend; here it counts as one that waits until the other receives. If "
        "both of a pair are in `send`, which one receives?",
        "`isend` and `irecv` return at once, with a request. `request.wait()` waits for it.",
        "`dist.batch_isend_irecv([dist.P2POp(dist.isend, x, group=group, group_peer=partner), ...])` posts all of a "
        "list at once and returns the requests. Receive into a new tensor: `x` is still being sent.",
    ),
    wrong=(
        Wrong(
            "both send first",
            diagnosis=r"deadlock",
            body="""
                if partner == dist.get_rank(group):
                    return x.clone()
                received = torch.empty_like(x)
                dist.send(x, group=group, group_dst=partner)
                dist.recv(received, group=group, group_src=partner)
                return received
                """,
        ),
        Wrong(
            "the lower rank sends first",
            diagnosis=r"right, but it takes 2 steps where 1 must do.*\n.*before you wait",
            body="""
                rank, received = dist.get_rank(group), x.clone()
                if rank < partner:
                    dist.send(x, group=group, group_dst=partner)
                    dist.recv(received, group=group, group_src=partner)
                elif rank > partner:
                    dist.recv(received, group=group, group_src=partner)
                    dist.send(x, group=group, group_dst=partner)
                return received
                """,
        ),
        Wrong(
            "does not wait for what it receives",
            diagnosis=r"swap\.py:\d+ · read before wait\n.*unfilled until wait\(\)|never waited for",
            edits=(("    for work in works:\n        work.wait()\n", ""),),
        ),
        Wrong(
            "receives into what is being sent",
            diagnosis=r"isend.* was modified before wait\(\)",
            edits=(("received = torch.empty_like(x)", "received = x"),),
        ),
        Wrong(
            "a rank that is left over talks to itself",
            diagnosis=r"dst is yourself",
            edits=(("    if partner == dist.get_rank(group):\n        return x.clone()\n", ""),),
        ),
        Wrong(
            "the neighbour, whatever the partner is",
            diagnosis=r"right with pairs=neighbours, wrong with pairs=mirrored",
            edits=(
                (
                    "    received = torch.empty_like(x)",
                    "    rank, n = dist.get_rank(group), dist.get_world_size(group)\n"
                    "    partner = min(rank ^ 1, n - 1)\n"
                    "    if partner == rank:\n        return x.clone()\n"
                    "    received = torch.empty_like(x)",
                ),
            ),
        ),
        Wrong("gives back its own", diagnosis=r"its own input", body="return x.clone()"),
        Wrong(
            "a flat buffer",
            diagnosis=r"shape \(2, 3\).*shape \(6,\)",
            edits=(("received = torch.empty_like(x)", "received = x.new_empty(x.numel())"),),
        ),
    ),
)
