"""pipeline_parallel.pipeline_and_fsdp: Pipeline and FSDP at once.

rankwise check pipeline_parallel.pipeline_and_fsdp
rankwise hint pipeline_parallel.pipeline_and_fsdp

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist

from reference.pipeline_parallel.passes import Free, Gather, Reduce
from reference.pipeline_parallel.schedule import Action, Kind


def pipeline_and_fsdp(
    rank: int, p: int, v: int, m: int
) -> list[Action | Gather | Free | Reduce]:
    """Pipeline and FSDP at once.

    The last of Sasha Rush's LLM training puzzles: 16 ranks, a pipeline of p =
    4, and in each of its places 4 ranks that share the same stages. A stage is
    a layer, and stages are dealt out like cards: rank r of the pipeline has the
    stages r, p + r, 2p + r, ... Of each it has a shard alone, as in FSDP. Write
    the program of one rank for one step, as a list of

        Gather(stage)             begin to gather its weight. The rank continues
                                  at once; a pass through the stage waits until
                                  it is there. One gather follows the other.
        Free(stage)               let go of the weight.
        Action(Kind.FORWARD, stage, micro_batch)
        Action(Kind.BACKWARD, stage, micro_batch)
                                  compute, and send what another rank needs;
                                  wait for what this one needs. The stage must
                                  be whole. Backward adds to the whole gradient
                                  of the stage.
        Reduce(Action(Kind.BACKWARD, stage, micro_batch))
                                  the same, and then begin to sum the whole
                                  gradient over those who share the stage, and
                                  keep a shard. The rank continues at once.

    All who share a stage run the same program, each with its own part of the
    batch. The check runs it on ranks where there are up to 8, and on 16 in
    simulation.

    You may order the work as you like, within these limits: of weights, a rank
    has two stages whole at a time at most, the one that computes and another
    one; of gradients, one. Each stage is gathered twice at most. And the step
    is short: per stage, a forward takes 1 unit of time, a backward 2, a message
    1/4, to gather or to sum 2.

    Args:
        rank: r, of the p ranks of the pipeline.
        p: ranks of the pipeline.
        v: stages on each of them.
        m: micro-batches: so many that a rank is busy until the first is back
            from its way through the others.

    Returns: the program, a list. In the end all is computed, all gradients are
    summed, and no stage is whole.

    Budget: two gathers and a sum of each stage; around the turn, two gathers
    can be spared. The time of all work, of one gather, of one sum, and of the
    way through the pipeline, there and back: 3 v m + 2·2 + 3.5 (p-1).
    """
    raise NotImplementedError("not solved yet")
