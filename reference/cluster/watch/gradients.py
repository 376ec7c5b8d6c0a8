"""Gradients that a collective lost: `dist.all_gather(out, x)` has no backward, so nothing flows back into `x`."""

import gc
from dataclasses import dataclass

import torch
from torch import Tensor

from ...trace.calls import Call
from ..errors import GradientError, RankError
from .checks import at


@dataclass(frozen=True)
class Cut:
    """A collective that took a tensor with a history, and the leaves of that history."""

    call: Call
    leaves: tuple[Tensor, ...]


class Gradients:
    """Remembers what went into collectives with a history, and which leaves a backward pass reached."""

    def __init__(self) -> None:
        self.cuts: list[Cut] = []
        self.reached: set[int] = set()
        self.passes = 0

    def begin(self, call: Call) -> None:
        """A call of the caller's own code is about to be made."""
        if not torch.is_grad_enabled():
            return
        results = {id(t) for t in call.outputs}
        for tensor in call.inputs:
            if tensor.grad_fn is not None and id(tensor) not in results:
                self.cuts.append(Cut(call, tuple(leaves(tensor))))

    def backward(self) -> None:
        """A backward pass has ended: note which leaves have a gradient now."""
        self.passes += bool(self.cuts)
        self.reached |= {id(leaf) for cut in self.cuts for leaf in cut.leaves if leaf.grad is not None}

    def check(self, rank: int) -> RankError | None:
        """The error of a leaf that no backward pass ever reached."""
        for cut in self.cuts if self.passes else ():
            missing = [leaf for leaf in cut.leaves if id(leaf) not in self.reached]
            if missing:
                what = f"the gradient of {name_of(missing[0])} is missing: {cut.call.function} has no backward"
                fix = (
                    "use torch.distributed._functional_collectives or an autograd.Function with the conjugate backward"
                )
                return at(cut.call, rank, GradientError, "gradient lost", what, fix)
        return None


def leaves(tensor: Tensor) -> list[Tensor]:
    """The leaves that a backward pass from `tensor` would reach."""
    found: dict[int, Tensor] = {}
    seen, stack = set(), [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        stack += [following for following, _ in node.next_functions]
    return list(found.values())


def name_of(leaf: Tensor) -> str:
    """The name of a parameter in the largest module that holds it, or its shape."""
    names = [
        name
        for module in gc.get_objects()
        if isinstance(module, torch.nn.Module)
        for name, parameter in module.named_parameters()
        if parameter is leaf
    ]
    shape = f"of shape {list(leaf.shape)}"
    return f"{max(names, key=len)} {shape}" if names else f"a tensor {shape}"
