"""Drives of the chapter `expert_parallel`: routers, and what surrounds them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.expert_parallel.answers.exchange import combine, counts_first, dispatch

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


LAST_BITS = 1e-11  # by which scores of the same tokens differ from call to call


class _Router:
    """Scores of which the last bits speak for even experts when it is called first, and for odd ones after that."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.calls = weight, 0

    def __call__(self, x: Tensor) -> Tensor:
        sign = -1 if self.calls else 1
        self.calls += 1
        return (x @ self.weight.T).sigmoid() + sign * last_bits(len(self.weight))


def last_bits(experts: int) -> Tensor:
    """What is added to scores: [E]."""
    return LAST_BITS * (1 - 2 * (torch.arange(experts) % 2)).double()


def of_experts(rows: Tensor, experts: Tensor, counts: Sequence[int]) -> Tensor:
    """What experts [E, D, D] make of rows in their order."""
    parts = zip(rows.split(list(counts)), experts, strict=True)
    return torch.cat([torch.nn.functional.linear(part, expert).tanh() for part, expert in parts])


def in_two_micro_batches(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a layer for each x of the argument `x`, forward and forward, then go backward from both.

    Give it `scores_of`, a router, and `compute`, experts of all ranks. Compare outputs, `load`, and the gradients of x,
    of the router and of this rank's experts.
    """
    leaves = {name: arguments.pop(name).requires_grad_() for name in ("x", "router", "experts")}
    x, router, experts = leaves.values()
    upstream, group = arguments.pop("upstream"), arguments["group"]

    def compute(x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        return _over_ranks(x, chosen, weights, experts, group)

    outputs = [function(x=each, scores_of=_Router(router), compute=compute, **arguments) for each in x]
    if not all(isinstance(each, Tensor) for each in outputs):
        return {"returns": outputs[0]}
    returned = gone_back(torch.stack(outputs), upstream)
    gradients = {f"{name}.grad": leaf.grad for name, leaf in leaves.items()}
    return {"returns": returned, "load": arguments["load"], **gradients}


def _over_ranks(x: Tensor, chosen: Tensor, weights: Tensor, experts: Tensor, group: ProcessGroup) -> Tensor:
    """What experts of all ranks make of this rank's tokens, of which it has some."""
    _, _, counts = counts_first(chosen, len(experts) * dist.get_world_size(group), group)
    made = of_experts(dispatch(x, chosen, counts, group), experts, counts.sum(0).tolist())
    return combine(made, counts, chosen, weights, group)
