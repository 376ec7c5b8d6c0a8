"""composition.what_a_plan_needs: memory of a rank, with experts among other replicas than all else."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.composition.answers.plan_bytes import what_a_plan_needs

NAMES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")
# About DeepSeek-V3's: latent attention and a shared expert, 256 experts of 3 x 7168 x 2048, and 58 layers as 64.
LARGE = {"layers": (64,), "dense": (231_000_064,), "experts": (256,), "expert": (44_040_192,)}
PUBLISHED = {"pp": (16,), "dp_replicate": (1,), "dp_shard": (128,), "cp": (1,), "tp": (1,), "ep": (64,), "etp": (1,)}
STEP = {"micro_batches": (60,), "tokens": (4096,), "activation": (60_000,)}
# Few of everything, in numbers that shards do not divide.
SMALL = {"layers": (6,), "dense": (70,), "experts": (4,), "expert": (22,)}
SHORT = {"micro_batches": (2,), "tokens": (48,), "activation": (5,)}


def layer_after_layer(case, inputs):
    """All tensors of a rank of the first stage are laid out one by one, and each is cut as its replicas share it."""
    whole = {"parameters": case.stage < 3, "gradients": case.stage < 2, "optimizer": case.stage < 1}
    rows, mine = case.dp_shard * case.cp, []
    experts_here = range(case.experts // case.ep)
    dense = sum(case.dense // case.tp for _layer in range(case.layers // case.pp))
    of_experts = sum(case.expert // case.etp for _layer in range(case.layers // case.pp) for _expert in experts_here)
    with_the_same_experts = rows * case.tp // case.ep // case.etp
    for kind, size in (("parameters", 2), ("gradients", 2), ("optimizer", 12)):
        bytes_of_kind = 0
        for numel, sharers in ((dense, rows), (of_experts, with_the_same_experts)):
            padded = numel if numel % sharers == 0 else numel + sharers - numel % sharers
            bytes_of_kind += size * (numel if whole[kind] else padded // sharers)
        mine.append(bytes_of_kind)
    tokens_here = case.tokens // case.cp // case.tp
    held = [
        tokens_here * case.activation
        for micro_batch in range(case.micro_batches)
        if micro_batch < case.pp
        for _layer in range(case.layers // case.pp)
    ]
    return [(*mine, sum(held))]


def of_the_few(case, inputs):
    """The same, where there are too many layers and micro-batches."""
    here, rows = case.layers // case.pp, case.dp_shard * case.cp
    dense, experts = here * (case.dense // case.tp), here * (case.experts // case.ep) * (case.expert // case.etp)
    shards = -(-dense // rows) - (-experts // (rows * case.tp // case.ep // case.etp))
    parameters, gradients, optimizer = (shards if case.stage >= k else dense + experts for k in (3, 2, 1))
    tokens = min(case.pp, case.micro_batches) * (case.tokens // case.cp // case.tp)
    return [(2 * parameters, 2 * gradients, 12 * optimizer, here * tokens * case.activation)]


def of(sizes, model=SMALL, step=SHORT, stage=(0, 1, 2, 3)):
    """A plan, by the sizes of its axes in order."""
    axes = {name: (size,) for name, size in zip(NAMES, sizes, strict=True)}
    return cases(worlds=(1,), **model, **axes, stage=stage, **step)


def with_experts(so_far):
    """Sizes of ep that divide the experts, and the ranks of a stage and a replica."""
    row = so_far.dp_shard * so_far.cp * so_far.tp
    return [size for size in (1, 2, 3, 4, 6, 12) if so_far.experts % size == 0 and row % size == 0]


def that_share_matrices(so_far):
    """Sizes of etp."""
    row = so_far.dp_shard * so_far.cp * so_far.tp // so_far.ep
    return [size for size in (1, 2, 3) if row % size == 0]


PUZZLE = Puzzle(
    name="composition.what_a_plan_needs",
    title="What a plan needs",
    statement="""
        Will a rank of this plan have room? Work out what it keeps, in mixed precision with Adam: 2 bytes for each
        parameter, 2 for its gradient, and 12 of the optimizer.

        pp        shares out the layers, equally many for each stage.
        tp        shares out the `dense` parameters of a layer: all but those of its experts.
        ep, etp   share out the experts of a layer, and each matrix of an expert. They lie over the same ranks as
                  dp_shard, cp and tp; edp is what remains of these: dp_shard cp tp / (ep etp).
        ZeRO      lets ranks that hold the same parameters share out what they keep: those along dp_shard and cp the
                  dense ones, those along edp the experts. Stage 1 shares out the optimizer's state, stage 2 gradients,
                  too, stage 3 parameters, too. Shards are of equal size, rounded up: the dense parameters of a rank are
                  one flat tensor, those of its experts another. Along dp_replicate nothing is shared out.
        1F1B      the first stage holds the activations of pp micro-batches, or of all, if there are fewer. A token
                  keeps `activation` bytes in each layer. cp and tp (with sequence parallelism) share out the tokens.

        Embedding and head, what ZeRO gathers meanwhile, and what tokens keep in experts besides are left out.

        Args:
            layers, dense, experts, expert: how many layers there are; in each of them `dense` parameters, and so many
                experts of `expert` parameters.
            pp, dp_replicate, dp_shard, cp, tp: ranks along each axis.
            ep, etp: ranks along the axes of the experts. All of these divide what they share out.
            stage: of ZeRO, 0 to 3; 0 shares out nothing.
            micro_batches: in a step.
            tokens: of a micro-batch of a replica.
            activation: bytes for each token and layer.

        Returns: bytes of parameters, gradients, optimizer state and activations of a rank of the first stage, four
        ints.

        Budget: a formula for each.
        """,
    function=what_a_plan_needs,
    cases=of((16, 1, 128, 1, 1, 64, 1), LARGE, STEP, stage=(1, 0, 3))
    + of((2, 1, 4, 2, 2, 4, 1))
    + of((3, 2, 3, 1, 2, 2, 1))
    + of((1, 1, 2, 3, 1, 1, 2))
    + of((6, 1, 2, 2, 2, 2, 2), stage=(2, 3))
    + of((2, 3, 5, 1, 1, 1, 1), stage=(1, 2))
    + of((1, 1, 1, 1, 1, 1, 1), stage=(0, 3))
    + of((2, 1, 3, 1, 1, 1, 1), {**SMALL, "experts": (0,)}, stage=(1, 3)),
    drawn=tuple(
        drawn(
            worlds=(1,),
            pp=(1, 2, 3, 4),
            layers=lambda so_far: [so_far.pp * k for k in (1, 2, 5)],
            tp=(1, 2, 3),
            dense=lambda so_far: [so_far.tp * k for k in range(7, 400, 13)],
            experts=(12, 24),
            expert=[6 * k for k in range(3, 90, 7)],
            dp_replicate=(1, 2, 3),
            dp_shard=(1, 2, 3, 4, 5),
            cp=(1, 2, 3),
            ep=with_experts,
            etp=that_share_matrices,
            stage=stages,
            micro_batches=range(1, 9),
            tokens=[36 * k for k in range(1, 9)],
            activation=range(1, 90),
        )
        for stages in ((0, 1), (2,), (3,))
    ),
    scale=Scale(
        of(
            (2**40, 2**20, 2**20, 2**10, 2**10, 2**30, 2),
            {"layers": (2**50,), "dense": (2**40,), "experts": (2**40,), "expert": (2**30,)},
            {"micro_batches": (2**60,), "tokens": (2**40,), "activation": (99,)},
            stage=(1, 3),
        ),
        "the number of layers, ranks, experts or micro-batches",
        oracle=of_the_few,
    ),
    oracle=layer_after_layer,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 60,
            optimum=lambda case: 8,
            why="all layers and all experts of a rank are equally large: count them, and multiply",
        ),
    ),
    hints=(
        "How many dense parameters does a rank compute with, and how many of its experts? Which axes share out which? "
        "Which ranks hold the same ones?",
        "Dense: layers/pp · dense/tp, alike on dp_shard · cp ranks. Experts: layers/pp · experts/ep · expert/etp, "
        "alike on edp ranks. dp_replicate is in none of it: its replicas share out nothing.",
        "Of each kind a rank keeps both numbers, or -(-dense // (dp_shard * cp)) and -(-experts // edp), if stage is "
        "at least 1 for the optimizer, 2 for gradients, 3 for parameters. Activations: min(pp, micro_batches) · "
        "layers/pp · tokens/(cp tp) · activation.",
    ),
    wrong=(
        Wrong(
            "experts are shared out like all else: among dp_shard x cp",
            diagnosis=r"ep=64, etp=1, stage=1, .*result\[2\]: expected 4314483456, got 152685312",
            edits=(("dp_shard * cp * tp // (ep * etp)", "dp_shard * cp"),),
        ),
        Wrong(
            "replicas of experts are found along dp alone",
            diagnosis=r"ep=4, etp=1, stage=1.*result\[2\]: expected \d+, got \d+|ZeroDivisionError",
            edits=(("dp_shard * cp * tp // (ep * etp)", "max(1, dp_shard // ep)"),),
        ),
        Wrong(
            "the context's ranks keep everything",
            diagnosis=r"cp=2.*stage=1.*result\[2\]: expected \d+, got \d+",
            edits=(("dense // tp, dp_shard * cp)", "dense // tp, dp_shard)"),),
        ),
        Wrong(
            "replicas of the model share out as well",
            diagnosis=r"dp_replicate=2.*stage=1.*result\[2\]: expected \d+, got \d+",
            edits=(("dense // tp, dp_shard * cp)", "dense // tp, dp_replicate * dp_shard * cp)"),),
        ),
        Wrong(
            "ep shares out dense parameters, too",
            diagnosis=r"result\[0\]: expected \d+, got \d+",
            edits=(("layers_here * dense // tp,", "layers_here * dense // tp // ep,"),),
        ),
        Wrong(
            "matrices of experts are shared as attention's are",
            diagnosis=r"tp=2, ep=4, etp=1, stage=0.*result\[0\]: expected \d+, got \d+",
            edits=(("* expert // etp", "* expert // tp"),),
        ),
        Wrong(
            "all experts on each rank",
            diagnosis=r"result\[0\]: expected \d+, got \d+",
            edits=(("layers_here * experts // ep *", "layers_here * experts *"),),
        ),
        Wrong(
            "stage 2 shares out parameters",
            diagnosis=r"right with stage=0, 1, 3, wrong with stage=2",
            edits=(("kept(2, 3)", "kept(2, 2)"),),
        ),
        Wrong(
            "stage 1 shares out gradients",
            diagnosis=r"right with stage=0, 2, 3, wrong with stage=1",
            edits=(("kept(2, 2)", "kept(2, 1)"),),
        ),
        Wrong(
            "one micro-batch in flight",
            diagnosis=r"result\[3\]: expected \d+, got \d+",
            edits=(("in_flight = min(pp, micro_batches)", "in_flight = 1"),),
        ),
        Wrong(
            "as many in flight as stages, where there are fewer",
            diagnosis=r"pp=(3|6).*micro_batches=2.*result\[3\]: expected \d+, got \d+",
            edits=(("in_flight = min(pp, micro_batches)", "in_flight = pp"),),
        ),
        Wrong(
            "all micro-batches in flight, as with GPipe",
            diagnosis=r"micro_batches=60.*result\[3\]: expected 15728640000, got 58982400000",
            edits=(("in_flight = min(pp, micro_batches)", "in_flight = micro_batches"),),
        ),
        Wrong(
            "tokens are whole on all tensor-parallel ranks",
            diagnosis=r"tp=2.*result\[3\]: expected \d+, got \d+",
            edits=(("* tokens // (cp * tp)", "* tokens // cp"),),
        ),
        Wrong(
            "shards are rounded down",
            diagnosis=r"stage=\d.*result\[\d\]: expected \d+, got \d+",
            edits=(("-(-numel // replicas)", "numel // replicas"),),
        ),
        Wrong(
            "dense parameters and experts are one flat tensor",
            diagnosis=r"stage=\d.*result\[\d\]: expected \d+, got \d+",
            edits=(
                (
                    "size * sum(-(-numel // replicas) if shared else numel for numel, replicas in parts)",
                    "size * (-(-sum(n for n, _ in parts) // parts[0][1]) if shared else sum(n for n, _ in parts))",
                ),
            ),
        ),
        Wrong(
            "layer after layer",
            diagnosis=r"right, but it runs [\d,]+ lines where 60 must do.*\n.*count them, and multiply",
            body="""
                dense_here = experts_here = held = 0
                for layer in range(layers // pp):
                    dense_here += dense // tp
                    for one in range(experts // ep):
                        experts_here += expert // etp
                    for micro_batch in range(min(pp, micro_batches)):
                        held += tokens // (cp * tp) * activation
                parts = ((dense_here, dp_shard * cp), (experts_here, dp_shard * cp * tp // (ep * etp)))
                whole = dense_here + experts_here
                shards = sum(-(-numel // replicas) for numel, replicas in parts)
                mine = [shards if stage >= shared else whole for shared in (3, 2, 1)]
                return 2 * mine[0], 2 * mine[1], 12 * mine[2], held
                """,
        ),
    ),
)
