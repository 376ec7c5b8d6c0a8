"""Cut layers into stages by a limit: what is the least that the most expensive stage can cost?

For a given limit it is plain what to do: fill a stage until the next layer does not fit, then begin another one. If
that takes no more stages than there are, a lower limit may do; if it takes more, the limit is too low. So bisect:
L log2(sum of costs) steps for L layers.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from reference.errors import BadInput


def balanced(costs: Sequence[int], stages: int) -> list[range]:
    """The layers of each stage, such that the most expensive stage costs the least.

    Args:
        costs: of each layer, in order; whole numbers, at least 1 each.
        stages: p; each gets a layer or more.

    Raises:
        BadInput: if there are fewer layers than stages, or if a cost is no such number.
    """
    if wrong := [cost for cost in costs if cost < 1 or cost % 1]:
        raise BadInput(f"costs are whole numbers, at least 1, not {wrong[0]}: take a finer unit")
    if not 1 <= stages <= len(costs):
        raise BadInput(f"{len(costs)} layers make 1 to {len(costs)} stages, not {stages}")
    return [range(begin, end) for begin, end in pairwise(accumulate(balance(costs, stages), initial=0))]


def balance(costs: Sequence[int], stages: int) -> list[int]:
    """How many layers each stage gets, such that the most expensive stage costs the least.

    Args:
        costs: of each layer, in order; whole numbers, at least 1 each.
        stages: p, at least 1 and at most as many as there are layers. Each gets a layer or more.
    """
    low, high = max(costs), sum(costs)
    while low < high:
        limit = (low + high) // 2
        if len(filled(costs, limit)) <= stages:
            high = limit
        else:
            low = limit + 1
    layers = filled(costs, low)
    while len(layers) < stages:  # two stages of what was one: neither costs more
        largest = layers.index(max(layers))
        layers[largest : largest + 1] = [1, layers[largest] - 1]
    return layers


def filled(costs: Sequence[int], limit: int) -> list[int]:
    """How many layers each stage has, if each is filled until the next layer would make it cost more than `limit`."""
    layers, cost = [], limit
    for each in costs:
        if cost + each > limit:
            layers.append(0)
            cost = 0
        layers[-1] += 1
        cost += each
    return layers
