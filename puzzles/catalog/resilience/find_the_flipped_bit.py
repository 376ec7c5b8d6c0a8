"""resilience.find_the_flipped_bit: rank, place and bit, from two integers of each rank."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, drawn
from reference.resilience.answers.flipped_bit import find_flip

INTEGER, FLOAT = 8, 4
FLIPS = {  # of n ranks and a length: rank, place and bit
    "the sign on the last": lambda n, length: (n - 1, length - 1, 31),
    "nothing": lambda n, length: None,
    "the last bit of a mantissa": lambda n, length: (1, length // 2, 0),
    "an exponent on rank 0": lambda n, length: (0, length - 2, 30),
    "in the first element": lambda n, length: (n - 1, 0, 7),
    "in the middle": lambda n, length: (n // 2, length // 3, 22),
}


def a_replica(case, rank):
    """The same numbers on all ranks, and one bit."""
    x = case.normal(0, case.length).float()
    flip = FLIPS[case.flip](case.n, case.length)
    if flip and flip[0] == rank:
        _, place, bit = flip
        x.view(torch.int32)[place] ^= -(2**31) if bit == 31 else 2**bit
    return {"x": x}


PUZZLE = Puzzle(
    name="resilience.find_the_flipped_bit",
    title="Find the flipped bit",
    statement="""
        n replicas hold the same numbers, and in one of them a bit has flipped: in the memory of a card, in a cache, by
        a core that computes wrongly now and then. The loss shows nothing. A checksum for each replica would tell which
        one it is. A second checksum tells more: the place and the bit, so that one can write to the owner of the card.

        `x.view(torch.int32)` has the bits of x as integers. Think of sums of these, in int64.

        Args:
            x: [N] in float32. On one rank at most, one bit of it is not as on the others.
            group: n ranks, 3 or more.

        Returns: the same on every rank: None if all are equal; else (rank, place, bit): the group rank, the index in x,
        and the number of the bit, from 0, the last one of the mantissa, to 31, the sign.

        Budget: 16 bytes to each of the others, in one message.
        """,
    function=find_flip,
    cases=cases(worlds=(4,), flip=tuple(FLIPS), length=(12,))
    + cases(worlds=(3,), flip=("the sign on the last", "an exponent on rank 0"), length=(5,))
    + cases(worlds=(5,), flip=("the last bit of a mantissa",), length=(1000,))
    + cases(worlds=(8,), flip=("in the middle",), length=(33,))
    + cases(worlds=(4,), members=(0, 2, 3), flip=("in the middle", "an exponent on rank 0"), length=(9,)),
    drawn=(
        drawn(worlds=(3, 4, 5, 6), flip=[each for each in FLIPS if each != "nothing"], length=range(4, 60)),
        drawn(worlds=(9, 10), flip=[each for each in FLIPS if each != "nothing"], length=range(4, 60)),
    ),
    inputs=a_replica,
    oracle=lambda case, inputs: [FLIPS[case.flip](case.n, case.length)] * case.n,
    calls=(dist.all_gather, dist.all_gather_single, dist.all_reduce),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 1,
            why="both checksums fit into one message, and all that follows is arithmetic",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: (case.n - 1) * 2 * INTEGER,
            why="two integers of each rank tell the rank, the place and the bit: x need not travel",
        ),
    ),
    hints=(
        "Let s be the sum of all elements' bits, as integers. By how much does it change where bit k flips? What does "
        "that not tell?",
        "Let t be the sum of i · (bits of element i). If bit k of element i flips, s changes by ± 2^k, and t by ± i · "
        "2^k, with the same sign. What is their ratio?",
        "All-gather (s, t). The pair that most ranks have is right. For the other one, `change = s - usual_s`: the "
        "place is `(t - usual_t) // change`, the bit `abs(change).bit_length() - 1`.",
    ),
    wrong=(
        Wrong(
            "rank 0 is right",
            diagnosis=r"flip=an exponent on rank 0|expected",
            edits=(("usual, _ = Counter(pairs).most_common(1)[0]", "usual = pairs[0]"),),
        ),
        Wrong(
            "sums of values",
            diagnosis=r"expected|Error",
            edits=(("x.view(torch.int32).long()", "x.double().mul(2**20).long()"),),
        ),
        Wrong(
            "sums in 32 bits",
            diagnosis=r"expected|Error",
            edits=(
                (
                    "    mine = torch.stack([bits.sum(), (bits * torch.arange(len(bits))).sum()])\n",
                    "    mine = torch.stack([bits.sum(), (bits * torch.arange(len(bits))).sum()]).int()\n",
                ),
            ),
        ),
        Wrong(
            "places count from 1",
            diagnosis=r"result\[1\]: expected \d+, got \d+",
            edits=(("torch.arange(len(bits))", "torch.arange(1, len(bits) + 1)"),),
        ),
        Wrong(
            "the bit's value and not its number",
            diagnosis=r"result\[2\]: expected \d+, got",
            edits=(("abs(change).bit_length() - 1", "abs(change)"),),
        ),
        Wrong(
            "the exclusive or of all bits, which does not know the place",
            diagnosis=r"result\[1\]: expected|Error",
            edits=(("(bits * torch.arange(len(bits))).sum()", "bits.sum()"),),
        ),
        Wrong(
            "a global rank",
            diagnosis=r"right where the group is the whole world|expected",
            edits=(("            return rank, ", "            return dist.get_global_rank(group, rank), "),),
        ),
        Wrong(
            "everything is sent",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*x need not travel",
            body="""
                from collections import Counter

                bits = x.view(torch.int32)
                told = [torch.empty_like(bits) for _ in range(dist.get_world_size(group))]
                dist.all_gather(told, bits, group=group)
                usual, _ = Counter(tuple(each.tolist()) for each in told).most_common(1)[0]
                for rank, each in enumerate(told):
                    for place, (one, other) in enumerate(zip(each.tolist(), usual)):
                        if one != other:
                            return rank, place, ((one ^ other) & (2**32 - 1)).bit_length() - 1
                return None
                """,
        ),
    ),
)
