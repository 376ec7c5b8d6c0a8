"""data_parallel.drifted_replica: which tensor of which rank is not what it should be, by a few bytes."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives.compat import all_gather_single
from reference.data_parallel.initial import find_drift, fingerprint

NAMES = ("embedding.weight", "norm.running_mean", "head.weight", "head.bias")
SHAPES = ((5, 4), (4,), (3, 4), (3,))


def last_bit(x):
    x.flatten()[0:1].view(torch.int32).bitwise_xor_(1)


def zero_with_a_sign(x):
    x.view(-1)[1] = -0.0


def two_elements_swapped(x):
    x.view(-1)[:2] = x.view(-1)[:2].flip(0).clone()


def everything_negative(x):
    x.neg_()


DRIFTS = {  # the culprits of n ranks: rank, name, and what was done to the tensor
    "the last bit": lambda n: [(n - 1, "head.weight", last_bit)],
    "nothing": lambda n: [],
    "order": lambda n: [(n // 2, "norm.running_mean", two_elements_swapped)],
    "rank 0": lambda n: [(0, "head.bias", everything_negative)],
    "the sign of zero": lambda n: [(n - 1, "head.bias", zero_with_a_sign)],
    "two tensors": lambda n: [(n - 1, "head.bias", last_bit), (n - 2, "embedding.weight", last_bit)],
    "three ranks": lambda n: [
        (0, "head.bias", last_bit),
        (n - 2, "head.bias", everything_negative),
        (n - 1, "head.bias", two_elements_swapped),
    ],
    "two ranks": lambda n: [(rank, "head.weight", everything_negative) for rank in (0, n - 1)],
}


def state_of_a_replica(case, rank):
    """The same numbers on every rank, a zero among them; and what has happened to them since."""
    tensors = {name: case.normal(0, *shape, name=name).float() for name, shape in zip(NAMES, SHAPES, strict=True)}
    tensors["head.bias"][1] = 0.0
    for culprit, name, change in DRIFTS[case.drift](case.n):
        if culprit == rank:
            change(tensors[name])
    return {"tensors": tensors}


def compared_byte_by_byte(case, inputs):
    """Compare all ranks' bytes; the rarest are off."""
    for name in NAMES:
        found = [each["tensors"][name].numpy().tobytes() for each in inputs]
        usual = max(found, key=found.count)
        if off := [rank for rank, each in enumerate(found) if each != usual]:
            return [(name, off)] * case.n
    return [None] * case.n


PUZZLE = Puzzle(
    name="data_parallel.drifted_replica",
    title="Find the replica that drifted",
    statement="""
        All replicas started alike and took the same steps. The loss looks well. But one rank has loaded an
        older file, one card has a broken memory, a buffer was forgotten: one replica is not like the others any more,
        maybe by a single bit. Find out which tensor it is, and on which ranks, without sending the model around.

        Given is `fingerprint(x)`: 64 bits, as an int64 scalar, that depend on every bit of `x` and on its place. Sums
        and norms tell neither order nor signs.

        Args:
            tensors: parameters and buffers by name, in the same order on every rank.
            group: n ranks. Any n.

        Returns: the same on every rank: None if all tensors are alike everywhere, bit by bit. Otherwise (name, ranks):
        the first tensor that is not, and the group ranks, ascending, that do not have the right value. Right is what
        the largest number of ranks has; of several such values, that of the lowest rank.

        Budget: 8 bytes for each tensor, to each of the others, in one message.
        """,
    function=find_drift,
    answer="""
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        mine = torch.stack([fingerprint(x) for x in tensors.values()])
        everybodys = [torch.empty_like(mine) for _ in range(n)]
        dist.all_gather(everybodys, mine, group=group)
        for name, prints in zip(tensors, torch.stack(everybodys, 1).tolist()):
            usual = max(prints, key=prints.count)
            off = [rank for rank in range(n) if prints[rank] != usual]
            if off:
                return name, off
        return None
        """,
    cases=cases(worlds=(4,), drift=[each for each in DRIFTS if each != "three ranks"])
    + cases(worlds=(3,), drift=("order", "rank 0", "two tensors", "the sign of zero"))
    + cases(worlds=(2, 1), drift=("nothing", "the last bit"))
    + cases(worlds=(5, 8), drift=("two ranks",))
    + cases(worlds=(5,), drift=("three ranks",))
    + cases(worlds=(4,), members=(0, 2, 3), drift=("the last bit",)),
    drawn=on_any_ranks(drift=("the last bit", "nothing", "rank 0", "the sign of zero")),
    inputs=state_of_a_replica,
    oracle=compared_byte_by_byte,
    calls=(dist.all_gather, all_gather_single, dist.all_gather_into_tensor),
    given=(fingerprint,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 8 * len(NAMES) * (case.n - 1),
            why="fingerprints are enough: the tensors stay where they are",
        ),
        Budget(Measure.CALLS, target=lambda case: 1, why="the fingerprints of all tensors fit into one: torch.stack"),
    ),
    hints=(
        "What must every rank know of every other, to give the same answer on every rank?",
        "Make one tensor of all fingerprints and gather all ranks': `dist.all_gather`. Then each rank has a table, a "
        "row for each rank and a column for each tensor.",
        "Go through the columns. `max(prints, key=prints.count)` is the one that most have, the first of them if "
        "several are as frequent.",
    ),
    wrong=(
        Wrong(
            "rank 0 is always right",
            diagnosis=r"drift=rank 0: rank 0, result\[1\]: expected 1 values, got 3 values",
            edits=(("usual = max(prints, key=prints.count)", "usual = prints[0]"),),
        ),
        Wrong(
            "rank 0 is right where there is no majority",
            diagnosis=r"wrong with drift=three ranks",
            edits=(
                (
                    "usual = max(prints, key=prints.count)",
                    "usual = next((each for each in prints if 2 * prints.count(each) > n), prints[0])",
                ),
            ),
        ),
        Wrong(
            "sums instead of bits",
            diagnosis=r"wrong with drift=.*order.*",
            edits=(
                (
                    "torch.stack([fingerprint(x) for x in tensors.values()])",
                    "torch.stack([x.sum().view(torch.int32).long() for x in tensors.values()])",
                ),
            ),
        ),
        Wrong(
            "norms instead of bits",
            diagnosis=r"drift=.*: rank \d, result",
            edits=(
                (
                    "torch.stack([fingerprint(x) for x in tensors.values()])",
                    "torch.stack([x.norm().view(torch.int32).long() for x in tensors.values()])",
                ),
            ),
        ),
        Wrong(
            "nearly the same is the same",
            diagnosis=r"wrong with drift=.*the last bit",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                for name, x in tensors.items():
                    everybodys = [torch.empty_like(x) for _ in range(n)]
                    dist.all_gather(everybodys, x, group=group)
                    alike = [[torch.allclose(one, other) for other in everybodys] for one in everybodys]
                    usual = max(alike, key=sum)
                    if not all(usual):
                        return name, [other for other in range(n) if not usual[other]]
                return None
                """,
        ),
        Wrong(
            "the last one instead of the first",
            diagnosis=r"drift=two tensors",
            body="""
                n, found = dist.get_world_size(group), None
                mine = torch.stack([fingerprint(x) for x in tensors.values()])
                everybodys = [torch.empty_like(mine) for _ in range(n)]
                dist.all_gather(everybodys, mine, group=group)
                for name, prints in zip(tensors, torch.stack(everybodys, 1).tolist()):
                    usual = max(prints, key=prints.count)
                    off = [rank for rank in range(n) if prints[rank] != usual]
                    found = (name, off) if off else found
                return found
                """,
        ),
        Wrong(
            "each says whether it is off itself",
            diagnosis=r"the result must be the same on every rank|rank \d, result: expected",
            edits=(("return name, off", "return (name, off) if rank in off else None"),),
        ),
        Wrong(
            "the tensors themselves",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*fingerprints are enough",
            body="""
                n = dist.get_world_size(group)
                for name, x in tensors.items():
                    everybodys = [torch.empty_like(x) for _ in range(n)]
                    dist.all_gather(everybodys, x, group=group)
                    prints = [fingerprint(each).item() for each in everybodys]
                    usual = max(prints, key=prints.count)
                    off = [rank for rank in range(n) if prints[rank] != usual]
                    if off:
                        return name, off
                return None
                """,
        ),
        Wrong(
            "one fingerprint after the other",
            diagnosis=r"right, but a rank makes \d calls where 1 must do.*\n.*fit into one",
            body="""
                n, found = dist.get_world_size(group), None
                for name, x in tensors.items():
                    mine = fingerprint(x)
                    everybodys = [torch.empty_like(mine) for _ in range(n)]
                    dist.all_gather(everybodys, mine, group=group)
                    prints = [each.item() for each in everybodys]
                    usual = max(prints, key=prints.count)
                    off = [rank for rank in range(n) if prints[rank] != usual]
                    found = found or ((name, off) if off else None)
                return found
                """,
        ),
    ),
)
