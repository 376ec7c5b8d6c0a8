"""compression.majority_vote: a bit there and a bit back."""

import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.compression.answers.sign_bits import pack, unpack
from reference.compression.answers.vote import majority_vote
from reference.compression.plain_memory import majority_vote as by_all

from .gradients import two_ways


def gradient_of(case, rank):
    """Of whole numbers, some of them zero."""
    return {"gradient": case.tensor(rank, 8 * case.n * case.bytes).double()}


def of_one_process(case, inputs):
    """One process has all gradients."""
    outcome = by_all([each["gradient"] for each in inputs])
    return [{"returns": outcome} for _ in inputs]


PUZZLE = Puzzle(
    name="compression.majority_vote",
    title="Majority vote",
    statement="""
        In signSGD a rank says of each element of its gradient only whether it is negative: one bit. The step goes
        where most ranks say. (A rank that has gone mad has one vote of n.)

        A ring cannot add up bits: the sum of three bits is no bit. So let each rank be the server of a chunk
        of N/n elements: it gets the votes for it from all, counts them, and sends all the outcome, which is one bit
        again.

        Given are `pack(x)`, which makes bytes [..., L/8] of `x` [..., L], a bit of 1 for each element that is 0 or
        more; and `unpack(bytes)`, which makes 1 and -1 of them, float64 [..., L].

        Args:
            gradient: [N] of this rank, float64; 8 n divides N.
            group: n ranks. Any n.

        Returns: [N], float64, the same on every rank: 1 or -1 as most ranks have it; 1 where they are even.

        Budget: two calls, N/8n bytes to each other rank in the one, and as many in the other.
        """,
    function=majority_vote,
    cases=cases(worlds=(3, 4, 2, 1, 8), bytes=(2,)) + cases(worlds=(4,), members=(0, 2, 3), bytes=(1,)),
    drawn=on_any_ranks(bytes=(1, 2, 3)),
    inputs=gradient_of,
    oracle=of_one_process,
    calls=(dist.all_to_all_single, dist.all_gather_into_tensor),
    given=(pack, unpack),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: two_ways(case.n, case.bytes),
            why="a bit for each element to its server, and one back",
        ),
        Budget(Measure.CALLS, target=lambda case: 2, why="an all-to-all and an all-gather"),
    ),
    hints=(
        "Which collective brings chunk j of every rank to rank j, without adding anything up?",
        "`gradient.view(n, -1)` has a row for each server. Pack it, and rows can be exchanged as bytes.",
        "all_to_all_single of the packed rows; unpack, sum over rows, pack; all_gather_into_tensor; unpack.",
    ),
    wrong=(
        Wrong(
            "bits are added up, not votes",
            diagnosis=r"expected",
            edits=(("pack(unpack(received).sum(0))", "received.sum(0, dtype=torch.uint8)"),),
        ),
        Wrong(
            "the first rank decides",
            diagnosis=r"expected",
            edits=(("unpack(received).sum(0)", "unpack(received)[0]"),),
        ),
        Wrong(
            "even votes are negative",
            diagnosis=r"expected",
            edits=(("unpack(received).sum(0)", "unpack(received).sum(0) - 0.5"),),
        ),
        Wrong(
            "the sign of the sum, in 64 bits",
            diagnosis=r"expected|right, but rank \d sen",
            body="""
                whole = gradient.clone()
                dist.all_reduce(whole, group=group)
                return unpack(pack(whole))
                """,
        ),
        Wrong(
            "signs in 64 bits",
            diagnosis=r"right, but rank \d sen(t|ds) [\d,]+ B",
            body="""
                votes = unpack(pack(gradient))
                dist.all_reduce(votes, group=group)
                return unpack(pack(votes))
                """,
        ),
        Wrong(
            "all bits to all ranks",
            diagnosis=r"right, but rank \d sen(t|ds) [\d,]+ B",
            body="""
                votes = pack(gradient)
                everyone = votes.new_empty(dist.get_world_size(group) * len(votes))
                dist.all_gather_into_tensor(everyone, votes, group=group)
                return unpack(pack(unpack(everyone.view(-1, len(votes))).sum(0)))
                """,
        ),
    ),
)
