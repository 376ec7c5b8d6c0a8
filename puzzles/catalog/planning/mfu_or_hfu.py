"""planning.mfu_or_hfu: what a run reaches of the peak, without and with what it computes again."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn, magnitudes
from reference.planning.answers.utilisation import mfu_and_hfu

KINDS = ("none", "selective", "full")


def layer_after_layer(case, inputs):
    """FLOPs of a token, added up over the layers: forward, what is made again, and backward as two forwards."""
    needed = made = 0
    for _layer in range(case.layers):
        weighted, scored = case.layer_weights + case.layer_weights, 2 * 2 * case.attended * case.sequence
        for _pass in ("forward", "backward for inputs", "backward for weights"):
            needed += weighted + scored
        made += {"none": 0, "selective": scored, "full": weighted + scored}[case.recompute]
    needed += 3 * (case.head_weights + case.head_weights)
    at_peak = case.gpus * case.peak / case.tokens_per_second
    return [(needed / at_peak, (needed + made) / at_peak)]


def layers_together(case, inputs):
    """The same, where there are too many layers."""
    weights = case.layers * case.layer_weights
    pairs = case.layers * case.attended * case.sequence
    extra = {"none": 0, "selective": 4 * pairs, "full": 2 * weights + 4 * pairs}[case.recompute]
    needed = 6 * (weights + case.head_weights) + 12 * pairs
    return [tuple(each * case.tokens_per_second / case.gpus / case.peak for each in (needed, needed + extra))]


def run(layers, width, gpus, seconds, batch, vocabulary=51_200, sequence=2048, peak=312e12):
    """A GPT of 12 D² weights a layer, and a measured step."""
    return {
        "layers": (layers,),
        "layer_weights": (12 * width**2,),
        "head_weights": (vocabulary * width,),
        "attended": (width,),
        "sequence": (sequence,),
        "tokens_per_second": (batch * sequence / seconds,),
        "gpus": (gpus,),
        "peak": (peak,),
    }


GPT_39B = run(48, 8192, 512, seconds=13.8755, batch=1536)  # vTrain (MICRO 2024), measured on A100
GPT_NARROW = run(24, 1024, 8, seconds=0.5, batch=64)
LONG = run(32, 4096, 8, seconds=60.0, batch=8, vocabulary=128_256, sequence=131_072, peak=989e12)

PUZZLE = Puzzle(
    name="planning.mfu_or_hfu",
    title="MFU or HFU",
    statement="""
        A run trains so many tokens in a second. How good is that? Two numbers are published, and they are mixed up
        again and again.

        MFU   model FLOPs utilization: what training needs, over what the GPUs could do at their peak.
        HFU   hardware FLOPs utilization: what was computed, over the same. It counts what is computed again, too.

        A token needs 2 FLOPs for each weight that it meets, and in each layer 4 A S for its attention: scores, and what
        they weigh, of all S tokens of its window. That is forward; backward is twice as much. The head multiplies as
        well. Recomputation repeats a part of forward:

        none        nothing.
        selective   of each layer the attention: its 4 A S, and none of its weights.
        full        all layers, whole; not the head.

            2 layers of 100 weights, a head of 50, A = 5, S = 10
            forward 2 (200 + 200) + 100 = 900, so 2700 in all
            8 tokens a second on 2 GPUs of 20,000 FLOP/s
            MFU 8 · 2700 / 40,000 = 0.54
            with full recomputation 800 more: HFU 0.7

        Args:
            layers: L.
            layer_weights: of a layer, all of which a token meets.
            head_weights: of the head.
            attended: A, width of all heads of queries together.
            sequence: S.
            tokens_per_second: of all GPUs together.
            gpus: how many there are.
            peak: FLOP per second of one.
            recompute: "none", "selective" or "full".

        Returns: (MFU, HFU), as parts of 1.

        Budget: a formula for each.
        """,
    function=mfu_and_hfu,
    cases=cases(worlds=(1,), **GPT_39B, recompute=("full", "selective", "none"))
    + cases(worlds=(1,), **GPT_NARROW, recompute=("full", "selective"))
    + cases(worlds=(1,), **LONG, recompute=KINDS),
    drawn=tuple(
        drawn(
            worlds=(1,),
            layers=range(1, 130),
            layer_weights=range(10**6, 10**9, 777_777),
            head_weights=range(10**6, 10**8, 777_777),
            attended=range(512, 20_000, 512),
            sequence=(1024, 4096, 32_768),
            tokens_per_second=magnitudes(3, 6),
            gpus=range(1, 2000),
            peak=(312e12, 989e12),
            recompute=(kind,),
        )
        for kind in KINDS
    ),
    scale=Scale(
        cases(worlds=(1,), **{**GPT_39B, "layers": (10**13,)}, recompute=("full",)),
        "the number of layers",
        oracle=layers_together,
    ),
    oracle=layer_after_layer,
    tolerance=1e-9,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 30,
            optimum=lambda case: 2,
            why="all layers are alike: count one, and multiply",
        ),
    ),
    hints=(
        "How many FLOPs does a token need in forward: for weights, and for attention? Which of these does each kind of "
        "recomputation repeat?",
        "Forward: L (2 layer_weights + 4 A S) + 2 head_weights. A step needs three times that. Full recomputation "
        "repeats the first part once, selective repeats L · 4 A S.",
        "MFU = 3 · forward · tokens_per_second / (gpus · peak), and HFU = (3 · forward + repeated) · tokens_per_second "
        "/ (gpus · peak).",
    ),
    wrong=(
        Wrong(
            "one of them is called the other",
            diagnosis=r"result\[0\]: expected 0\.3464\d+, got 0\.4\d+",
            edits=(
                (
                    "needed * of_peak, (needed + layers * again) * of_peak",
                    "(needed + layers * again) * of_peak, needed * of_peak",
                ),
            ),
        ),
        Wrong(
            "what is computed again is work as well",
            diagnosis=r"result\[0\]: expected 0\.3464\d+, got 0\.4\d+",
            edits=(("return needed * of_peak", "return (needed + layers * again) * of_peak"),),
        ),
        Wrong(
            "recomputation is a forward more, whatever is made again",
            diagnosis=r"recompute=selective.*result\[1\]: expected",
            edits=(('"selective": scores', '"selective": layer'),),
        ),
        Wrong(
            "HFU is four thirds of MFU: the head is made again, too",
            diagnosis=r"recompute=full.*result\[1\]: expected [\d.]+, got [\d.]+",
            edits=(
                (
                    "(needed + layers * again) * of_peak",
                    "needed * of_peak * (4 / 3 if again == layer else 1 + layers * again / needed)",
                ),
            ),
        ),
        Wrong(
            "nothing is computed again",
            diagnosis=r"result\[1\]: expected [\d.]+, got [\d.]+",
            edits=(("(needed + layers * again)", "needed"),),
        ),
        Wrong(
            "full recomputation leaves attention out",
            diagnosis=r"recompute=full.*result\[1\]: expected [\d.]+, got [\d.]+",
            edits=(('"full": layer}', '"full": layer - scores}'),),
        ),
        Wrong(
            "what is made again has a backward of its own",
            diagnosis=r"result\[1\]: expected [\d.]+, got [\d.]+",
            edits=(("layers * again) *", "3 * layers * again) *"),),
        ),
        Wrong(
            "6 for each weight, and attention is free",
            diagnosis=r"result\[0\]: expected 0\.3464\d+, got 0\.332\d+",
            edits=(("layers * layer + 2", "layers * 2 * layer_weights + 2"),),
        ),
        Wrong(
            "the head is looked up",
            diagnosis=r"result\[0\]: expected [\d.]+, got [\d.]+",
            edits=((" + 2 * head_weights", ""),),
        ),
        Wrong(
            "a mask saves half of attention",
            diagnosis=r"result\[0\]: expected [\d.]+, got [\d.]+",
            edits=(("scores = 4 *", "scores = 2 *"),),
        ),
        Wrong(
            "the peak of one GPU",
            diagnosis=r"result\[0\]: expected 0\.3464\d+, got 177\.\d+",
            edits=(("(gpus * peak)", "peak"),),
        ),
        Wrong(
            "in per cent",
            diagnosis=r"off by a factor of 100 everywhere",
            edits=(("tokens_per_second / (", "100 * tokens_per_second / ("),),
        ),
        Wrong(
            "the peak of an A100, whatever the GPU is",
            diagnosis=r"sequence=131072.*expected [\d.]+, got [\d.]+",
            edits=(("(gpus * peak)", "(gpus * 312e12)"),),
        ),
        Wrong(
            "layer after layer",
            diagnosis=r"right, but it runs [\d,]+ lines where 30 must do.*\n.*count one, and multiply",
            body="""
                needed = 6 * head_weights
                again = 0
                for layer in range(layers):
                    scores = 4 * attended * sequence
                    needed += 6 * layer_weights + 3 * scores
                    if recompute == "full":
                        again += 2 * layer_weights + scores
                    elif recompute == "selective":
                        again += scores
                of_peak = tokens_per_second / (gpus * peak)
                return needed * of_peak, (needed + again) * of_peak
                """,
        ),
    ),
)
