"""Copies in groups of nodes that share no rack: the fewest losses are fatal (Gemini: Wang et al. 2023)."""


def place_copies(racks: int, nodes: int, copies: int) -> list[list[int]]:
    """Of each node the nodes that hold its state, itself first.

    Args:
        racks: how many there are.
        nodes: of a rack. Node i is in rack i // nodes.
        copies: of each state, its own counted; at most as many as racks, and a divisor of all nodes.
    """
    order = [rack * nodes + place for place in range(nodes) for rack in range(racks)]  # neighbours share no rack
    holders = [[] for _ in order]
    for begin in range(0, len(order), copies):
        group = order[begin : begin + copies]
        for node in group:
            holders[node] = [node, *(other for other in group if other != node)]
    return holders
