"""pipeline_parallel.stalled_stage: Find the stage that stalls all ranks.

rankwise check pipeline_parallel.stalled_stage
rankwise hint pipeline_parallel.stalled_stage

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from reference.pipeline_parallel.schedule import Action, Kind


def find_stall(
    lines: Sequence[Sequence[Action]],
    done: Sequence[int],
    computing: Sequence[bool],
) -> tuple[str, list[int]]:
    """Find the stage that stalls all ranks.

    A pipeline has come to a halt, and every rank that could continue has done
    so. You ask all, and each has an excuse: rank 0 waits for a gradient from
    rank 1, rank 1 waits for one from rank 2, ... Find out which it is that all
    ranks wait for, directly or not, and why. There is one reason:

        "computing"   a rank has what it needs, and does not come back from its
                      action. Look at that machine.
        "message"     what a rank waits for has been computed, and so sent, but
                      it did not come. Look at the link.
        "missing"     what a rank waits for, its neighbour never computes. Its
                      order has a hole.
        "circle"      ranks wait for each other. Nothing is broken, but their
                      orders cannot be followed.

    Rank r has stage r. Its next action is `lines[r][done[r]]`, unless it has
    done all of them. A forward needs the forward of the stage before on the
    same micro-batch, a backward needs the backward of the stage after. What the
    first stage needs forward, and the last one backward, is always there. A
    send returns at once.

    An action prints as F1.3: forward, stage 1, micro-batch 3. It is a tuple:
    `kind, stage, micro_batch = action`. `Action(Kind.FORWARD, 0, 3)` makes
    another one.

    Args:
        lines: of each rank, its actions in order.
        done: of each rank, how many of them it has finished.
        computing: of each rank, whether it is inside its next action. Else it
            waits, or has finished.

    Returns: the reason and the ranks that it concerns: ("computing", [rank]),
    ("message", [from, to]), ("missing", [the rank that has no such action]), or
    ("circle", [the ranks that wait for each other, ascending]). A rank that
    only waits for a circle is not in it.

    Budget: lines that grow with the number of ranks, not with that of
    micro-batches.
    """
    raise NotImplementedError("not solved yet")
