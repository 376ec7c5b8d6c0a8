"""composition.find_the_missing_sum: a ledger of dyed sums, and what is wrong with the program that it is of."""

import itertools
import math
import random

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.composition.answers.missing_sum import find_the_missing_sum

SUMS = {"norm": ("dp", "cp", "tp"), "query": ("dp", "cp"), "bias": ("dp", "cp")}
FAULTS = ("missing", "twice", "mean")
SQUARE, OBLONG, TALL = (("dp", 2), ("tp", 2)), (("dp", 2), ("tp", 3)), (("dp", 4), ("tp", 2))
CUBE, BOX, LONG = (("dp", 2), ("cp", 2), ("tp", 2)), (("dp", 2), ("cp", 3), ("tp", 2)), (("cp", 3), ("dp", 3))
INSIDE_OUT, LINE, SINGLE = (("tp", 2), ("cp", 3), ("dp", 1)), (("dp", 5),), (("tp", 1),)
MOST = 0.8  # of the parameters have a fault, where several have one


def sums_of(case):
    """The parameters of all layers, and along which axes of this mesh each is summed."""
    names = [f"{layer}.{name}" for layer in range(case.layers) for name in SUMS]
    return {name: tuple(axis for axis, _ in case.mesh if axis in SUMS[name.split(".")[1]]) for name in names}


def faults_of(case):
    """By parameter, an axis and a fault, dealt by the case's seed: of one kind or of several, for most parameters."""
    chance, found = random.Random(case.seed), {}
    sums, long = sums_of(case), {axis for axis, size in case.mesh if size > 1}
    kinds = FAULTS if case.faults in ("one", "several") else (case.faults,)
    for name in [chance.choice(list(sums))] if case.faults == "one" else sums:
        axes = [axis for axis in sums[name] if axis in long]
        if axes and case.faults != "none" and (case.faults == "one" or chance.random() < MOST):
            found[name] = chance.choice(axes), chance.choice(kinds)
    return found


def found_on_ranks(mesh, axes, axis=None, fault=None):
    """What each rank finds: the parts of all ranks that stand apart from it along these axes alone, and the fault."""
    names, size = [name for name, _ in mesh], dict(mesh).get(axis, 1)
    places = list(itertools.product(*(range(n) for _, n in mesh)))
    summed = [name for name in axes if (name, fault) != (axis, "missing")]
    found = []
    for here in places:
        alike = [
            rank
            for rank, there in enumerate(places)
            if all(a == b for name, a, b in zip(names, here, there, strict=True) if name not in summed)
        ]
        whole = float(sum(10**rank for rank in alike))
        found.append(whole * size if fault == "twice" else whole / size if fault == "mean" else whole)
    return found


def ledger(case, rank):
    """The arguments."""
    faults, known = faults_of(case), {}
    sums = sums_of(case)
    for name, axes in sums.items():
        of_kind = (axes, *faults.get(name, ()))
        known.setdefault(of_kind, found_on_ranks(case.mesh, *of_kind))
    found = {name: list(known[axes, *faults.get(name, ())]) for name, axes in sums.items()}
    return {"sizes": dict(case.mesh), "sums": sums, "found": found}


def digits(value):
    """As one would write it down."""
    return f"{value:.10g}" if value != int(value) else str(int(value))


def objection(name, fault, makes, is_there):
    """What does not fit: the numbers that the parameter would have as it was named, and those that are there."""
    rank = next(rank for rank, pair in enumerate(zip(makes, is_there, strict=True)) if not math.isclose(*pair))
    there, would = digits(is_there[rank]), digits(makes[rank])
    if fault is None:
        return f"{name} is not named, and rank {rank} has found {there} of it where {would} is the whole sum"
    axis, kind = fault
    words = {"missing": "not summed", "twice": "summed twice", "mean": "averaged"}[kind]
    return f"{name}, {words} along {axis}, would be {would} on rank {rank}, and it is {there}"


def explains_the_ledger(case, inputs, outputs, trace):
    """What is named makes just these numbers, and what is right is not named. Any of several explanations will do."""
    said, (given,) = outputs[0]["returns"], inputs
    triples = isinstance(said, list | tuple) and all(
        isinstance(each, list | tuple) and len(each) == 3 and all(isinstance(word, str) for word in each)
        for each in said
    )
    if not triples:
        return [Claim(False, "it must return a list of (parameter, axis, fault), three strings each")]
    for name, axis, fault in said:
        axes = [each for each in given["sums"].get(name, ()) if given["sizes"][each] > 1]
        if axis not in axes or fault not in FAULTS:
            along = " and ".join(axes) or "no axis of more than one rank"
            return [Claim(False, f"({name}, {axis}, {fault}) can't be: {name} is summed along {along}")]
    names, claims, once = [name for name, *_ in said], [], {}
    claims.append(Claim(len({*names}) == len(names), f"a parameter has one fault at most: {names}"))
    named = {name: (axis, fault) for name, axis, fault in said}
    for name, axes in given["sums"].items():
        key = (axes, *named.get(name, ()))
        makes, is_there = once.setdefault(key, found_on_ranks(case.mesh, *key)), given["found"][name]
        if not all(map(math.isclose, makes, is_there)):
            claims.append(Claim(False, objection(name, named.get(name), makes, is_there)))
    order = [name for name in given["sums"] if name in named]
    claims.append(Claim(names == order, "they are right, and not in the order of the parameters"))
    return claims


def of(mesh, *faults, layers=(3,)):
    return cases(worlds=(1,), mesh=(mesh,), layers=layers, faults=faults)


PUZZLE = Puzzle(
    name="composition.find_the_missing_sum",
    title="Find the missing sum",
    statement="""
        A training step runs on a mesh, the loss falls, and one of its sums is wrong. So the step is run once with
        dyed parts: on rank r, every gradient is 10^r, whatever it was. Then the sums are read, digit by digit, rank 0
        on the right. On a mesh of dp x tp = 2 x 2, where "norm" is to be summed along both axes (sequence parallelism:
        its ranks see other tokens), "query" and "bias" along dp alone:

                       rank 0   rank 1   rank 2   rank 3
            0.norm       1111     1111     1111     1111     each part is there once
            0.query       101     1010      101     1010     ranks 0 and 2, 1 and 3
            0.norm         11       11     1100     1100     what is wrong here?

        `reference/composition/lab/dyed_step.py` is such a program, which runs on ranks and takes faults:
        `ledger_of_step(Cluster(4), {"dp": 2, "tp": 2}, {("norm", "dp"): "missing"})`. A parameter is summed along one
        axis after the other, by an all-reduce for each. Faults are

            "missing"    there is no all-reduce along this axis
            "twice"      there are two
            "mean"       there is one, and what comes out is divided by the ranks along the axis

        Write what reads such a ledger. A parameter has one fault at most, and along an axis of more than one rank.

        Args:
            sizes: ranks along each axis, by name, the outermost first. The last counts fastest.
            sums: for each parameter the axes along which it is to be summed.
            found: for each parameter a float for each rank, in order: what the rank has after all sums.

        Returns: a list of (parameter, axis, fault), three strings, for the parameters that have a fault, in the order
        of `sums`. Where the same numbers have several explanations, any will do: twice along one of two axes that are
        equally long.

        Budget: 250 layers in two seconds. A fault is in the numbers of each rank: there is no need to make up those
        of all ranks.
        """,
    function=find_the_missing_sum,
    cases=of(SQUARE, "missing", "none", "mean")
    + of(OBLONG, "twice", "mean", "missing")
    + of(CUBE, "missing", "several")
    + of(BOX, "several", "one", "mean")
    + of(INSIDE_OUT, "missing", "twice")
    + of(TALL, "twice")
    + of(LONG, "missing", "several")
    + of(LINE, "several")
    + of(SINGLE, "none", layers=(1,)),
    drawn=tuple(
        drawn(worlds=(1,), mesh=meshes, layers=(1, 2, 5), faults=("one", "several", *FAULTS))
        for meshes in ((SQUARE, OBLONG, TALL), (CUBE, LONG, INSIDE_OUT), (BOX,))
    ),
    scale=Scale(
        cases(worlds=(1,), mesh=(BOX,), layers=(250,), faults=("several",)),
        "the number of parameters times that of pairs of ranks",
    ),
    inputs=ledger,
    judge=explains_the_ledger,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 100 + 120 * len(sums_of(case)),
            optimum=lambda case: 20 * len(sums_of(case)),
            why="one rank's numbers have the fault: no need to make up what all ranks would find",
        ),
    ),
    hints=(
        "Write down what rank 0 should find, as the sum of 10^r over the ranks of its group. What does each of the "
        "three faults make of it? If all ranks of an axis have the whole sum, and sum it again?",
        '"mean" along an axis of k ranks: a k-th of the whole. "twice": k times the whole, for k ranks bring it. '
        '"missing": the sum over the ranks that stand apart from rank 0 along the other axes alone.',
        "For each parameter compare rank 0's number with the whole; where it differs, go through the axes, and for "
        "each through the three numbers that the faults would make, until one fits. The sum over a group is a product, "
        "with a factor for each of its axes: the sum of 10^(stride * place) over the places on it.",
    ),
    wrong=(
        Wrong(
            "fewer ranks than there should be: along the first axis",
            diagnosis=r"norm, not summed along dp, would be 11 on rank 0, and it is 101",
            edits=(("_sum_along(others, sizes)", "value if value < whole and axis == axes[0] else -1"),),
        ),
        Wrong(
            "the axis by the number of parts alone",
            diagnosis=r"norm, not summed along (dp|tp), would be \d+ on rank 0, and it is \d+",
            edits=(
                (
                    '"missing": _sum_along(others, sizes)',
                    '"missing": value if str(int(whole)).count("1") == sizes[axis] * str(int(value)).count("1") else 0',
                ),
            ),
        ),
        Wrong(
            "twice is two times as much",
            diagnosis=r"is not named, and rank 0 has found 333333 of it where 111111 is the whole sum",
            edits=(('"twice": whole * sizes[axis]', '"twice": whole * 2'),),
        ),
        Wrong(
            "a mean is half of it",
            diagnosis=r"is not named, and rank 0 has found 37037 of it where 111111 is the whole sum",
            edits=(('"mean": whole / sizes[axis]', '"mean": whole / 2'),),
        ),
        Wrong(
            "a mean over all ranks of the group",
            diagnosis=r"norm is not named, and rank 0 has found [\d.]+ of it where \d+ is the whole sum",
            edits=(('"mean": whole / sizes[axis]', '"mean": whole / str(whole).count("1")'),),
        ),
        Wrong(
            "digits are read from the left",
            diagnosis=r"is not named, and rank 0 has found|would be \d+ on rank",
            edits=(("for axis in reversed(sizes):", "for axis in sizes:"),),
        ),
        Wrong(
            "twice and mean are mixed up",
            diagnosis=r"(averaged|summed twice) along \w+, would be [\d.]+ on rank 0, and it is [\d.]+",
            edits=(('"twice": whole *', '"mean": whole *'), ('"mean": whole /', '"twice": whole /')),
        ),
        Wrong(
            "the search ends with the first fault",
            diagnosis=r"is not named, and rank 0 has found \d+ of it where \d+ is the whole sum",
            edits=(("                break\n", "                return faults\n"),),
        ),
        Wrong(
            "each parameter is named, also where nothing is wrong",
            diagnosis=r"not summed along dp, would be \d+ on rank 0, and it is \d+",
            edits=(
                ("        if isclose(value, whole):\n            continue\n", ""),
                (
                    "            fault = next(",
                    "            if isclose(value, whole):\n"
                    '                faults.append((name, axis, "missing"))\n                break\n'
                    "            fault = next(",
                ),
            ),
        ),
        Wrong(
            "along axes where ranks are replicas, too",
            diagnosis=r"query, tp, missing\) can't be|query is not named",
            edits=(("value, whole = found[name][0], ", "axes = list(sizes)\n        value, whole = found[name][0], "),),
        ),
        Wrong(
            "a fault, whatever the parameter",
            diagnosis=r"three strings each",
            edits=(("faults.append((name, axis, fault))", "faults.append((axis, fault))"),),
        ),
        Wrong(
            "the ledgers of all faults are made up",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*no need to make up",
            body="""
                import itertools
                from math import isclose

                names, faults = list(sizes), []
                places = list(itertools.product(*(range(size) for size in sizes.values())))

                def made(summed, factor):
                    numbers = []
                    for here in places:
                        total = 0
                        for rank, there in enumerate(places):
                            apart = [name for name, a, b in zip(names, here, there) if a != b]
                            if all(name in summed for name in apart):
                                total += 10**rank
                        numbers.append(total * factor)
                    return numbers

                for name, axes in sums.items():
                    if found[name] == made(axes, 1):
                        continue
                    for axis in axes:
                        without = [other for other in axes if other != axis]
                        tries = {
                            "missing": made(without, 1),
                            "twice": made(axes, sizes[axis]),
                            "mean": made(axes, 1 / sizes[axis]),
                        }
                        fault = [key for key, value in tries.items() if all(map(isclose, value, found[name]))]
                        if fault:
                            faults.append((name, axis, fault[0]))
                            break
                return faults
                """,
        ),
    ),
)
