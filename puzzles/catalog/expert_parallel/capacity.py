"""expert_parallel.capacity: which choices of a window have room in their experts, wherever its tokens are."""

import math

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_gather import ring
from reference.collectives.compat import all_gather_single
from reference.expert_parallel.answers.room import room_for

INTEGER = 8  # bytes
TOKENS = {  # of n ranks: how many tokens each has
    "the same": lambda n: [5] * n,
    "different": lambda n: [2 + (5 * rank + 3) % 7 for rank in range(n)],
    "none on the first": lambda n: [0] + [4 + rank % 3 for rank in range(1, n)],
    "all on the last": lambda n: [0] * (n - 1) + [9],
    "none": lambda n: [0] * n,
}


def choices_of_a_rank(case, rank):
    """Experts of this rank's tokens, no expert twice; the first ones are chosen more often."""
    tokens = TOKENS[case.tokens](case.n)[rank]
    liked = case.normal(rank, tokens, case.experts, name="liked") - 0.4 * torch.arange(case.experts)
    chosen = liked.argsort(-1, descending=True)[:, : case.k]
    return {"chosen": chosen, "experts": case.experts, "capacity": case.capacity}


def one_after_another(case, inputs):
    """All first choices of the window, in the order of its tokens, then all second ones: each takes a place."""
    whole = torch.cat([each["chosen"] for each in inputs])
    room = math.ceil(case.capacity * whole.numel() / case.experts)
    taken, kept = [0] * case.experts, torch.zeros(whole.shape, dtype=torch.bool)
    for choice in range(case.k):
        for token, expert in enumerate(whole[:, choice].tolist()):
            taken[expert] += 1
            kept[token, choice] = taken[expert] <= room
    return kept.split([len(each["chosen"]) for each in inputs])


BY_EXCHANGE_OF_CHOICES = """
    n, rank, k = dist.get_world_size(group), dist.get_rank(group), chosen.shape[1]
    padded = chosen.new_full((16, k), -1)
    padded[: len(chosen)] = chosen
    whole = chosen.new_empty(n, 16, k)
    dist.all_gather_single(whole.flatten(0, 1), padded, group=group)
    in_turn = whole.flatten(0, 1).T.flatten()
    wanted = (in_turn[:, None] == torch.arange(experts)).long()
    places = (wanted.cumsum(0) * wanted).sum(1)
    room = -int(-capacity * (in_turn >= 0).sum().item() // experts)
    kept = (places <= room).view(k, n, 16)
    return kept[:, rank, : len(chosen)].T
    """

DIFFERS = r"result\[\d+, \d\]: expected (True, got False|False, got True)"

PUZZLE = Puzzle(
    name="expert_parallel.capacity",
    title="Choices that have room",
    statement="""
        With a capacity, experts get equally large tensors, whatever the router says. An expert takes its even share of
        the choices of a window, times a factor, rounded up: ceil(capacity · S · k / E) of S tokens with k choices each,
        among E experts. What has no room is dropped.

        Which choices are those? All first choices of the window come before all second ones, and among these the
        earlier token comes first. The window's tokens lie on n ranks, rank 0 has the first of them, rank 1 the next;
        how many each rank has may differ, and a rank may have none. The same choices must have room as if all tokens
        were on one rank: else the same model computes something else on another number of ranks.

        A rank cannot know this by itself. What does it have to know of the others? Less than all of their choices.

        `all_gather_single(out, x, group=group)` sees memory: `out` is contiguous, and has n times as many rows (dim 0)
        as `x`. `dist.all_gather(list of n tensors, x, group=group)` is the same for lists.

        Args:
            chosen: [T, k] of int64, the experts of this rank's tokens, the best first, none of them twice. T differs
                from rank to rank, and may be 0; k is the same.
            experts: E, the same on all ranks.
            capacity: a factor, a float.
            group: n ranks. Any n.

        Returns: [T, k] of bool: whether a choice has room.

        Budget: one collective, and k · E whole numbers to each other rank.
        """,
    function=room_for,
    cases=cases(worlds=(2, 4), tokens=("the same",), capacity=(1.0, 0.5), experts=(3,), k=(2,))
    + cases(worlds=(4,), tokens=("different", "none on the first", "none"), capacity=(1.25,), experts=(4,), k=(2,))
    + cases(worlds=(3,), tokens=("different", "all on the last"), capacity=(0.75,), experts=(5,), k=(3,))
    + cases(worlds=(4,), tokens=("different",), capacity=(1.0,), experts=(4,), k=(1,))
    + cases(worlds=(1, 5), tokens=("different",), capacity=(1.0,), experts=(4,), k=(2,))
    + cases(worlds=(8,), tokens=("none on the first",), capacity=(1.0,), experts=(4,), k=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), tokens=("different",), capacity=(1.0,), experts=(3,), k=(2,)),
    drawn=on_any_ranks(
        tokens=[each for each in TOKENS if each != "none"],
        capacity=(0.25, 0.5, 1.0, 1.25),
        experts=(2, 3, 4, 5),
        k=(1, 2),
    ),
    inputs=choices_of_a_rank,
    oracle=one_after_another,
    calls=(all_gather_single, dist.all_gather_into_tensor, dist.all_gather),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 1,
            why="how often each rank chose each expert, as its first choice and as its second: one tensor, [k, E]",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, case.n * case.k * case.experts, INTEGER),
            why="send how often each expert was chosen, [k, E], and not all choices",
        ),
    ),
    hints=(
        "A choice has room if few enough come before it. Of those that do, some are its own rank's, some are first "
        "choices of other ranks, and some are like itself, but of earlier ranks. Which numbers of each rank tell you "
        "how many that are?",
        "Each rank sends how often it chose each expert as its first choice, as its second, ...: [k, E]. Before a c-th "
        "choice of this rank come all choices before the c-th of *all* ranks, the c-th ones of *earlier* ranks, and "
        "the c-th ones of earlier tokens here. And S · k is the sum of all these numbers.",
        "`wanted = one_hot(chosen.T, experts)`, [k, T, E]. Gather `wanted.sum(1)` into `of_ranks`, [n, k, E]. Then "
        "`of_ranks.sum(0).cumsum(0) - of_ranks.sum(0)` are the earlier choices, `of_ranks[:rank].sum(0)` those of "
        "earlier ranks, both [k, E]; `wanted.cumsum(1)` counts here, and the choice itself. Compare with the room, "
        "and `gather` at `chosen.T[..., None]`.",
    ),
    wrong=(
        Wrong(
            "each rank has room of its own",
            diagnosis=DIFFERS,
            body="""
                tokens, k = chosen.shape
                wanted = torch.nn.functional.one_hot(chosen.T.flatten(), experts)
                places = (wanted.cumsum(0) * wanted).sum(1)
                room = -int(-capacity * tokens * k // experts)
                return (places <= room).view(k, tokens).T
                """,
        ),
        Wrong(
            "token by token: second choices of early tokens come before first ones of late tokens",
            diagnosis=DIFFERS,
            edits=(
                ("of_ranks.sum(0).cumsum(0) - of_ranks.sum(0)", "0 * of_ranks.sum(0)"),
                ("of_ranks[: dist.get_rank(group)].sum(0)", "of_ranks[: dist.get_rank(group)].sum((0, 1))"),
                (
                    "wanted.cumsum(1) + (",
                    "wanted.transpose(0, 1).flatten(0, 1).cumsum(0).unflatten(0, (-1, k)).transpose(0, 1) + (",
                ),
            ),
        ),
        Wrong(
            "rank by rank: second choices of this rank come before first ones of the next",
            diagnosis=DIFFERS,
            edits=(
                (
                    "of_ranks.sum(0).cumsum(0) - of_ranks.sum(0)",
                    "of_ranks[dist.get_rank(group)].cumsum(0) - of_ranks[dist.get_rank(group)]",
                ),
                ("of_ranks[: dist.get_rank(group)].sum(0)", "of_ranks[: dist.get_rank(group)].sum((0, 1))"),
            ),
        ),
        Wrong(
            "earlier ranks are forgotten",
            diagnosis=DIFFERS,
            edits=(("of_ranks[: dist.get_rank(group)].sum(0)", "0 * of_ranks[0]"),),
        ),
        Wrong(
            "each choice has room of its own",
            diagnosis=DIFFERS,
            edits=(("of_ranks.sum(0).cumsum(0) - of_ranks.sum(0)", "0 * of_ranks.sum(0)"),),
        ),
        Wrong(
            "the room is rounded down",
            diagnosis=DIFFERS,
            edits=(("math.ceil(", "int("),),
        ),
        Wrong(
            "the room for this rank's tokens, not for the window's",
            diagnosis=DIFFERS,
            edits=(("of_ranks.sum().item()", "chosen.numel()"),),
        ),
        Wrong(
            "k is forgotten: the room for one choice of each token",
            diagnosis=DIFFERS,
            edits=(("of_ranks.sum().item() / experts", "of_ranks[:, 0].sum().item() / experts"),),
        ),
        Wrong(
            "all ranks are taken to have as many tokens",
            diagnosis=r"tokens=different.* " + DIFFERS,
            edits=(("of_ranks.sum().item()", "chosen.numel() * dist.get_world_size(group)"),),
        ),
        Wrong(
            "one place too few",
            diagnosis=DIFFERS,
            edits=(("places <= room", "places < room"),),
        ),
        Wrong(
            "a rank of the world, not of the group",
            diagnosis=r"in the group \[0, 2, 3\]",
            edits=(("dist.get_rank(group)", "dist.get_rank()"),),
        ),
        Wrong(
            "a rank without tokens stays away",
            diagnosis=r"finished without it|rank \d never|deadlock|waits",
            edits=(
                (
                    "    k = chosen.shape[1]\n",
                    "    k = chosen.shape[1]\n    if not len(chosen):\n        return chosen >= 0\n",
                ),
            ),
        ),
        Wrong(
            "all choices go to all ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*not all choices",
            body=BY_EXCHANGE_OF_CHOICES,
        ),
        Wrong(
            "first choices, then second ones",
            diagnosis=r"right, but a rank makes 2 calls where 1 must do.*\n.*one tensor",
            edits=(
                (
                    "    all_gather_single(of_ranks.flatten(0, 1), wanted.sum(1), group=group)\n",
                    "    for choice, counts in enumerate(wanted.sum(1)):\n"
                    "        of_choice = chosen.new_empty(len(of_ranks), experts)\n"
                    "        all_gather_single(of_choice.flatten(), counts, group=group)\n"
                    "        of_ranks[:, choice] = of_choice\n",
                ),
            ),
        ),
    ),
)
