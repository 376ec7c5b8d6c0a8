"""decentralized.masks_that_cancel: a sum that is known, of parts that are not."""

import torch

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, case, cases, drawn
from reference.decentralized.answers.mask import mask_of
from reference.decentralized.answers.masks import MODULUS, masked


def seed_of(case, one, other):
    """What two clients share."""
    return case.seed % 10_000 + 100_000 * min(one, other) + max(one, other)


def a_client(case, rank):
    """Its number is drawn, and who is gone."""
    own = case.rank % case.clients
    gone = (own + 1 + case.gone % max(1, case.clients - 1)) % case.clients
    x = case.tensor(rank, case.length, dtype=torch.int64) % MODULUS
    return {"x": x, "seeds": [seed_of(case, own, each) for each in range(case.clients)], "rank": own, "gone": gone}


def pair_by_pair(case, inputs):
    """The masks of all pairs with this client, in numbers of Python."""
    x, rank, gone = (inputs[0][name] for name in ("x", "rank", "gone"))
    said, lonely = x.tolist(), [0] * len(x)
    for other in range(case.clients):
        if other != rank:
            sign = 1 if other > rank else -1
            numbers = torch.randint(
                2**32, (len(x),), generator=torch.Generator().manual_seed(seed_of(case, rank, other))
            ).tolist()
            said = [value + sign * number for value, number in zip(said, numbers, strict=True)]
            lonely = [sign * number for number in numbers] if other == gone else lonely
    return [[torch.tensor([value % 2**32 for value in each]) for each in (said, lonely)]]


PUZZLE = Puzzle(
    name="decentralized.masks_that_cancel",
    title="Masks that cancel",
    statement="""
        A server is to know the sum of what n clients say, and nothing that any of them has said. Each two clients share
        a seed, from which both draw the same mask of random numbers. In each pair the client of the lower rank adds the
        mask to its numbers, the other one subtracts it. In the sum of all, masks cancel, and exactly: numbers are
        integers, and all arithmetic is modulo 2^32. A single message looks like noise.

        Then the message of one client does not arrive. Its masks in the others' messages have no partner. So each of
        the others says in a second message what its mask with that client is, with the sign with which it has used it;
        the server subtracts these from the sum.

        Given is `mask_of(seed, length)`: [length] of int64, each from 0 to 2^32 - 1.

        Args:
            x: [N] of int64, from 0 to 2^32 - 1.
            seeds: n numbers, the one at j shared with client j; its own place means nothing.
            rank: of this client, from 0 to n - 1.
            gone: rank of another client; where n is 1 there is none, and it is this one's own.

        Returns: two new tensors [N] of int64, each number from 0 to 2^32 - 1: x with all masks, and what this client
        says in its second message; zeros where n is 1.

        Budget: each mask is drawn once.
        """,
    function=masked,
    given=(mask_of,),
    cases=cases(worlds=(1,), clients=(3, 2, 5), rank=(0, 1, 4), gone=(0, 1), length=(4,))
    + cases(worlds=(1,), clients=(1,), rank=(0,), gone=(0,), length=(3,))
    + cases(worlds=(1,), clients=(9,), rank=(3,), gone=(2, 6), length=(5,)),
    drawn=(drawn(worlds=(1,), clients=range(3, 12), rank=range(12), gone=range(12), length=range(2, 9)),),
    scale=Scale((case(1, clients=4000, rank=1234, gone=77, length=3),), "the square of the number of clients"),
    inputs=a_client,
    oracle=pair_by_pair,
    new=True,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 20 + 11 * case.clients,
            optimum=lambda case: 4 + 5 * case.clients,
            why="a client draws the masks that it shares, one for each of the others, once",
        ),
    ),
    hints=(
        "What does client 1 of three do with the masks that it shares with 0 and with 2? What is the sum of what both "
        "of a pair do with theirs?",
        "For each other client: plus the mask if its rank is higher, minus if it is lower; then modulo 2^32. Python's "
        "and torch's % give a number that is not negative.",
        "The second message is that one mask, with its sign, modulo 2^32.",
    ),
    wrong=(
        Wrong(
            "all masks are added",
            diagnosis=r"result\[\d\].*expected",
            edits=((" if other > rank else -mask_of(seed, len(x))", ""),),
        ),
        Wrong(
            "the higher rank adds",
            diagnosis=r"result\[\d\].*expected",
            edits=(("if other > rank", "if other < rank"),),
        ),
        Wrong(
            "a mask with itself",
            diagnosis=r"result\[\d\].*expected",
            edits=(("        if other == rank:\n            continue\n", ""),),
        ),
        Wrong(
            "not modulo 2^32",
            diagnosis=r"result\[\d\].*expected",
            edits=(("return said % MODULUS, lonely % MODULUS", "return said, lonely"),),
        ),
        Wrong(
            "modulo another number",
            diagnosis=r"result\[\d\].*expected",
            edits=(("MODULUS = 2**32", "MODULUS = 2**32 - 1"),),
        ),
        Wrong(
            "the second message has no sign",
            diagnosis=r"result\[1\].*expected",
            edits=(("            lonely = mask\n", "            lonely = mask.abs()\n"),),
        ),
        Wrong(
            "changes what it is to hide",
            diagnosis=r"x.*(changed|must stay|modified)|shares? memory|expected",
            edits=(("x.clone()", "x"),),
        ),
        Wrong(
            "all pairs are drawn",
            diagnosis=r"right, but it (runs [\d,]+ lines where|takes more than)",
            edits=(
                (
                    "    for other, seed in enumerate(seeds):\n",
                    "    pairs = [(one, other) for one in range(len(seeds)) for other in range(one)]\n"
                    "    drawn = {}\n"
                    "    for one, other in pairs:\n"
                    "        drawn[one, other] = mask_of(seeds[other], len(x))\n"
                    "    for other, seed in enumerate(seeds):\n",
                ),
            ),
        ),
    ),
)
