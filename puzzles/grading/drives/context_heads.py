"""Drives of the chapter `context_parallel`: heads, losses and states that are shared out over ranks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.context_parallel.plain import attend

from . import gone_back, there_and_back

COMPUTED = "heads of queries that a rank computes"


def counting_heads(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """As `there_and_back`; give it `attend`, causal, and compare with how many heads of queries that was called."""
    computed = 0

    def counted(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        nonlocal computed
        computed += query.shape[1]
        seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
        return attend(query, key, value, seen)[0]

    found = there_and_back(lambda **given: function(**given, attend=counted), arguments)
    return {**found, COMPUTED: computed}


def backward_of_a_part(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """It returns this rank's part of a loss, and the loss. Go backward from the part, to `logits`."""
    logits = arguments["logits"].requires_grad_()
    returned = function(**arguments)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        return {"returns": returned}
    part, whole = returned
    return {
        "this rank's part": gone_back(part, torch.ones((), dtype=torch.float64)),
        "the loss": whole.detach() if isinstance(whole, Tensor) else whole,
        "logits.grad": logits.grad,
    }


class _Scanned(torch.autograd.Function):
    """A learner's scan over ranks: its backward is the same scan from the other end."""

    @staticmethod
    def forward(ctx: Any, scan: Callable[..., Tensor], decay: Tensor, state: Tensor, group: ProcessGroup) -> Tensor:
        before = scan(decay=decay, state=state, backwards=False, group=group)
        ctx.scan, ctx.group = scan, group
        ctx.save_for_backward(decay, before)
        return before

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor, None]:
        decay, before = ctx.saved_tensors
        of_state = ctx.scan(decay=decay, state=gradient.contiguous(), backwards=True, group=ctx.group)
        return None, (before * of_state).sum((1, 2)), of_state, None


def scanned_there_and_back(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Scan states over ranks, and go backward from what it gives: by the same function, from the other end."""
    return there_and_back(lambda decay, state, group: _Scanned.apply(function, decay, state, group), arguments)


def as_numbers(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it. A list of whole numbers that it returns travels as a tensor, for it may be very long."""
    returned = function(**arguments)
    whole = isinstance(returned, list | tuple) and all(type(each) is int for each in returned)
    return {"returns": torch.tensor(returned, dtype=torch.int64) if whole else returned}
