"""composition.axis_bytes: what a rank sends along each axis, as a formula."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.composition.answers.axis_bytes import axis_bytes


def message_after_message(case, inputs):
    """A step of a rank in the middle of the pipeline, one micro-batch and one layer after another."""
    windows_here = case.batch // case.d
    tokens = [case.sequence] * case.micro_batch
    stream = 2 * sum(tokens) * case.width
    pipe = tensor = 0
    while windows_here > 0:
        windows_here -= case.micro_batch
        pipe += sum(stream for _direction in ("on", "back") if case.p != 1)
        for _layer in range(case.layers // case.p):
            for _all_reduce in ("attention", "MLP", "MLP, backward", "attention, backward"):
                tensor += sum(stream // case.t for _half in range(2) for _step in range(case.t - 1))
    shapes = [(4 * case.width, case.width), (case.width, 4 * case.width)] + [(case.width, case.width)] * 4
    weights = sum(rows * columns for rows, columns in shapes) * (case.layers // case.p) // case.t
    data = sum(2 * weights // case.d for _half in range(2) for _step in range(case.d - 1))
    return [(pipe, data, tensor)]


GPT_3 = {"layers": (96,), "width": (12_288,), "sequence": (2048,)}


def counted_and_multiplied(case, inputs):
    """The same, where there are too many messages to add up."""
    micro_batches = case.batch // case.d // case.micro_batch
    stream, layers = 2 * case.micro_batch * case.sequence * case.width, case.layers // case.p
    tensor = micro_batches * layers * 8 * (case.t - 1) * (stream // case.t)
    weights = 12 * case.width**2 * layers // case.t
    return [(2 * micro_batches * stream * (case.p != 1), 2 * (case.d - 1) * (2 * weights // case.d), tensor)]


PUZZLE = Puzzle(
    name="composition.axis_bytes",
    title="The bytes of each axis",
    statement="""
        A step of DP x TP x PP. What does a rank send along each axis? Take one in the middle of a pipeline, with a
        neighbour on both sides.

        pipe      of every micro-batch its activations, b s h numbers, to the next stage, and as many numbers of
                  gradients to the stage before. Without a pipeline nothing.
        data      once a step the gradients of its weights, in an all-reduce around the ring: of n ranks each sends
                  2(n-1)/n of the tensor. A layer has 12 h² weights, which t ranks share.
        tensor    in each of its layers four all-reduces of b s h numbers for every micro-batch, two on the way there
                  and two on the way back, around the ring, too.

        All numbers have 2 bytes. Embedding, head and biases are left out, and nothing is recomputed.

        Args:
            p, d, t: ranks on the axes pipe, data and tensor; all divide what they should. p is 1 or at least 3.
            batch: B, windows in a step, of all replicas together.
            micro_batch: b, windows in a micro-batch.
            layers: l, of all stages together.
            width: h.
            sequence: s, tokens in a window.

        Returns: bytes along pipe, data and tensor, three ints.

        Budget: a formula for each.
        """,
    function=axis_bytes,
    cases=cases(worlds=(1,), p=(8,), d=(8,), t=(8,), batch=(1536,), micro_batch=(1,), **GPT_3)
    + cases(
        worlds=(1,),
        p=(4,),
        d=(1, 3),
        t=(1, 2),
        batch=(24,),
        micro_batch=(1, 4),
        layers=(8,),
        width=(12,),
        sequence=(5,),
    )
    + cases(worlds=(1,), p=(1,), d=(2,), t=(4,), batch=(8,), micro_batch=(2,), layers=(3,), width=(8,), sequence=(7,))
    + cases(
        worlds=(1,),
        p=(64,),
        d=(6,),
        t=(8,),
        batch=(3072,),
        micro_batch=(1,),
        layers=(128,),
        width=(25_600,),
        sequence=(2048,),
    ),
    drawn=(
        drawn(
            worlds=(1,),
            p=(1, 3, 4, 5),
            d=(1, 2, 3, 4),
            t=(1, 2, 3, 6),
            micro_batch=(1, 2, 3),
            batch=lambda so_far: [k * so_far.d * so_far.micro_batch for k in range(1, 9)],
            layers=lambda so_far: [k * so_far.p for k in range(1, 6)],
            width=(12, 24, 60),
            sequence=range(1, 40),
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            p=(2**30,),
            d=(2**30,),
            t=(2**30,),
            batch=(2**70,),
            micro_batch=(1,),
            layers=(2**60,),
            width=(2**40,),
            sequence=(2**20,),
        ),
        "ranks, layers or micro-batches",
        oracle=counted_and_multiplied,
    ),
    oracle=message_after_message,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 30,
            optimum=lambda case: 6,
            why="every micro-batch and every layer sends the same: count them, and multiply",
        ),
    ),
    hints=(
        "How many micro-batches has this pipeline, if d pipelines share the batch? How many layers has this rank?",
        "m = B / (d b), and l/p layers. Which of the three axes does not depend on m at all?",
        "pipe: 2 m b s h numbers. tensor: 4 m l/p · 2 (t-1)/t · b s h. data: 2 (d-1)/d · 12 l h² / (p t). Twice that "
        "many bytes.",
    ),
    wrong=(
        Wrong(
            "every pipeline has the whole batch",
            diagnosis=r"expected 19327352832, got 154618822656",
            edits=(("batch // (d * micro_batch)", "batch // micro_batch"),),
        ),
        Wrong(
            "forward alone along the pipe",
            diagnosis=r"expected 19327352832, got 9663676416",
            edits=(("pipe = 2 * m * stream", "pipe = m * stream"),),
        ),
        Wrong(
            "a rank sums the gradients of the whole model",
            diagnosis=r"expected 9512681472, got 608811614208",
            edits=(("width**2 // (p * t)", "width**2"),),
        ),
        Wrong(
            "stages share the layers, and matrices stay whole",
            diagnosis=r"expected 9512681472, got 76101451776",
            edits=(("width**2 // (p * t)", "width**2 // p"),),
        ),
        Wrong(
            "gradients are summed after every micro-batch",
            diagnosis=r"expected 9512681472, got 1826434842624",
            edits=(("data = 2 * (d - 1)", "data = m * 2 * (d - 1)"),),
        ),
        Wrong(
            "all layers talk on every rank",
            diagnosis=r"expected 811748818944, got 6493990551552",
            edits=(("(layers // p)", "layers"),),
        ),
        Wrong(
            "tensor-parallel ranks send all-reduces once",
            diagnosis=r"expected 811748818944, got 405874409472",
            edits=(("* 4 * 2 * (t - 1)", "* 4 * (t - 1)"),),
        ),
        Wrong(
            "a pipeline of one sends, too",
            diagnosis=r"p=1.*expected 0, got",
            edits=((" if p > 1 else 0", ""),),
        ),
        Wrong(
            "one window at a time",
            diagnosis=r"micro_batch=4",
            edits=(("2 * micro_batch * sequence", "2 * sequence"),),
        ),
        Wrong(
            "micro-batch after micro-batch",
            diagnosis=r"right, but it runs [\d,]+ lines where 30 must do.*\n.*count them, and multiply",
            body="""
                pipe = tensor = 0
                stream = 2 * micro_batch * sequence * width
                for k in range(batch // (d * micro_batch)):
                    pipe += 2 * stream if p > 1 else 0
                    for layer in range(layers // p):
                        tensor += 4 * 2 * (t - 1) * stream // t
                return pipe, 2 * (d - 1) * (2 * 12 * layers * width**2 // (p * t)) // d, tensor
                """,
        ),
    ),
)
