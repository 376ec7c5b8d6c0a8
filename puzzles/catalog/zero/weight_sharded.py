"""zero.weight_sharded: weights in shards, gradients whole. On the way to ZeRO-3, and more expensive than either end."""

from math import prod

import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.trace import Op
from reference.zero import cost
from reference.zero.answers.just_in_time import weight_sharded
from reference.zero.plain import gather

from .common import (
    ALL_GATHER,
    DOUBLE,
    a_batch_and_its_upstream,
    activations,
    largest_layer,
    layers_sent,
    outputs_and_gradients,
    shapes_of,
    widest,
)

EVEN, ODD = (8, 8, 8, 8, 8, 8), (5, 7, 3, 4)


def gradients_sent(case):
    """Bytes that the busiest rank sends when each gradient is all-reduced."""
    sizes = [prod(shape) for shape in shapes_of(case)]
    return DOUBLE * max(sum(cost.all_reduce(size, case.n, rank) for size in sizes) for rank in range(case.n))


def memory(case, weights):
    """Bytes of all gradients, of what the layers give out and get back, and of so many weights."""
    gradients = DOUBLE * sum(prod(shape) for shape in shapes_of(case))
    return gradients + 3 * widest(case) + weights * largest_layer(case)


def weights_are_gathered_again(case, inputs, outputs, trace):
    """The room for gradients is empty in forward, but no room for weights. Two may stay, and turn around with it."""
    layers = len(shapes_of(case))
    claims = []
    for rank, member in enumerate(case.global_ranks):
        made = sum(event.op is Op.ALL_GATHER for event in trace.events[member])
        said = (
            f"rank {rank} makes {made} gathers for {layers} layers: what is not gathered again was kept since forward"
        )
        claims.append(Claim(made >= 2 * layers - 2, said))
    return claims


PUZZLE = Puzzle(
    name="zero.weight_sharded",
    title="Weight-sharded data parallelism",
    statement="""
        Weights live in shards, and now the model learns. A layer computes x @ weight.T. On the way back, with
        `upstream` for the gradient of what it gave out and `x` for what it was given,

            gradient of the weight = upstream.T @ x           gradient of x = upstream @ weight

        So backward needs each weight once more: let go of it in forward, and gather it again. The gradient of a weight
        is the sum over ranks, and in this puzzle every rank gets all of it, by an all-reduce. (What that wastes is the
        next puzzle.)

        Given is `gather(shard, shape, group)`: the whole weight. You know how it works.

        Args:
            x: (B, in), this rank's own batch.
            shards: this rank's shard of each weight.
            shapes: of each weight, (out, in).
            upstream: gradient of this rank's loss with respect to what the last layer gives.
            group: n ranks. Any n.

        Returns: three things: what the last layer gives; the gradient of this rank's loss with respect to x; a list of
        the gradients of all ranks' losses with respect to each weight, (out, in).

        Budget: 4(n-1)/n of all weights sent. Memory for the gradients, for what the layers give out and get back, and
        for two weights. The room for the gradients is empty in forward, but no room for weights.
        """,
    function=weight_sharded,
    cases=cases(worlds=(4,), widths=(EVEN, ODD), batch=(2,))
    + cases(worlds=(3, 2, 1), widths=(ODD,), batch=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), widths=(ODD,), batch=(2,)),
    drawn=on_any_ranks(widths=((8, 8, 8, 8), (5, 7, 3, 4)), batch=(1, 2, 3)),
    large=case(2, widths=(512,) * 10, batch=2),
    inputs=a_batch_and_its_upstream,
    oracle=outputs_and_gradients,
    judge=weights_are_gathered_again,
    tolerance=1e-10,
    calls=(dist.all_reduce, *ALL_GATHER),
    given=(gather,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 4 * layers_sent(case),
            optimum=lambda case: layers_sent(case) + gradients_sent(case),
            why="each weight is gathered twice, and each gradient reduced once",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: memory(case, weights=2) + activations(case),
            optimum=lambda case: memory(case, weights=1),
            why="more than two weights are whole at once: gather them again on the way back, and keep none",
        ),
    ),
    hints=(
        "Two loops over the layers, forward and backward. What must forward keep for backward besides the weights?",
        "Keep what each layer was given: `inputs.append(x)` before it computes. Backward takes them from the end: "
        "`inputs.pop()`.",
        "Backward, for each layer from the last: gradient = upstream.T @ inputs.pop(); all-reduce it; gather the "
        "weight; upstream = upstream @ weight. Turn the list of gradients around in the end.",
    ),
    wrong=(
        Wrong(
            "weights stay gathered, and no rank lets go of them",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*keep none",
            edits=(
                ("    inputs = []\n", "    inputs, weights = [], []\n"),
                (
                    "        x = x @ weight.T\n        del weight\n",
                    "        x = x @ weight.T\n        weights.append(weight)\n",
                ),
                (
                    "        weight = gather(shard, shape, group)\n        upstream",
                    "        weight = weights[len(inputs)]\n        upstream",
                ),
            ),
        ),
        Wrong(
            "gathers everything before forward, and lets go of it in backward, where gradients need the room",
            diagnosis=r"right, but rank \d makes \d gathers for \d layers: .* kept since forward",
            edits=(
                (
                    "    inputs = []\n    for shard, shape in zip(shards, shapes, strict=True):\n"
                    "        weight = gather(shard, shape, group)\n",
                    "    weights = [gather(*each, group) for each in zip(shards, shapes, strict=True)]\n"
                    "    inputs = []\n    for weight in weights:\n",
                ),
                (
                    "        weight = gather(shard, shape, group)\n        upstream = upstream @ weight\n",
                    "        weight = weights.pop()\n        upstream = upstream @ weight\n",
                ),
            ),
        ),
        Wrong(
            "every rank keeps the gradient of its own loss",
            diagnosis=r"result\[2\]\[0\]\[0, 0\]: expected -?[\d.]+, got",
            edits=(("        dist.all_reduce(gradient, group=group)\n", ""),),
        ),
        Wrong(
            "the gradient of x is summed, too",
            diagnosis=r"result\[1\]\[0, 0\]: expected -?[\d.]+, got",
            edits=(("    return x, upstream", "    dist.all_reduce(upstream, group=group)\n    return x, upstream"),),
        ),
        Wrong(
            "gradients are averaged",
            diagnosis=r"result\[2\]\[0\]\[0, 0\]: expected -?[\d.]+, got",
            edits=(
                (
                    "        gradients.append(gradient)",
                    "        gradients.append(gradient / dist.get_world_size(group))",
                ),
            ),
        ),
        Wrong(
            "the last layer's gradient comes first",
            diagnosis=r"result\[2\]\[0\]",
            edits=(("gradients[::-1]", "gradients"),),
        ),
        Wrong(
            "the weight the wrong way around",
            diagnosis=r"result\[1\]\[0, 0\]: expected -?[\d.]+, got|cannot be multiplied",
            edits=(("upstream = upstream @ weight\n", "upstream = upstream @ weight.T\n"),),
        ),
    ),
)
