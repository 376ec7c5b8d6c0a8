"""Drives of the chapter `expert_parallel`: routers, and what surrounds them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from . import gone_back, group_of, plain, there_and_back


def in_micro_batches_of_scores(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """It returns experts and their weights for each tensor of the argument `scores`. Go backward from the weights.

    The argument `upstream` has a gradient for the weights of each. Compare these, gradients, and `bias` afterwards.
    """
    scores, upstream = arguments["scores"], arguments.pop("upstream")
    for each in scores:
        each.requires_grad_()
    routed = function(**arguments)
    if not _are_pairs(routed, len(scores)):
        return {"returns": routed}
    found = {"bias": arguments["bias"].detach()}
    for number, ((chosen, weights), of_weights) in enumerate(zip(routed, upstream, strict=True)):
        found[f"experts of micro-batch {number}"] = chosen
        found[f"weights of micro-batch {number}"] = gone_back(weights, of_weights)
    return found | {f"gradient of scores {number}": each.grad for number, each in enumerate(scores)}


def _are_pairs(routed: Any, number: int) -> bool:
    """Whether that is a list of so many pairs of tensors."""
    some = isinstance(routed, Sequence) and len(routed) == number
    return some and all(
        isinstance(each, tuple | list) and len(each) == 2 and all(isinstance(x, Tensor) for x in each)
        for each in routed
    )


def with_groups_of_experts(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it with two more groups: `ep`, ranks that have all experts together, and `edp`, those with the same ones.

    The argument `ranks_of_experts` says how many neighbouring ranks have all experts; the function does not see it.
    """
    size, group = arguments.pop("ranks_of_experts"), arguments["group"]
    ranks, rank = dist.get_process_group_ranks(group), dist.get_rank(group)
    begin = rank // size * size
    ep, edp = group_of(ranks[begin : begin + size]), group_of(ranks[rank % size :: size])
    return plain(lambda **given: function(**given, ep=ep, edp=edp), arguments)


def with_experts_of_a_node(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """As `there_and_back`; give it `compute`, which has the experts of one node, as many on each rank's.

    Experts have no parameters. It refuses those that are on another node.
    """
    group, experts = arguments["group"], arguments["experts"]
    of_node = experts // dist.get_world_size(group)
    first = dist.get_rank(group) * of_node

    def compute(rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        here = chosen >= 0
        others = chosen[here & ((chosen < first) | (chosen >= first + of_node))]
        if others.numel():
            raise IndexError(f"this node has experts {first} to {first + of_node - 1}, and no {int(others[0])}")
        return (made_by(rows[:, None], chosen[..., None]) * (weights * here)[..., None]).sum(1)

    return there_and_back(lambda **given: function(**given, compute=compute), arguments)


def made_by(rows: Tensor, experts: Tensor) -> Tensor:
    """What experts of these numbers make of rows."""
    return (rows * (1 + experts) / 4).tanh()
