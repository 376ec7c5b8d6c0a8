"""What is wrong with a sum, from the digits of one rank: rank r's part of a gradient is 10^r, so each digit counts one.

| fault     | what rank 0 finds                                                                    |
|-----------|--------------------------------------------------------------------------------------|
| missing   | ones for fewer ranks: for those along the other axes                                 |
| twice     | each digit as large as the axis has ranks: all of them already had the whole sum     |
| mean      | the whole sum over the number of ranks along the axis                                |

`reference.trace.ledger` names these and other faults, for any program.
"""

from collections.abc import Mapping, Sequence
from math import isclose


def find_the_missing_sum(
    sizes: Mapping[str, int], sums: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[float]]
) -> list[tuple[str, str, str]]:
    """(parameter, axis, fault) for each parameter whose sum is wrong, in the order of the parameters.

    Args:
        sizes: ranks along each axis, the outermost first.
        sums: for each parameter, the axes along which its gradient is to be summed.
        found: for each parameter, what each rank has found, where rank r's part was 10^r.
    """
    faults = []
    for name, axes in sums.items():
        value, whole = found[name][0], _sum_along(axes, sizes)
        if isclose(value, whole):
            continue
        for axis in axes:
            others = [other for other in axes if other != axis]
            would_be = {"missing": _sum_along(others, sizes), "twice": whole * sizes[axis], "mean": whole / sizes[axis]}
            fault = next((fault for fault, number in would_be.items() if isclose(value, number)), None)
            if fault:
                faults.append((name, axis, fault))
                break
    return faults


def _sum_along(axes: Sequence[str], sizes: Mapping[str, int]) -> int:
    """What rank 0 finds if each part along these axes is in it once: a factor for each, since 10^(a+b) = 10^a 10^b."""
    total, stride = 1, 1
    for axis in reversed(sizes):
        if axis in axes:
            total *= sum(10 ** (stride * place) for place in range(sizes[axis]))
        stride *= sizes[axis]
    return total
