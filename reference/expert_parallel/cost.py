"""What a layer of experts sends. Exact for any routing, and expected where tokens choose evenly.

One layer, n ranks with other tokens and E/n experts each. A *row* is one token's D numbers that go to one expert:

| dispatch  | forward                                 | backward                                     |
|-----------|-----------------------------------------|----------------------------------------------|
| one level | a row for each choice, and one back     | the same: gradients travel the other way     |
| two       | across: a copy to each node, with k     | the same, and k gradients of weights back;   |
|           | numbers of experts and k weights; inside: rows as above                                |

Ranks that share the matrices of the same experts send each other all rows that have come, and return parts of sums.

So with one level a token costs 4·k·D numbers, but for what stays on its rank. With two, and copies to M of the nodes,
4·M·D + 2·k·M numbers and k·M integers cross between nodes, however large k is. Counts that go before the rows, 8 bytes
for each expert or node, are latency and hardly bytes.

Lepikhin et al. 2020, "GShard", sec. 3.2; DeepSeek-AI 2024, "DeepSeek-V3", sec. 3.2.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import torch
from torch import Tensor

from reference.errors import BadInput
from reference.models.routing import NOWHERE

INTEGER = 8  # bytes of a count, or of the number of an expert


@dataclass(frozen=True)
class Routes:
    """Which experts the tokens of each rank go to, in one layer.

    Attributes:
        chosen: of each rank, [T, k] of int64; a number below 0 goes nowhere. Ranks may have different T.
        experts: E, in blocks of equal size on the ranks; the last ones have fewer if n does not divide E.
        nodes: that ranks fill in order, as many each.

    Raises:
        BadInput: if ranks do not divide among nodes, or a token goes to an expert that there is not.
    """

    chosen: tuple[Tensor, ...]
    experts: int
    nodes: int = 1

    def __post_init__(self) -> None:
        if not self.chosen or self.experts < 1:
            raise BadInput(f"{self.experts} experts on {self.ranks} ranks: there is 1 or more of both")
        if self.nodes < 1 or self.ranks % self.nodes:
            raise BadInput(f"{self.ranks} ranks do not divide among {self.nodes} nodes")
        if max((int(of_rank.max()) for of_rank in self.chosen if of_rank.numel()), default=0) >= self.experts:
            raise BadInput(f"a token goes to an expert that there is not: there are {self.experts}")

    @property
    def ranks(self) -> int:
        """n."""
        return len(self.chosen)

    @property
    def top_k(self) -> int:
        """k."""
        return self.chosen[0].shape[1]

    @property
    def here(self) -> int:
        """Experts of a rank, at most."""
        return -(-self.experts // self.ranks)

    def counts(self) -> Tensor:
        """[n, E] of int64: how many rows each rank has for each expert."""
        kept = [of_rank[of_rank >= 0] for of_rank in self.chosen]
        return torch.stack([torch.bincount(of_rank, minlength=self.experts) for of_rank in kept])

    def rows(self) -> Tensor:
        """[n, n] of int64: rows from each rank to each, a row for each choice."""
        padded = torch.zeros(self.ranks, self.ranks * self.here, dtype=torch.int64)
        padded[:, : self.experts] = self.counts()
        return padded.view(self.ranks, self.ranks, self.here).sum(-1)

    def copies(self) -> Tensor:
        """[n, nodes] of int64: tokens of each rank that have an expert on each node."""
        of_node, numbers = self.here * (self.ranks // self.nodes), torch.arange(self.nodes)
        found = [(of_rank[:, :, None] // of_node == numbers).any(1).sum(0) for of_rank in self.chosen]
        return torch.stack(found)


def sent(routes: Routes, width: int, size: int, chunks: int = 1, forwards: int = 1) -> list[int]:
    """Bytes that each rank sends with one level, forward and backward, counts and all.

    Args:
        routes: who goes where.
        width: D.
        size: bytes of an element.
        chunks: parts in which tokens travel; each has counts of its own.
        forwards: how often forward runs: twice where a block is computed again.
    """
    rows, others = routes.rows(), routes.ranks - 1
    leave = rows.sum(1) - rows.diagonal()
    arrive = rows.sum(0) - rows.diagonal()
    counted = INTEGER * chunks * others * routes.here
    passes = forwards + 1
    return [
        passes * width * size * int(out + back) + forwards * counted for out, back in zip(leave, arrive, strict=True)
    ]


def sent_across(routes: Routes, width: int, size: int) -> int:
    """Bytes that cross between nodes with two levels, forward and backward, over all ranks. Arguments as for `sent`."""
    return sum(sent_across_by_rank(routes, width, size))


def sent_across_by_rank(routes: Routes, width: int, size: int, chunks: int = 1, forwards: int = 1) -> list[int]:
    """The same, of each rank: what it sends, and what it sends back to the ranks whose copies came to it.

    Arguments as for `sent`; tokens cross between nodes in one part for each micro-batch.
    """
    copies, k, of_node = routes.copies(), routes.top_k, routes.ranks // routes.nodes
    found = []
    for rank in range(routes.ranks):
        node, place = divmod(rank, of_node)
        leave = int(copies[rank].sum() - copies[rank, node])
        arrive = int(copies[place::of_node, node].sum() - copies[rank, node])
        forward = leave * ((width + k) * size + k * INTEGER) + arrive * width * size
        backward = leave * width * size + arrive * (width + k) * size
        found.append(forwards * (forward + chunks * INTEGER * (routes.nodes - 1)) + backward)
    return found


def inside(routes: Routes, node: int) -> Routes:
    """Which of a node's experts the copies go to that have come there: the second level, on the ranks of that node."""
    of_node = routes.ranks // routes.nodes
    experts = routes.here * of_node
    here = [numbers - node * experts for numbers in routes.chosen]
    kept = [numbers.masked_fill((numbers < 0) | (numbers >= experts), NOWHERE) for numbers in here]
    return Routes(tuple(torch.cat(kept[place::of_node]) for place in range(of_node)), experts)


def sent_between_shares(
    rows: Sequence[int], counted: int, width: int, size: int, chunks: int = 1, forwards: int = 1
) -> list[int]:
    """Bytes that each of some ranks sends that share the matrices of the same experts: each needs the rows of all.

    Args:
        rows: that have come to each of them.
        counted: numbers that a rank tells each other of a part: of each expert, those from each rank along "ep".
        width, size, chunks, forwards: as for `sent`.
    """
    others = len(rows) - 1
    leave_and_return = [others * own + sum(rows) - own for own in rows]
    counts = forwards * chunks * INTEGER * others * counted
    return [(forwards + 1) * width * size * numbers + counts for numbers in leave_and_return]


def expected_nodes(experts: int, top_k: int, nodes: int) -> float:
    """On how many nodes the experts of a token lie, on average, if it chooses any k of E with equal chances.

    Raises:
        BadInput: if experts do not divide among nodes, or a token has more than there are.
    """
    if experts % nodes or not 1 <= top_k <= experts:
        raise BadInput(
            f"{experts} experts on {nodes} nodes, {top_k} for each token: take a divisor, and 1 to {experts}"
        )
    elsewhere = experts - experts // nodes
    return nodes * (1 - comb(elsewhere, top_k) / comb(experts, top_k))


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
