"""zero.free_it: ZeRO-3, where nothing stays whole."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.zero.plain import fully_sharded, gather

from .common import (
    ALL_GATHER,
    REDUCE_SCATTER,
    a_batch_and_its_upstream,
    activations,
    cut,
    gradient_shards,
    largest_layer,
    layers_sent,
    outputs_and_gradients,
    widest,
)

EVEN, ODD = (8, 8, 8, 8, 8, 8, 8), (5, 7, 3, 4)


def gradients_in_shards(case, inputs):
    """As with whole weights; of each gradient, each rank's shard."""
    whole = outputs_and_gradients(case, inputs)
    shards = [cut(gradient, case.n) for gradient in whole[0][2]]
    return [(y, x, [of_layer[rank] for of_layer in shards]) for rank, (y, x, _) in enumerate(whole)]


def target(case):
    """Bytes of what the layers give out and get back, of the shards of gradients, and of three whole things."""
    return activations(case) + 3 * widest(case) + gradient_shards(case) + 3 * largest_layer(case)


def optimum(case):
    """One thing is whole, beside all activations when backward begins, or beside all shards when it ends."""
    beginning, end = activations(case) + widest(case), gradient_shards(case) + 3 * widest(case)
    return largest_layer(case) + max(beginning, end)


PUZZLE = Puzzle(
    name="zero.free_it",
    title="Free it (ZeRO-3)",
    statement="""
        Forward and backward of which nothing stays whole. As in the puzzle before: weights live in shards, backward
        gathers each once more, and

            gradient of the weight = upstream.T @ x           gradient of x = upstream @ weight

        But now a rank keeps of each gradient only its shard of the sum over ranks, and it must not have more than three
        whole things at any time, weights and gradients together. PyTorch frees a tensor when its last name is gone.
        A loop that says `weight = gather(...)` makes the next weight while `weight` still stands for the last one;
        `del weight` ends a name.

        Given is `gather(shard, shape, group)`: the whole weight.

        Args:
            x: (B, in), this rank's own batch.
            shards: this rank's shard of each weight: its n-th of the flat weight, with zeros after it where n does
                not divide.
            shapes: of each weight, (out, in). A layer computes x @ weight.T.
            upstream: gradient of this rank's loss with respect to what the last layer gives.
            group: n ranks. Any n.

        Returns: three things: what the last layer gives; the gradient of this rank's loss with respect to x; a list of
        this rank's shards of the gradients of all ranks' losses with respect to each weight, as long as `shards`, with
        zeros in the same places.

        Budget: 3(n-1)/n of all weights sent. Memory for the shards of gradients, for what the layers give out and get
        back, and for three whole weights or gradients.
        """,
    function=fully_sharded,
    cases=cases(worlds=(4,), widths=(EVEN, ODD), batch=(2,))
    + cases(worlds=(3, 2, 1), widths=(ODD,), batch=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), widths=(ODD,), batch=(2,)),
    drawn=on_any_ranks(widths=((8, 8, 8, 8), (5, 7, 3, 4)), batch=(1, 2, 3)),
    large=case(2, widths=(512,) * 10, batch=2),
    inputs=a_batch_and_its_upstream,
    oracle=gradients_in_shards,
    tolerance=1e-10,
    calls=(*ALL_GATHER, *REDUCE_SCATTER),
    given=(gather,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 3 * layers_sent(case),
            optimum=lambda case: 2 * layers_sent(case),  # where weights stay from forward to backward
            why="each weight is gathered twice, each gradient scattered once; an all-reduce would count twice",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=target,
            optimum=optimum,
            why="something whole is kept although it is not needed any more: `del` it, or make no list of it",
        ),
    ),
    hints=(
        "Take your solution of the puzzle before. In backward, when is the weight needed for the last time, when the "
        "whole gradient, and when is the next whole thing made?",
        "Pad the gradient: `whole = shard.new_zeros(n * shard.numel())`, then put upstream.T @ x into its beginning. "
        "`dist.reduce_scatter_single(mine, whole, group=group)` sums, and gives each rank its shard.",
        "Backward of a layer: gather, below = upstream @ weight, del weight; make the padded gradient, scatter it, del "
        "it; upstream = below. Forward: gather, compute, del.",
    ),
    wrong=(
        Wrong(
            "it replicates: everything is gathered once, and stays",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*`del` it",
            edits=(
                (
                    "    inputs = []\n",
                    "    inputs = []\n"
                    "    weights = [gather(*each, group) for each in zip(shards, shapes, strict=True)]\n",
                ),
                (
                    "        weight = gather(shard, shape, group)\n        inputs",
                    "        weight = weights[len(inputs)]\n        inputs",
                ),
                (
                    "        weight = gather(shard, shape, group)\n        below",
                    "        weight = weights.pop()\n        below",
                ),
            ),
        ),
        Wrong(
            "never frees what forward has gathered",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*make no list of it",
            edits=(
                ("    inputs = []\n", "    inputs, whole_weights = [], []\n"),
                ("        x = x @ weight.T\n", "        x = x @ weight.T\n        whole_weights.append(weight)\n"),
            ),
        ),
        Wrong(
            "gradients stay whole until the end",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do",
            edits=(
                (
                    "        gradients.append(torch.empty_like(shard))\n"
                    "        reduce_scatter_single(gradients[-1], whole, group=group)\n"
                    "        upstream = below\n"
                    "        del whole\n",
                    "        gradients.append(whole)\n        upstream = below\n",
                ),
                (
                    "    return x, upstream, gradients[::-1]",
                    "    mine = [torch.empty_like(shard) for shard in shards]\n"
                    "    for shard, whole in zip(mine, gradients[::-1], strict=True):\n"
                    "        reduce_scatter_single(shard, whole, group=group)\n"
                    "    return x, upstream, mine",
                ),
            ),
        ),
        Wrong(
            "an all-reduce, of which it keeps a shard",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*an all-reduce would count twice",
            edits=(
                (
                    "reduce_scatter_single(gradients[-1], whole, group=group)",
                    "dist.all_reduce(whole, group=group)\n"
                    "        gradients[-1].copy_(whole.split(len(shard))[dist.get_rank(group)])",
                ),
            ),
        ),
        Wrong(
            "averaged by FSDP, after every loss was divided by all tokens",
            diagnosis=r"result\[2\]\[0\]\[0\]: expected -?[\d.]+, got",
            edits=(
                (
                    "group=group)\n        upstream = below",
                    "group=group)\n        gradients[-1] /= dist.get_world_size(group)\n        upstream = below",
                ),
            ),
        ),
        Wrong(
            "frees the weight too early",
            diagnosis=r"UnboundLocalError|weight",
            edits=(
                (
                    "        below = upstream @ weight\n        del weight\n",
                    "        del weight\n        below = upstream @ weight\n",
                ),
            ),
        ),
        Wrong(
            "rubbish after the gradient",
            diagnosis=r"NaN|expected 0, got|expected -?[\d.e+-]+, got",
            edits=(("shard.new_zeros(", "shard.new_ones("),),
        ),
    ),
)
