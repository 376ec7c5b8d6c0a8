"""planning.rule_of_thumb: the field's decision list, and what it loses."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.planning.answers.thumb import rule_and_price


def powers_up_to(most):
    """1, 2, 4, ..."""
    return [2**exponent for exponent in range(most.bit_length())]


def kept_and_seconds(case, t, p, d):
    """What a split keeps on a rank, and how long its step takes, part by part; None where it is no split."""
    if t * p * d != case.ranks or case.batch % d or case.layers % p:
        return None
    m, share = case.batch // d, t * p
    numel = case.weights / share
    kept = 2 * numel + 4 * numel + 12 * numel / d + min(p, m) * case.activations / share
    if kept > case.memory:
        return None
    reached = {True: case.intra, False: case.inter}
    ring = 2 * (1 - 1 / t) * case.stream / p / reached[t <= case.node]
    gradients = 2 * (1 - 1 / d) * 2 * numel / reached[t * d <= case.node]
    return (m + p - 1) * (case.seconds / share + ring) + gradients


def all_splits_in_a_table(case, inputs):
    """The times of all, in the order of the rule: data alone, then wider tensor axes, then longer pipelines."""
    widest = min(case.node, case.ranks)
    listed = [(t, 1) for t in powers_up_to(widest)] + [(widest, p) for p in powers_up_to(case.ranks)[1:]]
    everything = [(t, p) for t in powers_up_to(widest) for p in powers_up_to(case.ranks) if t * p <= case.ranks]
    times = {(t, p): kept_and_seconds(case, t, p, case.ranks // (t * p)) for t, p in everything}
    t, p = next(split for split in listed if times.get(split) is not None)
    return [(t, p, case.ranks // (t * p), times[t, p] / min(each for each in times.values() if each is not None))]


# A window of 2048 tokens on an A100 with NVLink 3 and InfiniBand HDR: GPTs of 5.9, 18.4 and 162 billion parameters.
A100 = {"memory": (80e9,), "intra": (300e9,), "inter": (25e9,), "node": (8,)}
SMALL = {"layers": (32,), "weights": (5.9e9,), "seconds": (0.48,), "stream": (2.0e9,), "activations": (6e9,), **A100}
MIDDLE = {
    "layers": (40,),
    "weights": (18.4e9,),
    "seconds": (1.5,),
    "stream": (4.0e9,),
    "activations": (10e9,),
    **A100,
}
LARGE = {
    "layers": (64,),
    "weights": (162e9,),
    "seconds": (13.2,),
    "stream": (10.7e9,),
    "activations": (30e9,),
    **A100,
}

PUZZLE = Puzzle(
    name="planning.rule_of_thumb",
    title="A rule of thumb, and its price",
    statement="""
        Engineers choose a split of their ranks by a short list, from top to bottom:

            1. Let all ranks be replicas, with the optimizer's state shared out among them.
            2. As long as that is not possible, double the tensor axis, up to the ranks of a node.
            3. As long as it still is not possible, double the number of stages.
            4. What is left of the ranks are replicas.

        Write it as a function; and find out how much longer its step takes than the best split's that is possible, of
        all in which t, p and d are powers of two and t is at most a node.

        possible   d divides the batch, p divides the layers, and a rank has room: for (6 + 12 / d) bytes of each of its
                   parameters, of which there are weights / (t p), and for the activations / (t p) of min(p, m)
                   windows, where m = batch / d.
        time       a window takes a rank seconds / (t p), and along the tensor axis an all-reduce of stream / p bytes. A
                   pipeline takes m + p - 1 times that. Then 2 bytes of each of its parameters are all-reduced among d
                   replicas.
        rings      an all-reduce of S bytes among k ranks takes 2 (k-1)/k · S / bandwidth. Ranks of the tensor axis are
                   neighbours, then come replicas: t ranks are within a node if t <= node, and all of t d are, if t d <=
                   node; otherwise it takes the slow links.

        Args:
            ranks: n = t p d, a power of two.
            node: ranks in a node, a power of two.
            batch: windows of a step. A micro-batch is one window.
            layers: of the model.
            weights: parameters of the model.
            seconds: that one rank alone would compute for a window, forward and backward.
            stream: bytes that are all-reduced along the tensor axis for a window, all layers together.
            activations: bytes that a window keeps until its backward, all layers together.
            memory: bytes of a rank.
            intra, inter: bytes per second within a node and between nodes.

        Returns: (t, p, d, ratio): the split of the rule, and its seconds over those of the best one, at least 1. The
        rule finds a split in all cases.

        Budget: powers of two alone are tried.
        """,
    function=rule_and_price,
    cases=cases(worlds=(1,), ranks=(64, 512), batch=(512,), **SMALL)
    + cases(worlds=(1,), ranks=(64,), batch=(512, 32), **MIDDLE)
    + cases(worlds=(1,), ranks=(512, 2048), batch=(2048, 256), **LARGE)
    + cases(worlds=(1,), ranks=(512,), batch=(2048,), **LARGE | {"memory": (67e9,)})
    + cases(worlds=(1,), ranks=(32,), batch=(96,), **MIDDLE | {"memory": (24e9,)})
    + cases(worlds=(1,), ranks=(64,), batch=(64,), **MIDDLE | {"inter": (2e9,), "node": (4,)})
    + cases(worlds=(1,), ranks=(64,), batch=(12,), **SMALL | {"layers": (40,)})
    + cases(worlds=(1,), ranks=(4, 1), batch=(16,), **SMALL | {"weights": (1.3e9,)}),
    drawn=tuple(
        drawn(
            worlds=(1,),
            ranks=ranks,
            batch=lambda so_far: [so_far.ranks * each for each in (1, 3, 8)],
            layers=(32, 96),
            weights=(1e9, 7e9, 20e9),
            seconds=(0.3, 1.1, 2.7),
            stream=(2e9, 7e9, 30e9),
            activations=(3e9, 11e9, 40e9),
            memory=(65e9, 80e9),
            intra=(150e9, 300e9),
            inter=(3e9, 12.5e9, 50e9),
            node=(4, 8),
        )
        for ranks in ((64, 128), (256, 1024))
    ),
    scale=Scale(
        cases(worlds=(1,), ranks=(2**26,), batch=(2**28,), **LARGE | {"layers": (2**20,)}), "the number of ranks"
    ),
    oracle=all_splits_in_a_table,
    tolerance=1e-9,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 200 + 40 * case.ranks.bit_length() ** 2,
            optimum=lambda case: 50 + 4 * case.ranks.bit_length() ** 2,
            why="t and p are powers of two, and d follows from both: there are few splits",
        ),
    ),
    hints=(
        "Two functions serve both halves: whether a split (t, p) is possible, and how long its step takes. d is what "
        "is left.",
        "The rule is a loop: t = p = 1, and while (t, p) is not possible, double t if it is below a node, and below "
        "n, else p. A split with more ranks than there are, d = 0, is not possible.",
        "t, p = (2 * t, p) if t < min(node, ranks) else (t, 2 * p). The best: min(step(a, b)) over powers of two a <= "
        "node and b, where (a, b) is possible. A rank holds ((6 + 12 / d) · weights + min(p, batch // d) · "
        "activations) / (t p).",
    ),
    wrong=(
        Wrong(
            "the rule is the best there is",
            diagnosis=r"result\[3\]: expected [\d.]+, got 1",
            edits=(("step(t, p) / best", "1.0"),),
        ),
        Wrong(
            "the best split, for that of the rule",
            diagnosis=r"result\[\d\]: expected [\d.]+, got [\d.]+",
            edits=(
                (
                    "    return t, p, ranks",
                    "    t, p = min(((a, b) for a in powers if a <= node for b in powers if possible(a, b)),\n"
                    "               key=lambda s: step(*s))\n    return t, p, ranks",
                ),
            ),
        ),
        Wrong(
            "pipelines before tensor parallelism",
            diagnosis=r"result\[\d\]: expected [\d.]+, got [\d.]+",
            edits=(
                (
                    "(2 * t, p) if t < min(node, ranks) else (t, 2 * p)",
                    "(t, 2 * p) if 2 * p <= min(node, ranks) else (2 * t, p)",
                ),
            ),
        ),
        Wrong(
            "a whole node at once",
            diagnosis=r"result\[0\]: expected \d, got 8",
            edits=(("(2 * t, p) if t", "(min(node, ranks), p) if t"),),
        ),
        Wrong(
            "tensor parallelism alone, over nodes if need be",
            diagnosis=r"result\[\d\]: expected \d+, got \d+",
            edits=(("if t < min(node, ranks) else", "if t < ranks else"),),
        ),
        Wrong(
            "nothing is shared out among replicas",
            diagnosis=r"result\[\d\]: expected [\d.]+, got [\d.]+",
            edits=(("(6 + 12 / d)", "18"),),
        ),
        Wrong(
            "everything is shared out among replicas",
            diagnosis=r"result\[\d\]: expected [\d.]+, got [\d.]+",
            edits=(("(6 + 12 / d)", "18 / d"),),
        ),
        Wrong(
            "one window in flight",
            diagnosis=r"result\[\d\]: expected [\d.]+, got [\d.]+",
            edits=(("min(p, batch // d) * activations", "activations"),),
        ),
        Wrong(
            "activations are forgotten",
            diagnosis=r"result\[\d\]: expected [\d.]+, got [\d.]+",
            edits=((" + min(p, batch // d) * activations", ""),),
        ),
        Wrong(
            "more replicas than windows",
            diagnosis=r"batch=\d+.*result\[\d\]: expected [\d.]+, got [\d.]+|ZeroDivision",
            edits=(("d == 0 or batch % d or", "d == 0 or"),),
        ),
        Wrong(
            "stages that do not divide the layers",
            diagnosis=r"result\[\d\]: expected [\d.]+, got [\d.]+",
            edits=((" or layers % p", ""),),
        ),
        Wrong(
            "no bubble",
            diagnosis=r"result\[3\]: expected [\d.]+, got [\d.]+",
            edits=(("(batch // d + p - 1)", "(batch // d)"),),
        ),
        Wrong(
            "links are all alike",
            diagnosis=r"result\[3\]: expected [\d.]+, got [\d.]+",
            edits=(("intra if reach <= node else inter", "intra if reach else inter"),),
        ),
        Wrong(
            "how much longer, and not how many times",
            diagnosis=r"result\[3\]: expected [\d.]+, got [\d.]+",
            edits=(("step(t, p) / best", "step(t, p) / best - 1"),),
        ),
        Wrong(
            "every number of ranks is tried",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*there are few splits",
            edits=(
                (
                    "    powers = [2**exponent for exponent in range(ranks.bit_length())]\n",
                    "    powers = []\n    for size in range(1, ranks + 1):\n        for other in range(1, 9):\n"
                    "            if other == 8 and size & (size - 1) == 0:\n                powers.append(size)\n",
                ),
            ),
        ),
    ),
)
