"""Pipeline and FSDP together: a rank has v of the stages, and of each of them only a shard.

A stage must be whole while it computes. So to go through all stages with one micro-batch, and then with the next, is to
gather every stage m times in each direction, or to keep all of them whole. Breadth-first, all m micro-batches pass one
stage, and then the next one of this rank: it is gathered once for all of them, while the stage before computes.

| a rank of p ranks, v stages on each, n shards, m micro-batches | bubble        | gathered     | whole at a time |
|----------------------------------------------------------------|---------------|--------------|-----------------|
| 1F1B, one stage of v layers                                    | (p-1) v (F+B) | once         | v layers        |
| 1F1B, layers gathered for each micro-batch                     | (p-1) v (F+B) | 2 m v layers | 2 layers        |
| breadth-first, v stages of a layer, p apart                    | (p-1) (F+B)   | 2 v layers   | 2 layers        |

F and B are the times of a layer. The price: activations of all m micro-batches are held.

Lamy-Poirier 2023, "Breadth-first pipeline parallelism"; Rush 2023, "LLM training puzzles", of which this is the last.
"""

from reference.pipeline_parallel.passes import Free, Gather, Reduce
from reference.pipeline_parallel.schedule import Action, Kind


def pipeline_and_fsdp(rank: int, p: int, v: int, m: int) -> list[Action | Gather | Free | Reduce]:
    """What a rank of the pipeline does in one step. Two of its stages are whole: the two that are needed next.

    Args:
        rank: of p. It has the stages rank, p + rank, 2p + rank, ..., and those who share it do the same.
        p: ranks of the pipeline.
        v: stages on each.
        m: micro-batches.
    """
    own = [chunk * p + rank for chunk in range(v)]
    order = [(Kind.FORWARD, stage) for stage in own] + [(Kind.BACKWARD, stage) for stage in reversed(own)]
    program, whole = [], []
    for at, (kind, stage) in enumerate(order):
        soon = list(dict.fromkeys(stage for _, stage in order[at:]))[:2]
        program += [Free(other) for other in whole if other not in soon]
        program += [Gather(other) for other in soon if other not in whole]
        whole = soon
        program += [Action(kind, stage, k) for k in range(m)]
        if kind is Kind.BACKWARD:
            program[-1] = Reduce(program[-1])
    return program + [Free(stage) for stage in whole]
