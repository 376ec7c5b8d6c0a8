"""composition.whose_gradients_add_up: what five axes do to a parameter, and so over which ranks its gradient goes."""

import itertools
import math

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.composition.answers.whose_sums import whose_gradients_add_up
from reference.composition.plain import coordinates_of_a_rank, groups_along

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
R, S, P = "replicated", "split", "partial"
QUERY = (S, R, R, R, S)  # a matrix whose rows tensor-parallel ranks share
NORM = (S, R, R, R, R)
SLICED = (S, R, R, R, P)  # a norm under sequence parallelism: tensor-parallel ranks see other tokens
TABLE = (P, R, R, R, S)  # a table that both ends of a pipeline have
SHARDS = (S, R, S, S, S)  # FSDP
SHARDED_NORM = (S, R, S, S, R)
ENDS = (P, R, S, S, P)


def named(case, rank):
    """Both arguments by the names of the axes."""
    return {"sizes": dict(zip(AXES, case.sizes, strict=True)), "does": dict(zip(AXES, case.does, strict=True))}


def holds(case, place):
    """Whether a rank has the parameter at all."""
    return case.does[0] != P or place[0] in (0, case.sizes[0] - 1)


def same_elements_same_copy(case):
    """What ranks that add up have in common: their stage, and which copy or which rows they compute with."""
    return [axis for axis in (0, 4) if case.does[axis] != P]


def rank_by_rank(case, inputs):
    """Each rank looks at all others: whose gradient has a part of this one's elements, and is no copy of another's?"""
    places = list(itertools.product(*map(range, case.sizes)))
    fixed, found = same_elements_same_copy(case), []
    for here in places:
        alike = [r for r, there in enumerate(places) if all(here[axis] == there[axis] for axis in fixed)]
        found.append(tuple(r for r in alike if holds(case, places[r])) if holds(case, here) else ())
    return [found]


def by_their_places(case, inputs):
    """The same with one look at each rank."""
    groups, fixed = {}, same_elements_same_copy(case)
    places = list(itertools.product(*map(range, case.sizes)))
    for rank, place in enumerate(places):
        if holds(case, place):
            groups.setdefault(tuple(place[axis] for axis in fixed), []).append(rank)
    return [[tuple(groups[tuple(p[axis] for axis in fixed)]) if holds(case, p) else () for p in places]]


def of(sizes, *does):
    return cases(worlds=(1,), sizes=sizes, does=does)


PUZZLE = Puzzle(
    name="composition.whose_gradients_add_up",
    title="Whose gradients add up",
    statement="""
        Five axes, and for one parameter a word for each that says what the axis does to it. From these words it
        follows over which ranks its gradient is summed; a group that lacks an axis, or has one too many, trains
        something else and says nothing.

            "replicated"   ranks along the axis hold the same elements
            "split"        they hold different ones
            "partial"      they hold the same ones, and each finds a part of their gradient

        Along dp_replicate, dp_shard and cp, ranks read different tokens. So each finds a part of the gradient,
        whatever the word: where it is "split" (FSDP), each rank gathers all elements to compute with, finds a part of
        the gradient of each, and cuts the sum.

        Along tp, ranks compute with the same tokens. "split": a matrix, and each rank finds the whole gradient of its
        own rows. "replicated": a norm, whose gradient all of them find alike. "partial": a norm under sequence
        parallelism, or keys and values that several ranks share.

        Along pp, "split" is usual: each stage has layers of its own. "partial" is a table that is embedding and head:
        the first and the last stage have it, and each finds a part. The stages between have nothing of it.

        Args:
            sizes: ranks along each axis, by name: "pp", "dp_replicate", "dp_shard", "cp", "tp", the outermost first.
            does: what each axis does to the parameter, by the same names.

        You have `groups_along(axes, sizes)` and `coordinates_of_a_rank(rank, sizes)`, both with axes counted from 0
        and a tuple of sizes.

        Returns: for each rank, in order, a tuple of the ranks whose gradients add up to what it needs, in order,
        itself included; () for a rank that has nothing of the parameter.

        Budget: one look at each rank.
        """,
    function=whose_gradients_add_up,
    given=(groups_along, coordinates_of_a_rank),
    cases=of(((1, 1, 2, 2, 2),), QUERY, NORM, SLICED, SHARDS, SHARDED_NORM)
    + of(((2, 1, 2, 1, 2),), QUERY, TABLE)
    + of(((3, 1, 2, 1, 1), (1, 1, 2, 1, 2)), TABLE)
    + of(((2, 3, 1, 2, 1),), SHARDS, NORM)
    + of(((4, 2, 1, 1, 3),), TABLE, ENDS, SLICED)
    + of(((1, 1, 1, 1, 1),), NORM, TABLE),
    drawn=(
        drawn(
            worlds=(1,),
            sizes=((1, 2, 3, 2, 1), (3, 1, 2, 1, 3), (2, 2, 2, 2, 2), (1, 1, 5, 1, 3)),
            does=(QUERY, NORM, SLICED, SHARDS, SHARDED_NORM),
        ),
        drawn(worlds=(1,), sizes=((3, 2, 1, 2, 2), (5, 1, 2, 1, 2), (4, 1, 1, 3, 1)), does=(TABLE, ENDS)),
    ),
    scale=Scale(of(((32, 1, 2, 1, 128),), QUERY), "pairs of ranks", oracle=by_their_places),
    inputs=named,
    oracle=rank_by_rank,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 80 + 40 * math.prod(case.sizes),
            optimum=lambda case: 6 + math.prod(case.sizes),
            why="`groups_along` has all groups of the mesh: what is asked of a rank is the one that it is in",
        ),
    ),
    hints=(
        "Go through the axes one by one, and ask of each: do ranks along it find the same gradient, different "
        "elements', or parts of one sum? Only the last are added up. What does FSDP change about that?",
        'Summed are dp_replicate, dp_shard and cp, always, and every axis that is "partial". `groups_along` makes the '
        "groups of these axes. Only where pp is among them, some ranks must leave.",
        'Where pp is "partial", keep of each group the ranks whose place on pp is 0 or sizes["pp"] - 1. Then let each '
        "rank of each group have its group: found = [()] * ranks; found[rank] = group.",
    ),
    wrong=(
        Wrong(
            "the group lacks the ranks that share a sequence",
            diagnosis=r"'cp': 2.*expected 4 values, got 2 values",
            edits=((', "cp") or', ") or"),),
        ),
        Wrong(
            "what FSDP splits is not added up",
            diagnosis=r"'dp_shard': 'split'.*expected 4 values, got 1 values",
            edits=(("or does[axis] ==", 'and does[axis] != "split" or does[axis] =='),),
        ),
        Wrong(
            "whatever is replicated is added up",
            diagnosis=r"'tp': 'replicated'.*expected 4 values, got 8 values",
            edits=((' or does[axis] == "partial"', ' or does[axis] in ("partial", "replicated")'),),
        ),
        Wrong(
            "a norm on slices of a sequence is left to each rank",
            diagnosis=r"'tp': 'partial'.*expected 8 values, got 4 values",
            edits=((' or does[axis] == "partial"', ' or (axis == "pp" and does[axis] == "partial")'),),
        ),
        Wrong(
            "axes that are split are added up, and none else",
            diagnosis=r"expected 4 values, got 2 values",
            edits=(('axis in ("dp_replicate", "dp_shard", "cp") or does[axis] == "partial"', 'does[axis] == "split"'),),
        ),
        Wrong(
            "all stages have a part of the table",
            diagnosis=r"'pp': 3.*expected 4 values, got 6 values",
            edits=(('if does["pp"] == "partial":', 'if does["pp"] == "nothing":'),),
        ),
        Wrong(
            "stages between the ends wait for the table, too",
            diagnosis=r"'pp': 3.*result\[2\]: expected 0 values, got 4 values",
            edits=(
                (
                    "    for group in groups_along(added, counts):\n",
                    "    for group in groups_along(added, counts):\n        whole = group\n",
                ),
                ("        for rank in group:\n", "        for rank in whole:\n"),
            ),
        ),
        Wrong(
            "each end sums its table by itself",
            diagnosis=r"'pp': 'partial'.*expected 4 values, got 2 values",
            body="""
                from math import prod

                names, counts = list(sizes), tuple(sizes.values())
                batch = ("dp_replicate", "dp_shard", "cp")
                added = {n for n, a in enumerate(names) if a in batch or (a == "tp" and does[a] == "partial")}
                found = [()] * prod(counts)
                for group in groups_along(added, counts):
                    for rank in group:
                        ends = coordinates_of_a_rank(rank, counts)[0] in (0, counts[0] - 1)
                        found[rank] = group if ends or does["pp"] == "split" else ()
                return found
                """,
        ),
        Wrong(
            "the ends are counted one by one, also where they are one stage",
            diagnosis=r"'pp': 1.*expected 2 values, got 4 values",
            edits=(
                (
                    "tuple(rank for rank in group if coordinates_of_a_rank(rank, counts)[place] in ends)",
                    "tuple(r for end in ends for r in group if coordinates_of_a_rank(r, counts)[place] == end)",
                ),
            ),
        ),
        Wrong(
            "the groups, and not one for each rank",
            diagnosis=r"expected 8 values, got 2 values",
            edits=(("    return found", "    return groups_along(added, counts)"),),
        ),
        Wrong(
            "each rank is compared with all",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*the one that it is in",
            body="""
                from math import prod

                names, counts = list(sizes), tuple(sizes.values())
                batch = ("dp_replicate", "dp_shard", "cp")
                fixed = [n for n, a in enumerate(names) if a not in batch and does[a] != "partial"]
                places = [coordinates_of_a_rank(rank, counts) for rank in range(prod(counts))]
                ends = (0, counts[0] - 1) if does["pp"] == "partial" else range(counts[0])
                found = []
                for here in places:
                    group = []
                    for rank, there in enumerate(places):
                        same = True
                        for axis in fixed:
                            if here[axis] != there[axis]:
                                same = False
                        if same and there[0] in ends and here[0] in ends:
                            group.append(rank)
                    found.append(tuple(group))
                return found
                """,
        ),
    ),
)
