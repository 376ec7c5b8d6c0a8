"""Expert parallelism: a layer has many feed-forwards, each token meets a few of them, and they are on other ranks.

Read `plain.py`, then `dispatch.py` and `exchange.py`, `ops.py` and `lifted.py`. What experts and their router compute,
without ranks, is in `reference.models.moe` and `reference.models.routing`. A layer sends each token's row k times there
and back, forward and backward: 4 k D elements for each token, but for what stays on its rank.

    plain.py            count, permute, exchange, compute, and back: a layer over ranks in a page
    exchange.py         rows in flight, in forward and in backward
    dispatch.py         `plain.mixture` with chunks in flight, experts that do not divide, matrices that ranks share
    two_level.py        one copy to a node, however many of a token's experts are there
    ops.py              the ops of a model whose experts are shared out
    lifted.py           experts as a model of their own, since fewer ranks have replicas of them
    cost.py             what a layer sends on one level and on two, and keeps
    balancing.py        how busy experts are over all ranks, and a bias that evens it out without a loss
    placement.py        which experts lie where, with copies of busy ones, so that ranks have as much to do
    migration.py        experts and their optimizer state on the move between steps, and sums over copies
    lab/expert_choice.py  experts that choose tokens, for comparison: equally busy, and they look ahead
    lab/overlapped.py   two micro-batches share a rank: one sends while the other computes, with sleep and real messages
    lab/dispatch_actions.py  dispatch and combine as actions of a pipeline's schedule, each link a line of its own
    lab/watching.py     which experts tokens choose while a model runs, and where they go
    lab/published.py    what others have built and measured
    answers/biased.py   a bias that chooses and weighs nothing, and moves once a step
    answers/gradients.py  over which ranks gradients of routers and of experts are summed, and what divides them
    answers/by_node.py  the best experts of the best nodes
    answers/route.py    the best k experts of each token, and their weights
    answers/room.py     which choices of a window have room, where its tokens lie on several ranks
    answers/rows.py     rows in the order of their experts, and back, on one rank
    answers/exchange.py  counts first, then rows to the ranks of their experts, and what was made of them back
    answers/empty.py    a layer over ranks in which a rank may get no rows, and takes part all the same
    answers/auxiliary.py  the loss that keeps experts busy, as parts that add up over ranks
    answers/copies.py   one copy of a token to each node, and one row back
    answers/placing.py  experts by load, with copies, in a page
    answers/kept.py     a layer that is computed again in backward, by the experts of forward
    answers/sharing.py  what a rank sends where experts are whole, and where they are cut
"""

from .balancing import Balancing, StepLoad
from .dispatch import Dispatch
from .lifted import lift_experts
from .migration import migrate, migrate_optimizer, sum_copies
from .ops import ExpertParallel
from .placement import ExpertPlacement, place, place_by_node
from .two_level import TwoLevelDispatch

__all__ = [
    "Balancing",
    "Dispatch",
    "ExpertParallel",
    "ExpertPlacement",
    "StepLoad",
    "TwoLevelDispatch",
    "lift_experts",
    "migrate",
    "migrate_optimizer",
    "place",
    "place_by_node",
    "sum_copies",
]
