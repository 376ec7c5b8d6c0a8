"""planning.bound_by_communication: one inequality for each kind of parallelism."""

from fractions import Fraction

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.planning.answers.hiding import computing_bound_from

STRATEGIES = ("ddp", "fsdp", "tp", "cp", "pp")


def seconds(case, x):
    """Of computing, and of sending: for one parameter, one feature and token, or one token, as is simplest."""
    n, z, d = case.ranks, case.size, case.width
    ring = Fraction(n - 1, n) * z  # bytes of a gather or a scatter, for each number
    match case.strategy:
        case "ddp":
            flops, sent = 4 * x, 2 * ring
        case "fsdp":
            flops, sent = 2 * x, ring  # forward; backward has twice as much of both
        case "tp":
            flops, sent = Fraction(4 * d * x, n), 2 * ring * d
        case "cp":
            flops, sent = 2 * 2 * case.queries * x * x, 2 * z * case.keys * x
        case "pp":
            flops, sent = 2 * 12 * d * d * x, z * d
    return Fraction(flops, case.flops), Fraction(sent if n > 1 else 0, case.bandwidth)


def hides(case, x):
    computing, sending = seconds(case, x)
    return computing >= sending


def tried(case, inputs):
    """Doubled until it hides, then halved in between."""
    enough = 1
    while not hides(case, enough):
        enough *= 2
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if hides(case, middle) else (middle, enough)
    return [enough]


LLAMA_8B = {"width": (4096,), "queries": (4096,), "keys": (1024,)}
A100 = {"flops": (156 * 10**12,), "size": (2,)}  # half of the peak
H100 = {"flops": (495 * 10**12,), "size": (2,)}
NVLINK, CARD = {"bandwidth": (450 * 10**9,)}, {"bandwidth": (50 * 10**9,)}
EVEN = {"flops": (24 * 10**6,), "size": (2,), "bandwidth": (10**3,), "width": (8,), "queries": (16,), "keys": (4,)}

PUZZLE = Puzzle(
    name="planning.bound_by_communication",
    title="From where on computing takes longer than sending",
    statement="""
        Communication costs nothing where computing hides it. Each kind of parallelism hides it behind something else,
        and for each there is one number that decides. From which x on does computing take as long as sending, or
        longer?

        A rank computes C FLOP in a second, and sends W bytes in a second; latency is left out. Numbers have z bytes. A
        weight takes 2 FLOPs for each token in forward and 4 in backward. Among n ranks a gather or a reduce-scatter of
        s bytes takes a rank's link (n-1)/n s, an all-reduce twice that.

        ddp     gradients are all-reduced once in a step, behind the backward of the same weights. x: tokens of a rank
                in a step.
        fsdp    weights are gathered for forward, and hide behind forward; they are gathered again for backward, and
                gradients are reduce-scattered, and both hide behind backward. x: tokens of a rank in a step; forward
                and backward must both hide.
        tp      n ranks share the two matrices of a feed-forward, [D, x] and [x, D]. In forward its output, D numbers
                for each token, is all-reduced. x: features, all ranks together, for which the products take as long as
                the all-reduce.
        cp      blocks of keys and values go around a ring, 2 K numbers for each token. While a rank sends one block, it
                computes attention of its own queries to it: 4 A FLOPs for each pair of tokens, where every block is as
                large as the rank's own. x: tokens of a rank.
        pp      a stage sends its output on, D numbers for each token, while it computes forward of the next
                micro-batch: x layers of 12 D² weights. x: layers of a stage.

        Args:
            strategy: "ddp", "fsdp", "tp", "cp" or "pp".
            ranks: n, along this axis. With n = 1 nothing is sent.
            flops: C.
            bandwidth: W.
            size: z.
            width: D.
            queries: A, width of all heads of queries.
            keys: K, width of all heads of keys.

        Returns: the least whole x, 1 or more. All arguments are whole numbers: be exact.

        Budget: a formula for each.
        """,
    function=computing_bound_from,
    cases=cases(worlds=(1,), strategy=STRATEGIES, ranks=(8,), **H100, **CARD, **LLAMA_8B)
    + cases(worlds=(1,), strategy=STRATEGIES, ranks=(8, 1), **H100, **NVLINK, **LLAMA_8B)
    + cases(worlds=(1,), strategy=STRATEGIES, ranks=(3,), **A100, **CARD, width=(64,), queries=(48,), keys=(48,))
    + cases(worlds=(1,), strategy=STRATEGIES, ranks=(4,), **EVEN),
    drawn=tuple(
        drawn(
            worlds=(1,),
            strategy=(strategy,),
            ranks=(1, 2, 3, 5, 8, 16, 64),
            flops=[10**9 * each for each in (1234, 77_777, 312_000)],
            size=(1, 2, 4),
            bandwidth=[10**8 * each for each in (13, 250, 3001)],
            width=(64, 100, 4096),
            keys=(16, 40, 1024),
            queries=lambda so_far: [so_far.keys * each for each in (1, 3, 8)],
        )
        for strategy in STRATEGIES
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            strategy=STRATEGIES,
            ranks=(8,),
            flops=(10**30 + 7,),
            size=(2,),
            bandwidth=(10**3,),
            width=(64,),
            queries=(64,),
            keys=(64,),
        ),
        "x, nor may it be rounded",
    ),
    oracle=tried,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 40,
            optimum=lambda case: 4,
            why="write both times down as functions of x and solve for it: nothing has to be tried",
        ),
    ),
    hints=(
        "Write both sides down for one weight and x tokens: FLOPs / C, and bytes / W. What remains of x in each? For "
        "tp, how often do the tokens stand on both sides?",
        "ddp: 4 x / C >= 2 (n-1)/n z / W. fsdp, forward: 2 x / C >= (n-1)/n z / W, and backward has twice of both. tp: "
        "4 D x / (n C) >= 2 (n-1)/n z D / W. cp: 4 A x² / C >= 2 z K x / W. pp: 24 D² x / C >= z D / W.",
        "ddp and fsdp: x >= z C (n-1) / (2 W n). tp: z C (n-1) / (2 W). cp: z C K / (2 W A). pp: z C / (24 W D). "
        "Divide whole numbers, rounded up: -(-above // below), and at least 1. With n = 1 it is 1.",
    ),
    wrong=(
        Wrong(
            "fsdp sends half as much again, so it needs more",
            diagnosis=r"strategy=fsdp.*expected 8663, got 12994",
            edits=(('"fsdp": (ranks - 1, ranks)', '"fsdp": (3 * ranks - 3, 2 * ranks)'),),
        ),
        Wrong(
            "gradients hide behind forward as well",
            diagnosis=r"strategy=ddp.*expected 8663, got 5775",
            edits=(('"ddp": (ranks - 1, ranks)', '"ddp": (2 * ranks - 2, 3 * ranks)'),),
        ),
        Wrong(
            "an all-reduce carries what a gather does",
            diagnosis=r"strategy=ddp.*expected 8663, got 4332",
            edits=(('"ddp": (ranks - 1, ranks)', '"ddp": (ranks - 1, 2 * ranks)'),),
        ),
        Wrong(
            "fsdp has all its messages in forward",
            diagnosis=r"strategy=fsdp.*expected 8663, got 25988",
            edits=(('"fsdp": (ranks - 1, ranks)', '"fsdp": (3 * ranks - 3, ranks)'),),
        ),
        Wrong(
            "a rank sends everything, whatever n is",
            diagnosis=r"strategy=ddp.*expected 8663, got 9900",
            edits=(('"ddp": (ranks - 1, ranks)', '"ddp": (1, 1)'),),
        ),
        Wrong(
            "each rank has all features",
            diagnosis=r"strategy=tp.*expected 69300, got 8663",
            edits=(('"tp": (ranks - 1, 1)', '"tp": (ranks - 1, ranks)'),),
        ),
        Wrong(
            "one matrix in a feed-forward",
            diagnosis=r"strategy=tp.*expected 69300, got 138600",
            edits=(('"tp": (ranks - 1, 1)', '"tp": (2 * ranks - 2, 1)'),),
        ),
        Wrong(
            "as many keys as queries",
            diagnosis=r"strategy=cp.*expected 2475, got 9900",
            edits=(("(keys, queries)", "(1, 1)"),),
        ),
        Wrong(
            "keys travel, and values stay",
            diagnosis=r"strategy=cp.*expected 2475, got 1238",
            edits=(("(keys, queries)", "(keys, 2 * queries)"),),
        ),
        Wrong(
            "a mask hides half of each block",
            diagnosis=r"strategy=cp.*expected 2475, got 4950",
            edits=(("(keys, queries)", "(2 * keys, queries)"),),
        ),
        Wrong(
            "a layer has D² weights",
            diagnosis=r"strategy=pp.*expected 1, got 3|strategy=pp.*expected \d+, got \d+",
            edits=(("(1, WEIGHTS * width)", "(1, width)"),),
        ),
        Wrong(
            "a pipeline's ring",
            diagnosis=r"strategy=pp.*expected \d+, got \d+",
            edits=(("(1, WEIGHTS * width)", "(ranks - 1, WEIGHTS * width)"),),
        ),
        Wrong(
            "rounded down",
            diagnosis=r"strategy=\w+.*expected \d+, got \d+",
            edits=(
                (
                    "-(-size * flops * above // (2 * bandwidth * below))",
                    "size * flops * above // (2 * bandwidth * below)",
                ),
            ),
        ),
        Wrong(
            "the next one, where it is as long",
            diagnosis=r"width=8.*expected 18000, got 18001|expected \d+, got \d+",
            edits=(
                (
                    "-(-size * flops * above // (2 * bandwidth * below))",
                    "size * flops * above // (2 * bandwidth * below) + 1",
                ),
            ),
        ),
        Wrong(
            "one rank sends to itself",
            diagnosis=r"ranks=1.*expected 1, got \d+",
            edits=((" if ranks > 1 else 1", ""),),
        ),
        Wrong(
            "numbers that are not whole",
            diagnosis=r"expected \d+, got \d+",
            edits=(
                (
                    "-(-size * flops * above // (2 * bandwidth * below))",
                    "size * flops * above / (2 * bandwidth * below)",
                ),
            ),
        ),
        Wrong(
            "bits for bytes",
            diagnosis=r"strategy=ddp.*expected 8663, got 69300",
            edits=(("(-size * flops", "(-8 * size * flops"),),
        ),
        Wrong(
            "one after another is tried",
            diagnosis=r"right, but it runs [\d,]+ lines where 40 must do.*\n.*solve for it",
            body="""
                above, below = {
                    "ddp": (size * flops * (ranks - 1), 2 * bandwidth * ranks),
                    "fsdp": (size * flops * (ranks - 1), 2 * bandwidth * ranks),
                    "tp": (size * flops * (ranks - 1), 2 * bandwidth),
                    "cp": (size * flops * keys * (ranks > 1), 2 * bandwidth * queries),
                    "pp": (size * flops * (ranks > 1), 24 * bandwidth * width),
                }[strategy]
                x = 1
                while x * below < above:
                    x += 1
                return x
                """,
        ),
    ),
)
