"""zero.scatter_gradients: ZeRO-2, where a gradient is summed, shared out and forgotten as soon as it is known."""

from puzzles.grading.drives.zero import layer_by_layer
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.zero.plain import padded, zero_2

from .common import DOUBLE, REDUCE_SCATTER, cut, shard_of

EVEN, ODD = (8, 8, 8, 8, 8, 8), (7, 5, 9, 1, 6, 8)


def a_sample_for_each_micro_batch(case, rank):
    """Parameters of each layer, the same on every rank; for each micro-batch, data of its own."""
    return {
        "w": [case.normal(0, size, name=f"w {i}") for i, size in enumerate(case.sizes)],
        "samples": [
            (
                [case.normal(rank, size, name=f"a {k} {i}") for i, size in enumerate(case.sizes)],
                case.normal(rank, name=f"b {k}"),
            )
            for k in range(case.micro_batches)
        ],
        "layers": len(case.sizes),
    }


def the_sum_in_shards(case, inputs):
    """All gradients of all ranks and micro-batches, added up, then cut."""
    totals = [0] * len(case.sizes)
    for each in inputs:
        for a, b in each["samples"]:
            error = sum((own * w).sum() for own, w in zip(a, each["w"], strict=True)) - b
            totals = [total + error * own for total, own in zip(totals, a, strict=True)]
    shards = [cut(total, case.n) for total in totals]
    return [[of_layer[rank] for of_layer in shards] for rank in range(case.n)]


def memory(case, gradients):
    """Bytes of all shards, of one that comes to be added, of so many whole gradients, and of a number in backward."""
    shards = [shard_of(size, case.n) for size in case.sizes]
    return DOUBLE * (sum(shards) + max(shards) * (case.micro_batches > 1) + gradients * case.n * max(shards) + 1)


PUZZLE = Puzzle(
    name="zero.scatter_gradients",
    title="Keep the gradients that you need (ZeRO-2)",
    statement="""
        A rank that updates one slice of the parameters needs the gradient of that slice alone. So when a layer's
        gradient is known, sum it over the ranks, keep this rank's shard of the sum, and forget the rest, before the
        next layer's gradient is made.

        The batch is cut into micro-batches, and gradients add up over them, too. Plain data parallelism adds them up on
        each rank and sends the sum. Here there is no room for that: what has no room must be sent.

        Given is `padded(x, n)`: x flat, with zeros after it until n divides its length.

        Args:
            backward: yields (layer, gradient), the last layer first, in one micro-batch after another. A gradient is
                this rank's own, flat, and made when it is asked for.
            layers: how many there are.
            group: n ranks. Any n.

        Returns: by layer, this rank's shard of the padded sum of gradients over all ranks and micro-batches.

        Budget: in each micro-batch (n-1)/n of all gradients sent. Memory for the shards and three gradients.
        """,
    function=zero_2,
    cases=cases(worlds=(4,), sizes=(EVEN, ODD), micro_batches=(2,))
    + cases(worlds=(3, 2), sizes=(ODD,), micro_batches=(1,))
    + cases(worlds=(1,), sizes=(ODD,), micro_batches=(2,))
    + cases(worlds=(8,), sizes=(EVEN,), micro_batches=(1,))
    + cases(worlds=(4,), members=(0, 2, 3), sizes=(ODD,), micro_batches=(2,)),
    drawn=on_any_ranks(sizes=((8, 8, 8), (7, 5, 9, 1)), micro_batches=(1, 2)),
    large=case(2, sizes=(131_072,) * 20, micro_batches=1),
    inputs=a_sample_for_each_micro_batch,
    oracle=the_sum_in_shards,
    drive=layer_by_layer,
    tolerance=1e-10,
    calls=REDUCE_SCATTER,
    given=(padded,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: (
                DOUBLE * case.micro_batches * sum((case.n - 1) * shard_of(size, case.n) for size in case.sizes)
            ),
            why="a rank needs its shard of the sum: a reduce-scatter sends half of what an all-reduce sends",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: memory(case, gradients=3) + DOUBLE,
            optimum=lambda case: memory(case, gradients=1),
            why="a gradient that has been scattered is of no use any more: let go of it, and do not collect them",
        ),
    ),
    hints=(
        "Which collective sums, and gives each rank its part of the sum?",
        "`dist.reduce_scatter_single(shard, whole, group=group)`: `whole` is the padded gradient, `shard` an empty "
        "tensor of an n-th of its length. Keep a list of shards by layer, None at first.",
        "A layer comes again in the next micro-batch: add to its shard then. In a `for` loop the old gradient lives "
        "until the new one has been made, unless you `del` its name.",
    ),
    wrong=(
        Wrong(
            "all gradients first, then the sums",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*let go of it",
            edits=(
                ("in backward:", "in list(backward):"),
                ("        del gradient, whole  # before the next one is made\n", ""),
            ),
        ),
        Wrong(
            "micro-batches add up on their rank, and are sent once (ZeRO-1)",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*do not collect them",
            body="""
                n = dist.get_world_size(group)
                whole = [None] * layers
                for layer, gradient in backward:
                    whole[layer] = gradient if whole[layer] is None else whole[layer].add_(gradient)
                shards = []
                for gradient in whole:
                    flat = padded(gradient, n)
                    shards.append(flat.new_empty(flat.numel() // n))
                    dist.reduce_scatter_single(shards[-1], flat, group=group)
                return shards
                """,
        ),
        Wrong(
            "an all-reduce, of which it keeps a shard",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*half of what an all-reduce",
            edits=(
                ("shard = whole.new_empty(whole.numel() // n)", "dist.all_reduce(whole, group=group)"),
                (
                    "reduce_scatter_single(shard, whole, group=group)",
                    "shard = whole.view(n, -1)[dist.get_rank(group)].clone()",
                ),
            ),
        ),
        Wrong(
            "the gradient is averaged",
            diagnosis=r"off by exactly the world size, too little: averaged, and not summed",
            edits=(
                (
                    "reduce_scatter_single(shard, whole, group=group)",
                    "reduce_scatter_single(shard, whole, group=group)\n        shard /= n",
                ),
            ),
        ),
        Wrong(
            "averaged twice: before and after",
            diagnosis=r"off by a factor of 0\.0625",
            edits=(
                (
                    "reduce_scatter_single(shard, whole, group=group)",
                    "reduce_scatter_single(shard, whole / n, group=group)\n        shard /= n",
                ),
            ),
        ),
        Wrong(
            "only the last micro-batch",
            diagnosis=r"right with micro_batches=1, wrong with micro_batches=2|expected -?[\d.]+, got",
            edits=(("shard if shards[layer] is None else shards[layer].add_(shard)", "shard"),),
        ),
        Wrong(
            "in the order in which they came",
            diagnosis=r"expected -?[\d.]+, got|shape",
            edits=(("    return shards", "    return shards[::-1]"),),
        ),
        Wrong(
            "the remainder is lost",
            diagnosis=r"a float64 tensor of shape \(\d+,\), got a float64 tensor of shape \(\d+,\)",
            edits=(("padded(gradient, n)", "gradient[: len(gradient) // n * n]"),),
        ),
    ),
)
