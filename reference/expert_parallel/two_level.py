"""A token travels once to each node, however many of its experts are there.

Links between nodes are the slow ones. If a token's k experts lie on M nodes, k rows would cross them, and M are enough:

    across     a copy to each node that has some of its experts, to the rank with the same place in there
    inside     from there as ever, between the ranks of the node: `dispatch`
    back       what a node's experts make of a token is weighed and added there, so that one row goes back

So weights travel along. With `top_groups` a router sees to it that M is small (DeepSeek-AI 2024, "DeepSeek-V3", sec.
2.1.2 and 3.2.2: 8 experts of 256, on 4 nodes at most).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from reference.collectives.communicator import Communicator
from reference.models.by_expert import Compute
from reference.models.routing import NOWHERE

from .dispatch import Dispatch
from .exchange import Exchange, exchange_counts, start_exchange


class TwoLevelDispatch:
    """Experts in blocks on the ranks of several nodes.

    Args:
        across: M ranks, one of each node, with the same place in there.
        inside: ranks of this node.
        experts: E, on all nodes: as many on each.
        sharing, chunks: as for `Dispatch`.
    """

    def __init__(
        self,
        across: Communicator,
        inside: Communicator,
        experts: int,
        sharing: Communicator | None = None,
        chunks: int = 1,
    ) -> None:
        self.across, self.of_node = across, -(-experts // (across.size() * inside.size())) * inside.size()
        first = min(across.rank() * self.of_node, experts)
        self.here = min(self.of_node, experts - first)
        self.inside = Dispatch(inside, self.of_node, sharing, chunks)
        self.inside.here = min(self.inside.of_rank, max(0, self.here - inside.rank() * self.inside.of_rank))

    def start(self, compute: Compute, x: Tensor, chosen: Tensor, weights: Tensor) -> Callable[[], Tensor]:
        """As `Ops.start_experts`: [B, S, D] -> [B, S, D], when it is finished. All ranks call it."""
        tokens, chosen, weights = (part.flatten(0, 1) for part in (x, chosen, weights))
        nodes = torch.arange(self.across.size(), device=x.device)
        node_of = torch.where(chosen < 0, NOWHERE, chosen // self.of_node)
        is_there = (node_of[None] == nodes[:, None, None]).any(-1)  # [M, T]
        node, token = is_there.nonzero(as_tuple=True)  # of each copy, node by node
        stays = node_of[token] == node[:, None]  # [N, k]: choices that a copy is for
        sent = is_there.sum(1).cpu()
        received = exchange_counts(sent, self.across)()
        there = (self.across, sent.tolist(), received.tolist())
        numbers = (chosen[token] - node[:, None] * self.of_node).masked_fill(~stays, NOWHERE)
        arriving = [start_exchange(part, Exchange(*there)) for part in (tokens[token], numbers, weights[token] * stays)]
        rows, numbers, weights = (arrive()[None] for arrive in arriving)
        made = self.inside.start(compute, rows, numbers, weights)()[0]
        back = start_exchange(made, Exchange(*there).reversed())

        def finish() -> Tensor:
            return torch.zeros_like(tokens).index_add(0, token, back()).view_as(x)

        return finish
