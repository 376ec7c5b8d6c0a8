"""planning.does_it_fit: one change, the cheapest of those with which it does."""

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.planning.answers.fitting import cheapest_change

ROUNDING = 1e-9  # relative: changes whose steps differ by less cost as much
CHANGES = ("nothing", "zero1", "recompute", "fsdp", "tp", "pp")


def bytes_of(case, change):
    """What the fullest rank holds, part by part."""
    share = {"tp": case.node, "pp": case.stages}.get(change, 1)
    mine = case.layers * case.weights / share
    sharded = {"zero1": ("state",), "fsdp": ("weights", "gradients", "state")}.get(change, ())
    state = sum(
        size * mine / (case.ranks if part in sharded else 1)
        for part, size in (("weights", 2), ("gradients", 4), ("state", 12))
    )
    layers, in_flight = (case.layers / share, share) if change == "pp" else (case.layers, 1)
    of_layer = case.tokens * case.kept / (share if change == "tp" else 1)
    activations = in_flight * layers * of_layer
    if change == "recompute":
        activations = of_layer + case.layers * case.tokens * case.inputs
    gathered = (2 * 2 + 4) * case.weights if change == "fsdp" else 0
    return state + activations + gathered


def seconds_of(case, change):
    """How long its step takes, part by part."""
    share = {"tp": case.node, "pp": case.stages}.get(change, 1)
    numel, m = case.layers * case.weights, case.micro_batches
    forward = 2 * numel * case.tokens / case.flops
    step = m * (3 + (change == "recompute")) * forward
    if change == "fsdp":
        ring = 2 * numel * (1 - 1 / case.ranks) / case.inter
        return step + m * sum(ring for _pass in ("forward", "backward", "gradients"))
    if change == "pp":
        step += (case.stages - 1) * 3 * forward / case.stages
    if change == "tp":
        half = 2 * case.tokens * case.width * (1 - 1 / case.node) / case.intra
        step += m * case.node * case.layers * sum(2 * half for _all_reduce in range(4))
    replicas = case.ranks / share
    return step + 2 * (1 - 1 / replicas) * 2 * numel / share / case.inter


def as_cheap_as_can_be(case, inputs, outputs, trace):
    """The change is one, it fits, and no other that fits takes less; None where none fits."""
    change = outputs[0]["returns"]
    fitting = {each: seconds_of(case, each) for each in CHANGES if bytes_of(case, each) <= case.memory}
    if change is None or not fitting:
        said = f"None, and {min(fitting, key=fitting.get)!r} fits" if fitting else f"{change!r}, and nothing fits"
        return [Claim(change is None and not fitting, said)]
    if not isinstance(change, str) or change not in CHANGES:
        return [Claim(False, f"{change!r} is none of {', '.join(map(repr, CHANGES))}")]
    needed, best = bytes_of(case, change), min(fitting.values())
    if change not in fitting:
        return [Claim(False, f"{change!r} needs {needed / 1e9:.4g} GB of a rank that has {case.memory / 1e9:.4g}")]
    said = f"with {change!r} a step takes {fitting[change]:.4g} s, and {best:.4g} s is possible"
    return [Claim(fitting[change] <= best * (1 + ROUNDING), said)]


H100 = {"memory": (80e9,), "flops": (495e12,), "intra": (450e9,), "inter": (50e9,), "ranks": (64,), "node": (8,)}
FEW = {  # so few that bytes can be counted by hand; tensor-parallel ranks have the slowest of links
    "layers": (4,),
    "weights": (1000,),
    "width": (9,),
    "tokens": (5,),
    "micro_batches": (3,),
    "kept": (4000,),
    "inputs": (8,),
    "ranks": (16,),
    "node": (4,),
    "stages": (2,),
    "flops": (1e6,),
    "intra": (1e3,),
    "inter": (1e5,),
}
GPT_3B = {"layers": (32,), "weights": (12 * 2560**2,), "width": (2560,)}
GPT_7B = {"layers": (32,), "weights": (12 * 4096**2,), "width": (4096,)}
GPT_13B = {"layers": (40,), "weights": (12 * 5120**2,), "width": (5120,)}


def window(width, tokens=2048, micro_batches=(8,)):
    """Activations of a GPT: 34 bytes for each number of a token, and 2 of a layer's input."""
    return {"tokens": (tokens,), "kept": (34 * width,), "inputs": (2 * width,), "micro_batches": micro_batches}


def parts_of_what_it_needs(*parts):
    """Memory to draw from: parts of what a replica holds."""

    def memory(so_far):
        whole = so_far.layers * (18 * so_far.weights + so_far.tokens * so_far.kept)
        return [part * whole for part in parts]

    return memory


PUZZLE = Puzzle(
    name="planning.does_it_fit",
    title="The cheapest change that makes it fit",
    statement="""
        n ranks train replicas of a model: each has everything, and reads m micro-batches of T tokens in a step. It does
        not fit, or perhaps it does. You may make one change. Which of those that fit costs least time?

        A model has N = L w parameters, each with 2 bytes, 4 of its gradient and 12 of the optimizer. Of a micro-batch,
        T L `kept` bytes of activations are held. A step computes m 6 N T FLOPs, and all-reduces 2 N bytes of gradients
        at its end. Among k ranks, a gather or a scatter of s bytes takes (k-1)/k s / bandwidth, an all-reduce twice
        that. Nothing is hidden.

        nothing     as it is.
        zero1       the optimizer's 12 bytes are shared out over n ranks. A scatter and a gather take as long as the
                    all-reduce did.
        recompute   layers keep their input, T `inputs` bytes each; one layer at a time is made again, with all it
                    keeps. A step computes m 8 N T.
        fsdp        all 18 bytes are shared out over n ranks; besides, 8 bytes for each parameter of one layer are there
                    for a while. Instead of the all-reduce, for each micro-batch 2 N bytes are gathered twice and
                    scattered once.
        tp          t ranks of a node share everything: 18 N and activations are divided by t. Together they read t m
                    micro-batches; each takes a t-th of the time, so computing takes as long as before. For each of
                    them, in each layer, 2 T D bytes are all-reduced 4 times among t ranks within the node. Gradients,
                    2 N / t bytes, are all-reduced among n / t.
        pp          p ranks have L / p layers each, and read p m micro-batches together. 18 N is divided by p; p
                    micro-batches are in flight on the first rank. A bubble makes computing (p-1) / (p m) longer.
                    Gradients, 2 N / p bytes, are all-reduced among n / p.

        Gradients and weights travel between nodes at `inter`, tp's activations within a node at `intra`.

        Args:
            layers, weights, width: L; w, parameters of a layer; D.
            tokens, micro_batches: T, m.
            kept, inputs: bytes of a token in a layer, and in its input.
            ranks, node, stages: n, t, p.
            memory: bytes of a rank. It may be full.
            flops: that a rank computes in a second.
            intra, inter: bytes per second within a node and between nodes.

        Returns: the name of the change; None if none fits. Where two are equally good, either will do.

        Budget: a formula for each.
        """,
    function=cheapest_change,
    cases=cases(worlds=(1,), **GPT_3B, **window(2560), **H100, stages=(4,))
    + cases(worlds=(1,), **GPT_7B, **window(4096, micro_batches=(8, 1)), **H100, stages=(4,))
    + cases(worlds=(1,), **GPT_7B, **window(4096, 1024, (16,)), **H100, stages=(2, 8))
    + cases(worlds=(1,), **GPT_7B, **window(4096, 512, (1, 64)), **H100 | {"memory": (55e9,)}, stages=(4,))
    + cases(worlds=(1,), **GPT_13B, **window(5120, 4096, (4, 32)), **H100 | {"memory": (80e9, 40e9)}, stages=(8,))
    + cases(worlds=(1,), **GPT_13B, **window(5120, 512, (4, 64)), **H100 | {"inter": (3e9,)}, stages=(8,))
    + cases(worlds=(1,), **GPT_3B, **window(2560, 8192, (2,)), **H100 | {"memory": (70e9, 20e9, 5e9)}, stages=(4,))
    + cases(worlds=(1,), **GPT_3B, **window(2560, 32_768, (1,)), **H100, stages=(4,))
    + cases(worlds=(1,), **GPT_7B, **window(4096, 32_768, (1, 8)), **H100 | {"memory": (141e9,)}, stages=(4,))
    + cases(worlds=(1,), **FEW, memory=(152_000.0, 151_999.0, 107_000.0, 106_999.0, 92_160.0, 92_159.0, 30_000.0)),
    drawn=tuple(
        drawn(
            worlds=(1,),
            layers=(16, 32, 64),
            weights=(10**6, 3 * 10**7, 2 * 10**8),
            width=(1024, 4096, 8192),
            tokens=(256, 2048, 8192),
            micro_batches=(1, 2, 8, 64),
            kept=(20_000, 150_000),
            inputs=(2048, 8192),
            ranks=(16, 64, 512),
            node=(4, 8),
            stages=(2, 4, 16),
            memory=parts_of_what_it_needs(*parts),
            flops=(150e12, 495e12),
            intra=(300e9, 450e9),
            inter=(10e9, 50e9),
        )
        for parts in ((0.3, 0.5), (0.6, 0.8, 0.95), (0.13, 0.2))
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            layers=(2**40,),
            weights=(1000,),
            width=(9,),
            tokens=(2**30,),
            micro_batches=(2**40,),
            kept=(400,),
            inputs=(8,),
            ranks=(2**30,),
            node=(2**10,),
            stages=(2**20,),
            memory=(1e24,),
            flops=(1e6,),
            intra=(1e4,),
            inter=(1e5,),
        ),
        "ranks, layers or micro-batches",
    ),
    judge=as_cheap_as_can_be,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 90,
            optimum=lambda case: 25,
            why="layers, ranks and micro-batches are all alike: write a formula for each change",
        ),
    ),
    hints=(
        "Write down two numbers for each change: bytes of a rank, and seconds of a step. Which of the two does zero1 "
        "leave as it was, and which of a pipeline's bytes stay as they were?",
        "A pipeline's first rank holds p micro-batches of L / p layers: activations as before. Gradients of tp and pp "
        "are fewer, and among fewer ranks: 2 (k-1)/k · 2 N / share / inter, with k = n / share.",
        "Make a dictionary from names to (bytes, seconds), keep those with bytes <= memory, and take `min(possible, "
        "key=..., default=None)`. fsdp: 18 N / n + L T kept + 8 w bytes, m 6 N T / flops + 3 m (n-1)/n 2 N / inter.",
    ),
    wrong=(
        Wrong(
            "the first that fits, in the order in which people try",
            diagnosis=r"a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(
                (
                    "min(possible, key=lambda name: bytes_and_seconds[name][1], default=None)",
                    "next(iter(possible), None)",
                ),
            ),
        ),
        Wrong(
            "whatever needs least memory",
            diagnosis=r"a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("bytes_and_seconds[name][1], default", "bytes_and_seconds[name][0], default"),),
        ),
        Wrong(
            "memory does not matter",
            diagnosis=r"needs [\d.]+ GB of a rank that has [\d.]+",
            edits=(("if needed <= memory", "if needed"),),
        ),
        Wrong(
            "a pipeline divides activations as well",
            diagnosis=r"'pp' needs [\d.]+ GB of a rank that has [\d.]+",
            edits=(('"pp": (18 * numel / p + activations', '"pp": ((18 * numel + activations) / p'),),
        ),
        Wrong(
            "zero1 shares gradients, too",
            diagnosis=r"'zero1' needs [\d.e-]+ GB of a rank that has [\d.e-]+",
            edits=(("6 * numel + 12 * numel / ranks", "2 * numel + 16 * numel / ranks"),),
        ),
        Wrong(
            "fsdp shares activations",
            diagnosis=r"'fsdp'( needs [\d.e-]+ GB of a rank that has [\d.e-]+|, and nothing fits)",
            edits=(("18 * numel / ranks + activations", "(18 * numel + activations) / ranks"),),
        ),
        Wrong(
            "what is made again takes no room",
            diagnosis=r"'recompute' needs [\d.e-]+ GB of a rank that has [\d.e-]+",
            edits=(("layers * tokens * inputs + tokens * kept", "layers * tokens * inputs"),),
        ),
        Wrong(
            "recomputation is free",
            diagnosis=r"with 'recompute' a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("computing * 4 / 3", "computing"),),
        ),
        Wrong(
            "recomputation doubles a step",
            diagnosis=r"a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("computing * 4 / 3", "computing * 2"),),
        ),
        Wrong(
            "fsdp gathers once a step, whatever the number of micro-batches",
            diagnosis=r"with 'fsdp' a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("3 * m * pass_over_weights", "3 * pass_over_weights"),),
        ),
        Wrong(
            "tensor-parallel ranks read as much as one did",
            diagnosis=r"with 'tp' a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("t * m * layers * 4 * stream", "m * layers * 4 * stream"),),
        ),
        Wrong(
            "tensor-parallel ranks talk between nodes",
            diagnosis=r"a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("tokens * width / intra", "tokens * width / inter"),),
        ),
        Wrong(
            "no bubble",
            diagnosis=r"with 'pp' a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("computing * (1 + (p - 1) / (p * m))", "computing"),),
        ),
        Wrong(
            "a bubble as if one rank's micro-batches were all",
            diagnosis=r"a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("(p - 1) / (p * m)", "(p - 1) / m"),),
        ),
        Wrong(
            "a full rank does not fit",
            diagnosis=r"memory=(107000|92160).*a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("if needed <= memory", "if needed < memory"),),
        ),
        Wrong(
            "something always fits",
            diagnosis=r"'fsdp', and nothing fits",
            edits=(("default=None)", 'default="fsdp")'),),
        ),
        Wrong(
            "micro-batch after micro-batch, and layer after layer",
            diagnosis=r"right, but it runs [\d,]+ lines where 90 must do.*\n.*a formula for each change",
            edits=(
                (
                    "    computing = m * 6 * numel * tokens / flops\n",
                    "    computing = 0\n    for _micro_batch in range(m):\n        for _layer in range(layers):\n"
                    "            computing += 6 * weights * tokens / flops\n",
                ),
            ),
        ),
    ),
)
