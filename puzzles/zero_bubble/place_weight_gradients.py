"""zero_bubble.place_weight_gradients: Fill the bubble with W.

rankwise check zero_bubble.place_weight_gradients
rankwise hint zero_bubble.place_weight_gradients

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence

from reference.pipeline_parallel.schedule import Action, Kind


def place_weight_gradients(
    lines: Sequence[Sequence[Action]],
    forward: float,
    of_input: float,
    of_weight: float,
    limit: int,
) -> list[list[Action]]:
    """Fill the bubble with W.

    Given is in which order every rank computes F and I. No rank waits for W, so
    each W may go anywhere after the I of its micro-batch. Put them where a rank
    would wait; but an activation is held from its F to its W, and a rank must
    never hold more than `limit` of them. Find a place for every W, by these
    rules:

    - When what comes next can't begin yet, and the time until then is enough
      for a W, do one.
    - When an F comes next, and there is no room for its activation, do a W
      first.
    - What is left comes last.

    F waits for F of the stage before, I for I of the stage after, on the last
    stage for its own F. Messages take no time. A W that was done for its memory
    makes its rank late, and every rank that waits for it.

    An action has `kind`, `stage` and `micro_batch`.
    `Action(Kind.WEIGHT, stage, k)` is a W, `Kind.FORWARD` an F, `Kind.INPUT` an
    I.

    Args:
        lines: F and I of each rank, in order. Rank r has stage r.
        forward, of_input, of_weight: how long F, I and W take. W takes no
            longer than the others.
        limit: activations that a rank may hold.

    Returns: the order of each rank, in a list: its F and I as they were, and a
    W for each micro-batch.

    Budget: `limit` activations. The bubble of ZB-H1 where memory is 1F1B's,
    that of ZB-H2 where the order is ahead as far; and what is there beyond that
    is used.
    """
    raise NotImplementedError("not solved yet")
