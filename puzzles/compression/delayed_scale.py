"""compression.delayed_scale: A scale from the past, and what it does not see.

rankwise check compression.delayed_scale
rankwise hint compression.delayed_scale

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def delayed_scales(
    largest: list[float], steps: int, margin: int
) -> list[tuple[int, bool]]:
    """A scale from the past, and what it does not see.

    To round a tensor to fp8 one needs a scale before the product, and the
    largest number only after one has looked at all of it: a pass over memory
    more, and between ranks a message more. Delayed scaling takes the largest
    number of the last steps instead, and looks at the present one behind the
    product. If numbers grow faster than the past knows, they overflow: they are
    cut off at the largest that there is, 448 times the scale, and nothing is
    said.

    Write down what a run would have met. The scale of a step is 2^exponent, the
    smallest power of two for which the largest of the last `steps` steps before
    it is at most 448 times the scale; then `margin` more, to leave room. The
    first step has no past: there take its own largest number. A step overflows
    if its own largest number is more than 448 times its scale.

    Args:
        largest: a list of floats above 0, the largest absolute value of each
            step.
        steps: how many steps are remembered, 1 or more; fewer at the beginning.
        margin: powers of two that are left free, 0 or more.

    Returns: a list of (exponent, overflows), an int and a bool for each step.

    Budget: histories of thousands of steps: don't look at each of them in each
    step.
    """
    raise NotImplementedError("not solved yet")
