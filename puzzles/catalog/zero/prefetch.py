"""zero.prefetch: the next weight travels while this layer computes."""

from math import prod

from puzzles.grading.drives.zero import with_layers_that_take_time
from puzzles.grading.overlap import NETWORK
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.zero.answers.just_in_time import prefetched

from .common import ALL_GATHER, DOUBLE, a_batch_and_shards, largest_layer, layers_sent, shapes_of, shard_of, widest
from .gather_just_in_time import one_process_with_whole_weights

EVEN, ODD = (8, 8, 8, 8, 8, 8), (5, 7, 3, 4)


def batch_shards_and_time(case, rank):
    """What the layers are given, and for the drive the seconds that each of them takes."""
    return {**a_batch_and_shards(case, rank), "seconds": case.microseconds / 1e6}


def overlapped(case):
    """Microseconds of a forward pass: the first gather, then layer after layer, each beside the next one's gather."""
    shards = [DOUBLE * shard_of(prod(shape), case.n) for shape in shapes_of(case)]
    gathers = [1e6 * (case.n - 1) * NETWORK.time(0, 1, shard) if case.n > 1 else 0.0 for shard in shards]
    return gathers[0] + sum(max(case.microseconds, gather) for gather in gathers[1:]) + case.microseconds


PUZZLE = Puzzle(
    name="zero.prefetch",
    title="Prefetch the next layer",
    statement="""
        Gathering just in time means waiting just in time: while a weight travels, no rank computes; while a layer
        computes, the network is idle. Let each weight travel while the layer before it computes.

        With `async_op=True` a collective returns at once, and gives you a request. Between that and the return of
        `request.wait()` the weight is in flight: no code may read or write it. One gather at a time: two share the
        link, and the one that is waited for takes longer.

        Args:
            x: (B, in), this rank's own batch.
            shards: this rank's shard of each weight, padded with zeros to an n-th.
            shapes: of each weight, (out, in).
            layer: `layer(x, weight)` computes x @ weight.T. It takes its time.
            group: n ranks. Any n.

        Returns: what the last layer gives.

        Budget: on a modelled link the time of the first gather and of all layers, or of the other gathers where those
        take longer. (n-1)/n of all weights sent, once. Memory for two weights, the one that computes and the next, and
        for what a layer is given and gives.
        """,
    function=prefetched,
    cases=cases(worlds=(4,), widths=(EVEN,), batch=(2,), microseconds=(50, 10))
    + cases(worlds=(3, 2, 1, 5), widths=(ODD,), batch=(2,), microseconds=(20,))
    + cases(worlds=(8,), widths=(EVEN,), batch=(1,), microseconds=(100,))
    + cases(worlds=(4,), members=(0, 2, 3), widths=(ODD,), batch=(1,), microseconds=(20,)),
    drawn=on_any_ranks(widths=((8, 8, 8, 8), (5, 7, 3, 4)), batch=(1, 2), microseconds=(10, 30, 60)),
    large=case(2, widths=(512,) * 15, batch=2, microseconds=20),
    inputs=batch_shards_and_time,
    oracle=one_process_with_whole_weights,
    drive=with_layers_that_take_time,
    tolerance=1e-10,
    calls=ALL_GATHER,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 2 * largest_layer(case) + 2 * widest(case),
            why="the weight that computes and the next one: to gather further ahead costs memory",
        ),
        Budget(
            Measure.MICROSECONDS,
            target=lambda case: overlapped(case) + 0.1,
            optimum=overlapped,
            why="a gather must be under way while the layer before computes: begun before it, waited for after it, and "
            "not before this layer's own weight has arrived: they would share the link",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=layers_sent,
            why="each weight is gathered once",
        ),
    ),
    hints=(
        "When layer i is about to compute, its weight must be there, and which gather must already be under way?",
        "Begin the first gather before the loop. In the loop: wait for this layer's weight, begin the next one's "
        "gather, compute.",
        "Keep the buffer and the request of the gather that is under way in a variable `upcoming`. In the loop: "
        "`flat, request = upcoming`, `request.wait()`, then a new `upcoming` if there is a next layer, then "
        "`x = layer(x, ...)`.",
    ),
    wrong=(
        Wrong(
            "gathers when it is needed",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*under way while",
            body="""
                n = dist.get_world_size(group)
                for shard, (rows, columns) in zip(shards, shapes):
                    flat = shard.new_empty(n * shard.numel())
                    dist.all_gather_single(flat, shard, group=group)
                    x = layer(x, flat[: rows * columns].view(rows, columns))
                return x
                """,
        ),
        Wrong(
            "asks early, and waits at once",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*waited for after",
            edits=(
                (
                    "            upcoming = begin_to_gather(shards[index + 1], group)\n",
                    "            upcoming = begin_to_gather(shards[index + 1], group)\n"
                    "            upcoming[1].wait()\n",
                ),
            ),
        ),
        Wrong(
            "begins the next gather after the layer",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*begun before it",
            edits=(
                (
                    "        if index + 1 < len(shards):\n"
                    "            upcoming = begin_to_gather(shards[index + 1], group)\n",
                    "",
                ),
                (
                    "    return x",
                    "        if index + 1 < len(shards):\n"
                    "            upcoming = begin_to_gather(shards[index + 1], group)\n"
                    "    return x",
                ),
            ),
        ),
        Wrong(
            "begins the next gather before this layer's weight has arrived",
            diagnosis=r"right, but on a slow link it takes [\d,.]+ µs where [\d,.]+ must do.*\n.*share the link",
            edits=(
                ("        work.wait()\n", ""),
                (
                    "            upcoming = begin_to_gather(shards[index + 1], group)\n",
                    "            upcoming = begin_to_gather(shards[index + 1], group)\n        work.wait()\n",
                ),
            ),
        ),
        Wrong(
            "all gathers at once",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*costs memory",
            edits=(
                (
                    "    upcoming = begin_to_gather(shards[0], group)\n",
                    "    gathers = [begin_to_gather(shard, group) for shard in shards]\n",
                ),
                ("flat, work = upcoming", "flat, work = gathers[index]"),
                (
                    "        if index + 1 < len(shards):\n"
                    "            upcoming = begin_to_gather(shards[index + 1], group)\n",
                    "",
                ),
            ),
        ),
        Wrong(
            "one buffer for both: freed too early",
            diagnosis=r"wait\(\)|expected -?[\d.]+, got",
            body="""
                n = dist.get_world_size(group)
                buffer = x.new_empty(n * max(shard.numel() for shard in shards))
                def begin(index):
                    flat = buffer[: n * shards[index].numel()]
                    return flat, dist.all_gather_single(flat, shards[index], group=group, async_op=True)
                upcoming = begin(0)
                for index, (rows, columns) in enumerate(shapes):
                    flat, work = upcoming
                    work.wait()
                    if index + 1 < len(shapes):
                        upcoming = begin(index + 1)
                    x = layer(x, flat[: rows * columns].view(rows, columns))
                return x
                """,
        ),
        Wrong(
            "no rank waits",
            diagnosis=r"wait\(\)",
            edits=(("        work.wait()\n", ""),),
        ),
    ),
)
