"""memory.will_it_fit: how much must be shared out before a model can be trained?"""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.memory.answers.estimates import first_stage

GB = 10**9
MODELS = (  # parameters, ranks, memory of each, bytes besides
    (7 * GB, 8, 80 * GB, 30 * GB),
    (1_300_000_000, 8, 80 * GB, 30 * GB),
    (13 * GB, 8, 80 * GB, 20 * GB),
    (13 * GB, 8, 80 * GB, 30 * GB),
    (70 * GB, 8, 80 * GB, 10 * GB),
    (70 * GB, 64, 80 * GB, 30 * GB),
    (405 * GB, 16_384, 80 * GB, 40 * GB),
    (5 * GB, 1, 80 * GB, 0),
    (5 * GB + 1, 1, 80 * GB, 0),
    # Shards are of equal size, also where the ranks do not divide the parameters: each of 3 ranks has 4 of 10.
    (10, 3, 88, 0),
    (10, 3, 87, 0),
    (10, 3, 76, 0),
    (10, 3, 75, 0),
    (10, 3, 65, 1),
    (10, 3, 64, 1),
    (7, 8, 20, 2),
)


def model_and_machine(case, rank):
    """The arguments; a case has `parameters` of its own."""
    return {"parameters": case.model, "ranks": case.ranks, "memory": case.memory, "besides": case.besides}


def owner_by_owner(case, inputs):
    """What rank 0 has of each kind, by the definition of the stages."""
    bytes_each = {"parameters": 2, "gradients": 2, "optimizer": 12}
    shared_out = {"ddp": (), "zero1": ("optimizer",), "zero2": ("optimizer", "gradients"), "zero3": tuple(bytes_each)}
    mine = case.model // case.ranks + (1 if case.model % case.ranks else 0)
    for stage, kinds in shared_out.items():
        total = sum(size * (mine if kind in kinds else case.model) for kind, size in bytes_each.items())
        if total <= case.memory - case.besides:
            return [stage]
    return [None]


PUZZLE = Puzzle(
    name="memory.will_it_fit",
    title="Will it fit?",
    statement="""
        Data-parallel ranks all have the same training state. In mixed precision with Adam it has 2 bytes for a
        parameter, 2 for its gradient, and 12 of the optimizer: a master copy and two moments. ZeRO lets each of n
        ranks keep only an n-th:

        - "ddp": of nothing, every rank has everything;
        - "zero1": of the optimizer's 12 bytes;
        - "zero2": of gradients, too;
        - "zero3": of parameters, too.

        An n-th of the parameters is rounded up: all ranks' shards are equally large. What is not sharded, every rank
        has whole. Each stage is more trouble than the one before. Which is the first that fits?

        Args:
            parameters: of the model.
            ranks: n.
            memory: bytes of each rank's device.
            besides: bytes that everything else takes there, activations first of all.

        Returns: the stage's name; None if even "zero3" does not fit.

        Budget: a formula for each stage, not a loop over 16,384 ranks.
        """,
    function=first_stage,
    cases=tuple(
        case
        for parameters, ranks, memory, besides in MODELS
        for case in cases(worlds=(1,), model=(parameters,), ranks=(ranks,), memory=(memory,), besides=(besides,))
    ),
    drawn=(
        drawn(
            worlds=(1,),
            model=range(1, 10**6, 977),
            ranks=range(1, 80),
            besides=range(0, 10**6, 9973),
            memory=lambda so_far: [so_far.besides + so_far.model * k for k in range(1, 19)],
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), model=(10**15,), ranks=(10**12,), memory=(10**4,), besides=(0,)), "the number of ranks"
    ),
    inputs=model_and_machine,
    oracle=owner_by_owner,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 60,
            optimum=lambda case: 3,
            why="all ranks have equally much: work out one",
        ),
    ),
    hints=(
        "Write down for each stage how many bytes of a parameter every rank has whole, and how many it has a share of.",
        "16 and 0, 4 and 12, 2 and 14, 0 and 16. A share is ceil(parameters / n), in whole numbers: "
        "-(-parameters // ranks).",
        "Go through the stages in order, and return the first for which whole · parameters + sharded · share + besides "
        "is at most memory.",
    ),
    wrong=(
        Wrong(
            "shards rounded down",
            diagnosis=r"first_stage\(parameters=10, ranks=3, memory=87.*: expected 'zero2', got 'zero1'",
            edits=(("-(-parameters // ranks)", "parameters // ranks"),),
        ),
        Wrong(
            "shards that are not whole numbers",
            diagnosis=r"first_stage\(parameters=10, ranks=3, memory=87.*: expected 'zero2', got 'zero1'",
            edits=(("-(-parameters // ranks)", "parameters / ranks"),),
        ),
        Wrong(
            "activations forgotten",
            diagnosis=r"first_stage\(parameters=7000000000, .*|parameters=13000000000, .*expected 'zero2', got 'zero1'",
            edits=(("+ besides <= memory", "<= memory"),),
        ),
        Wrong(
            "activations are sharded, too",
            diagnosis=r"parameters=13000000000, .*expected 'zero2', got 'zero1'",
            edits=(("+ besides <= memory", "+ besides / ranks <= memory"),),
        ),
        Wrong(
            "exactly full does not fit",
            diagnosis=r"first_stage\(parameters=5000000000, ranks=1, .*: expected 'ddp', got None",
            edits=(("<= memory", "< memory"),),
        ),
        Wrong(
            "zero1 shards gradients, zero2 the optimizer",
            diagnosis=r"first_stage\(parameters=7000000000, .*: expected 'zero1', got 'zero2'",
            edits=(("(4, 12)", "(14, 2)"),),
        ),
        Wrong(
            "gigabytes of 1024",
            diagnosis=r"first_stage\(.*: expected",
            edits=(("<= memory", "<= memory * 1.0737"),),
        ),
        Wrong(
            "the last stage always fits",
            diagnosis=r"first_stage\(parameters=70000000000, ranks=8, .*: expected None, got 'zero3'",
            edits=(("<= memory), None)", '<= memory), "zero3")'),),
        ),
        Wrong(
            "rank after rank",
            diagnosis=r"right, but it runs [\d,]+ lines where 60 must do.*\n.*work out one",
            body="""
                stages = {"ddp": (16, 0), "zero1": (4, 12), "zero2": (2, 14), "zero3": (0, 16)}
                for stage, (whole, sharded) in stages.items():
                    fits = True
                    for rank in range(ranks):
                        state = whole * parameters + sharded * -(-parameters // ranks)
                        fits = fits and state + besides <= memory
                    if fits:
                        return stage
                return None
                """,
        ),
    ),
)
