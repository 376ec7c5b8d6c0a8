"""pipeline_parallel.gpipe_order: Fill the pipeline, then empty it (GPipe).

rankwise check pipeline_parallel.gpipe_order
rankwise hint pipeline_parallel.gpipe_order

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from reference.pipeline_parallel.schedule import Action, Kind


def gpipe_order(rank: int, p: int, m: int) -> list[Action]:
    """Fill the pipeline, then empty it (GPipe).

    A batch is cut into m micro-batches, and p ranks have a stage each: rank r
    has stage r. In which order does a rank compute? GPipe's answer is the first
    that one thinks of: everything forward, then everything backward.

    An action is `Action(Kind.FORWARD, stage, micro_batch)`, which prints as
    F0.3, or with `Kind.BACKWARD`, B0.3. Say only what is computed: messages
    follow from the order. Before a rank computes, it waits until there is what
    it needs: for F of a stage the F of the stage before it, for B the B of the
    stage after it, of the same micro-batch.

    The check sees whether the orders of all ranks make a step, simulates it
    with F = 1 and B = 2, runs it on ranks, compares loss and gradients with
    those of one process, and shows you the chart.

    Args:
        rank: 0 to p-1.
        p: ranks, and stages.
        m: micro-batches, numbered from 0.

    Returns: the actions of this rank, in order.

    Budget: a bubble of (p-1)(F+B), for each rank waits for p-1 others once in
    each direction. Activations of m micro-batches. No message ever waits for
    its receiver, so sends that block do no harm.
    """
    raise NotImplementedError("not solved yet")
