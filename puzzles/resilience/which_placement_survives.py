"""resilience.which_placement_survives: The placement that survives.

rankwise check resilience.which_placement_survives
rankwise hint resilience.which_placement_survives

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def place_copies(racks: int, nodes: int, copies: int) -> list[list[int]]:
    """The placement that survives.

    Copies of each node's state lie in the memory of other nodes. A loss of some
    nodes at once is fatal if all that hold the same state are among them. Which
    losses these are depends on who holds whose copy, and on nothing else:
    memory and messages are the same for all placements.

    Nodes also stand in racks, and a rack has one switch: if it fails, all its
    nodes are gone. Place the copies so that no rack's loss is fatal, and as few
    sets of `copies` nodes as there can be.

        16 nodes in 2 racks, 2 copies of each state
        on the next node     16 of 120 pairs are fatal
        in pairs              8 of 120; one whole rack still is,
                              if both of a pair are in it

    Args:
        racks: how many there are, at least `copies`.
        nodes: of each rack. Node i is in rack i // nodes.
        copies: m, of each state, the one on its own node counted. It divides
            the number of all nodes.

    Returns: for each node a list of the m nodes that hold its state, itself
    first. No node may hold more than m states.

    Budget: 20 lines, and 20 for each node; 9,600 nodes in two seconds of
    processor time.
    """
    raise NotImplementedError("not solved yet")
