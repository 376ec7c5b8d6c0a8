"""α and β from a ping-pong: time messages of many sizes, and draw the line through them.

A ping-pong of b bytes takes 2 (α + b/β): there and back. So half of its time, over b, is a line that begins at α and
rises by 1/β.
"""

from collections.abc import Sequence

from reference.errors import BadInput


def alpha_beta(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """(α in seconds, β in bytes per second) of the line through one-way times.

    Args:
        sizes: bytes of each message, at least two different ones.
        seconds: one-way time of each: half of its ping-pong.

    Raises:
        BadInput: if these make no line, or one that does not rise.

    Small messages say α and large ones say β, yet their times differ by orders of magnitude. So it is the relative
    error that is made small: least squares, each time weighed by 1/time^2.
    """
    if len(sizes) != len(seconds):
        raise BadInput(f"each message has a size and a time, not {len(sizes)} sizes and {len(seconds)} times")
    if len(set(sizes)) < 2:
        raise BadInput(f"a line needs two sizes, not {len(set(sizes))}: measure a larger message, too")
    if not all(t > 0 for t in seconds):
        raise BadInput(f"a message takes time, above 0 s, not {min(seconds)}")
    weights = [1 / t**2 for t in seconds]
    total = sum(weights)
    mean_size = sum(w * s for w, s in zip(weights, sizes, strict=True)) / total
    mean_time = sum(w * t for w, t in zip(weights, seconds, strict=True)) / total
    covariance = sum(w * (s - mean_size) * (t - mean_time) for w, s, t in zip(weights, sizes, seconds, strict=True))
    variance = sum(w * (s - mean_size) ** 2 for w, s in zip(weights, sizes, strict=True))
    slope = covariance / variance
    if not slope > 0:
        raise BadInput("time does not grow with size: measure larger messages")
    return mean_time - slope * mean_size, 1 / slope
