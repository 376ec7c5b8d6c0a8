"""planning.forgotten_recompute: a planner that lets in a job at a tenth of what it takes."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, divisors, drawn
from reference.planning.answers.granularity import activation_bytes


def moment_after_moment(case, inputs):
    """Tensors are made forward, layer after layer, and freed backward; the peak is the most that was ever alive."""
    groups = [range(i, i + case.every) for i in range(0, case.layers, case.every)]
    if case.recompute != "full":
        groups = [range(i, i + 1) for i in range(case.layers)]
    forward = {"none": case.kept, "selective": case.kept - case.scores, "full": case.inputs}[case.recompute]
    alive = peak = 0
    for _group in groups:
        alive += forward
    for group in reversed(groups):
        again = {"none": 0, "selective": case.scores, "full": len(group) * case.kept}[case.recompute]
        peak = max(peak, alive + again)
        alive -= forward
    return [peak * case.tokens]


def without_moments(case, inputs):
    """The same, where there are too many layers."""
    if case.recompute == "none":
        return [case.tokens * case.layers * case.kept]
    if case.recompute == "selective":
        return [case.tokens * (case.layers * case.kept - (case.layers - 1) * case.scores)]
    return [case.tokens * (case.layers // case.every * case.inputs + case.every * case.kept)]


BROKEN = """
    return tokens * (layers * inputs + kept)
    """

DENSE = {"layers": (64,), "tokens": (32_710,), "kept": (46 * 5120,), "scores": (12 * 5120,), "inputs": (2 * 5120,)}
SMALL = {"layers": (6,), "tokens": (3,), "kept": (50,), "scores": (20,), "inputs": (4,)}
KINDS = ("none", "selective", "full")

PUZZLE = Puzzle(
    name="planning.forgotten_recompute",
    title="A planner lets in what does not fit",
    statement="""
        Before a job is admitted, a planner estimates its activations. One in use said 5.9 GB, let 32,710 tokens in, and
        the job ran out of memory above 107 GB. This is what is known of such an estimate:

            a   where each layer is made again whole, it is right to the byte
            b   where attention alone is made again, it is far too low
            c   where nothing is made again, it is lower still
            d   with groups of four layers, it is too low for a model
                of 8 layers, and too high for one of 128

        What is alive at most? Forward leaves something of each layer, or of each group of layers; backward goes through
        them in reverse and may make more for a while:

        none        each layer keeps all its `kept` bytes for a token.
        selective   attention's scores, `scores` of these bytes, are not kept. They are made again for one layer at a
                    time, when its backward comes.
        full        layers are in groups of `every`, which divides their number. Of each group its input alone is kept,
                    `inputs` bytes. When its backward comes, the whole group is made again, with all `kept` bytes
                    of each of its layers.

        Find what the estimate has forgotten, and mend it.

        Args:
            layers: of this rank.
            tokens: of the micro-batch.
            kept: bytes of a token in a layer, where all is kept; the scores are among them.
            scores: bytes of a token's scores in a layer.
            inputs: bytes of a token in the input of a layer; less than `scores`.
            recompute: "none", "selective" or "full".
            every: layers of a group, which divides `layers`; 1 and without a meaning unless `recompute` is "full".

        Returns: bytes that are alive at most, an int.

        Budget: a formula for each.
        """,
    function=activation_bytes,
    body=BROKEN,
    cases=cases(worlds=(1,), **DENSE, recompute=("selective", "none"), every=(1,))
    + cases(worlds=(1,), **DENSE, recompute=("full",), every=(1, 4))
    + cases(worlds=(1,), **DENSE | {"layers": (8,)}, recompute=("full",), every=(4,))
    + cases(worlds=(1,), **SMALL, recompute=("selective", "none"), every=(1,))
    + cases(worlds=(1,), **SMALL, recompute=("full",), every=(1, 2, 3, 6))
    + cases(worlds=(1,), **SMALL | {"layers": (1,)}, recompute=KINDS, every=(1,)),
    drawn=tuple(
        drawn(
            worlds=(1,),
            layers=range(2, 60),
            tokens=range(1, 999),
            inputs=range(2, 30),
            scores=lambda so_far: range(so_far.inputs + 1, 90),
            kept=lambda so_far: range(so_far.scores + 5, 400),
            recompute=(kind,),
            every=(lambda so_far: divisors(so_far.layers)) if kind == "full" else (1,),
        )
        for kind in KINDS
    ),
    scale=Scale(
        cases(worlds=(1,), **DENSE | {"layers": (10**12,)}, recompute=KINDS, every=(1,)),
        "the number of layers",
        oracle=without_moments,
    ),
    oracle=moment_after_moment,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 30,
            optimum=lambda case: 2,
            why="the peak is when the last layer's backward begins: nothing has been freed, and most is made again",
        ),
    ),
    hints=(
        "Read the estimate as a sentence: what does it say is kept, and what is made again? For which of the three is "
        "this right, and which of the arguments does it not look at?",
        "In each case the peak is at the beginning of backward: all that forward has left, and what one layer, or one "
        "group, makes again. How many inputs are kept of L layers in groups of k?",
        "tokens times: none L · kept; selective L · (kept - scores) + scores; full L / every · inputs + every · kept.",
    ),
    wrong=(
        Wrong(
            "one estimate for every granularity, as it was",
            diagnosis=r"recompute=selective.*expected \d{12}, got 29\d{9}",
            body=BROKEN + "    # fitted to full recomputation, and right there\n",
        ),
        Wrong(
            "whatever is made again, nothing but inputs is kept",
            diagnosis=r"recompute=selective.*expected \d+, got \d+",
            edits=(('"selective": layers * (kept - scores) + scores', '"selective": layers * inputs + kept'),),
        ),
        Wrong(
            "scores that are made again take no room",
            diagnosis=r"recompute=selective.*expected \d+, got \d+",
            edits=(("(kept - scores) + scores", "(kept - scores)"),),
        ),
        Wrong(
            "scores of all layers are made again at once",
            diagnosis=r"recompute=selective.*expected \d+, got \d+",
            edits=(("(kept - scores) + scores", "kept"),),
        ),
        Wrong(
            "one whole layer is made again where its scores are",
            diagnosis=r"recompute=selective.*expected \d+, got \d+",
            edits=(("(kept - scores) + scores", "(kept - scores) + kept"),),
        ),
        Wrong(
            "nothing made again is one layer more",
            diagnosis=r"recompute=none.*expected \d+, got \d+",
            edits=(('"none": layers * kept', '"none": (layers + 1) * kept'),),
        ),
        Wrong(
            "an input of each layer, whatever the groups",
            diagnosis=r"every=4.*expected \d+, got \d+",
            edits=(("layers // every * inputs", "layers * inputs"),),
        ),
        Wrong(
            "one layer of a group is made again",
            diagnosis=r"every=4.*expected \d+, got \d+",
            edits=(("+ every * kept", "+ kept"),),
        ),
        Wrong(
            "a group makes again what is not there already",
            diagnosis=r"every=\d.*expected \d+, got \d+",
            edits=(("+ every * kept", "+ every * (kept - inputs)"),),
        ),
        Wrong(
            "all groups are made again at once",
            diagnosis=r"recompute=full.*expected \d+, got \d+",
            edits=(("+ every * kept", "+ layers * kept"),),
        ),
        Wrong(
            "ten times the old estimate, to be safe",
            diagnosis=r"recompute=selective.*expected \d+, got \d+",
            body="return tokens * (layers * inputs + kept) * (1 if recompute == 'full' else 10)",
        ),
        Wrong(
            "layer after layer",
            diagnosis=r"right, but it runs [\d,]+ lines where 30 must do.*\n.*nothing has been freed",
            body="""
                alive = 0
                for layer in range(layers):
                    if recompute == "none":
                        alive += kept
                    elif recompute == "selective":
                        alive += kept - scores
                    elif layer % every == 0:
                        alive += inputs
                again = {"none": 0, "selective": scores, "full": every * kept}
                return tokens * (alive + again[recompute])
                """,
        ),
    ),
)
