"""frameworks.extra_all_reduce: what is summed twice costs twice, and sometimes counts twice."""

from random import Random

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.frameworks.answers.extra import extra_all_reduces

WORLD, PAIR, ACROSS = (0, 1, 2, 3), (0, 1), (0, 2)
SUM = "all_reduce"


def a_step(case, rank):
    """Calls of a step: gradients along two axes, and what the case has done to them."""
    draw = Random(f"{case.kind} {case.calls} {case.salt}")
    said = []
    for _ in range(case.calls):
        one, two, three, four = (draw.getrandbits(62) for _ in range(4))
        said += {
            "along two axes": [(SUM, PAIR, one, two), (SUM, ACROSS, two, three)],
            "a norm of DTensor": [(SUM, PAIR, one, two)] * 3,
            "twice": [(SUM, WORLD, one, two), (SUM, WORLD, two, three), (SUM, WORLD, three, four)],
            "within what is summed": [(SUM, WORLD, one, two), (SUM, PAIR, two, three), (SUM, ACROSS, three, four)],
            "other calls": [("all_gather", PAIR, one, two), ("all_gather", PAIR, one, two), (SUM, PAIR, two, three)],
            "the same along two axes": [(SUM, PAIR, one, two), (SUM, ACROSS, one, three)],
            "wider": [(SUM, PAIR, one, two), (SUM, WORLD, two, three)],
        }[case.kind]
    return {"said": said}


EXTRA = {"a norm of DTensor": (1, 2), "twice": (1, 2), "within what is summed": (1,)}
"""Of the calls that a kind makes each time."""


def as_planted(case, inputs):
    """Where the case has put them."""
    each = len(inputs[0]["said"]) // case.calls
    return [[time * each + place for time in range(case.calls) for place in EXTRA.get(case.kind, ())]]


KINDS = (
    "a norm of DTensor",
    "along two axes",
    "twice",
    "within what is summed",
    "other calls",
    "the same along two axes",
    "wider",
)

PUZZLE = Puzzle(
    name="frameworks.extra_all_reduce",
    title="Find the extra all-reduce",
    statement="""
        A step sends more than the formula says. Its trace has for each call the operation, the ranks, and fingerprints
        of what this rank has brought and of what came out: equal tensors have equal fingerprints, others have others.
        Which all-reduces could be left out?

        One could, if an earlier one over the very same ranks was brought the same: the sum was there already. That is
        what happens to a gradient that DTensor leaves as a partial sum, which each operation of the optimizer sums
        anew. And one could, if what it is brought is what an earlier one has given, over these ranks or over more: all
        of them have the same already, and the sum counts it several times. A sum along one axis and then along another
        is no such thing: it takes both to make the sum over all.

        Args:
            said: the calls in order, each (operation, ranks, fingerprint before, fingerprint after); ranks are a tuple.

        Returns: a list of the places in `said`, ascending, of the all-reduces that could be left out.

        Budget: one look at each call.
        """,
    function=extra_all_reduces,
    cases=cases(worlds=(1,), kind=KINDS, calls=(2, 40), salt=(0,)),
    drawn=(drawn(worlds=(1,), kind=KINDS, calls=range(1, 30), salt=range(1000)),),
    scale=Scale(
        cases(worlds=(1,), kind=("along two axes", "wider"), calls=(10_000,), salt=(1,)), "the number of calls"
    ),
    inputs=a_step,
    oracle=as_planted,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 30 + 30 * case.calls,
            optimum=lambda case: 4 + 15 * case.calls,
            why="what was brought, and what came out, can be looked up by its fingerprint",
        ),
    ),
    hints=(
        "Which two things must be remembered of each all-reduce, for those that come later?",
        "By the fingerprint of the input: over which ranks it was summed. By that of the output: over which ranks it "
        "is the same.",
        "`ranks in summed[before]`, or `set(ranks) <= group` for one of `results[before]`; then note both.",
    ),
    wrong=(
        Wrong(
            "only what is brought twice",
            diagnosis=r"twice.*expected|expected",
            edits=((" or any(set(ranks) <= group for group in results[before])", ""),),
        ),
        Wrong(
            "only what was a result",
            diagnosis=r"a norm of DTensor.*expected|expected",
            edits=(("ranks in summed[before] or ", ""),),
        ),
        Wrong(
            "whatever the ranks",
            diagnosis=r"expected",
            edits=(("any(set(ranks) <= group for group in results[before])", "bool(results[before])"),),
        ),
        Wrong(
            "over the same ranks alone",
            diagnosis=r"within what is summed.*expected|expected",
            edits=(("set(ranks) <= group", "set(ranks) == group"),),
        ),
        Wrong(
            "gathers, too",
            diagnosis=r"other calls.*expected|expected",
            edits=(('if operation != "all_reduce":', "if not operation:"),),
        ),
        Wrong(
            "each beside all before it",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*looked up by its fingerprint",
            body="""
                found = []
                for place, (operation, ranks, before, _) in enumerate(said):
                    if operation == "all_reduce":
                        extra = False
                        for other, group, given, result in said[:place]:
                            if other == "all_reduce":
                                if ranks == group and before == given:
                                    extra = True
                                if before == result and set(ranks) <= set(group):
                                    extra = True
                        if extra:
                            found.append(place)
                return found
                """,
        ),
    ),
)
