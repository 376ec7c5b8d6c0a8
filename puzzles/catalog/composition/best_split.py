"""composition.best_split: how many ranks for which axis, under a limit of memory."""

import itertools

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases
from reference.composition.answers.best_split import best_split

ROUNDING = 1e-9  # relative: splits that differ by less take equally long


def kept_and_seconds(case, p, d, t):
    """What a split keeps on a rank, and how long its step takes, added up piece by piece."""
    mine = 1 / (p * t)  # of the model
    micro_batches = range(case.batch // d)
    kept = case.state * mine + sum(case.activations * mine for _ in micro_batches[:p])
    wire = {True: case.intra, False: case.inter}
    ring = sum(case.stream / p / t for _half in range(2) for _step in range(t - 1)) / wire[t <= case.node]
    window = case.seconds * mine + ring
    waits = sum(window for _stage in range(p - 1))
    gradients = sum(case.state * mine / 8 / d for _half in range(2) for _step in range(d - 1))
    return kept, waits + len(micro_batches) * window + gradients / wire[t * d <= case.node]


def shortest(case):
    """Seconds of the best split, of all triples whose product is n."""
    divisors = [k for k in range(1, case.ranks + 1) if case.ranks % k == 0]
    triples = [(p, d, case.ranks // (p * d)) for p, d in itertools.product(divisors, repeat=2)]
    allowed = [(p, d, t) for p, d, t in triples if p * d * t == case.ranks and not (case.layers % p or case.batch % d)]
    tried = [kept_and_seconds(case, *split) for split in allowed]
    return min(seconds for kept, seconds in tried if kept <= case.memory)


def as_short_as_can_be(case, inputs, outputs, trace):
    """The split is one, has room, and takes no longer than the best."""
    split = outputs[0]["returns"]
    numbers = isinstance(split, list | tuple) and all(type(each) is int and each > 0 for each in split)
    if not numbers or len(split) != 3:
        return [Claim(False, "it must return (p, d, t), three whole numbers above 0")]
    (p, d, t), n, (kept, seconds), best = split, case.ranks, kept_and_seconds(case, *split), shortest(case)
    said = f"(p, d, t) = {tuple(split)}"
    return [
        Claim(p * d * t == n, f"{said} are {p * d * t} ranks of {n}"),
        Claim(case.layers % p == 0, f"{said}: {p} stages do not divide {case.layers} layers"),
        Claim(case.batch % d == 0, f"{said}: {d} replicas do not divide {case.batch} windows"),
        Claim(kept <= case.memory, f"{said} keeps {kept / 1e9:.4g} GB on a rank of {case.memory / 1e9:.4g}"),
        Claim(seconds <= best * (1 + ROUNDING), f"{said} takes {seconds:.4g} s, and {best:.4g} s is possible"),
    ]


# A window of 2048 tokens on an A100 with NVLink 3 and InfiniBand HDR: GPTs of 5.9, 18.4 and 162 billion parameters.
A100 = {"memory": (80e9,), "intra": (300e9,), "inter": (25e9,)}
SMALL = {"layers": (32,), "seconds": (0.48,), "stream": (2.0e9,), "state": (94e9,), "activations": (6e9,), **A100}
MIDDLE = {"layers": (40,), "seconds": (1.5,), "stream": (4.0e9,), "state": (294e9,), "activations": (10e9,), **A100}
KEPT = SMALL | {"activations": (48e9,), "memory": (24e9,)}  # the small one without recomputation, on smaller GPUs
PCIE = SMALL | {"state": (16e9,), "intra": (150e9,), "inter": (12.5e9,)}  # a smaller model, on slower links
LARGE = {"layers": (32,), "seconds": (13.2,), "stream": (10.7e9,), "state": (2.6e12,), "activations": (30e9,), **A100}

PUZZLE = Puzzle(
    name="composition.best_split",
    title="How many ranks for which axis",
    statement="""
        n ranks, a model and a batch: choose p, d and t with p d t = n, so that a step is as short as can be and every
        rank has room. Ranks of the tensor axis are neighbours, then come those of the data axis. So t ranks are within
        a node if t <= node, and all of t d are, if t d <= node; otherwise what they say takes the slow links.

        time      a window takes a rank seconds / (p t), and along the tensor axis an all-reduce of stream / p bytes. A
                  pipeline has m = batch / d windows and takes m + p - 1 times that. Then gradients are all-reduced
                  along the data axis: an eighth of this rank's state.
        rings     an all-reduce of S bytes among k ranks takes 2 (k-1)/k · S / bandwidth. Latency, and messages between
                  stages, are left out: they are small.
        memory    state / (p t), and activations / (p t) for each window in flight; a first stage has p of them in
                  flight, and never more than there are.

        p divides the layers, d the batch.

        Args:
            ranks: n.
            node: ranks in a node.
            batch: windows in a step. A micro-batch is one window.
            layers: of the model.
            seconds: that one rank alone would compute for a window, forward and backward.
            stream: bytes that are all-reduced along the tensor axis for a window, all layers together.
            state: bytes of training state of the whole model.
            activations: bytes that a window keeps until its backward, all layers together.
            memory: bytes of a rank.
            intra, inter: bytes per second within a node and between nodes.

        Returns: (p, d, t). Where several splits are equally good, any of them will do.

        Budget: each p and each t is tried once. Three loops up to n are too many.
        """,
    function=best_split,
    cases=cases(worlds=(1,), ranks=(64,), node=(8,), batch=(32, 512), **LARGE)
    + cases(worlds=(1,), ranks=(32,), node=(8,), batch=(64, 512), **SMALL)
    + cases(worlds=(1,), ranks=(64, 16), node=(8,), batch=(512,), **KEPT)
    + cases(worlds=(1,), ranks=(32,), node=(8, 4), batch=(1024, 256), **MIDDLE)
    + cases(worlds=(1,), ranks=(12,), node=(6,), batch=(36,), **SMALL)
    + cases(worlds=(1,), ranks=(8,), node=(1, 8), batch=(4, 64), **SMALL | {"state": (16e9,)})
    + cases(worlds=(1,), ranks=(8,), node=(1,), batch=(4, 64), **SMALL)
    + cases(worlds=(1,), ranks=(8,), node=(2,), batch=(2,), **KEPT)
    + cases(worlds=(1,), ranks=(8,), node=(4,), batch=(64,), **PCIE)
    + cases(worlds=(1,), ranks=(16,), node=(1,), batch=(64,), **KEPT | {"state": (96e9,), "memory": (24e9, 23.9e9)})
    + cases(worlds=(1,), ranks=(8,), node=(1,), batch=(8,), **KEPT | {"state": (96e9,)})
    + cases(worlds=(1,), ranks=(64,), node=(1,), batch=(12,), **KEPT | {"memory": (16e9,)}),
    scale=Scale(
        cases(worlds=(1,), ranks=(720,), node=(8,), batch=(2880,), **SMALL), "the third power of the number of ranks"
    ),
    judge=as_short_as_can_be,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: max(200 * case.ranks, 6 * case.ranks**2),
            optimum=lambda case: 20 * case.ranks,
            why="d follows from p and t: a loop for each of these two is enough",
        ),
    ),
    hints=(
        "Three numbers whose product is n: how many of them are free? Write a function for the time of a split and "
        "one for whether it fits, and take the minimum.",
        "Who shares what? p and t share weights and work, d shares windows. So p t divides state, activations and "
        "seconds, d divides the batch.",
        "step = (batch // d + p - 1) * (seconds / (p * t) + 2 * (t - 1) / t * stream / p / link) + "
        "2 * (d - 1) / d * state / 8 / (p * t) / link, and in flight are min(p, batch // d) windows.",
    ),
    wrong=(
        Wrong(
            "the bubble is forgotten",
            diagnosis=r"batch=32.*\(32, 1, 2\) takes 13\.06 s, and 8\.348 s is possible",
            edits=(("(batch // d + p - 1)", "(batch // d)"),),
        ),
        Wrong(
            "memory is no matter",
            diagnosis=r"batch=512.*\(8, 2, 4\) keeps 88\.75 GB on a rank of 80",
            edits=((" and fits(p, d, t)", ""),),
        ),
        Wrong(
            "one window in flight",
            diagnosis=r"memory=2\.4e\+10.*\(8, 4, 2\) keeps 29\.88 GB on a rank of 24",
            edits=(("min(p, batch // d) * activations", "activations"),),
        ),
        Wrong(
            "p windows in flight, where there are fewer",
            diagnosis=r"node=2, batch=2.*\(2, 1, 4\) takes 0\.36 s, and 0\.3083 s is possible",
            edits=(("min(p, batch // d) * activations", "p * activations"),),
        ),
        Wrong(
            "a bit more than there is room for",
            diagnosis=r"memory=2\.39e\+10.*\(2, 2, 4\) keeps 24 GB on a rank of 23\.9",
            edits=(("<= memory", "<= memory * 1.02"),),
        ),
        Wrong(
            "just enough room is too little",
            diagnosis=r"ranks=8, node=1, batch=8.*\(1, 1, 8\) takes 1\.6 s, and 1\.08 s is possible",
            edits=(("<= memory", "< memory"),),
        ),
        Wrong(
            "NVLink, whatever the links are",
            diagnosis=r"intra=1\.5e\+11.*\(1, 4, 2\) takes 4\.173 s, and 4\.09 s is possible",
            edits=(("intra if reach", "300e9 if reach"),),
        ),
        Wrong(
            "InfiniBand HDR, whatever the links are",
            diagnosis=r"inter=1\.25e\+10.*\(1, 8, 1\) takes 4\.12 s, and 4\.09 s is possible",
            edits=(("else inter for", "else 25e9 for"),),
        ),
        Wrong(
            "all windows in flight, as with GPipe",
            diagnosis=r"empty sequence[\s\S]*right with batch=32, wrong with",
            edits=(("min(p, batch // d) * activations", "batch // d * activations"),),
        ),
        Wrong(
            "links are all alike",
            diagnosis=r"node=8, batch=32.*\(4, 1, 16\) takes 14\.24 s, and 8\.348 s is possible",
            edits=(("intra if reach <= node else inter", "intra if reach > 0 else inter"),),
        ),
        Wrong(
            "ranks that share matrices communicate for free",
            diagnosis=r"batch=32.*\(1, 1, 64\) takes 33\.56 s, and 8\.348 s is possible",
            edits=((" + 2 * (t - 1) / t * stream / p / tensor_link", " + 0 * stream / tensor_link"),),
        ),
        Wrong(
            "replicas are free",
            diagnosis=r"batch=64.*\(1, 16, 2\) takes 1\.427 s, and 1\.14 s is possible",
            edits=((" + 2 * (d - 1) / d * gradients / data_link", " + 0 * gradients / data_link"),),
        ),
        Wrong(
            "each replica reads the whole batch",
            diagnosis=r"batch=64.*\(8, 1, 4\) takes 1\.154 s, and 1\.14 s is possible",
            edits=(("(batch // d + p - 1)", "(batch + p - 1)"),),
        ),
        Wrong(
            "the longest step",
            diagnosis=r"batch=32.*\(1, 1, 64\) takes 33\.56 s, and 8\.348 s is possible",
            edits=(("return min(found", "return max(found"),),
        ),
        Wrong(
            "three loops up to n",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*d follows from p and t",
            edits=(
                (
                    "            for t in range(1, ranks // p + 1):\n                d = ranks // p // t\n"
                    "                if ranks == p * d * t and batch % d == 0 and fits(p, d, t):\n"
                    "                    found.append((p, d, t))",
                    "            for t in range(1, ranks + 1):\n                for d in range(1, ranks + 1):\n"
                    "                    if ranks == p * d * t and batch % d == 0 and fits(p, d, t):\n"
                    "                        found.append((p, d, t))",
                ),
            ),
        ),
        Wrong(
            "every triple of numbers up to n",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*d follows from p and t",
            edits=(
                (
                    "        if ranks % p == 0 and layers % p == 0:\n"
                    "            for t in range(1, ranks // p + 1):\n                d = ranks // p // t\n"
                    "                if ranks == p * d * t and batch % d == 0 and fits(p, d, t):\n"
                    "                    found.append((p, d, t))",
                    "        for d in range(1, ranks + 1):\n            for t in range(1, ranks + 1):\n"
                    "                if ranks == p * d * t and layers % p == batch % d == 0 and fits(p, d, t):\n"
                    "                    found.append((p, d, t))",
                ),
            ),
        ),
    ),
)
