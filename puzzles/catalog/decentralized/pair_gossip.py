"""decentralized.pair_gossip: in each round the mean of two, with the partner of that round."""

import random

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.decentralized.answers.pairs import gossip

DOUBLE = 8


def partners_of(case):
    """Of each round a list of partners by rank; of an odd number one is its own."""
    chance, rounds = random.Random(case.seed), []
    for _ in range(case.rounds):
        order = chance.sample(range(case.n), case.n)
        partners = [*range(case.n)]
        for one, other in zip(order[::2], order[1::2], strict=False):
            partners[one], partners[other] = other, one
        rounds.append(partners)
    return rounds


def a_value(case, rank):
    """A value, and who is the partner in which round."""
    return {
        "x": case.tensor(rank, case.length, dtype=torch.float64),
        "partners": [partners[rank] for partners in partners_of(case)],
    }


def round_after_round(case, inputs):
    """All ranks' values in one process."""
    values = [each["x"] for each in inputs]
    for partners in partners_of(case):
        values = [(values[rank] + values[partner]) / 2 for rank, partner in enumerate(partners)]
    return [{"x": value} for value in values]


ALONE = "        if partner == dist.get_rank(group):\n            continue\n"
WAIT = "        for work in works:\n            work.wait()\n"

PUZZLE = Puzzle(
    name="decentralized.pair_gossip",
    title="Gossip in pairs",
    statement="""
        No rank ever asks all others. In each round the ranks are in pairs, other ones each time, and the two of a pair
        replace what they have by the mean of both. The mean of all stays as it is, and after some rounds all ranks are
        near it.

        Args:
            x: [N] in float64, of one length on all ranks. Updated in place.
            partners: this rank's partner of each round, a group rank; your partner's partner is you. A rank that is
                left over is its own partner, and waits for no other.
            group: n ranks. Any n.

        Budget: one step for each round, in which a rank sends its x once.
        """,
    function=gossip,
    cases=cases(worlds=(4, 2, 1, 3, 8), rounds=(3,), length=(5,))
    + cases(worlds=(5,), rounds=(1, 4), length=(4,))
    + cases(worlds=(4,), members=(0, 2, 3), rounds=(3,), length=(4,)),
    drawn=on_any_ranks(rounds=(2, 3, 4), length=range(2, 20)),
    inputs=a_value,
    oracle=round_after_round,
    tolerance=1e-14,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: DOUBLE * case.length * case.rounds if case.n > 1 else 0,
            why="in a round a rank sends its x to one other, once",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: case.rounds if case.n > 1 else 0,
            why="one of the two waits until the other has sent: post the send and the receive before you wait",
        ),
    ),
    hints=(
        "This is the swap of two tensors, and what comes after it. Where must the partner's x go, so that yours can "
        "still be sent?",
        "`dist.batch_isend_irecv` with a send of x and a receive into a new tensor, wait for both, then "
        "`x.add_(came).div_(2)`.",
    ),
    wrong=(
        Wrong(
            "does not wait",
            diagnosis=r"before wait|unfilled until|never waited",
            edits=((WAIT, ""),),
        ),
        Wrong(
            "the sum",
            diagnosis=r"x(\[\d\])? ?.*expected",
            edits=((".div_(2)", ""),),
        ),
        Wrong(
            "a rank that is left over talks to itself",
            diagnosis=r"yourself|invalid|deadlock",
            edits=((ALONE, ""),),
        ),
        Wrong(
            "a rank that is left over has ended",
            diagnosis=r"finished without receiving",
            edits=((ALONE, ALONE.replace("continue", "return")),),
        ),
        Wrong(
            "what it had at first, to all partners",
            diagnosis=r"expected",
            edits=(
                ("    for partner in partners:\n", "    first = x.clone()\n    for partner in partners:\n"),
                ("dist.isend, x,", "dist.isend, first,"),
            ),
        ),
        Wrong(
            "global ranks",
            diagnosis=r"group of ranks \[0, 2, 3\]|expected|not part of",
            edits=(
                ("dist.isend, x, group=group, group_peer=partner", "dist.isend, x, partner, group"),
                ("dist.irecv, came, group=group, group_peer=partner", "dist.irecv, came, partner, group"),
            ),
        ),
        Wrong(
            "one averages, and sends the mean back",
            diagnosis=r"right, but it takes \d+ steps where \d+ must do.*\n.*before you wait",
            body="""
                rank = dist.get_rank(group)
                for partner in partners:
                    came = torch.empty_like(x)
                    if rank < partner:
                        dist.send(x, group=group, group_dst=partner)
                        dist.recv(x, group=group, group_src=partner)
                    elif rank > partner:
                        dist.recv(came, group=group, group_src=partner)
                        x.add_(came).div_(2)
                        dist.send(x, group=group, group_dst=partner)
                """,
        ),
    ),
)
