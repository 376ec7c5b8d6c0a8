"""decentralized.bytes_of_a_day: The bytes of a day.

rankwise check decentralized.bytes_of_a_day
rankwise hint decentralized.bytes_of_a_day

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def bytes_of_a_day(
    elements: int,
    islands: int,
    inner_steps: int,
    seconds: float,
    bits: int,
    megabits: float,
    duration: float,
) -> tuple[float, float]:
    """The bytes of a day.

    Islands are joined by slow links. Each takes H inner steps and then meets
    the others by a ring all-reduce of all parameters, in which it does not
    compute; and so on, all day. How much does an island send, and for what
    share of the day does it compute? With 10 billion parameters and H = 1 the
    answer is sobering; with H = 100 and int8 it is INTELLECT-1.

    Count as if days had parts of rounds, and leave out latencies.

    Args:
        elements: parameters of the model.
        islands: n, 1 or more.
        inner_steps: H, of a round.
        seconds: of an inner step.
        bits: of each element in a message.
        megabits: of a link, 10^6 bits a second in each direction.
        duration: of training, in seconds: 86,400 for a day.

    Returns: (bytes that an island sends, the share of time in which it
    computes).

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")
