"""What a GPU would do, counted where nothing is computed: FLOPs, bytes and messages of code that runs on meta tensors.

    meter = Meter()
    with meter:
        y = layer(x)
    meter.take()            what that was, and the next count begins

Each operation counts as one kernel that reads its inputs and writes its outputs; views are none. Products of matrices
count apart from what lies between them. Attention is one kernel, as on a GPU: of what happens inside (`OneKernel`)
its products count, and neither scores nor anything else that such a kernel never writes to memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from reference.models.ops import Around, Ops

from .work import Work

NO_KERNEL = ("empty", "detach", "lift_fresh", "set_", "resize_", "new_empty", "_unsafe_view", "_reshape_alias")


@dataclass(frozen=True)
class Sent:
    """What a rank sends along one axis.

    Attributes:
        bytes: that go through its link.
        messages: one behind another; around a ring of n ranks, n - 1 in each pass.
    """

    bytes: float = 0
    messages: float = 0

    def __add__(self, other: "Sent") -> "Sent":
        return Sent(self.bytes + other.bytes, self.messages + other.messages)

    def __mul__(self, times: float) -> "Sent":
        return Sent(self.bytes * times, self.messages * times)


@dataclass(frozen=True)
class Count:
    """What ran.

    Attributes:
        work: FLOPs, bytes and kernels. Of attention all products that were made: none was left out for a mask.
        sent: by axis.
    """

    work: Work = field(default_factory=Work)
    sent: Mapping[str, Sent] = field(default_factory=dict)

    def __add__(self, other: "Count") -> "Count":
        axes = {**self.sent, **other.sent}
        return Count(self.work + other.work, {axis: self.along(axis) + other.along(axis) for axis in axes})

    def __mul__(self, times: float) -> "Count":
        return Count(self.work * times, {axis: said * times for axis, said in self.sent.items()})

    __rmul__ = __mul__

    def __sub__(self, other: "Count") -> "Count":
        return self + -1 * other

    def along(self, axis: str) -> Sent:
        """What was sent along one axis."""
        return self.sent.get(axis, Sent())


class Meter(TorchDispatchMode):
    """Counts the operations on meta tensors that run inside, and what communicators tell it."""

    def __init__(self) -> None:
        super().__init__()
        self._count, self._attends = Count(), False

    def take(self) -> Count:
        """What ran since the last time."""
        count, self._count = self._count, Count()
        return count

    def say(self, axis: str, sent: float, messages: int = 1) -> None:
        """A collective or a message, of which this rank sends so many bytes, in so many messages."""
        self._count += Count(sent={axis: Sent(sent, messages)})

    def begin_attention(self, attends: bool) -> None:
        """From here on what runs is inside a kernel of attention, or no longer."""
        self._attends = attends

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = op(*args, **(kwargs or {}))
        written = [x for x in tree_leaves(result) if isinstance(x, Tensor) and x.is_meta]
        if written and not op.is_view and not op.overloadpacket.__name__.startswith(NO_KERNEL):
            read = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor) and x.is_meta]
            self._count += Count(
                self._work(op, args, kwargs or {}, result, *(_bytes(each) for each in (read, written)))
            )
        return result

    def _work(self, op: Any, args: tuple, kwargs: dict, result: Any, read: int, written: int) -> Work:
        flops = 0
        if op.overloadpacket in flop_registry:
            flops = flop_registry[op.overloadpacket](*args, **kwargs, out_val=result)
        if self._attends:
            return Work(attention=flops)
        return Work(flops=flops, written=written, kernels=1) if flops else Work(moved=read + written, kernels=1)


def _bytes(tensors: list[Tensor]) -> int:
    return sum(map(memory_of, tensors))


def memory_of(x: Tensor) -> int:
    """Bytes that a kernel reads or writes: of what was expanded, each once."""
    once = [size for size, stride in zip(x.shape, x.stride(), strict=True) if stride]
    return torch.Size(once).numel() * x.element_size()


class OneKernel(Around):
    """Ops whose attention is one kernel, as on a GPU: nothing of the size of all pairs of tokens is ever kept.

    Args:
        inside: ops of a model.
        meter: counts what attention multiplies.
        among_ranks: whether ops inside bring keys and values from other ranks: then they compute it, piece by piece.
    """

    def __init__(self, inside: Ops, meter: Meter, among_ranks: bool) -> None:
        super().__init__(inside)
        self.meter, self.among_ranks = meter, among_ranks

    def attention(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """As for `Ops`."""
        query, key, value = Between.apply(self.meter, True, query, key, value)
        if self.among_ranks:
            made = self.inside.attention(query, key, value, causal)
        else:
            made = flash(query, key, value, causal)
        return Between.apply(self.meter, False, made)[0]


class Between(Function):
    """`apply(meter, begins, *tensors)` is the tensors: attention begins, or ends; in backward the other way around."""

    @staticmethod
    def forward(ctx: Any, meter: Meter, begins: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.meter, ctx.begins = meter, begins
        meter.begin_attention(begins)
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.meter.begin_attention(not ctx.begins)
        return None, None, *gradients


def flash(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """The kernel that a GPU has (Dao et al. 2022), of which meta tensors know the shapes."""
    key, value = (x if x.shape[1] == query.shape[1] else OfEachHead.apply(x, query) for x in (key, value))
    kernel: Callable[..., tuple[Tensor, ...]] = torch.ops.aten._scaled_dot_product_flash_attention
    return kernel(query, key, value, 0.0, causal)[0]


class OfEachHead(Function):
    """`apply(x, query)`: keys or values for each head of queries: a view, since kernels of GPUs copy none of them.

    Of meta tensors the shape alone matters, so all heads are a view of the first.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, query: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x[:, :1].expand(-1, query.shape[1], -1, -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.unflatten(1, (ctx.shape[1], -1)).sum(2), None
