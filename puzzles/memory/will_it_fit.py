"""memory.will_it_fit: Will it fit?

rankwise check memory.will_it_fit
rankwise hint memory.will_it_fit

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def first_stage(
    parameters: int, ranks: int, memory: int, besides: int
) -> str | None:
    """Will it fit?

    Data-parallel ranks all have the same training state. In mixed precision
    with Adam it has 2 bytes for a parameter, 2 for its gradient, and 12 of the
    optimizer: a master copy and two moments. ZeRO lets each of n ranks keep
    only an n-th:

    - "ddp": of nothing, every rank has everything;
    - "zero1": of the optimizer's 12 bytes;
    - "zero2": of gradients, too;
    - "zero3": of parameters, too.

    An n-th of the parameters is rounded up: all ranks' shards are equally
    large. What is not sharded, every rank has whole. Each stage is more trouble
    than the one before. Which is the first that fits?

    Args:
        parameters: of the model.
        ranks: n.
        memory: bytes of each rank's device.
        besides: bytes that everything else takes there, activations first of
            all.

    Returns: the stage's name; None if even "zero3" does not fit.

    Budget: a formula for each stage, not a loop over 16,384 ranks.
    """
    raise NotImplementedError("not solved yet")
