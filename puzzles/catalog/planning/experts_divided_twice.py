"""planning.experts_divided_twice: expert parallelism trades tokens; it does not remove them."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.planning.answers.experts import expert_bytes


def row_after_row(case, inputs):
    """Experts and rows of rank 0, one by one. Choices fall on the ranks along ep in turn, those of each rank alike."""
    state = 0
    for expert in range(case.experts):
        if expert % case.ep == 0:
            for _matrix in ("gate", "up", "down"):
                state += (2 + 4 + 12) * case.width * (case.expert_hidden // case.etp)
    from_each = [choice for choice in range(case.tokens // case.tp * case.top_k) if choice % case.ep == 0]
    rows = 0
    for _source in range(case.ep):
        rows += len(from_each)
    gathered = sum(rows for _sharer in range(case.etp))
    kept = 0
    for _row in range(gathered):
        kept += 2 * case.width  # what came in
        kept += 2 * (case.expert_hidden // case.etp) * len(("gate", "up", "their product"))
        kept += 2 * case.width  # what goes out
    return [(state, kept)]


def counted_and_multiplied(case, inputs):
    """The same, where there are too many of them."""
    features = case.expert_hidden // case.etp
    choices = case.tokens // case.tp * case.top_k
    here = choices // case.ep * case.ep * case.etp
    return [(case.experts // case.ep * features * case.width * 54, here * (4 * case.width + 6 * features))]


BROKEN = """
    parameters = experts // ep * 3 * width * expert_hidden // etp
    rows = tokens * top_k // (tp * ep)
    numbers = rows * (3 * expert_hidden // etp + 2 * width)
    return 18 * parameters, 2 * numbers
    """
DEEPSEEK = {"tokens": (4096,), "width": (7168,), "experts": (256,), "top_k": (8,), "expert_hidden": (2048,)}
MIXTRAL = {"tokens": (4096,), "width": (4096,), "experts": (8,), "top_k": (2,), "expert_hidden": (14_336,)}

PUZZLE = Puzzle(
    name="planning.experts_divided_twice",
    title="Experts, divided twice",
    statement="""
        An estimate of memory for a layer with experts. Plans that it calls comfortable run out of memory. This is what
        is known of it:

            a   with ep = 1 and etp = 1 it is right
            b   parameters, gradients and optimizer are always right
            c   with ep = 8 the activations are eight times what it says
            d   a rank receives as many rows along ep as it sends
            e   with etp = 2 and ep = 1 they are twice what it says

        ep     each rank has E / ep experts, and tokens of its own. A row of D numbers goes to the rank of each of the k
               experts that a token has chosen; choices fall evenly.
        etp    ranks share each expert's matrices: each has F / etp of its features. All of them need the rows of all:
               each gathers what came to the others.
        tp     ranks share out the tokens of a micro-batch before they are sent.

        An expert has three matrices [D, F]. Its parameters take 18 bytes each. Of each row that it computes with, a
        rank keeps numbers of 2 bytes: D that come in, D that go out, and for each of its features the gate, the other
        product, and what is made of both.

        Find what is divided twice, and mend it.

        Args:
            tokens: of a micro-batch, before tp shares them out; tp divides them.
            width: D.
            experts: E; ep divides it.
            top_k: k; ep divides the choices of a rank.
            expert_hidden: F; etp divides it.
            tp, ep, etp: ranks along each axis.

        Returns: bytes of a rank's experts that stay, and bytes of activations, two ints.

        Budget: a formula for each.
        """,
    function=expert_bytes,
    body=BROKEN,
    cases=cases(worlds=(1,), **MIXTRAL | {"tokens": (64,)}, tp=(1,), ep=(8, 1, 2), etp=(1,))
    + cases(worlds=(1,), **MIXTRAL | {"tokens": (64,)}, tp=(1,), ep=(1, 4), etp=(2,))
    + cases(worlds=(1,), **DEEPSEEK | {"tokens": (512,)}, tp=(1, 8), ep=(64,), etp=(1,))
    + cases(
        worlds=(1,),
        tokens=(24,),
        width=(10,),
        experts=(6,),
        top_k=(3,),
        expert_hidden=(12,),
        tp=(2, 4),
        ep=(3,),
        etp=(1, 2, 3),
    ),
    drawn=(
        drawn(
            worlds=(1,),
            tp=(1, 2, 3),
            ep=(1, 2, 3, 4, 6),
            etp=(1, 2, 3),
            tokens=lambda so_far: [so_far.tp * so_far.ep * each for each in range(1, 9)],
            top_k=range(1, 5),
            width=range(3, 40),
            experts=lambda so_far: [so_far.ep * each for each in (2, 4, 5)],
            expert_hidden=lambda so_far: [so_far.etp * each for each in range(3, 30)],
        ),
        drawn(
            worlds=(1,),
            tp=(2,),
            ep=(4, 6),
            etp=(2, 3),
            tokens=lambda so_far: [so_far.tp * so_far.ep * each for each in range(1, 9)],
            top_k=range(2, 5),
            width=range(3, 40),
            experts=lambda so_far: [so_far.ep * each for each in (2, 4, 5)],
            expert_hidden=lambda so_far: [so_far.etp * each for each in range(3, 30)],
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            tokens=(2**50,),
            width=(2**20,),
            experts=(2**40,),
            top_k=(2**10,),
            expert_hidden=(2**20,),
            tp=(8,),
            ep=(2**20,),
            etp=(4,),
        ),
        "tokens, choices, experts or ranks",
        oracle=counted_and_multiplied,
    ),
    oracle=row_after_row,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 20,
            optimum=lambda case: 2,
            why="all experts and all rows are alike: count them, and multiply",
        ),
    ),
    hints=(
        "A rank sends its T k / tp rows away along ep. How many does it have afterwards? What does d say?",
        "Each rank has fewer experts, and for each of them rows from all ranks: the same number of rows as before. And "
        "what does a rank that shares matrices with others do with their rows?",
        "rows = tokens // tp * top_k * etp, not divided by ep. Of each row it keeps 2 · (3 F / etp + 2 D) bytes: what "
        "is inside of experts grows by etp and shrinks by etp.",
    ),
    wrong=(
        Wrong(
            "rows are divided by ep, as they were",
            diagnosis=r"ep=8, etp=1.*result\[1\]: expected \d+, got \d+",
            body=BROKEN + "    # experts and rows, each divided by ep\n",
        ),
        Wrong(
            "ranks that share matrices have rows of their own alone",
            diagnosis=r"etp=2.*result\[1\]: expected \d+, got \d+",
            edits=(("top_k * etp", "top_k"),),
        ),
        Wrong(
            "neither experts nor rows are divided",
            diagnosis=r"result\[0\]: expected \d+, got \d+",
            edits=(("experts // ep * 3", "experts * 3"),),
        ),
        Wrong(
            "rows of all ranks are on each",
            diagnosis=r"result\[1\]: expected \d+, got \d+",
            edits=(("top_k * etp", "top_k * etp * ep"),),
        ),
        Wrong(
            "all features on each rank that shares",
            diagnosis=r"etp=2.*result\[1\]: expected \d+, got \d+",
            edits=(("3 * expert_hidden // etp + 2", "3 * expert_hidden + 2"),),
        ),
        Wrong(
            "input and output are divided as features are",
            diagnosis=r"etp=2.*result\[1\]: expected \d+, got \d+",
            edits=(("(3 * expert_hidden // etp + 2 * width)", "(3 * expert_hidden + 2 * width) // etp"),),
        ),
        Wrong(
            "tokens are whole on all tensor-parallel ranks",
            diagnosis=r"tp=[248].*result\[1\]: expected \d+, got \d+",
            edits=(("tokens // tp * top_k", "tokens * top_k"),),
        ),
        Wrong(
            "a row for each token",
            diagnosis=r"result\[1\]: expected \d+, got \d+",
            edits=(("* top_k * etp", "* etp"),),
        ),
        Wrong(
            "each expert keeps the rows of all tokens",
            diagnosis=r"result\[1\]: expected \d+, got \d+",
            edits=(("* top_k * etp", "* experts // ep * etp"),),
        ),
        Wrong(
            "no gate",
            diagnosis=r"result\[1\]: expected \d+, got \d+",
            edits=(("(3 * expert_hidden // etp + 2", "(2 * expert_hidden // etp + 2"),),
        ),
        Wrong(
            "matrices of experts are shared along tp as all others are",
            diagnosis=r"result\[0\]: expected \d+, got \d+",
            edits=(("width * expert_hidden // etp\n", "width * expert_hidden // tp\n"),),
        ),
        Wrong(
            "row after row",
            diagnosis=r"right, but it runs [\d,]+ lines where 20 must do.*\n.*count them, and multiply",
            body="""
                parameters = experts // ep * 3 * width * expert_hidden // etp
                numbers = 0
                for row in range(tokens // tp * top_k * etp):
                    numbers += 3 * expert_hidden // etp + 2 * width
                return 18 * parameters, 2 * numbers
                """,
        ),
    ),
)
