"""Gradients that a collective lost: `dist.all_gather(out, x)` has no backward, so nothing flows back into `x`."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ...trace.calls import Call
from ..errors import GradientError, RankError
from .checks import at

_PASSED = "rankwise: a backward pass has been here"
_CUTS = "rankwise: collectives that took what this node made"


@dataclass(eq=False)
class Cut:
    """A collective that took a tensor with a history, and the leaves of that history."""

    call: Call
    leaves: tuple[Tensor, ...]
    names: dict[int, str]
    passed: bool = False  # that very tensor has gone backward since


class Gradients:
    """Remembers what went into collectives with a history, and which leaves a backward pass reached."""

    def __init__(self) -> None:
        self.cuts: list[Cut] = []
        self.reached: set[int] = set()
        self.passes = 0

    def begin(self, call: Call, frame: FrameType | None) -> None:
        """A call of the caller's own code is about to be made. What was detached before is to have no gradient."""
        if not torch.is_grad_enabled():
            return
        results = {id(t) for t in call.outputs}
        for tensor in call.inputs:
            if tensor.grad_fn is not None and id(tensor) not in results:
                self.cut(call, tensor.grad_fn, frame)

    def cut(self, call: Call, history: Any, frame: FrameType | None) -> None:
        """Remember the leaves behind a collective, and what the caller calls them."""
        found = [node.variable for node in unpassed(history) if hasattr(node, "variable")]
        cut = Cut(call, tuple(found), {id(leaf): name_of(leaf, frame) for leaf in found})
        self.cuts.append(cut)
        history.metadata.setdefault(_CUTS, []).append(cut)

    def backward(self, roots: Any) -> None:
        """A backward pass from these tensors has ended: note where it was, and which leaves have a gradient now."""
        self.passes += bool(self.cuts)
        self.reached |= {id(leaf) for cut in self.cuts for leaf in cut.leaves if leaf.grad is not None}
        self.pass_through(roots)

    def asked(self, roots: Any, inputs: Tensor | Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """`torch.autograd.grad` has returned: where `inputs` are named, torch itself says if one is not reached."""
        inputs = (inputs,) if isinstance(inputs, Tensor) else inputs
        self.reached |= {id(leaf) for leaf, gradient in zip(inputs, gradients, strict=True) if gradient is not None}
        self.pass_through(roots)

    def pass_through(self, roots: Any) -> None:
        """Mark all but the leaves behind `roots`: whatever has been or will be sent of them loses nothing."""
        for root in (roots,) if isinstance(roots, Tensor) else roots:
            for node in unpassed(getattr(root, "grad_fn", None)):
                for cut in node.metadata.get(_CUTS, ()):
                    cut.passed = True
                if not hasattr(node, "variable"):
                    node.metadata[_PASSED] = True

    def check(self, rank: int) -> RankError | None:
        """The error of a leaf that no backward pass ever reached."""
        for cut in self.cuts if self.passes else ():
            missing = [] if cut.passed else [leaf for leaf in cut.leaves if id(leaf) not in self.reached]
            if missing:
                what = f"the gradient of {cut.names[id(missing[0])]} is missing: {cut.call.function} has no backward"
                fix = (
                    "use torch.distributed._functional_collectives or an autograd.Function with the conjugate backward"
                )
                return at(cut.call, rank, GradientError, "gradient lost", what, fix)
        return None


def unpassed(history: Any) -> list[Any]:
    """The nodes that a backward pass from a `grad_fn` would reach, as far as none has been there."""
    found, stack = {}, [history]
    while stack:
        node = stack.pop()
        if node is not None and node not in found and _PASSED not in node.metadata:
            found[node] = True
            stack += [following for following, _ in node.next_functions]
    return list(found)


def name_of(leaf: Tensor, frame: FrameType | None) -> str:
    """What the caller calls a leaf: a variable, or a parameter of a module that a variable holds; and its shape."""
    shape = f"of shape {list(leaf.shape)}"
    for name, value in frame.f_locals.items() if frame else ():
        if value is leaf:
            return f"{name} {shape}"
        if isinstance(value, torch.nn.Module):
            for inner, parameter in value.named_parameters():
                if parameter is leaf:
                    return f"{name}.{inner} {shape}"
    return f"a tensor {shape}"
