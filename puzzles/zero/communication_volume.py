"""zero.communication_volume: What each stage of ZeRO sends.

rankwise check zero.communication_volume
rankwise hint zero.communication_volume

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def elements_sent(
    stage: int, numel: int, ranks: int, micro_batches: int
) -> int:
    """What each stage of ZeRO sends.

    In a reduce-scatter, and in an all-gather, every rank sends n-1 shards
    around the ring; an all-reduce is both. How many elements does one rank send
    in a training step of K micro-batches?

        stage 0   replicas. Gradients add up on their rank; in the last
                  micro-batch they are all-reduced.
        stage 1   the optimizer's state is shared out. In the last micro-batch
                  gradients are reduce-scattered; after the update parameters
                  are gathered.
        stage 2   gradients, too: there is no room to add them up.
        stage 3   parameters, too: they are gathered for each forward and again
                  for each backward, and no rank needs them whole after the
                  update.

    Args:
        stage: 0, 1, 2 or 3.
        numel: Ψ, the number of parameters. Shards are rounded up: the
            parameters are padded to a multiple of n.
        ranks: n, at least 1.
        micro_batches: K, at least 1.

    Returns: elements, an int.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")
