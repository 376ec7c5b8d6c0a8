"""What a GPU would do, counted without one: kernels, the bytes that they move, and FLOPs, on meta tensors."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

NO_KERNEL = ("empty", "detach", "lift_fresh", "set_", "resize_", "_unsafe_view", "_reshape_alias")


@dataclass
class Count:
    """What operations were, and moved."""

    kernels: int = 0
    bytes: int = 0  # read and written
    largest: int = 0  # bytes of the largest tensor that was made
    flops: int = 0  # of matrix products and attention


class Counting(TorchDispatchMode):
    """Counts each operation as a kernel that reads all of its inputs and writes all of its outputs. Views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.kinds = Count(), Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        name = op.overloadpacket.__name__
        if not (op.is_view or name.startswith(NO_KERNEL)):
            written = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
            read = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)]
            self.kinds[name] += 1
            self.count.kernels += 1
            self.count.bytes += sum(map(memory_of, read + written))
            self.count.largest = max([self.count.largest, *map(memory_of, written)])
        return result


def memory_of(x: Tensor) -> int:
    """Bytes that a kernel reads or writes: of what was expanded, each once."""
    once = [size for size, stride in zip(x.shape, x.stride(), strict=True) if stride]
    return torch.Size(once).numel() * x.element_size()


def counted(function: Callable[..., Any], *arguments: Any) -> Count:
    """Run a function on meta tensors, and count."""
    flops = FlopCounterMode(display=False)
    with flops, Counting() as counting:
        function(*arguments)
    counting.count.flops = flops.get_total_flops()
    return counting.count


def forward_and_backward(function: Callable[..., Tensor], *arguments: Tensor) -> tuple[Count, Count]:
    """The same of both ways through a function whose arguments ask for gradients where they can."""
    learned = [x.detach().requires_grad_(x.is_floating_point()) for x in arguments]
    made: list[Tensor] = []
    forward = counted(lambda: made.append(function(*learned)))
    backward = counted(lambda: torch.autograd.grad(made[0], [x for x in learned if x.requires_grad], made[0].detach()))
    return forward, backward
