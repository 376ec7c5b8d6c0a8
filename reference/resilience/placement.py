"""On whose nodes copies of a node's state lie, so that as many losses as possible lose nothing (Wang et al. 2023).

With m copies of everything, its own counted, any m - 1 nodes may die. Whether m or more may depends on who holds whose.
Gemini (https://doi.org/10.1145/3600006.3613145) divides the nodes into groups of m that hold each other's state: only
the loss of a whole group loses something, and there are fewest of these. In a ring, where each node sends to the next
ones, any m neighbours may be such a loss. Where m does not divide the nodes, the last group is larger, and a ring.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import comb

from reference.errors import BadInput

Placement = tuple[tuple[int, ...], ...]
"""Of each node, the nodes that hold its state; itself first."""


def grouped(nodes: int, copies: int) -> Placement:
    """Gemini's placement: groups of as many nodes as there are copies; the rest joins the last group, a ring.

    Raises:
        BadInput: if there are fewer nodes than copies, or no copies.
    """
    require(nodes, copies)
    placed: list[tuple[int, ...]] = []
    last = nodes // copies - 1
    for group in range(last + 1):
        members = range(group * copies, nodes if group == last else (group + 1) * copies)
        placed += [tuple(members[(place + k) % len(members)] for k in range(copies)) for place in range(len(members))]
    return tuple(placed)


def ring(nodes: int, copies: int) -> Placement:
    """Each node's state on itself and on the next ones.

    Raises:
        BadInput: as `grouped`.
    """
    require(nodes, copies)
    return tuple(tuple((node + k) % nodes for k in range(copies)) for node in range(nodes))


def survives(placement: Placement, lost: Iterable[int]) -> bool:
    """Whether a copy of everything is left when these nodes are lost at once."""
    gone = set(lost)
    return all(any(holder not in gone for holder in holders) for holders in placement)


def share_survived(placement: Placement, losses: int) -> float:
    """Of all ways to lose so many nodes at once, the share that loses no state: by counting them."""
    nodes = len(placement)
    good = sum(survives(placement, lost) for lost in combinations(range(nodes), losses))
    return good / comb(nodes, losses)


def of_ranks(place: Callable[[int, int], Placement], nodes: Sequence[str], copies: int) -> Placement:
    """Of each rank, the ranks that hold its state: of another node each, with the same place there where there is one.

    Args:
        place: `grouped` or `ring`.
        nodes: of each rank, the name of its node. Where all are on one, each rank counts as a node.
        copies: of each rank's state, its own counted; with fewer nodes there are fewer copies.
    """
    names = list(dict.fromkeys(nodes))
    if len(names) == 1:
        return place(len(nodes), min(copies, len(nodes)))
    members = {name: [rank for rank, node in enumerate(nodes) if node == name] for name in names}
    placed = place(len(names), min(copies, len(names)))

    def holders(rank: int) -> tuple[int, ...]:
        at = members[nodes[rank]].index(rank)
        others = (members[names[node]] for node in placed[names.index(nodes[rank])][1:])
        return rank, *(ranks[at % len(ranks)] for ranks in others)

    return tuple(map(holders, range(len(nodes))))


def require(nodes: int, copies: int) -> None:
    """Raises BadInput for a number of copies that so many nodes cannot hold."""
    if not 1 <= copies <= nodes:
        raise BadInput(f"{nodes} nodes can hold 1 to {nodes} copies of everything, not {copies}")
