"""What a layer of experts sends. Exact for any routing, and expected where tokens choose evenly.

One layer, n ranks with other tokens and E/n experts each. A *row* is one token's D numbers that go to one expert:

| dispatch  | forward                                 | backward                                     |
|-----------|-----------------------------------------|----------------------------------------------|
| one level | a row for each choice, and one back     | the same: gradients travel the other way     |
| two       | across: a copy to each node, with k     | the same, and k gradients of weights back;   |
|           | numbers of experts and k weights; inside: rows as above                                |

So with one level a token costs 4·k·D numbers, but for what stays on its rank. With two, and copies to M of the nodes,
4·M·D + 2·k·M numbers and k·M integers cross between nodes, however large k is. Counts that go before the rows, 8 bytes
for each expert or node, are latency and hardly bytes.

Lepikhin et al. 2020, "GShard", sec. 3.2; DeepSeek-AI 2024, "DeepSeek-V3", sec. 3.2.2.
"""

from dataclasses import dataclass
from math import comb

import torch
from torch import Tensor

from reference.errors import BadInput

INTEGER = 8  # bytes of a count, or of the number of an expert


@dataclass(frozen=True)
class Routes:
    """Which experts the tokens of each rank go to, in one layer.

    Attributes:
        chosen: of each rank, [T, k] of int64; a number below 0 goes nowhere. Ranks may have different T.
        experts: E, in blocks of E / n on the ranks.
        nodes: that ranks fill in order, as many each.

    Raises:
        BadInput: if experts do not divide among ranks, or ranks among nodes.
    """

    chosen: tuple[Tensor, ...]
    experts: int
    nodes: int = 1

    def __post_init__(self) -> None:
        if not self.chosen or self.experts % self.ranks:
            raise BadInput(f"{self.experts} experts do not divide among {self.ranks} ranks")
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
        """Experts of a rank."""
        return self.experts // self.ranks

    def counts(self) -> Tensor:
        """[n, E] of int64: how many rows each rank has for each expert."""
        kept = [of_rank[of_rank >= 0] for of_rank in self.chosen]
        return torch.stack([torch.bincount(of_rank, minlength=self.experts) for of_rank in kept])

    def rows(self) -> Tensor:
        """[n, n] of int64: rows from each rank to each, a row for each choice."""
        return self.counts().view(self.ranks, self.ranks, self.here).sum(-1)

    def copies(self) -> Tensor:
        """[n, nodes] of int64: tokens of each rank that have an expert on each node."""
        of_node = self.experts // self.nodes
        numbers = torch.arange(self.nodes)
        found = [(of_rank[:, :, None] // of_node == numbers).any(1).sum(0) for of_rank in self.chosen]
        return torch.stack(found)


def sent(routes: Routes, width: int, size: int) -> list[int]:
    """Bytes that each rank sends with one level, forward and backward, counts and all.

    Args:
        routes: who goes where.
        width: D.
        size: bytes of an element.
    """
    rows, others = routes.rows(), routes.ranks - 1
    leave = rows.sum(1) - rows.diagonal()
    arrive = rows.sum(0) - rows.diagonal()
    counted = INTEGER * others * routes.here
    return [2 * width * size * int(out + back) + counted for out, back in zip(leave, arrive, strict=True)]


def sent_across(routes: Routes, width: int, size: int) -> int:
    """Bytes that cross between nodes with two levels, forward and backward, over all ranks. Arguments as for `sent`."""
    copies, k = routes.copies(), routes.top_k
    node_of = torch.arange(routes.ranks) // (routes.ranks // routes.nodes)
    crossing = int(copies.sum() - copies.gather(1, node_of[:, None]).sum())
    counted = INTEGER * routes.ranks * (routes.nodes - 1)
    return crossing * ((4 * width + 2 * k) * size + k * INTEGER) + counted


def expected_nodes(experts: int, top_k: int, nodes: int) -> float:
    """On how many nodes the experts of a token lie, on average, if it chooses any k of E with equal chances."""
    elsewhere = experts - experts // nodes
    return nodes * (1 - comb(elsewhere, top_k) / comb(experts, top_k))
