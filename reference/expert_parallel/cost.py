"""What a layer of experts sends and keeps, in bytes: T tokens on each of n ranks, k experts each, D features.

| way                 | a rank sends in forward, and again in backward                                |
|---------------------|-------------------------------------------------------------------------------|
| one level           | its rows to experts elsewhere, and what its own made of others' rows: if all  |
|                     | experts are chosen equally often, 2 k T D (n-1)/n                             |
| two levels          | between nodes 2 T D for each copy but that on its own, inside as one level    |
| matrices on t ranks | each row that has arrived, to t - 1 more, and parts of the sums back          |

How many rows go where depends on the router. Formulas take the numbers of a real step; `copies` says what to expect of
a router that chooses all experts equally often. Before the rows, counts are exchanged: 8 bytes for each expert.
"""

from collections.abc import Sequence
from math import comb

import torch
from torch import Tensor

from reference.errors import BadInput

COUNT = 8  # bytes of a count, and of the number of an expert


def rows_between(chosen: Sequence[Tensor], experts: int) -> Tensor:
    """Rows from rank to rank, of ranks that have experts in equal blocks: [n, n] of int64.

    Args:
        chosen: experts of the tokens of each rank, [T, k], below 0 for none.
        experts: E, which n divides or not.
    """
    n = len(chosen)
    of_rank = -(-experts // n)
    rows = torch.zeros(n, n, dtype=torch.int64)
    for rank, each in enumerate(chosen):
        rows[rank] = torch.bincount(each[each >= 0].flatten() // of_rank, minlength=n)
    return rows


def one_level(rows: Tensor, width: int, experts: int, itemsize: int, chunks: int = 1) -> list[int]:
    """Bytes that each rank sends for one layer, forward and backward.

    Args:
        rows: from rank to rank, [n, n].
        width: D.
        experts: E.
        itemsize: bytes of a number.
        chunks: parts in which tokens travel; each has counts.
    """
    n = len(rows)
    away = rows - torch.diag(rows.diagonal())
    numbers = 2 * width * (away.sum(1) + away.sum(0))  # out and back, of activations and of their gradients
    counts = COUNT * chunks * (n - 1) * -(-experts // n)
    return [int(number) * itemsize + counts for number in numbers]


def copies_between(chosen: Sequence[Tensor], experts: int, ranks_of_node: int) -> Tensor:
    """Copies of tokens from rank to node, if each node that has some of a token's experts gets one: [n, M]."""
    n = len(chosen)
    nodes, of_node = n // ranks_of_node, -(-experts // n) * ranks_of_node
    copies = torch.zeros(n, nodes, dtype=torch.int64)
    for rank, each in enumerate(chosen):
        node_of = torch.where(each < 0, -1, each // of_node)
        for node in range(nodes):
            copies[rank, node] = (node_of == node).any(-1).sum()
    return copies


def between_nodes(copies: Tensor, width: int, k: int, itemsize: int) -> list[int]:
    """Bytes that each rank sends to other nodes for one layer on two levels, forward and backward.

    A copy is a row of D numbers, the numbers of its k experts there, and k weights; D numbers come back. Backward sends
    gradients of all but the numbers of experts.

    Args:
        copies: from rank to node, [n, M], of ranks in order of their nodes.
        width: D.
        k: experts of a token.
        itemsize: bytes of a number.
    """
    n, nodes = copies.shape
    of_node = n // nodes
    sent = []
    for rank in range(n):
        node, place = divmod(rank, of_node)
        out = int(copies[rank].sum() - copies[rank, node])
        into = int(copies[place::of_node, node].sum() - copies[rank, node])
        forward = out * ((width + k) * itemsize + COUNT * k) + into * width * itemsize
        backward = out * width * itemsize + into * (width + k) * itemsize
        sent.append(forward + backward + COUNT * (nodes - 1))
    return sent


def expected_copies(experts: int, k: int, nodes: int) -> float:
    """Nodes that have some of a token's k experts, on average, if all sets of k of E experts are equally likely.

    Raises:
        BadInput: if experts do not divide among nodes, or a token has more than there are.
    """
    if experts % nodes or not 1 <= k <= experts:
        raise BadInput(f"{experts} experts on {nodes} nodes, {k} for each token: take a divisor, and 1 to {experts}")
    elsewhere = comb(experts - experts // nodes, k) / comb(experts, k)
    return nodes * (1 - elsewhere)


def parameters_on_a_rank(parameters: int, experts: int, ep: int, etp: int = 1, shards: int = 1) -> int:
    """Numbers of a layer's experts that a rank keeps, at most.

    Args:
        parameters: of one expert.
        experts: E.
        ep: ranks that share out experts, the first with ceil(E / ep) of them.
        etp: ranks that share each matrix.
        shards: ranks along "edp", which share out what they would all keep (FSDP).
    """
    return -(-(-(-experts // ep) * parameters // etp) // shards)
