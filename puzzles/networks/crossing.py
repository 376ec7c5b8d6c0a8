"""networks.crossing: Where two algorithms cross.

rankwise check networks.crossing
rankwise hint networks.crossing

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def crossing(
    steps: tuple[float, float],
    bytes_: tuple[float, float],
    alpha: float,
    beta: float,
) -> float | None:
    """Where two algorithms cross.

    Two algorithms for one task, on links where a message of b bytes takes α +
    b/β seconds. The first takes `steps[0]` messages in a row, which carry
    `bytes_[0]` times the tensor's size in all; the second `steps[1]` and
    `bytes_[1]`. So with S bytes the first takes steps[0]·α + bytes_[0]·S/β
    seconds. At which S are they equally fast?

    A ring on 8 ranks against recursive doubling is steps=(14, 3), bytes_=(1.75,
    3.0).

    Args:
        steps: of the first and of the second.
        bytes_: how much each moves in a row, in multiples of the tensor's size.
        alpha: α, in seconds.
        beta: β, in bytes per second.

    Returns: the size in bytes, above 0; None if one is never faster than the
    other, at whatever size.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")
