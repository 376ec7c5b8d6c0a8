"""planning.average_stage: The mean of all stages is none of them.

rankwise check planning.average_stage
rankwise hint planning.average_stage

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def room_of_stages(
    memory: int,
    layers: list[int],
    micro_batches: int,
    state: int,
    activation: int,
    table: int,
    head: int,
) -> list[int] | None:
    """The mean of all stages is none of them.

    A schedule without bubbles has more micro-batches in flight than 1F1B: stage
    i of p begins with 2 (p - i) - 1 forwards before its first backward, or with
    the m of a step, if there are fewer. Where memory is short, fewer will do.
    So a planner tells each stage how many it has room for, and never more than
    it wants. This one is wrong, and this is what is known of it:

        a   the memory of all ranks together is as it says
        b   where stages are all alike, and the table and the head
            are small, it is right
        c   with a large vocabulary, the first rank runs out of
            memory, or the last one
        d   then ranks between them have memory that stays free
        e   where a stage has more layers than others, that one
            runs out of memory

    Stage i has layers[i] layers, each of `state` bytes that stay, and
    `activation` bytes for each micro-batch in flight. The first stage has the
    table of tokens besides, the last one the head; a single stage has both. A
    stage has room for as many micro-batches as fit beside what stays.

    Find what the planner assumes, and mend it.

    Args:
        memory: bytes of a rank. It may be full.
        layers: of each stage, in order; 1 or more.
        micro_batches: m.
        state: bytes of a layer that stay.
        activation: bytes of a layer for a micro-batch.
        table: bytes on the first stage.
        head: bytes on the last.

    Returns: a list with a number for each stage; None if a stage has no room
    for a single one.

    Budget: one look at each stage.
    """
    stages = len(layers)
    mean = sum(layers) / stages
    held = mean * state + (table + head) / stages
    limit = int((memory - held) // (mean * activation))
    room = [min(2 * (stages - stage) - 1, micro_batches, limit) for stage in range(stages)]
    return room if limit >= 1 else None
