"""planning.flops_of_a_step: what training needs, however it is done."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.planning.answers.flops import flops_of_a_step


def products_of_a_layer(case, layer):
    """(rows, inner, columns) of each product of a window in forward, without attention's own."""
    s, d = case.sequence, case.width
    yield s, d, case.heads * case.head_dim
    for _keys_and_values in range(2):
        yield s, d, case.kv_heads * case.head_dim
    yield s, case.heads * case.head_dim, d
    mixed = case.experts > 0 and layer >= case.dense_layers
    for _feed_forward in range(case.top_k + case.shared_experts if mixed else 1):
        features = case.expert_hidden if mixed else case.hidden
        for _into in ("up", "gate") if case.gated else ("up",):
            yield s, d, features
        yield s, features, d


def product_after_product(case, inputs):
    """Forward of a window layer by layer, then two products of the same size for each, and all windows."""
    needed = 0
    for layer in range(case.layers):
        scores = [(case.sequence, case.head_dim, case.sequence), (case.sequence, case.sequence, case.head_dim)]
        for rows, inner, columns in [*products_of_a_layer(case, layer), *scores * case.heads]:
            needed += 2 * rows * inner * columns
    needed += 2 * case.sequence * case.width * case.vocabulary
    return [case.batch * (needed + 2 * needed)]


def two_kinds_of_layer(case, inputs):
    """The same, where there are too many layers and experts to go through: weights that a token meets."""
    matrices, met = 2 + case.gated, case.top_k + case.shared_experts
    around = case.width * case.head_dim * (case.heads + 2 * case.kv_heads + case.heads)
    dense, mixed = (matrices * case.width * each for each in (case.hidden, met * case.expert_hidden))
    plain_layers = case.dense_layers if case.experts else case.layers
    weights = case.layers * around + plain_layers * dense + (case.layers - plain_layers) * mixed
    weights += case.width * case.vocabulary
    attention = 12 * case.layers * case.heads * case.head_dim * case.sequence**2
    return [case.batch * (6 * weights * case.sequence + attention)]


NONE = {"experts": (0,), "top_k": (0,), "expert_hidden": (0,), "shared_experts": (0,), "dense_layers": (0,)}
SIZES = ("layers", "width", "heads", "kv_heads", "head_dim", "hidden", "gated", "vocabulary")


def model(*sizes):
    """The sizes of a model in order, each as the only choice."""
    return {name: (size,) for name, size in zip(SIZES, sizes, strict=True)}


GPT3 = model(96, 12_288, 96, 96, 128, 49_152, False, 51_200)  # Brown et al. 2020, table 2.1
LLAMA_8B = model(32, 4096, 32, 8, 128, 14_336, True, 128_256)  # Grattafiori et al. 2024, table 3
GEMMA_7B = model(28, 3072, 16, 16, 256, 24_576, True, 256_000)  # heads together are wider than the stream
MIXTRAL = model(32, 4096, 32, 8, 128, 14_336, True, 32_000)  # Jiang et al. 2024, table 1
SHARED = model(28, 2048, 16, 16, 128, 10_944, True, 102_400)  # DeepSeekMoE 16B, Dai et al. 2024, table 2

PUZZLE = Puzzle(
    name="planning.flops_of_a_step",
    title="FLOPs of a step",
    statement="""
        How much must be computed for one step of training? It follows from the sizes of the model, and every estimate
        of time begins with it. A product [m, k] x [k, n] takes 2 m k n FLOPs: each number is multiplied and
        added. What is no product of matrices is not counted.

        attention      queries are made by a matrix [D, H d], keys and values by one of [D, K d] each, and the output
                       comes through one of [H d, D]. Between them, each head of queries multiplies its [S, d] with
                       keys [d, S], and the scores [S, S] with values [S, d]. All pairs count, also those that a causal
                       mask hides: so do most papers, and so numbers can be compared.
        feed-forward   up [D, F] and down [F, D]; one with a gate has another [D, F].
        experts        layers from `dense_layers` on have experts instead, if the model has any: a token meets k of them
                       and all shared ones. Each is a feed-forward of `expert_hidden` features. The router is small,
                       and left out.
        head           [D, V]. The table of tokens is looked up, and multiplies nothing.
        backward       two products for each of forward, of the same size: for the gradient of the input and for that
                       of the weight; or of both factors.

        Args:
            layers: L.
            width: D, of the stream.
            heads, kv_heads, head_dim: H heads of queries, K of keys and values, d numbers each.
            hidden: F.
            gated: whether feed-forwards have a gate, those of experts, too.
            vocabulary: V.
            sequence: S, tokens of a window.
            batch: windows of a step.
            experts: of a layer; 0 if there are none, and then the other four are 0 and mean nothing.
            top_k: k.
            expert_hidden: features of an expert.
            shared_experts: experts that all tokens meet.
            dense_layers: the first so many layers have no experts.

        Returns: FLOPs of forward and backward of the whole batch, an int.

        Budget: a formula.
        """,
    function=flops_of_a_step,
    cases=cases(worlds=(1,), **GPT3, sequence=(2048,), batch=(1, 1536), **NONE)
    + cases(worlds=(1,), **LLAMA_8B, sequence=(8192,), batch=(128,), **NONE)
    + cases(worlds=(1,), **GEMMA_7B, sequence=(4096,), batch=(3,), **NONE)
    + cases(
        worlds=(1,),
        **MIXTRAL,
        sequence=(4096,),
        batch=(256,),
        experts=(8,),
        top_k=(2,),
        expert_hidden=(14_336,),
        shared_experts=(0,),
        dense_layers=(0,),
    )
    + cases(
        worlds=(1,),
        **SHARED,
        sequence=(4096,),
        batch=(16,),
        experts=(64,),
        top_k=(6,),
        expert_hidden=(1408,),
        shared_experts=(2,),
        dense_layers=(1,),
    ),
    drawn=tuple(
        drawn(
            worlds=(1,),
            layers=range(2, 30),
            width=range(8, 200, 8),
            kv_heads=(1, 2, 4),
            heads=lambda so_far: [so_far.kv_heads * each for each in (1, 2, 3)],
            head_dim=range(2, 40, 2),
            hidden=range(9, 300),
            gated=(True, False),
            vocabulary=range(50, 999),
            sequence=range(1, 90),
            batch=range(1, 9),
            experts=experts,
            top_k=lambda so_far: range(1, so_far.experts + 1) if so_far.experts else (0,),
            expert_hidden=lambda so_far: range(5, 90) if so_far.experts else (0,),
            shared_experts=lambda so_far: range(3) if so_far.experts else (0,),
            dense_layers=lambda so_far: range(so_far.layers) if so_far.experts else (0,),
        )
        for experts in ((0,), (2, 5, 8))
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            **{**SHARED, "layers": (10**15,)},
            sequence=(10**9,),
            batch=(10**9,),
            experts=(10**9,),
            top_k=(10**6,),
            expert_hidden=(1408,),
            shared_experts=(10**6,),
            dense_layers=(10**12,),
        ),
        "layers, experts, tokens or windows",
        oracle=two_kinds_of_layer,
    ),
    oracle=product_after_product,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 30,
            optimum=lambda case: 2,
            why="layers are of two kinds, and all of a kind are alike: count them, and multiply",
        ),
    ),
    hints=(
        "How many weights does a token meet on its path through the model, each of which is multiplied and added once? "
        "And how many FLOPs does its attention take, that no weight is in?",
        "Weights of attention in a layer: 2 D (H + K) d. Of a feed-forward: 2 D F, or 3 D F with a gate; a layer with "
        "experts has k + shared of them. The head: D V. Attention of a token: 2 S d for its scores in each head, and "
        "as many for what they weigh.",
        "3 · (2 · weights + layers · 4 S H d) · batch · S, where weights = L · 2 D (H + K) d + dense layers · (2 or 3) "
        "D F + layers with experts · (2 or 3) D expert_hidden (k + shared) + D V.",
    ),
    wrong=(
        Wrong(
            "6 for each parameter, those of the table included",
            diagnosis=r"batch=1, experts=0.*expected \d+, got \d+",
            edits=(("vocabulary * width", "2 * vocabulary * width"),),
        ),
        Wrong(
            "the head is looked up as the table is",
            diagnosis=r"batch=1, experts=0.*expected \d+, got \d+",
            edits=((" + vocabulary * width", ""),),
        ),
        Wrong(
            "6 for each parameter, and attention's scores are free",
            diagnosis=r"batch=1, experts=0.*expected \d+, got \d+",
            edits=(("pairs = layers * 4", "pairs = 0 * layers * 4"),),
        ),
        Wrong(
            "the mask saves half of the scores",
            diagnosis=r"batch=1, experts=0.*expected \d+, got \d+",
            edits=(("pairs = layers * 4", "pairs = layers * 2"),),
        ),
        Wrong(
            "tokens look at those of other windows, too",
            diagnosis=r"right with batch=1, wrong with batch=\d|batch=1536.*expected \d+, got \d+",
            edits=(("4 * sequence * heads", "4 * sequence * batch * heads"),),
        ),
        Wrong(
            "backward is one product for each of forward",
            diagnosis=r"off by a factor of 0\.6667|expected \d+, got \d+",
            edits=(("return 3 * (", "return 2 * ("),),
        ),
        Wrong(
            "a number is multiplied and added in one",
            diagnosis=r"off by a factor of 0\.5|expected \d+, got \d+",
            edits=(
                ("return 3 * (2 * met + pairs) * batch * sequence", "return 3 * (met + pairs // 2) * batch * sequence"),
            ),
        ),
        Wrong(
            "what is computed again counts: 8 for each parameter",
            diagnosis=r"off by a factor of 1\.333|expected \d+, got \d+",
            edits=(("return 3 * (", "return 4 * ("),),
        ),
        Wrong(
            "keys have as many heads as queries have",
            diagnosis=r"kv_heads=8.*expected \d+, got \d+",
            edits=(("(heads + kv_heads)", "2 * heads"),),
        ),
        Wrong(
            "fewer heads of keys make fewer scores",
            diagnosis=r"kv_heads=8.*expected \d+, got \d+",
            edits=(("sequence * heads * head_dim", "sequence * kv_heads * head_dim"),),
        ),
        Wrong(
            "no feed-forward has a gate",
            diagnosis=r"gated=True.*expected \d+, got \d+",
            edits=(("(3 if gated else 2)", "2"),),
        ),
        Wrong(
            "heads are together as wide as the stream",
            diagnosis=r"head_dim=256.*expected \d+, got \d+",
            edits=(
                (
                    "    attention = 2 * width * (heads",
                    "    head_dim = width // heads\n    attention = 2 * width * (heads",
                ),
            ),
        ),
        Wrong(
            "all experts compute for each token: 6 for each parameter",
            diagnosis=r"experts=8, top_k=2.*expected \d+, got \d+",
            edits=(("(top_k + shared_experts)", "(experts + shared_experts)"),),
        ),
        Wrong(
            "a token meets one expert",
            diagnosis=r"experts=8, top_k=2.*expected \d+, got \d+",
            edits=(("(top_k + shared_experts)", "(1 + shared_experts)"),),
        ),
        Wrong(
            "shared experts are among the k",
            diagnosis=r"shared_experts=2.*expected \d+, got \d+",
            edits=(("(top_k + shared_experts)", "top_k"),),
        ),
        Wrong(
            "all layers have experts",
            diagnosis=r"dense_layers=1.*expected \d+, got \d+",
            edits=(("layers - dense_layers if experts", "layers if experts"),),
        ),
        Wrong(
            "layer after layer",
            diagnosis=r"right, but it runs [\d,]+ lines where 30 must do.*\n.*count them, and multiply",
            body="""
                met = width * vocabulary
                for layer in range(layers):
                    met += 2 * width * (heads + kv_heads) * head_dim
                    if experts and layer >= dense_layers:
                        met += (2 + gated) * width * expert_hidden * (top_k + shared_experts)
                    else:
                        met += (2 + gated) * width * hidden
                return 3 * batch * sequence * (2 * met + 4 * layers * sequence * heads * head_dim)
                """,
        ),
    ),
)
