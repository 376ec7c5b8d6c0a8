"""pipeline_parallel.balanced_stages: a pipeline is as slow as its slowest stage."""

import itertools
import math
import random

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.pipeline_parallel.balance import balance

UNEVEN = (1, 1, 1, 1, 4, 4)
WITH_HEAD = (20, *[100] * 8, 230)  # embedding, blocks, norm and head, in microseconds
MIXED = (30, 9, 4, 40, 8, 25, 31, 2, 2, 17, 28, 5)
LONG = (1, *[7] * 20, 15)


def cheapest(costs, stages):
    """What the most expensive stage must cost: of the first layers in one stage, in two, in three, ..."""
    sums = [0, *itertools.accumulate(costs)]
    best = sums
    for fewer in range(1, stages):
        best = [
            min((max(best[cut], sums[end] - sums[cut]) for cut in range(fewer, end)), default=math.inf)
            for end in range(len(sums))
        ]
    return best[-1]


def as_cheap_as_can_be(case, inputs, outputs, trace):
    """All layers are there, each stage has some, and the most expensive costs no more than it must."""
    found, layers, p = outputs[0]["returns"], len(case.costs), case.stages
    numbers = isinstance(found, list | tuple) and all(type(each) is int for each in found)
    if not numbers:
        return [Claim(False, "it must return a list with a whole number for each stage: how many layers it has")]
    ends = [0, *itertools.accumulate(found)]
    sums = [sum(case.costs[begin:end]) for begin, end in itertools.pairwise(ends)]
    dearest, best = max(sums, default=0), cheapest(case.costs, p)
    return [
        Claim(len(found) == p, f"{found} are {len(found)} stages, and there are {p} ranks"),
        Claim(min(found, default=0) > 0, f"{found} leaves a rank without a layer"),
        Claim(sum(found) == layers, f"{found} are {sum(found)} layers of {layers}"),
        Claim(dearest == best, f"the stages of {found} cost {sums}: {dearest} at most, and {best} is possible"),
    ]


CHANCE = random.Random(29)
OTHERS = [tuple(CHANCE.randrange(1, 50) for _ in range(CHANCE.randrange(8, 14))) for _ in range(60)]
MANY = tuple(CHANCE.randrange(1, 10**9) for _ in range(126))


PUZZLE = Puzzle(
    name="pipeline_parallel.balanced_stages",
    title="Cut the layers into stages",
    statement="""
        A pipeline is a row of ranks, and each has some of the layers: a stage. While one stage works on a micro-batch,
        the next one works on the micro-batch before. So all of them go at the pace of the one that has most to do.

        Layers are not alike. After the last block of a language model comes the head, which often costs as much as
        two blocks. The embedding costs nearly nothing. And where blocks of a kind alternate, each has its own price.

        Cut the row of layers, in order, into p stages, so that the most expensive stage costs as little as can be.

        Args:
            costs: of each layer, in order, in microseconds: whole numbers, at least 1.
            stages: p, at least 1 and at most as many as there are layers.

        Returns: p whole numbers: how many layers the first stage gets, the second, and so on. Each gets one or more.
        Where several cuts are equally good, any will do.

        Budget: 126 layers can be cut into 16 stages in 10^19 ways: it is impossible to try them all. 200 + 6 L² p
        lines, for L layers.
        """,
    function=balance,
    cases=cases(worlds=(1,), costs=(UNEVEN,), stages=(3, 2, 1, 6))
    + cases(worlds=(1,), costs=(WITH_HEAD,), stages=(4, 5))
    + cases(worlds=(1,), costs=(MIXED,), stages=(3, 5, 7))
    + cases(worlds=(1,), costs=((9, 1, 1, 1, 1, 1),), stages=(3, 5))
    + cases(worlds=(1,), costs=((7,),), stages=(1,))
    + cases(worlds=(1,), costs=(LONG,), stages=(4, 7)),
    drawn=(drawn(worlds=(1,), costs=OTHERS, stages=range(1, 9)),),
    scale=Scale(cases(worlds=(1,), costs=(MANY,), stages=(16, 40)), "the number of ways to cut, nor with the costs"),
    inputs=lambda case, rank: {"costs": list(case.costs), "stages": case.stages},
    judge=as_cheap_as_can_be,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 200 + 6 * len(case.costs) ** 2 * case.stages,
            optimum=lambda case: 30 + 6 * len(case.costs) * sum(case.costs).bit_length(),
            why="never try all cuts: the best one for the first layers, with one stage less, is part of the best one",
        ),
    ),
    hints=(
        "Suppose you are told that no stage may cost more than 50. How would you cut? And how do you see that 50 "
        "was too little, or more than needed?",
        "Fill a stage until the next layer would be too much, then begin the next one. If that takes more than p "
        "stages, the limit is too low. Bisect the limit between max(costs) and sum(costs).",
        "The lowest limit may leave you with fewer than p stages. Then cut one that has two layers or more: neither "
        "half costs more. (Or, stage by stage: the best cut of the first l layers into s stages is the smallest, over "
        "all c, of max(best[c, s - 1], sum(costs[c:l])).)",
    ),
    wrong=(
        Wrong(
            "as many layers for each",
            diagnosis=r"the stages of \[2, 2, 2\] cost \[2, 2, 8\]: 8 at most, and 4 is possible",
            body="""
                each, more = divmod(len(costs), stages)
                return [each + (stage < more) for stage in range(stages)]
                """,
        ),
        Wrong(
            "filled up to the mean",
            diagnosis=r"the stages of \[.*\] cost \[.*\]: \d+ at most, and \d+ is possible",
            body="""
                mean, layers, cost = sum(costs) / stages, [0], 0
                for each in costs:
                    if cost + each > mean and len(layers) < stages and layers[-1]:
                        layers.append(0)
                        cost = 0
                    layers[-1] += 1
                    cost += each
                while len(layers) < stages:
                    largest = layers.index(max(layers))
                    layers[largest : largest + 1] = [1, layers[largest] - 1]
                return layers
                """,
        ),
        Wrong(
            "what is left goes to the last stage",
            diagnosis=r"the stages of \[.*\] cost \[.*\]: \d+ at most, and \d+ is possible",
            body="""
                mean, layers, begin = sum(costs) / stages, [], 0
                for stage in range(stages - 1):
                    end = begin + 1
                    while sum(costs[begin:end]) < mean and len(costs) - end > stages - stage - 1:
                        end += 1
                    layers.append(end - begin)
                    begin = end
                return [*layers, len(costs) - begin]
                """,
        ),
        Wrong(
            "unneeded stages are left out",
            diagnosis=r"\[.*\] are \d stages, and there are \d ranks",
            body="""
                limit = max(costs)
                while True:
                    layers, cost = [], limit
                    for each in costs:
                        if cost + each > limit:
                            layers.append(0)
                            cost = 0
                        layers[-1] += 1
                        cost += each
                    if len(layers) <= stages:
                        return layers
                    limit += 1
                """,
        ),
        Wrong(
            "unneeded stages stay empty",
            diagnosis=r"\[.*0\] leaves a rank without a layer",
            edits=(
                ("        largest = layers.index(max(layers))\n", ""),
                ("        layers[largest : largest + 1] = [1, layers[largest] - 1]\n", "        layers.append(0)\n"),
            ),
        ),
        Wrong(
            "a limit below the most expensive layer",
            diagnosis=r"the stages of \[.*\] cost \[.*\]: \d+ at most, and \d+ is possible|\d stages, and there are",
            edits=(("low, high = max(costs), sum(costs)", "low, high = max(costs), 2 * max(costs)"),),
        ),
        Wrong(
            "the head is forgotten",
            diagnosis=r"the stages of \[.*\] cost \[.*\]: \d+ at most, and \d+ is possible|are \d+ layers of \d+",
            edits=(("    low, high", "    costs = [*costs[:-1], costs[0]]\n    low, high"),),
        ),
        Wrong(
            "every cut is tried",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*never try all cuts",
            body="""
                def dearest(costs, stages):
                    if stages == 1:
                        return sum(costs), [len(costs)]
                    best = None
                    for first in range(1, len(costs) - stages + 2):
                        rest, layers = dearest(costs[first:], stages - 1)
                        found = max(sum(costs[:first]), rest), [first, *layers]
                        if best is None or found < best:
                            best = found
                    return best

                return dearest(costs, stages)[1]
                """,
        ),
        Wrong(
            "every cut is tried, one after the other",
            diagnosis=r"right, but it runs [\d,]+ lines where 20,528 must do.*\n.*never try all cuts",
            body="""
                import itertools

                ends = list(itertools.accumulate(costs))

                def dearest(cuts):
                    return max(end - begin for begin, end in itertools.pairwise((0, *cuts, ends[-1])))

                cuts = min(itertools.combinations(ends[:-1], stages - 1), key=dearest)
                at = [0, *(1 + ends.index(cut) for cut in cuts), len(costs)]
                return [end - begin for begin, end in itertools.pairwise(at)]
                """,
        ),
    ),
)
