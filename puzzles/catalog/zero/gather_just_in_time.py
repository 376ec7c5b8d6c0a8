"""zero.gather_just_in_time: ZeRO-3's forward pass, where a weight is borrowed for as long as it computes."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.zero.answers.just_in_time import forward

from .common import (
    ALL_GATHER,
    DOUBLE,
    a_batch_and_shards,
    activations,
    largest_layer,
    layers_sent,
    shapes_of,
    weights_of,
)

EVEN, ODD = (6, 6, 6, 6, 6, 6), (5, 7, 3, 4)


def one_process_with_whole_weights(case, inputs):
    """The layers, one after another."""
    outputs = []
    for each in inputs:
        y = each["x"]
        for weight in weights_of(case):
            y = y @ weight.T
        outputs.append(y)
    return outputs


PUZZLE = Puzzle(
    name="zero.gather_just_in_time",
    title="Gather a layer just in time (ZeRO-3)",
    statement="""
        No rank has a whole weight any more: of each, rank r has the r-th shard. But a layer can only compute with all
        of its weight, and every rank has a batch of its own to send through all layers. So borrow: before a layer
        computes, gather its weight from every rank's shards; once it has computed, let go of it.

        A shard is an n-th of the weight, flat. Where n does not divide the number of its elements, the last ranks'
        shards end in zeros: cut them off before you give the weight its shape.

        Args:
            x: (B, in), this rank's own batch.
            shards: this rank's shard of each weight.
            shapes: of each weight, (out, in). A layer computes x @ weight.T.
            group: n ranks. Any n.

        Returns: what the last layer gives, (B, out).

        Budget: (n-1)/n of all weights sent, in n-1 steps for each weight. Memory for what the layers give out and for
        two weights, however many layers there are.
        """,
    function=forward,
    cases=cases(worlds=(4,), widths=(EVEN, ODD), batch=(2,))
    + cases(worlds=(3, 2, 1, 5), widths=(ODD,), batch=(3,))
    + cases(worlds=(8,), widths=(EVEN,), batch=(1,))
    + cases(worlds=(4,), members=(0, 2, 3), widths=(ODD,), batch=(2,)),
    drawn=on_any_ranks(widths=((6, 6, 6, 6), (5, 7, 3, 4)), batch=(1, 2, 3)),
    large=case(2, widths=(512,) * 15, batch=2),
    inputs=a_batch_and_shards,
    oracle=one_process_with_whole_weights,
    tolerance=1e-10,
    calls=ALL_GATHER,
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=layers_sent,
            why="each weight is gathered once, and of it each rank sends its shard, passed on n-1 times",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: (case.n - 1) * len(shapes_of(case)),
            why="a weight is gathered at once, not piece by piece",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 2 * largest_layer(case) + activations(case),
            optimum=lambda case: largest_layer(case) + DOUBLE * case.batch * 2 * max(case.widths),
            why="more than two weights are whole at once: gather one when it is its turn, and keep none",
        ),
    ),
    hints=(
        "What does a layer need, and when does it no longer need it? One loop over the layers will do.",
        "`dist.all_gather_single(flat, shard, group=group)` puts all ranks' shards into `flat` in group order. It has "
        "n times the length of a shard.",
        "`flat[: out * in].view(out, in)` is the weight. The names `flat` and `weight` keep it alive: until they stand "
        "for the next layer's, or until you `del` them.",
    ),
    wrong=(
        Wrong(
            "everything is gathered at the start",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*when it is its turn",
            edits=(
                (
                    "    for shard, shape in zip(shards, shapes, strict=True):\n"
                    "        weight = gather(shard, shape, group)\n",
                    "    weights = [gather(*each, group) for each in zip(shards, shapes, strict=True)]\n"
                    "    for weight in weights:\n",
                ),
            ),
        ),
        Wrong(
            "never lets go",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*keep none",
            edits=(
                (
                    "    for shard, shape in zip(shards, shapes, strict=True):\n"
                    "        weight = gather(shard, shape, group)\n",
                    "    whole = {}\n"
                    "    for shard, shape in zip(shards, shapes, strict=True):\n"
                    "        weight = whole[len(whole)] = gather(shard, shape, group)\n",
                ),
            ),
        ),
        Wrong(
            "a gather for every element",
            diagnosis=r"right, but it takes [\d,]+ steps where [\d,]+ must do.*\n.*not piece by piece",
            edits=(
                (
                    "    all_gather_single(flat, shard, group=group)\n",
                    "    columns = flat.view(-1, shard.numel()).T\n"
                    "    for element, column in zip(shard, columns):\n"
                    "        everybodys = shard.new_empty(len(column))\n"
                    "        all_gather_single(everybodys, element.reshape(1), group=group)\n"
                    "        column.copy_(everybodys)\n",
                ),
            ),
        ),
        Wrong(
            "zeros at the end of each shard, not of the last",
            diagnosis=r"[Ss]izes?|shape|expected -?[\d.]+, got",
            edits=(
                (
                    "    return flat[: math.prod(shape)].view(shape)",
                    "    n = dist.get_world_size(group)\n"
                    "    rows = flat.view(n, -1)[:, : math.prod(shape) // n]\n"
                    "    return rows.reshape(-1).view(shape)",
                ),
            ),
        ),
        Wrong(
            "the padding is not cut off",
            diagnosis=r"shape '\[\d, \d\]' is invalid for input of size \d+",
            edits=(("flat[: math.prod(shape)].view(shape)", "flat.view(shape)"),),
        ),
        Wrong(
            "computes before the weight has arrived",
            diagnosis=r"all_gather.*\n?.*wait\(\)",
            edits=(
                (
                    "all_gather_single(flat, shard, group=group)",
                    "all_gather_single(flat, shard, group=group, async_op=True)",
                ),
            ),
        ),
        Wrong(
            "the shapes are taken for (in, out)",
            diagnosis=r"shapes cannot be multiplied|expected -?[\d.]+, got",
            edits=(("view(shape)", "view(shape[::-1]).T"),),
        ),
    ),
)
