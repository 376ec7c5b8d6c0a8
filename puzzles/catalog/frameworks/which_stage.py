"""frameworks.which_stage: six mysteries, and what each has said on the wire."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.frameworks.answers.stages import which_stage

MYSTERIES = ("ddp", "zero1", "zero2", "zero3", "kept", "hsdp")
OF_ONE = tuple(kind for kind in MYSTERIES if kind != "zero2")  # micro-batch
GATHER, REDUCE, SUM = "all_gather", "reduce_scatter", "all_reduce"


def a_step(case, rank):
    """What a rank says in a step, unit after unit: with padding, and with the norm of all gradients at the end."""
    units = [case.unit + 3 * i for i in range(case.units)]
    padded = [-(-unit // 8) * 8 for unit in units]
    weights = [(GATHER, unit, case.size) for unit in padded]
    gradients = [(REDUCE, unit, 4) for unit in padded[::-1]]
    merged = [(REDUCE, sum(padded), 4)]  # in one bucket
    if case.kind == "ddp":
        said = [(SUM, unit, 4) for unit in units[::-1]]
    elif case.kind == "zero1":
        said = merged + weights
    elif case.kind == "zero2":
        said = merged * case.micro_batches + weights
    elif case.kind == "kept":
        said = (weights + merged) * case.micro_batches
    else:
        again = [pair for unit in zip(weights[::-1], gradients, strict=True) for pair in unit]
        said = (weights + again) * case.micro_batches
    if case.kind == "hsdp":
        said = said + [(SUM, unit // 4, 4) for unit in padded[::-1]]
    return {"said": [*said, (SUM, 1, 8), (SUM, 2, 4)] if case.norm else said}


PUZZLE = Puzzle(
    name="frameworks.which_stage",
    title="Which stage is it?",
    statement="""
        A trace is all that is left of a run: what one rank said in one step, and how it was laid out is forgotten.
        The step had one micro-batch or more; with one, zero2 would be zero1, and is not asked for. It is one of these:

            ddp     replicas; gradients are all-reduced, once
            zero1   the optimizer's state in shards; gradients travel once, parameters once
            zero2   gradients in shards, too; gradients travel in each micro-batch, parameters once
            zero3   parameters in shards, too; gathered before forward and again before backward, in each micro-batch
            kept    the same, but what is gathered for forward stays until backward is done
            hsdp    as zero3 within a node; replicas in other nodes sum their shards of gradients

        What is sharded travels in units, and each unit is padded by itself; gradients may be sent as one. Parameters
        may have half the bytes of gradients. And a rank that clips gradients or prints losses sums a few numbers.

        Args:
            said: the calls in order, each (operation, elements, bytes of an element). The operation is "all_reduce",
                "all_gather" or "reduce_scatter"; elements are those of the whole: what is gathered by all ranks
                together, or what each rank brings to a sum.

        Returns: the name of the form.

        Budget: one look at each call.
        """,
    function=which_stage,
    cases=cases(
        worlds=(1,), kind=MYSTERIES, micro_batches=(2,), units=(5,), unit=(1001,), size=(4,), norm=(False, True)
    )
    + cases(worlds=(1,), kind=MYSTERIES, micro_batches=(3,), units=(3,), unit=(50,), size=(2,), norm=(True,))
    + cases(worlds=(1,), kind=("kept", "zero1"), micro_batches=(4,), units=(1,), unit=(64,), size=(2,), norm=(False,))
    + cases(worlds=(1,), kind=OF_ONE, micro_batches=(1,), units=(5, 1), unit=(300,), size=(4,), norm=(True,)),
    drawn=(
        drawn(
            worlds=(1,),
            kind=OF_ONE,
            micro_batches=(1,),
            units=range(1, 12),
            unit=range(40, 5000),
            size=(2, 4),
            norm=(False, True),
        ),
        drawn(
            worlds=(1,),
            kind=MYSTERIES,
            micro_batches=range(2, 6),
            units=range(1, 12),
            unit=range(40, 5000),
            size=(2, 4),
            norm=(False, True),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), kind=MYSTERIES, micro_batches=(2,), units=(6_000,), unit=(64,), size=(2,), norm=(True,)),
        "the number of units",
    ),
    inputs=a_step,
    oracle=lambda case, inputs: [case.kind],
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 40 + 4 * len(a_step(case, 0)["said"]),
            optimum=lambda case: 12 + 2 * len(a_step(case, 0)["said"]),
            why="sums of elements for each operation distinguish the forms, and which operation comes first",
        ),
    ),
    hints=(
        "How often do all parameters travel in a step of each form, and how often all gradients? In K micro-batches?",
        "gathered : reduced is 1 : 1 for zero1, 1 : K for zero2, 2 : 1 for zero3, 1 : 1 for kept. What tells those two "
        "apart that have the same ratio?",
        "Leave out sums of a few numbers. With an all-reduce among the rest it is hsdp if something is gathered, and "
        "else ddp. More gathered than reduced is zero3, less is zero2; of the other two, kept begins with a gather.",
    ),
    wrong=(
        Wrong(
            "a norm is taken for gradients",
            diagnosis=r"expected 'zero1', got 'hsdp'",
            edits=(("if elements > NUMBERS]", "]"),),
        ),
        Wrong(
            "bytes instead of elements",
            diagnosis=r"size=2.*expected|expected",
            edits=(
                (
                    "[(operation, elements) for operation, elements, _ in said if elements > NUMBERS]",
                    "[(operation, elements * size) for operation, elements, size in said if elements > NUMBERS]",
                ),
            ),
        ),
        Wrong(
            "calls instead of elements",
            diagnosis=r"expected",
            edits=(("total[operation] += elements", "total[operation] += 1"),),
        ),
        Wrong(
            "the order is not looked at",
            diagnosis=r"expected 'kept', got 'zero1'",
            edits=(('return "kept" if large[0][0] == "all_gather" else "zero1"', 'return "zero1"'),),
        ),
        Wrong(
            "one run of gathers, one of sums: the parameters travel once",
            diagnosis=r"expected 'kept', got 'zero1'",
            edits=(
                (
                    'return "kept" if large[0][0] == "all_gather" else "zero1"',
                    "turns = sum(one[0] != other[0] for one, other in zip(large, large[1:]))\n"
                    '    return "kept" if turns > 1 else "zero1"',
                ),
            ),
        ),
        Wrong(
            "hybrid sharding is taken for zero3",
            diagnosis=r"expected 'hsdp', got 'zero3'",
            edits=(('    if total["all_reduce"]:', '    if total["all_reduce"] and not gathered:'),),
        ),
        Wrong(
            "each call beside all others",
            diagnosis=r"right, but it runs [\d,]+ lines where \d+ must do.*\n.*sums of elements",
            edits=(
                (
                    "        total[operation] += elements\n",
                    "        for other in said:\n            if other is said[0]:\n"
                    "                total[operation] += elements\n",
                ),
            ),
        ),
    ),
)
