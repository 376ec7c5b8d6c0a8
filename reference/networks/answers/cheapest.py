"""Which all-reduce for which size: small tensors pay for steps, large ones for bytes."""

from reference.networks.plain import halving_doubling_time, naive_time, recursive_doubling_time, ring_time

TIMES = {
    "naive": naive_time,
    "ring": ring_time,
    "recursive doubling": recursive_doubling_time,
    "halving-doubling": halving_doubling_time,
}


def best_algorithm(ranks: int, size: float, alpha: float, beta: float) -> str:
    """Name of the fastest all-reduce of `TIMES` for `size` bytes on `ranks` ranks; the first one named, on a tie.

    Args:
        ranks: n.
        size: bytes of the tensor that each rank brings.
        alpha: latency of a message, in seconds.
        beta: bandwidth of a link in one direction, in bytes per second.
    """
    return min(TIMES, key=lambda name: TIMES[name](ranks, size, alpha, beta))


def crossing(steps: tuple[float, float], bytes_: tuple[float, float], alpha: float, beta: float) -> float | None:
    """Size at which two algorithms take the same time; None if one is faster at every size.

    Args:
        steps: how many messages in a row each takes: the time without any bytes, in α.
        bytes_: how much each moves in a row, in multiples of the tensor's size.
        alpha: latency of a message, in seconds.
        beta: bandwidth of a link in one direction, in bytes per second.

    From steps[0] α + bytes_[0] S/β = steps[1] α + bytes_[1] S/β.
    """
    more_steps, fewer_bytes = steps[0] - steps[1], bytes_[1] - bytes_[0]
    if more_steps * fewer_bytes <= 0:
        return None
    return more_steps / fewer_bytes * alpha * beta
