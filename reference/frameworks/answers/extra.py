"""All-reduces that a step could do without, by what went into each and what came out."""

from collections import defaultdict
from collections.abc import Sequence


def extra_all_reduces(said: Sequence[tuple[str, tuple[int, ...], int, int]]) -> list[int]:
    """The places of calls that sum what has been summed already.

    Args:
        said: the calls of one rank in order, (operation, ranks, fingerprint of the input, fingerprint of the output).

    Returns:
        Places in `said`, ascending, of each all-reduce whose input an earlier one over the same ranks had, too, or is
        what an earlier one over these ranks, and perhaps others, has given.
    """
    summed, results = defaultdict(set), defaultdict(list)
    found = []
    for place, (operation, ranks, before, after) in enumerate(said):
        if operation != "all_reduce":
            continue
        if ranks in summed[before] or any(set(ranks) <= group for group in results[before]):
            found.append(place)
        summed[before].add(ranks)
        results[after].append(set(ranks))
    return found
